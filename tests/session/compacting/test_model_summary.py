"""One summary by a model: what it is asked, in how many requests, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from llmsession import ProviderError, Usage
from llmsession.compaction.view.plan import SummaryRequest
from llmsession.compaction.view.summary_wording import introduced
from llmsession.session.compacting.model_summary import ModelSummary, SummaryFailed, count_by
from llmsession.session.values.config import SummariserConfig
from llmsession.testing.scripted import Script, ScriptedProvider, call, never, say, think
from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.request import Profile, Request, StepTag
from tests.compaction.conversations import Talk, image, text

LINE = "a line of output that says something\n"
ROOMY = Profile(window_tokens=200_000)
TIGHT = Profile(window_tokens=8_000)


def conversation(turns: int, chars: int = 900) -> Talk:
    talk = Talk()
    for n in range(turns):
        talk.ask(f"question {n}")
        talk.step(f"result {n} " + LINE * (chars // len(LINE)))
        talk.reply(f"answer {n}")
    return talk


def summariser(
    script: Script, *, profile: Profile = ROOMY, **config: Any
) -> tuple[ModelSummary, ScriptedProvider]:
    provider = ScriptedProvider(script, profile=profile)
    settings = SummariserConfig(model="small", **config)
    return ModelSummary(provider, settings, step=1, count=count_by(ROOMY)), provider


async def prefix(summary: ModelSummary, talk: Talk, **fields: Any) -> str:
    values = {"first": 0, "upto": len(talk.messages), "max_tokens": 1_000, **fields}
    return await summary.of_prefix(SummaryRequest(**values), talk.messages)


def text_of(request: Request) -> str:
    blocks = msgspec.json.decode(request.messages[0].body)
    return "\n".join(block.get("text", "") for block in blocks)


async def test_a_short_source_is_one_request_with_nothing_but_text() -> None:
    talk = conversation(3)
    summary, provider = summariser(["they looked at three results"])
    assert await prefix(summary, talk) == "they looked at three results"
    (request,) = provider.requests
    assert (request.model, request.tools, request.options) == ("small", (), {})
    assert request.max_tokens >= 1_000
    assert [message.role for message in request.messages] == ["user"]
    assert "question 0" in text_of(request)
    assert "answer 2" in text_of(request)


async def test_nothing_outside_of_its_range_is_in_the_request() -> None:
    talk = conversation(5)
    summary, provider = summariser(["the middle"])
    # Turn 2 and turn 3 of five, with four messages a turn.
    await prefix(summary, talk, first=4, upto=12)
    sent = text_of(provider.requests[0])
    assert [n for n in range(5) if f"question {n}" in sent] == [1, 2]
    assert [n for n in range(5) if f"answer {n}" in sent] == [1, 2]
    assert [n for n in range(5) if f"result {n}" in sent] == [1, 2]


async def test_instructions_of_the_policy_and_of_the_configuration_go_with_ours() -> None:
    talk = conversation(2)
    summary, provider = summariser(["short"], instructions="write in French")
    await prefix(summary, talk, instructions="keep the open tasks")
    system = provider.requests[0].system or ""
    assert "write in French" in system
    assert "keep the open tasks" in system


async def test_an_earlier_summary_is_folded_in_once_and_without_its_title() -> None:
    talk = conversation(2)
    summary, provider = summariser(["all of it"])
    earlier = introduced("they sailed to Hull")
    await prefix(summary, talk, earlier=earlier)
    sent = text_of(provider.requests[0])
    assert sent.count("they sailed to Hull") == 1
    assert "Summary of the conversation up to here" not in sent
    assert "earlier summary" in (provider.requests[0].system or "")


async def test_a_source_that_is_too_long_goes_in_parts_that_cover_all_of_it_in_order() -> None:
    talk = conversation(30)

    def script(request: Request, tag: StepTag) -> str:
        merges = "[summary of part 1]" in text_of(request)
        return "merged" if merges else f"what part {tag.attempt} says"

    summary, provider = summariser(script, profile=TIGHT, max_requests=12)
    assert await prefix(summary, talk) == "merged"
    *parts, merge = provider.requests
    assert len(parts) > 1
    sent = "".join(f"{text_of(request)}\n" for request in parts)
    places = [sent.index(f"question {n}\n") for n in range(30)]
    assert places == sorted(places)
    assert all(sent.count(f"[a{n}, assistant]") == 2 for n in range(1, 31))
    assert all(text_of(request).strip() for request in parts)
    assert "[summary of part 1]" in text_of(merge)
    assert f"[summary of part {len(parts)}]\nwhat part {len(parts)} says" in text_of(merge)
    assert f"part 1 of {len(parts)}" in (parts[0].system or "")


async def test_an_earlier_summary_is_merged_with_the_parts_and_given_to_none_of_them() -> None:
    talk = conversation(30)
    summary, provider = summariser(lambda *_: "short", profile=TIGHT, max_requests=12)
    earlier = introduced("they sailed to Hull")
    await prefix(summary, talk, earlier=earlier)
    *parts, merge = provider.requests
    assert all("Hull" not in text_of(request) for request in parts)
    assert text_of(merge).count("they sailed to Hull") == 1
    assert text_of(merge).index("Hull") < text_of(merge).index("[summary of part 1]")


async def test_where_there_are_too_many_parts_less_of_each_message_is_told() -> None:
    talk = conversation(30)
    summary, provider = summariser(lambda *_: "short", profile=TIGHT, max_requests=4)
    await prefix(summary, talk)
    assert len(provider.requests) <= 4
    sent = "".join(f"{text_of(request)}\n" for request in provider.requests)
    assert all(f"question {n}\n" in sent for n in range(30))


async def test_a_summary_that_is_too_long_is_shortened_until_it_fits() -> None:
    talk = conversation(10)
    lengths = iter([2_000, 900, 100])
    summary, provider = summariser(lambda *_: "word " * next(lengths))
    text_ = await prefix(summary, talk, max_tokens=300)
    assert len(text_.split()) == 100
    assert [("Shorten" in (r.system or "")) for r in provider.requests] == [False, True, True]
    assert count_by(ROOMY)(introduced(text_)) <= 300


@pytest.mark.parametrize(
    ("turns", "lengths", "config", "match", "requests"),
    [
        (200, [1], {"profile": TIGHT, "max_requests": 2}, "requests", 0),
        (20, [500, 500], {}, "the model did not shorten it", 2),
        (20, range(900, 0, -1), {"max_requests": 5}, "5 requests", 5),
        (0, [300], {}, "not shorter than its source", 1),
    ],
    ids=["not begun", "too long", "too often", "longer than its source"],
)
async def test_a_summary_that_cannot_be_short_enough_is_none(
    turns: int, lengths: Any, config: dict[str, Any], match: str, requests: int
) -> None:
    talk, words = conversation(turns), iter(lengths)
    talk.ask("hello")
    talk.reply("hi")
    summary, provider = summariser(lambda *_: "word " * next(words), **config)
    with pytest.raises(SummaryFailed, match=match):
        await prefix(summary, talk, max_tokens=300 if turns else 1_000)
    assert len(provider.requests) == requests


@pytest.mark.parametrize(
    "reply",
    [
        say("I cannot help with that").stopping("refusal"),
        say("it was cut in the mid").stopping("max_tokens"),
        say("it was cut").stopping("model_context_window_exceeded"),
        say("not over").stopping("pause_turn"),
        say("what is this").stopping("something_new"),
        say(" \n "),
        think("only thought"),
        say("undefined"),
        say("API Error: 529 overloaded"),
        say("let me see") + call("read", id="c1"),
    ],
    ids=[
        "refused", "cut", "window", "paused", "unknown", "blank", "thought", "undefined", "error",
        "call",
    ],
)  # fmt: skip
async def test_a_reply_that_is_no_summary_is_a_failure(reply: Any) -> None:
    talk = conversation(3)
    summary, _ = summariser([reply])
    with pytest.raises(SummaryFailed):
        await prefix(summary, talk)


async def test_thinking_of_the_summariser_is_not_in_the_summary() -> None:
    talk = conversation(3)
    summary, _ = summariser([think("let me think") + say("they looked")])
    assert await prefix(summary, talk) == "they looked"


async def test_of_an_empty_range_there_is_no_summary_and_no_request() -> None:
    talk = conversation(3)
    summary, provider = summariser([])
    with pytest.raises(SummaryFailed, match="nothing to summarise"):
        await prefix(summary, talk, first=0, upto=0)
    assert provider.requests == []


async def test_images_are_sent_as_blocks_so_that_they_become_a_caption_and_a_recall() -> None:
    talk = Talk()
    talk.ask("what is it?")
    talk.step([text("a screenshot"), image()])
    summary, provider = summariser(["c1 shows a login page; recall(c1)"])
    await prefix(summary, talk)
    blocks = msgspec.json.decode(provider.requests[0].messages[0].body)
    assert [block["type"] for block in blocks] == ["text", "image"]
    assert "in the result of c1" in blocks[0]["text"]


async def test_a_model_that_takes_no_images_is_told_that_they_were_there() -> None:
    talk = Talk()
    talk.ask("what is it?")
    talk.step([text("a screenshot " * 40), image()])

    def script(request: Request, tag: StepTag) -> Any:
        if b'"type":"image"' in bytes(request.messages[0].body):
            return say("").raising(ProviderError("no images here", kind="fatal", status=400))
        return "a screenshot"

    summary, provider = summariser(script)
    assert await prefix(summary, talk) == "a screenshot"
    assert "[image: not shown here]" in text_of(provider.requests[1])
    assert len(provider.requests) == 2


async def test_a_refused_key_is_not_taken_for_a_refused_image() -> None:
    talk = Talk()
    talk.add("user", [text("see"), image()])
    denied = say("").raising(ProviderError("bad key", kind="fatal", status=401))
    summary, provider = summariser([denied, "never asked for"])
    with pytest.raises(ProviderError):
        await prefix(summary, talk)
    assert len(provider.requests) == 1


async def test_a_source_that_the_provider_finds_too_long_goes_in_parts_then() -> None:
    talk = conversation(60)
    large: Callable[[Request], bool] = lambda request: len(text_of(request)) > 40_000  # noqa: E731
    summary, provider = summariser(
        lambda request, _: (
            say("").raising(ProviderError("too long", kind="overflow"))
            if large(request)
            else say("short")
        ),
        profile=Profile(window_tokens=40_000),
        max_requests=12,
    )
    assert await prefix(summary, talk) == "short"
    assert len(provider.requests) > 2


async def test_what_was_asked_is_counted_also_where_it_failed() -> None:
    talk = conversation(3)
    cost = Usage(input_tokens=70, output_tokens=3)
    broken = say("half a").costing(cost).raising(ProviderError("gone", kind="retryable"), at=2)
    summary, _ = summariser([broken])
    with pytest.raises(ProviderError):
        await prefix(summary, talk)
    assert [(request.model, request.usage) for request in summary.requests] == [("small", cost)]


async def test_cancelling_it_closes_the_request() -> None:
    talk = conversation(3)
    summary, provider = summariser([never()])
    with anyio.move_on_after(5) as scope:
        await prefix(summary, talk)
    assert scope.cancelled_caught
    assert provider.open_streams == 0
    assert len(summary.requests) == 1


async def test_a_result_is_summarised_in_as_many_characters_as_it_may_have() -> None:
    result = ToolResultBlock("c1", LINE * 400, is_error=True)
    summary, provider = summariser(["x" * 900, "it says something"])
    assert await summary.of_result(result, "read", 600) == "it says something"
    assert "result of c1 (read), an error: " in text_of(provider.requests[0])
    assert len(provider.requests) == 2


async def test_a_result_that_is_longer_than_the_window_is_cut_to_its_ends() -> None:
    result = ToolResultBlock("c1", "START " + "x " * 200_000 + " END")
    summary, provider = summariser(["short"], profile=TIGHT)
    assert await summary.of_result(result, None, 600) == "short"
    sent = text_of(provider.requests[0])
    assert len(sent) < 30_000
    assert "START" in sent
    assert sent.rstrip().endswith("END")


async def test_a_summary_of_a_result_that_stays_too_long_is_none() -> None:
    result = ToolResultBlock("c1", LINE * 400)
    summary, _ = summariser(["x" * 900, "y" * 900])
    with pytest.raises(SummaryFailed, match="too long"):
        await summary.of_result(result, "read", 600)
