"""Mutants of what the model is sent, and of what keeps that small and valid."""

from __future__ import annotations

from .mutant import Place

__all__ = ["COMPACTION", "PROJECTION"]

in_policy = Place("compaction/planning/policy.py", "compaction/planning/test_policy.py")
in_prefix_summaries = Place(
    "compaction/planning/prefix_summaries.py", "compaction/planning/test_prefix_summaries.py"
)
in_swap_tool_results = Place(
    "compaction/policies/swap_tool_results.py", "compaction/policies/test_swap_tool_results.py"
)
in_recall = Place("compaction/recall.py", "session/compacting/test_recall_and_caps.py")
in_history = Place("compaction/rules/history.py", "compaction/rules/test_history.py")
in_structure = Place("compaction/rules/structure.py", "compaction/rules/test_structure.py")
in_projection = Place("compaction/view/projection.py", "compaction/view/test_projection.py")
in_projector = Place("compaction/view/projector.py", "compaction/view/test_projector.py")
in_view = Place("compaction/view/view.py", "compaction/view/test_view.py")
in_request_build = Place("session/actor/request_build.py", "session/actor/test_request_build.py")
in_turn_runner = Place("session/actor/turn_runner.py", "session/compacting/test_compaction.py")
in_compactor = Place(
    "session/compacting/compactor.py", "session/compacting/test_compaction_adversary.py"
)
in_machine = Place("session/compacting/machine.py", "session/compacting/test_machine.py")
in_model_summary = Place(
    "session/compacting/model_summary.py", "session/compacting/test_model_summary.py"
)
in_snapshot = Place("session/compacting/snapshot.py", "session/compacting/test_compaction.py")
in_summarizer = Place("session/compacting/summarizer.py", "session/compacting/test_summarizer.py")
in_request_builder = Place(
    "session/core/request_builder.py", "session/core/test_request_builder.py"
)
in_state = Place("session/log/state.py", "session/compacting/test_compaction.py")
in_config = Place("session/values/config.py", "session/compacting/test_recall_and_caps.py")

COMPACTION = {
    "a compaction is applied while a reply streams": in_turn_runner(
        "rule 9",
        "return run.turn.phase in (Phase.ACCEPTED, Phase.TOOLS)",
        "return True",
        "test_a_compaction_is_not_applied_while_a_reply_streams",
    ),
    "a request is built while a compaction is on its way into the log": in_compactor(
        "rule 9",
        "return self._compaction.phase in APPLYING or self.caller_summaries.is_applying",
        "return False",
        "test_a_request_waits_for_the_compaction_that_is_ready_when_it_is_built",
        suite="session/compacting/test_compaction.py",
    ),
    "a plan is applied without comparing anything": in_compactor(
        "rule 9",
        "if not is_configured or not request.is_current(snapshot_of(core.state)):",
        "if not is_configured:",
        "test_a_plan_for_a_dropped_turn_is_discarded_though_the_next_is_as_long",
        suite="session/compacting/test_compaction.py",
    ),
    "a plan's generation and view are not compared": in_snapshot(
        "rule 9",
        "if (now.generation, now.view.version) != (self.generation, self.view.version):",
        "if False:",
        "test_a_plan_that_was_made_before_a_change_of_the_model_is_discarded",
    ),
    "a plan's messages are not compared": in_snapshot(
        "rule 9",
        "return all(a is b for a, b in zip(self.messages, now.messages, strict=False))",
        "return True",
        "test_a_plan_for_a_dropped_turn_is_discarded_though_the_next_is_as_long",
    ),
    "a plan for more messages than there are is applied": in_snapshot(
        "rule 9",
        "if len(now.messages) < len(self.messages):",
        "if False:",
        "test_a_compaction_made_for_a_turn_that_was_dropped_meanwhile_is_discarded",
    ),
    "a plan of another configuration is applied": in_compactor(
        "rule 9",
        "if not is_configured or not request.is_current(snapshot_of(core.state)):",
        "if not request.is_current(snapshot_of(core.state)):",
        "test_what_was_asked_for_under_another_configuration_is_not_applied",
        suite="session/compacting/test_compaction_moments.py",
    ),
    "what was prepared for a compaction is not compared again": in_compactor(
        "rule 9",
        "        if snapshot.is_current(snapshot_of(self._core.state)):\n"
        "            self._prepared = prepared\n",
        "        if True:\n            self._prepared = prepared\n",
        "test_a_context_that_was_prepared_is_compared_before_it_is_written",
    ),
    "the hardest plan that was found is not compared": in_compactor(
        "rule 9",
        "        if not snapshot.is_current(snapshot_of(self._core.state)):\n",
        "        if False:\n",
        "test_a_context_that_was_prepared_is_compared_before_it_is_written",
    ),
    "what is prepared for a compaction follows an abort into the log": in_machine(
        "rule 9",
        "        e.ChangeBegan: P.IDLE,\n        **_stay(P.PREPARING, e.CompactionRequested),\n",
        "        **_stay(P.PREPARING, e.CompactionRequested, e.ChangeBegan),\n",
        "test_what_is_being_prepared_does_not_follow_a_change_into_the_log",
    ),
    "a late report moves a compaction": in_machine(
        "rule 3",
        "    if is_late(compaction, event):\n",
        "    if False:\n",
        "test_a_late_report_changes_nothing_in_any_phase",
    ),
    "an event that a compaction has no cell for is ignored": in_machine(
        "rule 2",
        "        raise CompactionStateError(message)\n",
        "        return compaction, ()\n",
        "test_a_closed_session_begins_no_compaction",
    ),
    "a caller gets a plan that was postponed": in_machine(
        "docs/compaction.md",
        "        e.CompactionRequested: P.PLANNING,\n        e.RequestTooLarge: P.FORCING,\n"
        "        **_STOPPABLE,\n",
        "        e.CompactionRequested: P.POSTPONED,\n        e.RequestTooLarge: P.FORCING,\n"
        "        **_STOPPABLE,\n",
        "test_a_caller_gets_a_plan_of_his_own_and_not_one_that_was_postponed",
    ),
    "a plan is made while another one is being written": in_machine(
        "rule 9",
        "        **_stay(P.WRITING, e.CompactionRequested, e.ChangeBegan, ",
        "        e.CompactionRequested: P.PLANNING,\n        **_stay(P.WRITING, e.ChangeBegan, ",
        "test_while_one_compaction_is_on_its_way_a_caller_starts_no_other",
    ),
    "a session that closes forgets the record that is on its way": in_machine(
        "rule 5",
        "        e.Closed: P.CLOSING,\n",
        "        e.Closed: P.CLOSED,\n",
        "test_a_session_that_closes_still_takes_the_report_of_a_record_on_its_way",
    ),
    "a session that closes lets its compaction work on": in_machine(
        "rule 8",
        "return (e.StopWork(),) if compaction.phase in _WORKING else ()",
        "return ()",
        "test_a_session_that_closes_stops_the_work_and_builds_nothing_more",
    ),
    "a build waits for ever for a compaction that was cancelled": in_machine(
        "rule 11",
        "resume = (e.ResumeBuild(),) if compaction.phase in APPLYING else ()",
        "resume = ()",
        "test_who_cancels_stops_the_work_and_a_build_that_waits_goes_on",
    ),
    "callers wait for ever for a plan whose work was cancelled by others": in_compactor(
        "rule 11",
        "            report(lambda: self._feed(e.PlanLost(work=work)))\n",
        "            pass\n",
        "test_callers_are_answered_when_others_cancel_the_planning",
    ),
    "a build goes on before the callers of its compaction are answered": in_machine(
        "rule 11",
        "e.AnswerCallers(outcome=outcome), e.ResumeBuild())",
        "e.ResumeBuild(), e.AnswerCallers(outcome=outcome))",
        "test_an_effect_that_may_call_back_is_always_the_last_one",
    ),
    "the record of a compaction does not tell its moment": in_machine(
        "docs/compaction.md",
        "structs.replace(plan, trigger=event.trigger, figures=figures)",
        "structs.replace(plan, figures=figures)",
        "test_the_record_tells_why_and_by_which_figures_the_moment_was_chosen",
    ),
    "the job applies a plan that gains too little": in_compactor(
        "invariant 9",
        "min_gain = 0.0 if self._callers else self._core.config.compaction.min_gain",
        "min_gain = 0.0",
        "test_a_job_that_would_gain_too_little_is_not_applied_but_one_asked_for_is",
        suite="session/compacting/test_compaction.py",
    ),
    "a job that gained too little starts again with every request": in_machine(
        "invariant 9",
        "return stall.config is config and stall.tokens <= tokens < enough",
        "return False",
        "test_a_job_that_gained_too_little_is_not_tried_again_with_every_request",
        suite="session/compacting/test_compaction.py",
    ),
    "a plan that frees nothing is worth it": in_policy(
        "invariant 9",
        "return gain > 0 and gain >= min_gain * plan.tokens_before",
        "return gain >= min_gain * plan.tokens_before",
        "test_the_least_gain_can_be_chosen_but_never_be_nothing",
    ),
    "a gain below five percent is worth it": in_policy(
        "invariant 9",
        "return gain > 0 and gain >= min_gain * plan.tokens_before",
        "return gain > 0",
        "test_a_plan_is_worth_it_from_five_percent_on",
    ),
    "a summary that is longer than its source is accepted": in_prefix_summaries(
        "invariant 9",
        "if budget.scaled(tokens) < source_tokens:",
        "if source_tokens:",
        "test_no_summary_and_one_that_is_no_shorter_change_nothing",
    ),
    "an empty summary is accepted": in_prefix_summaries(
        "invariant 9",
        "if prefix_summary is not None and prefix_summary.text.strip():",
        "if prefix_summary is not None:",
        "test_a_fallback_stands_where_no_summary_is_any_good",
    ),
    "a model's summary that is longer than its source is accepted": in_model_summary(
        "invariant 9",
        'raise SummaryFailed("the summary is no shorter than what it was made of")',
        "pass",
        "test_a_summary_that_cannot_be_short_enough_is_none",
    ),
    "a result without a summary is swapped for nothing": in_swap_tool_results(
        "invariant 9",
        "if not summary.strip():",
        "if False:",
        "test_a_result_without_a_summary_stays_as_it_is",
    ),
    "a result is swapped for a longer text": in_swap_tool_results(
        "invariant 9",
        "return compact if is_worth(compact, shown_chars) else None",
        "return compact",
        "test_a_result_that_is_already_smaller_is_not_swapped",
    ),
    "a summariser that always fails is asked for ever": in_summarizer(
        "docs/summaries.md",
        "if self.failures < core.config.compaction.max_failures:",
        "if self.failures >= 0:",
        "test_after_so_many_failures_it_is_not_asked_until_something_changes",
    ),
    "a plan is applied at once, though the provider's cache is warm": in_compactor(
        "docs/compaction.md",
        "        if should_apply(decision, cache, is_due=self._is_due(used_tokens)):\n",
        "        if decision is not None:\n",
        "test_a_plan_is_made_ahead_and_waits_while_the_cache_is_warm",
        suite="session/compacting/test_compaction_moments.py",
    ),
    "an abort does not clamp the view": in_state(
        "invariant 3",
        "            self.view = self.view.clamped(len(self.history))\n",
        "",
        "test_an_abort_clamps_the_view_to_what_is_kept",
    ),
    "a clear leaves the view": in_state(
        "invariant 1",
        "        self.view = View(version=self.view.version + 1)\n",
        "",
        "test_clear_resets_the_view",
    ),
    "the end of the compacted range goes back": in_view(
        "invariant 9",
        "compacted_before=max(self.compacted_before, plan.compacted_before),",
        "compacted_before=plan.compacted_before,",
        "test_compacted_before_never_goes_back",
    ),
    "the compacted range stays longer than a shorter history": in_view(
        "invariant 12",
        "compacted_before=min(self.compacted_before, length),",
        "compacted_before=self.compacted_before,",
        "test_a_view_is_clamped_to_the_messages_that_are_left",
    ),
    "a prefix summary is replaced by a shorter one": in_view(
        "invariant 9",
        "return prefix_summary.upto > start or (",
        "return True or (",
        "test_a_prefix_summary_is_only_followed_by_a_longer_one",
    ),
    "a plan leaves the view's version": in_view(
        "rule 9",
        "            version=self.version + 1,\n            compacted_before=max(self.",
        "            compacted_before=max(self.",
        "test_a_plan_raises_version_and_compacted_before_and_adds_its_texts",
    ),
}

PROJECTION = {
    "a clock is in the request": in_projection(
        "invariant 10",
        "system=_system(frame.system, view),",
        "system=f\"{_system(frame.system, view)} {__import__('time').time_ns()}\",",
        "test_equal_stories_make_byte_identical_requests",
        suite="session/compacting/test_compaction.py",
    ),
    "a shown result is replaced by a better one": in_view(
        "invariant 10",
        "shown_results = {**plan.shown_results, **self.shown_results}",
        "shown_results = {**self.shown_results, **plan.shown_results}",
        "test_a_shown_result_never_changes",
    ),
    "a second cap replaces the first": in_view(
        "invariant 10",
        "if call_id in self.capped:",
        "if False:",
        "test_the_first_cap_of_a_call_stays",
    ),
    "a projection remembers what the view no longer shows": in_projector(
        "invariant 10",
        "if form != entry.form:",
        "if entry.form is None:",
        "test_a_projector_follows_every_change_of_the_view",
    ),
    "a cached projection is continued under another view": in_projector(
        "invariant 10",
        "if last is None or not inputs.view.is_like(last.view):",
        "if last is None:",
        "test_any_life_of_a_conversation_is_projected_with_a_cache_as_without",
    ),
    "a cached message stands for another of its id": in_projector(
        "invariant 10",
        "if entry is None or entry.message is not message:",
        "if entry is None:",
        "test_any_life_of_a_conversation_is_projected_with_a_cache_as_without",
    ),
    "a cached projection is continued behind an injected text": in_projector(
        "invariant 10",
        "if any(item.at + 1 >= length for item in inputs.view.injected):",
        "if False:",
        "test_any_life_of_a_conversation_is_projected_with_a_cache_as_without",
    ),
    "recall is not among the tools": in_config(
        "invariant 10",
        "            tools.append(RECALL_TOOL)\n",
        "            pass\n",
        "test_recall_is_offered_from_the_first_request_on_and_never_added_later",
    ),
    "recall gives the compacted text back": in_recall(
        "docs/compaction.md",
        "        text = result_text(result.content)\n",
        "        text = result_text(result.content)[:100]\n",
        "test_a_recall_of_a_compacted_result_returns_the_whole_text",
    ),
    "thinking is kept after an edit before it": in_view(
        "invariant 4",
        "voids = plan.drops_thinking or (edits and plan.voids_thinking)",
        "voids = plan.drops_thinking",
        "test_an_edit_leaves_out_all_thinking_made_before_it",
    ),
    "thinking is never left out": in_projection(
        "invariant 4",
        "return None if leave_out_thinking or _is_unsigned(block) else raw",
        "return None if _is_unsigned(block) else raw",
        "test_thinking_before_thinking_from_is_left_out_and_later_thinking_stays",
    ),
    "a swap of an error result loses its flag": in_projection(
        "invariant 4",
        'return _with_field(raw, "content", encode_json(swaps[call_id]))',
        'return _with_field(_with_field(raw, "is_error", b"false"), "content",'
        " encode_json(swaps[call_id]))",
        "test_a_swap_keeps_ids_order_count_and_is_error",
    ),
    "text stands before results": in_projection(
        "invariant 4",
        "if message.is_user and results != sorted(results, reverse=True):",
        "if False:",
        "test_tool_results_stand_before_text_in_one_message",
    ),
    "a text of white space is sent": in_projection(
        "invariant 4",
        "return raw if block.text.strip() else None",
        "return raw",
        "test_white_space_text_blocks_are_left_out",
    ),
    "a build whose place another has taken goes on": in_request_build(
        "rule 3",
        "return self._builds.current is not self or self.run.turn.phase is not Phase.BUILDING",
        "return self.run.turn.phase is not Phase.BUILDING",
        "test_a_build_does_nothing_more_once_its_turn_or_a_newer_one_has_outdated_it",
    ),
    "a build that waits is not dropped when another owner takes its turn": in_request_build(
        "rule 3",
        "return self._builds.current is not self or self.run.turn.phase is not Phase.BUILDING",
        "return self._builds.current is not self",
        "test_a_build_does_nothing_more_once_its_turn_or_a_newer_one_has_outdated_it",
    ),
    "a stopped turn's build that cannot be made smaller holds up the next one": in_request_build(
        "invariant 11",
        "                self._builds.resume()  # a later turn's build may wait by now\n",
        "",
        "test_an_outdated_build_that_cannot_shrink_lets_the_build_that_waits_go_on",
    ),
    "a context that a thread could not build is given to threads for ever": in_request_build(
        "invariant 11",
        "        self._was_warmed = True\n",
        "",
        "test_a_thread_that_could_not_build_a_context_is_asked_again_only_after_a_compaction",
    ),
    "a build that is over keeps its turn in memory": in_request_build(
        "invariant 11",
        "        if not NEXT_STAGES[stage]:\n",
        "        if False:\n",
        "test_a_build_goes_through_its_stages_and_feeds_one_event",
    ),
    "a request that breaks a rule is sent": in_request_build(
        "rule 12",
        "        if not built.violations:\n",
        "        if True:\n",
        "test_a_request_that_breaks_a_rule_is_not_sent_and_its_turn_fails_by_name",
        suite="session/test_malformed_input.py",
    ),
    "a call without its result is a valid request": in_structure(
        "rule 12",
        "            yield from _unanswered(dialogue, index)\n",
        "            pass\n",
        "test_v3_every_call_is_answered_in_the_next_user_message",
    ),
    "a result without its call is a valid request": in_structure(
        "rule 12",
        "            yield from _unexpected(dialogue, index)\n",
        "            pass\n",
        "test_v4_every_result_has_its_call_in_the_previous_message",
    ),
    "thinking from before an edit is a valid request": in_history(
        "rule 12",
        'if block.fate in ("void", "gap"):',
        'if block.fate == "gap":',
        "test_v9_no_thinking_from_before_an_edit_stands_after_it",
    ),
    "thinking is not compared with the history that it was made in": in_request_builder(
        "rule 12",
        "            violations += self._check_thinking(request, messages, view)\n",
        "            pass\n",
        "test_thinking_that_is_sent_behind_an_edit_is_found_before_it_is_sent",
    ),
    "a request over the budget is sent": in_request_build(
        "rule 12",
        "        if built.tokens > self._limit_tokens:\n",
        "        if False:\n",
        "test_a_request_over_the_budget_that_cannot_shrink_is_context_too_large",
        suite="session/actor/test_retries.py",
    ),
    "a request that the provider found too large is sent again as it was": in_request_build(
        "rule 12",
        "return min(budget, self.run.sent_tokens - 1) if self._effect.overflows else budget",
        "return budget",
        "test_an_overflow_compacts_harder_and_sends_the_step_again",
        suite="session/actor/test_retries.py",
    ),
    "what does not fit is compacted by the configured policy alone": in_compactor(
        "rule 12",
        "hardest_plan, escalation_of(self._core.policy), view",
        "hardest_plan, escalation_of(self._core.policy)[:1], view",
        "test_where_the_policy_raises_the_hardest_means_are_still_tried",
    ),
}
