"""Mutants of what takes time: tools, deadlines, streams."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["TOOLS"]

TOOLS = read_mutants(r"""
in session/actor/request_build.py, by session/actor/test_retries.py
the delay before a retry is not kept (rule 2)
    -         if effect.delay_s > 0:
    +         if effect.delay_s < 0:
    test_the_delay_that_the_server_names_is_kept

in session/tasks/silence.py, by session/tasks/test_silence.py
a stream that speaks now and then is taken for silent (rule 11)
    - watched.seen, watched.looks_left = stream.fed, LOOKS
    + watched.seen = stream.fed
    test_a_stream_that_brings_something_is_not_silent_nor_one_that_ended
each stream sets a timer for its silence (docs/explanation/benchmarks.md)
    -         if streams is None:
    +         if not streams:
    test_many_streams_one_after_the_other_set_one_timer
a silent stream is watched for ever and never given up (rule 11)
    - if not watched.looks_left:
    + if False:
    session/actor/test_retries.py
    test_a_silent_stream_is_taken_for_broken_and_the_step_is_tried_again

in session/actor/tool_runner.py, by session/test_foreign_code.py
a GeneratorExit that a tool waits for ends the manager (docs/how-to/handle-errors.md)
    - returned = await foreign(run(**arguments))
    + returned = await run(**arguments)
    test_what_a_tool_waits_for_may_fail_with_anything

in session/actor/turn_runner.py, by session/actor/test_turn_limits.py
the deadlines of an ended turn are left behind (invariant 11)
    -             run.cancel_timers()
    test_an_ended_turn_is_not_kept_in_memory_by_its_deadlines

in session/core/reply_reader.py, by session/actor/test_interrupts.py
a provider's stream is left open (invariant 11)
    -             await stream.aclose()
    +             pass
    test_an_interrupt_of_cooperative_work_does_not_wait_for_the_grace

in session/actor/tool_calls.py, by session/actor/test_tool_calls.py
a call whose result never comes holds its turn for ever (rule 11)
    -             if deadline_s is not None:
    +             if False:
    test_a_call_past_its_deadline_is_settled_as_unknown_and_the_turn_goes_on
a tool's own deadline is not used (rule 11)
    -                 deadline_s = tool.deadline_s
    +                 pass
    test_each_call_has_its_own_deadline
a call past its deadline keeps its tool (invariant 11)
    -             self._works.cancel(run, track.work)
    +             pass
    test_a_tool_is_cancelled_at_its_deadline
a result after its deadline replaces what stands for it (invariant 13)
    - if ended or answer.call_id not in run.turn.open_calls:
    + if ended:
    test_a_tool_that_returns_after_its_deadline_does_not_replace_what_stands_for_it

in session/actor/turn_works.py, by session/actor/test_tool_calls.py
a tool that outlives its deadline is not named (invariant 11)
    -                 self._core.still_running.add(work.name)
    test_a_tool_that_outlives_its_deadline_is_named_while_its_turn_goes_on
what has ended is still named as running (invariant 11)
    -         self._core.still_running.discard(work.name)
    test_a_tool_that_swallows_the_cancellation_of_its_deadline_holds_nothing

in session/core/session_log.py, by session/core/test_session_log.py
the log counts the decision about a turn as an attempt (docs/how-to/monitor-a-service.md)
    - "attempt": turn.tried
    + "attempt": turn.attempt
    test_a_reply_that_was_finished_in_one_request_is_logged_as_attempt_1

in session/values/validation.py, by transport/test_contract.py
a block of an unknown type is sent to the provider (docs/how-to/handle-errors.md)
    - if isinstance(kind, str) and kind not in KNOWN_TYPES | _PROVIDERS_TYPES:
    + if False:
    test_what_a_user_cannot_say_is_refused

in session/values/function_schema.py, by session/values/test_function_schema.py
arguments that the schema does not know reach the function (docs/how-to/give-a-session-tools.md)
    - return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    + return msgspec.defstruct(name, fields, kw_only=True)
    test_arguments_that_do_not_fit_go_to_the_model_as_an_error_and_nothing_is_called
arguments are not converted (docs/how-to/give-a-session-tools.md)
    - named = {key: getattr(values, key) for key in parameters if key in given}
    + named = {key: given[key] for key in parameters if key in given}
    test_what_msgspec_can_read_is_converted

in session/handles/session.py, by session/actor/test_configure_and_clear.py
a tool that configures its own session waits for its own turn (docs/how-to/give-a-session-tools.md)
    -         if tool is not None:
    +         if False:
    test_a_tool_cannot_configure_its_own_session_and_is_told_at_once

in session/tasks/tool_threads.py, by session/actor/test_tool_calls.py
a thread that outlives an interrupt is named nowhere (invariant 11)
    -             with anyio.CancelScope(shield=True) as scope:
    +             with anyio.CancelScope() as scope:
    test_a_thread_that_outlives_its_interrupt_is_named_until_it_ends

in session/registry/runtime.py, by session/actor/test_tool_calls.py
leaving the manager does not wait for the threads of tools (invariant 11)
    -         left = await self._services.tool_threads.wait_all(self._thread_wait_s)
    +         left = await self._services.tool_threads.wait_all(0)
    test_leaving_the_manager_waits_for_a_thread_that_its_interrupt_left_behind

in session/registry/runtime.py, by session/registry/test_unbound_tools.py
a tool that nobody binds becomes the caller's in silence (docs/how-to/give-a-session-tools.md)
    -         if names and unbound == "raise":
    +         if False:
    test_open_names_the_tools_that_the_session_ran_and_nobody_binds
a takeover takes the session before it names what is not bound (docs/how-to/give-a-session-tools.md)
    -             if takeover:
    +             if False:
    test_a_takeover_that_names_unbound_tools_takes_nothing

in session/actor/tool_runner.py, by session/actor/test_tool_runner.py
the cancellation of a tool becomes an error result (rule 8)
    -         contained_in_work(error)
    +         pass
    test_our_own_cancellation_of_a_tool_passes
a long result is shown whole (docs/explanation/compaction.md)
    - capped = cap_content(decoded, max_chars=max_chars, call_id=result.call_id)
    + capped = None
    session/compacting/test_recall_and_caps.py
    test_a_long_result_is_shown_capped_from_its_arrival_on_and_kept_whole
the caller's summary is overwritten (docs/how-to/write-summaries.md)
    - if summary is None or not summary.strip():
    + if result:
    test_the_callers_summary_comes_before_an_extracted_one
what a tool raises ends the manager (rule 8)
    -     except BaseException as error:  # a tool may raise anything; the model gets the text
    +     except ArithmeticError as error:
    test_what_a_callable_raises_becomes_an_error_output

in session/tasks/works.py, by session/tasks/test_works.py
what a work raises ends the manager (rule 14)
    -         except BaseException as error:  # must not end the works of other sessions
    +         except ArithmeticError as error:
    test_what_a_work_raises_is_reported_by_name_and_ends_no_other_work

in errors.py, by session/test_foreign_code.py
the exception of another event loop ends the manager (rule 14)
    -     if is_cancellation and (_is_in_cancelled_scope() or _requests_to_cancel()):
    +     if not isinstance(error, Exception):
    test_whatever_a_provider_says_costs_its_own_session_at_most
a tool that cancels its own task ends the work without a report (rule 14)
    -             cast(asyncio.Task[Any], asyncio.current_task()).uncancel()
    +             pass
    test_a_tool_whose_task_is_cancelled_alone_costs_its_own_call
the end of the event loop is logged as a tool's result (rule 14)
    -     if host is not None and not host.cancelling() and not _is_in_cancelled_scope():
    +     if host is not None and not _is_in_cancelled_scope():
    test_a_loop_that_ends_before_its_tools_leaves_no_result_of_them
nobody can end the program while foreign code runs (docs/how-to/handle-errors.md)
    -     if isinstance(error, KeyboardInterrupt):
    +     if isinstance(error, KeyError):
    test_only_an_interrupt_by_the_keyboard_is_raised_on

in errors.py, by session/test_cancelled_callers.py
a caller that asyncio cancels is told that the store failed (rule 14)
    -     return 0 if task is None else task.cancelling()
    +     return 0
    test_a_command_whose_caller_is_cancelled_is_done_whole_all_the_same

in session/core/observers.py, by session/test_foreign_code.py
an observer that raises no Exception ends its session (docs/how-to/handle-errors.md)
    -         except BaseException as error:  # an observer is foreign code
    +         except Exception as error:
    test_whatever_an_observer_raises_is_logged_and_changes_nothing

in session/core/reply_reader.py, by session/test_foreign_code.py
a reply is taken from a provider as it comes (docs/how-to/handle-errors.md)
    -             event = checked_event(event)
    test_a_turn_whose_report_cannot_be_logged_fails_and_says_what_is_wrong

in session/tasks/clock.py, by session/test_foreign_code.py
a time that no log can hold is written into one (docs/how-to/handle-errors.md)
    -             if now.__class__ is float and MIN_S < now < MAX_S:
    +             if True:
    test_whatever_the_clock_says_no_session_is_lost

in compaction/planning/policy.py, by session/test_foreign_code.py
a plan is applied that no log can hold (docs/how-to/handle-errors.md)
    -     logged = decode_record(encode_record(record))
    +     logged = record
    test_a_plan_that_cannot_be_applied_leaves_a_session_that_can_be_opened

in store/protocol.py, by session/test_foreign_code.py
an answer that is none counts as a batch that was written (docs/how-to/handle-errors.md)
    -             return Lost(f"the store returned an invalid answer: {type(result).__name__}")
    +             return Appended(batch.head + len(batch.bodies))
    test_an_answer_of_a_store_that_cannot_be_loses_one_session_s_turn
""")
