"""Mutants of ``transport/``: who may ask what, how much, and what a lost connection changes."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["WIRE"]

WIRE = read_mutants(r"""
in transport/server/connection.py, by transport/server/test_intake.py
a command past the rate is read before it is refused (docs/explanation/security.md)
    - refusal = self._admission.refuse(self, frame) if self.authenticated else None
    + refusal = None
    test_a_command_past_the_rate_is_refused_before_it_is_read

in transport/client/link.py, by transport/client/test_link.py
what was asked before the connection was lost is done a second time (docs/reference/wire.md)
    -             request.sent = self._send(request.command)
    +             again = request.command
    +             once = {"command_id": None} if hasattr(again, "command_id") else {}
    +             again = msgspec.structs.replace(again, **once)
    +             request.sent = self._send(again)
    test_cut_at_random_bytes_every_send_is_taken_once_and_every_event_seen_once

in transport/client/link.py, by transport/test_newer_versions.py
a client goes on with a service of another version (docs/reference/wire.md)
    - if welcome.version != w.VERSION:
    + if False:
    test_a_client_refuses_a_service_that_goes_on_with_another_version

in transport/client/subscription.py, by transport/test_newer_versions.py
a client passes over an event of a known kind that it cannot read (docs/reference/wire.md)
    - if not event.seq or unknown_kind(bytes(event.body)) is not None:
    + if True:
    test_an_event_of_a_known_kind_that_a_client_cannot_read_ends_its_subscription
a client ends where it meets a kind of event that it does not know (docs/reference/wire.md)
    - if not event.seq or unknown_kind(bytes(event.body)) is not None:
    + if not event.seq:
    test_a_client_passes_over_kinds_of_events_and_fields_that_it_does_not_know

in transport/client/subscription.py, by transport/client/test_link.py
a subscriber that comes back misses an event (docs/reference/wire.md)
    - after = self._after if self._received is None else self._received
    + after = self._after if self._received is None else self._received + 1
    test_cut_at_random_bytes_every_send_is_taken_once_and_every_event_seen_once
a subscriber that comes back sees an event twice (docs/reference/wire.md)
    - after = self._after if self._received is None else self._received
    + after = self._after if not self._received else self._received - 1
    test_cut_at_random_bytes_every_send_is_taken_once_and_every_event_seen_once
previews are shown twice after the connection was lost (docs/reference/wire.md)
    -         if end <= shown_end:
    +         if False:
    also in transport/client/subscription.py
    - if event.offset < shown_end:
    + if False:
    test_previews_are_not_shown_twice_after_the_connection_was_lost

in transport/client/subscription.py, by transport/client/test_subscription.py
text of a resumed step is taken for text that was shown (docs/reference/wire.md)
    - self._step = None  # the step starts its text again, with the same attempt number
    + pass
    test_text_from_before_a_kill_is_not_joined_with_that_of_the_resumed_turn

in transport/server/connection.py, by transport/server/test_fuzz.py
a client that is gone takes its commands with it (docs/reference/wire.md)
    -         if isinstance(command, w.Outcome):
    -             if not is_query:
    -                 self._waits.add(task)
    +         if command:
    +             self._waits.add(task)
    +         if isinstance(command, w.Outcome):
    test_a_peer_that_leaves_at_once_is_done_as_it_said
a command overtakes results that need a thread (docs/reference/wire.md)
    - attachment.blocked = is_slow_to_number(command)
    + attachment.blocked = False
    transport/server/test_connection.py
    test_a_command_does_not_overtake_large_results_that_need_a_thread
commands before the hello are performed (docs/explanation/security.md)
    - if not self.authenticated and not isinstance(message, _BEFORE_THE_HELLO):
    + if False:
    test_before_the_hello_nothing_is_answered_but_a_ping
before the hello a frame may be as large as after it (docs/explanation/security.md)
    - self.max_frame_bytes = HELLO_BYTES
    + self.max_frame_bytes = admission.limits.frame_bytes
    test_a_frame_that_is_too_large_is_not_read_to_its_end
a client whose answers nobody reads is read on (rule 10)
    -             self.outbox.has_room
    -             and self._backlog.has_room
    -             and self._adm
    +             True
    +             and self._backlog.has_room
    +             and self._adm
    transport/server/test_service.py
    test_a_command_that_is_answered_at_once_is_not_read_before_its_answer_has_room
a client makes more sessions than it may use (docs/reference/configuration.md)
    -         if is_new:
    -             self._check_sessions()
    +         if is_new:
    transport/server/test_service.py
    test_sessions_that_are_being_made_count_as_used
frames before the hello are not counted (docs/explanation/security.md)
    - if self._early_frames > HELLO_FRAMES:
    + if False:
    transport/server/test_intake.py
    test_before_the_hello_a_handful_of_frames_is_read
a client that is too fast is read as fast as it sends (docs/explanation/security.md)
    - self._pause_until = self._admission.now() + pause_s
    + self._pause_until = 0.0
    transport/server/test_intake.py
    test_every_frame_counts_and_who_is_too_fast_is_read_no_faster
what a cancelled wait held is never given back (docs/explanation/security.md)
    -         if id(command) in self._charges:
    +         if False:
    transport/server/test_intake.py
    test_what_a_command_held_is_given_back_however_it_ends
one client may take all subscriptions of a session (docs/reference/configuration.md)
    -             own.count(session),
    +             0,
    transport/server/test_connection.py
    test_subscriptions_to_one_session_are_limited_for_a_connection_and_for_all

in transport/server/intake.py, by transport/server/test_intake.py
one tenant may take the bytes of all (docs/explanation/security.md)
    - if self._by_key[key] + size_bytes > self._limit_of_one:
    + if False:
    test_a_tenant_has_a_budget_of_bytes_for_all_of_its_connections
one peer may have any number of connections without a hello (docs/explanation/security.md)
    - if len(own) >= self._limit_of_peer:
    + if False:
    test_of_one_peer_a_few_connections_wait_for_their_hello_and_the_oldest_makes_room
frames that do not end are not bounded in sum (docs/explanation/security.md)
    - if self.bytes + size_bytes > self._limit:
    + if False:
    test_frames_that_do_not_end_are_bounded_in_sum_and_given_back
readers hold the event loop as long as they have frames (docs/explanation/security.md)
    - self.has_time = self._spent_s < PASS_S
    + self.has_time = True
    test_readers_leave_the_loop_to_others_and_have_their_turns_in_order

in transport/server/refusals.py, by transport/server/test_refusals.py
a peer that is refused fills the log (docs/explanation/security.md)
    - if second.lines < LINES:
    + if second:
    test_many_refusals_of_a_peer_in_a_second_are_a_few_lines_and_a_number

in transport/grpc/decoding.py, by transport/grpc/test_calls.py
a message may have any number of frames (docs/explanation/security.md)
    - if _field_count(raw, max_fields) > max_fields:
    + if False:
    test_a_message_of_many_fields_is_refused_after_as_many_as_are_allowed
bytes that are no protobuf are a failure of ours (docs/explanation/security.md)
    -     except DecodeError:
    -         raise InvalidInput(
    +     except ZeroDivisionError:
    +         raise InvalidInput(
    test_bytes_that_are_no_protobuf_are_invalid_and_leave_no_traceback

in transport/server/access.py, by transport/server/test_access.py
any token is let in (docs/explanation/security.md)
    - if hmac.compare_digest(digest, presented):
    + if digest:
    test_a_wrong_token_is_refused_and_not_quoted
a service with TLS and no tokens may be open to other machines (docs/explanation/security.md)
    - if address.is_local or insecure or (has_tls and is_guarded):
    + if address.is_local or insecure or has_tls:
    test_what_other_machines_reach_needs_tls_and_tokens_or_a_flag

in transport/server/admission.py, by transport/server/test_connection.py
a refused command keeps its session in memory (rule 10)
    - return error.with_traceback(None)
    + return error
    test_commands_that_were_refused_do_not_keep_their_session_in_memory

in transport/server/admission.py, by transport/server/test_service.py
a service asks nobody who he is (docs/explanation/security.md)
    -         if self.authenticator is None:
    +         if peer is not None:
    transport/server/test_tenancy.py
    test_nobody_gets_in_with_a_wrong_token_and_it_is_one_line_in_the_log
any number of commands a second is taken (docs/reference/configuration.md)
    -         if wait_s is not None:
    -             raise
    +         if False:
    +             raise
    test_the_first_command_beyond_its_rate_is_refused_too
any number of open turns is taken (docs/reference/configuration.md)
    -             if self._open_turns >= limit:
    +             if False:
    test_too_many_open_turns_are_refused_and_interrupts_are_not
a service that runs late takes new turns (docs/reference/configuration.md)
    - if lag_s > self.limits.max_lag_s:
    + if False:
    test_a_service_that_runs_late_takes_no_new_turns_and_says_so
after a stall clients are told to wait for as long again (docs/reference/configuration.md)
    - late_hint_s(lag_s)
    + 2 * lag_s
    transport/server/test_connection.py
    test_a_stall_is_followed_by_hints_of_the_measured_lag_and_at_most_two_seconds
a service that drains takes new turns (docs/how-to/run-a-service.md)
    -         if self.draining:
    -             raise Overloaded(GOING_DOWN
    +         if False:
    +             raise Overloaded(GOING_DOWN
    test_a_service_that_drains_takes_no_new_turns_and_ends_the_open_ones

in transport/server/tenancy.py, by transport/server/test_tenancy.py
the tenant of a session is not compared (docs/explanation/security.md)
    - if tenant is not None and tenant_of((await manager.row(session)).labels) != tenant:
    + if False:
    test_a_session_in_a_tenants_namespace_that_is_not_labelled_so_is_not_its_own
a tenant's search finds the sessions of others (docs/explanation/security.md)
    - hits=tuple(hit for hit in page.hits if hit.session.startswith(space)),
    + hits=page.hits,
    also in transport/server/tenancy.py
    - labels = {**command.filter.labels, TENANT_LABEL: tenant}
    + labels = command.filter.labels
    test_a_tenant_finds_its_own_sessions_only
tenants share one space of ids (docs/explanation/security.md)
    - if tenant is None or isinstance(command, w.Unsubscribe | w.Statistics):
    + if command:
    test_two_tenants_may_use_one_id_and_neither_finds_the_other
a tenant is told who else holds its session (docs/explanation/security.md)
    - return SessionInUse(session, ANOTHER_OWNER, address=error.address, view=error.view)
    + return error
    test_a_tenant_is_not_told_who_holds_its_session

in transport/wire/framing.py, by transport/wire/test_framing.py
a line may be of any length (docs/explanation/security.md)
    -             if len(line) > max_bytes:
    +             if False:
    test_a_line_that_is_too_long_is_refused_before_it_ends

in transport/wire/messages.py, by transport/wire/test_messages.py
a command with a field that is not known is taken (docs/reference/wire.md)
    -     forbid_unknown_fields=True,
    +     forbid_unknown_fields=False,
    test_a_command_is_read_strictly_and_a_servers_message_is_not

in transport/server/service.py, by transport/server/test_service.py
any number of clients is let in (docs/reference/configuration.md)
    -         if len(self._welcomed) >= limit:
    -             raise
    +         if False:
    +             raise
    test_too_many_connections_are_refused_with_a_hint

in transport/server/outbox.py, by transport/server/test_outbox.py
what waits for a client that does not read has no bound (rule 10)
    - if self._waiting and self.bytes + len(frame) > self._limit_bytes:
    + if False:
    test_previews_are_lost_first_and_a_durable_event_that_does_not_fit_is_refused
what waited for a subscription that ended is kept (docs/explanation/security.md)
    - self._items = deque(item for item in self._items if not _is_skipped(item))
    + self._skipped_bytes = 0
    test_what_ended_while_nobody_reads_is_not_kept
previews take the space of durable events (rule 10)
    - if self.bytes + chars > self._limit_bytes // 2:
    + if False:
    test_previews_are_lost_first_and_a_durable_event_that_does_not_fit_is_refused

in transport/server/connection.py, by transport/server/test_connection.py
outcomes for a client that does not read have no bound (docs/reference/wire.md)
    - if isinstance(command, _LARGE_ANSWERS) and not self.outbox.has_room:
    + if False:
    test_outcomes_wait_in_little_memory_for_a_client_that_does_not_read

in transport/server/subscription.py, by transport/server/test_connection.py
the offset of a block begins anew when another block went on (docs/reference/wire.md)
    - self._offset = self._offsets.get((preview.index, type(preview)), 0)
    + self._offset = 0
    test_an_offset_counts_the_characters_of_its_own_block_also_when_blocks_interleave

in transport/server/connection.py, by transport/server/test_connection.py
an unsubscribe does not find a subscription that waits (docs/reference/wire.md)
    - self._starting.pop(command.subscription, None)
    + pass
    test_an_unsubscribe_ends_a_subscription_that_waits_for_its_session

in transport/client/link.py, by transport/client/test_link.py
a client goes on to get events that nobody asked for (docs/reference/wire.md)
    - self._leave(message.subscription)
    + self.unsubscribe(message.subscription)
    test_events_that_nobody_asked_for_are_unsubscribed_though_that_was_answered_before

in transport/server/keepalive.py, by transport/server/test_keepalive.py
a peer is dropped while it reads a large frame (docs/reference/wire.md)
    - if ping_time is not None and taken_now > taken_before:
    + if False:
    test_a_peer_that_reads_a_large_frame_is_waited_for_until_it_reads_no_more

in transport/client/link.py, by transport/client/test_link.py
a client gives up while a large frame comes (docs/reference/wire.md)
    - if self._heard or progress != progress_before:
    + if self._heard:
    test_a_client_waits_for_a_large_frame_as_long_as_parts_of_it_come
""")
