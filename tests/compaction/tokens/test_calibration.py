from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.compaction.tokens.calibration import (
    ERRORS_NEEDED,
    HIGHEST_PERMILLE,
    LOWEST_PERMILLE,
    MIN_TOKENS,
    SAMPLES,
    Calibration,
)
from tests.compaction.conversations import required


def taught(*pairs: tuple[int, int]) -> Calibration:
    calibration = Calibration()
    for estimated, reported in pairs:
        calibration = calibration.observed(estimated, reported)
    return calibration


def test_an_untaught_calibration_changes_nothing() -> None:
    assert [Calibration().scaled(tokens) for tokens in (0, 1, 999)] == [0, 1, 999]
    assert Calibration().error_permille is None


def test_it_learns_how_much_more_a_model_reports() -> None:
    calibration = taught(*[(1_000, 1_350)] * 10)
    assert calibration.ratio_permille == 1_350
    assert calibration.scaled(2_000) == 2_700


def test_one_sample_does_not_swing_it() -> None:
    assert taught((1_000, 1_900)).ratio_permille == 1_000


def test_odd_samples_do_not_move_it() -> None:
    steady = [(1_000, 1_200)] * 12
    odd = [(1_000, 1_950), (1_000, 510)] * 3
    assert taught(*steady, *odd).ratio_permille == 1_200


def test_large_samples_weigh_more_and_none_decides_alone() -> None:
    small = [(200, 300)] * 6
    assert taught(*small, (3_900, 4_290), (3_900, 4_290)).ratio_permille == 1_100
    assert taught(*[(1_000, 1_200)] * 12, (90_000, 99_000)).ratio_permille == 1_200


@pytest.mark.parametrize(
    ("estimated", "reported"),
    [
        (10_000, 4_999),  # a request that was rewritten, or is only partly reported
        (10_000, 20_010),  # content that we did not see
        (MIN_TOKENS - 1, 150),
        (150, MIN_TOKENS - 1),
    ],
)
def test_a_sample_about_something_else_teaches_the_error_and_not_the_ratio(
    estimated: int, reported: int
) -> None:
    calibration = taught(*[(estimated, reported)] * 20)
    assert calibration.ratio_permille == 1_000
    assert required(calibration.error_permille) > 0


@pytest.mark.parametrize(("estimated", "reported"), [(0, 5), (5, 0), (-3, 5), (5, -3)])
def test_a_growth_of_nothing_teaches_nothing(estimated: int, reported: int) -> None:
    calibration = taught((1_000, 1_100))
    assert calibration.observed(estimated, reported) is calibration


def test_old_samples_are_forgotten() -> None:
    calibration = taught(*[(1_000, 1_400)] * SAMPLES, *[(1_000, 1_100)] * SAMPLES)
    assert calibration.ratio_permille == 1_100
    assert len(calibration.samples) == SAMPLES


def test_the_error_is_known_after_enough_samples() -> None:
    few = taught(*[(1_000, 1_000)] * (ERRORS_NEEDED - 1))
    assert few.error_permille is None
    assert few.observed(1_000, 1_000).error_permille == 0


def test_the_error_is_what_95_of_100_stay_within() -> None:
    calibration = Calibration()
    for at in range(40):
        said = 1_500 if at in (7, 23) else 1_100 if at == 30 else 1_010
        calibration = calibration.observed(1_000, 1_000, predicted_tokens=said)
    assert calibration.error_permille == 100


def test_the_error_is_that_of_what_was_said_in_advance() -> None:
    learning = taught(*[(1_000, 1_300)] * 64)
    assert learning.error_permille == 0  # after the first few it said 1,300, too


@given(st.lists(st.tuples(st.integers(-10, 10**7), st.integers(-10, 10**7)), max_size=80))
def test_the_ratio_stays_within_its_bounds_and_equal_samples_give_equal_values(
    pairs: list[tuple[int, int]],
) -> None:
    calibration = taught(*pairs)
    assert LOWEST_PERMILLE <= calibration.ratio_permille <= HIGHEST_PERMILLE
    assert calibration.scaled(1) >= 1
    assert taught(*pairs) == calibration
    assert msgspec.json.decode(msgspec.json.encode(calibration), type=Calibration) == calibration
