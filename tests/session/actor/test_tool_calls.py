"""Tools: run by the session or by the caller, answered once, in the order of the calls."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from llmsession import (
    DuplicateToolResult,
    InvalidConfig,
    InvalidInput,
    SessionClosed,
    SessionConfig,
    SessionManager,
    Tool,
    ToolOutput,
    ToolResult,
    ToolUse,
    TurnNotOpen,
)
from llmsession.session.manager import runtime_of
from llmsession.testing.scripted import ScriptedProvider, call, say
from llmsession.turns import records as r
from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.receipts import settled_text
from tests.session.actors import (
    Quick,
    Raising,
    Stage,
    SwallowingCancellation,
    Waiting,
    first,
    in_tool,
    lasting,
    offering,
    settled,
    stage,
)
from tests.session.core.test_session_log import recorder
from tests.session.probes import task_named


def results(on: Stage, position: int = 2) -> list[ToolResultBlock]:
    return list(on.session.conversation()[position].tool_results)


async def test_a_callable_gets_the_input_as_keyword_arguments_and_the_model_its_result() -> None:
    tool = Quick("the listing")
    script = [call("ls", {"path": ".", "depth": 2}, id="c"), "done"]
    async with stage(script, tools=[Tool(name="ls", run=tool)]) as on:
        assert await on.say("list it") == "done"
        assert tool.inputs == [{"path": ".", "depth": 2}]
        assert [(block.tool_use_id, block.text) for block in results(on)] == [("c", "the listing")]


async def test_the_tools_of_a_step_run_at_the_same_time_and_answer_in_call_order() -> None:
    everybody = anyio.Event()
    running: list[str] = []
    finished: list[str] = []

    async def tool(name: str, seconds: float) -> str:
        running.append(name)
        if len(running) == 3:
            everybody.set()
        await everybody.wait()  # none goes on before all have started
        await anyio.sleep(seconds)
        finished.append(name)
        return name

    calls = (
        call("t", {"name": "a", "seconds": 3}, id="a")
        + call("t", {"name": "b", "seconds": 2}, id="b")
        + call("t", {"name": "c", "seconds": 1}, id="c")
    )
    async with stage([calls, "done"], tool=tool) as on:
        await on.say("go")
        assert finished == ["c", "b", "a"]
        assert [block.text for block in results(on)] == ["a", "b", "c"]


async def test_a_callable_that_raises_becomes_an_error_result_and_the_turn_goes_on() -> None:
    async with stage([call("t", id="c"), "sorry"], tool=Raising()) as on:
        assert await on.say("go") == "sorry"
        (block,) = results(on)
        assert (block.is_error, block.text) == (True, "ValueError: no such file")


async def test_a_tool_output_carries_its_compact_summary_and_its_error_flag() -> None:
    output = ToolOutput(content="long " * 500, compact_summary="it was long", is_error=True)
    async with stage([call("t", id="c"), "ok"], tool=Quick(output)) as on:
        await on.say("go")
        assert results(on)[0].is_error
        (answered,) = [rec for rec in await on.log() if isinstance(rec, r.ToolsAnswered)]
        assert answered.answers[0].summary == "it was long"


@pytest.mark.real_time
async def test_a_synchronous_callable_runs_in_a_thread_beside_the_event_loop() -> None:
    release = threading.Event()
    threads: list[int] = []

    def blocks() -> str:
        threads.append(threading.get_ident())
        release.wait(100)
        return "from a thread"

    async with stage([call("t", id="c"), "ok"], tool=blocks) as on:
        turn = await on.offered("go")
        while not threads:  # noqa: ASYNC110  # a thread cannot set an event of the loop
            await anyio.sleep(0.001)
        # The loop is free while the callable blocks its thread.
        assert on.session.status().turn_phase == "tools"
        release.set()
        assert await turn.text() == "ok"
        assert threads != [threading.get_ident()]
        assert results(on)[0].text == "from a thread"


@pytest.mark.real_time
async def test_a_thread_that_a_tool_starts_may_run_an_event_loop_of_its_own() -> None:
    async def inner() -> str:
        await anyio.lowlevel.checkpoint()
        return "from a loop in a thread"

    async def starts_one() -> str:
        context = copy_context()  # as ``asyncio.to_thread`` does it
        return await anyio.to_thread.run_sync(lambda: context.run(lambda: anyio.run(inner)))

    async with stage([call("t", id="c"), "ok"], tool=starts_one) as on:
        assert await on.say("go") == "ok"
        assert results(on)[0].text == "from a loop in a thread"


@pytest.mark.real_time
async def test_an_interrupt_leaves_a_blocking_thread_behind_and_answers() -> None:
    release, started = threading.Event(), threading.Event()

    def blocks() -> str:
        started.set()
        release.wait(100)
        return "late"

    async with stage([call("t", id="c"), "ok"], tool=blocks) as on:
        await on.session.send("go")
        while not started.is_set():  # noqa: ASYNC110  # as above
            await anyio.sleep(0.001)
        try:
            with anyio.fail_after(100):
                await on.session.interrupt()
                assert await on.say("again") == "ok"
        finally:
            release.set()


class Blocking:
    """A synchronous tool that ends when it is released, whatever happens."""

    def __init__(self) -> None:
        self.begun, self.release, self.ended = (threading.Event() for _ in range(3))

    def __call__(self) -> str:
        self.begun.set()
        self.release.wait(50)
        self.ended.set()
        return "late"

    async def started(self) -> None:
        await anyio.to_thread.run_sync(self.begun.wait, 50)


@pytest.mark.real_time
async def test_a_thread_that_outlives_its_interrupt_is_named_until_it_ends() -> None:
    tool = Blocking()
    async with stage([call("t", id="c"), "ok"], tool=tool) as on:
        await on.session.send("go")
        await tool.started()
        try:
            outcome = await on.session.interrupt()
            assert outcome.turns[0].still_running == ("tool t c in s",)
            assert on.session.status().still_running == ("tool t c in s",)
            assert runtime_of(on.manager).running_works == ("tool t c in s",)
        finally:
            tool.release.set()
        while on.session.status().still_running:  # noqa: ASYNC110  # it ends in a thread
            await anyio.sleep(0.001)
        assert await on.say("again") == "ok"


@pytest.mark.real_time
async def test_leaving_the_manager_waits_for_a_thread_that_its_interrupt_left_behind() -> None:
    tool = Blocking()
    async with stage([call("t", id="c"), "ok"], tool=tool) as on:
        await on.session.send("go")
        await tool.started()
        await on.session.interrupt()
        closed = await on.session.close()
        assert closed.still_running == ("tool t c in s",)
        threading.Timer(0.5, tool.release.set).start()
    assert tool.ended.is_set()
    assert runtime_of(on.manager).running_works == ()


@pytest.mark.real_time
async def test_a_thread_that_never_ends_holds_the_manager_for_thread_wait_s_and_is_named() -> None:
    tool = Blocking()
    logger, entries = recorder()
    provider = ScriptedProvider([call("t", id="c"), "ok"])
    try:
        async with SessionManager(provider=provider, thread_wait_s=0.05, logger=logger) as manager:
            config = SessionConfig(model="m", tools=(Tool(name="t", run=tool),))
            session = await manager.create(config, session_id="s")
            await session.send("go")
            await tool.started()
        assert not tool.ended.is_set()
        (entry,) = [entry for entry in entries if entry["event"] == "threads.left"]
        assert (entry["works"], entry["log_level"]) == (["tool t c in s"], "warning")
        assert runtime_of(manager).running_works == ()
    finally:
        tool.release.set()


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_thread_that_never_ends_does_not_hold_a_manager_that_was_cancelled() -> None:
    tool = Blocking()
    logger, entries = recorder()
    provider = ScriptedProvider([call("t", id="c"), "ok"])
    try:
        with pytest.raises(SessionClosed):
            async with SessionManager(
                provider=provider, thread_wait_s=0.05, logger=logger
            ) as manager:
                config = SessionConfig(model="m", tools=(Tool(name="t", run=tool),))
                session = await manager.create(config, session_id="s")
                await session.send("go")
                await tool.started()
                task_named("llmsession manager").cancel()
                await anyio.sleep_forever()
        assert not tool.ended.is_set()
        assert ["tool t c in s"] in [
            entry["works"] for entry in entries if entry["event"] == "threads.left"
        ]
    finally:
        tool.release.set()


@pytest.mark.parametrize("seconds", [-1, float("nan"), "10", True, None])
def test_a_thread_wait_that_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidInput, match="thread_wait_s"):
        SessionManager(provider=ScriptedProvider([]), thread_wait_s=seconds)


# Deadlines


async def test_a_call_past_its_deadline_is_settled_as_unknown_and_the_turn_goes_on() -> None:
    async with stage([call("mine", id="c"), "ok"], tools=[Tool(name="mine")]) as on:
        with lasting(600, abs=1):
            assert await on.say("go") == "ok"
        (block,) = results(on)
        assert (block.text, block.is_error) == (settled_text("deadline"), True)
        assert "outcome unknown" in block.text
        assert on.session.conversation()[2].synthetic == (0,)


async def test_each_call_has_its_own_deadline() -> None:
    calls = call("short", id="a") + call("long", id="b") + call("mine", id="c")
    tools = [
        Tool(name="short", run=Waiting(), deadline_s=1),
        Tool(name="long", run=SwallowingCancellation(30, "made it"), deadline_s=50),
        Tool(name="mine", deadline_s=20),
    ]
    async with stage([calls, "ok"], tools=tools) as on:
        with lasting(30, abs=1):
            await on.say("go")
        unknown = settled_text("deadline")
        assert [block.text for block in results(on)] == [unknown, "made it", unknown]


async def test_a_tool_that_swallows_the_cancellation_of_its_deadline_holds_nothing() -> None:
    tool = SwallowingCancellation(500)
    tools = [Tool(name="t", run=tool, deadline_s=5)]
    async with stage([call("t", id="c"), "ok"], tools=tools) as on:
        with lasting(5, abs=0.2):
            assert await on.say("go") == "ok"
        await anyio.sleep(1)
        assert len(on.session.status().still_running) == 1
        await tool.ended.wait()
        await settled()
        assert on.session.status().still_running == ()
        assert results(on)[0].text == settled_text("deadline")


async def test_a_deadline_stops_its_own_tool_whatever_the_ids_of_the_calls_are() -> None:
    # "in" is a word of every work's name.
    calls = call("short", id="in") + call("long", {"seconds": 30}, id="b")
    tools = [Tool(name="short", run=Waiting(), deadline_s=1), Tool(name="long", run=_last)]
    async with stage([calls, "ok"], tools=tools) as on:
        await on.say("go")
        assert [block.text for block in results(on)] == [settled_text("deadline"), "made it"]


async def _last(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "made it"


async def test_without_a_deadline_a_call_waits_for_ever() -> None:
    async with stage(
        [call("mine", id="c"), "ok"], tools=[Tool(name="mine")], tool_deadline_s=None
    ) as on:
        turn = await on.session.send("go")
        await anyio.sleep(50_000)
        assert on.session.status().turn_phase == "tools"
        await on.submit(c="at last")
        assert await turn.text() == "ok"


@pytest.mark.parametrize("in_time", [False, True])
async def test_only_a_result_that_comes_before_its_deadline_is_taken(in_time: bool) -> None:
    calls = call("mine", id="a") + call("slow", id="b")
    tools = [Tool(name="mine", deadline_s=5), Tool(name="slow")]
    async with stage([calls, "ok"], tools=tools) as on:
        turn = await on.offered("go")
        if in_time:
            await on.submit(a="in time")
        await anyio.sleep(10)
        if not in_time:
            with pytest.raises(DuplicateToolResult):
                await on.submit(a="late")
        await on.submit(b="fine")
        await turn.text()
        first_text = "in time" if in_time else settled_text("deadline")
        assert [block.text for block in results(on)] == [first_text, "fine"]


# Results of the caller


async def test_the_caller_may_submit_results_in_parts_and_in_any_order() -> None:
    async with offering("a", "b", "c") as (on, turn):
        await on.submit(c="3")
        assert on.session.status().turn_phase == "tools"
        await on.submit(b="2", a="1")
        assert await turn.text() == "ok"
        assert [block.text for block in results(on)] == ["1", "2", "3"]


async def test_a_submitted_result_is_durable_when_the_call_returns() -> None:
    async with offering("a", "b") as (on, _):
        await on.submit(a="1")
        assert (await on.kinds())[-1] == "tools.answered"


async def test_a_turn_can_mix_tools_of_the_session_and_of_the_caller() -> None:
    calls = call("ours", id="a") + call("mine", id="b")
    tools = [Tool(name="ours", run=Quick("by the session")), Tool(name="mine")]
    async with stage([calls, "ok"], tools=tools) as on:
        turn = await on.session.send("go")
        runners = {}
        async for event in turn:
            if isinstance(event, ToolUse):
                runners[event.id] = event.runner
                if event.runner == "caller":
                    await on.session.submit_tool_results([ToolResult(event.id, "by the caller")])
        assert runners == {"a": "session", "b": "caller"}
        assert [block.text for block in results(on)] == ["by the session", "by the caller"]


async def test_a_tool_use_is_published_only_when_its_request_is_durable() -> None:
    async with stage([call("mine", {"x": 1}, id="c"), "ok"], tools=[Tool(name="mine")]) as on:
        turn = await on.session.send("go")
        use = await first(turn, ToolUse)
        log = await on.log()
        assert log[use.seq - 1].__struct_config__.tag == "tools.requested"
        assert (use.id, use.name, use.input, use.step) == ("c", "mine", {"x": 1}, 1)
        await on.session.interrupt()


async def test_a_second_result_is_a_duplicate_and_the_first_one_stays() -> None:
    async with offering("a", "b") as (on, turn):
        await on.submit(a="first")
        with pytest.raises(DuplicateToolResult) as raised:
            await on.submit(b="x", a="second")
        assert raised.value.call_id == "a"
        # All or none: b was not taken either.
        await on.submit(b="other")
        await turn.text()
        assert [block.text for block in results(on)] == ["first", "other"]


async def test_a_result_for_an_aborted_turn_is_refused_by_name_and_the_session_goes_on() -> None:
    async with offering("a") as (on, _):
        await on.session.interrupt()
        with pytest.raises(TurnNotOpen, match=r"takes no results any more .aborted"):
            await on.submit(a="1")
        assert await on.say("again") == "ok"


async def test_a_result_for_a_committed_turn_is_refused_by_name() -> None:
    async with stage([call("t", id="a"), "ok"], tool=Quick()) as on:
        await on.say("go")
        with pytest.raises(TurnNotOpen, match="committed"):
            await on.submit(a="1")


async def test_the_caller_cannot_answer_a_call_that_the_session_runs() -> None:
    tool = Waiting()
    async with in_tool(tool, "ok") as (on, turn):
        with pytest.raises(InvalidInput, match="session itself"):
            await on.submit(c="1")
        tool.go.set()
        assert await turn.text() == "ok"


async def test_a_call_of_a_tool_that_nobody_configured_is_the_callers() -> None:
    async with stage([call("invented", id="a"), "ok"], tools=[Tool(name="mine")]) as on:
        turn = await on.session.send("go")
        use = await first(turn, ToolUse)
        assert (use.name, use.runner) == ("invented", "caller")
        await on.session.submit_tool_results([ToolResult("a", "no such tool", is_error=True)])
        assert await turn.text() == "ok"


async def test_call_ids_are_unique_in_a_session_before_they_are_published() -> None:
    script = [call("mine", id="c") + call("mine", id="c"), "ok", call("mine", id="c"), "ok"]
    async with stage(script, tools=[Tool(name="mine")]) as on:
        offered = []
        for _ in range(2):
            async for event in await on.session.send("go"):
                if isinstance(event, ToolUse):
                    offered.append(event.id)
                    await on.session.submit_tool_results([ToolResult(event.id, "1")])
        assert offered == ["c", "c_2", "c_3"]


async def test_an_id_of_a_dropped_turn_is_not_used_again() -> None:
    script = [call("mine", id="c"), call("mine", id="c")]
    async with stage(script, tools=[Tool(name="mine")]) as on:
        for wanted in ("c", "c_2"):
            turn = await on.session.send("go")
            assert (await first(turn, ToolUse)).id == wanted
            await on.session.interrupt()


@pytest.mark.parametrize(
    "tools",
    [
        [Tool(name="a b")],
        [Tool(name="recall")],
        [Tool(name="x"), Tool(name="x")],
        [Tool(name="x", run=5)],  # type: ignore[arg-type]  # that is the point
        [{"no": "name"}],
        ["x"],
        [Tool(name="")],
    ],
)
async def test_tools_that_cannot_work_are_refused_at_configuration(tools: Any) -> None:
    async with stage() as on:
        with pytest.raises(InvalidConfig):
            await on.session.configure(tools=tools)
        assert on.session.config.tools == ()


async def test_a_tool_is_cancelled_at_its_deadline() -> None:
    tool = Waiting()
    tools = [Tool(name="t", run=tool, deadline_s=5)]
    async with stage([call("t", id="c"), "ok"], tools=tools) as on:
        assert await on.say("go") == "ok"
        await anyio.sleep(1)
        assert tool.cancelled
        assert on.session.status().still_running == ()


async def test_a_tool_that_outlives_its_deadline_is_named_while_its_turn_goes_on() -> None:
    tool = SwallowingCancellation(500)
    tools = [Tool(name="t", run=tool, deadline_s=5)]
    async with stage([call("t", id="c"), say("x" * 16 * 100).slow(1)], tools=tools) as on:
        turn = await on.session.send("go")
        await anyio.sleep(10)
        assert on.session.status().turn_phase == "streaming"
        (name,) = on.session.status().still_running
        assert "tool t c" in name
        outcome = await on.session.interrupt()
        assert (await turn.outcome()).status == "aborted"
        assert outcome.turns[0].still_running == ()  # not the stream, and the call was settled


async def test_a_tool_that_returns_after_its_deadline_does_not_replace_what_stands_for_it() -> None:
    calls = call("stubborn", id="a") + call("mine", id="b")
    tools = [
        Tool(name="stubborn", run=SwallowingCancellation(30, "late"), deadline_s=5),
        Tool(name="mine"),
    ]
    async with stage([calls, "ok"], tools=tools) as on:
        turn = await on.session.send("go")
        await anyio.sleep(60)
        assert on.session.status().turn_phase == "tools"
        await on.submit(b="fine")
        await turn.text()
        assert [block.text for block in results(on)] == [settled_text("deadline"), "fine"]
        answered = [record for record in await on.log() if isinstance(record, r.ToolsAnswered)]
        assert [answer.call_id for record in answered for answer in record.answers] == ["a", "b"]
