"""A policy's own text stands in the next request where no summary comes: a model that fails, one
that says nothing, and none at all. Only a policy without such a text gets the general digest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llmsession import CompactionConfig, ProviderError
from llmsession.compaction.view.summary_wording import SUMMARY_TITLE
from llmsession.session.values.config import SummariserConfig
from llmsession.testing.scripted import Scripted, ScriptedProvider, call, say
from llmsession.turns.request import Profile, Request, StepTag
from tests.session.actors import Stage, settled, stage, texts_of
from tests.session.compacting.conversations import applied, tools

PROFILE = Profile(window_tokens=200_000)
WORDS = "some words that say what is wanted " * 40  # about 400 tokens

NO_SUMMARY: dict[str, Any] = {
    "fails": say("").raising(ProviderError("overloaded", kind="fatal")),
    "says nothing": say(""),
    "is not configured": None,
}
by_reply = pytest.mark.parametrize("reply", NO_SUMMARY.values(), ids=NO_SUMMARY)


def with_calls(request: Request, tag: StepTag) -> Scripted:
    return call("t", id=f"c{tag.turn}") if tag.step == 1 else f"answer {tag.turn}"


@asynccontextmanager
async def policed(
    name: str, reply: Any, options: dict[str, Any] | None = None, **config: Any
) -> AsyncIterator[Stage]:
    """A session of the policy *name*, whose model of summaries replies with *reply*."""
    summariser = None if reply is None else ScriptedProvider(lambda *_: reply, profile=PROFILE)
    compaction = CompactionConfig(
        policy=name, options=options or {}, schedule="at_once",
        summariser=None if reply is None else SummariserConfig(model="small"),
    )  # fmt: skip
    config = {"window_tokens": 20_000, "max_tokens": 4_000, **config}
    async with stage(
        config.pop("script", lambda _, tag: f"answer {tag.turn}"),
        summariser=summariser, compaction=compaction, **config,
    ) as on:  # fmt: skip
        yield on


def opening(on: Stage) -> str:
    """What stands first in the newest request, without the title of summaries."""
    first = json.loads(texts_of(on.provider.requests[-1])[0])[0]["text"]
    assert first.startswith(f"{SUMMARY_TITLE}\n"), first[:200]
    return str(first[len(SUMMARY_TITLE) + 1 :])


async def said(on: Stage, count: int, words: str = WORDS) -> None:
    for number in range(count):
        await on.say(f"message {number} {words}")
        await settled()


@by_reply
async def test_a_rolling_summary_that_does_not_come_is_the_newest_lines(reply: Any) -> None:
    async with policed("rolling_summary_75", reply) as on:
        await said(on, 12)
        await on.say("and now?")
        lines = opening(on).split("\n\n")
        assert [record.policy for record in await applied(on)][-1] == "rolling_summary_75"
        (*_, record) = await applied(on)
        assert record.prefix_summary is not None
        history = on.session.conversation()[: record.prefix_summary.upto]
        spoken = [f"{message.role.upper()}: {message.text.strip()}" for message in history]
        assert lines == spoken[-len(lines) :]


@by_reply
async def test_a_checkpoint_that_does_not_come_is_a_line_of_counts(reply: Any) -> None:
    options = {"trigger": "token_ratio", "trigger_value": 0.4}
    async with policed(
        "recency_turn_summary", reply, options, script=with_calls, tools=tools("line\n" * 500)
    ) as on:
        await said(on, 8)
        await on.say("and now?")
        (*_, record) = await applied(on)
        assert record.prefix_summary is not None
        turns = record.prefix_summary.upto // 4
        assert opening(on) == (
            f"[Metadata summary: {4 * turns} messages"
            f" ({turns} human, {2 * turns} ai, {turns} tool)]"
            "\n[Tools used: t]"
        )


@by_reply
async def test_a_summary_that_does_not_come_is_a_note_of_omission_where_one_is_wanted(
    reply: Any,
) -> None:
    options = {"ratio": 0.4, "notes_omission": True}
    async with policed("append_only_projection", reply, options) as on:
        await said(on, 16)
        await on.say("and now?")
        note = "[Earlier conversation was omitted to fit the model's context window.]"
        assert opening(on) == note


@by_reply
async def test_where_the_request_has_to_fit_now_the_emergency_note_stands_there(
    reply: Any,
) -> None:
    # Never due before it has to be: the threshold is above the limit.
    options = {"threshold_tokens": 40_000, "recent": 0.05, "safe": 0.2}
    async with policed("pointer_summary", reply, options) as on:
        await said(on, 20, WORDS * 2)
        (record, *_) = await applied(on)
        assert (record.policy, record.trigger) == ("pointer_summary", "window")
        assert record.prefix_summary is not None
        upto = record.prefix_summary.upto
        assert record.prefix_summary.text == (
            f"{SUMMARY_TITLE}\n[Emergency compression: {upto} messages archived due to size]"
        )


@by_reply
async def test_a_policy_without_such_a_text_gets_a_digest(reply: Any) -> None:
    async with policed("llm_summary", reply, {"threshold": 0.3, "keep_recent_turns": 2}) as on:
        await said(on, 16)
        await on.say("and now?")
        assert "message 0" in opening(on)


async def test_a_summary_that_came_earlier_stays_before_the_text_of_one_that_did_not() -> None:
    replies = iter(["what they wanted", *[""] * 9])
    summariser = ScriptedProvider(lambda *_: next(replies), profile=PROFILE)
    compaction = CompactionConfig(
        policy="recency_turn_summary", schedule="at_once", max_failures=99,
        options={"trigger": "token_ratio", "trigger_value": 0.3},
        summariser=SummariserConfig(model="small"),
    )  # fmt: skip
    async with stage(
        lambda _, tag: f"answer {tag.turn}", summariser=summariser, compaction=compaction,
        window_tokens=20_000, max_tokens=4_000,
    ) as on:  # fmt: skip
        await said(on, 24, WORDS * 2)  # as few messages as need no thread: time is virtual
        await on.say("and now?")
        (first, *later) = [record.prefix_summary for record in await applied(on)]
        assert first is not None
        assert first.text == f"{SUMMARY_TITLE}\nwhat they wanted"
        assert len(later) >= 2
        assert later[-1] is not None
        count = later[-1].upto - first.upto
        stub = f"[Metadata summary: {count} messages ({count // 2} human, {count // 2} ai)]"
        assert opening(on) == f"what they wanted\n\n{stub}"
