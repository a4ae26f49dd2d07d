"""Mutants of ``turns/``: what a turn does next, what a reply means, what is in a block."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["BLOCKS", "MACHINE", "NAMING"]

MACHINE = read_mutants(r"""
in turns/machine.py, by turns/test_machine_interrupts.py
the tag of a report is not compared (rule 3)
    - return tag.attempt != turn.attempt or tag.step != turn.step or tag.turn != turn.number
    + return False
    turns/test_machine.py
    test_a_late_report_changes_nothing_in_any_phase
a pair without a cell is ignored (rule 2)
    - raise TurnStateError(f"{type(event).__name__} while turn {turn.number} is {turn.phase}")
    + return turn, ()
    turns/test_machine.py
    test_an_event_without_a_cell_raises_and_names_event_turn_and_phase
a turn that has ended may end once more (invariant 2)
    -     P.COMMITTED: {},
    +     P.COMMITTED: {e.Committed: P.COMMITTED},
    turns/test_machine.py
    test_nothing_may_come_after_an_end
a reply that ends while the turn is being stopped commits it (rule 4)
    - **_stay(P.STOPPING, e.ReplyFinished, e.ReplyRequestedTools, e.ReplyContinued),
    + e.ReplyFinished: P.COMMITTING,
    +         **_stay(P.STOPPING, e.ReplyRequestedTools, e.ReplyContinued),
    test_an_interrupt_before_the_decision_wins_over_what_comes_after_it
an interrupt is let through after the decision to commit (rule 4)
    - **_stay(P.COMMITTING, e.DropRequested, e.KeepRequested, e.LimitReached, *_JOURNALED),
    + e.DropRequested: P.ABORTING,
    +         **_stay(P.COMMITTING, e.KeepRequested, e.LimitReached, *_JOURNALED),
    test_after_the_decision_neither_an_interrupt_nor_an_older_record_changes_anything
the decision leaves older reports valid (rule 3)
    - return _next(turn, phase, attempt=turn.attempt + 1, is_decided=True)
    + return _next(turn, phase)
    test_the_decision_makes_every_report_of_the_work_before_it_late
a turn has something to keep before a step is complete (rule 4)
    - keepable=turn.step > 0,
    + keepable=True,
    test_a_limit_with_nothing_to_keep_fails
a keep weakens a drop that came first (rule 4)
    - if turn.ending is not None and turn.ending.how == "drop":
    + if False:
    test_nothing_beats_a_drop_while_stopping
a limit overrides what an interrupt asked for (rule 4)
    - if isinstance(event, e.LimitReached | e.ResumedToLimit) and turn.ending is None:
    + if isinstance(event, e.LimitReached | e.ResumedToLimit):
    test_a_limit_does_not_change_what_an_interrupt_asked_for
a limit with nothing to keep commits an empty turn (rule 2)
    - Ending("keep_steps" if turn.keepable else "fail", event.stop_reason)
    + Ending("keep_steps", event.stop_reason)
    test_a_limit_with_nothing_to_keep_fails
results in the grace of a drop are journaled (invariant 3)
    - return turn, (e.JournalAnswers(tag=tag),) if is_kept else ()
    + return turn, (e.JournalAnswers(tag=tag),)
    test_a_call_answered_in_the_grace_is_journaled_if_kept_and_not_if_dropped
a new step keeps the retries of the last (rule 2)
    - attempt=1, retries=0, overflows=0,
    + attempt=1, overflows=0,
    turns/test_machine_lives.py
    test_seeded_lives_end_and_reach_the_deep_states
a retry is not counted (rule 2)
    - retries=turn.retries + 1)
    + retries=turn.retries)
    turns/test_machine_lives.py
    test_the_machine_does_what_the_oracle_expects
a retry keeps its attempt number, so reports of the broken stream count (rule 3)
    - turn = _next(turn, P.BUILDING, attempt=turn.attempt + 1, retries=
    + turn = _next(turn, P.BUILDING, retries=
    turns/test_machine_lives.py
    test_the_machine_does_what_the_oracle_expects
the machine forgets the delay before a retry (rule 2)
    - delay_s = event.delay_s
    + delay_s = 0.0
    turns/test_machine_lives.py
    test_the_machine_does_what_the_oracle_expects
tools start before their calls are in the log (rule 5)
    -             e.JournalCalls(tag=tag),
    +             e.JournalCalls(tag=tag), e.StartTools(tag=tag),
    turns/test_machine_lives.py
    test_no_tool_starts_before_its_call_is_durable
the next step begins before the last one is in the log (rule 5)
    - return turn, (e.JournalAnswers(tag=tag), e.JournalStep(tag=tag))
    + return turn, (e.JournalStep(tag=tag), e.BuildContext(tag=tag))
    turns/test_machine_lives.py
    test_no_step_begins_before_the_last_one_is_durable
the last answers are journaled behind their step (rule 5)
    - return turn, (e.JournalAnswers(tag=tag), e.JournalStep(tag=tag))
    + return turn, (e.JournalStep(tag=tag), e.JournalAnswers(tag=tag))
    turns/test_machine_lives.py
    test_the_machine_does_what_the_oracle_expects
a step keeps its calls open when all are answered (rule 2)
    - turn = _next(turn, P.JOURNALING, open_calls=frozenset())
    + turn = _next(turn, P.JOURNALING)
    turns/test_machine_lives.py
    test_the_machine_does_what_the_oracle_expects
""")

NAMING = read_mutants(r"""
in turns/event_choice.py, by turns/test_event_choice.py
a pause without a server tool is sent back as a prefill (docs/reference/providers.md)
    - if follow is Follow.CONTINUE and goes_on and turn.pauses < limits.max_pauses:
    + if follow is Follow.CONTINUE and turn.pauses < limits.max_pauses:
    test_a_pause_behind_which_no_request_may_end_is_the_end_of_the_turn
an interrupt that keeps the steps commits a turn without one (rule 2)
    - if policy == "drop_turn" or not (turn.keepable or text) or turn.phase is Phase.ACCEPTED:
    + if policy == "drop_turn":
    test_with_nothing_to_keep_every_policy_is_a_drop
calls of a reply that was cut are run (invariant 4)
    - if pending_calls and follow is not Follow.COMMIT_CUT:
    + if pending_calls:
    test_every_stop_reason_with_and_without_calls_and_steers_has_its_meaning
pauses are not bounded (rule 2)
    - if follow is Follow.CONTINUE and goes_on and turn.pauses < limits.max_pauses:
    + if follow is Follow.CONTINUE:
    test_a_turn_is_sent_on_after_a_pause_at_most_so_many_times
a pending steer does not make the turn go on (rule 2)
    -     if steers:
    +     if False:
    test_every_stop_reason_with_and_without_calls_and_steers_has_its_meaning
retries are not bounded (rule 2)
    - if error.kind == "retryable" and not error.retried and turn.retries < limits.max_retries:
    + if error.kind == "retryable" and not error.retried:
    test_a_retryable_failure_is_retried_up_to_its_bound
what the SDK has retried is retried again (rule 2)
    - if error.kind == "retryable" and not error.retried and
    + if error.kind == "retryable" and
    test_what_the_provider_has_retried_itself_is_not_retried_on_top
the delay that the server names is ignored (rule 2)
    - delay_s = error.delay_s or _backoff_s(turn.retries)
    + delay_s = _backoff_s(turn.retries)
    test_the_providers_delay_goes_before_our_own
overflows are not bounded (rule 2)
    - if error.kind == "overflow" and turn.overflows < limits.max_overflows:
    + if error.kind == "overflow":
    test_an_overflow_is_built_smaller_up_to_its_bound_whatever_was_retried
the limit of steps is off by one (rule 2)
    - step >= limits.max_steps
    + step > limits.max_steps
    session/actor/test_turn_limits.py
    test_max_steps_ends_the_turn_after_that_many_requests_and_keeps_them
the tokens of a turn are not limited (rule 2)
    - if limits.max_tokens is not None and tokens >= limits.max_tokens:
    + if False:
    session/actor/test_turn_limits.py
    test_max_tokens_counts_all_requests_of_the_turn_and_none_of_the_turn_before
a failed turn loses its complete steps (rule 2)
    - if on_failure == "keep_steps" and turn.keepable and error.kind != "overflow":
    + if False:
    session/actor/test_retries.py
    test_given_up_the_complete_steps_are_kept_with_the_stop_reason_error
a decided turn counts as open to an interrupt (rule 4)
    - return "decided" if turn.phase in DECIDED else "open"
    + return "open"
    test_an_interrupt_finds_a_turn_open_decided_or_ended

in turns/stop.py, by session/actor/test_stop_reasons.py
a reply that was cut at its token limit has its tools run (invariant 4)
    - "max_tokens": StopRule(Follow.COMMIT_CUT,
    + "max_tokens": StopRule(Follow.RUN_TOOLS,
    test_a_cut_reply_is_committed_without_its_calls_which_never_run
a refused turn is committed (rule 2)
    - "refusal": StopRule(Follow.DROP,
    + "refusal": StopRule(Follow.COMMIT,
    test_a_refusal_drops_the_whole_turn_and_runs_no_tool
""")

BLOCKS = read_mutants(r'''
in turns/reply.py, by turns/test_reply_committed.py
call ids are not made unique (invariant 13)
    - return any(name in names for names in taken)
    + return False
    session/actor/test_tool_calls.py
    test_call_ids_are_unique_in_a_session_before_they_are_published
a cut reply keeps calls that nobody will answer (invariant 4)
    - return _ended(_without(reply.blocks, gone.__contains__, is_edited=False))
    + return _ended(reply.blocks)
    test_a_cut_reply_keeps_no_calls_because_nobody_answers_them
a cut reply may end with thinking (invariant 4)
    - while end and _may_not_be_last(blocks[end - 1]):
    + while False:
    test_a_cut_reply_does_not_end_in_thinking
a whole reply may end with thinking (invariant 4)
    - return ended if any(block_type(raw) in _THINKING for raw in last) else reply.blocks
    + return reply.blocks
    test_a_whole_reply_does_not_end_in_thinking
a block without its end is kept (invariant 4)
    - if self._parts[index].stopped or self._parts[index].type == "text"
    + if self._parts[index]
    turns/test_reply.py
    test_v10_a_block_without_its_stop_is_left_out_unless_it_is_text
an interrupted text keeps its half call (invariant 4)
    - encoded = (part.encode() for part in parts if part.type == "text")
    + encoded = (part.encode() for part in parts)
    session/actor/test_interrupts.py
    test_keep_text_leaves_a_half_streamed_call_out
a streamed block loses the fields that are not known (rule 7)
    - fields: dict[str, Any] = _Fields.decode(self.opened)
    + fields: dict[str, Any] = {"type": self.type}
    turns/test_reply.py
    test_unknown_fields_of_an_opened_block_survive_its_deltas_in_their_order

in turns/ids.py, by session/registry/test_lifecycle.py
turn numbers begin again after a restart (invariant 13)
    - read from the log and is in use."""
    + read from the log and is in use."""
    +         number = 0
    test_turns_number_on_through_drops_and_restarts_without_a_gap_or_a_repeat

in turns/blocks.py, by turns/test_blocks.py
a block of an unknown type is encoded again (rule 7)
    - return msgspec.Raw(b"[" + b",".join(bytes(raw) for raw in raws) + b"]")
    + return msgspec.Raw(_encoder.encode([msgspec.json.decode(raw) for raw in raws]))
    session/test_malformed_input.py
    test_unknown_blocks_and_unknown_fields_are_kept_byte_for_byte
a lone surrogate is not replaced (rule 7)
    - return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    + return text
    test_a_lone_surrogate_is_replaced_and_a_split_pair_joined
a message of any size is taken (rule 11)
    -     if len(body) > MAX_CONTENT_BYTES:
    +     if False:
    test_a_message_of_50_mb_is_refused_with_its_size
nesting without end is taken (rule 11)
    -     if too_deep(body):
    +     if False:
    test_nesting_is_accepted_up_to_a_depth_that_can_be_read_anywhere
''')
