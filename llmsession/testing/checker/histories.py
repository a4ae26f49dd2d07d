"""Checks what the clients of a service or a cluster observed against the logs in its store.

In the manner of Jepsen: every operation of every client is recorded with the time of its invocation
and that of its answer, by one clock, together with what each subscriber saw. At the end the log of
each session is read from the store. ``check_history`` compares them. It is pure, knows a record by
its kind, turn and commands only, and shares no code with the sessions that it checks.

Linearizability of a session is decided exactly, and in O(n log n). A search as of Wing and Gong, or
of Lowe, has to find the order in which the operations took effect. Here the log is that order, if
the operations are linearizable at all: a send took effect at its record, and a head that was read
as *h* was read between the records *h* and *h + 1*. So all operations have known places, and an
order of the operations that agrees with the places and with real time exists if and only if no
operation that ended before another one was invoked has a later place. (In a cycle of both orders
the steps by place never go back, so a step in real time has to: that step is the pair.) An
operation that shows a record without a place of its own, as the outcome of a turn does, or an event
that a subscriber saw, only bounds those that are invoked later. An operation without an answer is
bounded from its invocation on, if its command is in the log, and else never took effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "Ending",
    "History",
    "LogRecord",
    "Operation",
    "SeenRecord",
    "SubscriptionHistory",
    "check_history",
    "log_record",
]

OperationKind: TypeAlias = Literal["create", "send", "interrupt", "outcome", "head", "list"]
OperationResult: TypeAlias = Literal["ok", "failed", "unknown"]

_SENT = ("turn.accepted", "steer.accepted")
_ENDS = {"turn.committed": "committed", "turn.aborted": "aborted", "turn.failed": "failed"}
_KEPT = "cancelled"
"""The stop reason of a turn that an interrupt committed early."""


class Ending(msgspec.Struct, frozen=True):
    """How a client was told that a turn ended. ``status`` is ``committed``, ``aborted`` or
    ``failed``."""

    turn: int
    status: str
    stop_reason: str


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of one client. Times are in seconds, by one clock for all clients."""

    client: str
    session: str
    """The session; "" for ``list``."""
    kind: OperationKind
    """``head`` reads the newest record of a session: its status, or its row in the store."""
    invoked: float
    completed: float | None = None
    """When it was answered; None if it was not."""
    result: OperationResult = "unknown"
    """``failed``: certainly without an effect. ``unknown``: perhaps with its effect."""
    command_id: str | None = None
    turn: int | None = None
    """Of a send the turn that it got, of an outcome or an interrupt the turn that it is about."""
    expected_head: int | None = None
    """Of a send: the turn that had to be the last committed one; 0 for none."""
    head: int | None = None
    """Of ``head``: the seq of the newest record."""
    epoch: int | None = None
    """Of ``head``: the epoch of the session's owner then."""
    answer: str = ""
    """Of an interrupt: its result."""
    endings: tuple[Ending, ...] = ()
    """The turns whose ends the answer named."""
    listed: tuple[str, ...] = ()
    """The sessions that ``list`` found."""
    error: str = ""


class SeenRecord(msgspec.Struct, frozen=True):
    """A durable event as a subscriber got it."""

    at: float
    seq: int
    epoch: int
    kind: str
    turn: int | None = None


class SubscriptionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What one subscriber saw, in its order. ``after`` is the cursor that it began at. It
    ``is_complete`` if it read on until every turn had ended."""

    client: str
    session: str
    after: int
    seen: tuple[SeenRecord, ...]
    is_complete: bool = False


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at of one record in the store."""

    seq: int
    epoch: int
    kind: str
    turn: int | None = None
    commands: tuple[str, ...] = ()
    """The ids of the commands that it answers."""
    stop_reason: str = ""
    """Of the end of a turn: as an outcome names it."""


class History(msgspec.Struct, frozen=True):
    """All that was observed. ``logs`` has every record of each session."""

    operations: tuple[Operation, ...]
    subscriptions: tuple[SubscriptionHistory, ...]
    logs: Mapping[str, tuple[LogRecord, ...]]


class _Command(msgspec.Struct):
    id: str


class _Body(msgspec.Struct):
    """The fields of all kinds of records that are looked at, by their names in the JSON."""

    kind: str
    seq: int = 0
    epoch: int = 0
    turn: int | None = None
    commands: tuple[_Command, ...] = ()
    stop_reason: str = ""
    reason: str = ""
    cause: str = ""


def log_record(seq: int, epoch: int, body: bytes) -> LogRecord:
    """The record *body* as the store has it at *seq*, written by the owner of *epoch*. Raises
    ValueError if the record says otherwise, and msgspec.ValidationError if it is none."""
    fields = msgspec.json.decode(body, type=_Body)
    if fields.seq != seq or fields.epoch != epoch:
        raise ValueError(
            f"record {seq} of epoch {epoch} says that it is record {fields.seq} of epoch"
            f" {fields.epoch}"
        )
    return LogRecord(
        seq=seq,
        epoch=epoch,
        kind=fields.kind,
        turn=fields.turn,
        commands=tuple(command.id for command in fields.commands),
        stop_reason=fields.stop_reason or fields.reason or fields.cause,
    )


def check_history(history: History) -> tuple[str, ...]:
    """What is wrong with *history*, each as a sentence; nothing if it is right.

    For each session: an acknowledged send is in the log once, one that failed is not, any other at
    most once; a repeated command got the same answer; every turn ended once, and nothing came after
    its end; epochs never fall, and after the fence that a client read no older one writes; sends,
    heads and ends are linearizable; interrupts and outcomes are what the log says; subscribers saw
    every durable event from their cursor on, once and in order. All turns have to have ended.
    """
    found: list[str] = []
    sessions = {operation.session for operation in history.operations} | set(history.logs)
    for session in sorted(sessions - {""}):
        observed = _Session(
            sorted(
                (each for each in history.operations if each.session == session),
                key=lambda operation: operation.invoked,
            ),
            [each for each in history.subscriptions if each.session == session],
            history.logs.get(session, ()),
        )
        for check in _CHECKS:
            found += (f"session {session}: {sentence}" for sentence in check(observed))
    found += _check_lists(history.operations)
    return tuple(found)


class _Session:
    """What was observed of one session, and where things are in its log."""

    def __init__(
        self,
        operations: Sequence[Operation],
        subscriptions: Sequence[SubscriptionHistory],
        log: Sequence[LogRecord],
    ) -> None:
        self.operations = operations
        self.subscriptions = subscriptions
        self.log = log
        self.answered: dict[str, list[LogRecord]] = {}
        """By command id: the records that answer it."""
        self.accepted: dict[int, list[LogRecord]] = {}
        self.ends: dict[int, list[LogRecord]] = {}
        for record in log:
            for command in record.commands:
                self.answered.setdefault(command, []).append(record)
            if record.turn is not None and record.kind == "turn.accepted":
                self.accepted.setdefault(record.turn, []).append(record)
            if record.turn is not None and record.kind in _ENDS:
                self.ends.setdefault(record.turn, []).append(record)

    def end_of(self, turn: int | None) -> LogRecord | None:
        """The first end of *turn*."""
        return None if turn is None else next(iter(self.ends.get(turn, ())), None)

    def sent_at(self, operation: Operation) -> LogRecord | None:
        """The record of a send."""
        if operation.command_id is not None:
            records = self.answered.get(operation.command_id, ())
        else:
            records = self.accepted.get(operation.turn or 0, ())
        return next((record for record in records if record.kind in _SENT), None)


def _check_log(session: _Session) -> Iterator[str]:
    """Seqs have no gap, epochs never fall, and each turn begins once, ends once, and is over."""
    if not session.log and any(operation.result == "ok" for operation in session.operations):
        yield "it was used, and the store has no record of it"
    for position, record in enumerate(session.log, 1):
        if record.seq != position:
            yield f"record {record.seq} is at position {position} of the log"
            return
    for before, record in pairwise(session.log):
        if record.epoch < before.epoch:
            yield (
                f"record {record.seq} is of epoch {record.epoch}, after a record of epoch"
                f" {before.epoch}: a fenced owner wrote it"
            )
    ended: dict[int, int] = {}
    newest = 0
    for record in session.log:
        turn = record.turn
        if turn is None:
            continue
        if record.kind == "turn.accepted":
            if turn != newest + 1:
                yield f"turn {turn} is accepted in record {record.seq}, after turn {newest}"
            newest = max(newest, turn)
        elif turn > newest:
            yield f"record {record.seq} ({record.kind}) is of turn {turn}, which nobody accepted"
        if turn in ended:
            yield (
                f"record {record.seq} ({record.kind}) is of turn {turn}, which ended in record"
                f" {ended[turn]}"
            )
        elif record.kind in _ENDS:
            ended[turn] = record.seq
    for turn in sorted(session.accepted.keys() - ended.keys()):
        yield f"turn {turn} has no end"


def _check_sends(session: _Session) -> Iterator[str]:
    """Acknowledged sends are in the log once, failed ones never, and others at most once."""
    failed: dict[str, bool] = {}
    for send in session.operations:
        if send.kind != "send":
            continue
        name = f"the send {send.command_id or send.turn} of {send.client}"
        records = [
            record
            for record in session.answered.get(send.command_id or "", ())
            if record.kind in _SENT
        ]
        if send.command_id is not None and len(records) > 1:
            seqs = ", ".join(str(record.seq) for record in records)
            yield f"{name} is in the log more than once: in the records {seqs}"
        if send.result == "ok":
            yield from _check_acknowledged(session, send, name)
        if send.command_id is not None:
            failed[send.command_id] = send.result == "failed" and failed.get(send.command_id, True)
    for command in sorted(command for command in failed if failed[command]):
        for record in session.answered.get(command, ()):
            yield f"the send {command} failed for certain, and is in record {record.seq}"


def _check_acknowledged(session: _Session, send: Operation, name: str) -> Iterator[str]:
    record = session.sent_at(send)
    if record is None:
        yield f"{name} was acknowledged as turn {send.turn}, and is not in the log"
        return
    if record.turn != send.turn:
        yield f"{name} was acknowledged as turn {send.turn}, and the log has it as {record.turn}"
    if send.expected_head is not None:
        # Turns that jump the queue are committed before those with smaller numbers.
        ends = (
            each for each in session.log[: record.seq - 1] if _ENDS.get(each.kind) == "committed"
        )
        head = [0, *(each.turn or 0 for each in ends)][-1]
        if head != send.expected_head:
            yield f"{name} was to follow turn {send.expected_head}, and follows turn {head}"


def _check_repeats(session: _Session) -> Iterator[str]:
    """All answers to one command id are the same."""
    first: dict[str, Operation] = {}
    for operation in session.operations:
        if operation.result != "ok" or operation.command_id is None:
            continue
        earlier = first.setdefault(operation.command_id, operation)
        if (operation.turn, operation.answer) != (earlier.turn, earlier.answer):
            yield (
                f"the command {operation.command_id} was answered twice: {_answer_text(earlier)}"
                f" to {earlier.client}, and {_answer_text(operation)} to {operation.client}"
            )


def _answer_text(operation: Operation) -> str:
    return f"turn {operation.turn}" + (f" {operation.answer}" if operation.answer else "")


def _check_endings(session: _Session) -> Iterator[str]:
    """Outcomes, and those that interrupts name, are the ends in the log."""
    for operation in session.operations:
        if operation.result != "ok":
            continue
        name = f"the {operation.kind} of {operation.client}"
        for ending in operation.endings:
            end = session.end_of(ending.turn)
            told = f"{ending.status} ({ending.stop_reason})"
            if end is None:
                yield f"{name} was answered that turn {ending.turn} {told}; it has no end"
            elif (_ENDS[end.kind], end.stop_reason) != (ending.status, ending.stop_reason):
                yield (
                    f"{name} was answered that turn {ending.turn} {told}; in record {end.seq} it"
                    f" is {_ENDS[end.kind]} ({end.stop_reason})"
                )
        if operation.kind == "interrupt":
            yield from _check_interrupt(session, operation)


def _check_interrupt(session: _Session, interrupt: Operation) -> Iterator[str]:
    if interrupt.turn is None:  # nothing ran; the answer is about sends that waited
        return
    end = session.end_of(interrupt.turn)
    name = f"the interrupt of {interrupt.client}"
    is_right = {
        "aborted": end is not None and end.kind == "turn.aborted",
        "kept": end is not None and (end.kind, end.stop_reason) == ("turn.committed", _KEPT),
        "too_late": end is not None,
        "not_running": end is not None,
    }.get(interrupt.answer, True)
    if not is_right:
        ended = "the log has no end of it" if end is None else f"record {end.seq} is {end.kind}"
        yield f"{name} was answered {interrupt.answer!r} of turn {interrupt.turn}; {ended}"


def _check_heads(session: _Session) -> Iterator[str]:
    """Heads are in the log, and divide it into the epochs up to theirs and from theirs on."""
    last = len(session.log)
    for read in session.operations:
        if read.kind != "head" or read.result != "ok" or read.head is None:
            continue
        if read.head > last:
            yield f"{read.client} read that record {read.head} is the newest; the log has {last}"
        elif read.epoch is not None:
            before, after = session.log[: read.head], session.log[read.head :]
            if before and before[-1].epoch > read.epoch:
                yield (
                    f"{read.client} read epoch {read.epoch} at record {read.head}, which is of"
                    f" epoch {before[-1].epoch}"
                )
            if after and after[0].epoch < read.epoch:
                yield (
                    f"{read.client} read epoch {read.epoch} at record {read.head}, and then an"
                    f" owner of epoch {after[0].epoch} wrote record {after[0].seq}"
                )


def _check_subscribers(session: _Session) -> Iterator[str]:
    """From its cursor on each got every record, once, in order, and as the log has it."""
    for subscription in session.subscriptions:
        name, cursor = f"the subscriber {subscription.client}", subscription.after
        for seen in subscription.seen:
            if seen.seq <= cursor:
                yield f"{name} got record {seen.seq} after record {cursor}: again or too late"
                break
            if seen.seq != cursor + 1:
                yield f"{name} got record {seen.seq} after record {cursor}, and none between"
                break
            cursor = seen.seq
            if cursor > len(session.log):
                yield f"{name} got record {cursor}, and the log ends before it"
                break
            record = session.log[cursor - 1]
            if (seen.epoch, seen.kind, seen.turn) != (record.epoch, record.kind, record.turn):
                yield (
                    f"{name} got record {cursor} as {seen.kind} of turn {seen.turn} and epoch"
                    f" {seen.epoch}; it is {record.kind} of turn {record.turn} and epoch"
                    f" {record.epoch}"
                )
        else:
            # What no turn has may follow: an owner hands the session over, and nobody asked for it.
            last = max((record.seq for record in session.log if record.turn is not None), default=0)
            if subscription.is_complete and cursor < last:
                yield f"{name} ended after record {cursor}, and record {last} ended a turn"


class _Bound(msgspec.Struct, frozen=True):
    """A moment by which record ``seq`` was known to be in the log, because of ``by``."""

    at: float
    seq: int
    by: str


def _check_linearizable(session: _Session) -> Iterator[str]:
    """No operation has a place in the log before what was known when it was invoked."""
    bounds = sorted((*_known(session), *_seen(session.subscriptions)), key=lambda bound: bound.at)
    known, next_bound = _Bound(0.0, 0, ""), 0
    for operation, seq, place in sorted(_places(session), key=lambda item: item[0].invoked):
        while next_bound < len(bounds) and bounds[next_bound].at < operation.invoked:
            known = max(known, bounds[next_bound], key=lambda bound: bound.seq)
            next_bound += 1
        # A read may find again what is known; what changes the log comes after it.
        if seq < known.seq or (seq == known.seq and operation.kind != "head"):
            yield (
                f"not linearizable: {operation.client} invoked {place}, after {known.by} had shown"
                f" record {known.seq}"
            )


def _places(session: _Session) -> Iterator[tuple[Operation, int, str]]:
    """The operations whose places in the log are known, and the records."""
    first: dict[str, Operation] = {}
    for operation in session.operations:
        if operation.kind == "head" and operation.result == "ok" and operation.head is not None:
            yield operation, operation.head, f"a read that found record {operation.head} the newest"
        elif operation.kind == "send":
            key = operation.command_id or f"turn {operation.turn}"
            # A repeat is answered from the log: the first of its command is who made the record.
            if first.setdefault(key, operation) is operation:
                record = session.sent_at(operation)
                if record is not None:
                    yield operation, record.seq, f"the send that is record {record.seq}"
        elif operation.kind == "interrupt" and operation.answer in ("aborted", "kept"):
            key = operation.command_id or f"interrupt {id(operation)}"
            end = session.end_of(operation.turn)
            if first.setdefault(key, operation) is operation and end is not None:
                yield operation, end.seq, f"the interrupt that is record {end.seq}"


def _known(session: _Session) -> Iterator[_Bound]:
    """What the answers of operations show."""
    for operation in session.operations:
        if operation.result != "ok" or operation.completed is None:
            continue
        seqs = [operation.head or 0]
        if operation.kind == "send":
            record = session.sent_at(operation)
            seqs += [record.seq] if record is not None else []
        turns = [ending.turn for ending in operation.endings]
        if operation.answer in ("aborted", "kept", "not_running") and operation.turn is not None:
            turns.append(operation.turn)
        seqs += [end.seq for turn in turns if (end := session.end_of(turn)) is not None]
        yield _Bound(operation.completed, max(seqs), f"the {operation.kind} of {operation.client}")


def _seen(subscriptions: Iterable[SubscriptionHistory]) -> Iterator[_Bound]:
    for subscription in subscriptions:
        for seen in subscription.seen:
            yield _Bound(seen.at, seen.seq, f"the subscriber {subscription.client}")


def _check_lists(operations: Iterable[Operation]) -> Iterator[str]:
    """A list has every session whose creation was acknowledged before it was asked for."""
    operations = tuple(operations)
    created = {
        operation.session: operation.completed
        for operation in reversed(operations)
        if operation.kind == "create" and operation.result == "ok" and operation.completed
    }
    for listing in operations:
        if listing.kind == "list" and listing.result == "ok":
            expected = {name for name, at in created.items() if at < listing.invoked}
            for session in sorted(expected - set(listing.listed)):
                yield f"session {session}: {listing.client} listed the sessions and did not find it"


_CHECKS: tuple[Callable[[_Session], Iterator[str]], ...] = (
    _check_log,
    _check_sends,
    _check_repeats,
    _check_endings,
    _check_heads,
    _check_subscribers,
    _check_linearizable,
)
