"""The commands of an actor. Each one has the promise that its answer is given to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import msgspec

from llmsession.errors import InvalidInput, refusing
from llmsession.turns.records import Answer, CommandAnswer, InterruptPolicy

from ..tasks.promise import Promise
from .config import SessionConfig, WhenBusy, store_config
from .history_limits import HistoryLimits
from .outcome import Closed, CompactionOutcome, InterruptOutcome, TurnOutcome

__all__ = [
    "Clear",
    "Close",
    "Command",
    "Compact",
    "Configure",
    "ControlCommand",
    "Forget",
    "Fork",
    "ForkPoint",
    "HistoryCommand",
    "IfBusy",
    "Interrupt",
    "InterruptCaller",
    "Label",
    "Retain",
    "Rewind",
    "Send",
    "SetSummary",
    "StoreSummaries",
    "Submit",
    "WorkCommand",
    "checked_command_id",
    "command_digest",
    "remembered",
]

T = TypeVar("T")
IfBusy: TypeAlias = Literal["reject", "interrupt"]
"""What a command on the whole history does while a turn is open: refuse, or end the turn first."""


def command_digest(command_id: str | None, *parts: bytes | str | None) -> str:
    """A digest of what a command asks for, which tells a repeat of *command_id* from an id that is
    used for something else. "" without an id."""
    if command_id is None:
        return ""
    hashed = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else (part or b"")
        hashed.update(len(encoded).to_bytes(8, "big") + encoded)
    return hashed.hexdigest()[:32]


def remembered(command_id: str | None, digest: str, answer: object) -> tuple[CommandAnswer, ...]:
    """What a record keeps of a command with an id, to answer its repeats; nothing without an id."""
    if command_id is None:
        return ()
    return (CommandAnswer(command_id, digest, msgspec.Raw(msgspec.json.encode(answer))),)


@refusing
def checked_command_id(command_id: object) -> str | None:
    """*command_id*, as a plain text. Raises InvalidInput for an id that could not be logged."""
    if command_id is None:
        return None
    plain = str.__str__(command_id) if isinstance(command_id, str) else ""
    if 0 < len(plain) <= 200 and plain.isprintable():
        return plain
    raise InvalidInput(f"command_id {command_id!r} is not 1 to 200 printable characters")


def _digested(name: str, value: Any) -> bytes | str:
    """The field *name* of a command as its digest has it."""
    match value:
        case None | False:
            return ""
        case True:
            return name
        case str():
            return value
        case int() | float():
            return repr(value)  # turn 3 and the moment 3.0 are different
        case msgspec.Raw():
            return bytes(value)
        case _:
            return msgspec.json.encode(value)


@dataclass(slots=True, eq=False)
class Command(Generic[T]):
    """``ingress`` is the command's number in the order of the calls. ``answer_type`` is the type of
    its answer in the log, and ``kind`` the name of the command in its digest."""

    kind: ClassVar[str] = ""
    answer_type: ClassVar[Any] = int | None
    ingress: int
    command_id: str | None
    digest: str = field(init=False)
    promise: Promise[T] = field(init=False, default_factory=Promise)

    def __post_init__(self) -> None:
        if self.command_id is not None:
            self.command_id = checked_command_id(self.command_id)
        content = self._content() if self.command_id is not None else ()
        self.digest = command_digest(self.command_id, self.kind, *content)

    def _content(self) -> Iterator[bytes | str]:
        """What the command asks for, as its digest has it."""
        names = [each.name for each in fields(self) if each.init][2:]
        return (_digested(name, getattr(self, name)) for name in names)


@dataclass(slots=True, eq=False)
class Send(Command[int]):
    """Answered with the turn's number once its acceptance is durable."""

    kind: ClassVar[str] = "send"
    body: msgspec.Raw
    when_busy: WhenBusy
    expected_head: int | None
    outcome: Promise[TurnOutcome] | None = field(init=False, default=None)
    """The outcome of the turn, once it is accepted; None for a repeat of a turn that has ended."""


@dataclass(slots=True, eq=False)
class Submit(Command[None]):
    """Results of open calls, all or none. Answered once they are durable."""

    kind: ClassVar[str] = "submit"
    answers: Sequence[Answer]


class Compact(Command[CompactionOutcome]):
    """Answered once the compaction is applied, or given up. It has no id: a repeat is harmless."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Clear(Command[None]):
    """Begin the next generation. Answered once that is durable; with ``purge`` once the messages
    are erased from the log."""

    kind: ClassVar[str] = "clear"
    purge: bool
    when_busy: IfBusy


@dataclass(slots=True, eq=False)
class Rewind(Command[None]):
    """Let the history end with turn ``to``, 0 for none. Answered once that is durable."""

    kind: ClassVar[str] = "rewind"
    to: int
    when_busy: IfBusy


@dataclass(slots=True, eq=False)
class Forget(Command[None]):
    """Forget the messages before a turn (a number), or before a moment in seconds since the epoch.
    Answered once they are erased from the log."""

    kind: ClassVar[str] = "forget"
    before: int | float
    when_busy: IfBusy


@dataclass(slots=True, eq=False)
class Retain(Command[None]):
    """Forget what of the history exceeds ``limits``: None are the session's own. Nobody's turn is
    in the way: while one is open, nothing is done. Answered once it is erased from the log."""

    kind: ClassVar[str] = "retain"
    limits: HistoryLimits | None = None


class ForkPoint(msgspec.Struct, frozen=True):
    """Where a fork begins: the id of the new session, and how many records it shares."""

    session: str
    upto: int


@dataclass(slots=True, eq=False)
class Fork(Command[ForkPoint]):
    """Find where ``session`` forks off: after the commit of turn ``at``, or at the head. Answered
    once all records up to there are durable. ``given_id`` is the id that the caller chose."""

    kind: ClassVar[str] = "fork"
    answer_type: ClassVar[Any] = ForkPoint
    at: int | None
    session: str
    given_id: str | None
    labels: dict[str, str] | None
    when_busy: IfBusy

    def _content(self) -> Iterator[bytes | str]:
        yield _digested("at", self.at)
        yield msgspec.json.encode((self.given_id, self.labels))
        yield self.when_busy


@dataclass(slots=True, eq=False)
class Label(Command[None]):
    """Replace the session's labels, its title, and whether it is archived; None changes nothing of
    it. Answered once that is durable."""

    kind: ClassVar[str] = "label"
    labels: dict[str, str] | None
    title: str | None = None
    archived: bool | None = None

    def _content(self) -> Iterator[bytes | str]:
        yield _digested("labels", self.labels)
        if self.title is not None or self.archived is not None:
            yield msgspec.json.encode((self.title, self.archived))


@dataclass(slots=True, eq=False)
class Configure(Command[None]):
    """``changes`` are fields of a checked configuration. They are applied to the configuration that
    is in force when they take effect: another change may have waited before this one."""

    kind: ClassVar[str] = "configure"
    changes: dict[str, Any]

    def _content(self) -> Iterator[bytes | str]:
        yield ",".join(sorted(self.changes))
        yield bytes(store_config(SessionConfig(**{"model": "-", **self.changes})))


@dataclass(slots=True, eq=False)
class StoreSummaries(Command[None]):
    """Compact summaries by call id, of clean texts. Answered once they are durable."""

    kind: ClassVar[str] = "summaries"
    summaries: dict[str, str]


@dataclass(slots=True, eq=False)
class SetSummary(Command[None]):
    """Show the caller's ``text`` instead of all messages up to the end of turn ``turn``. Answered
    once that is durable."""

    kind: ClassVar[str] = "summary"
    turn: int
    text: str


@dataclass(slots=True, eq=False)
class InterruptCaller:
    """One of the callers that a merged interrupt answers."""

    answer_type: ClassVar[Any] = InterruptOutcome
    command_id: str | None
    digest: str
    promise: Promise[InterruptOutcome] = field(init=False, default_factory=Promise)

    def __post_init__(self) -> None:
        if self.command_id is not None:
            self.command_id = checked_command_id(self.command_id)


@dataclass(slots=True, eq=False)
class Interrupt:
    """All unread interrupts of one target, merged: one abort, and an answer to each caller.

    Without a ``turn`` the target is everything that was enqueued before ``mark``. Of several
    policies the strongest counts, as if the interrupts were read one after the other.
    """

    mark: int
    turn: int | None
    policy: InterruptPolicy
    callers: list[InterruptCaller] = field(init=False, default_factory=list)

    def fold(self, mark: int, policy: InterruptPolicy) -> None:
        """Merge another interrupt of the same target into this one."""
        self.mark = max(self.mark, mark)
        if policy == "drop_turn":
            self.policy = policy


@dataclass(slots=True, eq=False)
class Close:
    """End the session here. Open turns are interrupted, or left open in the log; then the session
    is released."""

    leaves_open: bool = False
    promise: Promise[Closed] = field(init=False, default_factory=Promise)


HandOverWhen: TypeAlias = Literal["idle", "step", "now"]
"""When a session is handed over: between two turns; as soon as no request has to be repeated and
no tool of the session's own is cut off; or at once."""


@dataclass(slots=True, eq=False)
class HandOver:
    """Give the session up for another owner, who goes on with what is open."""

    when: HandOverWhen
    stage: Literal["waiting", "leaving", "written"] = field(init=False, default="waiting")
    promise: Promise[Closed] = field(init=False, default_factory=Promise)


HistoryCommand: TypeAlias = Clear | Rewind | Forget | Fork | Retain
WorkCommand: TypeAlias = (
    Send | Submit | Compact | Configure | StoreSummaries | SetSummary | Label | HistoryCommand
)
ControlCommand: TypeAlias = Interrupt | Close
