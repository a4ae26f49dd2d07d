"""The in-memory state of one accepted turn: everything that is not in the log."""

from __future__ import annotations

from typing import Literal, TypeAlias

from llmsession.turns.machine import Turn
from llmsession.turns.records import (
    Answer,
    CallReceipt,
    CallStatus,
    ExceededBudget,
    ModelRequest,
    PendingCall,
    ProviderFailure,
    UnrecordedUsage,
)
from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.request import Request
from llmsession.turns.usage import Usage

from ..tasks.promise import Promise
from ..tasks.timers import Timer
from ..tasks.works import Work
from ..values.outcome import TurnOutcome
from .request_builder import Size

__all__ = ["CallTrack", "Run"]

TrackStatus: TypeAlias = Literal["requested", "started", "finished", "failed"]


class CallTrack:
    """A call of a turn and its progress, for the receipt."""

    __slots__ = ("call", "status", "work")

    def __init__(self, call: PendingCall) -> None:
        self.call = call
        self.status: TrackStatus = "requested"
        self.work: Work | None = None
        """The work that runs the call, if the session runs it."""

    @property
    def may_have_started(self) -> bool:
        """May the tool have started? The caller gets its calls as soon as they are in the log, so
        yes.
        """
        return self.status != "requested" or self.call.runner == "caller"

    def receipt(self) -> CallReceipt:
        """The call's receipt. A call without a result of its own may have had effects: it is
        unknown.
        """
        status: CallStatus = "unknown"
        if self.status in ("finished", "failed"):
            status = self.status
        return CallReceipt(self.call.id, self.call.name, status, self.call.brief)


class Run:
    """One accepted turn while it is queued or running. Only the actor uses it.

    ``works`` is everything that was started for it and has not ended, by name. ``steers`` counts
    the accepted steers that no step has read. ``answers`` wait to be written to the journal.
    """

    __slots__ = (
        "answers",
        "builder",
        "calls",
        "ended_as",
        "exceeded",
        "failure",
        "grace",
        "ingress",
        "outcome",
        "recorded",
        "reply",
        "request",
        "requests",
        "sent_size",
        "silence_s",
        "steers",
        "still_running",
        "stream_at",
        "timers",
        "turn",
        "usage",
        "works",
    )  # fmt: skip

    def __init__(self, number: int, ingress: int) -> None:
        self.turn = Turn(number=number)
        self.ingress = ingress
        self.outcome: Promise[TurnOutcome] = Promise()
        self.ended_as: TurnOutcome | None = None
        """Set when the terminal record is folded, before any caller gets the outcome."""
        self.request: Request | None = None
        self.sent_size: Size | None = None
        """The size of ``request``."""
        self.builder: ReplyBuilder | None = None
        self.silence_s: float | None = None
        """How long ``builder`` may get nothing, if there is a limit."""
        self.stream_at = 0.0
        self.reply: Reply | None = None
        self.calls: dict[str, CallTrack] = {}
        self.answers: list[Answer] = []
        self.steers = 0
        self.works: dict[str, Work] = {}
        self.timers: dict[str, Timer] = {}
        self.grace: Timer | None = None
        self.still_running: tuple[str, ...] = ()
        self.usage = Usage()
        self.requests: list[ModelRequest] = []
        """The model requests of the turn whose stream has ended, with their usage."""
        self.recorded: set[int] = set()
        """The indexes of those requests whose usage is in the log with the reply."""
        self.exceeded: ExceededBudget | None = None
        """The budget that stops the turn, if one does."""
        self.failure: ProviderFailure | None = None
        """The error of the newest stream, if it failed."""

    @property
    def number(self) -> int:
        """The turn's number."""
        return self.turn.number

    @property
    def sent_tokens(self) -> int:
        """The size of the last request in tokens; 0 before the first one."""
        return self.sent_size.tokens if self.sent_size is not None else 0

    def streaming(self) -> ModelRequest | None:
        """The request whose reply is streaming, with the usage that was reported so far."""
        if self.builder is None:
            return None
        requested = self.request.model if self.request is not None else None
        return ModelRequest(self.builder.model or requested, self.builder.usage)

    def close_stream(self) -> ModelRequest | None:
        """The stream has ended, in whatever way. Keep what it cost, and return the request."""
        request = self.streaming()
        if request is not None:
            self.usage = self.usage + request.usage
            self.requests.append(request)
            self.builder = None
        return request

    def note_recorded(self) -> None:
        """The reply to the last request has been written, with its usage."""
        self.recorded.add(len(self.requests) - 1)

    def unrecorded_usage(self) -> tuple[UnrecordedUsage, ...]:
        """The usage that the turn's last record must report. Requests without any usage are left
        out.
        """
        unrecorded: list[UnrecordedUsage] = []
        place = 0
        for index, request in enumerate(self.requests):
            if index not in self.recorded:
                if request.usage == Usage():
                    continue
                unrecorded.append(UnrecordedUsage(place, request.usage, request.model))
            place += 1
        return tuple(unrecorded)

    def receipts(self) -> tuple[CallReceipt, ...]:
        """The calls of this turn that may have started."""
        tracks = self.calls.values()
        return tuple(track.receipt() for track in tracks if track.may_have_started)

    def cancel_timers(self) -> None:
        """The turn has ended, so none of its deadlines may fire."""
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None
