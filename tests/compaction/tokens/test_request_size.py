from __future__ import annotations

import pytest

from llmsession.compaction.tokens.calibration import Calibration
from llmsession.compaction.tokens.request_size import Anchor, Sized, size_after, size_whole
from llmsession.turns.usage import Usage

DOUBLE = Calibration(samples=((2_000, 4_000),) * 10)


def test_the_next_request_is_what_was_reported_and_an_estimate_of_what_came_after() -> None:
    anchor = Anchor(messages=3, prompt_tokens=10_000, output_tokens=400)
    sized = size_after(anchor, reply_tokens=380, after_tokens=50)
    assert (sized.tokens, sized.reported_tokens) == (10_450, 10_400)


def test_cached_tokens_are_part_of_the_prompt_and_counted_once() -> None:
    usage = Usage(input_tokens=5, output_tokens=7, cache_read_tokens=900, cache_write_tokens=95)
    assert Anchor.of(usage, 4, 2) == Anchor(4, 1_000, 7, 2)


@pytest.mark.parametrize("usage", [None, Usage(), Usage(output_tokens=9)])
def test_usage_without_a_prompt_is_no_anchor(usage: Usage | None) -> None:
    assert Anchor.of(usage, 4) is None


def test_usage_from_before_a_compaction_or_a_rewind_says_nothing() -> None:
    anchor = Anchor(messages=3, prompt_tokens=10_000, output_tokens=400, view_version=1)
    assert anchor.holds(4, 1)
    assert not anchor.holds(4, 2)
    assert not anchor.holds(3, 1)


@pytest.mark.parametrize("output_tokens", [0, 1, 189])
def test_a_reply_whose_reported_output_is_far_too_low_is_estimated(output_tokens: int) -> None:
    anchor = Anchor(3, 10_000, output_tokens)
    assert size_after(anchor, reply_tokens=380, after_tokens=0).tokens == 10_380


def test_hidden_thinking_that_is_sent_back_counts_as_reported() -> None:
    anchor = Anchor(3, 10_000, 5_000)
    assert size_after(anchor, reply_tokens=100, after_tokens=0).tokens == 15_000


def test_hidden_thinking_that_is_not_sent_back_does_not_count() -> None:
    anchor = Anchor(3, 10_000, 5_000)
    sized = size_after(anchor, reply_tokens=100, after_tokens=0, returns_thinking=False)
    assert (sized.tokens, sized.reported_tokens) == (10_100, 10_000)
    near = size_after(
        Anchor(3, 10_000, 110), reply_tokens=100, after_tokens=0, returns_thinking=False
    )
    assert near.tokens == 10_110


def test_thinking_that_can_be_seen_and_is_not_sent_back_is_taken_off_the_output() -> None:
    anchor = Anchor(3, 10_000, 1_000)
    assert size_after(anchor, reply_tokens=300, unsent_tokens=700, after_tokens=5).tokens == 10_305


def test_what_is_not_sent_any_more_is_taken_off_the_prompt() -> None:
    anchor = Anchor(3, 10_000, 100)
    sized = size_after(anchor, reply_tokens=100, after_tokens=0, dropped_tokens=2_500)
    assert sized.tokens == 7_600
    assert size_after(anchor, reply_tokens=0, after_tokens=0, dropped_tokens=99_999).tokens == 100


def test_only_estimates_are_calibrated() -> None:
    anchor = Anchor(3, 10_000, 400)
    sized = size_after(anchor, reply_tokens=200, after_tokens=50, calibration=DOUBLE)
    assert sized.tokens == 10_000 + 400 + 100
    assert size_whole(600, DOUBLE).tokens == 1_200


def test_what_was_reported_later_teaches_the_growth() -> None:
    calibration = Calibration()
    for _ in range(10):
        sized = size_after(
            Anchor(3, 50_000, 0), reply_tokens=500, after_tokens=1_500, calibration=calibration
        )
        calibration = sized.taught(calibration, 50_000 + 2_600)
    assert calibration.ratio_permille == 1_300
    assert calibration.error_permille is not None


def test_a_size_without_an_anchor_teaches_nothing() -> None:
    assert size_whole(9_000).taught(DOUBLE, 12_000) is DOUBLE


def test_a_prompt_that_shrank_teaches_nothing() -> None:
    sized = size_after(Anchor(3, 50_000, 0), reply_tokens=500, after_tokens=1_500)
    assert sized.taught(DOUBLE, 20_000) is DOUBLE


def test_the_margin_is_about_the_growth_and_not_about_what_was_reported() -> None:
    off = Calibration(errors=(100,) * 8)
    sized = size_after(Anchor(3, 90_000, 0), reply_tokens=400, after_tokens=600, calibration=off)
    assert sized.margin_tokens == 100
    assert size_whole(5_000, off).margin_tokens == 500
    assert size_whole(5_000).margin_tokens is None


def test_an_estimate_is_rounded_up_to_whole_tokens() -> None:
    odd = Calibration(samples=((1_000, 1_337),) * 9)
    sized = size_after(Anchor(1, 11, 3), reply_tokens=1, after_tokens=1, calibration=odd)
    assert sized == Sized(11 + 3 + 2, 14, 2, 11, None)
