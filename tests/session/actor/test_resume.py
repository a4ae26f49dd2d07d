"""A turn whose owner died goes on where the log ends: ``recovery = "resume"``.

A crash is a copy of the log as it stands, opened by another manager: what was not durable is gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from llmsession import (
    RECALL_TOOL_NAME,
    InterruptResult,
    InvalidConfig,
    InvalidInput,
    MemoryStore,
    SessionConfig,
    SessionMoved,
    StoreError,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
    TurnLimits,
    TurnNotOpen,
    Usage,
    records,
)
from llmsession.session.manager import SessionManager
from llmsession.session.values.config import Recovery
from llmsession.testing import FaultyStore
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, block, call, never, say
from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.receipts import settled_text
from llmsession.turns.request import Request, StepTag
from tests.session.actors import (
    MINE,
    Quick,
    Raising,
    Stage,
    SwallowingCancellation,
    Waiting,
    faulty_stage,
    first,
    lasting,
    meanwhile,
    offering,
    settled,
    stage,
    texts_of,
)
from tests.session.probes import after_a_crash


def the_turn(on: Stage) -> Turn:
    """The handle of the turn that runs."""
    running = on.session.status().turn
    assert running is not None
    return on.session.turn(running)


def results(on: Stage, position: int = 2) -> list[ToolResultBlock]:
    return list(on.session.conversation()[position].tool_results)


async def crashed(
    script: Sequence[ScriptedReply | str],
    *,
    tools: Sequence[Tool] = (MINE,),
    calls: int = 0,
    **config: Any,
) -> MemoryStore:
    """What is left of a session that was sent "go" and died once all that could happen had, and
    so many calls were open."""
    async with stage(script, tools=tools, **config) as on:
        await on.begin("go")
        assert len(on.session.open_calls()) == calls
        return await after_a_crash(on.store)


@asynccontextmanager
async def resumed(
    script: Sequence[ScriptedReply | str],
    *,
    then: Sequence[ScriptedReply | str] = (),
    bound: Sequence[Tool] = (),
    **options: Any,
) -> AsyncIterator[Stage]:
    """The session that *crashed* makes, opened by another manager, whose provider says *then*."""
    store = await crashed(script, recovery="resume", **options)
    async with stage(then, tools=bound, store=store, reopen=True) as on:
        yield on


# Where it goes on


async def test_by_default_a_turn_is_dropped_when_its_owner_has_died() -> None:
    store = await crashed([never()])
    async with stage([], store=store, reopen=True) as on:
        assert on.session.status().turn is None
        assert (await on.kinds())[-1] == "turn.aborted"


async def test_a_turn_without_a_step_goes_on_with_its_first_request() -> None:
    async with resumed([never()], then=["here it is"]) as on:
        turn = the_turn(on)
        assert (str(turn.id), await turn.text()) == ("u1", "here it is")
        assert on.provider.tags == [StepTag(1, 1, 1)]
        assert await on.kinds() == [
            "session.created", "turn.accepted", "turn.resumed", "turn.committed",
        ]  # fmt: skip


async def test_the_record_that_it_goes_on_is_durable_before_anything_else_happens() -> None:
    store = FaultyStore(await crashed([never()], recovery="resume"))
    store.fail_next()
    provider = ScriptedProvider([])
    async with SessionManager(provider=provider, store=store) as manager:
        with pytest.raises(StoreError):
            await manager.open("s")
        await settled()
        assert provider.requests == []
        assert manager.live == ()


async def test_the_request_is_the_one_that_was_never_answered_byte_for_byte() -> None:
    script = [call("quick", {"n": 1}, id="c"), never()]
    async with stage(script, tools=[Tool(name="quick", run=Quick())], recovery="resume") as on:
        await on.begin("go")
        asked = on.provider.requests[-1].encode()
        store = await after_a_crash(on.store)
    async with stage(["done"], store=store, reopen=True) as on:
        assert await the_turn(on).text() == "done"
        assert [request.encode() for request in on.provider.requests] == [asked]
        (resumed,) = [each for each in await on.log() if isinstance(each, records.TurnResumed)]
        assert resumed.step == 2


async def test_a_reply_that_was_streaming_is_asked_for_again_and_counts_once() -> None:
    usage = Usage(input_tokens=7, output_tokens=3)
    script = [call("quick", id="c").costing(usage), say("lost words").slow(5).costing(usage)]
    tools = [Tool(name="quick", run=Quick())]
    async with resumed(script, tools=tools, then=[say("found").costing(usage)]) as on:
        outcome = await the_turn(on).outcome()
        assert (outcome.text, outcome.usage) == ("found", usage + usage)
        assert on.session.usage().total == usage + usage


# Calls of the caller


async def test_open_calls_of_the_caller_are_offered_again_under_their_ids() -> None:
    calls = call("mine", {"n": 1}, id="a") + call("mine", {"n": 2}, id="b")
    async with resumed([calls], calls=2, then=["done"]) as on:
        assert on.session.status().open_calls == ("a", "b")
        offered = on.session.open_calls()
        assert offered == await on.session.read_open_calls()
        assert [(use.id, use.input, use.runner, use.step) for use in offered] == [
            ("a", {"n": 1}, "caller", 1),
            ("b", {"n": 2}, "caller", 1),
        ]
        assert "tools.requested" in (await on.kinds())[offered[0].seq - 1]
        await on.submit(b="2")
        assert on.session.status().open_calls == ("a",)
        await on.submit(a="1")
        assert await the_turn(on).text() == "done"
        assert on.session.open_calls() == ()
        assert [block.text for block in results(on)] == ["1", "2"]
        assert (await on.kinds()).count("tools.requested") == 1


async def test_results_that_were_durable_stand_and_their_calls_are_not_offered_again() -> None:
    async with offering("a", "b", then=[], recovery="resume") as (on, _):
        await on.submit(a="from before")
        store = await after_a_crash(on.store)
    async with stage(["done"], store=store, reopen=True) as on:
        assert [use.id for use in on.session.open_calls()] == ["b"]
        await on.submit(b="from now")
        assert await the_turn(on).text() == "done"
        assert [block.text for block in results(on)] == ["from before", "from now"]


@pytest.mark.parametrize("crashes", [1, 2])
@pytest.mark.parametrize("after", [0, 2, 3])
async def test_a_subscriber_is_told_each_open_call_once_wherever_it_begins(
    after: int, crashes: int
) -> None:
    store = await crashed([call("mine", id="a")], calls=1, recovery="resume")
    if crashes == 2:
        async with stage([], store=store, reopen=True) as on:
            store = await after_a_crash(on.store)
    async with stage(["done"], store=store, reopen=True) as on:
        assert await on.kinds() == [
            "session.created", "turn.accepted", "tools.requested", *["turn.resumed"] * crashes,
        ]  # fmt: skip
        events = on.session.subscribe(after=after)
        events.end()
        told = [event async for event in events]
        (at,) = [at for at, event in enumerate(told) if isinstance(event, ToolUse)]
        expected = records.ToolsRequested if after < 3 else records.TurnResumed
        assert isinstance(told[at - 1], expected)
        await on.submit(a="1")
        assert await the_turn(on).text() == "done"


async def test_a_call_that_was_answered_meanwhile_is_not_told_to_who_reads_late() -> None:
    async with resumed([call("mine", id="a")], calls=1, then=["done"]) as on:
        late = on.session.subscribe(after=3)
        await on.submit(a="1")
        await on.session.turn(1).outcome()
        await settled()
        late.end()
        assert not [event async for event in late if isinstance(event, ToolUse)]


async def test_a_subscriber_of_a_session_that_is_cold_is_told_when_it_comes_back() -> None:
    store = FaultyStore(MemoryStore())
    async with stage(
        [call("mine", id="a"), "done"], tools=[MINE], store=store, recovery="resume"
    ) as on:
        turn = await on.session.send("go")
        seq = (await first(turn, ToolUse)).seq
        store.fail_next()
        with pytest.raises(StoreError):
            await on.session.send("lost")
        events = on.session.subscribe(after=seq)
        on.session = await on.manager.open("s")
        assert (await first(events, ToolUse)).id == "a"
        await on.submit(a="1")
        await on.session.turn(turn.id).outcome()
        events.close()


async def test_a_turn_that_is_being_stopped_has_no_open_calls() -> None:
    calls = call("stuck", id="a") + call("mine", id="b")
    tools = [Tool(name="stuck", run=SwallowingCancellation(5)), MINE]
    async with stage([calls], tools=tools) as on:
        await on.offered("go")
        async with meanwhile(on.session.interrupt):
            assert on.session.status().turn_phase == "stopping"
            assert on.session.open_calls() == ()


async def test_the_deadline_of_a_call_that_is_offered_again_starts_anew() -> None:
    async with offering("a", then=[], recovery="resume") as (on, _):
        await anyio.sleep(500)
        store = await after_a_crash(on.store)
    async with stage(["done"], store=store, reopen=True) as on:
        with lasting(600, abs=1):
            assert await the_turn(on).text() == "done"
        assert results(on)[0].text == settled_text("deadline")


# Callables


async def test_a_callable_that_may_have_started_is_not_run_again_and_the_model_is_told() -> None:
    ours, again = [Tool(name="ours", run=Waiting())], Quick()
    bound = [Tool(name="ours", run=again)]
    script = [call("ours", id="a")]
    async with resumed(script, tools=ours, calls=1, then=["done"], bound=bound) as on:
        assert on.session.open_calls() == ()
        assert await the_turn(on).text() == "done"
        assert again.inputs == []
        (result,) = results(on)
        assert (result.text, result.is_error) == (settled_text("crash"), True)
        assert "outcome unknown" in result.text
        assert on.session.conversation()[2].synthetic == (0,)
        (answered,) = [each for each in await on.log() if isinstance(each, records.ToolsAnswered)]
        assert [answer.settled for answer in answered.answers] == ["crash"]


async def test_results_stand_in_call_order_whoever_gave_them_and_when() -> None:
    calls = call("mine", id="a") + call("stuck", id="b") + call("quick", id="c")
    tools = [MINE, Tool(name="stuck", run=Waiting()), Tool(name="quick", run=Quick("quick"))]
    async with resumed([calls], tools=tools, calls=2, then=["done"]) as on:
        assert on.session.status().open_calls == ("a",)
        await on.submit(a="mine")
        await the_turn(on).outcome()
        shown = [block.text for block in results(on)]
        assert shown == ["mine", settled_text("crash"), "quick"]
        assert on.session.conversation()[2].synthetic == (1,)


async def test_a_step_with_all_its_results_is_completed_and_no_tool_is_run() -> None:
    async with stage(
        [call("quick", id="c"), never()], tools=[Tool(name="quick", run=Quick())], recovery="resume"
    ) as on:
        await on.begin("go")
        answered = (await on.kinds()).index("tools.answered") + 1
        store = await after_a_crash(on.store, answered)
    async with stage(["done"], store=store, reopen=True) as on:
        assert await the_turn(on).text() == "done"
        kinds = await on.kinds()
        assert kinds[answered:] == ["turn.resumed", "step.completed", "turn.committed"]


async def test_recall_only_reads_and_is_run_again() -> None:
    script = [call("quick", id="c"), call(RECALL_TOOL_NAME, {"id": "c"}, id="r"), never()]
    tools = [Tool(name="quick", run=Quick("what it said"))]
    async with stage(script, tools=tools, recovery="resume") as on:
        await on.begin("go")
        kinds = await on.kinds()
        requested = len(kinds) - kinds[::-1].index("tools.requested")
        store = await after_a_crash(on.store, requested)
    async with stage(["done"], store=store, reopen=True) as on:
        assert await the_turn(on).text() == "done"
        (result,) = results(on, 4)
        assert "what it said" in result.text
        assert not result.is_error


@pytest.mark.parametrize("by", ["manager", "open", "nobody"])
async def test_callables_are_bound_again_before_the_turn_goes_on(by: str) -> None:
    store = await crashed(
        [never()], tools=[Tool(name="ours", run=Quick()), MINE], recovery="resume"
    )
    tool = Quick("run again")
    tools = [Tool(name="ours", run=tool)]
    provider = ScriptedProvider([call("ours", id="a"), "done"])
    async with SessionManager(
        provider=provider, store=store, tools=tools if by == "manager" else ()
    ) as manager:
        session = await manager.open("s", tools=tools if by == "open" else ())
        if by == "nobody":  # then it is the caller's to run
            await settled()
            assert [use.runner for use in session.open_calls()] == ["caller"]
            await session.submit_tool_results([ToolResult("a", "by hand")])
        assert await session.turn(1).text() == "done"
        assert len(tool.inputs) == (by != "nobody")


# Pauses, limits, steers


def paused(text: str) -> ScriptedReply:
    server = block({"type": "server_tool_use", "id": "st", "name": "web", "input": {}})
    return (say(text) + server).stopping("pause_turn")


async def test_a_paused_turn_is_sent_on_and_its_pauses_count_on() -> None:
    limits = TurnLimits(max_pauses=3)
    async with resumed(
        [paused("one"), paused("two"), never()],
        limits=limits,
        then=[paused("three"), paused("four")],
    ) as on:
        outcome = await the_turn(on).outcome()
        assert (outcome.stop_reason, outcome.text) == ("pause_turn", "four")
        assert [tag.step for tag in on.provider.tags] == [3, 4]


async def test_a_pause_beside_calls_is_counted_as_none_after_a_crash_either() -> None:
    limits = TurnLimits(max_pauses=1)
    tools = [Tool(name="quick", run=Quick())]
    script = [call("quick", id="c").stopping("pause_turn"), never()]
    async with resumed(script, tools=tools, limits=limits, then=[paused("one"), "done"]) as on:
        assert await the_turn(on).text() == "done"


@pytest.mark.parametrize(
    ("limits", "stop_reason"),
    [(TurnLimits(max_steps=2), "max_steps"), (TurnLimits(max_tokens=30), "max_turn_tokens")],
)
@pytest.mark.parametrize("crash_at", ["a step's end", "a call"])
async def test_steps_and_tokens_count_on(
    limits: TurnLimits, stop_reason: str, crash_at: str
) -> None:
    script = [call("mine", id="a"), call("mine", id="b"), call("mine", id="c")]
    async with stage(script, tools=[MINE], limits=limits, recovery="resume") as on:
        turn = await on.session.send("go")
        for name in ("a", "b"):
            while name not in on.session.status().open_calls:
                await settled()
            if name == "a" or crash_at == "a step's end":
                await on.session.submit_tool_results([ToolResult(name, "x")])
        if crash_at == "a step's end":
            await turn.outcome()
        at = max(n for n, kind in enumerate(await on.kinds(), 1) if kind != "turn.committed")
        store = await after_a_crash(on.store, at)
    async with stage([call("mine", id="c")], store=store, reopen=True) as on:
        if crash_at == "a call":
            await on.submit(b="x")
        outcome = await on.session.turn(1).outcome()
        assert (outcome.status, outcome.stop_reason) == ("committed", stop_reason)
        assert on.provider.requests == []
        assert len(outcome.messages) == 5


async def test_seconds_begin_anew() -> None:
    limits = TurnLimits(max_seconds=100)
    async with stage([call("mine", id="a")], tools=[MINE], limits=limits, recovery="resume") as on:
        await on.session.send("go")
        await anyio.sleep(90)
        store = await after_a_crash(on.store)
    async with stage([], store=store, reopen=True) as on:
        before = anyio.current_time()
        outcome = await the_turn(on).outcome()
        assert outcome.stop_reason == "max_seconds"
        assert anyio.current_time() - before == pytest.approx(100, abs=1)


@pytest.mark.parametrize("interrupts", [False, True])
async def test_steers_that_nobody_has_read_are_read_at_the_next_step_or_come_back(
    interrupts: bool,
) -> None:
    async with offering("a", then=[], recovery="resume") as (on, _):
        await on.session.send("and be quick", when_busy="steer")
        store = await after_a_crash(on.store)
    async with stage(["done"], store=store, reopen=True) as on:
        if interrupts:
            (dropped,) = (await on.session.interrupt()).dropped
            assert b"and be quick" in bytes(dropped.unread_steers[0])
        else:
            await on.submit(a="x")
            assert await the_turn(on).text() == "done"
            assert "and be quick" in texts_of(on.provider.requests[-1])[-1]


# Interrupts and receipts


async def test_an_interrupt_right_after_the_opening_drops_the_turn_with_right_receipts() -> None:
    calls = (
        call("quick", id="a") + call("fails", id="b") + call("stuck", id="c") + call("mine", id="d")
    )
    tools = [
        Tool(name="quick", run=Quick()),
        Tool(name="fails", run=Raising()),
        Tool(name="stuck", run=Waiting()),
        MINE,
    ]
    async with resumed([call("quick", id="z"), calls], tools=tools, calls=2, then=["ok"]) as on:
        outcome = await on.session.interrupt()
        assert outcome.result is InterruptResult.ABORTED
        (dropped,) = outcome.dropped
        assert [(each.id, each.status) for each in dropped.calls] == [
            ("z", "finished"), ("a", "finished"), ("b", "failed"), ("c", "unknown"),
            ("d", "unknown"),
        ]  # fmt: skip
        assert on.session.conversation() == ()
        await on.say("next")
        assert "stuck (c): started; outcome unknown" in texts_of(on.provider.requests[-1])[0]


@pytest.mark.parametrize("recovery", ["drop", "resume"])
async def test_a_call_that_a_deadline_settled_is_unknown_to_the_receipt_after_a_crash_too(
    recovery: Any,
) -> None:
    async with stage(
        [call("mine", id="a"), never()], tools=[MINE], tool_deadline_s=5, recovery=recovery
    ) as on:
        await on.session.send("go")
        await anyio.sleep(10)
        store = await after_a_crash(on.store)
    async with stage([never()], store=store, reopen=True) as on:
        await on.session.interrupt()
        ends = [each for each in await on.log() if isinstance(each, records.TurnAborted)]
        assert [(each.id, each.status) for each in ends[0].calls] == [("a", "unknown")]


async def test_keep_steps_keeps_what_was_complete_before_the_crash() -> None:
    script = [call("quick", id="a"), call("mine", id="b")]
    tools = [Tool(name="quick", run=Quick()), MINE]
    async with resumed(script, tools=tools, calls=1) as on:
        assert (await on.session.interrupt(policy="keep_steps")).result is InterruptResult.KEPT
        shown = [block.text for at in (2, 4) for block in results(on, at)]
        assert shown == ["the result", settled_text("cancelled")]


async def test_an_end_that_was_decided_and_not_written_did_not_happen() -> None:
    async with offering("a", then=[], recovery="resume") as (on, _):
        durable = on.session.status().seq
        await on.session.interrupt(policy="keep_steps")
        store = await after_a_crash(on.store, durable)
    async with stage(["done"], store=store, reopen=True) as on:
        await on.submit(a="x")
        assert (await on.session.turn(1).outcome()).stop_reason == "end_turn"


async def test_a_receipt_that_the_resumed_turn_carries_is_told_no_more_once_it_commits() -> None:
    script = [call("mine", id="a"), never()]
    async with stage(script, tools=[MINE], recovery="resume") as on:
        await on.offered("dropped")
        await on.session.interrupt()
        await on.begin("go")
        store = await after_a_crash(on.store)
    async with stage(["done", "next"], store=store, reopen=True) as on:
        assert await the_turn(on).text() == "done"
        await on.say("and now")
        said = [texts_of(request)[-1] for request in on.provider.requests]
        assert ["mine (a)" in text for text in said] == [True, False]


# Queued sends, repeats, handles


async def test_queued_sends_end_aborted_while_the_running_turn_goes_on() -> None:
    async with stage([never()], recovery="resume") as on:
        for text in ("runs", "waits", "waits, too"):
            await on.session.send(text)
        store = await after_a_crash(on.store)
    async with stage(["done", "next"], store=store, reopen=True) as on:
        for number in (2, 3):
            outcome = await on.session.turn(number).outcome()
            assert (outcome.status, outcome.stop_reason) == ("aborted", "crash")
        assert on.session.status().queued == 0
        written = (await on.kinds())[4:7]
        assert written == ["turn.resumed", "turn.aborted", "turn.aborted"]
        assert await on.session.turn(1).text() == "done"
        assert str((await on.session.send("again")).id) == "u4"


async def test_a_turn_that_was_accepted_and_had_not_started_is_no_running_turn() -> None:
    async with stage(["one", "two"], recovery="resume") as on:
        await on.session.send("one")
        turn = await on.session.send("two")
        await turn.outcome()
        started = (await on.kinds()).index("turn.started")
        store = await after_a_crash(on.store, started)
    async with stage([], store=store, reopen=True) as on:
        assert on.session.status().turn is None
        assert (await on.session.turn(2).outcome()).stop_reason == "crash"


async def test_a_repeated_send_is_the_resumed_turn() -> None:
    async with stage([never()], recovery="resume") as on:
        await on.session.send("go", command_id="once")
        store = await after_a_crash(on.store)
    async with stage(["done"], store=store, reopen=True) as on:
        turn = await on.session.send("go", command_id="once")
        assert (str(turn.id), await turn.text()) == ("u1", "done")
        assert (await on.kinds()).count("turn.accepted") == 1


# Again and again


async def test_a_turn_may_crash_and_be_resumed_again_and_again() -> None:
    store = await crashed([call("mine", id="a")], calls=1, recovery="resume")
    for crash in range(1, 4):
        async with stage([never()], store=store, reopen=True) as on:
            assert on.session.status().open_calls == ("a",)
            resumed = [each for each in await on.log() if isinstance(each, records.TurnResumed)]
            assert [(each.turn, each.step) for each in resumed] == [(1, 1)] * crash
            store = await after_a_crash(on.store)
    async with stage([call("mine", id="a"), "done"], store=store, reopen=True) as on:
        await on.submit(a="at last")
        await settled()
        # Ids of calls are never used twice, whoever offered them.
        assert on.session.status().open_calls == ("a_2",)
        await on.submit(a_2="x")
        assert await on.session.turn(1).text() == "done"
        epochs = [each.epoch for each in await on.log()]
        assert len(set(epochs)) == 5


async def test_a_crash_between_the_resumption_and_what_it_settles_is_made_good() -> None:
    async with resumed(
        [call("ours", id="a")], tools=[Tool(name="ours", run=Waiting())], calls=1, then=[never()]
    ) as on:
        assert (await on.kinds())[3:5] == ["turn.resumed", "tools.answered"]
        store = await after_a_crash(on.store, 4)
    async with stage(["done"], store=store, reopen=True) as on:
        assert await the_turn(on).text() == "done"
        assert results(on)[0].text == settled_text("crash")
        assert (await on.kinds()).count("tools.answered") == 1


# Who decides


@pytest.mark.parametrize(("stored", "asked"), [("drop", "resume"), ("resume", "drop")])
async def test_open_may_say_otherwise_once(stored: Any, asked: Any) -> None:
    script = ["done", never()] if asked == "resume" else [never()]
    async with stage([never()]) as on:
        await on.session.configure(recovery=stored)
        await on.begin("go")
        store = await after_a_crash(on.store)
    async with stage(script, store=store, reopen=True, recovery=asked) as on:
        outcome = await on.session.turn(1).outcome()
        assert (outcome.status == "committed") == (asked == "resume")
        assert on.session.config.recovery == stored
        await on.begin("again")
        store = await after_a_crash(on.store)
    async with stage(["done"], store=store, reopen=True) as on:
        assert (on.session.status().turn is not None) == (stored == "resume")


@pytest.mark.parametrize("recovery", ["again", "", 1, ["drop"]])
async def test_a_recovery_that_is_unknown_is_refused(recovery: Any) -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput, match=r"recovery is .*; it must be one of drop, resume"):
            await on.manager.open("s", recovery=recovery)
        with pytest.raises(InvalidConfig):
            await on.manager.create(SessionConfig(model="m", recovery=recovery))


async def test_opening_a_session_that_is_live_recovers_nothing() -> None:
    async with offering("a", then=["done"]) as (on, turn):
        before = await on.kinds()
        answers: tuple[Recovery | None, ...] = (None, "drop", "resume")
        for recovery in answers:
            other = await on.manager.open("s", recovery=recovery)
            assert other.status().open_calls == ("a",)
        assert await on.kinds() == before
        await on.submit(a="x")
        assert await turn.text() == "done"


# Without anybody dying


async def test_a_store_that_failed_is_a_crash_too_and_the_handle_goes_on() -> None:
    ours = Quick("ours")
    script = [call("mine", id="a"), call("ours", id="b"), "done", "and more"]
    tools = [MINE, Tool(name="ours", run=ours)]
    async with faulty_stage(script, tools=tools, recovery="resume") as (on, store):
        turn = await on.offered("go")
        store.fail_next()
        with pytest.raises(StoreError):
            await on.submit(a="lost")
        with pytest.raises(StoreError):
            await turn.outcome()
        assert on.session.status().phase == "cold"
        assert [use.id for use in on.session.open_calls()] == ["a"]
        # Cold: this brings it back. Its callables are bound as they were.
        await on.submit(a="kept")
        assert await on.session.turn(turn.id).text() == "done"
        assert len(ours.inputs) == 1
        assert [block.text for block in results(on)] == ["kept"]
        assert await on.say("go on") == "and more"


async def test_a_work_of_the_owner_that_lost_its_store_cannot_answer_for_the_new_one() -> None:
    store, tool = FaultyStore(MemoryStore()), Waiting("too late")
    calls = call("ours", id="a") + call("mine", id="b")
    tools = [Tool(name="ours", run=tool), MINE]
    async with stage([calls, "done"], tools=tools, store=store, recovery="resume") as on:
        turn = await on.offered("go")
        store.fail_next()
        with pytest.raises(StoreError):
            await on.submit(b="lost")
        tool.go.set()
        await on.submit(b="kept")
        await on.session.turn(turn.id).outcome()
        assert [block.text for block in results(on)] == [settled_text("crash"), "kept"]


async def test_who_takes_a_session_over_goes_on_with_its_turn() -> None:
    store = MemoryStore()
    async with offering("a", then=[], store=store, recovery="resume") as (on, turn):
        provider = ScriptedProvider(["done"])
        async with SessionManager(provider=provider, store=store) as other:
            taken = await other.open("s", takeover=True)
            with pytest.raises(SessionMoved):
                await on.submit(a="of the old owner")
            with pytest.raises(SessionMoved):
                await turn.outcome()
            await taken.submit_tool_results([ToolResult("a", "of the new one")])
            assert await taken.turn(1).text() == "done"


async def test_results_for_a_turn_that_was_dropped_are_refused_by_name() -> None:
    store = await crashed([call("mine", id="a")], calls=1)
    async with stage([], store=store, reopen=True) as on:
        with pytest.raises(TurnNotOpen):
            await on.submit(a="x")


async def test_a_turn_of_a_log_from_before_there_was_a_choice_is_dropped() -> None:
    def only(request: Request, tag: StepTag) -> str:
        raise AssertionError("nothing is asked")

    store = await crashed([never()])
    log = store._logs["s"]
    log.bodies[0] = log.bodies[0].replace(b'"recovery":"drop",', b"")
    assert b"recovery" not in log.bodies[0]
    async with stage(only, store=store, reopen=True) as on:
        assert (await on.session.turn(1).outcome()).stop_reason == "crash"
