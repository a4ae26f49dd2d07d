"""Mutants of what a session is asked: command ids, lanes, modes, interrupts."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["COMMANDS", "INTERRUPTS", "LANES"]

LANES = read_mutants(r"""
in session/values/commands.py, by session/test_malformed_input.py
a command id is logged as the subclass of str that it came as (docs/how-to/handle-errors.md)
    -     plain = str.__str__(command_id) if isinstance(command_id, str) else ""
    +     plain: Any = command_id
    test_a_command_id_of_a_subclass_of_str_is_a_plain_one

in session/actor/mailbox.py, by session/actor/test_mailbox.py
work is read before control (invariant 8)
    - if self._control:
    -             return self._control.pop(0)
    + if self._work or self._control:
    +             return (self._work or self._control).pop(0)
    test_reports_are_read_before_control_and_control_before_work
control is read before reports (rule 4)
    - if self._reports:
    -             return self._reports.pop(0)
    + if self._control or self._reports:
    +             return (self._control or self._reports).pop(0)
    test_reports_are_read_before_control_and_control_before_work
the work lane is unbounded (rule 10)
    - self._refuse_if(len(self._work) >= self._work_limit, "work")
    + self._refuse_if(False, "work")
    test_a_full_work_lane_refuses_and_keeps_what_it_has
the control lane is unbounded (rule 10)
    - self._refuse_if(len(self._control) >= self._control_limit, "control")
    + self._refuse_if(False, "control")
    test_a_full_control_lane_refuses_and_work_is_still_taken
a full lane refuses reports (rule 11)
    -         self._reports.append(report)
    +         self._refuse_if(len(self._reports) >= self._work_limit, "report")
    +         self._reports.append(report)
    test_reports_are_never_refused

in session/actor/turn_queue.py, by session/actor/test_rewind.py
a turn begins with notes of what is just being cleared (docs/explanation/security.md)
    - run = self._accept(command, starts=not (self.runs or self._core.is_changing))
    + run = self._accept(command, starts=not self.runs)
    test_a_turn_that_is_interrupted_behind_a_change_has_nothing_of_what_is_gone

in session/actor/turn_queue.py, by session/actor/test_send_modes.py
the queue of turns has no limit (rule 10)
    - if len(self._waiting) >= self._core.config.queue_limit:
    + if False:
    test_a_full_queue_answers_overloaded_and_the_session_goes_on
reject takes the send (docs/how-to/interrupt-and-queue.md)
    - if command.when_busy == "reject" and self.runs:
    + if False:
    test_reject_raises_session_busy_while_a_turn_is_open_and_changes_nothing
interrupt mode waits at the end of the queue (docs/how-to/interrupt-and-queue.md)
    - self._waiting.insert(0, run)
    + self._waiting.append(run)
    test_interrupt_mode_replaces_the_running_turn_and_jumps_the_queue
interrupt mode does not end the running turn (docs/how-to/interrupt-and-queue.md)
    - self.runner.interrupt(current, policy, "replaced")
    + pass
    test_interrupt_mode_replaces_the_running_turn_and_jumps_the_queue
a steer joins a turn that is being stopped (rule 4)
    - return progress(run.turn) == "open" and run.turn.phase is not Phase.STOPPING
    + return progress(run.turn) == "open"
    test_a_steer_to_a_turn_that_is_being_interrupted_is_a_new_turn
a steer joins a turn whose end is decided (rule 4)
    - if command.when_busy == "steer" and current is not None and _goes_on(current):
    + if command.when_busy == "steer" and current is not None:
    test_a_steer_after_the_decision_is_a_new_queued_turn
a steer is counted twice (rule 6)
    - run.steers += 1
    + run.steers += 2
    test_several_steers_are_read_together_in_order
""")

COMMANDS = read_mutants(r"""
in session/core/idempotency_keys.py, by session/values/test_commands.py
an id that is used again for something else is not noticed (invariant 13)
    - if first != command.digest:
    + if False:
    test_the_same_id_with_other_content_is_key_reused
an id of one kind of command serves for another (invariant 13)
    - first = known.digest if known else in_flight[0] if in_flight else ""
    + first = command.digest
    test_an_id_of_one_kind_of_command_cannot_be_used_for_another
a repeat while the first is on its way is done twice (invariant 13)
    - if known is None and in_flight is None:
    + if known is None:
    test_a_repeat_while_the_first_is_on_its_way_gets_the_same_answer
a repeat gets another answer than the first (invariant 13)
    - command.promise.set(msgspec.json.decode(known.answer, type=command.answer_type))
    + command.promise.set(max(self._state.accepted_at, default=None))
    test_a_repeat_after_other_turns_returns_the_turn_of_the_first
a refused command keeps its id (invariant 13)
    -         self.forget(command)
    -         command.promise.fail(error)
    +         command.promise.fail(error)
    test_a_refused_command_may_be_tried_again_under_its_id

in session/actor/actor.py, by session/actor/test_tool_calls.py
a repeated interrupt interrupts again (invariant 13)
    -         if self.keys.is_repeat(caller):
    -             return caller.promise
    +         self.keys.is_repeat(caller)
    session/test_adversary.py
    test_a_repeated_interrupt_leaves_the_turn_that_runs_now_alone
a configuration takes effect during a turn (docs/how-to/embed-sessions.md)
    - self.configuration.configure(command, now=self.turns.current is None)
    + self.configuration.configure(command, now=True)
    session/actor/test_configure_and_clear.py
    test_a_configuration_during_a_turn_takes_effect_after_it_and_before_the_next
the caller may answer what the session runs itself (invariant 13)
    - if track.call.runner != "caller":
    + if False:
    test_the_caller_cannot_answer_a_call_that_the_session_runs
a second result replaces the first (invariant 13)
    - if call_id in seen or call_id not in run.turn.open_calls:
    + if call_id in seen:
    test_a_second_result_is_a_duplicate_and_the_first_one_stays
callers hang when the session cannot go on (rule 11)
    -         self.keys.fail_all(error)
    session/registry/test_lifecycle.py
    test_a_failed_append_gives_every_waiting_caller_a_store_error_and_goes_cold
commands that are unread when the session closes are forgotten (rule 11)
    -             command.promise.fail(error)
    -         self.turns.runner
    +             pass
    +         self.turns.runner
    session/registry/test_lifecycle.py
    test_a_command_that_is_unread_when_the_session_closes_fails_by_name

in session/values/commands.py, by session/values/test_commands.py
answers to commands are not in the log (invariant 13)
    - return (CommandAnswer(command_id, digest, msgspec.Raw(msgspec.json.encode(answer))),)
    + return ()
    test_a_repeat_gets_its_answer_in_the_next_process

in session/log/state.py, by session/values/test_commands.py
answers to commands are not folded (invariant 12)
    -         if record.commands:
    +         if False:
    test_a_repeat_gets_its_answer_after_the_session_was_evicted_and_opened_again

in session/actor/turn_queue.py, by session/values/test_commands.py
the expected head is not looked at (docs/how-to/interrupt-and-queue.md)
    - self._check_head(command.expected_head)
    + pass
    test_a_head_that_moved_refuses_the_send_and_says_where_it_is
an expected head is taken beside open sends (docs/how-to/interrupt-and-queue.md)
    - raise HeadMoved(_head_name(expected), None, "other sends are open")
    + return
    test_with_other_sends_open_an_expected_head_is_refused

in session/actor/history_commands.py, by session/actor/test_configure_and_clear.py
a clear is made while a turn is open (invariant 1)
    -         if not self._turns.runs:
    -             self._make(command)
    +         if command:
    +             self._make(command)
    test_clear_is_refused_while_a_turn_is_open
what comes behind a clear meets the history before it (invariant 1)
    -         self._core.is_changing = True
    -         self._mailbox.hold_work()
    -         noted = c.remembered(command.command_id, command.digest, None)
    +         self._core.is_changing = True
    +         noted = c.remembered(command.command_id, command.digest, None)
    session/test_in_flight.py
    test_two_clears_at_once_start_two_generations
""")

INTERRUPTS = read_mutants(r"""
in session/actor/actor.py, by session/actor/test_interrupts.py
an interrupt covers sends that came after it (invariant 7)
    - lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark
    + lambda waiting: isinstance(waiting, c.Send)
    also in session/actor/turn_queue.py
    - if run.ingress < mark and run is not
    + if run is not
    also in session/actor/turn_queue.py
    - covered = current if current is not None and current.ingress < mark else None
    + covered = current
    test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after
an interrupt misses the send right before it (invariant 7)
    - lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark
    + lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark - 1
    test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after
sends that were not read yet are not covered (invariant 7)
    - lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark
    + lambda waiting: False
    test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after
close does not name what still runs (invariant 11)
    -     def _closed(self) -> Closed:
    +     def _closed(self) -> Closed:
    +         return Closed(self.session, ())
    session/registry/test_lifecycle.py
    test_close_interrupts_what_is_open_and_names_what_still_runs
close does not name what still runs from before the session was opened again (invariant 11)
    - left = self.core.works.stopping_in(self.session)
    + left = ()
    session/registry/test_lifecycle.py
    test_what_an_earlier_life_left_running_is_named_where_the_session_is_closed

in session/values/commands.py, by session/actor/test_interrupts.py
an interrupt that is folded into another loses its mark (invariant 7)
    - self.mark = max(self.mark, mark)
    + self.mark = min(self.mark, mark)
    test_an_interrupt_folded_into_an_unread_one_ends_the_sends_between_them
a drop that is folded into a keep is forgotten (rule 4)
    -         if policy == "drop_turn":
    -             self.policy = policy
    test_a_drop_folded_into_an_unread_keep_wins

in session/actor/interrupts.py, by session/actor/test_interrupts.py
an interrupt is answered before its record is durable (rule 5)
    - return not self._open
    + return True
    test_an_interrupt_is_answered_after_its_record_is_durable

in session/actor/turn_queue.py, by session/actor/test_interrupts.py
an interrupt with an id is answered before its answer is in the log (rule 5)
    -         self._core.journal.write(record, durable)
    +         self._core.journal.write(record)
    +         durable()
    session/test_slow_store.py
    test_a_logged_interrupt_of_an_idle_session_is_answered_when_its_answer_is_durable
an interrupt does not wait for the queued turns that it ends (rule 5)
    -             pending.wait_for(run)
    -             self._abort_waiting(run, "interrupt")
    -         if covered is not None:
    +             self._abort_waiting(run, "interrupt")
    +         if covered is not None:
    test_queued_sends_that_an_interrupt_covers_get_their_turns_and_come_back
an interrupt of one queued turn does not wait for its end (rule 5)
    -             pending.wait_for(run)
    -             self._abort_waiting(run, "interrupt")
    -         self._answer_interrupts()
    +             self._abort_waiting(run, "interrupt")
    +         self._answer_interrupts()
    test_an_interrupt_of_one_queued_turn_tells_its_outcome
an interrupt during the abort of an earlier one is too late (invariant 8)
    - elif run.turn.phase is Phase.ABORTING or _was_kept(run):
    + elif _was_kept(run):
    test_two_hundred_interrupts_of_one_turn_abort_it_once_and_are_all_answered
a queued turn that was dropped starts all the same (invariant 2)
    -             self._waiting.remove(run)
    -             self.runner.interrupt(run, "drop_turn"
    +             self.runner.interrupt(run, "drop_turn"
    test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after

in session/actor/turn_works.py, by session/actor/test_interrupts.py
work that is stopped gets no grace (invariant 8)
    -         if not run.works:
    -             self._over(run)
    -             return
    +         if run:
    +             self._over(run)
    +             return
    test_an_interrupt_during_the_grace_gets_the_answer_of_the_first
the grace is twice as long as it was asked to be (invariant 8)
    - run.grace = self._core.timers.after(grace_s, over)
    + run.grace = self._core.timers.after(2 * grace_s, over)
    test_a_tool_that_swallows_cancellation_holds_the_interrupt_for_the_grace_only
a turn that is stopped does not cancel its work (invariant 8)
    -         for work in run.works.values():
    -             work.cancel()
    -         if not run.works:
    +         if not run.works:
    test_an_interrupt_of_cooperative_work_does_not_wait_for_the_grace
a turn's work is not let go after its grace (rule 8)
    -         for work in run.works.values():
    -             work.abandon()
    test_a_tool_that_is_let_go_after_its_grace_costs_no_turns_of_the_loop
the outcome does not name what still runs (invariant 11)
    - run.still_running = tuple(run.works)
    + run.still_running = ()
    test_a_tool_that_swallows_cancellation_holds_the_interrupt_for_the_grace_only

in session/tasks/works.py, by session/tasks/test_works.py
a work that is cancelled and abandoned before it begins never hears of it (rule 8)
    - FIRST_TURNS = 4
    + FIRST_TURNS = 2
    test_a_work_that_is_cancelled_and_abandoned_before_it_begins_ends
work past its grace is asked to stop for ever (rule 8)
    -         self._is_abandoned = True
    +         pass
    test_abandoned_work_that_swallows_cancellation_costs_no_turns_of_the_loop
a cancellation is delivered on every turn of the loop (rule 8)
    -         elif self._loop_calls.delivers_on_every_turn:
    +         elif False:
    test_work_that_ignores_its_cancellation_leaves_the_loop_at_rest_in_its_grace_too
a cancellation that finds the work shielded is lost (invariant 8)
    -         self._loop_calls.call_later(AGAIN_S, self._deliver_again)
    +         pass
    test_a_cancellation_during_a_shield_reaches_the_work_behind_it
a work that is abandoned before it has met its cancellation never meets it (invariant 8)
    -         if self._has_met_it or not self.is_cancelled:
    +         if True:
    test_a_cancellation_that_was_abandoned_before_the_loop_turned_reaches_the_work

in session/tasks/promise.py, by session/test_freed_at_once.py
a refused command waits for the garbage collector (rule 10)
    -             self._error = error.with_traceback(None)
    +             self._error = error
    test_nothing_that_a_session_is_done_with_waits_for_the_collector

in errors.py, by session/test_freed_at_once.py
an interrupted stream waits for the garbage collector (rule 10)
    -         return contained(error)
    -     finally:
    -         del error
    +         return contained(error)
    +     finally:
    +         pass
    test_nothing_that_a_session_is_done_with_waits_for_the_collector

in session/tasks/task_host.py, by session/tasks/test_task_host.py
the manager is left while an abandoned work still runs (rule 8)
    -             if not self._running:
    -                 break
    +             break
    test_they_are_left_only_when_all_have_ended_also_those_that_were_abandoned
a work that is started while all are being cancelled goes on (rule 8)
    -         if self._is_cancelled:
    +         if False:
    test_a_task_that_is_started_when_all_were_cancelled_is_cancelled_too
a manager whose group somebody cancelled ends in silence (rule 14)
    -             raise _cancelled_by_others()
    +             pass
    test_a_host_whose_group_somebody_cancels_says_so_when_it_is_left
a task that somebody cancels before its first step never ends (rule 11)
    - if task.cancelled() and not start.is_over():
    + if False:
    session/tasks/test_works.py
    test_work_whose_task_somebody_cancels_before_its_first_step_is_done_all_the_same

in session/tasks/timers.py, by session/tasks/test_timers.py
deadlines are forgotten where somebody cancels their task (rule 14)
    -             contained_in_work(error)
    +             raise error
    test_deadlines_stand_if_somebody_cancels_the_task_alone

in session/actor/turn_runner.py, by session/registry/test_release.py
what ignores its cancellation is asked for ever where the session has gone (rule 8)
    - for work in tuple(run.works.values()):
    -             self._works.cancel(run, work)
    + for work in run.works.values():
    +             work.cancel()
    test_a_tool_that_ignores_its_cancellation_is_left_alone_when_its_session_has_gone

in session/actor/turn_runner.py, by session/registry/test_lifecycle.py
a tool in the grace of its deadline is not named once its turn has ended (invariant 11)
    - self._core.still_running.update(n for n, work in run.works.items() if not work.is_done)
    + pass
    test_close_names_a_tool_that_is_in_the_grace_of_its_deadline
""")
