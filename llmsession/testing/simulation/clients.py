"""The clients of one simulated session: they send, interrupt and change it, across the incarnations
of the processes that own it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeVar

import anyio

from llmsession.errors import (
    Overloaded,
    SessionClosed,
    SessionError,
    SessionInUse,
    SessionMoved,
    SessionNotFound,
    StoreError,
)
from llmsession.session.handles.session import LLMSession, Turn, live_state
from llmsession.session.manager import runtime_of
from llmsession.session.values.config import SessionConfig
from llmsession.session.values.outcome import Closed, TurnOutcome
from llmsession.transport.interface import SessionInterface

from ..workload.client import Client, Connection
from ..workload.model import QUIESCENCE
from ..workload.tools import words
from .processes import Host, Incarnation, World
from .schedule import Change, Heard, Interrupt, Send

__all__ = ["SimClient"]

T = TypeVar("T")
MAX_TRIES = 40
RETRY_S = 0.02
_RETRIED = (StoreError, SessionMoved, SessionClosed, SessionInUse, Overloaded)


class SimConnection(Connection):
    """A handle of the session, in the incarnation that owns it."""

    def __init__(self, client: SimClient, incarnation: Incarnation, handle: LLMSession) -> None:
        super().__init__(handle)
        self.incarnation = incarnation
        self.handle = handle
        self._client = client

    async def within(self, perform: Callable[[], Awaitable[T]]) -> T | None:
        with suppress(SessionError):
            return await self.incarnation.within(perform)
        return None

    def knows(self, cursor: int) -> bool:
        # A zombie knows less than what was seen.
        return 0 <= cursor <= live_state(self.handle).head

    def ending(self, *, is_complete: bool) -> str:
        # Nobody can tell the subscribers of a zombie what they do not hear of. Where the session
        # has moved, they are told to read on elsewhere.
        has_moved = self.handle.status().phase == "moved"
        owns = self.incarnation.owns(self._client.name)
        is_whole = self._client.is_over and owns and not has_moved
        return "closed" if is_complete and is_whole else "vanished"

    def read(self) -> None:
        """Record the history and the state."""
        if not self.incarnation.owner_is_dead:
            self._client.recorder.read_history(self.handle)
            self._client.recorder.read_state(self.handle)


class SimClient(Client):
    """One session as its clients know it. They talk to the process number ``home``."""

    def __init__(
        self, world: World, hosts: Sequence[Host], name: str, home: int, seed: str
    ) -> None:
        super().__init__(name)
        self.home = home
        self.forks: list[SimClient] = []
        self._world = world
        self.recorder = world.recorder
        self._hosts = hosts
        self._seed = f"{seed}/{name}"
        self._fork_count = 0
        self._last_owner: SimConnection | None = None
        """The process that had the session before the last takeover."""

    # Reaching it.

    async def create(self, config: SessionConfig) -> None:
        """Create the session at home. There are no faults yet."""
        incarnation = await self._hosts[self.home].incarnation()
        handle = await incarnation.manager.create(config, session_id=self.name)
        incarnation.handles[self.name] = handle

    async def reach(self, *, takeover: bool = False) -> SimConnection | None:
        for attempt in range(MAX_TRIES):
            incarnation = await self._hosts[self.home].incarnation()
            takes = takeover or attempt > MAX_TRIES // 2
            opened = partial(incarnation.opened, self.name, takeover=takes)
            try:
                handle = await incarnation.within(opened)
            except SessionInUse:
                await self._find_home()
            except SessionNotFound:  # created, and removed again before it had a record
                return None
            except (StoreError, SessionClosed, SessionMoved):
                pass
            else:
                if handle is not None and not incarnation.owner_is_dead:
                    return SimConnection(self, incarnation, handle)
            await anyio.sleep(RETRY_S)
        return None

    async def _find_home(self) -> None:
        """Switch to the process that owns the session, like a client that is redirected."""
        holder = await self._world.disk.holder(self.name)
        for host in self._hosts:
            if host.is_up and holder is not None:
                incarnation = await host.incarnation()
                if runtime_of(incarnation.manager).owner == holder:
                    self.home = host.number

    async def move(self, how: str) -> None:
        """Open the session in the other process: after it was closed here, or while in use."""
        other = (self.home + 1) % len(self._hosts)
        if how == "take" and self._hosts[self.home].is_up:
            incarnation = await self._hosts[self.home].incarnation()
            handle = incarnation.handles.get(self.name)
            self._last_owner = SimConnection(self, incarnation, handle) if handle else None
        if how == "close":
            connection = await self.reach()
            if connection is not None:
                await self._close(connection)
                connection.incarnation.handles.pop(self.name, None)
        self.home = other
        await self.reach(takeover=how == "take")

    async def evict(self) -> None:
        """Drop the handle, and let idle sessions be evicted."""
        incarnation = await self._hosts[self.home].incarnation()
        incarnation.handles.pop(self.name, None)
        await incarnation.within(runtime_of(incarnation.manager).evict_idle)

    # Asking.

    async def ask(
        self,
        command: str,
        perform: Callable[[SessionInterface], Awaitable[Any]],
        *,
        heard: Heard = "once",
        command_id: str | None = None,
        first: SimConnection | None = None,
        **options: Any,
    ) -> Any:
        """Perform a command, *first* there, until it is answered. One without a *command_id* is
        not repeated."""
        options["command_id"] = command_id
        if heard == "twice":
            results: list[Any] = []

            async def one() -> None:
                results.append(await self._ask(command, perform, first, None, options))

            async with anyio.create_task_group() as group:
                group.start_soon(one)
                group.start_soon(one)
            return next((result for result in results if result is not None), None)
        patience_s = Random(f"{self._seed}/{command_id}").choice((0.0, 0.001, 0.01))
        return await self._ask(
            command, perform, first, patience_s if heard == "lost" else None, options
        )

    async def _ask(
        self,
        command: str,
        perform: Callable[[SessionInterface], Awaitable[Any]],
        first: SimConnection | None,
        patience_s: float | None,
        options: dict[str, Any],
    ) -> Any:
        answer: Any = None
        connection: SimConnection | None
        for attempt in range(MAX_TRIES):
            connection = first if first is not None and not attempt else await self.reach()
            if connection is None:
                return None
            answer = await self._call(
                connection,
                command,
                partial(_answer_of, perform, connection.handle),
                patience_s=patience_s if not attempt else None,
                **options,
            )
            is_answered = answer is not None and not isinstance(answer, _RETRIED)
            if is_answered or options["command_id"] is None:
                return answer
            if isinstance(answer, SessionInUse):
                await self._find_home()
            await anyio.sleep(RETRY_S)
        return answer

    async def _call(
        self,
        connection: SimConnection,
        command: str,
        perform: Callable[[], Awaitable[Any]],
        **options: Any,
    ) -> Any:
        scope, incarnation = anyio.CancelScope(), connection.incarnation
        if incarnation.owner_is_dead:
            scope.cancel()
        with incarnation.waiting(scope):
            return await self.recorder.call(
                connection.handle, command, perform, until=scope, **options
            )

    # The steps of a schedule.

    async def play(self, step: Send | Interrupt | Change) -> None:
        """Perform *step*, and record the history and the state afterwards."""
        match step:
            case Send():
                await self._send(step)
            case Interrupt():
                await self._interrupt(step)
            case Change():
                await self._change(step)

    async def _read(self) -> None:
        connection = await self.reach()
        if connection is not None:
            connection.read()

    async def _send(self, step: Send) -> None:
        token = f"{self.name}#{step.number}"
        repeats = step.heard != "once" or step.number % 3 == 0
        turn = await self.send(
            token,
            f"{token}: {words(Random(token), step.chars)}",
            first=self._last_owner if step.to_last else None,
            when_busy=step.when_busy,
            heard=step.heard,
            command_id=f"send {step.number}" if repeats else None,
            head=None if step.head == "any" else await self._head(is_other=step.head == "other"),
        )
        if isinstance(turn, Turn):
            await self._await(turn)

    async def _head(self, *, is_other: bool) -> int | None:
        """The last turn of the history, or another one. None if there is none."""
        connection = await self.reach()
        head = live_state(connection.handle).head_turn if connection is not None else None
        return head + 1 if head is not None and is_other else head

    async def _await(self, turn: Turn) -> str | None:
        """The stop reason of the turn. Any process may have written its end."""
        number = turn.id.number
        for _ in range(MAX_TRIES):
            connection = await self.reach()
            if connection is None:
                return None
            outcome = await connection.within(partial(_outcome_of, connection.handle, number))
            if outcome is not None:
                self.recorder.note_outcome(self.name, number, outcome)
                connection.read()
                return outcome.stop_reason
            await anyio.sleep(RETRY_S)
        return None

    async def _interrupt(self, step: Interrupt) -> None:
        turn = None
        if step.target != "all":
            connection = await self.reach()
            if connection is None:
                return
            turn = _target(step, connection.handle)
        command_id = f"stop {step.at}" if step.heard != "once" else None
        await self.interrupt(turn, policy=step.policy, heard=step.heard, command_id=command_id)
        await self._read()

    async def _change(self, step: Change) -> None:
        connection = await self.reach()
        if connection is None:
            return
        handle, kind = connection.handle, step.kind
        turns = list(dict.fromkeys(message.turn for message in handle.conversation()))
        turn = turns[min(len(turns) - 1, int(step.pick * len(turns)))] if turns else 0
        options: dict[str, Any] = {"heard": step.heard}
        if step.heard != "once" and kind != "compact":
            options["command_id"] = f"{kind} {step.at}"
        if kind in ("clear", "purge", "rewind", "forget", "fork"):
            options["when_busy"] = step.when_busy
        if kind == "compact":
            await self.compact(**options)
        elif kind == "cancel_compaction":
            handle.cancel_compaction()
        elif kind == "fork":
            await self._fork(turn or None, options)
        else:
            await self.change(kind, self._argument(step, handle, turn), **options)
        await self._read()

    def _argument(self, step: Change, handle: LLMSession, turn: int) -> Any:
        """The arguments of a change of the kind of *step*. It is about *turn*."""
        match step.kind:
            case "rewind":
                return turn
            case "forget":
                return turn or 1e12
            case "configure":
                return {"system": f"{self.name} variant {step.at}"}
            case "label":
                return {"at": f"{step.at}"}
            case "summaries":
                calls = list(live_state(handle).call_turns) or ["none"]
                return {calls[int(step.pick * (len(calls) - 1))]: "in a few words"}
            case "set_summary":
                return f"what was said up to turn {turn}", turn or 1
            case _:
                return None

    async def _fork(self, turn: int | None, options: dict[str, Any]) -> None:
        self._fork_count += 1
        name = f"{self.name}-{self._fork_count}"
        client = type(self)(self._world, self._hosts, name, self.home, self._seed)
        fork = await self.change("fork", (turn, name), **options)
        if isinstance(fork, LLMSession):
            self._check_fork(fork, turn)
            self.forks.append(client)
            await client.change("configure", {"system": f"{name} is a fork"})

    def _check_fork(self, fork: LLMSession, turn: int | None) -> None:
        """Check that a fork at a turn ends with that turn, unless it was forgotten meanwhile."""
        if turn is None:
            return
        history, ended = fork.conversation(), live_state(fork).ended.get(turn)
        if ended != "committed" or (history and history[-1].turn != turn):
            last = history[-1].turn if history else "none"
            text = f"a fork at turn {turn}, which is {ended} there, ends with turn {last}"
            self._world.report(12, text, fork.id)

    # The end.

    async def check_quiescent(self) -> None:
        """Send after all faults have stopped. The send must be answered."""
        for attempt in range(3):
            token = f"{self.name}#{attempt}{QUIESCENCE}"
            turn = await self.send(token, f"{token}: and now?", command_id=token)
            reason = await self._await(turn) if isinstance(turn, Turn) else None
            if reason == "end_turn":
                return
            if reason != "context_too_large":
                answer = repr(turn) if reason is None else f"its turn ended as {reason}"
                text = f"in the quiescent phase a send is not answered: {answer}"
                self._world.report(2, text, self.name)
                return
            await self.change("clear")

    async def finish(self) -> None:
        """Close the session in the process in which it is live."""
        connection = await self._reach_last()
        self.is_over = True
        if connection is None:
            if self._world.disk.head(self.name):
                self._world.report(13, "in the quiescent phase nobody can open it", self.name)
            return
        connection.read()
        closed = await self._close(connection)
        if isinstance(closed, Closed):
            self.recorder.note_end(connection.incarnation.manager, closed)

    async def _reach_last(self) -> SimConnection | None:
        return await self.reach()

    async def _close(self, connection: SimConnection) -> Any:
        return await self._call(connection, "close", connection.handle.close)


async def _answer_of(
    perform: Callable[[SessionInterface], Awaitable[Any]], handle: LLMSession
) -> Any:
    """The result of the command, with True instead of None."""
    value = await perform(handle)
    return True if value is None else value


async def _outcome_of(handle: LLMSession, turn: int) -> TurnOutcome:
    return await handle.turn(turn).outcome()


def _target(step: Interrupt, handle: LLMSession) -> int | None:
    state = live_state(handle)
    match step.target:
        case "running":
            running = state.running()
            return running.number if running is not None else None
        case "newest":
            return state.counter.last or None
        case "unknown":
            return state.counter.last + 7
        case "all":
            return None
