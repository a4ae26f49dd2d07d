"""What an adversary found: foreign code that misbehaves, and moments that meet each other."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
import pytest
import sniffio
from anyio.lowlevel import checkpoint

from llmsession import (
    CompactionConfig,
    InvalidConfig,
    KeyReused,
    LLMSession,
    MemoryStore,
    ProviderError,
    SessionClosed,
    SessionConfig,
    SessionExists,
    SessionInUse,
    SessionManager,
    SessionMoved,
    SessionNotFound,
    StoreError,
    Tool,
)
from llmsession.compaction.policies import Balanced
from llmsession.session.core.subscriptions import Subscriptions
from llmsession.session.manager import runtime_of
from llmsession.session.tasks.task_host import LoopCalls, Tasks
from llmsession.session.tasks.timers import PRUNE_AT, Timers
from llmsession.session.unfinished import recover_unfinished
from llmsession.store.protocol import AppendResult, Batch, Lease, Lost, Owner, SessionRow
from llmsession.testing.faulty_store import FaultyStore
from llmsession.testing.scripted import ScriptedProvider, call, never, say, think
from llmsession.turns import records as r
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    ReplyEnded,
    ReplyStarted,
    StreamEvent,
)
from tests.session.actors import (
    PATIENCE_S,
    ByName,
    Quick,
    SwallowingCancellation,
    Waiting,
    faulty_stage,
    in_tool,
    meanwhile,
    stage,
    texts_of,
)

T = TypeVar("T")
CONFIG = SessionConfig(model="m")


class Unprintable(Exception):
    """An exception that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


# Interrupts and their ids.


async def test_a_repeated_interrupt_leaves_the_turn_that_runs_now_alone() -> None:
    async with stage([never(), never()]) as on:
        await on.session.send("first")
        one = await on.session.interrupt(command_id="i")
        assert [str(ended.turn) for ended in one.turns] == ["u1"]
        later = await on.session.send("second")
        assert await on.session.interrupt(command_id="i") == one
        await anyio.sleep(10)
        status = on.session.status()
        assert (status.turn, status.turn_phase) == (later.id, "streaming")


@pytest.mark.parametrize("durable", ["nothing", "the end of the turn"])
async def test_a_repeat_of_an_interrupt_that_is_being_written_gets_its_answer(durable: str) -> None:
    async with faulty_stage([never()]) as (on, store):
        await on.begin("first")
        interrupt = partial(on.session.interrupt, command_id="i")
        store.delay()
        async with meanwhile(interrupt) as answers:
            await store.wait_delayed()
            if durable == "the end of the turn":  # and the answer to its interrupt is not
                store.deliver()
                store.delay()
                await store.wait_delayed()
            async with meanwhile(interrupt) as again:
                store.deliver()
        assert answers == again
        assert answers[0].result == "aborted"
        answered = [record for record in await on.log() if isinstance(record, r.CommandAnswered)]
        assert len(answered) == 1


async def test_an_id_that_an_interrupt_has_on_its_way_cannot_be_a_sends() -> None:
    async with (
        in_tool(SwallowingCancellation(1)) as (on, _),
        meanwhile(lambda: on.session.interrupt(command_id="i")),
    ):
        with pytest.raises(KeyReused):
            await on.session.send("second", command_id="i")


# Compaction jobs.


@pytest.mark.real_time
async def test_compact_after_a_cancelled_compaction_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, go = threading.Event(), threading.Event()

    def plan(*_: Any) -> None:
        started.set()
        go.wait(100)

    async with stage(["ok"] * 40) as on:
        for _ in range(40):  # enough messages for a job in a thread
            await on.say("hello")
        monkeypatch.setattr(Balanced, "plan", plan)
        async with anyio.create_task_group() as group:
            group.start_soon(on.session.compact)
            await anyio.to_thread.run_sync(started.wait)
            on.session.cancel_compaction()
            go.set()
            with anyio.fail_after(100):
                assert (await on.session.compact()).reason == "nothing to gain"


def compacting() -> tuple[list[Any], dict[str, Any]]:
    """A script of turns with long results, and a configuration that makes them old at once."""
    script: list[Any] = []
    for number in range(12):
        script += [call("t", id=f"c{number}"), "ok"]
    tool = Tool(name="t", run=Quick("a line of text\n" * 300))
    compaction = CompactionConfig(keep_recent_turns=1, keep_recent_steps=1)
    return script, {"tools": [tool], "compaction": compaction}


async def test_a_store_that_fails_under_a_compaction_leaves_no_task_behind() -> None:
    script, config = compacting()
    async with faulty_stage(script, **config) as (on, store):
        for _ in range(12):
            await on.say("go")
        store.fail_next()
        with pytest.raises(StoreError):
            await on.session.compact()
    # Leaving the stage waits for every task; it has a deadline.


async def test_after_a_clear_a_compaction_that_gained_nothing_is_tried_again() -> None:
    tool = Tool(name="t", run=Quick("a line of text\n" * 400))
    swap: dict[str, Any] = {"policy": "swap_tool_results", "schedule": "at_once"}
    compaction = CompactionConfig(threshold=0.5, keep_recent_turns=1, keep_recent_steps=1, **swap)

    def script(_: Request, tag: StepTag) -> Any:
        return call("t", id="c") if tag.step == 1 and tag.turn > 3 else "ok"

    async with stage(
        script, tools=[tool], window_tokens=30_000, max_tokens=1000, compaction=compaction
    ) as on:
        for _ in range(3):
            await on.say("word " * 3500)
        assert "compaction.applied" not in await on.kinds()
        await on.session.clear()
        for _ in range(9):
            await on.say("go")
        applied = [one for one in await on.log() if isinstance(one, r.CompactionApplied)]
        # The one that gained nothing was at about 20,000 tokens.
        assert applied[0].tokens_before < 18_000


async def test_cancelling_a_compaction_after_the_end_does_nothing() -> None:
    async with stage() as on:
        session = on.session
    session.cancel_compaction()


# Providers.


@pytest.mark.parametrize(
    "error",
    [Unprintable(), ValueError("\ud800"), ProviderError("\ud800", kind="fatal")],
    ids=["unprintable", "no unicode", "a provider's, no unicode"],
)
async def test_an_error_that_cannot_be_written_ends_its_turn_and_nothing_else(
    error: Exception,
) -> None:
    async with stage([say("hello").raising(error, at=1), "ok"]) as on:
        outcome = await on.outcome("x")
        assert outcome.status == "failed"
        assert isinstance(error, ProviderError) or type(error).__name__ in (outcome.error or "")
        assert await on.say("x") == "ok"


async def test_a_provider_that_lets_its_own_cancellation_out_fails_its_turn() -> None:
    if sniffio.current_async_library() != "asyncio":
        pytest.skip("trio lets nobody make a Cancelled")
    async with stage([say("hello").raising(asyncio.CancelledError(), at=1), "ok"]) as on:
        with anyio.fail_after(100):
            outcome = await on.outcome("x")
        assert outcome.status == "failed"
        assert await on.say("x") == "ok"


class BadlyClosed(ScriptedProvider):
    """Its streams do not close as they should."""

    def __init__(self, script: Any, close: Callable[[], Any]) -> None:
        super().__init__(script)
        self._close = close

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        async with aclosing(super().stream(request, tag)) as events:
            try:
                async for event in events:
                    yield event
            finally:
                await self._close()


async def refuse_to_close() -> None:
    raise ValueError("the connection was reset")


@pytest.mark.parametrize("close", [refuse_to_close, anyio.sleep_forever])
async def test_a_reply_that_is_whole_is_kept_however_its_stream_closes(
    close: Callable[[], Any],
) -> None:
    async with stage(provider=BadlyClosed(["hello", "b"], close)) as on:
        assert await on.say("x") == "hello"
        assert await on.say("y") == "b"


class Babbling(ScriptedProvider):
    """Always has its next event there already, and never ends."""

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        yield ReplyStarted("m", None)
        yield BlockStarted(0, msgspec.Raw(b'{"type":"text","text":""}'))
        while True:
            yield BlockDelta(0, "text", "bla ")


@pytest.mark.real_time
async def test_a_stream_that_never_waits_is_interrupted() -> None:
    with anyio.fail_after(100):
        async with stage(provider=Babbling([])) as on:
            await on.begin("x")
            assert (await on.session.interrupt()).result == "aborted"


class Events(ScriptedProvider):
    """Streams exactly these events, for every request."""

    def __init__(self, *events: StreamEvent) -> None:
        super().__init__([])
        self._events = (ReplyStarted("m", None), *events, ReplyEnded("end_turn", None))

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        self.requests.append(request)
        for event in self._events:
            await checkpoint()
            yield event


def opened(raw: bytes) -> BlockStarted:
    return BlockStarted(0, msgspec.Raw(raw))


@pytest.mark.parametrize(
    "events",
    [
        (opened(b'{"type":"text","text":""}'), BlockDelta(0, "citation", "no JSON")),
        (opened(b'{"type":"text","text":"a","citations":{}}'), BlockDelta(0, "text", "b")),
        (opened(b'{"type":"text","text":5}'), BlockDelta(0, "text", "b")),
        (opened(b'{"type":"new","field":"\\ud800"}'),),
        (opened(b'{"type":"tool_result","tool_use_id":"c","content":"x"}'),),
    ],
    ids=["citation", "citations", "text", "escape", "result"],
)
async def test_a_block_that_cannot_be_read_is_a_broken_stream(
    events: tuple[StreamEvent, ...],
) -> None:
    async with stage(provider=Events(*events, BlockStopped(0))) as on:
        outcome = await on.outcome("x")
        assert (outcome.status, outcome.stop_reason) == ("failed", "retryable")
        assert on.session.status().phase == "idle"


async def test_a_text_block_that_never_gets_its_text_spoils_no_later_request() -> None:
    said = (
        opened(b'{"type":"text"}'),
        BlockStopped(0),
        BlockStarted(1, msgspec.Raw(b'{"type":"text","text":"hello"}')),
        BlockStopped(1),
    )
    async with stage(provider=Events(*said)) as on:
        for _ in range(2):
            assert (await on.say("x")).endswith("hello")


async def test_thinking_without_a_signature_is_kept_and_not_sent_back() -> None:
    async with stage([think("hm", signature="") + say("one"), "two"]) as on:
        assert await on.say("x") == "one"
        assert await on.say("y") == "two"
        assert "hm" not in "".join(texts_of(on.provider.requests[-1]))
        assert "hm" in bytes(on.session.conversation()[1].body).decode()


async def test_a_call_id_that_providers_refuse_is_made_one_that_they_take() -> None:
    script = [call("t", id="functions.t:0"), call("t", id="functions.t:0"), "ok"]
    async with stage(script, tool=Quick()) as on:
        assert await on.say("x") == "ok"
        ids = [one.id for message in on.session.conversation() for one in message.tool_calls]
        assert ids == ["functions_t_0", "functions_t_0_2"]


async def test_a_model_that_the_provider_does_not_know_is_refused_before_anything_is_done() -> None:
    async with stage(provider=ByName(["ok"], {"m": Profile(name="m")})) as on:
        with pytest.raises(InvalidConfig, match="other"):
            await on.manager.create(SessionConfig(model="other"), session_id="o")
        with pytest.raises(InvalidConfig, match="other"):
            await on.session.configure(model="other")
        assert on.session.config.model == "m"
        assert await on.names() == ["s"]
        assert await on.say("x") == "ok"


# Tools and loggers.


async def test_a_tools_exception_that_cannot_be_printed_is_an_error_result() -> None:
    async def tool() -> None:
        raise Unprintable

    async with stage([call("t", id="c"), "ok"], tool=tool) as on:
        assert await on.say("x") == "ok"
        assert "Unprintable" in texts_of(on.provider.requests[-1])[-1]


class RaisingLogger:
    def bind(self, **_: Any) -> RaisingLogger:
        return self

    def info(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("the log is full")

    warning = error = info


async def test_a_logger_that_raises_stops_nothing() -> None:
    script = ["one", say("x").raising(ValueError("x")), "two"]
    async with stage(script, logger=RaisingLogger()) as on:
        assert await on.say("x") == "one"
        assert (await on.outcome("x")).status == "failed"
        assert await on.say("x") == "two"


# Stores.


class ReleasesNothing(MemoryStore):
    is_down = True
    asked = 0

    async def release(self, lease: Lease) -> None:
        self.asked += 1
        if self.is_down:
            raise StoreError("the network is down", committed=None)
        await super().release(lease)


async def test_an_eviction_whose_release_fails_ends_nothing() -> None:
    async with stage(["one", "two"], store=ReleasesNothing(), idle_s=1) as on:
        assert await on.say("x") == "one"
        on.let_go()
        await anyio.sleep(10)
        assert on.manager.live == ()
        on.session = await on.manager.open("s")
        assert await on.say("x") == "two"


async def test_what_a_store_did_not_take_back_is_free_when_its_manager_is_left() -> None:
    store, provider = ReleasesNothing(), ScriptedProvider([say("one"), say("two")])
    async with SessionManager(provider=provider, store=store) as manager:
        for name in ("s", "t"):
            await manager.create(SessionConfig(model="m"), session_id=name)
        await manager.release()
        async with SessionManager(provider=provider, store=store) as other:
            with pytest.raises(SessionInUse):  # until then nobody knows
                await other.open("s")
    async with SessionManager(provider=provider, store=store) as next_one:
        session = await next_one.open("s")
        assert await (await session.send("x")).text() == "one"


async def test_what_a_store_did_not_take_back_is_given_back_when_it_can() -> None:
    store, provider = ReleasesNothing(), ScriptedProvider([])
    async with SessionManager(provider=provider, store=store, idle_s=1) as manager:
        for name in ("closed", "evicted", "again"):
            await manager.create(SessionConfig(model="m"), session_id=name)
        await (await manager.open("closed")).close()
        await anyio.sleep(3600)
        assert manager.live == ()
        assert store.asked < 3 * (3600 / 30 + 10)
        again = await manager.open("again")
        store.is_down = False
        await anyio.sleep(31)
        async with SessionManager(provider=provider, store=store) as other:
            for name in ("closed", "evicted"):
                await other.open(name)
            with pytest.raises(SessionInUse):
                await other.open("again")
            assert again.status().phase == "idle"


async def test_a_session_that_an_error_of_its_store_has_ended_is_free_for_others() -> None:
    async with faulty_stage([never(), "back"], recovery="resume") as (on, store):
        await on.begin("x")
        store.fail_next()
        with pytest.raises(StoreError):
            await on.session.label({"a": "b"})
        assert on.manager.live == ()
        await anyio.sleep(2)
        async with SessionManager(provider=on.provider, store=store) as other:
            report = await recover_unfinished(other)
            assert report.recovered == ("s",)
            assert (await (await other.open("s")).turn(1).outcome()).status == "committed"


class Stuck(MemoryStore):
    """Never takes the session ``stuck`` back, and answers the first release of ``late`` late, with
    an error."""

    late = 0

    async def release(self, lease: Lease) -> None:
        if lease.session == "stuck":
            await anyio.sleep_forever()
        if lease.session == "late":
            self.late += 1
            if self.late == 1:
                await anyio.sleep(100)
            if self.late < 3:
                raise StoreError("the network is down", committed=None)
        await super().release(lease)


async def test_a_session_that_cannot_be_given_back_keeps_no_other_waiting() -> None:
    store, provider = FaultyStore(Stuck()), ScriptedProvider([])
    async with SessionManager(provider=provider, store=store) as manager:
        for name in ("stuck", "other"):
            session = await manager.create(SessionConfig(model="m"), session_id=name)
            store.fail_next()
            with pytest.raises(StoreError):
                await session.label({"a": "b"})
        await anyio.sleep(2)
        async with SessionManager(provider=provider, store=store) as other:
            await other.open("other")


async def test_a_release_that_fails_late_does_not_hide_the_newer_one() -> None:
    store, provider = FaultyStore(Stuck()), ScriptedProvider([])
    async with SessionManager(provider=provider, store=store) as manager:
        session = await manager.create(SessionConfig(model="m"), session_id="late")
        for _ in range(2):
            store.fail_next()
            with pytest.raises(StoreError):
                await session.label({"a": "b"})
            session = await manager.open("late") if store.appends[-1].epoch == 1 else session
        await anyio.sleep(200)
        async with SessionManager(provider=provider, store=store) as other:
            await other.open("late")


class CannotDelete(MemoryStore):
    """Refuses the first append, and to delete its session."""

    is_down = True

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        if self.is_down:
            done(Lost("the network is down", committed=False))
        else:
            super().append(batch, done)

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        raise StoreError("the network is down", committed=None)


async def test_an_id_whose_session_could_neither_be_made_nor_removed_can_be_used() -> None:
    store, provider = CannotDelete(), ScriptedProvider([])
    async with SessionManager(provider=provider, store=store) as manager:
        with pytest.raises(StoreError):
            await manager.create(SessionConfig(model="m"), session_id="s")
        store.is_down = False
        await anyio.sleep(2)
        async with SessionManager(provider=provider, store=store) as other:
            await other.create(SessionConfig(model="m"), session_id="s")


class LosesAnswers(MemoryStore):
    """Does what it is asked and does not say so, and cannot be reached for a while."""

    is_down = False
    slow_s = row_slow_s = 0.0

    async def create(self, session: str, owner: Owner) -> Lease:
        return await self._answer(super().create(session, owner))

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        return await self._answer(super().fork(parent, upto, session, owner))

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        return await self._answer(super().acquire(session, owner, takeover=takeover), self.slow_s)

    async def row(self, session: str) -> SessionRow:
        return await self._answer(super().row(session), self.row_slow_s)

    async def _answer(self, answer: Awaitable[T], slow_s: float = 0) -> T:
        try:
            return await answer
        finally:
            await anyio.sleep(slow_s)
            if self.is_down:
                raise StoreError("the network is down", committed=None)


@pytest.mark.parametrize("how", ["open", "take over", "create", "fork"])
async def test_a_session_that_was_taken_by_a_call_that_failed_is_given_back(how: str) -> None:
    store, provider = LosesAnswers(), ScriptedProvider([say("one")])
    async with SessionManager(provider=provider, store=store) as manager:
        parent = await manager.create(SessionConfig(model="m"), session_id="parent")
        async with SessionManager(provider=provider, store=store) as first_owner:
            await first_owner.create(SessionConfig(model="m"), session_id="s")
        store.is_down = True
        with pytest.raises(StoreError):
            if how == "create":
                await manager.create(SessionConfig(model="m"), session_id="new")
            elif how == "fork":
                await parent.fork(session_id="new")
            else:
                await manager.open("s", takeover=how == "take over")
        await anyio.sleep(100)
        store.is_down = False
        async with SessionManager(provider=provider, store=store) as other:
            name = "s" if how in ("open", "take over") else "new"
            with pytest.raises(SessionInUse):
                await other.open(name)
            await anyio.sleep(31)
            if how == "create":
                session = await other.create(SessionConfig(model="m"), session_id=name)
            else:
                session = await other.open(name)
            assert await (await session.send("x")).text() == "one"


@pytest.mark.parametrize("how", ["create", "fork"])
async def test_a_live_session_is_kept_where_making_another_of_its_name_failed(how: str) -> None:
    store, provider = LosesAnswers(), ScriptedProvider([say("one")])
    async with SessionManager(provider=provider, store=store) as manager:
        session = await manager.create(SessionConfig(model="m"), session_id="s")
        parent = await manager.create(SessionConfig(model="m"), session_id="parent")
        store.is_down = True
        with pytest.raises(StoreError):
            if how == "create":
                await manager.create(SessionConfig(model="m"), session_id="s")
            else:
                await parent.fork(session_id="s")
        store.is_down = False
        await anyio.sleep(100)
        async with SessionManager(provider=provider, store=store) as other:
            with pytest.raises(SessionInUse):
                await other.open("s")
        assert await (await session.send("x")).text() == "one"


async def lose_an_open(store: LosesAnswers, manager: SessionManager) -> None:
    """*manager* opens ``s``, which nobody has, and is not told so. Nothing is answered any more."""
    async with SessionManager(provider=ScriptedProvider([]), store=store) as first_owner:
        await first_owner.create(SessionConfig(model="m"), session_id="s")
    store.is_down = True
    with pytest.raises(StoreError):
        await manager.open("s")


async def test_a_late_answer_settles_no_newer_doubt() -> None:
    store, provider = LosesAnswers(), ScriptedProvider([])
    async with SessionManager(provider=provider, store=store) as manager:
        await lose_an_open(store, manager)
        store.row_slow_s = 20
        store.is_down = False
        await anyio.sleep(5)  # the row is on its way
        store.is_down = True
        with pytest.raises(StoreError):
            await manager.open("s")
        store.is_down = False
        await anyio.sleep(100)
        async with SessionManager(provider=provider, store=store) as other:
            await other.open("s")


@pytest.mark.parametrize("slow_s", [0, 50])
async def test_a_session_that_is_opened_while_that_is_in_doubt_stays_open(slow_s: float) -> None:
    store, provider = LosesAnswers(), ScriptedProvider([say("one")])
    async with SessionManager(provider=provider, store=store) as manager:
        await lose_an_open(store, manager)
        await anyio.sleep(0.5)
        store.is_down = False
        store.slow_s = slow_s
        session = await manager.open("s")
        store.slow_s = 0
        await anyio.sleep(100)
        async with SessionManager(provider=provider, store=store) as other:
            with pytest.raises(SessionInUse):
                await other.open("s")
        assert await (await session.send("x")).text() == "one"


class AnswersTwice(MemoryStore):
    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        def twice(result: AppendResult) -> None:
            done(result)
            done(result)

        super().append(batch, twice)


async def test_a_store_that_answers_twice_is_heard_once() -> None:
    async with stage(["ok"], store=AnswersTwice()) as on:
        assert await on.say("x") == "ok"


class RaisesOnce(MemoryStore):
    armed = False

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        if self.armed:
            self.armed = False
            raise OSError("the disk is gone")
        super().append(batch, done)


async def test_a_store_that_raises_from_append_is_a_store_error() -> None:
    store = RaisesOnce()
    async with stage(["ok"], store=store) as on:
        store.armed = True
        with pytest.raises(StoreError, match="the disk is gone"):
            await on.session.send("x")
        assert await on.say("y") == "ok"


class ClosesBadly(MemoryStore):
    async def aclose(self) -> None:
        raise OSError("the disk is gone")


async def test_a_store_that_cannot_be_closed_raises_where_the_manager_is_left() -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        async with SessionManager(provider=ScriptedProvider([]), store=ClosesBadly()):
            pass
    await anyio.sleep(1)


class Slow(MemoryStore):
    """Takes a second over making and taking a session."""

    async def create(self, session: str, owner: Owner) -> Lease:
        await anyio.sleep(1)
        return await super().create(session, owner)

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        await anyio.sleep(1)
        return await super().acquire(session, owner, takeover=takeover)


# Sessions that come and go.


async def test_a_session_whose_creation_was_cancelled_can_be_opened() -> None:
    async with stage(["ok"], store=Slow()) as on:
        with anyio.move_on_after(0.5):
            await on.manager.create(CONFIG, session_id="t")
        session = await on.manager.open("t")
        assert await (await session.send("x")).text() == "ok"


async def test_a_session_that_nobody_waits_for_any_more_is_evicted() -> None:
    async with stage(store=Slow(), idle_s=60) as on:
        with anyio.move_on_after(0.5):
            await on.manager.create(CONFIG, session_id="t")
        await anyio.sleep(10)
        assert set(on.manager.live) == {"s", "t"}
        await anyio.sleep(120)
        assert set(on.manager.live) == {"s"}


async def test_closing_the_manager_closes_what_is_being_opened_too() -> None:
    store = Slow()
    async with stage(store=store) as on:
        await on.session.close()
        opening = [partial(on.manager.open, session) for session in ("s", "nobody")]
        async with meanwhile(*opening, refused=(SessionClosed, SessionNotFound)) as results:
            await anyio.sleep(0.5)
            await on.manager.close()
        raised = [type(each) for each in results if isinstance(each, Exception)]
        assert raised == [SessionNotFound]
        assert on.manager.live == ()
        assert (await store.row("s")).owner is None


async def test_a_bug_at_the_end_of_a_session_keeps_nobody_waiting_who_closed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError

    async with stage(["hi"]) as on:
        await on.say("hello")
        with monkeypatch.context() as broken:
            broken.setattr(Subscriptions, "end", fail)
            assert (await on.session.close()).session == "s"
        assert await on.session.close()


async def test_opening_a_session_that_is_being_closed_waits_for_its_end() -> None:
    async with in_tool(SwallowingCancellation(5), "ok") as (on, turn):
        async with meanwhile(on.session.close):
            opened_again = await on.manager.open("s", unbound="caller")
        assert (await turn.outcome()).stop_reason == "closed"
        on.session = opened_again
        assert await on.say("y") == "ok"


async def test_a_takeover_does_not_get_the_answer_of_an_open_without_it() -> None:
    store = Slow()
    async with (
        stage(store=store) as on,
        SessionManager(provider=ScriptedProvider([]), store=store) as other,
    ):
        async with meanwhile(lambda: other.open("s"), refused=(SessionInUse,)) as refused:
            taken = await other.open("s", takeover=True)
        assert [type(answer) for answer in (*refused, taken)] == [SessionInUse, LLMSession]
        with pytest.raises(SessionMoved):
            await on.session.send("x")


async def test_an_eviction_leaves_a_session_alone_whose_name_somebody_wants() -> None:
    async with stage(["ok"], store=Slow()) as on:
        on.let_go()
        create = partial(on.manager.create, CONFIG, session_id="s")
        async with meanwhile(create, refused=(SessionExists,)) as refused:
            assert await runtime_of(on.manager).evict_idle() == 0
        assert [type(error) for error in refused] == [SessionExists]
        assert await runtime_of(on.manager).evict_idle() == 1
        on.session = await on.manager.open("s")
        assert await on.say("x") == "ok"


# Subscribers.


async def test_a_subscription_to_a_closed_session_reads_the_log_and_ends() -> None:
    async with stage(["ok"]) as on:
        await on.say("x")
        await on.session.close()
        with anyio.fail_after(10):
            records = [event async for event in on.session.subscribe(after=0)]
            assert [one.seq for one in records if isinstance(one, r.RecordBase)] == [1, 2, 3]
            assert [event async for event in on.session.subscribe()] == []


async def test_the_events_of_a_turn_that_another_owner_took_over_end() -> None:
    store = MemoryStore()
    async with stage([never()], store=store) as on:
        turn = await on.begin("x")
        async with SessionManager(provider=ScriptedProvider([]), store=store) as other:
            await other.open("s", takeover=True)
            with pytest.raises(SessionMoved):
                await on.session.send("y")
            with anyio.fail_after(10):
                assert [type(event) async for event in turn] == [r.TurnAccepted]


@pytest.mark.real_time
async def test_a_handle_that_is_collected_in_a_thread_lets_its_session_go() -> None:
    async with stage(idle_s=0.01) as on:
        held = [await on.manager.create(CONFIG, session_id="t")]

        def collect() -> None:
            held.clear()
            gc.collect()

        await anyio.to_thread.run_sync(collect)
        assert on.manager.live == ("s", "t")
        await on.manager.create(CONFIG, session_id="u")
        with anyio.fail_after(100):
            while "t" in on.manager.live:  # noqa: ASYNC110  # nothing tells when
                await anyio.sleep(0.01)


async def test_a_subscription_that_is_collected_changes_nothing_by_itself() -> None:
    """A finalizer runs in any thread and at any moment: a subscriber that was being added then
    must not be lost."""
    async with stage(["ok"]) as on:
        dropped = on.session.subscribe()
        listeners = on.manager._runtime.subscriptions._subscribers["s"]
        del dropped
        gc.collect()
        assert on.manager._runtime.subscriptions._subscribers["s"] is listeners
        assert not on.manager._runtime.subscriptions.has("s")
        assert "s" not in on.manager._runtime.subscriptions._subscribers


# Cancellation by asyncio itself, which no shield stops.


async def test_a_manager_that_is_cancelled_as_it_is_entered_leaves_nothing() -> None:
    with anyio.fail_after(PATIENCE_S):
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with SessionManager(provider=ScriptedProvider([])):
                await anyio.sleep(1)
        await anyio.sleep(1)


@pytest.mark.real_time
@pytest.mark.parametrize("after", [*range(1, 8), *range(8, 40, 5)])
async def test_a_task_that_asyncio_times_out_anywhere_ends_its_manager_in_order(after: int) -> None:
    if sniffio.current_async_library() != "asyncio":
        pytest.skip("only asyncio cancels tasks")
    store, tool = MemoryStore(), Tool(name="t", run=Quick())

    async def live() -> None:
        script: list[Any] = [call("t", id="c").slow(0.001), "ok", "ok"]
        async with SessionManager(provider=ScriptedProvider(script), store=store) as manager:
            session = await manager.create(msgspec.structs.replace(CONFIG, tools=(tool,)))
            await (await session.send("x")).outcome()
            await session.close()
            session = await manager.open(session.id)
            await (await session.send("y")).outcome()

    before = asyncio.all_tasks()
    task = asyncio.create_task(live())
    for _ in range(after):
        await asyncio.sleep(0)
    task.cancel()
    with anyio.fail_after(100):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == before
    assert all(row.owner is None for row in await store.rows())


@pytest.mark.real_time
async def test_a_second_native_cancellation_does_not_tear_the_end_of_a_manager() -> None:
    if sniffio.current_async_library() != "asyncio":
        pytest.skip("only asyncio cancels tasks")
    store, tool = MemoryStore(), SwallowingCancellation(0.3)
    config = msgspec.structs.replace(CONFIG, tools=(Tool(name="t", run=tool),))

    async def live() -> None:
        script: list[Any] = [call("t", id="c"), "ok"]
        async with SessionManager(provider=ScriptedProvider(script), store=store) as manager:
            session = await manager.create(config, session_id="s")
            await (await session.send("x")).outcome()

    before = asyncio.all_tasks()
    task = asyncio.create_task(live())
    await tool.started.wait()
    for _ in range(4):
        task.cancel()
        await asyncio.sleep(0.03)
    with anyio.fail_after(100):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == before
    assert (await store.row("s")).owner is None


# What must not grow.


async def test_deadlines_that_were_cancelled_do_not_pile_up() -> None:
    async with anyio.create_task_group() as group, Tasks(group) as tasks:
        timers = Timers(tasks, LoopCalls(group))
        for _ in range(20 * PRUNE_AT):
            timers.after(600, lambda: None).cancel()
        assert len(timers._heap) <= PRUNE_AT
        fired: list[int] = []
        for number in range(3 * PRUNE_AT):
            timers.after(number, lambda number=number: fired.append(number))  # type: ignore[misc]
        await anyio.sleep(3 * PRUNE_AT)
        assert fired == list(range(3 * PRUNE_AT))
        timers.close()


async def test_a_call_back_into_the_session_from_its_own_tool_does_not_hang() -> None:
    waiting = Waiting()
    async with stage([call("t", id="c"), "one", "two"], tools=[Tool(name="t")]) as on:

        async def tool() -> str:
            await on.session.compact()
            await on.session.store_compact_summaries({"c": "short"})
            await runtime_of(on.manager).evict_idle()
            queued = await on.session.send("again")
            waiting.started.set()
            return str(queued.id)

        await on.manager.open("s", tools=[Tool(name="t", run=tool)])
        assert await on.say("x") == "one"
        assert waiting.started.is_set()
        assert await on.session.turn("u2").text() == "two"
