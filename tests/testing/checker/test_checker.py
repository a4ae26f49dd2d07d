"""The checker on recordings that were broken by hand: it names exactly the violation in each."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from llmsession.compaction.view.view import View
from llmsession.errors import InvalidInput
from llmsession.testing.checker import checker
from llmsession.testing.checker.checker import Violation, check
from llmsession.testing.recording.entries import (
    Abandoned,
    End,
    Ended,
    Entry,
    HistoryRead,
    Invoked,
    LeftBehind,
    Logged,
    ObservedEvent,
    OutcomeSeen,
    Recording,
    Refused,
    Requested,
    Returned,
    StateRead,
    SubscriptionLog,
    decode_lines,
    encode_lines,
)
from llmsession.turns import records as r
from llmsession.turns.usage import Usage
from tests.testing.recordings import (
    SESSION,
    answers,
    asking,
    kept_promises,
    offers,
    script,
    with_log,
)

E = TypeVar("E", bound=Entry)


def changed(
    kind: type[E], where: Callable[[E], bool] = lambda entry: True, **fields: Any
) -> Recording:
    """The good recording with the first *kind* that *where* is true of changed."""
    entries = list(kept_promises().entries)
    at = next(i for i, e in enumerate(entries) if isinstance(e, kind) and where(e))
    entries[at] = msgspec.structs.replace(entries[at], **fields)
    return Recording(entries)


def without(where: Callable[[Entry], bool]) -> Recording:
    return Recording(entry for entry in kept_promises().entries if not where(entry))


def also(*entries: Entry) -> Recording:
    return Recording([*kept_promises().entries, *entries])


def broken(recording: Recording) -> set[int]:
    return {violation.invariant for violation in check(recording)}


def is_call(entry: Entry) -> bool:
    return isinstance(entry, Invoked | Returned)


def only(recording: Recording) -> Violation:
    (violation,) = check(recording)
    return violation


def replaced(records: Sequence[r.Record], place: int, /, **fields: Any) -> list[r.Record]:
    return [
        msgspec.structs.replace(record, **fields) if i == place else record
        for i, record in enumerate(records)
    ]


def test_a_record_in_which_every_promise_was_kept_has_no_violation() -> None:
    assert check(kept_promises()) == ()
    assert check(with_log(lambda records: records)) == ()


def test_a_record_survives_its_lines() -> None:
    recording = kept_promises()
    assert decode_lines(encode_lines(recording.entries)).entries == recording.entries


def test_a_line_that_is_no_entry_is_named() -> None:
    with pytest.raises(InvalidInput, match="line 2"):
        decode_lines([b'{"entry":"left"}', b'{"entry":"other"}'])


SEEN = next(entry.seen for entry in kept_promises().entries if isinstance(entry, SubscriptionLog))
ABORTED_3 = (End(2, "aborted", "interrupt"), End(3, "aborted", "interrupt"))
FAILED_3 = r.TurnFailed(turn=3, cause="invalid_request", error="V1", usage=Usage())
FRONTIER_2 = r.CompactionApplied(
    policy="p", reason="r", compacted_before=2, shown_results={}, tokens_before=20, tokens_after=10,
)  # fmt: skip
PREVIEW = ObservedEvent(0, "", 3, 1, 1)
OLD_ATTEMPT = (*SEEN[:-1], ObservedEvent(0, "", 3, 1, 2), PREVIEW, SEEN[-1])
ANSWERED = kept_promises().sessions[SESSION].returned[1][0]
OTHER_RECORD = (msgspec.structs.replace(SEEN[0], digest="other"), *SEEN[1:])


def interrupted(**fields: Any) -> Recording:
    """The good recording with another answer to its interrupt."""
    return changed(Returned, lambda answer: answer.call == 4, **fields)


def appended(*records: r.Record) -> Recording:
    return with_log(lambda log: [*log, *records])


def rewritten(place: int, **fields: Any) -> Recording:
    """The recording with other *fields* in the record at *place* of its log."""
    return with_log(lambda log: replaced(log, place, **fields))


VIOLATING: dict[str, tuple[int, Recording]] = {
    "a history whose message objects changed": (
        1,
        changed(HistoryRead, lambda read: read.seq == 12, messages=(9, 2, 3, 4, 5, 6)),
    ),
    "a turn that never ended": (2, with_log(lambda log: log[:-1])),
    "an event of a turn after its end": (2, appended(r.StepCompleted(turn=3, step=4))),
    "a preview after the turn's end": (2, changed(SubscriptionLog, seen=(*SEEN, PREVIEW))),
    "a preview of an attempt that is over": (2, changed(SubscriptionLog, seen=OLD_ATTEMPT)),
    "an outcome that the log does not have": (2, changed(OutcomeSeen, status="failed")),
    "another history after a dropped turn": (
        3,
        changed(HistoryRead, lambda read: read.seq == 10, history=77),
    ),
    "an interrupt that says aborted of a committed turn": (
        3,
        interrupted(ended=ABORTED_3, seq=12),
    ),
    "an interrupt that says kept of a turn that ended by itself": (
        3,
        interrupted(turn=1, result="kept", ended=()),
    ),
    "a request that was sent with a violation": (
        4,
        changed(Requested, violations=("V4 messages[1]: no result",)),
    ),
    "a turn that built an invalid request": (4, with_log(lambda log: [*log[:-1], FAILED_3])),
    "a published record that is not in the store": (5, changed(SubscriptionLog, seen=OTHER_RECORD)),
    # As if the interrupt had come after the third send, which it did not end.
    "a queued turn that an interrupt left open": (
        7,
        changed(Invoked, lambda call: call.command == "interrupt", order=13),
    ),
    "a compaction that frees nothing": (9, rewritten(6, tokens_after=2000)),
    "a compaction past the end": (9, rewritten(6, compacted_before=99)),
    "a compaction longer than its source": (
        9,
        rewritten(6, shown_results={"a": "longer " * 1000}),
    ),
    "a compaction that shows what was never offered": (
        9,
        rewritten(6, shown_results={"never_offered": "x"}),
    ),
    "a frontier that goes back": (9, appended(FRONTIER_2)),
    "a request of a step that the log does not have": (
        10,
        changed(Requested, lambda sent: sent.turn == 3, step=9),
    ),
    "a task that was left behind": (11, changed(LeftBehind, after_exit=("llmsession s0",))),
    "a stream that was left behind": (11, changed(LeftBehind, open_streams=2)),
    "a live state past the end of the log": (12, changed(StateRead, seq=40)),
    "a call that is answered twice": (13, rewritten(3, answers=answers("a", "b", "a"))),
    "a gap in the log": (
        13,
        without(lambda entry: isinstance(entry, Logged) and entry.seq == 8),
    ),
    "results out of call order": (13, rewritten(2, calls=offers("b", "a"))),
    "a caller that was answered twice": (
        13,
        also(ANSWERED),
    ),
    "a send that was told another turn": (
        13,
        changed(Returned, lambda answer: answer.call == 1, turn=2),
    ),
    "turns that are not numbered in the order of their calls": (
        13,
        changed(Invoked, lambda call: call.call == 1, order=10),
    ),
    "a result that was taken and is not in the log": (
        13,
        changed(Invoked, lambda call: call.call == 2, answers=(("a", "another digest"),)),
    ),
    "a subscriber that missed a record": (
        13,
        changed(SubscriptionLog, seen=(*SEEN[:3], *SEEN[4:])),
    ),
    "a subscriber that missed the last record": (13, changed(SubscriptionLog, seen=SEEN[:-1])),
    "a subscriber that was never told of the end": (13, changed(SubscriptionLog, ending="stuck")),
}


@pytest.mark.parametrize(("invariant", "recording"), VIOLATING.values(), ids=list(VIOLATING))
def test_the_checker_names_the_invariant_that_was_violated(
    invariant: int, recording: Recording
) -> None:
    assert broken(recording) == {invariant}


def test_a_subscriber_that_vanished_may_have_missed_the_last_record() -> None:
    assert broken(changed(SubscriptionLog, seen=SEEN[:-1], ending="vanished")) == set()


# 1: history only grows


def test_a_compaction_that_made_another_history_breaks_1() -> None:
    # The second reading comes after the compaction; the others have to follow it.
    recording = Recording(
        msgspec.structs.replace(entry, history=99)
        if isinstance(entry, HistoryRead) and 7 <= entry.seq <= 10
        else entry
        for entry in kept_promises().entries
    )
    assert broken(recording) == {1}
    assert [entry for entry in only(recording).proof if isinstance(entry, HistoryRead)]


# 2: one terminal event


def test_two_terminal_events_of_one_turn_break_2() -> None:
    aborted = r.TurnAborted(turn=3, reason="closed", usage=Usage())
    violation = only(with_log(lambda records: [*records, aborted]))
    assert violation.invariant == 2
    assert {entry.seq for entry in violation.proof if isinstance(entry, Logged)} == {9, 11, 12, 13}


# 4: valid requests


def test_a_committed_call_without_its_result_breaks_4() -> None:
    # The assistant asked for a and b; the log offers only a, so b is never settled.
    recording = with_log(
        lambda records: replaced(replaced(records, 2, calls=offers("a")), 3, answers=answers("a"))
    )
    assert 4 in broken(recording)
    assert broken(recording) <= {4, 13}  # the caller was told that b was taken


# 5 and 6: what the log holds


def test_an_epoch_that_decreases_breaks_6() -> None:
    entries = []
    for entry in kept_promises().entries:
        if isinstance(entry, Logged):
            record = r.decode_record(bytes(entry.body))
            record = msgspec.structs.replace(record, epoch=1 if record.seq == 12 else 2)
            entry = msgspec.structs.replace(entry, body=msgspec.Raw(r.encode_record(record)))
        if not isinstance(entry, StateRead | SubscriptionLog):
            entries.append(entry)
    assert broken(Recording(entries)) == {6}


# 7: what an interrupt covers


def test_a_turn_that_was_aborted_by_an_earlier_interrupt_breaks_7() -> None:
    recording = changed(Invoked, lambda call: call.command == "interrupt", order=8)
    violation = only(recording)
    assert violation.invariant == 7
    assert {e.order for e in violation.proof if isinstance(e, Invoked)} == {8, 9}


def test_a_turn_replaced_by_nothing_breaks_7() -> None:
    entries = []
    for entry in with_log(lambda records: replaced(records, 9, reason="replaced")).entries:
        if getattr(entry, "call", 0) != 4:
            entries.append(entry)
    assert broken(Recording(entries)) == {7}


# 8: answered in time


def test_an_interrupt_that_took_too_long_breaks_8() -> None:
    recording = changed(Returned, lambda answer: answer.call == 4, at=17.0)
    assert broken(recording) == {8}
    assert check(recording, margin_s=10.0) == ()


def test_what_an_interrupt_may_take_grows_with_the_lag_of_the_event_loop() -> None:
    slow = changed(Returned, lambda answer: answer.call == 4, at=17.0).entries
    lag = msgspec.structs.replace(LeftBehind(), lag_s=1.2)
    assert check(Recording(lag if isinstance(e, LeftBehind) else e for e in slow)) == ()


def test_an_interrupt_that_was_answered_before_the_end_was_durable_breaks_8() -> None:
    recording = changed(Returned, lambda answer: answer.call == 4, seq=9)
    assert 8 in broken(recording)
    assert broken(recording) <= {7, 8}


# 9: compactions


def test_a_frontier_that_an_abort_left_behind_breaks_9(monkeypatch: Any) -> None:
    step: list[r.Record] = [
        r.ToolsRequested(turn=2, step=1, reply=asking("c"), calls=offers("c")),
        r.ToolsAnswered(turn=2, step=1, answers=answers("c")),
        r.StepCompleted(turn=2, step=1),
        r.CompactionApplied(
            policy="p", reason="r", compacted_before=7, shown_results={"b": "short", "c": "short"},
            tokens_before=2000, tokens_after=1000,
        ),
    ]  # fmt: skip

    def change(records: list[r.Record]) -> list[r.Record]:
        return [*records[:6], *records[7:9], *step, *records[9:]]

    def nines() -> set[int]:
        # The answers of the callers were read at other places of the log.
        return {9} & broken(Recording(e for e in with_log(change).entries if not is_call(e)))

    assert nines() == set()
    monkeypatch.setattr(View, "clamped", lambda view, length: view)
    assert nines() == {9}


def test_a_compaction_that_was_applied_while_a_reply_streamed_breaks_9() -> None:
    # The last reply was asked for at 0.0, before the compaction, and logged after it.
    def change(records: Sequence[r.Record]) -> list[r.Record]:
        applied = replaced(records, 6, at=5.0)
        return [*applied[:7], *(msgspec.structs.replace(each, at=6.0) for each in applied[7:])]

    assert broken(with_log(change)) == {9}


def test_a_wall_clock_that_was_put_back_is_no_reply_that_streamed() -> None:
    # The last reply was logged at 0.0: the clock went back since the compaction at 5.0.
    assert broken(with_log(lambda records: replaced(records, 6, at=5.0))) == set()


def test_a_wall_clock_that_passes_its_old_time_again_says_nothing_of_a_reply_either() -> None:
    # Back to 4.0 behind the compaction at 5.0, and past it again with the last reply.
    def change(records: Sequence[r.Record]) -> list[r.Record]:
        applied = replaced(replaced(records, 6, at=5.0), 7, at=4.0)
        return [*applied[:8], *(msgspec.structs.replace(each, at=6.0) for each in applied[8:])]

    assert broken(with_log(change)) == set()


# 10: requests are projections


def test_a_request_that_is_not_the_projection_of_the_log_breaks_10() -> None:
    violation = only(changed(Requested, lambda sent: sent.turn == 3, digest="other"))
    assert violation.invariant == 10
    assert [entry.turn for entry in violation.proof if isinstance(entry, Requested)] == [3]


def test_a_prefix_that_changes_without_an_event_breaks_10(monkeypatch: Any) -> None:
    from llmsession.testing.checker import requests as check_requests

    # The compaction lies between turn 1 and turn 2; without it nothing says why.
    monkeypatch.setattr(check_requests, "_BREAKS_PREFIX", (r.TurnAborted,))
    violation = only(kept_promises())
    assert violation.invariant == 10
    assert "prefix" in violation.text


# 11: nothing is left behind


def test_a_tool_that_still_ran_and_was_not_named_breaks_11() -> None:
    violation = only(changed(Ended, still_running=()))
    assert (violation.invariant, violation.session) == (11, SESSION)


# 12: the fold is the state


def test_a_live_state_that_is_not_the_fold_breaks_12() -> None:
    read = next(e for e in kept_promises().entries if isinstance(e, StateRead))
    violation = only(changed(StateRead, parts=read.parts | {"view": "other", "usage": "other"}))
    assert violation.invariant == 12
    assert "usage, view" in violation.text


# 13: ids, order, answers


def test_a_turn_number_that_is_used_again_breaks_13() -> None:
    again = replaced(script(), 1, body=msgspec.Raw(b'[{"type":"text","text":"t9: x"}]'))
    recording = with_log(lambda records: [*records, again[1]])
    # What has ended was opened again and did not end, so that is broken, too.
    assert broken(recording) == {2, 13}
    assert check(recording)[0].invariant == 13


def test_a_call_id_that_is_used_again_breaks_13() -> None:
    def change(records: list[r.Record]) -> list[r.Record]:
        asked = msgspec.structs.replace(records[2], turn=3)
        done = r.StepCompleted(turn=3, step=1)
        return [*records[:-1], asked, done, records[-1]]

    assert broken(with_log(change)) == {13}


@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_caller_that_was_never_answered_breaks_13(call: int) -> None:
    recording = without(lambda entry: isinstance(entry, Returned) and entry.call == call)
    violation = only(recording)
    assert violation.invariant == 13
    assert violation.proof == (kept_promises().sessions[SESSION].invoked[call],)


def test_an_actor_that_failed_breaks_13_and_says_so() -> None:
    text = "the actor of session 's0' failed: KeyError(3)"
    failed = (
        Invoked(session=SESSION, call=9, command="clear", order=20),
        Refused(session=SESSION, call=9, error="SessionClosed", text=text, order=21),
    )
    violation = only(also(*failed))
    assert (violation.invariant, violation.text) == (13, text)


def test_a_send_that_may_have_been_accepted_early_or_late_is_not_put_in_order() -> None:
    # Nobody knows whether the abandoned call was refused and its repeat accepted.
    early = (
        Invoked(session=SESSION, call=9, command="send", token="t3", order=0),
        Abandoned(session=SESSION, call=9, order=0),
    )
    assert check(also(*early)) == ()


def test_a_send_that_was_accepted_twice_breaks_13() -> None:
    def change(records: list[r.Record]) -> list[r.Record]:
        again = msgspec.structs.replace(records[8], turn=4)
        return [*records, again, r.TurnAborted(turn=4, reason="closed", usage=Usage())]

    assert broken(with_log(change)) == {13}


VALUES = ("violation", "entries", "fingerprints")


def test_the_checker_imports_values_and_folds_only() -> None:
    folder = Path(checker.__file__).parent
    values = folder.parent / "recording"
    allowed = (
        "llmsession.turns",
        "llmsession.compaction",
        "llmsession.session.log.state",
        "llmsession.session.log.redaction",
    )
    imported = {
        node.module
        for path in (*folder.glob("*.py"), *(values / f"{name}.py" for name in VALUES))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("llm")
    }
    assert {name for name in imported if not name.startswith(allowed)} == {"llmsession.errors"}
