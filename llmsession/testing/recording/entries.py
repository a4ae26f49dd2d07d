"""The recording of a run: every command with its time and its result, and the logs.

A recording is a list of entries, each one line of JSON. ``order`` is an entry's place among all
of a run's entries, taken before any await; so of two commands of one session the one with the
smaller order has the smaller ingress number. ``at`` is in seconds since the run began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import msgspec

from llmsession.errors import InvalidInput
from llmsession.turns.records import Record, decode_record
from llmsession.turns.request import Profile

__all__ = [
    "RESTARTED",
    "Abandoned",
    "Begun",
    "End",
    "Ended",
    "Entry",
    "Found",
    "HistoryRead",
    "Invoked",
    "LeftBehind",
    "Logged",
    "ObservedEvent",
    "OutcomeSeen",
    "Recording",
    "Refused",
    "Requested",
    "Returned",
    "Rewritten",
    "SessionRecording",
    "StateRead",
    "SubscriptionLog",
    "decode_lines",
    "encode_lines",
]


class EntryBase(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="entry"
):  # fmt: skip
    """What every entry has. ``session`` is "" if the entry is about the run."""

    session: str = ""
    order: int = 0
    at: float = 0.0


class Begun(EntryBase, frozen=True, tag="begun"):
    """The run: its seed, its plan, and what the checker has to know. ``margin_s`` is how much
    longer than the grace period an interrupt may take; None is the default."""

    seed: int = 0
    plan: dict[str, Any] = {}
    profile: Profile = Profile()
    grace_s: float = 0.1
    margin_s: float | None = None


class Invoked(EntryBase, frozen=True, tag="invoked"):
    """A command was called. ``token`` names the content of a send; ``answers`` are the call ids
    and content digests of submitted results; ``turn`` is the turn that an interrupt names, ``head``
    the one that a send is to follow."""

    call: int
    command: str
    token: str = ""
    turn: int | None = None
    policy: str | None = None
    when_busy: str | None = None
    command_id: str | None = None
    answers: tuple[tuple[str, str], ...] = ()
    head: int | None = None


class End(msgspec.Struct, frozen=True):
    """How a turn ended, in an interrupt's answer. ``returned`` is the digest of what the user had
    said, where the turn was dropped."""

    turn: int
    status: str
    stop_reason: str
    returned: str | None = None


class Returned(EntryBase, frozen=True, tag="returned"):
    """A command was answered. ``seq`` is the session's head when the caller read the answer; of an
    interrupt ``owner`` is the epoch of who answered, 0 where that is not known."""

    call: int
    seq: int
    turn: int | None = None
    result: str | None = None
    ended: tuple[End, ...] = ()
    tokens_before: int = 0
    tokens_after: int = 0
    owner: int = 0


class Refused(EntryBase, frozen=True, tag="refused"):
    """A command was answered with an error."""

    call: int
    error: str
    text: str = ""


class Abandoned(EntryBase, frozen=True, tag="abandoned"):
    """The caller stopped waiting, as planned. The command may have been performed."""

    call: int


class OutcomeSeen(EntryBase, frozen=True, tag="outcome"):
    """The outcome of a turn that somebody awaited; *status* is "error" if it raised."""

    turn: int
    status: str
    stop_reason: str
    unread_steers: int = 0


class HistoryRead(EntryBase, frozen=True, tag="history"):
    """``conversation()``: ``history`` numbers the tuple object, ``messages`` the message objects.
    Equal numbers are one object. ``incarnation`` numbers the state that it is part of: a session
    that was read from the store again has other objects."""

    seq: int
    generation: int
    history: int
    messages: tuple[int, ...]
    incarnation: int = 0


class StateRead(EntryBase, frozen=True, tag="state"):
    """The live state at log position ``seq``, part by part, as digests."""

    seq: int
    parts: dict[str, str]


class Requested(EntryBase, frozen=True, tag="requested"):
    """A request to a provider. ``seq`` is the session's head at that time, ``size`` is in bytes,
    ``tail`` has the last ones."""

    turn: int
    step: int
    attempt: int
    seq: int
    digest: str
    size: int
    messages: int
    tail: str = ""
    violations: tuple[str, ...] = ()


RESTARTED = "restarted"


class ObservedEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event that a subscriber read: a record (``seq`` and the digest of its bytes), a preview
    (``seq`` 0, and what it belongs to), or a restart, whose digest is RESTARTED."""

    seq: int
    digest: str = ""
    turn: int = 0
    step: int = 0
    attempt: int = 0


class SubscriptionLog(EntryBase, frozen=True, tag="subscription"):
    """What one subscriber read. ``ending`` is closed, vanished, terminal or lagged; ``cursor``
    is where it said it was at its end."""

    subscriber: int
    after: int
    cursor: int
    ending: str
    turn: int | None = None
    seen: tuple[ObservedEvent, ...] = ()


class Logged(EntryBase, frozen=True, tag="logged"):
    """One record of the session's log, as it was appended. The store has it so, too, where there
    is no ``rewritten`` with its seq. ``at`` is when it was written, where that is known."""

    seq: int
    body: msgspec.Raw


class Rewritten(EntryBase, frozen=True, tag="rewritten"):
    """What a rewrite put in the place of a logged record, because something was forgotten. The
    newest one is what the store has now."""

    seq: int
    body: msgspec.Raw


class Ended(EntryBase, frozen=True, tag="ended"):
    """A session was closed; ``still_running`` is what ``close`` named, ``running`` what of the
    session's work was really running when it returned."""

    still_running: tuple[str, ...] = ()
    running: tuple[str, ...] = ()


class Found(EntryBase, frozen=True, tag="found"):
    """A violation that the recorder itself saw. No other entry would show it."""

    invariant: int
    text: str


class LeftBehind(EntryBase, frozen=True, tag="left"):
    """What was left after the manager had closed, and how late the event loop was at worst."""

    after_exit: tuple[str, ...] = ()
    open_streams: int = 0
    late_reports: int = 0
    lag_s: float = 0.0


Entry: TypeAlias = (
    Begun
    | Invoked
    | Returned
    | Refused
    | Abandoned
    | OutcomeSeen
    | HistoryRead
    | StateRead
    | Requested
    | SubscriptionLog
    | Logged
    | Rewritten
    | Ended
    | Found
    | LeftBehind
)

E = TypeVar("E", bound=EntryBase)

_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def encode_lines(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Each entry as one line of JSON, with its line end."""
    return (msgspec.json.encode(entry) + b"\n" for entry in entries)


def decode_lines(lines: Iterable[bytes]) -> Recording:
    """The recording in *lines*. Raises InvalidInput, naming the line that is no entry."""
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(_decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"line {number} of the recording: {error}") from error
    return Recording(entries)


class Recording:
    """All entries of a run."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: tuple[Entry, ...] = tuple(entries)

    @cached_property
    def begun(self) -> Begun:
        """The run's own entry; a careful default if it was left out."""
        return next((entry for entry in self.entries if isinstance(entry, Begun)), Begun())

    @cached_property
    def sessions(self) -> dict[str, SessionRecording]:
        """The entries of each session, in the run's order."""
        by_session: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.session:
                by_session.setdefault(entry.session, []).append(entry)
        return {name: SessionRecording(name, entries) for name, entries in by_session.items()}

    @property
    def missing(self) -> int:
        """How many places in the run's order no entry has: lines that were taken out of it, or
        somebody who was stopped before he could write down what he saw."""
        orders = {entry.order for entry in self.entries} - {0}
        return max(orders, default=0) - len(orders)

    @property
    def left(self) -> LeftBehind | None:
        """What was left after the run; None if the recording was cut off before."""
        return next((entry for entry in self.entries if isinstance(entry, LeftBehind)), None)


class SessionRecording:
    """One session's entries, by kind."""

    def __init__(self, session: str, entries: Iterable[Entry]) -> None:
        entries = tuple(entries)

        def of(kind: type[E]) -> list[E]:
            return [entry for entry in entries if isinstance(entry, kind)]

        self.session = session
        self.log = of(Logged)
        self.rewrites = of(Rewritten)
        self.invoked = {entry.call: entry for entry in of(Invoked)}
        self.returned = _by_call(of(Returned))
        self.refused = _by_call(of(Refused))
        self.abandoned = _by_call(of(Abandoned))
        self.outcomes = of(OutcomeSeen)
        self.histories = of(HistoryRead)
        self.states = of(StateRead)
        self.requests = of(Requested)
        self.subscriptions = of(SubscriptionLog)
        self.ended = of(Ended)

    @cached_property
    def records(self) -> list[Record]:
        """The log's records. Raises msgspec.MsgspecError for one that cannot be read."""
        return [decode_record(bytes(logged.body)) for logged in self.log]

    @cached_property
    def rewritten(self) -> dict[int, Record]:
        """What the store has now in place of some of them, by seq. Raises as ``records``."""
        return {record.seq: decode_record(bytes(record.body)) for record in self.rewrites}


A = TypeVar("A", Returned, Refused, Abandoned)


def _by_call(answers: Iterable[A]) -> dict[int, list[A]]:
    by_call: dict[int, list[A]] = {}
    for answer in answers:
        by_call.setdefault(answer.call, []).append(answer)
    return by_call
