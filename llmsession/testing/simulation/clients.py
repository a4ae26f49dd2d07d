"""The clients of one simulated session: who sends, interrupts and changes it, answers its calls and
listens to it, across the lives of the processes that own it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any

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
from llmsession.session.values.config import SessionConfig
from llmsession.session.values.outcome import Closed, CompactionOutcome, InterruptOutcome

from ..recording.entries import OutcomeSeen
from ..recording.recorder import ends_of
from ..workload.model import words
from .model import CALM
from .processes import Host, Incarnation, World
from .schedule import Change, Heard, Interrupt, Send

__all__ = ["SimSession"]

MAX_TRIES = 40
RETRY_S = 0.02
PATIENCE_S = 60.0
"""Virtual seconds after which somebody who waits was forgotten: all that takes time is shorter."""


class SimSession:
    """One session as its clients know it. ``home`` is the process that they speak to."""

    def __init__(
        self, world: World, hosts: Sequence[Host], name: str, home: int, seed: str
    ) -> None:
        self.name = name
        self.home = home
        self.is_over = False
        """The last commands were answered: subscribers read what there is, and end."""
        self._world = world
        self._recorder = world.recorder
        self._hosts = hosts
        self._seed = f"{seed}/{name}"
        self._forks = 0
        self._last: tuple[Incarnation, LLMSession] | None = None
        """The owner from which it was taken, and a handle there."""
        self.forks: list[SimSession] = []

    # Reaching it.

    async def create(self, config: SessionConfig) -> None:
        """Make it, in its home. No fault is about yet."""
        incarnation = await self._hosts[self.home].incarnation()
        incarnation.handles[self.name] = await incarnation.manager.create(
            config, session_id=self.name
        )

    async def reach(self, *, takeover: bool = False) -> tuple[Incarnation, LLMSession] | None:
        """The life that owns the session, and a handle there; None if it cannot be had."""
        for attempt in range(MAX_TRIES):
            incarnation = await self._hosts[self.home].incarnation()
            takes = takeover or attempt > MAX_TRIES // 2
            try:
                handle = await incarnation.within(
                    partial(incarnation.opened, self.name, takeover=takes)
                )
            except SessionInUse:
                await self._find_home()
            except SessionNotFound:  # made, and taken back before it had a record
                return None
            except (StoreError, SessionClosed, SessionMoved):
                pass
            else:
                if handle is not None and not incarnation.owner_is_dead:
                    return incarnation, handle
            await anyio.sleep(RETRY_S)
        return None

    async def _find_home(self) -> None:
        """Speak to the process that holds it, as a client that is told where to go."""
        holder = await self._world.disk.holder(self.name)
        for process in self._hosts:
            if process.is_up and holder is not None:
                incarnation = await process.incarnation()
                if incarnation.manager.owner == holder:
                    self.home = process.number

    async def move(self, how: str) -> None:
        """Let the other process have it: after it was closed here, or while it is in use."""
        other = (self.home + 1) % len(self._hosts)
        if how == "take" and self._hosts[self.home].is_up:
            incarnation = await self._hosts[self.home].incarnation()
            handle = incarnation.handles.get(self.name)
            self._last = (incarnation, handle) if handle is not None else None
        if how == "close":
            found = await self.reach()
            if found is not None:
                incarnation, handle = found
                await self._call(incarnation, handle, "close", handle.close)
                incarnation.handles.pop(self.name, None)
        self.home = other
        await self.reach(takeover=how == "take")

    async def evict(self) -> None:
        """Hold it no more, and have what is idle evicted."""
        incarnation = await self._hosts[self.home].incarnation()
        incarnation.handles.pop(self.name, None)
        await incarnation.within(incarnation.manager.evict_idle)

    # Asking.

    async def _call(
        self,
        incarnation: Incarnation,
        handle: LLMSession,
        command: str,
        perform: Callable[[], Awaitable[Any]],
        **how: Any,
    ) -> Any:
        scope = anyio.CancelScope()
        if incarnation.owner_is_dead:
            scope.cancel()
        with incarnation.waiting(scope):
            return await self._recorder.call(handle, command, perform, until=scope, **how)

    async def ask(
        self,
        command: str,
        perform: Callable[[LLMSession], Awaitable[Any]],
        *,
        heard: Heard = "once",
        command_id: str | None = None,
        first: tuple[Incarnation, LLMSession] | None = None,
        **how: Any,
    ) -> Any:
        """Ask for something, *first* there, until it is answered; once what has no *command_id*.

        Returns the answer, the error that it was refused with, or None.
        """
        asked: dict[str, Any] = {"command_id": command_id, "first": first, "how": how}
        if heard == "twice":
            results: list[Any] = []

            async def one() -> None:
                results.append(await self._ask(command, perform, **asked))

            async with anyio.create_task_group() as group:
                group.start_soon(one)
                group.start_soon(one)
            return next((each for each in results if each is not None), None)
        patience_s = Random(f"{self._seed}/{command_id}").choice((0.0, 0.001, 0.01))
        return await self._ask(
            command, perform, patience_s=patience_s if heard == "lost" else None, **asked
        )

    async def _ask(
        self,
        command: str,
        perform: Callable[[LLMSession], Awaitable[Any]],
        *,
        command_id: str | None,
        patience_s: float | None = None,
        first: tuple[Incarnation, LLMSession] | None,
        how: dict[str, Any],
    ) -> Any:
        answered: Any = None
        for attempt in range(MAX_TRIES):
            found = first if first is not None and not attempt else await self.reach()
            if found is None:
                return None
            incarnation, handle = found
            answered = await self._call(
                incarnation,
                handle,
                command,
                partial(_told, perform, handle),
                command_id=command_id,
                patience_s=patience_s if not attempt else None,
                **how,
            )
            if answered is not None and not isinstance(answered, _ASK_AGAIN):
                return answered
            if command_id is None:
                return answered
            if isinstance(answered, SessionInUse):
                await self._find_home()
            await anyio.sleep(RETRY_S)
        return answered

    async def send(self, step: Send) -> None:
        """Perform a ``send`` of the story."""
        token = f"{self.name}#{step.number}"
        repeats = step.heard != "once" or step.number % 3 == 0
        turn = await self._say(
            token,
            words(Random(token), step.chars),
            first=self._last if step.to_last else None,
            when_busy=step.when_busy,
            heard=step.heard,
            command_id=f"send {step.number}" if repeats else None,
            head=None if step.head == "any" else await self._head(step.head == "other"),
        )
        if isinstance(turn, Turn):
            await self._await(turn)

    async def _head(self, other: bool) -> int | None:
        """The turn that the history ends with; or *other* than that. None where there is none."""
        found = await self.reach()
        seen = live_state(found[1]).head_turn if found is not None else None
        return seen + 1 if seen is not None and other else seen

    async def _say(
        self,
        token: str,
        text: str,
        *,
        when_busy: Any,
        heard: Heard,
        command_id: str | None,
        head: int | None = None,
        first: tuple[Incarnation, LLMSession] | None = None,
    ) -> Any:
        return await self.ask(
            "send",
            lambda handle: handle.send(
                f"{token}: {text}", when_busy=when_busy, command_id=command_id, expected_head=head
            ),
            answer=lambda turn: {"turn": turn.id.number},
            token=token,
            when_busy=when_busy,
            heard=heard,
            command_id=command_id,
            head=head,
            first=first,
        )

    async def _await(self, turn: Turn) -> str | None:
        """The stop reason of the turn's end, whoever writes it."""
        number = turn.id.number
        for _ in range(MAX_TRIES):
            found = await self.reach()
            if found is None:
                return None
            incarnation, handle = found
            try:
                told = await incarnation.within(handle.turn(number).outcome)
            except SessionError:
                told = None
            if told is not None:
                self._recorder.note(
                    OutcomeSeen(
                        session=self.name, turn=number, status=told.status,
                        stop_reason=told.stop_reason, unread_steers=len(told.unread_steers),
                        **self._recorder.place(),
                    )
                )  # fmt: skip
                self._read(incarnation, handle)
                return told.stop_reason
            await anyio.sleep(RETRY_S)
        return None

    def _read(self, incarnation: Incarnation, handle: LLMSession) -> None:
        if not incarnation.owner_is_dead:
            self._recorder.read_history(handle)
            self._recorder.read_state(handle)

    async def interrupt(self, step: Interrupt) -> None:
        """Perform an ``interrupt`` of the story."""

        def answer(outcome: InterruptOutcome) -> dict[str, Any]:
            return {
                "result": str(outcome.result),
                "turn": outcome.turn.number if outcome.turn else None,
                "ended": ends_of(outcome.turns),
            }

        turn = None
        if step.target != "all":
            found = await self.reach()
            if found is None:
                return
            turn = _target(step, found[1])
        command_id = f"stop {step.at}" if step.heard != "once" else None
        await self.ask(
            "interrupt",
            lambda handle: handle.interrupt(turn, policy=step.policy, command_id=command_id),
            answer=answer,
            turn=turn,
            policy=step.policy,
            heard=step.heard,
            command_id=command_id,
        )
        again = await self.reach()
        if again is not None:
            self._read(*again)

    async def change(self, step: Change) -> None:
        """Perform a ``change`` of the story."""
        found = await self.reach()
        if found is None:
            return
        how: dict[str, Any] = {"heard": step.heard}
        if step.heard != "once":
            how["command_id"] = f"{step.kind} {step.at}"
        if step.kind in ("clear", "purge", "rewind", "forget", "fork"):
            how["when_busy"] = step.when_busy
        await self._perform(step, found[1], how)
        again = await self.reach()
        if again is not None:
            self._read(*again)

    async def _perform(self, step: Change, handle: LLMSession, how: dict[str, Any]) -> None:
        turns = list(dict.fromkeys(message.turn for message in handle.conversation()))
        picked = turns[min(len(turns) - 1, int(step.pick * len(turns)))] if turns else 0
        said: dict[str, Any] = {
            name: how.get(name) for name in ("when_busy", "command_id") if name in how
        }
        match step.kind:
            case "compact":
                how.pop("command_id", None)
                await self.ask("compact", lambda h: h.compact(), answer=_compacted, **how)
            case "clear":
                await self.ask("clear", lambda h: h.clear(**said), **how)
            case "purge":
                await self.ask("clear", lambda h: h.clear(purge=True, **said), **how)
            case "rewind":
                await self.ask("rewind", lambda h: h.rewind(picked, **said), **how)
            case "forget":
                await self.ask("forget", lambda h: h.forget(picked or 1e12, **said), **how)
            case "fork":
                await self._fork(picked or None, said, how)
            case "configure":
                system = f"{self.name} variant {step.at}"
                await self.ask("configure", lambda h: h.configure(system=system, **said), **how)
            case "label":
                labels = {"at": f"{step.at}"}
                await self.ask("label", lambda h: h.label(labels, **said), **how)
            case "summaries":
                calls = list(live_state(handle).call_turns) or ["none"]
                summaries = {calls[int(step.pick * (len(calls) - 1))]: "in a few words"}
                await self.ask(
                    "summaries", lambda h: h.store_compact_summaries(summaries, **said), **how
                )
            case "set_summary":
                text = f"what was said up to turn {picked}"
                ask = partial(_set_summary, text=text, upto=picked or 1, **said)
                await self.ask("set_summary", ask, **how)
            case "cancel_compaction":
                handle.cancel_compaction()

    async def _fork(self, at: int | None, said: dict[str, Any], how: dict[str, Any]) -> None:
        self._forks += 1
        name = f"{self.name}-{self._forks}"
        fork = await self.ask("fork", lambda h: h.fork(at, session_id=name, **said), **how)
        if not isinstance(fork, LLMSession):
            return
        self._check_fork(fork, at)
        there = SimSession(self._world, self._hosts, name, self.home, self._seed)
        self.forks.append(there)
        await there.ask("configure", lambda h: h.configure(system=f"{name} is a fork"))

    def _check_fork(self, fork: LLMSession, at: int | None) -> None:
        """A fork at a turn has it, and ends with it, if it was not forgotten meanwhile."""
        if at is None:
            return
        history, ended = fork.conversation(), live_state(fork).ended.get(at)
        if ended != "committed" or (history and history[-1].turn != at):
            last = history[-1].turn if history else "none"
            told = f"a fork at turn {at}, which is {ended} there, ends with turn {last}"
            self._world.found(12, told, fork.id)

    async def calm(self) -> None:
        """The weather is calm: what is said now has to be answered."""
        for attempt in range(3):
            token = f"{self.name}#{attempt}{CALM}"
            turn = await self._say(
                token, "and now?", when_busy="queue", heard="once", command_id=token
            )
            reason = await self._await(turn) if isinstance(turn, Turn) else None
            if reason == "end_turn":
                return
            if reason != "context_too_large":
                told = repr(turn) if reason is None else f"it ended as {reason}"
                self._world.found(2, f"after the storm a send is not answered: {told}", self.name)
                return
            await self.ask("clear", lambda handle: handle.clear())

    async def finish(self) -> None:
        """Close it, wherever it is live."""
        found = await self.reach()
        self.is_over = True
        if found is None:
            if self._world.disk.head(self.name):
                self._world.found(13, "after the storm nobody can open it", self.name)
            return
        incarnation, handle = found
        self._read(incarnation, handle)
        closed = await self._call(incarnation, handle, "close", handle.close)
        if isinstance(closed, Closed):
            incarnation.note_end(closed)


_ASK_AGAIN = (StoreError, SessionMoved, SessionClosed, SessionInUse, Overloaded)


async def _told(perform: Callable[[LLMSession], Awaitable[Any]], handle: LLMSession) -> Any:
    """What the command returns; True where that is nothing."""
    value = await perform(handle)
    return True if value is None else value


async def _set_summary(handle: LLMSession, **said: Any) -> None:
    await handle.set_summary(said.pop("text"), **said)


def _compacted(outcome: CompactionOutcome) -> dict[str, Any]:
    return {
        "result": "applied" if outcome.applied else f"not applied, {outcome.reason}",
        "tokens_before": outcome.tokens_before,
        "tokens_after": outcome.tokens_after,
    }


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
