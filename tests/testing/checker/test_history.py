"""The checker on logs with forks, rewinds, forgettings and imports: kept, and broken by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from llmsession.session.log.redaction import Redaction
from llmsession.session.log.state import fold
from llmsession.testing.checker.checker import check
from llmsession.testing.recording.entries import (
    Entry,
    Invoked,
    Logged,
    ObservedEvent,
    Recording,
    Returned,
    Rewritten,
    StateRead,
    SubscriptionLog,
)
from llmsession.testing.recording.fingerprints import digest, state_parts
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage
from tests.testing.recordings import (
    SESSION,
    answers,
    asking,
    kept_promises,
    log_of,
    offers,
    reply,
    said,
    script,
    stamped,
    with_log,
)


def committed(turn: int) -> list[r.Record]:
    return [
        r.TurnAccepted(turn=turn, body=said(f"more {turn}"), started=True),
        r.TurnCommitted(turn=turn, stop_reason="end_turn", usage=Usage(), reply=reply("so")),
    ]


def told(*more: r.Record, entries: tuple[Entry, ...] = ()) -> set[int]:
    """The invariants that the script's log with *more* behind it breaks."""
    recording = with_log(lambda records: [*records, *more])
    return {violation.invariant for violation in check(Recording([*recording.entries, *entries]))}


FORGOTTEN = r.ConversationForgotten(before=3, generation=2, edge=9)


def forgetting(records: list[r.Record]) -> tuple[list[r.Record], Redaction]:
    """*records*, of which the last forgets, and what is owed then."""
    state = fold(SESSION, records)
    assert state.pending_redaction is not None
    return records, state.pending_redaction


def rewritten(records: list[r.Record], pending_redaction: Redaction) -> list[Entry]:
    pairs = [(record, pending_redaction.apply(record)) for record in records]
    return [
        Rewritten(session=SESSION, seq=kept.seq, body=msgspec.Raw(r.encode_record(kept)))
        for record, kept in pairs
        if kept != record
    ]


def forgotten() -> tuple[list[r.Record], list[Entry]]:
    """A log that forgets what was before turn 3, and what stands in place of its records."""
    whole = stamped([*script(), FORGOTTEN, r.RecordsRedacted(), *committed(4)])
    _, pending_redaction = forgetting(whole[:13])
    return whole, rewritten(whole, pending_redaction)


def calls() -> list[Entry]:
    kinds = (Invoked, Returned)
    entries = kept_promises().entries
    return [each for each in entries if isinstance(each, kinds)] + list(entries[:1])


# Kept.


def test_a_rewind_a_forgetting_and_a_clear_between_turns_break_nothing() -> None:
    rewound = r.ConversationRewound(to=1, generation=2)
    assert told(rewound, *committed(4)) == set()
    assert told(r.ConversationCleared(generation=2), *committed(4)) == set()
    whole, now = forgotten()
    assert check(Recording([*calls(), *log_of(whole), *now])) == ()


def test_a_fork_ends_the_turns_that_were_open_where_it_left() -> None:
    forked = r.SessionForked(session="f", parent=SESSION, turn_kept=1, config=msgspec.Raw(b"{}"))
    recording = with_log(lambda records: [*records[:9], forked, *committed(4)])
    entries = [each for each in recording.entries if not isinstance(each, Invoked | Returned)]
    assert check(Recording(entries)) == ()


def imported(turn: int, *blocks: Any) -> r.TurnImported:
    message = Message(id="", session=SESSION, turn=turn, role="user", body=said("hello"))
    asked = Message(id="", session=SESSION, turn=turn, role="assistant", body=asking("z").body)
    return r.TurnImported(turn=turn, messages=(message, *((asked,) if blocks else ())))


def test_imported_turns_are_accepted_and_committed_in_one() -> None:
    assert told(imported(4), imported(7), *committed(8)) == set()


def test_a_subscriber_may_read_a_record_as_it_was_or_as_it_is_now() -> None:
    whole, now = forgotten()
    for entries in (log_of(whole)[:8], now):
        sightings = tuple(
            ObservedEvent(each.seq, digest(each.body))
            for each in entries
            if isinstance(each, Logged | Rewritten)
        )
        after = sightings[0].seq - 1
        watched = SubscriptionLog(
            session=SESSION, subscriber=1, after=after, cursor=sightings[-1].seq,
            ending="vanished", seen=sightings,
        )  # fmt: skip
        if [sighting.seq for sighting in sightings] == list(
            range(after + 1, after + 1 + len(sightings))
        ):
            assert check(Recording([*calls(), *log_of(whole), *now, watched])) == ()
    strange = SubscriptionLog(
        session=SESSION, subscriber=1, after=1, cursor=2, ending="vanished",
        seen=(ObservedEvent(2, "0" * 16),),
    )  # fmt: skip
    found = check(Recording([*calls(), *log_of(whole), *now, strange]))
    assert {violation.invariant for violation in found} == {5}


# Broken.


def test_a_generation_that_is_left_out_breaks_1() -> None:
    assert told(r.ConversationRewound(to=1, generation=3)) == {1}
    assert told(r.ConversationCleared(generation=1)) == {1}


def test_an_imported_number_that_was_used_breaks_13() -> None:
    assert told(imported(2)) == {13}


def test_an_imported_call_without_its_result_breaks_4() -> None:
    assert told(imported(4, "with a call")) == {4}


def test_what_was_forgotten_and_is_in_the_log_breaks_12() -> None:
    whole, now = forgotten()
    left = [each for each in now if isinstance(each, Rewritten) and each.seq != 2]
    found = check(Recording([*calls(), *log_of(whole), *left]))
    assert {violation.invariant for violation in found} == {12}
    assert any("record 2 says what was to be forgotten" in violation.text for violation in found)
    assert {b.invariant for b in check(Recording([*calls(), *log_of(whole)]))} == {12}


def test_a_rewritten_log_that_folds_to_something_else_breaks_12() -> None:
    whole, now = forgotten()
    other = msgspec.structs.replace(whole[14], body=said("another question"))
    astray = Rewritten(session=SESSION, seq=other.seq, body=msgspec.Raw(r.encode_record(other)))
    found = check(Recording([*calls(), *log_of(whole), *now, astray]))
    assert {violation.invariant for violation in found} == {12}
    assert "what is left of the log differs in history" in found[-1].text
    torn = Rewritten(session=SESSION, seq=2, body=msgspec.Raw(b'{"kind":"records.redacted"}'))
    found = check(Recording([*calls(), *log_of(whole), *now, torn]))
    assert any("cannot be folded" in violation.text for violation in found)


def test_a_state_that_was_read_before_a_forgetting_is_held_against_the_log_as_it_was() -> None:
    whole, now = forgotten()
    read = StateRead(session=SESSION, seq=9, parts=state_parts(fold(SESSION, whole[:9])))
    assert check(Recording([*calls(), *log_of(whole), *now, read])) == ()


def test_a_turn_that_a_rewind_ended_was_ended_by_something() -> None:
    """An interrupt that a command on the whole history made is a cause, where it said so."""
    whole = stamped(script())
    entries = [
        each
        for each in kept_promises().entries
        if not (isinstance(each, Invoked | Returned) and each.call == 4)
    ]
    assert {violation.invariant for violation in check(Recording(entries))} == {7}
    for busy, broken in (("interrupt", set()), ("reject", {7})):
        rewind = Invoked(
            session=SESSION, call=4, command="rewind", when_busy=busy, order=11, at=11.0
        )
        answer = Returned(session=SESSION, call=4, seq=10, order=13, at=11.1)
        found = check(Recording([*entries, rewind, answer]))
        assert {violation.invariant for violation in found} == broken
    assert len(whole) == 12


def test_results_that_are_forgotten_are_out_of_the_log_with_their_calls() -> None:
    more: list[r.Record] = [
        r.TurnAccepted(turn=4, body=said("t4"), started=True),
        r.ToolsRequested(turn=4, step=1, reply=asking("y"), calls=offers("y")),
        r.ToolsAnswered(turn=4, step=1, answers=answers("y")),
        r.StepCompleted(turn=4, step=1),
        r.TurnCommitted(turn=4, stop_reason="end_turn", usage=Usage(), reply=reply("ok")),
        r.ConversationCleared(generation=2, purge=True),
    ]
    whole, pending_redaction = forgetting(stamped([*script(), *more]))
    assert {"a", "b", "y"} == set(pending_redaction.calls)
    done = stamped([*whole, r.RecordsRedacted()])
    assert check(Recording([*calls(), *log_of(done), *rewritten(done, pending_redaction)])) == ()
