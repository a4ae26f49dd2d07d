"""Mutants of the log's way: its fold, append before publish before answer, who reads it."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["DURABLE", "FOLD", "RETENTION", "SUBSCRIBERS"]

FOLD = read_mutants(r"""
in session/snapshots/reading.py, by session/snapshots/test_snapshots.py
a snapshot of another log is used (docs/explanation/durability.md)
    - if checksum != snapshot.checksum:
    + if False:
    test_a_snapshot_of_another_log_or_of_a_longer_one_is_not_used

in session/snapshots/format.py, by session/snapshots/test_format.py
a snapshot of another version is used (docs/explanation/durability.md)
    - if title != b"%s%d" % (_NAME, VERSION):
    + if not title.startswith(_NAME):
    test_a_snapshot_of_another_version_says_so

in session/actor/snapshot_writer.py, by session/snapshots/test_snapshots.py
a turn waits for a snapshot (docs/explanation/durability.md)
    - if self._is_writing or not is_possible:
    + if not is_possible:
    test_turns_interrupts_and_closing_do_not_wait_for_a_snapshot

in session/log/state.py, by session/snapshots/test_snapshots.py
a history from a snapshot is not cut by a rewind (invariant 1)
    - stored = stored.part(min(first, count), min(end, count))
    + stored = stored.part(min(first, count), count)
    test_a_session_that_was_opened_from_a_snapshot_is_changed_as_any_other

in store/memory.py, by testing/store_contract/test_contract.py
a snapshot from before a rewrite comes back (docs/explanation/durability.md)
    - log.snapshot, log.least_snapshot = None, log.row.head + 1
    + log.snapshot = None
    test_a_store_that_keeps_every_promise_passes

in session/log/reader.py, by store/test_unknown_records.py
a record of a newer version is called damage (docs/how-to/keep-sessions.md)
    - if kind is not None:
    + if False:
    test_an_integrity_check_tells_it_from_damage

in session/log/read_state.py, by store/test_unknown_records.py
a record of a kind that is not known is passed over (docs/how-to/keep-sessions.md)
    -             raise unreadable(session, stored, error) from error
    +             state.head, record = stored.seq, r.RecordsRedacted(seq=stored.seq)
    test_a_session_with_it_is_not_opened_read_or_exported_and_its_log_stays

in session/registry/runtime.py, by store/test_unknown_records.py
a takeover takes a session that it cannot read (docs/how-to/keep-sessions.md)
    -             if takeover:
    +             if takeover and unbound == "raise" and False:
    test_a_takeover_leaves_it_to_the_newer_owner_that_has_it

in session/log/state.py, by session/actor/test_interrupts.py
a turn that ends keeps the open call of a server tool (invariant 4)
    -         self._give_up_server_calls(turn)
    -         self._extend_history(record.turn, turn.staged)
    +         self._extend_history(record.turn, turn.staged)
    session/actor/test_stop_reasons.py
    test_a_limit_behind_a_pause_keeps_no_call_of_a_server_tool
a steer is read behind the open call of a server tool (invariant 4)
    - if steers:
    -             self._give_up_server_calls(turn)
    + if False:
    +             self._give_up_server_calls(turn)
    session/actor/test_stop_reasons.py
    test_a_steer_behind_a_whole_reply_is_read_without_the_call_that_stays_open
a result of a server tool without its call stays in the conversation (invariant 4)
    - return join_blocks(blocks) if strays else body
    + return body
    session/actor/test_stop_reasons.py
    test_a_server_tool_s_result_without_its_call_is_left_out_and_logged
a fork behind a forgotten turn sends thinking that was bound to it (invariant 4)
    - if self.erased:
    + if False:
    session/log/test_forget.py
    test_a_fork_behind_a_forgotten_turn_sends_no_thinking_that_was_bound_to_its_receipt
the fold takes a record out of order (invariant 13)
    - if record.seq != self.head + 1:
    + if record.seq < 1:
    session/log/test_fold.py
    test_a_record_that_cannot_follow_the_one_before_it_is_refused
the fold takes a record of an older epoch (invariant 6)
    - if record.epoch < self.epoch:
    + if record.epoch < 0:
    session/log/test_fold.py
    test_a_record_that_cannot_follow_the_one_before_it_is_refused
a message's id is another one when the log is folded again (invariant 12)
    - id=message_name(self.session, "user", number, position),
    + id=message_name(self.session, "user", number, position) + hex(id(turn)),
    session/log/test_fold.py
    test_the_fold_of_the_log_is_the_state_in_memory_wherever_a_life_comes_to_rest
a commit copies the messages that were there (invariant 1)
    - self._history = appended(self._history, messages)
    + self._history = (*map(msgspec.structs.replace, self._history), *messages)
    session/compacting/test_compaction.py
    test_a_history_only_grows_by_identity_whatever_is_compacted
an abort makes a new list of the history (invariant 3)
    -         del self.open[turn.number]
    +         del self.open[turn.number]
    +         self._history = (*self._history, )[:]
    +         self._history = tuple(list(self._history))
    test_after_a_dropped_turn_the_history_is_the_same_object_as_before
an aborted turn stays in the history (invariant 3)
    -         del self.open[turn.number]
    +         del self.open[turn.number]
    +         self._history = self._history + turn.staged
    test_after_a_dropped_turn_the_history_is_the_same_object_as_before
what the user said in a dropped turn is there twice when it is sent again (invariant 14)
    -         del self.open[turn.number]
    +         del self.open[turn.number]
    +         self._history = self._history + turn.staged[:1]
    testing/replay/test_replay.py
    test_dropped_and_resent_turns_end_in_the_same_history
a call whose result never came is left without one (invariant 4)
    -             self._close_step(turn, record.settle, record.at, ())
    +             turn.calls = ()
    test_keeping_settles_open_calls_with_neutral_errors_in_call_order
open calls are settled for the wrong reason (rule 13)
    - settled_answer(call.id, settle or "error")
    + settled_answer(call.id, "error")
    test_keeping_settles_open_calls_with_neutral_errors_in_call_order
what the session wrote is not flagged (rule 13)
    -                 synthetic.append(len(blocks))
    +                 pass
    test_keeping_settles_open_calls_with_neutral_errors_in_call_order
results stand in the order in which they came (invariant 13)
    -         for call in turn.calls:
    -             answer = turn.answers.get(call.id)
    +         came = [*turn.answers, *(call.id for call in turn.calls)]
    +         for call in sorted(turn.calls, key=lambda call: came.index(call.id)):
    +             answer = turn.answers.get(call.id)
    session/actor/test_tool_calls.py
    test_the_tools_of_a_step_run_at_the_same_time_and_answer_in_call_order
the call ids of a dropped turn are used again (invariant 13)
    -         for call in turn.all_calls:
    -             self.summaries.pop(call.id, None)
    +         for call in turn.all_calls:
    +             self.summaries.pop(call.id, None)
    +             self.call_turns.pop(call.id, None)
    session/actor/test_tool_calls.py
    test_an_id_of_a_dropped_turn_is_not_used_again
a step takes steers that came after it (invariant 12)
    - steers, turn.steers = turn.steers[: record.steers], turn.steers[record.steers :]
    + steers, turn.steers = turn.steers, ()
    session/log/test_fold.py
    test_a_step_reads_the_steers_that_its_record_counts_and_leaves_the_others
a steer is read twice (invariant 12)
    - steers, turn.steers = turn.steers[: record.steers], turn.steers[record.steers :]
    + steers = turn.steers[: record.steers]
    session/actor/test_send_modes.py
    test_a_steer_that_is_pending_when_a_reply_ends_makes_the_turn_go_on
the summaries of a dropped turn stay (invariant 3)
    -         for call in turn.all_calls:
    -             self.summaries.pop(call.id, None)
    session/compacting/test_compaction.py
    test_what_a_dropped_turn_had_summarised_goes_with_it
a change of the model keeps earlier thinking (invariant 4)
    -             self.view = self.view.voided(self._context_count)
    session/actor/test_configure_and_clear.py
    test_a_change_of_model_system_or_tools_voids_earlier_thinking

in session/registry/loader.py, by session/registry/test_fork.py
a fork copies the messages of its parent (invariant 1)
    -             if state.is_decoded and isinstance(messages, tuple):
    -                 state.history = shared_history(state.history, messages)
    test_a_fork_copies_no_message
""")

DURABLE = read_mutants(r"""
in session/log/journal.py, by session/log/test_journal.py
a batch counts as durable when it is handed over (invariant 5)
    -             self._store.append(batch, done)
    +             done(Appended(batch.head + len(batch.bodies)))
    +             self._store.append(batch, done)
    session/test_slow_store.py
    test_a_command_is_answered_when_it_is_durable_and_not_before
a record is published before the commit (invariant 5)
    -             self._store.append(batch, done)
    +             done(Appended(batch.head + len(batch.bodies)))
    +             self._store.append(batch, done)
    session/core/test_events.py
    test_nothing_is_published_before_it_is_durable
the journal writes behind a batch that failed (invariant 5)
    -             if isinstance(result, Appended):
    -                 self.settled(batch)
    +             self.settled(batch)
    test_nothing_is_written_behind_a_batch_that_failed
two batches of a session are on their way at once (invariant 6)
    - if self._in_flight or self._stopped or not self._queue:
    + if self._stopped or not self._queue:
    test_what_is_written_while_a_batch_is_on_its_way_follows_it_in_one_batch
a stopped journal goes on writing (invariant 6)
    -         self._stopped = True
    -         self._queue.clear()
    +         pass
    test_a_stopped_journal_drops_its_queue_and_writes_nothing_more

in session/actor/actor.py, by session/core/test_events.py
a record is published before it is folded (rule 5)
    -         self.state.apply(record)
    -         if terminal
    +         self.core.subscriptions.publish(self.session, record)
    +         self.state.apply(record)
    +         if terminal
    also in session/actor/actor.py
    -         self.core.subscriptions.publish(self.session, record)
    -         self.core.counters
    +         self.core.counters
    test_a_record_is_in_the_state_before_anybody_is_told_of_it
results are answered before they are durable (rule 5)
    - self.core.journal.follow(self.keys.answer(command))
    + self.keys.answer(command)()
    session/test_slow_store.py
    test_a_command_is_answered_when_it_is_durable_and_not_before
an owner that was overtaken does not notice that it was (invariant 6)
    - case Conflict(row=row) if row is not None and row.epoch > written.batch.epoch:
    + case Conflict(row=row) if row is not None and row.epoch < 0:
    session/registry/test_lifecycle.py
    test_after_a_takeover_the_old_owner_is_moved_and_publishes_nothing_more

in session/actor/turn_queue.py, by session/test_slow_store.py
a send is answered before it is durable (rule 5)
    -         self._core.journal.write(record, accepted)
    +         self._core.journal.write(record, accepted)
    +         command.promise.set(number)
    test_a_command_is_answered_when_it_is_durable_and_not_before
a steer is answered before it is durable (rule 5)
    - lambda: self._answer_send(command, run.number))
    + lambda: self._answer_send(command, run.number))
    +         command.promise.set(run.number)
    test_a_command_is_answered_when_it_is_durable_and_not_before
a turn starts before its acceptance is durable (rule 5)
    -         self._core.journal.write(record, accepted)
    +         self._core.journal.write(record, accepted)
    +         self.runner.start(run)
    test_a_command_is_answered_when_it_is_durable_and_not_before

in session/actor/history_commands.py, by session/test_slow_store.py
a clear is answered before it is durable (rule 5)
    - lambda: self._written(command, record))
    + lambda: self._written(command, record))
    +         command.promise.set(None)
    test_a_command_is_answered_when_it_is_durable_and_not_before
who forgets is answered before the words are out of the log (docs/explanation/security.md)
    -         self._erasing = True
    +         self._erasing = True
    +         command.promise.set(None)
    session/log/test_forget.py
    test_nobody_is_answered_before_it_is_out_of_the_log

in session/actor/configuration.py, by session/test_slow_store.py
a configuration is answered before it is durable (rule 5)
    -         self._core.journal.write(record, configured)
    +         self._core.journal.write(record, configured)
    +         answer()
    test_a_command_is_answered_when_it_is_durable_and_not_before

in session/compacting/compactor.py, by session/test_slow_store.py
a compaction is answered before it is durable (rule 5)
    -         self._core.journal.write(record_of(effect.plan), written)
    +         self._core.journal.write(record_of(effect.plan))
    +         written()
    test_a_compaction_is_answered_when_it_is_durable_and_not_before

in session/actor/turn_runner.py, by session/actor/test_stop_reasons.py
a steer is read between a server tool's call and its result (invariant 4)
    - steers = 0 if waits else run.steers
    + steers = run.steers
    test_a_steer_waits_while_a_server_tool_is_paused

in session/actor/turn_runner.py, by session/actor/test_tool_calls.py
tools start while their calls are on the way into the log (rule 5)
    - self._core.journal.write(record, lambda: self.feed(run, e.CallsJournaled(tag=effect.tag)))
    + self._core.journal.write(record)
    +         self.feed(run, e.CallsJournaled(tag=effect.tag))
    test_a_callable_gets_the_input_as_keyword_arguments_and_the_model_its_result

in session/log/reader.py, by session/test_store_faults.py
a batch that is not in the log counts as written (invariant 5)
    - return tuple(record.body for record in stored) == batch.bodies
    + return True
    test_a_batch_that_met_a_conflict_and_is_not_in_the_log_is_not_taken_as_written

in session/registry/loader.py, by session/test_store_faults.py
a conflict while a session is loaded counts as written (invariant 6)
    -             _check_written(written, lease.session)
    +             pass
    test_an_append_that_fails_gives_every_caller_its_error_and_the_session_comes_back
a log that misses its end is opened (invariant 5)
    - if state.head != lease.head:
    + if False:
    test_a_log_that_ends_before_its_head_is_not_opened

in session/log/history_cuts.py, by session/log/test_forget.py
a reply without content is taken for a forgotten turn (invariant 1)
    - users = (message for message in history if message.is_user)
    + users = history
    test_a_fork_forgets_no_more_for_a_reply_that_lost_all_its_blocks

in session/log/erasing.py, by session/log/test_forget.py
what was to be purged stays in the log (docs/explanation/security.md)
    -         await store.rewrite(lease, bodies)
    +         pass
    test_a_purge_takes_everything_that_was_said_out_of_the_log

in session/log/state.py, by session/log/test_redaction.py
a compaction keeps a text of a call that is forgotten later (docs/explanation/security.md)
    - self._trace_calls({**record.shown_results, **record.inputs}, record.seq)
    + pass
    test_a_record_that_repeats_a_turn_is_found_when_that_turn_is_forgotten_later_than_others

in session/log/state.py, by session/log/test_forget.py
an interrupt's answer keeps a receipt that its turn lost (docs/explanation/security.md)
    - self._ranges(turns, told, carriers, seq)
    + self._ranges(turns, traces, carriers, seq)
    test_the_answer_to_an_interrupt_of_a_kept_turn_loses_the_receipt_that_the_turn_lost

in session/log/redaction.py, by session/log/test_forget.py
a purge leaves what the user said (docs/explanation/security.md)
    - return replace(record, body=NOTHING_SAID, receipt=_empty(record.receipt), seed=None)
    + return replace(record, receipt=_empty(record.receipt), seed=None)
    test_a_purge_takes_everything_that_was_said_out_of_the_log
a purge leaves what an interrupt was answered (docs/explanation/security.md)
    -     return _commands(record, self.turns, self.receipts)
    +     return record
    test_what_a_dropped_turn_said_and_did_is_purged_too
""")

SUBSCRIBERS = read_mutants(r"""
in session/core/subscriptions.py, by session/core/test_subscriptions.py
previews that a restart made void are still read (docs/how-to/stream-replies.md)
    - while self._buffer and isinstance(self._buffer[-1], (_Merged, StepRestarted, *_PREVIEWS)):
    + while False:
    test_a_restart_takes_the_place_of_the_previews_that_it_makes_void
a resumed turn does not say that what was shown is void (docs/reference/wire.md)
    - if before is not None and (before.turn, before.step) == (record.turn, record.step):
    + if False:
    test_a_resumed_turn_voids_the_previews_of_the_step_that_was_not_closed

in session/actor/turn_runner.py, by session/handles/test_reply_text.py
a step that is tried again says nothing (docs/reference/wire.md)
    - if tag.attempt > 1:  # the previews of the earlier attempt are void
    + if False:
    test_a_subscriber_hears_at_once_that_a_step_begins_anew

in session/handles/reply_text.py, by session/handles/test_reply_text.py
text that previews did not have is left out (docs/how-to/stream-replies.md)
    - yield from self._tell(whole[len(told) :])
    + yield from self._tell("")
    test_the_text_comes_once_whenever_reading_begins
a reader that lags is told again what it was told (docs/how-to/stream-replies.md)
    - self._heard_again = ""
    + self._heard_again = None
    test_what_comes_again_after_a_lag_is_not_told_again

in session/core/subscriptions.py, by session/core/test_subscriptions.py
a subscriber's buffer has no bound (rule 10)
    - if self._durable >= MAX_DURABLE:
    + if False:
    test_one_more_and_it_is_told_its_cursor_and_dropped
a durable record is lost without a word (rule 10)
    -             self.lag()
    -         else:
    -             self._buffer.append(record)
    +             return
    +         else:
    +             self._buffer.append(record)
    test_one_more_and_it_is_told_its_cursor_and_dropped
a subscriber's previews have no bound (rule 10)
    - if self._preview_chars + size > MAX_PREVIEW_CHARS:
    + if False:
    test_previews_beyond_the_bound_are_lost_and_durable_records_are_not
previews of two attempts become one text (rule 3)
    -         and last.attempt == preview.attempt
    test_previews_of_different_blocks_steps_attempts_and_kinds_stay_apart
the event Lagged names a record that was not read (rule 10)
    - return Lagged(self._cursor)
    + return Lagged(self._cursor + 1)
    test_one_more_and_it_is_told_its_cursor_and_dropped
the cursor runs ahead of a record's calls (rule 10)
    - return self._cursor - 1 if self._expanded else self._cursor
    + return self._cursor
    test_a_cursor_passes_a_record_only_with_the_last_of_its_calls
each new subscriber costs a walk over all others (docs/explanation/security.md)
    -         if len(self._places) >= self._sweep_at:
    +         if self._places:
    test_adding_and_removing_a_subscriber_touches_no_other
a turn's events do not end with its last one (invariant 2)
    - if is_terminal(record) or isinstance(record, TurnImported):
    + if False:
    test_a_turns_subscription_ends_at_its_terminal_event
what comes during a replay is read before it (invariant 13)
    - elif self._buffer and self._replay is None:
    + elif self._buffer:
    test_what_is_published_during_the_replay_follows_it
previews that nobody reads stay in the list that all share (rule 10)
    - if self._chars > MAX_LIST_CHARS:
    + if False:
    test_previews_that_nobody_reads_are_in_the_buffers_and_not_beside_them
a closed subscription keeps all later previews (rule 10)
    -         self._node = _Node(_NOTHING)
    -
    -     def offer_preview
    +         pass
    +
    +     def offer_preview
    test_a_subscription_that_is_over_keeps_nothing_of_what_is_published_later
a record comes before the previews that were published before it (rule 10)
    -         self.take_previews()
    -         if self._durable
    +         if self._durable
    test_previews_keep_their_place_between_durable_records
two tasks that read one subscription both get the same page of the log (rule 10)
    - if self._replay is None or self._backlog or self._cursor != after:
    + if self._replay is None:
    test_tasks_that_share_a_subscription_get_each_event_once_and_all_hear_the_end

in session/tasks/wait_queue.py, by session/tasks/test_wait_queue.py
a task that leaves the event loop takes the others' wake-up with it (rule 11)
    - self._loop.call_soon(self._resume, woken)
    + pass
    test_the_others_are_resumed_when_one_leaves_the_event_loop
a task does not hear why it was cancelled (rule 11)
    - cancelled.cancel(msg)
    + cancelled.cancel()
    test_a_task_hears_why_it_was_cancelled

in session/actor/turn_runner.py, by session/core/test_events.py
an attempt that is over goes on showing previews (invariant 2)
    - if run is not None and run.builder is builder and not is_muted:
    + if not is_muted:
    test_an_aborted_turn_shows_no_preview_after_its_end

in session/handles/session.py, by session/core/test_events.py
who joins in mid-stream misses the text so far (rule 10)
    - for preview in actor.turns.runner.previews_so_far():
    + for preview in actor.turns.runner.previews_so_far()[:0]:
    test_who_joins_in_mid_stream_first_gets_the_steps_text_so_far
""")

RETENTION = read_mutants(r"""
in session/log/history_cuts.py, by session/operations/test_history_limits.py
a limit of messages cuts a turn in two (docs/how-to/delete-and-forget.md)
    - while end < len(history) and history[end].turn == turn:
    + while end == start:
    test_whole_turns_go_and_nothing_of_a_turn_that_fits_for_any_history_and_limits
the newest turn goes where it is too large by itself (docs/how-to/delete-and-forget.md)
    - if end == len(history):
    + if False:
    test_tokens_of_the_history_are_limited_and_the_newest_turn_stays_whatever_it_has

in session/actor/history_commands.py, by session/operations/test_history_limits.py
retention cuts while a turn is open (docs/how-to/delete-and-forget.md)
    - if self._may_exceed and not self._turns.runs and self.is_idle:
    + if self._may_exceed and self.is_idle:
    test_an_open_turn_is_never_cut_and_the_limits_come_after_it

in session/registry/runtime.py, by session/operations/test_history_limits.py
what is too old is in the history that open returns (docs/how-to/delete-and-forget.md)
    - if actor.history_commands.excess is not None:
    + if False:
    test_what_has_become_too_old_is_gone_when_open_returns

in session/operations/retention.py, by session/operations/test_history_limits.py
a step of the schedule deletes and reads without an end (docs/how-to/delete-and-forget.md)
    - if self._costly >= MAX_COSTLY:
    + if self._costly < 0:
    test_a_step_of_the_schedule_reads_few_logs_and_pauses_before_the_next
the schedule takes a session that another manager holds (docs/how-to/delete-and-forget.md)
    - return self._seen is not None and is_other and await _is_dead(row) is False
    + return False
    test_the_schedule_leaves_a_session_to_another_manager_that_holds_it
the schedule remembers any number of sessions (docs/how-to/delete-and-forget.md)
    - if len(self._due) + len(self._earlier) < MAX_SEEN:
    + if True:
    test_of_more_sessions_than_it_remembers_the_schedule_reads_only_the_others_again
the schedule remembers sessions that are no more (docs/how-to/delete-and-forget.md)
    -                 self._seen.end_pass()
    +                 pass
    test_of_more_sessions_than_it_remembers_the_schedule_reads_only_the_others_again
retention deletes a session that is being opened (docs/how-to/delete-and-forget.md)
    - if runtime.find_live(row.session) is not None:
    + if False:
    session/operations/test_retention.py
    test_a_session_that_is_being_opened_is_kept
retention deletes a session that was taken from it meanwhile (invariant 6)
    - await store.delete(row.session, epoch=lease.epoch)
    + await store.delete(row.session)
    session/operations/test_retention.py
    test_a_session_that_was_taken_while_retention_stood_still_is_kept

in session/values/labels.py, by session/operations/test_listing.py
labels that are replaced take the title with them (docs/how-to/search-sessions.md)
    - return {**own, **{name: value for name, value in reserved.items() if value}}
    + return own
    test_a_session_has_the_title_that_it_was_given_or_that_of_its_first_request
a fork of an archived session is archived (docs/how-to/search-sessions.md)
    - gone = (ARCHIVED_LABEL,) if own is None else (ARCHIVED_LABEL, TITLE_LABEL)
    + gone = () if own is None else (ARCHIVED_LABEL, TITLE_LABEL)
    test_an_archived_session_is_listed_if_it_is_asked_for_and_works_as_before

in session/log/titles.py, by session/operations/test_listing.py
what was forgotten stays the title (docs/how-to/search-sessions.md)
    - return given_title(state.labels, state.source) or _first_request(messages)
    + return "secret"
    test_what_is_forgotten_is_no_title

in session/actor/configuration.py, by session/operations/test_history_limits.py
a new age limit takes labels away that are being written (invariant 13)
    - labels = with_max_age(self._core.labels, config.max_age_s)
    + labels = with_max_age(self._core.state.labels, config.max_age_s)
    test_labels_that_are_on_their_way_into_the_log_are_not_lost_to_a_new_age
""")
