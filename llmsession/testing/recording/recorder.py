"""Writes a run down while it happens: every command through ``call``, every reading as a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio

from llmsession.compaction.rules.check import Checker
from llmsession.errors import SessionError
from llmsession.session.handles.session import LLMSession, Turn, live_state
from llmsession.session.values.outcome import TurnOutcome
from llmsession.turns.request import Profile, Request, StepTag

from .entries import (
    Abandoned,
    End,
    Entry,
    HistoryRead,
    Invoked,
    OutcomeSeen,
    Refused,
    Requested,
    Returned,
    StateRead,
)
from .fingerprints import digest, state_parts

__all__ = ["Notes", "Recorder", "ends_of"]

T = TypeVar("T")
TAIL_BYTES = 160


class Notes:
    """The entries of one run, each with its place. Made and used inside one event loop."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._began = anyio.current_time()
        self._order = 0
        self._calls = 0

    def now(self) -> float:
        """Seconds since the run began."""
        return anyio.current_time() - self._began

    def since_beginning(self, time: float | None) -> float:
        """The loop's *time* in seconds since the run began; 0 for None."""
        return 0.0 if time is None else round(time - self._began, 6)

    def place(self) -> dict[str, Any]:
        """The next ``order``, and ``at``."""
        self._order += 1
        return {"order": self._order, "at": round(self.now(), 6)}

    def next_call(self) -> int:
        """The number of the next command."""
        self._calls += 1
        return self._calls

    def note(self, entry: Entry) -> None:
        """Add an entry to the recording."""
        self.entries.append(entry)


class Recorder(Notes):
    """Notes of sessions in this process. Objects that were seen are kept, so that no two of them
    ever share an address."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.sessions: dict[str, LLMSession] = {}
        self._profile = profile
        self._checkers: dict[str, Checker] = {}
        self._numbers: dict[int, tuple[int, object]] = {}

    async def call(
        self,
        session: LLMSession,
        command: str,
        perform: Callable[[], Awaitable[T]],
        *,
        answer: Callable[[T], dict[str, Any]] = lambda value: {},
        patience_s: float | None = None,
        until: anyio.CancelScope | None = None,
        **asked: Any,
    ) -> T | SessionError | None:
        """Call a command, write down that it was called and what came of it.

        Returns the answer; the error, where it was refused; None if *patience_s* ran out, or the
        scope *until*, which is entered here, was cancelled. What is no SessionError passes: nobody
        was answered then.
        """
        name, call = session.id, self.next_call()
        self.note(Invoked(session=name, call=call, command=command, **asked, **self.place()))
        with until or anyio.CancelScope(), anyio.move_on_after(patience_s):
            try:
                value = await perform()
            except SessionError as error:
                kind = type(error).__name__
                text = str(error)[:200]
                refused = Refused(session=name, call=call, error=kind, text=text, **self.place())
                self.note(refused)
                return error
            told = answer(value)
            seq = live_state(session).head
            if command == "interrupt":
                told["owner"] = session.status().epoch
            self.note(Returned(session=name, call=call, seq=seq, **told, **self.place()))
            return value
        self.note(Abandoned(session=name, call=call, **self.place()))
        return None

    async def await_outcome(self, session: LLMSession, turn: Turn) -> str:
        """Wait for the turn's end and write down what was told; its stop reason."""
        number = turn.id.number
        try:
            outcome = await turn.outcome()
        except SessionError as error:
            kind = type(error).__name__
            told = OutcomeSeen(
                session=session.id, turn=number, status="error", stop_reason=kind, **self.place()
            )
            self.note(told)
            return kind
        self.note(
            OutcomeSeen(
                session=session.id,
                turn=number,
                status=outcome.status,
                stop_reason=outcome.stop_reason,
                unread_steers=len(outcome.unread_steers),
                **self.place(),
            )
        )
        self.read_history(session)
        return outcome.stop_reason

    def read_history(self, session: LLMSession) -> None:
        """Write ``conversation()`` down, by the identity of its objects."""
        history, state = session.conversation(), live_state(session)
        self.note(
            HistoryRead(
                session=session.id,
                seq=state.head,
                generation=state.generation,
                history=self._number(history),
                messages=tuple([self._number(message) for message in history]),
                incarnation=self._number(state),
                **self.place(),
            )
        )

    def read_state(self, session: LLMSession) -> None:
        """Write the live state down, as digests."""
        state = live_state(session)
        parts = state_parts(state)
        self.note(StateRead(session=session.id, seq=state.head, parts=parts, **self.place()))

    def requested(
        self, session: str, request: Request, tag: StepTag, *, seq: int | None = None
    ) -> None:
        """Write a request down that a provider was sent; *seq* is the session's head then."""
        body = request.encode()
        checker = self._checkers.setdefault(session, Checker(self._profile))
        self.note(
            Requested(
                session=session,
                turn=tag.turn,
                step=tag.step,
                attempt=tag.attempt,
                seq=live_state(self.sessions[session]).head if seq is None else seq,
                digest=digest(body),
                size=len(body),
                messages=len(request.messages),
                tail=body[-TAIL_BYTES:].decode("utf-8", "replace"),
                violations=tuple(str(violation) for violation in checker.check(request)),
                **self.place(),
            )
        )

    def _number(self, seen: object) -> int:
        known = self._numbers.get(id(seen))
        if known is None:
            # `()` is one object for all sessions, and so may be its number.
            known = self._numbers[id(seen)] = (len(self._numbers) + 1, seen)
        return known[0]


def ends_of(turns: Sequence[TurnOutcome]) -> tuple[End, ...]:
    """The ends in an interrupt's answer."""
    return tuple(
        End(
            end.turn.number,
            end.status,
            end.stop_reason,
            None if end.status == "committed" else digest(end.user_body),
        )
        for end in turns
    )
