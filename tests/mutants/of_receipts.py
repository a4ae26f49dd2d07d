"""Mutants of what is told of dropped turns, and of what was spent."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["RECEIPTS", "SPENDING"]

RECEIPTS = read_mutants(r"""
in turns/receipts.py, by turns/test_receipts.py
an unknown call is told as finished (rule 13)
    - "unknown": "started; outcome unknown",
    + "unknown": "finished; its effects stand",
    session/actor/test_receipts.py
    test_the_next_user_message_ends_with_one_flagged_block_that_names_each_call
calls that differ in what became of them share a line (rule 13)
    - alike.setdefault((call.name, call.brief, call.status), [])
    + alike.setdefault((call.name, call.brief, "finished"), [])
    test_a_receipt_names_each_call_and_what_became_of_it_oldest_turn_first
a receipt names every call of a long line (rule 13)
    - named = ", ".join(ids[:MAX_IDS])
    + named = ", ".join(ids)
    test_calls_that_would_read_alike_share_a_line
what stands for a result is another text each time (rule 13)
    - encode_json(settled_text(reason))
    + encode_json(settled_text(reason) + __import__('uuid').uuid4().hex)
    session/actor/test_tool_runner.py
    test_a_call_past_its_deadline_is_settled_neutrally_and_always_alike

in session/actor/turn_queue.py, by session/actor/test_receipts.py
a receipt is not written into the next message (rule 13)
    - receipt=receipt_text(state.receipts) if starts else None,
    + receipt=None,
    test_the_next_user_message_ends_with_one_flagged_block_that_names_each_call
a queued turn starts without the pending receipt (rule 13)
    - turn=run.number, receipt=receipt_text(self._core.state.receipts), seed=self._seed()
    + turn=run.number, receipt=None, seed=self._seed()
    test_a_queued_turn_gets_the_receipt_of_the_turn_that_was_dropped_before_it

in session/log/state.py, by session/actor/test_receipts.py
a receipt is lost when the turn that carries it is dropped, too (rule 13)
    - self.receipts = (*self.receipts, receipt)
    + self.receipts = (receipt,)
    test_receipts_stay_pending_across_further_drops_and_come_together_oldest_first
a receipt of a forgotten call is not looked for in the record that has it (rule 13)
    - ranges += ((record, record) for record in chain(repeats, carriers))
    + ranges += ((record, record) for record in repeats)
    session/log/test_redaction.py
    test_a_record_that_repeats_a_turn_is_found_when_that_turn_is_forgotten_later_than_others
a receipt of a kept turn still begins with one that was forgotten (invariant 8)
    - self.receipts_by_turn[turn] = (left[0].seq, start)
    + pass
    session/log/test_forget.py
    test_a_turn_that_reports_two_dropped_ones_reports_the_one_that_is_not_forgotten
a turn that is rewound gives back what another one reported (rule 13)
    - if any(first <= receipt.seq < start for first, start in carried)
    + if True
    session/actor/test_rewind.py
    test_receipts_that_kept_messages_carry_are_not_pending_after_a_rewind
receipts are not cleared by the commit that carried them (rule 13)
    - self.receipts = self.receipts[turn.receipts_used :]
    + pass
    test_a_receipt_is_told_until_a_turn_that_carries_it_commits_and_then_no_more
a commit clears receipts that it did not carry (rule 13)
    -         if turn.receipts_used:
    -             self.receipts = self.receipts[turn.receipts_used :]
    +         self.receipts = ()
    session/log/test_fold.py
    test_a_commit_clears_only_the_receipts_that_its_turn_carried
the receipt stands before what the user said (rule 13)
    -         blocks.append(text_block(receipt))
    -         synthetic = (*synthetic, len(blocks) - 1)
    +         blocks.insert(0, text_block(receipt))
    +         synthetic = (*synthetic, 0)
    test_the_receipt_stands_after_what_the_user_said
a clear leaves the receipts (rule 13)
    -         self.receipts = ()
    test_a_clear_takes_the_pending_receipts_with_it

in session/core/turn_run.py, by session/actor/test_interrupts.py
calls that never started get a receipt (rule 13)
    - return tuple(track.receipt() for track in tracks if track.may_have_started)
    + return tuple(track.receipt() for track in tracks)
    test_an_interrupt_between_a_reply_and_the_journaling_of_its_calls_runs_no_tool
a call that a caller was offered and may have begun gets no receipt (rule 13)
    - return self.status != "requested" or self.call.runner == "caller"
    + return self.status != "requested"
    session/actor/test_receipts.py
    test_a_callers_call_that_was_offered_while_its_turn_was_stopped_is_unknown

in session/actor/tool_calls.py, by session/actor/test_receipts.py
a call past its deadline is told as failed (rule 13)
    -         # The tool itself gave no result, so its receipt must not say finished or failed.
    -         track.status = "started"
    test_a_call_past_its_deadline_is_told_as_unknown
""")

SPENDING = read_mutants(r"""
in turns/spending/spending.py, by turns/spending/test_spending.py
a budget of tokens is not looked at (docs/how-to/limit-costs.md)
    - if budget.max_tokens is not None and spent.tokens >= budget.max_tokens:
    + if budget.max_tokens is not None and spent.tokens < 0:
    session/core/test_budgets.py
    test_a_turn_over_budget_ends_before_its_next_request_and_keeps_its_steps
each request is charged the whole conversation (docs/how-to/limit-costs.md)
    - return usage.output_tokens + max(0, usage.prompt_tokens - previous_prompt_tokens)
    + return usage.output_tokens + usage.prompt_tokens
    test_tokens_are_charged_marginally
what has no price costs nothing (docs/how-to/limit-costs.md)
    - if spent.cost_nano_usd < limit and not spent.unpriced:
    + if spent.cost_nano_usd < limit:
    test_what_has_no_price_exhausts_a_budget_in_dollars_and_no_other

in session/actor/turn_queue.py, by session/core/test_budgets.py
a send over the budget is taken (docs/how-to/limit-costs.md)
    -             raise exhausted(exceeded)
    +             pass
    test_a_send_over_budget_is_refused_and_leaves_nothing

in session/core/tenants.py, by session/core/test_tenants.py
a tenant's budget is not looked at (docs/how-to/limit-costs.md)
    - return find_exceeded(budget, self._totals[tenant], "tenant", tenant)
    + return None
    test_all_sessions_of_a_tenant_spend_one_budget_and_no_other_tenants

in session/core/account.py, by session/core/test_shared_tenants.py
what a session spent that has ended here is held for ever (docs/how-to/limit-costs.md)
    -         self._has_left = True
    +         pass
    test_what_a_stream_spent_whose_session_was_taken_holds_no_part_of_the_budget

in session/core/shared_tenants.py, by session/core/test_shared_tenants.py
a slice of a shared budget is never used up (docs/how-to/limit-costs.md)
    - if part is None or part.without(account.used).is_used_up:
    + if part is None:
    test_what_one_manager_spent_is_missing_at_the_other
a slice of a shared budget is used after its end (docs/how-to/limit-costs.md)
    - return now[0] < until[0] and now[1] < until[1]
    + return True
    test_a_slice_is_not_used_once_it_has_ended
what is spent and not appended yet is reserved again (docs/how-to/limit-costs.md)
    - pending=account.pending,
    + pending=Spending(),
    test_what_was_spent_and_is_not_written_yet_is_not_reserved_again

in session/log/meter.py, by session/log/test_meter.py
the end of a turn is charged with all of its requests (docs/how-to/limit-costs.md)
    - spent.cost_nano_usd - known.cost_nano_usd
    + spent.cost_nano_usd
    test_a_request_is_paid_for_once_although_its_turn_ends_later

in store/counting.py, by store/test_memory.py
what other owners hold is granted again (docs/how-to/limit-costs.md)
    - left = limit.without(spent).without(held).without(pending)
    + left = limit.without(spent).without(pending)
    TestMemoryStore::test_slices_of_all_owners_together_are_never_more_than_what_is_left

in store/postgres/counters.py, by store/postgres/test_counters.py
a counter is begun in the middle of an append (docs/how-to/limit-costs.md)
    - IN SHARE ROW EXCLUSIVE MODE
    + IN ACCESS SHARE MODE
    test_a_counter_is_begun_before_or_after_an_append_and_not_within

in session/core/turn_run.py, by session/actor/test_retries.py
the tokens of a broken attempt are lost (docs/how-to/limit-costs.md)
    - self.usage = self.usage + request.usage
    + self.usage = request.usage
    test_the_tokens_of_a_failed_attempt_stay_counted

in session/log/state.py, by session/actor/test_interrupts.py
the tokens of a dropped turn are not counted (docs/how-to/limit-costs.md)
    -             self.usage = self.usage + record.usage
    +             self.usage += record.usage if how == "committed" else _NOTHING_USED
    test_the_tokens_of_a_dropped_turn_stay_counted
""")
