"""Attacks on the compaction: what is made ready for one ground, and meets another; who waits for
it; what a policy that is anybody's code may do; what of it survives in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import anyio
import msgspec
import pytest

from llmsession import (
    CompactionConfig,
    InterruptResult,
    InvalidInput,
    LLMSession,
    MemoryStore,
    SummariserConfig,
    Tool,
)
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.policies import register, registry
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.view import View
from llmsession.session.compacting.compactor import Compactor
from llmsession.session.handles.session import live_state
from llmsession.session.tasks.works import Work, Works
from llmsession.session.values.outcome import CompactionOutcome
from llmsession.testing import FaultyStore
from llmsession.testing.scripted import Scripted, call, never, say, think
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, StepTag
from tests.session.actors import Planning, Stage, Waiting, settled, stage, texts_of
from tests.session.compacting.conversations import (
    OUTPUT,
    applied,
    compacting,
    one_call_a_turn,
    tools,
    turns,
)

LONG = "words and more words, all of them said by a person\n" * 4_000
PROSE = "I look at the harbour, and write down what I see. " * 40
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
IMAGES: list[dict[str, Any]] = [IMAGE] * 60  # over any budget here, and nothing that can be cut


def small(**changes: Any) -> dict[str, Any]:
    """A window that a long message fills, and nothing that is compacted unasked below that."""
    threshold = {} if "policy" in changes else {"threshold": 0.99}
    kept = CompactionConfig(**{**threshold, "schedule": "at_once", **changes})
    return {"window_tokens": 40_000, "max_tokens": 10_000, "compaction": kept, "tools": tools()}


# A turn that ends while a thread looks for what can be freed for it.


@pytest.mark.parametrize("policy", ["drop_turn", "keep_steps"])
async def test_the_turn_after_one_that_was_interrupted_in_a_hopeless_look_goes_on(
    monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    async with stage(one_call_a_turn, **small()) as on:
        planning = Planning(monkeypatch)
        turn = await on.started(planning, IMAGES)
        outcome = await on.session.interrupt(policy=policy)
        assert outcome.result is InterruptResult.ABORTED
        assert (await turn.outcome()).status == "aborted"
        after = await on.begin("something small")
        planning.go.set()
        assert await after.text() == "done 2"


@asynccontextmanager
async def looking(
    monkeypatch: pytest.MonkeyPatch, *, ready: bool = False, store: FaultyStore | None = None
) -> AsyncIterator[tuple[Stage, Planning, bytes]]:
    """A turn that is too large, while a thread looks for what can be freed for it. *ready*: it was
    found, and the context after it is being prepared. The bytes are the context before the turn."""
    async with stage(one_call_a_turn, store=store, **small()) as on:
        await turns(on, 5)
        before = on.session.context().encode()
        planning = Planning(monkeypatch)
        await on.started(planning, LONG)
        if ready:
            await planning.next()
        yield on, planning, before


async def test_what_was_found_for_a_dropped_turn_is_not_applied_to_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with looking(monkeypatch) as (on, planning, before):
        await on.session.interrupt()
        planning.go.set()
        await settled()
        assert await applied(on) == []
        assert on.session.context().encode() == before
        assert await on.say("go on") == "done 7"


@pytest.mark.parametrize("ready", [False, True])
async def test_a_context_that_was_prepared_is_compared_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    # As if nobody said that a turn is being dropped.
    monkeypatch.setattr(Compactor, "change_began", lambda compactor: None)
    async with looking(monkeypatch, ready=ready) as (on, planning, _):
        await on.session.interrupt()
        planning.go.set()
        await settled()
        assert await applied(on) == []
        assert await on.say("go on") == "done 7"


async def test_callers_are_answered_when_others_cancel_the_planning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works: list[Work] = []

    def start(*arguments: Any) -> Work:
        works.append(start_work(*arguments))
        return works[-1]

    start_work = Works.start
    async with stage(one_call_a_turn, **small()) as on:
        await turns(on, 5)
        planning = Planning(monkeypatch)
        monkeypatch.setattr(Works, "start", start)
        async with compacting(on) as outcomes:
            await planning.started.wait()
            works[-1].cancel()
        assert outcomes == [CompactionOutcome(False, "cancelled")]


@pytest.mark.parametrize("ready", [False, True])
async def test_no_plan_for_a_turn_goes_into_the_log_behind_its_abort(
    monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    store = FaultyStore(MemoryStore())
    async with looking(monkeypatch, ready=ready, store=store) as (on, planning, _):
        store.delay()
        async with anyio.create_task_group() as group:
            group.start_soon(on.session.interrupt)
            await settled()  # the abort is written, and not durable yet
            planning.go.set()
            await settled()
            store.deliver()
        await settled()
        kinds = await on.kinds()
        assert "compaction.applied" not in kinds[kinds.index("turn.aborted") :]
        view = live_state(on.session).view
        assert view.start <= len(on.session.conversation())
        await on.say("the next words")
        assert "the next words" in "".join(texts_of(on.provider.requests[-2]))


async def test_who_asked_for_a_compaction_is_answered_when_its_turn_is_dropped_in_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage(one_call_a_turn, **small()) as on:
        planning = Planning(monkeypatch)
        await on.started(planning, IMAGES)
        async with compacting(on) as outcomes:
            await settled()
            await on.session.interrupt()
        assert not outcomes[0].applied


async def test_a_session_that_is_closed_in_a_look_asks_the_model_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage(one_call_a_turn, **small()) as on:
        await turns(on, 5)
        planning = Planning(monkeypatch)
        asked = len(on.provider.requests)
        async with compacting(on) as outcomes:
            await planning.started.wait()
            await planning.next()  # the plan is being applied
            turn = await on.begin("waits for it")
            await on.session.close()
            assert (await turn.outcome()).status == "aborted"
        assert outcomes == [CompactionOutcome(False, "cancelled")]
        assert len(on.provider.requests) == asked


async def test_what_was_found_under_another_model_is_not_applied_though_somebody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = Waiting(OUTPUT)
    script = [call("waits", id="w"), "done 2", "done 3"]
    kept = small()
    kept["tools"].append(Tool(name="waits", run=waits))
    async with stage(script, **kept) as on:
        await on.started(waits, "go on")
        await on.session.send(LONG, when_busy="steer")
        planning = Planning(monkeypatch)
        waits.go.set()
        await planning.started.wait()
        async with compacting(on) as outcomes, anyio.create_task_group() as group:
            group.start_soon(partial(on.session.configure, model="n"))
            await settled()
            ended = await on.session.interrupt(policy="keep_steps")
            assert ended.result is InterruptResult.KEPT
            await settled()
            planning.go.set()
        assert [each.applied for each in outcomes] == [False]
        assert await applied(on) == []


@pytest.mark.parametrize("ready", ["behind it", "before it"])
async def test_a_plan_is_not_written_behind_a_configuration_that_is_on_its_way_into_the_log(
    monkeypatch: pytest.MonkeyPatch, ready: str
) -> None:
    store = FaultyStore(MemoryStore())
    async with stage(one_call_a_turn, store=store, **small(keep_recent_turns=1)) as on:
        await turns(on, 6)
        planning = Planning(monkeypatch)
        async with compacting(on) as outcomes, anyio.create_task_group() as group:
            await planning.started.wait()
            if ready == "before it":  # then it is the request after it that a thread makes ready
                await planning.next()
            store.delay()
            group.start_soon(partial(on.session.configure, system="another"))
            await settled()
            planning.go.set()
            await settled()
            store.deliver()
        assert (await on.kinds())[-1] == "session.configured"
        assert outcomes == [CompactionOutcome(False, "the conversation changed meanwhile")]
        assert live_state(on.session).view.compacted_before == 0


# What is left out, and what is left of it.


@pytest.mark.parametrize("how", ["interrupt", "rewind"])
async def test_what_a_window_left_out_is_shown_again_where_else_nothing_would_be(how: str) -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn < 3 or tag.step > 20:
            return f"done {tag.turn}"
        return call("t", id=f"c{tag.step}") if tag.step < 18 or how == "rewind" else never()

    async with stage(script, **small(policy="reverse_budget")) as on:
        await on.say("the ship is called Bounty", "and the mate is called Joe")
        turn = await on.session.send("count the gulls")
        if how == "interrupt":
            await anyio.sleep(1)
            await on.session.interrupt()
        else:
            await turn.outcome()
            assert "Bounty" not in "".join(texts_of(on.session.context()))
            await on.session.rewind(to=2)
        sent = "".join(texts_of(on.session.context()))
        assert "Bounty" in sent
        assert "Joe" in sent


# A policy that is anybody's code.


class Talkative(msgspec.Struct, frozen=True, kw_only=True):
    """Is never due, and quotes in its reason what it read."""

    name: ClassVar[str] = "talkative"

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return False

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        return Plan(
            policy=self.name, compacted_before=4, reason=f"they said {messages[0].text!r}",
            tokens_before=10_000, tokens_after=500, shown_results={"c1": "short"},
        )  # fmt: skip


class RaisesWhenForced(Talkative, frozen=True, kw_only=True):
    """Requests a summary when a caller asks, and raises when it is forced."""

    name: ClassVar[str] = "raises_when_forced"

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        if budget.trigger == "window":
            raise ValueError("not like this")
        return Plan(
            policy=self.name, compacted_before=0, reason="asked",
            tokens_before=10_000, tokens_after=500,
            summary_request=SummaryRequest(first=0, upto=4, max_tokens=500),
        )  # fmt: skip


class RaisesWhenDue(Talkative, frozen=True, kw_only=True):
    """Does not know when it is due."""

    name: ClassVar[str] = "raises_when_due"

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        raise ValueError("how should I know")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies of these tests have names, and no other test sees them."""
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    for policy in (RaisesWhenForced, RaisesWhenDue, Talkative):
        register(policy)


async def test_who_asked_is_answered_though_the_policy_raises_for_a_turn_that_does_not_fit() -> (
    None
):
    def script(request: Request, tag: StepTag) -> Scripted:
        return never() if tag.turn == 0 else one_call_a_turn(request, tag)

    summariser = SummariserConfig(model="m", improve_results=False)
    compaction = small(policy="raises_when_forced", summariser=summariser)
    async with stage(script, **compaction) as on:
        await turns(on, 3)
        with anyio.fail_after(10):
            async with compacting(on) as outcomes:
                await settled()
                assert on.session.status().jobs == ("compaction",)
                turn = await on.session.send(IMAGES)
                assert (await turn.outcome()).status == "failed"
        assert len(outcomes) == 1
        assert await on.say("still here?") == "done 5"


@pytest.mark.parametrize("schedule", ["cache", "at_once"])
async def test_a_policy_that_cannot_say_when_it_is_due_ends_neither_turn_nor_session(
    schedule: str,
) -> None:
    kept = small(policy="raises_when_due", schedule=schedule)
    async with stage(one_call_a_turn, **kept) as on:
        await turns(on, 3)
        assert (await on.session.compact()).applied
        assert await on.say("still here?") == "done 4"


async def test_where_the_policy_raises_the_hardest_means_are_still_tried() -> None:
    async with stage(one_call_a_turn, **small(policy="raises_when_forced")) as on:
        await turns(on, 2)
        assert await on.say(LONG) == "done 3"


# The caller's summary over what was said once more.


async def test_the_callers_summary_takes_the_place_of_a_request_that_was_said_once_more() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn == 1 and tag.step < 24:
            return say(PROSE) + call("t", id=f"c{tag.step}")
        return "done"

    kept = small(threshold=0.5, low=0.3, keep_recent_steps=2)
    async with stage(script, **kept) as on:
        await on.say("sail to Hull, and count the gulls")
        await settled()
        view = live_state(on.session).view
        assert [each.text for each in view.injected] == ["sail to Hull, and count the gulls"]
        await on.session.set_summary("They sailed, and counted.", upto=1)
        await on.say("what next?")
        sent = "".join(texts_of(on.provider.requests[-1]))
        assert "They sailed, and counted." in sent
        assert "gulls" not in sent
        assert live_state(on.session).view.injected == ()


async def test_a_turn_summarised_beyond_its_beginning_leaves_no_room_for_an_earlier_one() -> None:
    waits = Waiting(OUTPUT)

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn == 2 and tag.step < 24:
            return say(PROSE) + call("t", id=f"c{tag.step}")
        return call("waits", id="w") if tag.turn == 2 and tag.step == 24 else "done"

    kept = small(threshold=0.5, low=0.3, keep_recent_steps=2)
    kept["tools"].append(Tool(name="waits", run=waits))
    async with stage(script, **kept) as on:
        await on.say("message 1")
        turn = await on.started(waits, "message 2")
        assert live_state(on.session).view.start > len(on.session.conversation())
        with pytest.raises(InvalidInput, match="covered by a summary up to turn 2"):
            await on.session.set_summary("They met.", upto=1)
        waits.go.set()
        assert await turn.text() == "done"


async def stopped_in_a_tool_loop(on: Stage, tool: Waiting) -> None:
    """Thinking opens a loop that the next turn would go on with."""
    await on.say("message 1")
    await on.started(tool, "message 2")
    ended = await on.session.interrupt(policy="keep_steps")
    assert ended.result is InterruptResult.KEPT


OPENED = ["answer 1", think("hm") + call("t", id="c"), "answer 3"]


async def test_a_summary_of_a_loop_that_was_stopped_needs_no_thinking_to_open_it() -> None:
    tool, profile = Waiting(), Profile(thinking_opens_tool_loop=True)
    async with stage(OPENED, profile=profile, tool=tool) as on:
        await stopped_in_a_tool_loop(on, tool)
        await on.session.set_summary("They began to count.", upto=2)
        assert await on.say("go on") == "answer 3"
        sent = "".join(texts_of(on.provider.requests[-1]))
        assert "They began to count." in sent
        assert "hm" not in sent


@pytest.mark.parametrize("early", [False, True])
async def test_who_tells_a_summary_before_a_stopped_loop_is_refused_and_not_kept_waiting(
    early: bool,
) -> None:
    tool, profile = Waiting(), Profile(thinking_opens_tool_loop=True)
    async with stage(OPENED, profile=profile, tool=tool) as on:
        tell = partial(on.session.set_summary, "They met.", upto=1)
        told = "would void the thinking"
        if early:

            async def refused() -> None:
                with pytest.raises(InvalidInput, match=told):
                    await tell()

            async with anyio.create_task_group() as group:
                await on.say("message 1")
                await on.started(tool, "message 2")
                group.start_soon(refused)
                await settled()
                await on.session.interrupt(policy="keep_steps")
        else:
            await stopped_in_a_tool_loop(on, tool)
            with pytest.raises(InvalidInput, match=told):
                await tell()
        assert await applied(on) == []
        assert await on.say("go on") == "answer 3"
        assert "hm" in "".join(texts_of(on.provider.requests[-1]))
        await tell()


# What is forgotten.


@pytest.mark.parametrize("how", ["forget", "purge"])
async def test_the_reason_of_anybodys_policy_holds_no_word_of_what_was_forgotten(how: str) -> None:
    async with stage(one_call_a_turn, **small(policy="talkative")) as on:
        await on.say("xyzzy", "two")
        assert (await on.session.compact()).applied
        assert "xyzzy" in (await applied(on))[0].reason
        forget: Callable[[], Any] = partial(LLMSession.forget, on.session, before=2)
        await (forget() if how == "forget" else on.session.clear(purge=True))
        for stored in await on.store.read("s"):
            assert b"xyzzy" not in stored.body
