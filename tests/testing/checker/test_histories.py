"""The checker of histories: it accepts what a right service does, and names each kind of fault."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.testing.checker.histories import (
    Ending,
    History,
    LogRecord,
    Operation,
    SeenRecord,
    SubscriptionHistory,
    check_history,
    log_record,
)

replace = msgspec.structs.replace
ABORTED = Ending(2, "aborted", "interrupt")


def operation(kind: Any, invoked: float, completed: float | None, **fields: Any) -> Operation:
    fields = {"client": "c1", "session": "s", "result": "ok", **fields}
    return Operation(kind=kind, invoked=invoked, completed=completed, **fields)


def records(*entries: tuple[int, str, int | None, str, str]) -> tuple[LogRecord, ...]:
    return tuple(
        LogRecord(
            seq=seq,
            epoch=epoch,
            kind=kind,
            turn=turn,
            commands=(command,) if command else (),
            stop_reason=reason,
        )
        for seq, (epoch, kind, turn, command, reason) in enumerate(entries, 1)
    )


LOG = records(
    (1, "session.created", None, "", ""),
    (1, "turn.accepted", 1, "k1", ""),
    (1, "turn.committed", 1, "", "end_turn"),
    (2, "turn.accepted", 2, "k2", ""),
    (2, "turn.aborted", 2, "", "interrupt"),
    (3, "turn.accepted", 3, "k3", ""),
    (3, "turn.committed", 3, "", "end_turn"),
)
SEEN = SubscriptionHistory(
    client="c2",
    session="s",
    after=1,
    seen=tuple(
        SeenRecord(30.0 + record.seq, record.seq, record.epoch, record.kind, record.turn)
        for record in LOG[1:]
    ),
    is_complete=True,
)
OPERATIONS = {
    "create": operation("create", 0, 1),
    "send": operation("send", 2, 3, command_id="k1", turn=1, expected_head=0),
    "repeat": operation("send", 2.5, 4, client="c2", command_id="k1", turn=1),
    "outcome": operation("outcome", 4, 5, turn=1, endings=(Ending(1, "committed", "end_turn"),)),
    "head": operation("head", 6, 7, head=3, epoch=1),
    "lost": operation("send", 8, None, command_id="k2", result="unknown"),
    "refused": operation("send", 8, 9, command_id="k9", result="failed"),
    "interrupt": operation("interrupt", 10, 12, turn=2, answer="aborted", endings=(ABORTED,)),
    "too_late": operation("interrupt", 10, 12, turn=1, answer="too_late"),
    "last": operation("send", 13, 14, command_id="k3", turn=3, expected_head=1),
    "list": operation("list", 20, 21, session="", listed=("s", "other")),
}


def history(
    log: tuple[LogRecord, ...] = LOG,
    seen: SubscriptionHistory = SEEN,
    without: str = "",
    **changed: Operation,
) -> History:
    operations = {**OPERATIONS, **changed}
    operations.pop(without, None)
    return History(tuple(operations.values()), (seen,), {"s": log})


def test_a_right_history_has_no_finding() -> None:
    assert check_history(history()) == ()


def changed_log(seq: int, **fields: Any) -> tuple[LogRecord, ...]:
    return (*LOG[: seq - 1], replace(LOG[seq - 1], **fields), *LOG[seq:])


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {name: replace(OPERATIONS[name], **fields)}


def seen(change: Callable[[list[SeenRecord]], Any]) -> dict[str, Any]:
    kept = list(SEEN.seen)
    change(kept)
    return {"seen": replace(SEEN, seen=tuple(kept))}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "an acknowledged send is lost": (
        {"log": changed_log(6, commands=())},
        "the send k3 of c1 was acknowledged as turn 3, and is not in the log",
    ),
    "a send is there twice": (
        {"log": changed_log(6, commands=("k3", "k2"))},
        "the send k2 of c1 is in the log more than once: in the records 4, 6",
    ),
    "a send that failed is there": (
        {"log": changed_log(6, commands=("k3", "k9"))},
        "the send k9 failed for certain, and is in record 6",
    ),
    "a send got another turn": (
        {"without": "repeat", **changed("send", turn=3)},
        "the send k1 of c1 was acknowledged as turn 3, and the log has it as 1",
    ),
    "a repeat got another turn": (
        changed("repeat", turn=3),
        "the command k1 was answered twice: turn 1 to c1, and turn 3 to c2",
    ),
    "the head had moved": (
        changed("last", expected_head=2),
        "the send k3 of c1 was to follow turn 2, and follows turn 1",
    ),
    "a record is missing": (
        {"log": (*LOG[:2], *LOG[3:])},
        "record 4 is at position 3 of the log",
    ),
    "an epoch falls": (
        {"log": changed_log(5, epoch=1)},
        "record 5 is of epoch 1, after a record of epoch 2: a fenced owner wrote it",
    ),
    "a turn has no end": (
        {"log": changed_log(7, kind="step.completed")},
        "turn 3 has no end",
    ),
    "a turn has two ends": (
        {"log": changed_log(7, turn=2)},
        "record 7 (turn.committed) is of turn 2, which ended in record 5",
    ),
    "a turn goes on after its end": (
        {"log": changed_log(6, kind="turn.started", turn=2)},
        "record 6 (turn.started) is of turn 2, which ended in record 5",
    ),
    "a turn was never accepted": (
        {"log": changed_log(7, turn=9)},
        "record 7 (turn.committed) is of turn 9, which nobody accepted",
    ),
    "a turn is left out": (
        {"log": changed_log(6, turn=4)},
        "turn 4 is accepted in record 6, after turn 2",
    ),
    "an outcome is not the end": (
        changed("outcome", endings=(Ending(1, "aborted", "crash"),)),
        "the outcome of c1 was answered that turn 1 aborted (crash); in record 3 it is committed"
        " (end_turn)",
    ),
    "an outcome has no end": (
        changed("outcome", endings=(Ending(8, "aborted", "crash"),)),
        "the outcome of c1 was answered that turn 8 aborted (crash); it has no end",
    ),
    "an interrupt was answered of a turn that was committed": (
        changed("interrupt", turn=1, endings=()),
        "the interrupt of c1 was answered 'aborted' of turn 1; record 3 is turn.committed",
    ),
    "an interrupt kept what was aborted": (
        changed("interrupt", answer="kept", endings=()),
        "the interrupt of c1 was answered 'kept' of turn 2; record 5 is turn.aborted",
    ),
    "an interrupt was too late for a turn without an end": (
        changed("too_late", turn=8),
        "the interrupt of c1 was answered 'too_late' of turn 8; the log has no end of it",
    ),
    "a head is not in the log": (
        changed("head", head=9),
        "c1 read that record 9 is the newest; the log has 7",
    ),
    "a head is of an older epoch than its record": (
        changed("head", epoch=0),
        "c1 read epoch 0 at record 3, which is of epoch 1",
    ),
    "an owner writes after the fence": (
        changed("head", epoch=3),
        "c1 read epoch 3 at record 3, and then an owner of epoch 2 wrote record 4",
    ),
    "a subscriber misses an event": (
        seen(lambda seen: seen.pop(2)),
        "the subscriber c2 got record 5 after record 3, and none between",
    ),
    "a subscriber gets an event again": (
        seen(lambda seen: seen.insert(2, seen[1])),
        "the subscriber c2 got record 3 after record 3: again or too late",
    ),
    "a subscriber misses the last event": (
        seen(lambda seen: seen.pop()),
        "the subscriber c2 ended after record 6, and record 7 ended a turn",
    ),
    "a subscriber saw what was not written": (
        seen(lambda seen: seen.append(SeenRecord(40.0, 8, 3, "turn.accepted", 4))),
        "the subscriber c2 got record 8, and the log ends before it",
    ),
    "a subscriber saw the record of a fenced owner": (
        seen(lambda seen: seen.insert(2, replace(seen.pop(2), epoch=1))),
        "the subscriber c2 got record 4 as turn.accepted of turn 2 and epoch 1; it is"
        " turn.accepted of turn 2 and epoch 2",
    ),
    "a send is ordered before one that was acknowledged earlier": (
        changed("last", completed=1.5, invoked=1),
        "not linearizable: c1 invoked the send that is record 2, after the send of c1 had shown"
        " record 6",
    ),
    "a lost send takes effect before it was invoked": (
        changed("lost", invoked=16),
        "not linearizable: c1 invoked the send that is record 4, after the send of c1 had shown"
        " record 6",
    ),
    "a head goes back": (
        changed("head", invoked=16, completed=17),
        "not linearizable: c1 invoked a read that found record 3 the newest, after the send of c1"
        " had shown record 6",
    ),
    "a head is older than what a subscriber saw": (
        changed("head", invoked=40, completed=41, head=6, epoch=3),
        "not linearizable: c1 invoked a read that found record 6 the newest, after the subscriber"
        " c2 had shown record 7",
    ),
    "an interrupt ended a turn that had ended before": (
        changed("interrupt", invoked=15, completed=16),
        "not linearizable: c1 invoked the interrupt that is record 5, after the send of c1 had"
        " shown record 6",
    ),
    "a list lacks a session": (
        changed("list", listed=("other",)),
        "c1 listed the sessions and did not find it",
    ),
    "a log is lost": ({"log": ()}, "it was used, and the store has no record of it"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str) -> None:
    changes, sentence = FAULTS[fault]
    assert f"session s: {sentence}" in check_history(history(**changes))


def test_an_owner_may_write_after_what_a_complete_subscriber_read() -> None:
    handed_over = LogRecord(seq=8, epoch=3, kind="session.handed_over")
    assert check_history(history(log=(*LOG, handed_over))) == ()


def test_an_operation_without_an_answer_may_have_had_no_effect() -> None:
    lost = operation("send", 0, None, command_id="k8", result="unknown")
    assert check_history(history(nowhere=lost)) == ()


def test_the_head_is_the_turn_that_was_committed_last_not_the_highest() -> None:
    log = records(
        (1, "session.created", None, "", ""),
        (1, "turn.accepted", 1, "k1", ""),
        (1, "turn.accepted", 2, "k2", ""),
        (1, "turn.committed", 2, "", "end_turn"),
        (1, "turn.committed", 1, "", "end_turn"),
        (1, "turn.accepted", 3, "k3", ""),
        (1, "turn.committed", 3, "", "end_turn"),
    )
    send = operation("send", 1, 2, command_id="k3", turn=3, expected_head=1)
    assert check_history(History((send,), (), {"s": log})) == ()


def test_a_repeat_may_be_invoked_long_after_the_turn_is_over() -> None:
    again = operation("send", 50, 51, command_id="k1", turn=1, expected_head=0)
    assert check_history(history(again=again)) == ()


def test_a_record_says_itself_where_it_stands() -> None:
    body = (
        b'{"kind":"turn.aborted","seq":4,"epoch":2,"turn":3,"reason":"crash",'
        b'"commands":[{"id":"k","digest":"d","answer":{}}],"usage":{}}'
    )
    assert log_record(4, 2, body) == LogRecord(
        seq=4, epoch=2, kind="turn.aborted", turn=3, commands=("k",), stop_reason="crash"
    )
    with pytest.raises(ValueError, match="record 5 of epoch 2 says that it is record 4"):
        log_record(5, 2, body)


def random_history(random: Random) -> History:
    """Operations of a session without a fault. Each takes effect at a moment between its invocation
    and its answer; the moments of all are their order in the log."""
    log = [LogRecord(seq=1, epoch=1, kind="session.created")]
    operations = [operation("create", 0, 0)]
    seen: list[SeenRecord] = []
    moments = sorted(random.uniform(1, 100) for _ in range(random.randrange(1, 40)))
    epoch, turn, open_turn = 1, 0, 0

    def append(kind: str, at: float, turn: int, command: str = "", reason: str = "") -> None:
        commands = (command,) if command else ()
        log.append(
            LogRecord(
                seq=len(log) + 1,
                epoch=epoch,
                kind=kind,
                turn=turn,
                commands=commands,
                stop_reason=reason,
            )
        )
        seen_at = max(at + random.expovariate(1.0), seen[-1].at if seen else 0.0)
        seen.append(SeenRecord(seen_at, len(log), epoch, kind, turn))

    for at in moments:
        invoked, completed = at - random.expovariate(0.1), at + random.expovariate(0.1)
        epoch += random.random() < 0.2
        client = random.choice("abc")
        choice = random.random()
        if choice < 0.3:
            read = operation("head", invoked, completed, client=client, head=len(log), epoch=epoch)
            operations.append(read)
        elif open_turn and choice < 0.6:
            append("turn.aborted", at, open_turn, reason="interrupt")
            told = Ending(open_turn, "aborted", "interrupt")
            interrupt = operation(
                "interrupt", invoked, completed, client=client, turn=open_turn, answer="aborted"
            )
            operations.append(replace(interrupt, endings=(told,)))
            open_turn = 0
        elif not open_turn:
            turn += 1
            open_turn = turn
            append("turn.accepted", at, turn, command=f"k{turn}")
            send = operation("send", invoked, completed, client=client, command_id=f"k{turn}")
            is_lost = random.random() < 0.2
            operations.append(
                replace(send, completed=None, result="unknown")
                if is_lost
                else replace(send, turn=turn)
            )
            if random.random() < 0.3:
                again = replace(send, client="again", turn=turn, completed=completed + 1)
                operations.append(replace(again, invoked=at - random.expovariate(0.1)))
    if open_turn:
        append("turn.committed", 100.0, open_turn, reason="end_turn")
    random.shuffle(operations)
    after = random.randrange(1, len(log) + 1)
    watched = SubscriptionHistory(
        client="w", session="s", after=after, seen=tuple(seen[after - 1 :]), is_complete=True
    )
    return History(tuple(operations), (watched,), {"s": tuple(log)})


@given(st.integers(0, 2**32))
def test_random_histories_without_a_fault_are_right(seed: int) -> None:
    assert check_history(random_history(Random(seed))) == ()


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_places_that_real_time_contradicts_are_found_wherever_they_are(
    seed: int, where: int
) -> None:
    """Two changes of the log that were acknowledged one after the other change places."""
    made = random_history(Random(seed))
    log = made.logs["s"]
    sends = {op.command_id: op for op in made.operations if op.kind == "send" and op.turn}
    accepted = [r for r in log if r.kind == "turn.accepted" and r.commands[0] in sends]
    pairs = [
        (one, other)
        for one in accepted
        for other in accepted
        if one.seq < other.seq
        and all(
            (op.completed or 0) < other_op.invoked
            for op in made.operations
            for other_op in made.operations
            if op.command_id == one.commands[0] and other_op.command_id == other.commands[0]
        )
    ]
    if not pairs:
        return
    one, other = pairs[where % len(pairs)]
    swapped = list(log)
    swapped[one.seq - 1] = replace(one, commands=other.commands)
    swapped[other.seq - 1] = replace(other, commands=one.commands)
    turns = {one.commands[0]: other.turn, other.commands[0]: one.turn}
    operations = tuple(
        replace(op, turn=turns[op.command_id]) if op.command_id in turns and op.turn else op
        for op in made.operations
    )
    found = check_history(History(operations, made.subscriptions, {"s": tuple(swapped)}))
    assert any("not linearizable" in sentence for sentence in found)
