"""The commands of an actor. Each one has the promise that its answer is given to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import msgspec

from llmsession.errors import InvalidInput
from llmsession.turns.blocks import clean_text
from llmsession.turns.records import Answer, CommandAnswer, InterruptPolicy

from ..tasks.promise import Promise
from .config import SessionConfig, WhenBusy, store_config
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
    "Rewind",
    "Send",
    "SetSummary",
    "StoreSummaries",
    "Submit",
    "WorkCommand",
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


def _checked_id(command_id: str | None) -> str | None:
    """*command_id*. Raises InvalidInput for an id that could not be logged."""
    if command_id is None or (
        isinstance(command_id, str) and 0 < len(command_id) <= 200 and command_id.isprintable()
    ):
        return command_id
    raise InvalidInput(f"command_id {command_id!r} is not 1 to 200 printable characters")


class Command(Generic[T]):
    """``ingress`` is the command's number in the order of the calls, *content* is what it asks for.
    ``answer_type`` is the type of its answer in the log."""

    __slots__ = ("command_id", "digest", "ingress", "promise")
    answer_type: ClassVar[Any] = int | None

    def __init__(self, ingress: int, command_id: str | None, *content: bytes | str | None) -> None:
        self.ingress = ingress
        self.command_id = _checked_id(command_id)
        self.digest = command_digest(command_id, *content)
        self.promise: Promise[T] = Promise()


class Send(Command[int]):
    """Answered with the turn's number once its acceptance is durable."""

    __slots__ = ("body", "expected_head", "outcome", "when_busy")

    def __init__(
        self,
        ingress: int,
        command_id: str | None,
        *,
        body: msgspec.Raw,
        when_busy: WhenBusy,
        expected_head: int | None,
    ) -> None:
        head = "" if expected_head is None else str(expected_head)
        super().__init__(ingress, command_id, "send", bytes(body), when_busy, head)
        self.body = body
        self.when_busy = when_busy
        self.expected_head = expected_head
        self.outcome: Promise[TurnOutcome] | None = None
        """The outcome of the turn, once it is accepted; None for a repeat of a turn that has
        ended."""


class Submit(Command[None]):
    """Results of open calls, all or none. Answered once they are durable."""

    __slots__ = ("answers",)

    def __init__(self, ingress: int, command_id: str | None, answers: Sequence[Answer]) -> None:
        content = b"" if command_id is None else msgspec.json.encode(answers)
        super().__init__(ingress, command_id, "submit", content)
        self.answers = answers


class Compact(Command[CompactionOutcome]):
    """Answered once the compaction is applied, or given up. It has no id: a repeat is harmless."""

    __slots__ = ()


class Clear(Command[None]):
    """Begin the next generation. Answered once that is durable; with ``purge`` once the messages
    are erased from the log."""

    __slots__ = ("purge", "when_busy")

    def __init__(
        self, ingress: int, command_id: str | None, *, purge: bool, when_busy: IfBusy
    ) -> None:
        super().__init__(ingress, command_id, "clear", "purge" if purge else "", when_busy)
        self.purge = purge
        self.when_busy: IfBusy = when_busy


class Rewind(Command[None]):
    """Let the history end with turn ``to``, 0 for none. Answered once that is durable."""

    __slots__ = ("to", "when_busy")

    def __init__(self, ingress: int, command_id: str | None, *, to: int, when_busy: IfBusy) -> None:
        super().__init__(ingress, command_id, "rewind", str(to), when_busy)
        self.to = to
        self.when_busy: IfBusy = when_busy


class Forget(Command[None]):
    """Forget the messages before a turn (a number), or before a moment in seconds since the epoch.
    Answered once they are erased from the log."""

    __slots__ = ("before", "when_busy")

    def __init__(
        self, ingress: int, command_id: str | None, *, before: int | float, when_busy: IfBusy
    ) -> None:
        # repr: turn 3 and the moment 3.0 are different.
        super().__init__(ingress, command_id, "forget", repr(before), when_busy)
        self.before = before
        self.when_busy: IfBusy = when_busy


class ForkPoint(msgspec.Struct, frozen=True):
    """Where a fork begins: the id of the new session, and how many records it shares."""

    session: str
    upto: int


class Fork(Command[ForkPoint]):
    """Find where ``session`` forks off: after the commit of turn ``at``, or at the head. Answered
    once all records up to there are durable. *given_id* is the id that the caller chose."""

    __slots__ = ("at", "session", "when_busy")
    answer_type = ForkPoint

    def __init__(
        self,
        ingress: int,
        command_id: str | None,
        *,
        at: int | None,
        session: str,
        given_id: str | None,
        labels: dict[str, str] | None,
        when_busy: IfBusy,
    ) -> None:
        place = "" if at is None else str(at)
        options = b"" if command_id is None else msgspec.json.encode((given_id, labels))
        super().__init__(ingress, command_id, "fork", place, options, when_busy)
        self.at = at
        self.session = session
        self.when_busy: IfBusy = when_busy


class Label(Command[None]):
    """Replace the session's labels. Answered once that is durable."""

    __slots__ = ("labels",)

    def __init__(self, ingress: int, command_id: str | None, labels: dict[str, str]) -> None:
        super().__init__(ingress, command_id, "label", msgspec.json.encode(labels))
        self.labels = labels


class Configure(Command[None]):
    """*changes* are fields of a checked configuration. They are applied to the configuration that
    is in force when they take effect: another change may have waited before this one."""

    __slots__ = ("changes",)

    def __init__(self, ingress: int, command_id: str | None, changes: dict[str, Any]) -> None:
        config = store_config(SessionConfig(**{"model": "-", **changes}))
        super().__init__(ingress, command_id, "configure", ",".join(sorted(changes)), bytes(config))
        self.changes = changes


class StoreSummaries(Command[None]):
    """Compact summaries by call id. Answered once they are durable."""

    __slots__ = ("summaries",)

    def __init__(self, ingress: int, command_id: str | None, summaries: dict[str, str]) -> None:
        cleaned = {clean_text(call_id): clean_text(text) for call_id, text in summaries.items()}
        super().__init__(ingress, command_id, "summaries", msgspec.json.encode(cleaned))
        self.summaries = cleaned


class SetSummary(Command[None]):
    """Show the caller's ``text`` instead of all messages up to the end of turn ``turn``. Answered
    once that is durable."""

    __slots__ = ("text", "turn")

    def __init__(self, ingress: int, command_id: str | None, *, text: str, turn: int) -> None:
        super().__init__(ingress, command_id, "summary", str(turn), text)
        self.text = text
        self.turn = turn


class InterruptCaller:
    """One of the callers that a merged interrupt answers."""

    __slots__ = ("command_id", "digest", "promise")
    answer_type: ClassVar[Any] = InterruptOutcome

    def __init__(self, command_id: str | None, digest: str) -> None:
        self.command_id = _checked_id(command_id)
        self.digest = digest
        self.promise: Promise[InterruptOutcome] = Promise()


class Interrupt:
    """All unread interrupts of one target, merged: one abort, and an answer to each caller.

    Without a ``turn`` the target is everything that was enqueued before ``mark``. Of several
    policies the strongest counts, as if the interrupts were read one after the other.
    """

    __slots__ = ("callers", "mark", "policy", "turn")

    def __init__(self, mark: int, turn: int | None, policy: InterruptPolicy) -> None:
        self.mark = mark
        self.turn = turn
        self.policy: InterruptPolicy = policy
        self.callers: list[InterruptCaller] = []

    def fold(self, mark: int, policy: InterruptPolicy) -> None:
        """Merge another interrupt of the same target into this one."""
        self.mark = max(self.mark, mark)
        if policy == "drop_turn":
            self.policy = policy


class Close:
    """End the session here. Open turns are interrupted, or left open in the log; then the session
    is released."""

    __slots__ = ("leaves_open", "promise")

    def __init__(self, *, leaves_open: bool = False) -> None:
        self.leaves_open = leaves_open
        self.promise: Promise[Closed] = Promise()


HistoryCommand: TypeAlias = Clear | Rewind | Forget | Fork
WorkCommand: TypeAlias = (
    Send | Submit | Compact | Configure | StoreSummaries | SetSummary | Label | HistoryCommand
)
ControlCommand: TypeAlias = Interrupt | Close
