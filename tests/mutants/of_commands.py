"""Mutants of what a session is asked: command ids, lanes, modes, interrupts."""

from __future__ import annotations

from .mutant import Edit, Place

__all__ = ["COMMANDS", "INTERRUPTS", "LANES"]

in_actor = Place("session/actor/actor.py", "session/registry/test_lifecycle.py")
in_history_commands = Place(
    "session/actor/history_commands.py", "session/actor/test_configure_and_clear.py"
)
in_interrupts = Place("session/actor/interrupts.py", "session/actor/test_interrupts.py")
in_mailbox = Place("session/actor/mailbox.py", "session/actor/test_mailbox.py")
in_turn_queue = Place("session/actor/turn_queue.py", "session/actor/test_send_modes.py")
in_turn_runner = Place("session/actor/turn_runner.py", "session/registry/test_lifecycle.py")
in_turn_works = Place("session/actor/turn_works.py", "session/actor/test_interrupts.py")
in_idempotency_keys = Place("session/core/idempotency_keys.py", "session/values/test_commands.py")
in_state = Place("session/log/state.py", "session/values/test_commands.py")
in_works = Place("session/tasks/works.py", "session/tasks/test_works.py")
in_commands = Place("session/values/commands.py", "session/actor/test_interrupts.py")

LANES = {
    "work is read before control": in_mailbox(
        "invariant 8",
        "for lane in (self._reports, self._control):",
        "for lane in (self._reports, self._work, self._control):",
        "test_reports_are_read_before_control_and_control_before_work",
    ),
    "control is read before reports": in_mailbox(
        "rule 4",
        "for lane in (self._reports, self._control):",
        "for lane in (self._control, self._reports):",
        "test_reports_are_read_before_control_and_control_before_work",
    ),
    "the work lane is unbounded": in_mailbox(
        "rule 10",
        'self._refuse_if(len(self._work) >= self._work_limit, "work")',
        'self._refuse_if(False, "work")',
        "test_a_full_work_lane_refuses_and_keeps_what_it_has",
    ),
    "the control lane is unbounded": in_mailbox(
        "rule 10",
        'self._refuse_if(len(self._control) >= self._control_limit, "control")',
        'self._refuse_if(False, "control")',
        "test_a_full_control_lane_refuses_and_work_is_still_taken",
    ),
    "a full lane refuses reports": in_mailbox(
        "rule 11",
        "        self._reports.append(report)\n",
        '        self._refuse_if(len(self._reports) >= self._work_limit, "report")\n'
        "        self._reports.append(report)\n",
        "test_reports_are_never_refused",
    ),
    "the queue of turns has no limit": in_turn_queue(
        "rule 10",
        "if len(self._waiting) >= self._core.config.queue_limit:",
        "if False:",
        "test_a_full_queue_answers_overloaded_and_the_session_goes_on",
    ),
    "reject takes the send": in_turn_queue(
        "docs/embedding.md",
        'if command.when_busy == "reject" and self.runs:',
        "if False:",
        "test_reject_raises_session_busy_while_a_turn_is_open_and_changes_nothing",
    ),
    "interrupt mode waits at the end of the queue": in_turn_queue(
        "docs/embedding.md",
        "self._waiting.insert(0, run)",
        "self._waiting.append(run)",
        "test_interrupt_mode_replaces_the_running_turn_and_jumps_the_queue",
    ),
    "interrupt mode does not end the running turn": in_turn_queue(
        "docs/embedding.md",
        'self.runner.interrupt(current, policy, "replaced")',
        "pass",
        "test_interrupt_mode_replaces_the_running_turn_and_jumps_the_queue",
    ),
    "a steer joins a turn that is being stopped": in_turn_queue(
        "rule 4",
        'return progress(run.turn) == "open" and run.turn.phase is not Phase.STOPPING',
        'return progress(run.turn) == "open"',
        "test_a_steer_to_a_turn_that_is_being_interrupted_is_a_new_turn",
    ),
    "a steer joins a turn whose end is decided": in_turn_queue(
        "rule 4",
        'if command.when_busy == "steer" and current is not None and _goes_on(current):',
        'if command.when_busy == "steer" and current is not None:',
        "test_a_steer_after_the_decision_is_a_new_queued_turn",
    ),
    "a steer is counted twice": in_turn_queue(
        "rule 6",
        "run.steers += 1",
        "run.steers += 2",
        "test_several_steers_are_read_together_in_order",
    ),
}

COMMANDS = {
    "an id that is used again for something else is not noticed": in_idempotency_keys(
        "invariant 13",
        "if first != command.digest:",
        "if False:",
        "test_the_same_id_with_other_content_is_key_reused",
    ),
    "an id of one kind of command serves for another": in_idempotency_keys(
        "invariant 13",
        'first = known.digest if known else in_flight[0] if in_flight else ""',
        "first = command.digest",
        "test_an_id_of_one_kind_of_command_cannot_be_used_for_another",
    ),
    "a repeat while the first is on its way is done twice": in_idempotency_keys(
        "invariant 13",
        "if known is None and in_flight is None:",
        "if known is None:",
        "test_a_repeat_while_the_first_is_on_its_way_gets_the_same_answer",
    ),
    "a repeat gets another answer than the first": in_idempotency_keys(
        "invariant 13",
        "command.promise.set(msgspec.json.decode(known.answer, type=command.answer_type))",
        "command.promise.set(max(self._state.accepted_at, default=None))",
        "test_a_repeat_after_other_turns_returns_the_turn_of_the_first",
    ),
    "a refused command keeps its id": in_idempotency_keys(
        "invariant 13",
        "        self.forget(command)\n        command.promise.fail(error)",
        "        command.promise.fail(error)",
        "test_a_refused_command_may_be_tried_again_under_its_id",
    ),
    "a repeated interrupt interrupts again": in_actor(
        "invariant 13",
        "        if self.keys.is_repeat(caller):\n            return caller.promise\n",
        "        self.keys.is_repeat(caller)\n",
        "test_a_repeated_interrupt_leaves_the_turn_that_runs_now_alone",
        suite="session/test_adversary.py",
    ),
    "answers to commands are not in the log": in_commands(
        "invariant 13",
        "return (CommandAnswer(command_id, digest, msgspec.Raw(msgspec.json.encode(answer))),)",
        "return ()",
        "test_a_repeat_gets_its_answer_in_the_next_process",
        suite="session/values/test_commands.py",
    ),
    "answers to commands are not folded": in_state(
        "invariant 12",
        "        if record.commands:\n",
        "        if False:\n",
        "test_a_repeat_gets_its_answer_after_the_session_was_evicted_and_opened_again",
    ),
    "the expected head is not looked at": in_turn_queue(
        "docs/embedding.md",
        "self._check_head(command.expected_head)",
        "pass",
        "test_a_head_that_moved_refuses_the_send_and_says_where_it_is",
        suite="session/values/test_commands.py",
    ),
    "an expected head is taken beside open sends": in_turn_queue(
        "docs/embedding.md",
        'raise HeadMoved(f"a{expected}", None, "other sends are open")',
        "return",
        "test_with_other_sends_open_an_expected_head_is_refused",
        suite="session/values/test_commands.py",
    ),
    "a clear is made while a turn is open": in_history_commands(
        "invariant 1",
        "        if not self._turns.runs:\n            self._make(command)\n",
        "        if command:\n            self._make(command)\n",
        "test_clear_is_refused_while_a_turn_is_open",
    ),
    "what comes behind a clear meets the history before it": in_history_commands(
        "invariant 1",
        "        self._writing = True\n        self._mailbox.hold_work()\n",
        "        self._writing = True\n",
        "test_two_clears_at_once_start_two_generations",
        suite="session/test_in_flight.py",
    ),
    "a configuration takes effect during a turn": in_actor(
        "docs/embedding.md",
        "self.configuration.configure(command, now=self.turns.current is None)",
        "self.configuration.configure(command, now=True)",
        "test_a_configuration_during_a_turn_takes_effect_after_it_and_before_the_next",
        suite="session/actor/test_configure_and_clear.py",
    ),
    "the caller may answer what the session runs itself": in_actor(
        "invariant 13",
        'if track.call.runner != "caller":',
        "if False:",
        "test_the_caller_cannot_answer_a_call_that_the_session_runs",
        suite="session/actor/test_tool_calls.py",
    ),
    "a second result replaces the first": in_actor(
        "invariant 13",
        "if call_id in seen or call_id not in run.turn.open_calls:",
        "if call_id in seen:",
        "test_a_second_result_is_a_duplicate_and_the_first_one_stays",
        suite="session/actor/test_tool_calls.py",
    ),
    "callers hang when the session cannot go on": in_actor(
        "rule 11",
        "        self.keys.fail_all(error)\n",
        "",
        "test_a_failed_append_gives_every_waiting_caller_a_store_error_and_goes_cold",
    ),
    "commands that are unread when the session closes are forgotten": in_actor(
        "rule 11",
        "            command.promise.fail(closed)\n        self.turns.runner",
        "            pass\n        self.turns.runner",
        "test_a_command_that_is_unread_when_the_session_closes_fails_by_name",
    ),
}

INTERRUPTS = {
    "an interrupt covers sends that came after it": in_actor(
        "invariant 7",
        "lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark",
        "lambda waiting: isinstance(waiting, c.Send)",
        "test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after",
        suite="session/actor/test_interrupts.py",
        also=(
            Edit(
                "session/actor/turn_queue.py",
                "if run.ingress < mark and run is not",
                "if run is not",
            ),
            Edit(
                "session/actor/turn_queue.py",
                "covered = current if current is not None and current.ingress < mark else None",
                "covered = current",
            ),
        ),
    ),
    "an interrupt misses the send right before it": in_actor(
        "invariant 7",
        "lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark",
        "lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark - 1",
        "test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after",
        suite="session/actor/test_interrupts.py",
    ),
    "sends that were not read yet are not covered": in_actor(
        "invariant 7",
        "lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark",
        "lambda waiting: False",
        "test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after",
        suite="session/actor/test_interrupts.py",
    ),
    "an interrupt that is folded into another loses its mark": in_commands(
        "invariant 7",
        "self.mark = max(self.mark, mark)",
        "self.mark = min(self.mark, mark)",
        "test_an_interrupt_folded_into_an_unread_one_ends_the_sends_between_them",
    ),
    "a drop that is folded into a keep is forgotten": in_commands(
        "rule 4",
        '        if policy == "drop_turn":\n            self.policy = policy\n',
        "",
        "test_a_drop_folded_into_an_unread_keep_wins",
    ),
    "an interrupt is answered before its record is durable": in_interrupts(
        "rule 5",
        "return not self._open",
        "return True",
        "test_an_interrupt_is_answered_after_its_record_is_durable",
    ),
    "an interrupt with an id is answered before its answer is in the log": in_turn_queue(
        "rule 5",
        "        self._core.journal.write(record, durable)\n",
        "        self._core.journal.write(record)\n        durable()\n",
        "test_a_logged_interrupt_of_an_idle_session_is_answered_when_its_answer_is_durable",
        suite="session/test_slow_store.py",
    ),
    "an interrupt does not wait for the queued turns that it ends": in_turn_queue(
        "rule 5",
        "            pending.wait_for(run)\n"
        '            self._abort_waiting(run, "interrupt")\n'
        "        if covered is not None:",
        '            self._abort_waiting(run, "interrupt")\n        if covered is not None:',
        "test_queued_sends_that_an_interrupt_covers_get_their_turns_and_come_back",
        suite="session/actor/test_interrupts.py",
    ),
    "an interrupt of one queued turn does not wait for its end": in_turn_queue(
        "rule 5",
        "            pending.wait_for(run)\n"
        '            self._abort_waiting(run, "interrupt")\n'
        "        self._answer_interrupts()",
        '            self._abort_waiting(run, "interrupt")\n        self._answer_interrupts()',
        "test_an_interrupt_of_one_queued_turn_tells_its_outcome",
        suite="session/actor/test_interrupts.py",
    ),
    "an interrupt during the abort of an earlier one is too late": in_turn_queue(
        "invariant 8",
        "elif run.turn.phase is Phase.ABORTING or _was_kept(run):",
        "elif _was_kept(run):",
        "test_two_hundred_interrupts_of_one_turn_abort_it_once_and_are_all_answered",
        suite="session/actor/test_interrupts.py",
    ),
    "a queued turn that was dropped starts all the same": in_turn_queue(
        "invariant 2",
        '            self._waiting.remove(run)\n            self.runner.interrupt(run, "drop_turn"',
        '            self.runner.interrupt(run, "drop_turn"',
        "test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after",
        suite="session/actor/test_interrupts.py",
    ),
    "work that is stopped gets no grace": in_turn_works(
        "invariant 8",
        "        if not run.works:\n            self._over(run)\n            return\n",
        "        if run:\n            self._over(run)\n            return\n",
        "test_an_interrupt_during_the_grace_gets_the_answer_of_the_first",
    ),
    "the grace is twice as long as it was asked to be": in_turn_works(
        "invariant 8",
        "run.grace = self._core.timers.after(grace_s, over)",
        "run.grace = self._core.timers.after(2 * grace_s, over)",
        "test_a_tool_that_swallows_cancellation_holds_the_interrupt_for_the_grace_only",
    ),
    "a turn that is stopped does not cancel its work": in_turn_works(
        "invariant 8",
        "        for work in run.works.values():\n"
        "            work.cancel()\n"
        "        if not run.works:",
        "        if not run.works:",
        "test_an_interrupt_stops_a_reply_that_streams_at_once",
    ),
    "work past its grace is asked to stop for ever": in_works(
        "rule 8",
        "        self._inner.shield = True\n",
        "        pass\n",
        "test_abandoned_work_that_swallows_cancellation_costs_no_turns_of_the_loop",
    ),
    "a turn's work is not let go after its grace": in_turn_works(
        "rule 8",
        "        for work in run.works.values():\n            work.abandon()\n",
        "",
        "test_a_tool_that_is_let_go_after_its_grace_costs_no_turns_of_the_loop",
    ),
    "the outcome does not name what still runs": in_turn_works(
        "invariant 11",
        "run.still_running = tuple(run.works)",
        "run.still_running = ()",
        "test_a_tool_that_swallows_cancellation_holds_the_interrupt_for_the_grace_only",
    ),
    "close does not name what still runs": in_actor(
        "invariant 11",
        "    def _closed(self) -> Closed:\n",
        "    def _closed(self) -> Closed:\n        return Closed(self.session, ())\n",
        "test_close_interrupts_what_is_open_and_names_what_still_runs",
    ),
    "close does not name what still runs from before the session was opened again": in_actor(
        "invariant 11",
        "left = self.core.works.stopping_in(self.session)",
        "left = ()",
        "test_what_an_earlier_life_left_running_is_named_where_the_session_is_closed",
    ),
    "a tool in the grace of its deadline is not named once its turn has ended": in_turn_runner(
        "invariant 11",
        "self._core.still_running.update(n for n, work in run.works.items() if not work.is_done)",
        "pass",
        "test_close_names_a_tool_that_is_in_the_grace_of_its_deadline",
    ),
}
