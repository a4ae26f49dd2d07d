"""The simulated processes. Each is a manager with a link to the disk, and may die or be stopped at
any moment.

The code of a process that has died still runs to its orderly end. But nothing that it does reaches
anybody, and nothing reaches it. For the rest of the world that is the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from llmsession.errors import ProviderError, SessionError
from llmsession.session.handles.session import LLMSession
from llmsession.session.manager import SessionManager
from llmsession.session.values.config import Tool
from llmsession.turns.records import ModelRequest, Record
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import ReplyStarted, StreamEvent
from llmsession.turns.usage import Usage

from ..recording.entries import Found
from ..recording.recorder import LocalRecorder
from ..scripted import ScriptedProvider, ScriptedReply
from ..workload.model import Model
from .coverage import Coverage
from .disk import DiskLink, SimDisk

__all__ = ["PROFILE", "Host", "Incarnation", "World"]

T = TypeVar("T")
PROFILE = Profile(name="simulated")
IDLE_S = 0.4


class World:
    """What all processes share: the disk, the clock, the model and the recorder."""

    def __init__(
        self,
        *,
        disk: SimDisk,
        recorder: LocalRecorder,
        model: Model,
        tools: Sequence[Tool],
        group: TaskGroup,
        coverage: Coverage,
    ) -> None:
        self.disk = disk
        self.recorder = recorder
        self.model = model
        self.tools = tuple(tools)
        self.group = group
        self.coverage = coverage
        self.skew_s = 0.0
        self.open_streams = 0

    def report(self, invariant: int, text: str, session: str = "") -> None:
        """Record a violation that the simulation itself has noticed."""
        entry = Found(session=session, invariant=invariant, text=text, **self.recorder.place())
        self.recorder.note(entry)

    def clock(self) -> float:
        """The wall clock, in seconds since the epoch. It may go back."""
        return 1_700_000_000.0 + anyio.current_time() + self.skew_s


class Incarnation:
    """One incarnation of a process, from its start to its death."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.link = self._new_link(world)
        self.owner_is_dead = False
        self.manager: SessionManager
        self.handles: dict[str, LLMSession] = {}
        self._world = world
        self._scope = anyio.CancelScope()
        self._requests = _RequestLog()
        # A dict keeps the order in which they began to wait. So a run is the same each time.
        self._waiting: dict[anyio.CancelScope, None] = {}
        self._begun = anyio.Event()
        self._end = anyio.Event()
        self._ended = anyio.Event()
        self._leaves_open = False
        world.group.start_soon(self._run)

    def _new_link(self, world: World) -> DiskLink:
        return DiskLink(world.disk, world.group)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of the manager."""
        return self._world.tools

    async def begin(self) -> None:
        """What is done first, once the manager runs."""

    async def finish(self) -> None:
        """What is done last, while the manager still runs."""

    def begins(self, what: str, session: str) -> None:
        """A request or a tool of *session* begins now, or a preview is published. *session* is ""
        for a summary."""

    @property
    def has_begun(self) -> bool:
        """Whether the manager is running."""
        return self._begun.is_set() and not self.owner_is_dead

    async def ready(self) -> None:
        """Wait until the manager is running."""
        await self._begun.wait()

    async def _run(self) -> None:
        world = self._world
        inner = ScriptedProvider(self._reply, name="simulated", profile=PROFILE)
        try:
            with self._scope:
                async with SessionManager(
                    provider=_LinkedProvider(inner, self),
                    store=self.link,
                    clock=world.clock,
                    tools=self.tools,
                    idle_s=IDLE_S,
                    logger=world.coverage.logger(lambda: self.owner_is_dead),
                    environ={},
                    observers=[self._requests],
                ) as self.manager:
                    await self.begin()
                    self._begun.set()
                    await self._end.wait()
                    end = self.manager.release if self._leaves_open else self.manager.close
                    for closed in await end():
                        world.recorder.note_end(self.manager, closed)
                    await self.finish()
        except SessionError as error:
            if not self.owner_is_dead:
                world.report(13, f"a manager ended with {error!r}")
        finally:
            self._begun.set()
            self._ended.set()
        if not self.owner_is_dead:
            world.open_streams += inner.open_streams

    def _reply(self, request: Request, tag: StepTag) -> ScriptedReply:
        world = self._world
        session = self._requests.session_of(request)
        # A request of a fenced owner belongs to no turn any more.
        if tag.turn and self.owns(session):
            world.recorder.requested(session, request, tag, seq=world.disk.head(session))
        return world.model.reply(session, request, tag)

    def session_of(self, request: Request) -> str:
        """The session of *request*; "" if it belongs to no turn."""
        return self._requests.session_of(request)

    def note_spent(self, session: str, epoch: int, tag: StepTag, usage: Usage) -> None:
        """Record the cost of the reply to a request of *epoch*, which begins now. It is lost if the
        session was activated anew since the request."""
        is_streaming = self._world.coverage.phase(session, tag.turn) == "STREAMING"
        if is_streaming and self.owns(session) and self.link.held_epochs[session] == epoch:
            self._world.disk.spent(session, tag.turn, epoch, usage)

    def owns(self, session: str) -> bool:
        """Whether this incarnation owns *session*, as the disk says."""
        epoch = self.link.held_epochs.get(session)
        return epoch is not None and epoch == self._world.disk.epoch(session)

    async def end(self, *, leave_open: bool = False) -> None:
        """Shut down in order. With *leave_open*, open turns are left to the next owner."""
        self._leaves_open = leave_open
        self._end.set()
        await self._ended.wait()

    def kill(self) -> None:
        """Die at once."""
        self.owner_is_dead = True
        self.link.cut()
        self.handles.clear()
        self.disconnect()
        self._scope.cancel()

    def disconnect(self) -> None:
        """Break the connections of all clients."""
        for scope in tuple(self._waiting):
            scope.cancel()

    async def within(self, perform: Callable[[], Awaitable[T]]) -> T | None:
        """The answer that a client of this process gets. None if the process dies first."""
        with anyio.CancelScope() as scope:
            if self.owner_is_dead:
                return None
            with self.waiting(scope):
                return await perform()
        return None

    @contextmanager
    def waiting(self, scope: anyio.CancelScope) -> Iterator[None]:
        """*scope* waits for this process, whose death cancels it."""
        self._waiting[scope] = None
        try:
            yield
        finally:
            del self._waiting[scope]

    async def opened(self, session: str, *, takeover: bool = False) -> LLMSession:
        """A handle of *session* in this process. Raises the errors of ``SessionManager.open``."""
        handle = self.handles.get(session)
        if takeover or handle is None or handle.status().phase in ("closed", "moved"):
            handle = await self.manager.open(session, takeover=takeover, unbound="warn")
            if not self.owner_is_dead:
                self.handles[session] = handle
        return handle


class _RequestLog:
    """Finds the session of a request. The text does not tell, as a fork has its parent's prompt."""

    def __init__(self) -> None:
        self._sessions: dict[int, tuple[Request, str]] = {}

    def session_of(self, request: Request) -> str:
        """The session; "" for a request that belongs to no turn."""
        _, session = self._sessions.get(id(request), (request, ""))
        return session

    def requested(self, session: str, turn: int, request: Request, **_: int) -> None:
        """Called before the provider is."""
        # The request stays referenced, so that no other one gets its address.
        self._sessions[id(request)] = (request, session)

    def recorded(self, session: str, record: Record) -> None: ...

    def began(self, session: str, turn: int) -> None: ...

    def ended(self, session: str, turn: int, spent: ModelRequest, **_: str | None) -> None: ...

    def charged(self, session: str, spent: ModelRequest, cost_nano_usd: int | None) -> None: ...


class _LinkedProvider:
    """A provider behind the link that separates a process from the world."""

    def __init__(self, inner: ScriptedProvider, incarnation: Incarnation) -> None:
        self._inner = inner
        self._life = incarnation
        self.name = inner.name

    def profile(self, model: str) -> Profile:
        return self._inner.profile(model)

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        incarnation = self._life
        session = incarnation.session_of(request)
        epoch = incarnation.link.held_epochs.get(session, 0)
        incarnation.begins("a request", session)
        await incarnation.link.flows.wait()
        if incarnation.owner_is_dead:
            raise ProviderError("the process is dead", kind="fatal")
        events = self._inner.stream(request, tag)
        try:
            async for event in events:
                await incarnation.link.flows.wait()
                if isinstance(event, ReplyStarted) and event.usage is not None and tag.turn:
                    incarnation.note_spent(session, epoch, tag, event.usage)
                yield event
        finally:
            await events.aclose()


class Host:
    """A place where one incarnation of a process follows another."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self.number = number
        self._up = anyio.Event()
        self._life: Incarnation
        self._start()

    def _start(self) -> None:
        self._life = self._new_life()
        self._up.set()

    def _new_life(self) -> Incarnation:
        return Incarnation(self._world, self.number)

    @property
    def is_up(self) -> bool:
        """Whether the process is running."""
        return self._up.is_set()

    async def incarnation(self) -> Incarnation:
        """The current incarnation, or the next one if there is none."""
        await self._up.wait()
        incarnation = self._life
        await incarnation.ready()
        return incarnation

    async def kill(self, down_s: float) -> None:
        """Kill the process, and start the next incarnation after *down_s*."""
        if not self.is_up:
            return
        self._up = anyio.Event()
        self._life.kill()
        await anyio.sleep(down_s)
        self._start()

    async def freeze(self, seconds: float) -> None:
        """Stop the process for *seconds*."""
        link = self._life.link
        if link.is_cut or not link.flows.is_set():
            return
        link.flows = anyio.Event()
        await anyio.sleep(seconds)
        link.flows.set()
