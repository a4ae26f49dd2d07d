"""Mutants of the log's way: its fold, append before publish before answer, who reads it."""

from __future__ import annotations

from .mutant import Edit, Place

__all__ = ["DURABLE", "FOLD", "SUBSCRIBERS"]

in_actor = Place("session/actor/actor.py", "session/core/test_events.py")
in_configuration = Place("session/actor/configuration.py", "session/test_slow_store.py")
in_history_commands = Place("session/actor/history_commands.py", "session/test_slow_store.py")
in_turn_queue = Place("session/actor/turn_queue.py", "session/test_slow_store.py")
in_turn_runner = Place("session/actor/turn_runner.py", "session/actor/test_tool_calls.py")
in_compactor = Place("session/compacting/compactor.py", "session/test_slow_store.py")
in_subscriptions = Place("session/core/subscriptions.py", "session/core/test_subscriptions.py")
in_session = Place("session/handles/session.py", "session/core/test_events.py")
in_erasing = Place("session/log/erasing.py", "session/log/test_forget.py")
in_journal = Place("session/log/journal.py", "session/log/test_journal.py")
in_reader = Place("session/log/reader.py", "session/test_store_faults.py")
in_redaction = Place("session/log/redaction.py", "session/log/test_forget.py")
in_state = Place("session/log/state.py", "session/actor/test_interrupts.py")
in_loader = Place("session/registry/loader.py", "session/test_store_faults.py")

FOLD = {
    "the fold takes a record out of order": in_state(
        "invariant 13",
        "if record.seq != self.head + 1:",
        "if record.seq < 1:",
        "test_a_record_that_cannot_follow_the_one_before_it_is_refused",
        suite="session/log/test_fold.py",
    ),
    "the fold takes a record of an older epoch": in_state(
        "invariant 6",
        "if record.epoch < self.epoch:",
        "if record.epoch < 0:",
        "test_a_record_that_cannot_follow_the_one_before_it_is_refused",
        suite="session/log/test_fold.py",
    ),
    "a message's id is another one when the log is folded again": in_state(
        "invariant 12",
        'id=message_name(self.session, "user", number, position),',
        'id=message_name(self.session, "user", number, position) + hex(id(turn)),',
        "test_the_fold_of_the_log_is_the_state_in_memory_wherever_a_life_comes_to_rest",
        suite="session/log/test_fold.py",
    ),
    "a commit copies the messages that were there": in_state(
        "invariant 1",
        "self._history = self._history + turn.staged",
        "self._history = (*map(msgspec.structs.replace, self._history), *turn.staged)",
        "test_a_history_only_grows_by_identity_whatever_is_compacted",
        suite="session/compacting/test_compaction.py",
    ),
    "an abort makes a new list of the history": in_state(
        "invariant 3",
        "        del self.open[turn.number]\n",
        "        del self.open[turn.number]\n        self._history = (*self._history, )[:]\n"
        "        self._history = tuple(list(self._history))\n",
        "test_after_a_dropped_turn_the_history_is_the_same_object_as_before",
    ),
    "an aborted turn stays in the history": in_state(
        "invariant 3",
        "        del self.open[turn.number]\n",
        "        del self.open[turn.number]\n        self._history = self._history + turn.staged\n",
        "test_after_a_dropped_turn_the_history_is_the_same_object_as_before",
    ),
    "what the user said in a dropped turn is there twice when it is sent again": in_state(
        "invariant 14",
        "        del self.open[turn.number]\n",
        "        del self.open[turn.number]\n"
        "        self._history = self._history + turn.staged[:1]\n",
        "test_dropped_and_resent_turns_end_in_the_same_history",
        suite="testing/replay/test_replay.py",
    ),
    "a call whose result never came is left without one": in_state(
        "invariant 4",
        "            self._close_step(turn, record.settle, record.at, ())\n",
        "            turn.calls = ()\n",
        "test_keeping_settles_open_calls_with_neutral_errors_in_call_order",
    ),
    "open calls are settled for the wrong reason": in_state(
        "rule 13",
        'settled_answer(call.id, settle or "error")',
        'settled_answer(call.id, "error")',
        "test_keeping_settles_open_calls_with_neutral_errors_in_call_order",
    ),
    "what the session wrote is not flagged": in_state(
        "rule 13",
        "                synthetic.append(len(blocks))\n",
        "                pass\n",
        "test_keeping_settles_open_calls_with_neutral_errors_in_call_order",
    ),
    "results stand in the order in which they came": in_state(
        "invariant 13",
        "        for call in turn.calls:\n            answer = turn.answers.get(call.id)",
        "        came = [*turn.answers, *(call.id for call in turn.calls)]\n"
        "        for call in sorted(turn.calls, key=lambda call: came.index(call.id)):\n"
        "            answer = turn.answers.get(call.id)",
        "test_the_tools_of_a_step_run_at_the_same_time_and_answer_in_call_order",
        suite="session/actor/test_tool_calls.py",
    ),
    "the call ids of a dropped turn are used again": in_state(
        "invariant 13",
        "        for call in turn.all_calls:\n            self.summaries.pop(call.id, None)\n",
        "        for call in turn.all_calls:\n            self.summaries.pop(call.id, None)\n"
        "            self.call_turns.pop(call.id, None)\n",
        "test_an_id_of_a_dropped_turn_is_not_used_again",
        suite="session/actor/test_tool_calls.py",
    ),
    "a step takes steers that came after it": in_state(
        "invariant 12",
        "steers, turn.steers = turn.steers[: record.steers], turn.steers[record.steers :]",
        "steers, turn.steers = turn.steers, ()",
        "test_a_step_reads_the_steers_that_its_record_counts_and_leaves_the_others",
        suite="session/log/test_fold.py",
    ),
    "a steer is read twice": in_state(
        "invariant 12",
        "steers, turn.steers = turn.steers[: record.steers], turn.steers[record.steers :]",
        "steers = turn.steers[: record.steers]",
        "test_a_steer_that_is_pending_when_a_reply_ends_makes_the_turn_go_on",
        suite="session/actor/test_send_modes.py",
    ),
    "the summaries of a dropped turn stay": in_state(
        "invariant 3",
        "        for call in turn.all_calls:\n            self.summaries.pop(call.id, None)\n",
        "",
        "test_what_a_dropped_turn_had_summarised_goes_with_it",
        suite="session/compacting/test_compaction.py",
    ),
    "a change of the model keeps earlier thinking": in_state(
        "invariant 4",
        "            self.view = self.view.voided(len(self.context_messages()))\n",
        "",
        "test_a_change_of_model_system_or_tools_voids_earlier_thinking",
        suite="session/actor/test_configure_and_clear.py",
    ),
    "a fork copies the messages of its parent": in_loader(
        "invariant 1",
        "            state.history = shared_history(state.history, messages)\n",
        "",
        "test_a_fork_copies_no_message",
        suite="session/registry/test_fork.py",
    ),
}

DURABLE = {
    "a batch counts as durable when it is handed over": in_journal(
        "invariant 5",
        "            self._store.append(batch, done)\n",
        "            done(Appended(batch.head + len(batch.bodies)))\n"
        "            self._store.append(batch, done)\n",
        "test_a_command_is_answered_when_it_is_durable_and_not_before",
        suite="session/test_slow_store.py",
    ),
    "a record is published before the commit": in_journal(
        "invariant 5",
        "            self._store.append(batch, done)\n",
        "            done(Appended(batch.head + len(batch.bodies)))\n"
        "            self._store.append(batch, done)\n",
        "test_nothing_is_published_before_it_is_durable",
        suite="session/core/test_events.py",
    ),
    "a record is published before it is folded": in_actor(
        "rule 5",
        "        self.state.apply(record)\n        if terminal",
        "        self.core.subscriptions.publish(self.session, record)\n"
        "        self.state.apply(record)\n        if terminal",
        "test_a_record_is_in_the_state_before_anybody_is_told_of_it",
        also=(
            Edit(
                "session/actor/actor.py",
                "        self.core.subscriptions.publish(self.session, record)\n"
                "        self.core.counters",
                "        self.core.counters",
            ),
        ),
    ),
    "a send is answered before it is durable": in_turn_queue(
        "rule 5",
        "        self._core.journal.write(record, accepted)\n",
        "        self._core.journal.write(record, accepted)\n        command.promise.set(number)\n",
        "test_a_command_is_answered_when_it_is_durable_and_not_before",
    ),
    "a steer is answered before it is durable": in_turn_queue(
        "rule 5",
        "lambda: self._answer_send(command, run.number))\n",
        "lambda: self._answer_send(command, run.number))\n"
        "        command.promise.set(run.number)\n",
        "test_a_command_is_answered_when_it_is_durable_and_not_before",
    ),
    "results are answered before they are durable": in_actor(
        "rule 5",
        "self.core.journal.follow(self.keys.answer(command))",
        "self.keys.answer(command)()",
        "test_a_command_is_answered_when_it_is_durable_and_not_before",
        suite="session/test_slow_store.py",
    ),
    "a clear is answered before it is durable": in_history_commands(
        "rule 5",
        "lambda: self._written(command))\n",
        "lambda: self._written(command))\n        command.promise.set(None)\n",
        "test_a_command_is_answered_when_it_is_durable_and_not_before",
    ),
    "a configuration is answered before it is durable": in_configuration(
        "rule 5",
        "        self._core.journal.write(record, configured)\n",
        "        self._core.journal.write(record, configured)\n        answer()\n",
        "test_a_command_is_answered_when_it_is_durable_and_not_before",
    ),
    "a compaction is answered before it is durable": in_compactor(
        "rule 5",
        "        self._core.journal.write(record_of(effect.plan), written)\n",
        "        self._core.journal.write(record_of(effect.plan))\n        written()\n",
        "test_a_compaction_is_answered_when_it_is_durable_and_not_before",
    ),
    "a turn starts before its acceptance is durable": in_turn_queue(
        "rule 5",
        "        self._core.journal.write(record, accepted)\n",
        "        self._core.journal.write(record, accepted)\n        self.runner.start(run)\n",
        "test_a_command_is_answered_when_it_is_durable_and_not_before",
    ),
    "tools start while their calls are on the way into the log": in_turn_runner(
        "rule 5",
        "        self._core.journal.write(record, lambda: self.feed(run, e.CallsJournaled("
        "tag=effect.tag)))\n",
        "        self._core.journal.write(record)\n"
        "        self.feed(run, e.CallsJournaled(tag=effect.tag))\n",
        "test_a_callable_gets_the_input_as_keyword_arguments_and_the_model_its_result",
    ),
    "the journal writes behind a batch that failed": in_journal(
        "invariant 5",
        "            if isinstance(result, Appended):\n                self.settled(batch)\n",
        "            self.settled(batch)\n",
        "test_nothing_is_written_behind_a_batch_that_failed",
    ),
    "two batches of a session are on their way at once": in_journal(
        "invariant 6",
        "if self._in_flight or self._stopped or not self._queue:",
        "if self._stopped or not self._queue:",
        "test_what_is_written_while_a_batch_is_on_its_way_follows_it_in_one_batch",
    ),
    "a stopped journal goes on writing": in_journal(
        "invariant 6",
        "        self._stopped = True\n        self._queue.clear()\n",
        "        pass\n",
        "test_a_stopped_journal_drops_its_queue_and_writes_nothing_more",
    ),
    "a batch that is not in the log counts as written": in_reader(
        "invariant 5",
        "return tuple(record.body for record in stored) == batch.bodies",
        "return True",
        "test_a_batch_that_met_a_conflict_and_is_not_in_the_log_is_not_taken_as_written",
    ),
    "a conflict while a session is loaded counts as written": in_loader(
        "invariant 6",
        "            _check_written(written, lease.session)\n",
        "            pass\n",
        "test_an_append_that_fails_gives_every_caller_its_error_and_the_session_comes_back",
    ),
    "a log that misses its end is opened": in_loader(
        "invariant 5",
        "if state.head != lease.head:",
        "if False:",
        "test_a_log_that_ends_before_its_head_is_not_opened",
    ),
    "an owner that was overtaken does not notice that it was": in_actor(
        "invariant 6",
        "case Conflict(row=row) if row is not None and row.epoch > written.batch.epoch:",
        "case Conflict(row=row) if row is not None and row.epoch < 0:",
        "test_after_a_takeover_the_old_owner_is_moved_and_publishes_nothing_more",
        suite="session/registry/test_lifecycle.py",
    ),
    "what was to be purged stays in the log": in_erasing(
        "docs/security.md",
        "        await store.rewrite(lease, bodies)\n",
        "        pass\n",
        "test_a_purge_takes_everything_that_was_said_out_of_the_log",
    ),
    "a purge leaves what the user said": in_redaction(
        "docs/security.md",
        "return replace(record, body=NOTHING_SAID, receipt=_empty(record.receipt), seed=None)",
        "return replace(record, receipt=_empty(record.receipt), seed=None)",
        "test_a_purge_takes_everything_that_was_said_out_of_the_log",
    ),
    "a purge leaves what an interrupt was answered": in_redaction(
        "docs/security.md",
        "    return _commands(record, self.turns)\n",
        "    return record\n",
        "test_what_a_dropped_turn_said_and_did_is_purged_too",
    ),
    "who forgets is answered before the words are out of the log": in_history_commands(
        "docs/security.md",
        "        self._erasing = True\n",
        "        self._erasing = True\n        command.promise.set(None)\n",
        "test_nobody_is_answered_before_it_is_out_of_the_log",
        suite="session/log/test_forget.py",
    ),
}

SUBSCRIBERS = {
    "a subscriber's buffer has no bound": in_subscriptions(
        "rule 10",
        "if self._durable >= MAX_DURABLE:",
        "if False:",
        "test_one_more_and_it_is_told_its_cursor_and_dropped",
    ),
    "a durable record is lost without a word": in_subscriptions(
        "rule 10",
        "            self.lag()\n        else:\n            self._buffer.append(record)",
        "            return\n        else:\n            self._buffer.append(record)",
        "test_one_more_and_it_is_told_its_cursor_and_dropped",
    ),
    "a subscriber's previews have no bound": in_subscriptions(
        "rule 10",
        "if self._preview_chars + size > MAX_PREVIEW_CHARS:",
        "if False:",
        "test_previews_beyond_the_bound_are_lost_and_durable_records_are_not",
    ),
    "previews of two attempts become one text": in_subscriptions(
        "rule 3",
        "            and first.attempt == preview.attempt\n",
        "",
        "test_previews_of_different_blocks_steps_attempts_and_kinds_stay_apart",
    ),
    "an attempt that is over goes on showing previews": in_turn_runner(
        "invariant 2",
        "if run is not None and run.builder is builder:",
        "if builder is not None:",
        "test_an_aborted_turn_shows_no_preview_after_its_end",
        suite="session/core/test_events.py",
    ),
    "who joins in mid-stream misses the text so far": in_session(
        "rule 10",
        "for preview in previews_so_far(run.builder, tag_of(run.turn)):",
        "for preview in previews_so_far(run.builder, tag_of(run.turn))[:0]:",
        "test_who_joins_in_mid_stream_first_gets_the_steps_text_so_far",
    ),
    "the event Lagged names a record that was not read": in_subscriptions(
        "rule 10",
        "return Lagged(self._cursor)",
        "return Lagged(self._cursor + 1)",
        "test_one_more_and_it_is_told_its_cursor_and_dropped",
    ),
    "the cursor runs ahead of a record's calls": in_subscriptions(
        "rule 10",
        "return self._cursor - 1 if self._expanded else self._cursor",
        "return self._cursor",
        "test_a_cursor_passes_a_record_only_with_the_last_of_its_calls",
    ),
    "a turn's events do not end with its last one": in_subscriptions(
        "invariant 2",
        "if is_terminal(record) or isinstance(record, TurnImported):",
        "if False:",
        "test_a_turns_subscription_ends_at_its_terminal_event",
    ),
    "what comes during a replay is read before it": in_subscriptions(
        "invariant 13",
        "elif self._buffer and self._replay is None:",
        "elif self._buffer:",
        "test_what_is_published_during_the_replay_follows_it",
    ),
}
