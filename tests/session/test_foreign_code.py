"""Providers, tools, observers, policies, stores, clocks and loggers are anybody's code: whatever
they return or raise costs their own session at most, and what was answered can be opened again.

A life has two sessions: one that meets the foreign code, and one beside it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import msgspec
import pytest
import sniffio
import trio
from outcome import Error

from llmsession import (
    CompactionConfig,
    MemoryStore,
    SessionConfig,
    SessionError,
    SessionManager,
    StoreError,
    Tool,
    ToolOutput,
    TurnOutcome,
    Usage,
)
from llmsession.compaction.policies import Balanced, registry
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.errors import contained, error_text, work_supervisor
from llmsession.session.unfinished import recover_unfinished
from llmsession.store.protocol import (
    Appended,
    AppendResult,
    Batch,
    Conflict,
    Lost,
    Owner,
    SessionRow,
)
from llmsession.turns.records import Injected, PrefixSummary
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    ReplyEnded,
    ReplyStarted,
    UsageReported,
)
from llmsession.turns.usage import AppliedEdit
from tests.session.actors import PATIENCE_S, settled, stage
from tests.session.odd_values import ERRORS, OBJECTS, Number, Text, Word
from tests.session.probes import task_named

Act: TypeAlias = Callable[[], Any]
"""What foreign code does where it is called: returns anything, or raises anything."""


def raising(error: BaseException) -> Act:
    def act() -> Any:
        raise error.with_traceback(None)

    return act


SOME, ALL = 12, 100


def some_acts(number: int) -> pytest.MarkDecorator:
    """So many of the acts at each place; all of them in the long version."""
    return pytest.mark.parametrize(
        "number", [number, pytest.param(ALL, marks=pytest.mark.long)], ids=["some", "all"]
    )


def acts(place: str, number: int = SOME) -> list[tuple[str, Act]]:
    """Some of what foreign code may do, by a name for the report: the same in every run, and others
    at every place. Each is done on one of the two backends, half of them on each."""
    possible = list(all_acts())
    chosen = random.Random(place).sample(possible, min(number, len(possible)))
    return chosen[sniffio.current_async_library() == "trio" :: 2]


def all_acts() -> Iterator[tuple[str, Act]]:
    for index, value in enumerate(OBJECTS):
        yield f"returns object {index}", partial(_same, value)
    for error in ERRORS:
        yield f"raises {type(error).__name__}", raising(error)


def _same(value: Any) -> Any:
    return value


TEXT = msgspec.Raw(b'{"type":"text","text":""}')
CALL = msgspec.Raw(b'{"type":"tool_use","id":"c","name":"t","input":{}}')


class Model:
    """The provider of both sessions. For the model ``odd`` it does what *places* say, by place."""

    def __init__(self, **places: Act) -> None:
        self._places = places
        self._asked = False

    def _at(self, place: str, otherwise: Any) -> Any:
        return self._places[place]() if place in self._places else otherwise

    @property
    def name(self) -> Any:
        return self._at("name", "model") if self._asked else "model"

    def name_for(self, model: str) -> Any:
        return self._at("name", "model") if model == "odd" else "model"

    def profile(self, model: str) -> Any:
        return self._at("profile", Profile()) if model == "odd" else Profile()

    async def count_tokens(self, request: Request) -> Any:
        return self._at("count", 5)

    def stream(self, request: Request, tag: StepTag) -> Any:
        if request.model != "odd":
            return Stream([BlockStarted(0, TEXT), BlockDelta(0, "text", "fine"), BlockStopped(0),
                           ReplyEnded("end_turn", Usage(1, 1))])  # fmt: skip
        if "stream" in self._places:
            return self._places["stream"]()
        tools = self._places.get("tools") is not None and tag.step == 1
        block, kind, text = (CALL, "input", "{}") if tools else (TEXT, "text", "odd")
        events = [
            ReplyStarted(self._at("model", "odd"), self._at("usage", Usage(1, 1))),
            BlockStarted(self._at("index", 0), self._at("block", block)),
            BlockDelta(self._at("delta index", 0), self._at("kind", kind), self._at("text", text)),
            BlockStopped(self._at("stopped index", 0)),
            UsageReported(self._at("report", Usage(1, 2))),
            self._at("event", BlockStarted(1, TEXT)),
            ReplyEnded(
                self._at("stop reason", "tool_use" if tools else "end_turn"),
                self._at("last usage", Usage(1, self._at("tokens", 2))),
                self._at("context", None),
                self._at("edits", (AppliedEdit(self._at("edit", "e"), self._at("cleared", 1)),)),
            ),
        ]
        return Stream(events, self._places.get("between"), self._places.get("close stream"))

    async def aclose(self) -> None:
        self._at("close", None)


class Stream:
    """A reply's events. *between* is called before the last one."""

    def __init__(
        self, events: Sequence[Any], between: Act | None = None, close: Act | None = None
    ) -> None:
        self._events = iter(events)
        self._left = len(events)
        self._between = between
        self._close = close

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        self._left -= 1
        if self._left < 0:
            raise StopAsyncIteration
        if not self._left and self._between is not None:
            await anyio.lowlevel.checkpoint()
            self._between()
        return next(self._events)

    async def aclose(self) -> None:
        if self._close is not None:
            self._close()


@contextmanager
def policy_called(name: str, kind: type) -> Iterator[None]:
    registry._POLICIES[name] = kind
    try:
        yield
    finally:
        del registry._POLICIES[name]


class Life:
    """A manager with the two sessions; afterwards both are opened by another manager."""

    def __init__(self, store: Any = None, **parts: Any) -> None:
        self.store = store or MemoryStore()
        self.parts = {"provider": Model(), **parts}
        self.answered: list[tuple[Any, TurnOutcome]] = []

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[SessionManager]:
        try:
            async with SessionManager(store=self.store, **self.parts) as manager:
                yield manager
        except Exception as error:  # what closing a part raised, and no BaseException
            if not self.parts_may_fail_to_close:
                raise
            self.error = error

    parts_may_fail_to_close = False
    counts = False
    """Other counters than the provider's read in threads, which virtual time does not wait for."""

    async def live(self, config: SessionConfig, name: str) -> None:
        with anyio.fail_after(PATIENCE_S):
            async with self.manager() as manager:
                beside = await manager.create(SessionConfig(model="m"), session_id="beside")
                await self._meet(manager, config)
                turn = await beside.send("hello")
                assert await turn.text() == "fine", name
                self.answered.append(("beside", await turn.outcome()))
                await manager.list()
        await self._reopen(name)

    async def _meet(self, manager: SessionManager, config: SessionConfig) -> None:
        """Three turns, a count and a compaction of the session that meets the foreign code."""
        try:
            odd = await manager.create(config, session_id="odd")
            for _ in range(3):
                try:
                    outcome = await (await odd.send("hello")).outcome()
                except SessionError:
                    continue
                self.answered.append(("odd", outcome))
            if self.counts:
                await odd.count()
            await odd.compact()
            await odd.close()
            await manager.open("odd")
        except SessionError:
            pass

    async def _reopen(self, name: str) -> None:
        store = getattr(self.store, "kept", self.store)
        async with SessionManager(provider=Model(), store=store) as manager:
            for session_id in sorted({session_id for session_id, _ in self.answered}):
                session = await manager.open(session_id, takeover=True, unbound="caller")
                outcomes = [outcome for other, outcome in self.answered if other == session_id]
                for outcome in outcomes:
                    kept = await session.turn(outcome.turn).outcome()
                    facts = (outcome.status, outcome.usage, outcome.stop_reason, outcome.messages)
                    found = (kept.status, kept.usage, kept.stop_reason, kept.messages)
                    assert facts == found, name
                assert session.conversation() is not None
                assert await (await session.send("again")).text() in ("fine", "odd"), name


METHODS = ("create", "acquire", "release", "read", "row", "delete", "fork", "rewrite")
PLACES = (
    "name", "profile", "stream", "model", "usage", "index", "block", "delta index", "kind",
    "text", "stopped index", "report", "event", "stop reason", "last usage", "tokens", "context",
    "edits", "edit", "cleared", "between", "close stream", "close",
)  # fmt: skip


@some_acts(SOME)
@pytest.mark.parametrize("place", PLACES)
async def test_whatever_a_provider_says_costs_its_own_session_at_most(
    place: str, number: int
) -> None:
    for name, act in acts(place, number):
        life = Life(provider=Model(**{place: act}))
        life.parts_may_fail_to_close = place == "close"
        await life.live(SessionConfig(model="odd"), name)


@pytest.mark.real_time
async def test_whatever_a_provider_counts_costs_its_own_session_at_most() -> None:
    for name, act in acts("a"):
        life = Life(provider=Model(count=act))
        life.counts = True
        await life.live(SessionConfig(model="odd"), name)
        assert [outcome.status for _, outcome in life.answered] == ["committed"] * 4, name


@pytest.mark.parametrize("how", ["returns", "output", "summary", "flag"])
async def test_whatever_a_tool_does_costs_its_own_session_at_most(how: str) -> None:
    for name, act in acts(how):

        async def tool(act: Act = act) -> Any:
            await anyio.lowlevel.checkpoint()
            if how == "returns":
                return act()
            if how == "output":
                return ToolOutput(content=act())
            return ToolOutput(content="x", **{"summary": {"compact_summary": act()},
                                              "flag": {"is_error": act()}}[how])  # fmt: skip

        life = Life(provider=Model(tools=int))
        await life.live(SessionConfig(model="odd", tools=[Tool(name="t", run=tool)]), name)
        assert len(life.answered) == 4
        assert {outcome.status for _, outcome in life.answered} == {"committed"}, name


async def failed_wait(error: BaseException) -> Any:
    """Wait for something, which then fails with *error*, as a future of the backend does."""
    if sniffio.current_async_library() == "trio":
        task = trio.lowlevel.current_task()
        trio.lowlevel.current_trio_token().run_sync_soon(
            trio.lowlevel.reschedule, task, Error(error)
        )
        return await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_exception, error)
    return await future


@pytest.mark.parametrize("error", [GeneratorExit(), SystemExit(3), ValueError("no")], ids=repr)
async def test_what_a_tool_waits_for_may_fail_with_anything(error: BaseException) -> None:
    after: list[str] = []

    async def tool() -> str:
        try:
            return str(await failed_wait(error))
        finally:
            after.append("cleaned up")
            await anyio.lowlevel.checkpoint()
            after.append("and waited")

    life = Life(provider=Model(tools=int))
    await life.live(SessionConfig(model="odd", tools=[Tool(name="t", run=tool)]), "wait")
    assert {outcome.status for _, outcome in life.answered} == {"committed"}
    assert after[:2] == ["cleaned up", "and waited"]


ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


async def _cancelled_by_itself() -> None:
    _own_task().cancel()
    await anyio.sleep(1)


async def _cancelled_and_returns() -> None:
    _own_task().cancel()


async def _cancelled_by_others() -> None:
    asyncio.get_running_loop().call_soon(_own_task().cancel)
    await anyio.sleep(1)


def _own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


SOON_S = 30.0
"""In virtual time: before the deadline of a tool and the limit of a silent provider."""
CANCELLED = (_cancelled_by_itself, _cancelled_and_returns, _cancelled_by_others)


@ON_ASYNCIO
@pytest.mark.parametrize("how", CANCELLED)
async def test_a_tool_whose_task_is_cancelled_alone_costs_its_own_call(
    how: Callable[..., Any],
) -> None:
    began = anyio.current_time()
    life = Life(provider=Model(tools=int))
    await life.live(SessionConfig(model="odd", tools=[Tool(name="t", run=how)]), how.__name__)
    assert [outcome.status for _, outcome in life.answered] == ["committed"] * 4
    assert anyio.current_time() - began < SOON_S


@ON_ASYNCIO
@pytest.mark.parametrize("how", CANCELLED)
async def test_a_provider_whose_task_is_cancelled_alone_costs_its_own_turn(
    how: Callable[..., Any],
) -> None:
    async def reply() -> AsyncGenerator[Any, None]:
        yield ReplyStarted("m")
        await how()

    began = anyio.current_time()
    life = Life(provider=Model(stream=reply))
    await life.live(SessionConfig(model="odd"), how.__name__)
    assert [outcome.status for _, outcome in life.answered] == ["failed"] * 3 + ["committed"]
    assert anyio.current_time() - began < SOON_S


@ON_ASYNCIO
async def test_the_task_of_the_deadlines_that_is_cancelled_alone_ends_no_session() -> None:
    async with stage(["one", "two"]) as on:
        await on.say("hello")
        task_named("llmsession timers").cancel()
        await settled()
        assert await on.say("again") == "two"


@ON_ASYNCIO
async def test_a_session_is_opened_although_somebody_cancels_the_task_before_it_has_begun() -> None:
    async with stage(["one"]) as on:
        await on.session.close()
        opening = asyncio.create_task(on.manager.open("s"))
        await asyncio.sleep(0)
        task_named("llmsession load of s").cancel()
        with anyio.fail_after(SOON_S):
            on.session = await opening
        assert await on.say("hello") == "one"


def test_a_loop_that_ends_before_its_tools_leaves_no_result_of_them() -> None:
    store = MemoryStore()

    async def program() -> None:
        running = asyncio.Queue[asyncio.Task[Any] | None]()

        async def tool() -> None:
            running.put_nowait(asyncio.current_task())
            running.put_nowait(work_supervisor.get())
            await asyncio.sleep(3600)

        program.manager = manager = SessionManager(provider=Model(tools=int), store=store)  # type: ignore[attr-defined]
        await manager.__aenter__()
        config = SessionConfig(model="odd", tools=[Tool(name="t", run=tool)])
        await (await manager.create(config, session_id="odd")).send("hello")
        # The end of the loop cancels all tasks, in any order. In this one, no scope is cancelled
        # when the tool ends.
        for _ in range(2):
            task = await running.get()
            assert task is not None
            task.cancel()

    async def bodies() -> list[bytes]:
        return [stored.body for stored in await store.read("odd")]

    asyncio.run(program())
    kinds = [msgspec.json.decode(body)["kind"] for body in asyncio.run(bodies())]
    assert kinds[-1] == "tools.requested"


@pytest.mark.real_time
async def test_whatever_a_synchronous_tool_does_costs_its_own_session_at_most() -> None:
    for name, act in acts("synchronous"):
        life = Life(provider=Model(tools=int))
        await life.live(SessionConfig(model="odd", tools=[Tool(name="t", run=act)]), name)
        assert {outcome.status for _, outcome in life.answered} == {"committed"}, name


class Watching:
    """An observer of one method, which does *act* there for the session ``odd``."""

    def __init__(self, method: str, act: Act) -> None:
        self._method, self._act = method, act

    def __getattr__(self, method: str) -> Any:
        def observe(session: str, *_: Any, **__: Any) -> Any:
            return self._act() if (session, method) == ("odd", self._method) else None

        return observe


@pytest.mark.parametrize("method", ["recorded", "requested", "began", "ended", "charged"])
async def test_whatever_an_observer_raises_is_logged_and_changes_nothing(method: str) -> None:
    for name, act in acts(method):
        life = Life(observers=[Watching(method, act)])
        await life.live(SessionConfig(model="odd"), name)
        assert [outcome.status for _, outcome in life.answered] == ["committed"] * 4, name


async def test_whatever_the_clock_says_no_session_is_lost() -> None:
    for name, act in all_acts():
        life = Life(clock=act)
        await life.live(SessionConfig(model="odd"), name)
        assert [outcome.status for _, outcome in life.answered] == ["committed"] * 4, name


class Logging:
    def __init__(self, act: Act) -> None:
        self._act = act

    def bind(self, **_: Any) -> Logging:
        return self

    def info(self, *_: Any, **__: Any) -> Any:
        return self._act()

    error = warning = info


async def test_whatever_a_logger_raises_changes_nothing() -> None:
    for name, act in acts("a"):
        life = Life(logger=Logging(act))
        await life.live(SessionConfig(model="odd"), name)
        assert [outcome.status for _, outcome in life.answered] == ["committed"] * 4, name


PLAN = Plan(policy="odd", compacted_before=0, reason="r", tokens_before=100, tokens_after=1)
SUMMARY = SummaryRequest(first=0, upto=2, max_tokens=10, fallback="so far")
PLAN_FIELDS = (
    "the plan", "due", "harder", *(f for f in Plan.__struct_fields__), "summary_request.first",
    "summary_request.upto", "summary_request.max_tokens", "summary_request.appendix",
    "summary_request.fallback", "summary_request.omitted", "summary_request.pinned",
)  # fmt: skip


def plan_with(field: str, value: Any) -> Any:
    if field == "the plan":
        return value
    owner, _, name = field.rpartition(".")
    if owner:
        request = msgspec.structs.replace(SUMMARY, **{name: value})
        return msgspec.structs.replace(PLAN, summary_request=request)
    return msgspec.structs.replace(PLAN, **{name: value})


@some_acts(8)
@pytest.mark.parametrize("field", PLAN_FIELDS)
async def test_whatever_a_policy_plans_costs_its_own_session_at_most(
    field: str, number: int
) -> None:
    for name, act in acts(field, number):

        class Odd(Balanced, frozen=True):
            def due(self, used_tokens: int, limit_tokens: int, act: Act = act) -> Any:
                return act() if field == "due" else True

            def harder(self, act: Act = act) -> Any:
                return act() if field == "harder" else ()

            def plan(self, *_: Any, act: Act = act) -> Any:
                return plan_with(field, act())

        with policy_called("odd", Odd):
            compaction = CompactionConfig(policy="odd", schedule="at_once")
            life = Life()
            await life.live(SessionConfig(model="odd", compaction=compaction), name)


ODD_PLANS: dict[str, dict[str, Any]] = {
    "a summary of more messages than there are": {
        "prefix_summary": PrefixSummary(upto=10**6, text="so far")},
    "a summary whose text is a number": {"prefix_summary": PrefixSummary(upto=1, text=5)},  # type: ignore[arg-type]
    "a summary by nobody": {"prefix_summary": PrefixSummary(upto=1, text="x", by="x")},  # type: ignore[arg-type]
    "a range that goes back": {"omitted": ((3, 1),)},
    "a range without an end": {"omitted": ((1,),)},
    "a text that is injected nowhere": {"injected": (Injected(at=10**6, text="x"),)},
    "a text that is injected at a word": {"injected": (Injected(at="x", text="x"),)},  # type: ignore[arg-type]
    "a result shown as a number": {"shown_results": {"c": 5}},
    "an input that is no JSON": {"inputs": {"c": msgspec.Raw(b"{")}},
    "a position beyond the end": {"compacted_before": 10**6},
    "a figure that is a word": {"figures": {"x": "y"}},
}  # fmt: skip


@pytest.mark.parametrize("changes", ODD_PLANS.values(), ids=ODD_PLANS.keys())
async def test_a_plan_that_cannot_be_applied_leaves_a_session_that_can_be_opened(
    changes: dict[str, Any],
) -> None:
    class Odd(Balanced, frozen=True):
        def plan(self, *_: Any) -> Any:
            return msgspec.structs.replace(PLAN, **changes)

    with policy_called("odd", Odd):
        compaction = CompactionConfig(policy="odd", schedule="at_once")
        life = Life()
        await life.live(SessionConfig(model="odd", compaction=compaction), "plan")
        assert len(life.answered) == 4


class Storing(MemoryStore):
    """A store that does *act* instead of one method, for the session ``odd``."""

    def __init__(self, method: str, act: Act) -> None:
        super().__init__()
        self._method, self._act = method, act
        self.kept = MemoryStore()
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        get = object.__getattribute__
        if name in METHODS:
            kept = getattr(get(self, "kept"), name)
            if name != get(self, "_method"):
                return kept

            async def odd(session: Any, *rest: Any, **options: Any) -> Any:
                if getattr(session, "session", session) == "odd":
                    return get(self, "_act")()
                return await kept(session, *rest, **options)

            return odd
        if name == "append":
            return partial(get(self, "_append"), get(self, "kept").append)
        return get(self, name)

    def _append(
        self, append: Callable[..., None], batch: Batch, done: Callable[[AppendResult], None]
    ) -> None:
        self.calls += batch.session == "odd"
        if batch.session != "odd" or self.calls < 3:
            append(batch, done)
        elif self._method == "append":
            self._act()
            append(batch, done)
        elif self._method == "the answer":
            done(self._act())
        else:
            append(batch, done)


@some_acts(8)
@pytest.mark.parametrize("method", [*METHODS, "append", "the answer"])
async def test_whatever_a_store_does_to_one_session_costs_that_one_at_most(
    method: str, number: int
) -> None:
    for name, act in acts(method, number):
        life = Life(Storing(method, act))
        await life.live(SessionConfig(model="odd"), name)


ANSWERS: tuple[Any, ...] = (
    Appended(-1), Appended("x"), Appended(10**6), Conflict(5), Lost(5), Lost("x", True),  # type: ignore[arg-type]
    Lost(None), Conflict(None),  # type: ignore[arg-type]
)  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
async def test_an_answer_of_a_store_that_cannot_be_loses_one_session_s_turn(answer: Any) -> None:
    await Life(Storing("the answer", lambda: answer)).live(SessionConfig(model="odd"), "answer")


MAX_ASKED = 500
"""More than any of these operations asks of a store."""


class Indexed(MemoryStore):
    """A store with an index of words, that does *act* where a search asks it by *method*. It counts
    nothing."""

    begin_count = None  # type: ignore[assignment]

    def __init__(self, method: str, act: Act) -> None:
        super().__init__()
        self._method, self._act = method, act
        self.asked = 0

    async def rows_with(self, words: Any, words_of: Any, **options: Any) -> Any:
        return await self._answer("rows_with", super().rows, **options)

    async def rows(self, **options: Any) -> Any:
        return await self._answer("rows", super().rows, **options)

    async def unfinished(self, **options: Any) -> Any:
        return await self._answer("unfinished", super().unfinished, **options)

    async def read(self, session: str, **options: Any) -> Any:
        return await self._answer("read", super().read, session, **options)

    async def _answer(self, method: str, answer: Any, *args: Any, **options: Any) -> Any:
        self.asked += 1
        if self.asked > MAX_ASKED:
            raise RuntimeError("it is asked again and again")
        return self._act() if method == self._method else await answer(*args, **options)


ROW = SessionRow("s", 1, 5)
ODD_ROWS: dict[str, Any] = {
    "a row that was before": [ROW],
    "rows that go back": [SessionRow("b", 1, 0), SessionRow("a", 1, 0)],
    "more rows than were asked for": [SessionRow(f"{n:09}", 1, 0) for n in range(2000)],
    "a row whose session is a number": [SessionRow(5, 1, 5)],  # type: ignore[arg-type]
    "a row whose labels are a list": [SessionRow("s", 1, 5, labels=["x"])],  # type: ignore[arg-type]
    "a row whose label is a number": [SessionRow("s", 1, 5, labels={"x": 5})],  # type: ignore[dict-item]
    "a row without a time": [SessionRow("s", 1, 5, created_at="soon")],  # type: ignore[arg-type]
    "a row whose time never is": [SessionRow("s", 1, 5, touched_at=float("nan"))],
    "a row whose owner is a word": [SessionRow("s", 1, 5, owner="me")],  # type: ignore[arg-type]
    "a row whose owner has no name": [SessionRow("s", 1, 5, owner=Owner(5))],  # type: ignore[arg-type]
    "a row whose parent is a number": [SessionRow("s", 1, 5, parent=5)],  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.real_time
@pytest.mark.parametrize("method", ["rows_with", "read"])
async def test_whatever_a_store_does_to_a_search_costs_it_one_clear_error(method: str) -> None:
    odd = [(name, partial(_same, rows)) for name, rows in ODD_ROWS.items()]
    for name, act in [*all_acts(), *(odd if method == "rows_with" else ())]:
        store = Indexed("", act)
        async with SessionManager(provider=Model(), store=store) as manager:
            session = await manager.create(SessionConfig(model="m"), session_id="s")
            await (await session.send("the word")).text()
            assert [hit.session for hit in (await manager.search("word")).hits] == ["s"]
            store._method = method
            with suppress(SessionError):
                assert (await manager.search("word")).hits == (), name
            assert store.asked < MAX_ASKED, name
            store._method = ""


@pytest.mark.parametrize("name", ODD_ROWS)
async def test_rows_that_cannot_be_are_one_clear_error_of_every_operation_that_lists(
    name: str,
) -> None:
    store = Indexed("rows", partial(_same, ODD_ROWS[name]))
    async with SessionManager(provider=Model(), store=store) as manager:
        for method, listing in (
            ("rows", partial(manager.list, after="x")),
            ("rows", partial(manager.apply_retention, [], now=0)),
            ("unfinished", partial(recover_unfinished, manager)),
            ("rows", partial(manager.tenant_spending, "acme")),
        ):
            store._method = method
            if name == "a row that was before" and listing.keywords.get("after") != "x":
                continue  # the first page may have it
            with pytest.raises(StoreError, match=r"invalid answer|answered with rows"):
                await listing()
        assert store.asked < MAX_ASKED


async def test_a_store_that_cannot_be_closed_is_told_of_where_the_manager_is_left() -> None:
    for error in ERRORS:

        class Closing(MemoryStore):
            async def aclose(self, error: BaseException = error) -> None:
                raise error.with_traceback(None)

        with pytest.raises(Exception) as caught:  # noqa: PT011  # any Exception, no BaseException
            async with SessionManager(provider=Model(), store=Closing()):
                pass
        assert type(error).__name__ in error_text(caught.value)


def test_only_an_interrupt_by_the_keyboard_is_raised_on() -> None:
    for error in ERRORS:
        assert isinstance(contained(error), Exception)
    assert error_text(contained(SystemExit(3))) == "RuntimeError: SystemExit: 3"
    for stop in (KeyboardInterrupt(), BaseExceptionGroup("many", [KeyboardInterrupt()])):
        with pytest.raises(type(stop)):
            contained(stop)


# The four that were found.


async def outcome_of(reply: Callable[[], AsyncGenerator[Any, None]]) -> TurnOutcome:
    class One:
        name = "one"

        def profile(self, model: str) -> Profile:
            return Profile()

        def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[Any, None]:
            return reply()

    async with SessionManager(provider=One()) as manager:
        session = await manager.create(SessionConfig(model="m"))
        return await (await session.send("hello")).outcome()


@pytest.mark.parametrize(
    ("end", "what"),
    [
        (ReplyEnded("end_turn", Usage(output_tokens=2.5)), "output_tokens is 2.5"),  # type: ignore[arg-type]
        (ReplyEnded("end_turn", Usage(input_tokens=None)), "input_tokens is None"),  # type: ignore[arg-type]
        (ReplyEnded("end_turn", {"output_tokens": 1}), "usage must be a Usage, not dict"),  # type: ignore[arg-type]
        (ReplyEnded(5), "stop_reason of ReplyEnded is int, not text"),  # type: ignore[arg-type]
        ("the end", "str is not a stream event"),
    ],
)
async def test_a_turn_whose_report_cannot_be_logged_fails_and_says_what_is_wrong(
    end: Any, what: str
) -> None:
    async def reply() -> AsyncGenerator[Any, None]:
        yield ReplyStarted("m")
        yield end

    outcome = await outcome_of(reply)
    assert (outcome.status, outcome.stop_reason) == ("failed", "fatal")
    assert what in (outcome.error or "")


async def test_a_lone_surrogate_in_the_name_of_a_model_is_replaced() -> None:
    async def reply() -> AsyncGenerator[Any, None]:
        yield ReplyStarted("m\ud83d")
        yield BlockStarted(0, TEXT)
        yield BlockDelta(0, "text", Text("hi"))
        yield BlockStopped(0)
        yield ReplyEnded(Word.WORD, Usage(Number(1), 2))

    outcome = await outcome_of(reply)
    assert (outcome.status, outcome.stop_reason) == ("committed", "word")
    assert outcome.messages[-1].model == "m\ufffd"
    assert type(outcome.usage.input_tokens) is int
