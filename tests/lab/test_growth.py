from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession.lab.growth import EXCLUDED, growths
from llmsession.transcripts import Conversation
from tests.lab.recorded import Recorded, call, result

THINKING = {"type": "thinking", "thinking": "hm", "signature": "A" * 300}
SAID = {"type": "text", "text": "one"}


def reasons(conversation: Conversation) -> dict[str, int]:
    found, excluded = growths(conversation)
    assert found == []
    assert set(excluded) <= set(EXCLUDED)
    return dict(excluded)


def test_a_growth_is_the_reply_and_what_came_after_it() -> None:
    built = Recorded().ask().reply([call("c1")], 1_000, 50).answer(result("c1"))
    built.reply("done", 1_090, cached=1_000)
    (growth,), excluded = growths(built.done())
    assert (growth.prompt_tokens, growth.output_tokens, growth.grown_tokens) == (1_000, 50, 90)
    assert (growth.reply, growth.after) == (built.messages[1], (built.messages[2],))
    assert (growth.model, growth.at) == ("claude-opus-4-5", 1)
    assert not excluded


def test_the_first_request_grew_from_nothing_that_is_known() -> None:
    assert growths(Recorded().ask().reply("done", 1_000).done()) == ([], {})


@pytest.mark.parametrize("prompt", [999, 1_000])
def test_a_prompt_that_did_not_grow_tells_nothing(prompt: int) -> None:
    built = Recorded().ask().reply("one", 1_000).ask().reply("two", prompt)
    assert reasons(built.done()) == {"context_shrank": 1}


def test_a_reply_without_usage_takes_both_its_pairs_along() -> None:
    built = (
        Recorded().ask().reply("one", 1_000).ask().reply("two", None).ask().reply("three", 1_200)
    )
    assert reasons(built.done()) == {"no_usage": 2}


def test_another_model_counts_otherwise() -> None:
    built = Recorded().ask().reply("one", 1_000).ask()
    built.reply("two", 1_100, model="claude-sonnet-4-6")
    assert reasons(built.done()) == {"model_changed": 1}


def test_one_model_under_two_names_is_one_model() -> None:
    built = Recorded().ask().reply("one", 1_000).ask()
    built.reply("two", 1_100, model="anthropic/claude-opus-4.5")
    assert len(growths(built.done())[0]) == 1


def test_what_an_interrupted_reply_left_in_the_prompt_is_not_known() -> None:
    cut = Recorded().ask().reply("one", 1_000, stop_reason="cancelled").ask().reply("two", 1_100)
    assert reasons(cut.done()) == {"interrupted": 1}
    between = Recorded().ask().reply("one", 1_000).ask("no").ask("yes").reply("two", 1_100)
    assert reasons(between.done(interrupted=[2])) == {"interrupted": 1}


def test_a_call_without_a_result_was_sent_with_something_else() -> None:
    built = Recorded().ask().reply([call("c1")], 1_000).ask().reply("two", 1_100)
    assert reasons(built.done()) == {"unanswered_call": 1}


@pytest.mark.parametrize(("cached", "is_rewritten"), [(0, False), (950, False), (400, True)])
def test_a_prompt_that_is_hardly_in_a_warm_cache_is_another_prompt(
    cached: int, is_rewritten: bool
) -> None:
    built = Recorded().ask().reply("one", 1_000).ask().reply("two", 1_100, cached=cached)
    assert (len(growths(built.done())[0]) == 0) is is_rewritten
    openai = Recorded("gpt-5.4").ask().reply("one", 1_000).ask().reply("two", 1_100, cached=400)
    assert len(growths(openai.done())[0]) == 1


@pytest.mark.parametrize(
    ("model", "is_dropped"),
    [("claude-sonnet-4-5-20250929", True), ("claude-opus-4-5", False), ("claude-opus-5-5", False)],
)
def test_some_models_leave_out_the_thinking_of_earlier_turns(model: str, is_dropped: bool) -> None:
    built = Recorded(model).ask().reply([THINKING, SAID], 1_000).ask().reply("two", 1_100)
    found, excluded = growths(built.done())
    assert dict(excluded) == ({"thinking_dropped": 1} if is_dropped else {})
    assert len(found) == (not is_dropped)


def test_inside_of_a_turn_thinking_stays() -> None:
    built = Recorded("claude-sonnet-4-5").ask().reply([THINKING, call("c1")], 1_000)
    built.answer(result("c1")).reply("two", 1_100)
    assert len(growths(built.done())[0]) == 1


def test_reasoning_that_is_kept_beside_the_blocks_is_thinking() -> None:
    extra: Any = msgspec.Raw(b'{"items":[{"item":{"type":"reasoning"}},{"blocks":1}]}')
    built = Recorded("gpt-5.4").ask().reply("one", 1_000, extra=extra).ask().reply("two", 1_100)
    assert reasons(built.done()) == {"thinking_dropped": 1}


def test_a_branch_is_looked_at_where_it_leaves_its_path() -> None:
    built = Recorded().ask().reply("one", 1_000).ask().reply("two", 1_100).ask().reply("3", 1_200)
    branch = built.done(parent="other", shared_turns=2)
    (growth,), _ = growths(branch)
    assert growth.prompt_tokens == 1_100
