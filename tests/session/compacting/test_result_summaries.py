"""Summaries of old results by a model, in the background: which, how many at once, and when not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from llmsession import CompactionConfig, MemoryStore, ProviderError, Store, Tool, ToolOutput, Usage
from llmsession.session.handles.session import live_state
from llmsession.session.values.config import SummariserConfig
from llmsession.testing.faulty_store import FaultyStore
from llmsession.testing.scripted import (
    Script,
    Scripted,
    ScriptedProvider,
    ScriptedReply,
    call,
    never,
    say,
)
from llmsession.turns import records as r
from llmsession.turns.request import Profile, Request, StepTag
from tests.session.actors import Stage, settled, stage, texts_of
from tests.session.compacting.conversations import OUTPUT, one_call_a_turn, turns

COST = Usage(input_tokens=800, output_tokens=20)


class Outputs:
    """A tool: what it returns for each call, in turn; then the same long output again."""

    def __init__(self, *first: Any) -> None:
        self.first = list(first)
        self.calls = 0

    async def __call__(self, **arguments: Any) -> Any:
        self.calls += 1
        return self.first.pop(0) if self.first else f"{OUTPUT}call {self.calls}\n"


@asynccontextmanager
async def working(
    summaries: Script, *, script: Script = one_call_a_turn, outputs: Outputs | None = None,
    store: Store | None = None, model: dict[str, Any] | None = None, reopen: bool = False,
    **compaction: Any,
) -> AsyncIterator[tuple[Stage, ScriptedProvider]]:  # fmt: skip
    """A session of which all but the newest turn is old, and its summariser."""
    summariser = ScriptedProvider(summaries, profile=Profile(window_tokens=200_000))
    tools = [Tool(name="t", run=outputs or Outputs())]
    options = SummariserConfig(**{"model": "small", "improve_results": True, **(model or {})})
    settings = {"keep_recent_turns": 1, "schedule": "at_once", "summariser": options, **compaction}
    config = CompactionConfig(**settings)
    async with stage(
        script, tools=tools, summariser=summariser, store=store, reopen=reopen, compaction=config
    ) as on:
        yield on, summariser
    assert summariser.open_streams == 0


async def stored(on: Stage) -> dict[str, str]:
    records = [record for record in await on.log() if isinstance(record, r.SummariesStored)]
    return {call_id: text for record in records for call_id, text in record.summaries.items()}


def calls_of(summariser: ScriptedProvider) -> list[str]:
    """The call of each request, in order."""
    texts = ["".join(texts_of(request)) for request in summariser.requests]
    return [text.split("result of ")[1].split(" ")[0] for text in texts]


async def test_a_result_that_has_become_old_gets_a_summary_by_the_model() -> None:
    async with working(lambda *_: "it says something") as (on, summariser):
        await turns(on, 1)
        assert summariser.requests == []  # it is of the newest turn
        await turns(on, 2)
        assert calls_of(summariser) == ["c1", "c2"]
        assert await stored(on) == {"c1": "it says something", "c2": "it says something"}
        assert (await on.session.compact()).applied
        shown = "".join(texts_of(on.session.context()))
        assert shown.count("it says something") == 2


async def test_a_result_becomes_old_by_turns_without_tools_too() -> None:
    script: list[ScriptedReply | str] = [call("t", id="c1"), "done 1", "no tools"]
    async with working(lambda *_: "short", script=script) as (on, summariser):
        await turns(on, 2)
        assert calls_of(summariser) == ["c1"]


async def test_its_requests_are_charged_with_the_summary() -> None:
    async with working(lambda *_: say("short").costing(COST)) as (on, _):
        await turns(on, 2)
        assert on.session.usage().summaries == COST
        (record,) = [each for each in await on.log() if isinstance(each, r.SummariesStored)]
        assert record.summaries == {"c1": "short"}
        assert [each.usage for each in record.requests] == [COST]


async def test_it_is_off_unless_asked_for() -> None:
    async with working(lambda *_: "short", model={"improve_results": False}) as (on, summariser):
        await turns(on, 4)
        assert summariser.requests == []


async def test_a_short_result_is_not_worth_a_request() -> None:
    async with working(lambda *_: "short", outputs=Outputs("ok", "x " * 700)) as (on, summariser):
        await turns(on, 4)
        assert calls_of(summariser) == ["c3"]


async def test_an_image_becomes_a_caption() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 400}
    picture = [{"type": "text", "text": "a shot"}, {"type": "image", "source": source}]
    async with working(lambda *_: "a red door", outputs=Outputs(picture)) as (on, summariser):
        await turns(on, 2)
        assert '"type":"image"' in "".join(texts_of(summariser.requests[0]))
        assert await stored(on) == {"c1": "a red door"}
        assert (await on.session.compact()).applied
        shown = "".join(texts_of(on.session.context()))
        assert "a red door" in shown
        assert '"type":"image"' not in shown


async def test_the_callers_own_summaries_stand_early_and_late_ones() -> None:
    early = ToolOutput(content=OUTPUT, compact_summary="the caller's")
    async with working(lambda *_: "the model's", outputs=Outputs(early)) as (on, summariser):
        await turns(on, 1)
        await turns(on, 1)
        await on.session.store_compact_summaries({"c2": "told later"})
        await turns(on, 2)
        assert calls_of(summariser) == ["c3"]
        summaries = live_state(on.session).summaries
        assert (summaries["c1"], summaries["c2"]) == ("the caller's", "told later")


async def test_a_summary_that_the_caller_gives_meanwhile_stands() -> None:
    async with working([say("the model's").slow(1.0)]) as (on, summariser):
        await turns(on, 2)
        assert summariser.open_streams == 1
        await on.session.store_compact_summaries({"c1": "the caller's"})
        await settled()
        assert summariser.open_streams == 0
        await anyio.sleep(60)
        assert live_state(on.session).summaries["c1"] == "the caller's"


async def test_so_does_one_that_is_on_its_way_into_the_store_when_the_models_comes() -> None:
    store = FaultyStore(MemoryStore())
    async with working([say("the model's").slow(1.0)], store=store) as (on, _):
        await turns(on, 2)
        store.delay()
        async with anyio.create_task_group() as group:
            group.start_soon(on.session.store_compact_summaries, {"c1": "the caller's"})
            await store.wait_delayed()
            await anyio.sleep(60)
            store.deliver()
        await settled()
        assert live_state(on.session).summaries["c1"] == "the caller's"


async def test_at_most_so_many_are_on_their_way_at_once_and_all_come_in_the_end() -> None:
    most = 0

    def script(request: Request, tag: StepTag) -> Scripted:
        nonlocal most
        most = max(most, summariser.open_streams)
        return say("short").slow(5.0)

    async with working(script, model={"max_concurrent": 2}) as (on, summariser):
        await turns(on, 8)
        assert "summaries" in on.session.status().jobs
        await anyio.sleep(600)
        assert most == 2
        assert sorted(calls_of(summariser)) == [f"c{n}" for n in range(1, 8)]
        assert on.session.status().jobs == ()


async def test_no_call_is_asked_about_twice_not_after_a_failure_nor_opened_again() -> None:
    store = MemoryStore()
    replies = iter([say(""), *[say("short")] * 20])
    async with working(lambda *_: next(replies), store=store) as (on, summariser):
        await turns(on, 4)
        assert calls_of(summariser) == ["c1", "c2", "c3"]
        assert set(await stored(on)) == {"c2", "c3"}
    async with working(lambda *_: "again", store=store, reopen=True) as (on, summariser):
        await turns(on, 2)
        # The one that failed has its extracted summary, and is tried once more by this owner.
        assert calls_of(summariser) == ["c1", "c4", "c5"]


@pytest.mark.parametrize(
    "reply",
    [
        say("no").stopping("refusal"),
        say(""),
        say("undefined"),
        say("word " * 500),
        say("").raising(ProviderError("overloaded", kind="retryable")),
        never(),
    ],
    ids=["refuses", "nothing", "undefined", "longer", "fails", "hangs"],
)
async def test_a_summariser_that_fails_leaves_the_extracted_summary(reply: Any) -> None:
    async with working(lambda *_: reply) as (on, _):
        await turns(on, 2)
        await anyio.sleep(100)
        assert await stored(on) == {}
        assert live_state(on.session).summaries["c1"].startswith("201 lines")
        assert await on.say("and on") == "done 3"


async def test_after_so_many_failures_no_result_is_asked_about() -> None:
    async with working(lambda *_: say(""), max_failures=2) as (on, summariser):
        await turns(on, 7)
        assert calls_of(summariser) == ["c1", "c2"]


async def test_a_result_that_is_shown_compacted_already_keeps_its_text() -> None:
    async with working([say("too late").slow(1.0)]) as (on, _):
        await turns(on, 2)
        assert (await on.session.compact()).applied
        before = on.session.context().encode()
        await anyio.sleep(60)
        assert await stored(on) == {}
        assert on.session.context().encode() == before


async def test_the_results_of_a_dropped_turn_are_forgotten() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        return call("t", id=f"c{tag.step}") if tag.step < 6 else never()

    slow = lambda *_: say("short").slow(10.0)  # noqa: E731
    async with working(slow, script=script, keep_recent_steps=2) as (on, summariser):
        await on.begin("go")
        assert summariser.open_streams == 2
        await on.session.interrupt()
        await settled()
        assert summariser.open_streams == 0
        await anyio.sleep(600)
        assert await stored(on) == {}
        assert len(summariser.requests) == 2


@pytest.mark.parametrize("change", ["clear", "rewind", "close", "cancel_compaction"])
async def test_they_are_cancelled_with_the_history_and_with_the_session(change: str) -> None:
    async with working(lambda *_: say("short").slow(10.0)) as (on, summariser):
        await turns(on, 5)
        assert summariser.open_streams == 2
        if change == "cancel_compaction":
            on.session.cancel_compaction()
        else:
            await getattr(on.session, change)(*[1] * (change == "rewind"))
        await settled()
        assert summariser.open_streams == 0
        await anyio.sleep(600)
        assert await stored(on) == {}
        assert len(summariser.requests) == 2


async def test_a_summary_on_its_way_says_nothing_of_what_was_forgotten_meanwhile() -> None:
    async with working(lambda *_: say("the secret").slow(10.0)) as (on, _):
        await turns(on, 3)
        await on.session.forget(before=3)
        await anyio.sleep(600)
        log = b"".join(r.encode_record(record) for record in await on.log())
        assert b"the secret" not in log
        assert b"call 1" not in log


async def test_a_session_is_not_let_go_while_one_is_on_its_way() -> None:
    async with working(lambda *_: say("short").slow(1.0)) as (on, _):
        await turns(on, 2)
        manager = on.manager
        actor = manager._runtime.find_live("s")
        assert actor is not None
        assert not actor.is_idle
        await anyio.sleep(600)
        assert actor.is_idle
