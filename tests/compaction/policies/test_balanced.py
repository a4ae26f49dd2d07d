"""``balanced``, stage by stage: what it does first, what last, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from llmsession.compaction.planning.prefix_summaries import with_summary
from llmsession.compaction.policies import Balanced
from llmsession.compaction.summaries.extractive import summarise
from llmsession.compaction.tokens.messages import context_tokens, text_tokens_for
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig
from llmsession.providers.models import CLAUDE
from llmsession.turns.records import PrefixSummary, Trigger
from llmsession.turns.request import Frame, Profile
from tests.compaction.conversations import (
    Talk,
    call_block,
    image,
    required,
    result_block,
    talk,
    text,
)
from tests.compaction.policies.plans import budget_for, plan_of

PROFILE = Profile()
OUTPUT = "a line of output\n" * 300  # 5,100 characters, about 1,900 tokens
OPENS = Profile(thinking_opens_tool_loop=True)


def planned(
    built: Talk, limit: int, *, policy: Balanced | None = None, **fields: Any
) -> Plan | None:
    fields = {"profile": PROFILE, **fields}
    return plan_of(policy or Balanced(), built.messages, limit, **fields)


def swapped(plan: Plan | None) -> list[str]:
    assert plan is not None
    return list(plan.shown_results)


def test_the_oldest_results_are_swapped_first_and_only_down_to_the_low_mark() -> None:
    built = talk(20, OUTPUT)  # about 38,000 tokens
    plan = planned(built, 48_000, policy=Balanced(low=0.5))
    assert swapped(plan) == [f"c{n}" for n in range(1, 9)]
    assert plan is not None
    assert plan.summary_request is None
    after = context_tokens(built.messages, View().applied(plan, 80), PROFILE)
    assert 22_000 < after <= 24_000
    assert plan.tokens_after == after
    assert plan.tokens_before == context_tokens(built.messages, View(), PROFILE)
    assert plan.compacted_before == 31
    assert plan.turns_compacted == 8


def test_what_is_recent_is_left_alone() -> None:
    built = Talk()
    for _ in range(8):
        built.ask("word " * 300).step(OUTPUT).reply()
    plan = required(planned(built, 8_000, policy=Balanced(keep_recent_turns=3, recent_share=0.99)))
    assert swapped(plan) == ["c1", "c2", "c3", "c4", "c5"]
    assert required(plan.summary_request).upto <= 20


def test_of_one_long_turn_old_steps_are_compacted() -> None:
    built = Talk().ask().step(OUTPUT, times=30)
    plan = planned(built, 60_000, policy=Balanced(keep_recent_steps=10), committed=0)
    assert swapped(plan)[:3] == ["c1", "c2", "c3"]
    assert set(swapped(plan)) <= {f"c{n}" for n in range(1, 21)}


def test_a_summary_that_is_there_is_shown_and_else_one_is_extracted() -> None:
    built = talk(8, OUTPUT)
    plan = required(planned(built, 12_000, summaries={"c1": "what the first one said"}))
    assert plan.shown_results["c1"].endswith("what the first one said")
    assert "300 lines" in plan.shown_results["c2"]
    assert 'recall(id="c2")' in plan.shown_results["c2"]


CODE = "".join(f"def function_{n}() -> None:\n{OUTPUT[:340]}" for n in range(15))


def reading_code(path: str = "a.py", *, is_error: bool = False) -> Talk:
    return Talk().ask().call("read_file", CODE, is_error=is_error, path=path).reply().ask()


def compacted_read(built: Talk, policy: Balanced, **changes: Any) -> str:
    plan = required(planned(built, 2_000, policy=policy, trigger="asked", **changes))
    return plan.shown_results["c1"]


FOLDS = Balanced(keep_recent_turns=1, fold_code=True)


def test_code_that_was_read_becomes_its_signatures_if_that_is_asked_for() -> None:
    shown = compacted_read(reading_code(), FOLDS)
    assert 'recall(id="c1")' in shown
    assert "\n295: def function_14() -> None:" in shown
    assert "function_14" not in compacted_read(reading_code(), Balanced(keep_recent_turns=1))


def test_a_fold_stands_for_the_extracted_summary_but_not_for_one_that_was_given() -> None:
    extracted = required(summarise(CODE, max_chars=600))
    shown = compacted_read(reading_code(), FOLDS, summaries={"c1": extracted})
    assert "def function_14" in shown
    shown = compacted_read(reading_code(), FOLDS, summaries={"c1": "fifteen functions"})
    assert shown.endswith("\nfifteen functions")


def test_what_is_no_code_or_failed_is_summarised_all_the_same() -> None:
    for built in (reading_code("notes.txt"), reading_code(is_error=True)):
        shown = compacted_read(built, FOLDS)
        assert "lines left out" in shown
        assert "declares" not in shown


def test_a_result_that_would_not_become_shorter_stays() -> None:
    built = talk(3, "ok")
    assert planned(built, 40, policy=Balanced(keep_recent_turns=1), trigger="asked") is None


def test_an_image_in_a_result_is_left_out_by_name() -> None:
    built = talk(1).ask().step([text("see"), image()]).turns(6, OUTPUT)
    plan = required(planned(built, 10_000))
    assert plan.shown_results["c2"].endswith("[1 other block (image) left out]")


def test_then_long_inputs_of_old_calls_are_shortened() -> None:
    built = Talk()
    for number in range(12):
        built.ask()
        call = call_block(f"c{number}", path="a.py", new="x = 1\n" * 1_000)
        built.add("assistant", [call]).add("user", [result_block(f"c{number}", "ok")]).reply()
    plan = required(planned(built, 32_000))
    assert plan.shown_results == {}
    assert list(plan.inputs)[:2] == ["c0", "c1"]
    assert len(plan.inputs) < 8
    shown = msgspec.json.decode(plan.inputs["c0"])
    assert shown["path"] == "a.py"
    assert "6,000 characters, the middle is left out" in shown["new"]


def talking(turns: int) -> Talk:
    built = Talk()
    for number in range(turns):
        built.ask(f"question {number} " + "word " * 400).reply("answer " * 300)
    return built


def test_then_a_summary_stands_for_a_prefix_that_ends_with_a_turn() -> None:
    built = talking(30)
    plan = required(planned(built, 50_000, policy=Balanced(low=0.5)))
    summary_request = plan.summary_request
    assert summary_request is not None
    assert (summary_request.first, summary_request.earlier) == (0, "")
    assert summary_request.upto % 2 == 0
    assert (
        built.messages[summary_request.upto].turn != built.messages[summary_request.upto - 1].turn
    )
    assert summary_request.max_tokens == 6_000
    # No longer than it has to be: the summary of one turn less would not do.
    sizes = [context_tokens([message], View(), PROFILE) for message in built.messages]
    used = sum(sizes)
    assert used - sum(sizes[: summary_request.upto]) + 6_000 <= 25_000
    assert used - sum(sizes[: summary_request.upto - 4]) + 6_000 > 25_000


def test_a_second_summary_continues_the_first() -> None:
    built = talking(30)
    view = View(version=1, prefix_summaries=(PrefixSummary(10, "what was said before"),))
    plan = required(planned(built, 30_000, view=view))
    assert plan.summary_request is not None
    assert plan.summary_request.first == 10 < plan.summary_request.upto
    assert plan.summary_request.earlier == "what was said before"


def test_a_summary_that_would_stand_for_less_than_its_own_length_is_not_asked_for() -> None:
    built = Talk()
    for _ in range(3):
        built.ask("hi").reply("hello")
    built.ask("x" * 10_000)
    assert planned(built, 4_000) is None


@pytest.mark.parametrize("trigger", ["window", "overflow"])
def test_only_where_it_is_forced_recent_results_are_taken(trigger: Trigger) -> None:
    built = Talk().ask("do it").step(OUTPUT, times=4)
    policy = Balanced(recent_share=0.99, low=0.4)
    shown_results = {"c1": "short", "c2": "short"}
    view = View(version=1, compacted_before=5, shown_results=shown_results)
    assert planned(built, 3_900, view=view, policy=policy, committed=0) is None
    forced = planned(built, 3_800, view=view, policy=policy, committed=0, trigger=trigger)
    assert swapped(forced) == ["c3"]


@pytest.mark.parametrize("piece", ["word ", "漢字仮名", "7f3a9c0e", "\x01", "{}[]();\n", "🎉"])
@pytest.mark.parametrize("family", [None, "claude", "o200k", "other"])
def test_a_message_larger_than_the_budget_is_cut_at_both_ends(piece: str, family: Any) -> None:
    # A tool result of 702,568 tokens (Jan #8237); whatever a character costs, the cut fits.
    profile = Profile(token_family=family)
    built = Talk().ask("BEGIN " + piece * 50_000 + " END")
    plan = required(planned(built, 4_000, profile=profile, committed=0, trigger="window"))
    (cut,) = plan.texts.values()
    assert cut.startswith("BEGIN ")
    assert cut.endswith(" END")
    assert "the middle is left out" in cut
    view = View().applied(plan, 1)
    assert 1_000 < context_tokens(built.messages, view, profile) <= 4_000


def test_of_several_long_ones_each_gets_an_equal_share() -> None:
    built = Talk().ask("look").step("a" * 60_000, "b" * 60_000, "short")
    plan = required(planned(built, 8_000, committed=0, trigger="window"))
    assert set(plan.shown_results) == {"c1", "c2"}
    first, second = (plan.shown_results[call] for call in ("c1", "c2"))
    assert abs(len(first) - len(second)) < 10
    assert len(first) > 6_000
    assert context_tokens(built.messages, View().applied(plan, 3), PROFILE) <= 8_000


def test_what_an_earlier_plan_cut_is_not_cut_again() -> None:
    built = Talk().ask("x" * 60_000)
    first = required(planned(built, 8_000, committed=0, trigger="window"))
    view = View().applied(first, 1)
    assert planned(built, 4_000, view=view, committed=0, trigger="window") is None


def test_what_was_refused_is_cut_deeper_for_it_is_larger_than_we_think() -> None:
    built = Talk().ask("x" * 60_000)
    sizes = {}
    for trigger in ("window", "overflow"):
        plan = required(planned(built, 8_000, committed=0, trigger=trigger))
        sizes[trigger] = plan.tokens_after
    # The low mark and the threshold: at the limit itself, the next step would not fit again.
    assert sizes["overflow"] <= 3_200 < sizes["window"] <= 6_400


def test_where_thinking_has_to_open_the_loop_it_edits_only_between_turns() -> None:
    built = talk(8, OUTPUT)
    assert planned(built, 12_000, profile=OPENS) is not None
    built.ask()
    begun = planned(built, 12_000, profile=OPENS, committed=32)
    # Nothing of the open turn has thought yet, so nothing is in the way.
    assert begun is not None
    built.step(OUTPUT, thinking="hm")
    assert planned(built, 12_000, profile=OPENS, committed=32) is None
    free = replace(OPENS, binds_thinking=False)
    assert planned(built, 12_000, profile=free, committed=32) is not None


def test_what_is_asked_for_frees_all_that_is_old() -> None:
    built = talk(12, OUTPUT)
    calm = planned(built, 100_000)
    assert calm is None
    asked = planned(built, 100_000, trigger="asked")
    assert swapped(asked) == [f"c{n}" for n in range(1, 8)]


def test_the_figure_of_what_stays_in_the_cache_is_what_stands_before_the_first_edit() -> None:
    built = talk(20, OUTPUT)
    policy = Balanced(low=0.5)
    first = required(planned(built, 48_000, policy=policy))
    assert first.figures["kept_before_tokens"] < 20
    view = View().applied(first, 80)
    built.turns(8, OUTPUT)
    second = required(planned(built, 48_000, view=view, policy=policy))
    edited = next(at for at, m in enumerate(built.messages) if m.tool_results and at >= 31)
    kept = context_tokens(built.messages[:edited], view, PROFILE)
    assert second.figures["kept_before_tokens"] == kept


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": 0},
        {"threshold": 1},
        {"low": 0.8},
        {"recent_share": True},
        {"keep_recent_turns": 0},
        {"keep_recent_steps": 1.5},
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(settings))):
        Balanced(**settings)


@pytest.mark.parametrize(
    "piece",
    ["the word ", "漢字仮名交じり文の長い段落。", "🎉🙂"],
    ids=["English", "Japanese", "emoji"],
)
@pytest.mark.parametrize("profile", [PROFILE, CLAUDE["claude-opus-5"]], ids=["any", "claude"])
def test_a_request_is_said_once_more_in_a_fifth_of_the_limit_in_whatever_script(
    profile: Profile, piece: str
) -> None:
    built = Talk().ask(piece * 20_000)
    for _ in range(60):
        built.step("x" * 900)
    plan = required(planned(built, 12_000, profile=profile, committed=0, trigger="window"))
    pinned = required(required(plan.summary_request).pinned)
    assert 1_200 < text_tokens_for(pinned.text, profile) <= 2_400


def test_no_summary_is_asked_for_that_is_longer_with_the_request_than_what_it_replaces() -> None:
    built = Talk().ask("the word " * 1_200)  # about 4,000 tokens, of which a fifth of 12,000 stays
    for _ in range(4):
        built.step("x" * 2_000)
    assert planned(built, 12_000, committed=0, trigger="asked") is None


@pytest.mark.parametrize("words", [5, 20_000])
def test_a_request_that_a_summary_stands_for_is_said_once_more_behind_it(words: int) -> None:
    """Agents do two hundred steps for one request: a summary within the turn must not lose it."""
    built = Talk().ask("first of all find " + "the word " * words + "and mend it")
    for _ in range(60):
        built.step("x" * 900)  # too short for summaries of their own
    policy = Balanced(keep_recent_steps=5)
    plan = required(planned(built, 12_000, policy=policy, committed=0, trigger="window"))
    assert plan.summary_request is not None
    pinned = plan.summary_request.pinned
    assert pinned is not None
    assert pinned.at == plan.summary_request.upto
    if words == 5:
        assert pinned.text == built.messages[0].text
    else:  # over a fifth of the limit: its head and its tail
        assert pinned.text.startswith("first of all find the word")
        assert pinned.text.endswith("and mend it")
        assert len(pinned.text) < 12_000
    asked = budget_for(built.messages, 12_000, profile=PROFILE, committed=0)
    prefix_summary = PrefixSummary(plan.summary_request.upto, "a summary", "extractive")
    filled = required(with_summary(plan, prefix_summary, View(), built.messages, asked))
    view = View().applied(filled, len(built.messages))
    sent = project(built.messages, view, PROFILE, Frame(model="m", max_tokens=10))
    said = msgspec.json.decode(sent.messages[0].body)
    assert [block["text"] for block in said] == ["a summary", pinned.text]
    # A second summary says it on, once.
    more = Talk()
    more.messages, more.turn, more.calls = list(built.messages), built.turn, built.calls
    more.step("y" * 900, times=60)
    second = required(
        planned(more, 12_000, view=view, policy=policy, committed=0, trigger="window")
    )
    assert second.summary_request is not None
    later = PrefixSummary(second.summary_request.upto, "another summary", "extractive")
    now = required(with_summary(second, later, view, more.messages, asked))
    shown = view.applied(now, len(more.messages))
    assert [each.text for each in shown.injected] == [pinned.text]
    assert shown.injected[0].at == second.summary_request.upto
