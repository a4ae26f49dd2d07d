"""Who plays in the session's tests: a stage with a manager and a session, and tools by what
they do. Every stage ends with a look at its log, whatever the test was about."""

from __future__ import annotations

import gc
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from weakref import ref

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llmsession import (
    Event,
    LLMSession,
    Price,
    SessionConfig,
    SessionManager,
    Store,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
)
from llmsession.compaction.rules.check import check_request
from llmsession.session.compacting import compactor
from llmsession.session.handles.session import live_state
from llmsession.session.log.state import SessionState, fold
from llmsession.session.manager import runtime_of
from llmsession.session.values import commands as c
from llmsession.session.values.outcome import TurnOutcome
from llmsession.store import MemoryStore
from llmsession.testing.faulty_store import FaultyStore
from llmsession.testing.scripted import Scripted, ScriptedProvider, ScriptedReply, call
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.request import Profile, Request, StepTag
from tests.session.probes import STATE_FIELDS, delivering

PATIENCE_S = 100_000.0
"""In virtual time: a test that hangs fails at once, and no deadline under test is longer."""
T = TypeVar("T")


class Stage:
    """One manager with one session, ``s``, whose provider plays a script."""

    def __init__(self, manager: SessionManager, provider: ScriptedProvider, store: Store) -> None:
        self.manager = manager
        self.provider = provider
        self.store = store
        self.session: LLMSession

    async def log(self, session: str = "s") -> list[r.Record]:
        return [r.decode_record(record.body) for record in await self.store.read(session)]

    async def kinds(self, session: str = "s") -> list[str]:
        """The kinds of the log's records, in order."""
        return [record.__struct_config__.tag for record in await self.log(session)]  # type: ignore[misc]  # every record has a tag

    async def say(self, *contents: str) -> str:
        """Send each of *contents* and wait for its reply; the last reply."""
        for content in contents:
            reply = await (await self.session.send(content)).text()
        return reply

    async def interrupted(self, content: str, *, after_s: float = 0.0) -> Turn:
        """Send, and interrupt *after_s* later, once nothing more happens by itself."""
        turn = await self.begin(content)
        await anyio.sleep(after_s)
        await self.session.interrupt()
        return turn

    async def begin(self, content: str, **options: Any) -> Turn:
        """Send, and wait until all has happened that can happen without time passing."""
        turn = await self.session.send(content, **options)
        await settled()
        return turn

    async def outcome(self, content: Any, **options: Any) -> TurnOutcome:
        """Send, and wait for the turn's end."""
        return await (await self.session.send(content, **options)).outcome()

    async def started(self, tool: Any, content: Any, **options: Any) -> Turn:
        """Send, and wait until *tool* runs."""
        turn = await self.session.send(content, **options)
        await tool.started.wait()
        return turn

    async def offered(self, content: str, **options: Any) -> Turn:
        """Send, and wait until the caller is offered the turn's first call."""
        turn = await self.session.send(content, **options)
        await first(turn, ToolUse)
        return turn

    async def submit(self, **results: Any) -> None:
        """The caller's results, by the ids of their calls."""
        await self.session.submit_tool_results(
            [ToolResult(call_id, content) for call_id, content in results.items()]
        )

    async def names(self) -> list[str]:
        """The ids of the manager's sessions."""
        return [row.session for row in await self.manager.list()]

    def let_go(self) -> None:
        """Drop the handle of the session."""
        handle = ref(self.session)
        del self.session
        if handle() is not None:  # it is in a cycle
            gc.collect()

    async def evict(self) -> None:
        """Drop the handle of the session, which is then evicted."""
        self.let_go()
        assert await runtime_of(self.manager).evict_idle() == 1
        assert self.manager.live == ()

    async def check(self) -> None:
        """What holds after every test: valid requests, one end a turn, a log that folds."""
        for request in self.provider.requests:
            profile = self.provider.profile(request.model)
            assert check_request(request, profile) == ()
        for row in await self.store.rows():
            check_log(await self.log(row.session))
        session = getattr(self, "session", None)
        if session is not None and session.status().phase in ("idle", "running"):
            log = await self.log(session.id)
            live = live_state(session)
            assert contents(fold(session.id, log[: live.head])) == contents(live)


def contents(state: SessionState) -> dict[str, Any]:
    """A state as plain values, for comparing."""
    held = {name: getattr(state, name) for name in STATE_FIELDS}
    held["counter"] = state.counter.last
    held["config"] = bytes(state.config)
    held["open"] = {
        number: {name: getattr(turn, name) for name in turn.__struct_fields__}
        for number, turn in state.open.items()
    }
    return held


def check_log(log: Sequence[r.Record]) -> None:
    """Seqs without gaps, epochs that grow, one terminal record per turn and nothing after it."""
    assert [record.seq for record in log] == list(range(1, len(log) + 1))
    epochs = [record.epoch for record in log]
    assert epochs == sorted(epochs)
    accepted: list[int] = []
    ended: set[int] = set()
    for record in log:
        if isinstance(record, r.SessionForked):
            ended.update(accepted)  # what was open there is not the fork's
        number = r.turn_of(record)
        if number is None:
            continue
        assert number not in ended
        if isinstance(record, r.TurnAccepted | r.TurnImported):
            assert number not in accepted
            accepted.append(number)
        assert number in accepted
        if r.is_terminal(record) or isinstance(record, r.TurnImported):
            ended.add(number)
    imported = {record.turn for record in log if isinstance(record, r.TurnImported)}
    numbered = [number for number in accepted if number not in imported]
    assert numbered == sorted(numbered)
    assert not imported or not numbered or max(imported) < min(numbered)


@asynccontextmanager
async def stage(
    script: Iterable[Any] | Callable[[Request, StepTag], Scripted] = (),
    *,
    provider: ScriptedProvider | None = None,
    tools: Sequence[Tool] = (),
    tool: Callable[..., Any] | None = None,
    store: Store | None = None,
    profile: Profile | None = None,
    logger: Any = None,
    idle_s: float = 60.0,
    clock: Callable[[], float] = time.time,
    summariser: ScriptedProvider | None = None,
    prices: Mapping[str, Price] | None = None,
    observers: Sequence[Any] = (),
    reopen: bool = False,
    **config: Any,
) -> AsyncIterator[Stage]:
    """A manager, and the session ``s`` of a model ``m``; both are closed at the end. With
    *reopen* it is the session that *store* has, and of *config* only ``recovery`` is used. *tool*
    is the one tool ``t``; *provider* is in place of the one that plays *script*."""
    tools = tools if tool is None else [Tool(name="t", run=tool)]
    provider = provider or ScriptedProvider(script, profile=profile)
    kept: Store = store if store is not None else MemoryStore()
    with anyio.fail_after(PATIENCE_S):
        async with SessionManager(
            provider=provider,
            summariser=summariser,
            store=kept,
            prices=prices,
            logger=logger,
            idle_s=idle_s,
            clock=clock,
            observers=observers,
        ) as manager:
            config.setdefault("model", "m")
            set_up = Stage(manager, provider, kept)
            if reopen:
                recovery = config.get("recovery")
                # A test says which tools are run by whom; "unbound" has tests of its own.
                set_up.session = await manager.open(
                    "s", tools=tools, recovery=recovery, unbound="caller"
                )
            else:
                set_up.session = await manager.create(
                    SessionConfig(tools=tuple(tools), **config), session_id="s"
                )
            async with delivering(kept):
                yield set_up
                await set_up.check()
        assert provider.open_streams == 0
        assert runtime_of(manager).running_works == ()


@asynccontextmanager
async def faulty_stage(
    script: Iterable[Any] | Callable[[Request, StepTag], Scripted] = (), **options: Any
) -> AsyncIterator[tuple[Stage, FaultyStore]]:
    """A stage, and its store, whose faults the test chooses."""
    store = FaultyStore(MemoryStore())
    async with stage(script, store=store, **options) as on:
        yield on, store


@contextmanager
def lasting(seconds: float, *, abs: float) -> Iterator[None]:
    """The body takes so many seconds."""
    before = anyio.current_time()
    yield
    assert anyio.current_time() - before == pytest.approx(seconds, abs=abs)


MINE = Tool(name="mine")
"""A tool that the caller runs."""


@asynccontextmanager
async def offering(
    *calls: str, then: Sequence[Any] = ("ok",), tools: Sequence[Tool] = (MINE,), **options: Any
) -> AsyncIterator[tuple[Stage, Turn]]:
    """A stage whose first turn has offered the caller *calls* of ``mine``, and that turn. The
    replies *then* follow."""
    reply = ScriptedReply()
    for call_id in calls:
        reply += call("mine", id=call_id)
    async with stage([reply, *then], tools=tools, **options) as on:
        yield on, await on.offered("go")


@asynccontextmanager
async def in_tool(
    tool: Any, *then: Any, content: str = "hello", **options: Any
) -> AsyncIterator[tuple[Stage, Turn]]:
    """A stage whose first turn runs *tool* by the call ``c``, and that turn. The replies *then*
    follow."""
    async with stage([call("t", id="c"), *then], tool=tool, **options) as on:
        yield on, await on.started(tool, content)


async def first(events: AsyncIterable[Event], kind: type[T]) -> T:
    """The next event of *kind*; the iteration ends there."""
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"the events ended without a {kind.__name__}")


async def same_as_its_log(on: Stage, session: LLMSession) -> None:
    """The state of *session* in memory is the fold of its log, and its size that of its context."""
    assert contents(fold(session.id, await on.log(session.id))) == contents(live_state(session))
    core = session.reference.actor.core
    size = core.size_now()
    core.builder._size = None  # it knows of none
    assert core.size_now() == size


def unread_send(session: LLMSession) -> c.Send:
    """A send that is enqueued, and that the actor of *session* has not read yet."""
    actor = session.reference.actor
    send = c.Send(
        actor.mailbox.number(), None,
        body=encode_blocks("unread"), when_busy="queue", expected_head=None,
    )  # fmt: skip
    actor.put(send)
    return send


@asynccontextmanager
async def meanwhile(
    *calls: Callable[[], Awaitable[Any]], refused: tuple[type[Exception], ...] = ()
) -> AsyncIterator[list[Any]]:
    """*calls* are performed beside the body, which begins once all of them wait. The list has
    what they return, and errors of the types *refused*; it is complete after the body."""
    results: list[Any] = []

    async def run(call: Callable[[], Awaitable[Any]]) -> None:
        try:
            results.append(await call())
        except refused as error:
            results.append(error)

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(run, call)
        await settled()
        yield results


async def at_once(*calls: Callable[[], Awaitable[T]]) -> list[T]:
    """What *calls* return, which are started in this order; in the order in which they end."""
    async with meanwhile(*calls) as results:
        return results


async def settled() -> None:
    """Until everything that can happen without time passing has happened."""
    for _ in range(50):
        await checkpoint()


def texts_of(request: Request) -> list[str]:
    """Everything that a request says, as JSON, message by message."""
    return [bytes(message.body).decode() for message in request.messages]


class ByName(ScriptedProvider):
    """A provider of models that differ in their profiles, and of no other."""

    def __init__(self, script: Any, profiles: Mapping[str, Profile]) -> None:
        super().__init__(script)
        self._profiles = profiles

    def profile(self, model: str) -> Profile:
        return self._profiles[model]


class Quick:
    """A tool that returns at once."""

    def __init__(self, returns: Any = "the result") -> None:
        self.returns = returns
        self.inputs: list[dict[str, Any]] = []

    async def __call__(self, **arguments: Any) -> Any:
        self.inputs.append(arguments)
        return self.returns


class Raising:
    """A tool that raises."""

    async def __call__(self, **arguments: Any) -> Any:
        raise ValueError("no such file")


class Waiting:
    """A tool that says when it has started and returns when it is let go. It can be cancelled."""

    def __init__(self, returns: Any = "the result") -> None:
        self.returns = returns
        self.started = anyio.Event()
        self.go = anyio.Event()
        self.cancelled = False

    async def __call__(self, **arguments: Any) -> Any:
        self.started.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise
        return self.returns


class SwallowingCancellation:
    """A tool that runs for *seconds*, whoever cancels it."""

    def __init__(self, seconds: float, returns: Any = "late") -> None:
        self.seconds = seconds
        self.returns = returns
        self.swallowed = 0
        self.started = anyio.Event()
        self.ended = anyio.Event()

    async def __call__(self, **arguments: Any) -> Any:
        self.started.set()
        until = anyio.current_time() + self.seconds
        while (left_s := until - anyio.current_time()) > 0:
            try:
                await anyio.sleep(left_s)
            except anyio.get_cancelled_exc_class():  # the misbehaviour
                self.swallowed += 1
        self.ended.set()
        return self.returns


class FinishingWithinGrace:
    """A tool that is cancelled, tidies up for *seconds*, and still returns its result."""

    def __init__(self, seconds: float, returns: Any = "just in time") -> None:
        self.seconds = seconds
        self.returns = returns
        self.started = anyio.Event()

    async def __call__(self, **arguments: Any) -> Any:
        self.started.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():  # it means to finish
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.seconds)
        return self.returns


class Planning:
    """Every plan is made in a thread, which ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = anyio.Event()
        self.go = anyio.Event()
        monkeypatch.setattr(compactor, "INLINE_MESSAGES", 0)
        monkeypatch.setattr("anyio.to_thread.run_sync", self._run)

    async def next(self) -> None:
        """Let the present thread end, and wait for the one after it."""
        go, self.started, self.go = self.go, anyio.Event(), anyio.Event()
        go.set()
        await self.started.wait()

    async def _run(self, plan: Callable[[], Any], **options: Any) -> Any:
        made = plan()
        self.started.set()
        await self.go.wait()
        return made
