"""Records a run while it happens: every command through ``call``, every reading as a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import anyio
import msgspec

from llmsession.compaction.rules.check import Checker
from llmsession.errors import SessionError
from llmsession.session.handles.session import LLMSession, live_state
from llmsession.session.manager import SessionManager, runtime_of
from llmsession.session.values.outcome import (
    Closed,
    CompactionOutcome,
    InterruptOutcome,
    TurnOutcome,
)
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import Lease, SessionRow
from llmsession.transport.interface import SessionInterface, TurnInterface
from llmsession.turns.request import Profile, Request, StepTag

from .entries import (
    Abandoned,
    End,
    Ended,
    Entry,
    HistoryRead,
    Invoked,
    Logged,
    OutcomeSeen,
    Refused,
    Requested,
    Returned,
    Rewritten,
    StateRead,
)
from .fingerprints import digest, state_parts

__all__ = [
    "KeepingStore",
    "LocalRecorder",
    "Recorder",
    "compaction_answer",
    "interrupt_answer",
    "tasks_left",
    "turn_answer",
]

T = TypeVar("T")
TAIL_BYTES = 160


class Recorder:
    """The entries of one run. Used inside one event loop, with any kind of session."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._start = anyio.current_time()
        self._order = 0
        self._calls = 0

    def now(self) -> float:
        """Seconds since the run began."""
        return anyio.current_time() - self._start

    def since_start(self, time: float | None) -> float:
        """The loop's *time* in seconds since the run began; 0 for None."""
        return 0.0 if time is None else round(time - self._start, 6)

    def place(self) -> dict[str, Any]:
        """The next ``order``, and ``at``."""
        self._order += 1
        return {"order": self._order, "at": round(self.now(), 6)}

    def note(self, entry: Entry) -> None:
        """Add an entry to the recording."""
        self.entries.append(entry)

    async def call(
        self,
        session: SessionInterface,
        command: str,
        perform: Callable[[], Awaitable[T]],
        *,
        answer: Callable[[T], dict[str, Any]] = lambda value: {},
        patience_s: float | None = None,
        until: anyio.CancelScope | None = None,
        **arguments: Any,
    ) -> T | SessionError | None:
        """Call a command, and record the call and its result.

        Returns the answer, or the error if the command was refused. Returns None if *patience_s*
        ran out, or if the scope *until*, which is entered here, was cancelled. Any other exception
        passes: then nobody was answered.
        """
        self._calls += 1
        name, call = session.id, self._calls
        self.note(Invoked(session=name, call=call, command=command, **arguments, **self.place()))
        with until or anyio.CancelScope(), anyio.move_on_after(patience_s):
            try:
                value = await perform()
            except SessionError as error:
                kind, text = type(error).__name__, str(error)[:200]
                self.note(Refused(session=name, call=call, error=kind, text=text, **self.place()))
                return error
            # The place is taken before any await: the answer has arrived now.
            fields = {**answer(value), **self.place()}
            fields.update(await self._position(session, command))
            self.note(Returned(session=name, call=call, **fields))
            return value
        self.note(Abandoned(session=name, call=call, **self.place()))
        return None

    async def _position(self, session: SessionInterface, command: str) -> dict[str, int]:
        """Where the session is when *command* has been answered."""
        return {"seq": (await session.read_status()).seq}

    async def await_outcome(self, session: SessionInterface, turn: TurnInterface) -> str:
        """Wait for the end of *turn* and record its outcome; return its stop reason."""
        number = turn.id.number
        try:
            outcome = await turn.outcome()
        except SessionError as error:
            kind = type(error).__name__
            self.note(
                OutcomeSeen(
                    session=session.id,
                    turn=number,
                    status="error",
                    stop_reason=kind,
                    **self.place(),
                )
            )
            return kind
        self.note_outcome(session.id, number, outcome)
        return outcome.stop_reason

    def note_outcome(self, session: str, turn: int, outcome: TurnOutcome) -> None:
        """Record the outcome of *turn* that somebody was told."""
        self.note(
            OutcomeSeen(
                session=session,
                turn=turn,
                status=outcome.status,
                stop_reason=outcome.stop_reason,
                unread_steers=len(outcome.unread_steers),
                **self.place(),
            )
        )

    def note_end(self, manager: SessionManager, closed: Closed) -> None:
        """Record what ``close`` said, and which works of the session are really running."""
        suffix = f" in {closed.session}"
        running = tuple(name for name in runtime_of(manager).running_works if name.endswith(suffix))
        self.note(
            Ended(
                session=closed.session,
                still_running=closed.still_running,
                running=running,
                **self.place(),
            )
        )

    async def note_log(
        self,
        store: KeepingStore,
        session: str,
        written_at: Mapping[tuple[str, int], float] | None = None,
    ) -> None:
        """Record the log of *session* as it was written, and each body that a rewrite has put in
        the place of another."""
        replaced = store.replaced.get(session, {})
        for stored in await store.read(session):
            seq = stored.seq
            bodies = [*replaced.get(seq, []), stored.body]
            time_s = self.since_start((written_at or {}).get((session, seq)))
            self.note(Logged(session=session, seq=seq, body=msgspec.Raw(bodies[0]), at=time_s))
            for body in bodies[1:]:
                self.note(Rewritten(session=session, seq=seq, body=msgspec.Raw(body)))


class LocalRecorder(Recorder):
    """A recorder that also reads the state of sessions in this process.

    It keeps the objects that it has seen, so that no two of them ever share an address.
    """

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.sessions: dict[str, LLMSession] = {}
        self._profile = profile
        self._checkers: dict[str, Checker] = {}
        self._numbers: dict[int, tuple[int, object]] = {}

    async def _position(self, session: SessionInterface, command: str) -> dict[str, int]:
        assert isinstance(session, LLMSession)
        position = {"seq": live_state(session).head}
        if command == "interrupt":
            position["owner"] = session.status().epoch
        return position

    def read_history(self, session: LLMSession) -> None:
        """Record ``conversation()``, by the identity of its objects."""
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
        """Record the live state, as digests."""
        state = live_state(session)
        parts = state_parts(state)
        self.note(StateRead(session=session.id, seq=state.head, parts=parts, **self.place()))

    def requested(
        self, session: str, request: Request, tag: StepTag, *, seq: int | None = None
    ) -> None:
        """Record a request that a provider was sent; *seq* is the session's head at that time."""
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

    def _number(self, value: object) -> int:
        known = self._numbers.get(id(value))
        if known is None:
            # `()` is one object for all sessions, and so may be its number.
            known = self._numbers[id(value)] = (len(self._numbers) + 1, value)
        return known[0]


# The fields of `Returned`, by the kind of answer.


def turn_answer(turn: TurnInterface) -> dict[str, Any]:
    """The answer to a send."""
    return {"turn": turn.id.number}


def interrupt_answer(outcome: InterruptOutcome) -> dict[str, Any]:
    """The answer to an interrupt, with the turns that it ended."""
    ends = tuple(
        End(
            end.turn.number,
            end.status,
            end.stop_reason,
            None if end.status == "committed" else digest(end.user_body),
        )
        for end in outcome.turns
    )
    turn = outcome.turn.number if outcome.turn else None
    return {"result": str(outcome.result), "turn": turn, "ended": ends}


def compaction_answer(outcome: CompactionOutcome) -> dict[str, Any]:
    """The answer to a request for a compaction."""
    return {
        "result": "applied" if outcome.applied else f"not applied, {outcome.reason}",
        "tokens_before": outcome.tokens_before,
        "tokens_after": outcome.tokens_after,
    }


def tasks_left() -> tuple[str, ...]:
    """Names of the package's tasks that are still running."""
    names = [info.name for info in anyio.get_running_tasks() if info.name is not None]
    return tuple(name for name in names if name.startswith("llmsession "))


class KeepingStore(MemoryStore):
    """Keeps the bodies that a rewrite replaces, so that requests and events from before the rewrite
    can be compared with them."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: dict[str, dict[int, list[bytes]]] = {}
        """By session and seq: the bodies that were replaced, the original one first."""

    def row_of(self, session: str) -> SessionRow | None:
        """The session's row, at once; None where there is none."""
        log = self._logs.get(session)
        return log.row if log else None

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        before = {stored.seq: stored.body for stored in await self.read(lease.session)}
        await super().rewrite(lease, bodies)
        replaced = self.replaced.setdefault(lease.session, {})
        for seq in bodies:
            replaced.setdefault(seq, []).append(before[seq])
