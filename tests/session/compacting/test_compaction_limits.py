"""What does not fit: large messages, smaller models, refusals. The session goes on."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from llmsession import CompactionConfig, Profile, Tool
from llmsession.errors import ProviderError
from llmsession.testing.scripted import Scripted, call, say
from llmsession.turns.request import Request, StepTag
from tests.session.actors import ByName, Quick, settled, stage, texts_of
from tests.session.compacting.conversations import OUTPUT, applied, one_call_a_turn, tools, turns

SMALL: dict[str, Any] = {"window_tokens": 10_000, "max_tokens": 2_000}
HUGE = "word " * 40_000
PROFILES = {"large": Profile(window_tokens=100_000), "small": Profile(window_tokens=16_000)}


async def test_a_message_larger_than_the_budget_is_cut_at_both_ends_and_said_whole_in_history() -> (
    None
):
    async with stage(["seen", "and on"], **SMALL) as on:
        assert await on.say(f"BEGIN {HUGE} END") == "seen"
        (sent,) = texts_of(on.provider.requests[0])
        assert "BEGIN word" in sent
        assert "word  END" in sent
        assert "characters, the middle is left out" in sent
        assert on.session.conversation()[0].text == f"BEGIN {HUGE} END"
        (record,) = await applied(on)
        assert record.trigger == "window"
        assert len(record.texts) == 1
        before = texts_of(on.provider.requests[0])[0]
        assert await on.say("next") == "and on"
        assert texts_of(on.provider.requests[1])[0] == before


@pytest.mark.real_time
async def test_a_tool_result_larger_than_the_budget_does_not_brick_the_session() -> None:
    tool = Tool(name="t", run=Quick(HUGE))
    async with stage(one_call_a_turn, tools=[tool], **SMALL) as on:
        await turns(on, 6)
        assert on.session.status().turns == 6
        assert all(len(request.encode()) < 9_000 * 3 for request in on.provider.requests)


async def test_many_large_results_of_one_step_share_what_there_is() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.step > 1:
            return "done"
        return call("t", id="a") + call("t", id="b") + call("t", id="c") + call("t", id="d")

    tool = Tool(name="t", run=Quick("result " * 3_000))
    compaction = CompactionConfig(cap_chars=100_000)
    async with stage(script, tools=[tool], compaction=compaction, **SMALL) as on:
        await turns(on, 3)
        assert on.session.status().turns == 3


@pytest.mark.parametrize("schedule", ["cache", "at_once"])
async def test_a_switch_to_a_smaller_model_plans_at_once(schedule: str) -> None:
    compaction = CompactionConfig(schedule=schedule, keep_recent_turns=2)  # type: ignore[arg-type]
    provider = ByName(one_call_a_turn, PROFILES)
    async with stage(provider=provider, model="large", tools=tools(), compaction=compaction) as on:
        await turns(on, 8)
        assert on.session.status().compacted_before == 0
        await on.session.configure(model="small")
        await settled()
        # Nobody has said a word to it yet.
        assert on.session.status().compacted_before > 0
        (record,) = await applied(on)
        assert record.trigger == ("window" if schedule == "cache" else "prefix_broken")
        await on.say("go on")
        assert on.session.status().context_tokens <= 12_000


async def test_a_context_that_the_smaller_model_cannot_hold_is_compacted_before_it_is_sent() -> (
    None
):
    provider = ByName(one_call_a_turn, PROFILES)
    async with stage(provider=provider, model="large", tools=tools()) as on:
        await turns(on, 12)
        count = len(provider.requests)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: on.session.configure(model="small"))
            await on.say("go on")
        for request in provider.requests[count:]:
            if request.model == "small":
                assert len(request.encode()) < 16_000 * 3


async def test_a_refused_request_is_sent_again_smaller_at_most_twice() -> None:
    refused: list[int] = []

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn < 9:
            return one_call_a_turn(request, tag)
        refused.append(len(request.encode()))
        return say("x").raising(ProviderError("prompt is too long", kind="overflow"))

    async with stage(script, tools=tools(), window_tokens=60_000, max_tokens=10_000) as on:
        await turns(on, 8)
        turn = await on.session.send("too much")
        outcome = await turn.outcome()
        assert outcome.status == "failed"
        assert outcome.stop_reason in ("overflow", "context_too_large")
        assert 2 <= len(refused) <= 3
        assert refused == sorted(set(refused), reverse=True)
        records = [each for each in await applied(on) if each.trigger == "overflow"]
        assert 1 <= len(records) <= 2
        assert records[0].tokens_after < records[0].tokens_before
        # The turn is gone, the session is not.
        assert len({m.turn for m in on.session.conversation()}) == 8


async def test_a_request_that_cannot_shrink_is_not_sent_again() -> None:
    asked: list[Request] = []

    def script(request: Request, tag: StepTag) -> Scripted:
        asked.append(request)
        return say("x").raising(ProviderError("prompt is too long", kind="overflow"))

    async with stage(script) as on:
        outcome = await on.outcome("hi")
        assert (outcome.status, outcome.stop_reason) == ("failed", "context_too_large")
        assert len(asked) == 1


@pytest.mark.real_time
async def test_segments_follow_each_other_as_the_conversation_goes_on() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        return f"answer {tag.turn} " + "and so on " * 150

    async with stage(script, **SMALL) as on:
        for number in range(60):
            await on.say(f"question {number} " + "about it " * 40)
        records = await applied(on)
        ends = [each.prefix_summary.upto for each in records if each.prefix_summary is not None]
        assert len(ends) >= 2
        assert ends == sorted(set(ends))
        shown = on.session.context().encode().decode()
        assert shown.count("[Summary of the conversation up to here.") == 1
        assert len(on.session.conversation()) == 120
        # A rewind to before the newest one shows the one before it.
        turn = (ends[-2] + 2) // 2 + 1
        await on.session.rewind(to=turn)
        shown = on.session.context().encode().decode()
        assert shown.count("[Summary of the conversation up to here.") == 1
        assert f"answer {turn} " in shown
        await on.session.rewind(to=1)
        assert "[Summary" not in on.session.context().encode().decode()
        # What was forgotten is in no summary.
        await on.say("and now?")
        assert OUTPUT not in on.session.context().encode().decode()
