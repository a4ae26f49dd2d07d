"""The commands of an actor. Each has a promise that is set to its answer."""

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
    "check_repeatable",
    "checked_command_id",
    "command_digest",
    "remembered",
]

T = TypeVar("T")
IfBusy: TypeAlias = Literal["reject", "interrupt"]
"""What a command on the whole history does while a turn is open: refuse, or end the turn first."""


def command_digest(command_id: str | None, *parts: bytes | str | None) -> str:
    """A digest of a command's content; "" if the command has no id.

    It tells a repeat of *command_id* from a second command that uses the same id for something
    else.
    """
    if command_id is None:
        return ""
    hashed = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else (part or b"")
        hashed.update(len(encoded).to_bytes(8, "big") + encoded)
    return hashed.hexdigest()[:32]


def remembered(command_id: str | None, digest: str, answer: object) -> tuple[CommandAnswer, ...]:
    """What a record stores about a command, to answer a repeat of it. Empty if the command has no
    id.
    """
    if command_id is None:
        return ()
    return (CommandAnswer(command_id, digest, msgspec.Raw(msgspec.json.encode(answer))),)


@refusing
def checked_command_id(command_id: object) -> str | None:
    """*command_id* as a plain ``str``. Raises InvalidInput for an id that cannot be logged."""
    if command_id is None:
        return None
    plain = str.__str__(command_id) if isinstance(command_id, str) else ""
    if 0 < len(plain) <= 200 and plain.isprintable():
        return plain
    raise InvalidInput(f"command_id {command_id!r} must be a text of 1 to 200 printable characters")


def check_repeatable(command_id: object, session_id: object) -> None:
    """Raises InvalidInput for a creation that shall be repeatable, but has no id of a session."""
    if command_id is not None and session_id is None:
        raise InvalidInput(
            "command_id needs a session_id: without one, a repeat would create another session"
        )


def _digested(name: str, value: Any) -> bytes | str:
    """The value of the field *name*, encoded for the command's digest."""
    match value:
        case None | False:
            return ""
        case True:
            return name
        case str():
            return value
        case int() | float():
            return repr(value)  # keeps turn 3 apart from the moment 3.0
        case msgspec.Raw():
            return bytes(value)
        case _:
            return msgspec.json.encode(value)


@dataclass(slots=True, eq=False)
class Command(Generic[T]):
    """A command in the mailbox."""

    kind: ClassVar[str] = ""
    """The name of the command in its digest."""
    answer_type: ClassVar[Any] = int | None
    """The type of the command's answer in the log."""
    ingress: int
    """The command's number in the order in which callers called."""
    command_id: str | None
    digest: str = field(init=False)
    promise: Promise[T] = field(init=False, default_factory=Promise)

    def __post_init__(self) -> None:
        if self.command_id is not None:
            self.command_id = checked_command_id(self.command_id)
        content = self._content() if self.command_id is not None else ()
        self.digest = command_digest(self.command_id, self.kind, *content)

    def _content(self) -> Iterator[bytes | str]:
        """The command's content, encoded for its digest."""
        names = [each.name for each in fields(self) if each.init][2:]
        return (_digested(name, getattr(self, name)) for name in names)


@dataclass(slots=True, eq=False)
class Send(Command[int]):
    """A user message. Answered with the turn's number once the acceptance is durable."""

    kind: ClassVar[str] = "send"
    body: msgspec.Raw
    when_busy: WhenBusy
    expected_head: int | None
    outcome: Promise[TurnOutcome] | None = field(init=False, default=None)
    """The outcome of the accepted turn; None for a repeat of a turn that has already ended."""


@dataclass(slots=True, eq=False)
class Submit(Command[None]):
    """Results of open calls, accepted together or not at all. Answered once they are durable."""

    kind: ClassVar[str] = "submit"
    answers: Sequence[Answer]


class Compact(Command[CompactionOutcome]):
    """Compact now. Answered once the compaction is applied or given up.

    It has no command id, because repeating it does no harm.
    """

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Clear(Command[None]):
    """Empty the history and begin the next generation.

    Answered once that is durable; with ``purge``, once the messages are erased from the log.
    """

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
    """Erase the messages before a turn (an int), or before a moment in seconds since the epoch (a
    float).

    Answered once they are erased from the log.
    """

    kind: ClassVar[str] = "forget"
    before: int | float
    when_busy: IfBusy


@dataclass(slots=True, eq=False)
class Retain(Command[None]):
    """Forget the part of the history that exceeds ``limits``; None stands for the session's own
    limits.

    It does nothing while a turn is open, so that it never gets in the way of one. Answered once the
    messages are erased from the log.
    """

    kind: ClassVar[str] = "retain"
    limits: HistoryLimits | None = None


class ForkPoint(msgspec.Struct, frozen=True):
    """Where a fork begins: the id of the new session, and how many records it shares with its
    parent.
    """

    session: str
    upto: int


@dataclass(slots=True, eq=False)
class Fork(Command[ForkPoint]):
    """Find the record at which ``session`` forks off: the commit of turn ``at``, or the head.

    Answered once all records up to there are durable. ``given_id`` is the id that the caller chose.
    """

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
    """Replace the session's labels, its title, or its archived flag. A field that is None is not
    changed.

    Answered once that is durable.
    """

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
    """Change the configuration.

    ``changes`` are checked values by field name. They are applied to the configuration that is in
    force when the change takes effect, because another change may have waited before this one.
    """

    kind: ClassVar[str] = "configure"
    changes: dict[str, Any]

    def _content(self) -> Iterator[bytes | str]:
        yield ",".join(sorted(self.changes))
        yield bytes(store_config(SessionConfig(**{"model": "-", **self.changes})))


@dataclass(slots=True, eq=False)
class StoreSummaries(Command[None]):
    """Compact summaries by call id, already checked. Answered once they are durable."""

    kind: ClassVar[str] = "summaries"
    summaries: dict[str, str]


@dataclass(slots=True, eq=False)
class SetSummary(Command[None]):
    """Show ``text`` instead of all messages up to the end of turn ``turn``.

    Answered once that is durable.
    """

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
    """All unread interrupts with the same target, merged into one: one abort, and one answer per
    caller.

    Merging bounds the control lane of the mailbox. Without a ``turn`` the target is everything that
    was enqueued before ``mark``. If the policies differ, ``drop_turn`` wins, as it would if the
    interrupts were read one after the other.
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
    """End the actor. Open turns are interrupted, or left open in the log if ``leaves_open`` is
    True.

    Then the lease is released.
    """

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
