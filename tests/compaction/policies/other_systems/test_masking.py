from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.compaction.policies import MaskConsumed, PositionClear, PressureFading
from llmsession.compaction.policies.other_systems.masking import (
    CLEARED,
    fading_chars,
    fading_tokens,
    head_and_tail,
    masked_chars,
)
from llmsession.compaction.summaries.extractive import compact_text
from llmsession.compaction.view.view import View
from tests.compaction.conversations import Talk, required, text
from tests.compaction.policies.plans import plan_of

# The golden vectors.


@pytest.mark.parametrize(
    ("budget", "permille", "chars"),
    [
        (100_000, 800, [24_000, 72_000, 120_000]),
        (100_000, 900, [4_800, 14_400, 24_000]),
        (8_000, 990, [245, 737, 1_228]),
    ],
)
def test_the_vectors_of_pressure_fading(budget: int, permille: int, chars: list[int]) -> None:
    tokens = fading_tokens(budget, permille, 1_000)
    assert [fading_chars(number, 3, tokens) for number in range(3)] == chars


@pytest.mark.parametrize(
    ("permille", "tokens"),
    [(799, 40_000), (800, 40_000), (850, 20_000), (899, 20_000), (900, 8_000), (990, 2_000)],
)
def test_a_band_begins_with_its_pressure(permille: int, tokens: int) -> None:
    assert fading_tokens(40_000, permille, 1_000) == tokens


def test_fading_has_a_least_budget_a_least_length_and_a_most_length() -> None:
    assert fading_tokens(8_000, 990, 1_000) == 1_024
    assert fading_chars(0, 100, 500) == 200
    assert fading_chars(9, 10, 10_000_000) == 400_000
    assert fading_chars(0, 1, 100_000) == 120_000


def test_masked_results_share_the_budget_by_age() -> None:
    shares = [masked_chars(number, 5, 3_000) for number in range(5)]
    assert shares == [800, 1_600, 2_400, 3_200, 4_000]
    assert sum(shares) == 3_000 * 4
    assert masked_chars(0, 1, 3_000) == 12_000
    assert masked_chars(0, 5, 100) == masked_chars(0, 5, -100) == 300


# Head and tail.


def test_head_and_tail_say_how_long_it_was() -> None:
    shown = head_and_tail("a" * 500 + "b" * 500, 70, 30, 100)
    marker = "\n\n… [truncated: 1000 chars exceeded 100 limit] …\n\n"
    assert shown == "a" * 70 + marker + "b" * 30


def test_a_cut_moves_to_the_end_of_a_line_that_is_near() -> None:
    lines = "".join(f"line {number}\n" for number in range(200))
    shown = head_and_tail(lines, 100, 100, 200)
    head, _, tail = shown.partition("\n\n… [truncated")
    assert all(line in lines.splitlines() for line in head.splitlines())
    assert all(line in lines.splitlines() for line in tail.split("\n\n", 1)[1].splitlines())


# mask_consumed.


def read_and_unread() -> Talk:
    """A result that words follow, and one that nothing follows."""
    built = Talk().ask().step("a" * 20_000).add("assistant", [text("I see")]).ask()
    built.step("b" * 20_000)
    return built


def test_only_what_was_read_is_masked() -> None:
    plan = required(plan_of(MaskConsumed(), read_and_unread().messages, 2_000))
    assert set(plan.shown_results) == {"c1"}
    assert "… [truncated: 20000 chars exceeded 7600 limit] …" in plan.shown_results["c1"]
    assert len(plan.shown_results["c1"]) <= 7_600


def test_a_summary_stands_instead_where_there_is_one() -> None:
    plan = required(
        plan_of(
            MaskConsumed(), read_and_unread().messages, 2_000, summaries={"c1": "twenty thousand a"}
        )
    )
    expected = compact_text("twenty thousand a", call_id="c1", chars=20_000)
    assert plan.shown_results == {"c1": expected}


def test_what_is_masked_once_stays_as_it_is() -> None:
    built = read_and_unread()
    plan = required(plan_of(MaskConsumed(), built.messages, 2_000))
    view = View().applied(plan, len(built.messages))
    built.reply()
    more = required(plan_of(MaskConsumed(), built.messages, 2_000, view))
    assert set(more.shown_results) == {"c2"}
    assert view.applied(more, len(built.messages)).shown_results["c1"] == plan.shown_results["c1"]


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=8), st.integers(300, 30_000))
def test_masking_only_shrinks(sizes: list[int], limit: int) -> None:
    built = Talk().ask()
    for size in sizes:
        built.step("x" * size)
    built.reply()
    plan = plan_of(MaskConsumed(), built.messages, limit)
    for call, shown in (plan.shown_results if plan else {}).items():
        assert len(shown) < sizes[int(call[1:]) - 1]


# pressure_fading.


def test_every_result_fades_the_oldest_most_and_inputs_too() -> None:
    built = Talk().ask().step("x" * 20_000, times=3)
    written = {"type": "tool_use", "id": "w", "name": "write", "input": {"content": "y" * 20_000}}
    built.add("assistant", [written])
    plan = required(plan_of(PressureFading(), built.messages, 90_000, used=89_500))
    sizes = [len(plan.shown_results[call]) for call in ("c1", "c2", "c3")]
    assert sizes == sorted(sizes)
    assert sizes[-1] < 6_000
    assert len(bytes(plan.inputs["w"])) < 20_000


def test_a_faded_result_does_not_fade_again_under_more_pressure() -> None:
    built = Talk().ask().step("x" * 20_000, times=3)
    plan = required(plan_of(PressureFading(), built.messages, 74_000))
    view = View().applied(plan, len(built.messages))
    more = required(plan_of(PressureFading(), built.messages, 74_000, view, used=69_990))
    assert "c1" in plan.shown_results
    assert set(more.shown_results) == {"c1", "c2", "c3"} - set(plan.shown_results)
    assert view.applied(more, len(built.messages)).shown_results["c1"] == plan.shown_results["c1"]


def test_the_pressure_is_that_of_the_messages_on_what_they_may_take() -> None:
    messages = Talk().ask().step("x" * 60_000, times=3).reply().messages
    # Of the limit of 20,000 there are 5 % in reserve, and 1,000 are the system text and tools.
    for policy in (MaskConsumed(), PressureFading()):
        for used, has_plan in ((1_000 + 14_399, False), (1_000 + 14_400, True)):
            plan = plan_of(policy, messages, 20_000, used=used, frame_tokens=1_000)
            assert (plan is not None) is has_plan


# position_clear.


def with_long_results(turns: int, chars: int = 50_000) -> Talk:
    return Talk().turns(turns, "x" * chars)


def test_the_older_half_is_cleared_what_is_younger_trimmed_and_three_turns_stay() -> None:
    built = with_long_results(10)
    plan = required(plan_of(PositionClear(), built.messages, 100_000))
    # Forty messages; results at 2, 6, ...: the older half is up to 20, and 30 % up to 28.
    cleared = [call for call, shown in plan.shown_results.items() if shown == CLEARED]
    assert cleared == ["c1", "c2", "c3", "c4", "c5"]
    assert set(plan.shown_results) - set(cleared) == {"c6", "c7"}
    marker = "\n\n… [truncated: 50000 chars exceeded 3000 limit] …\n\n"
    assert plan.shown_results["c6"] == "x" * 1_500 + marker + "x" * 1_500
    assert plan.figures == {"cleared": 5, "trimmed": 2}
