from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.lab.labels import MAX_TICKS, Box, Spot, numbers, placed, short, ticks

FRAME = Box(70, 28, 640, 265)


def texts(least: float, most: float, *, whole: bool = False) -> list[str]:
    return [text for _, text in ticks(least, most, whole=whole)]


def test_numbers_are_short() -> None:
    assert [short(each) for each in (0.853, 12, 1_234, 5_600_000, 2e9)] == [
        "0.853", "12", "1.23k", "5.6M", "2G",
    ]  # fmt: skip


def test_ticks_are_round_and_written_with_the_digits_that_tell_them_apart() -> None:
    assert texts(0, 1.05) == ["0", "0.5", "1.0"]
    assert texts(155_000, 155_009) == ["155.000k", "155.002k", "155.004k", "155.006k", "155.008k"]
    assert texts(0, 210_000) == ["0", "50k", "100k", "150k", "200k"]
    assert texts(0, 3, whole=True) == ["0", "1", "2", "3"]
    assert texts(0, 1, whole=True) == ["0", "1"]
    assert texts(7, 7) == ["7"]


sizes = st.floats(-1e12, 1e12, allow_nan=False)


@settings(max_examples=200, derandomize=True)
@given(sizes, sizes, st.booleans())
def test_no_tick_is_written_twice_and_all_are_in_the_range(a: float, b: float, whole: bool) -> None:
    least, most = sorted((a, b))
    found = ticks(least, most, whole=whole)
    assert len({text for _, text in found}) == len(found) <= MAX_TICKS
    slack = (most - least) * 1e-6
    assert all(least - slack <= value <= most + slack for value, _ in found)


def test_numbers_in_a_row_are_a_range_and_many_ranges_are_counted() -> None:
    assert numbers([3, 1, 4, 5, 9]) == "1, 3-5, 9"
    assert numbers(range(1, 40, 2)) == "1, 3, 5, 7, 9, 11, and 14 more"


spots = st.lists(
    st.tuples(st.floats(70, 610), st.floats(28, 266), st.integers(1, 40)), min_size=1, max_size=40
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(spots)
def test_labels_stay_inside_never_overlap_and_name_every_spot(
    places: list[tuple[float, float, int]],
) -> None:
    named = [Spot(n, "x" * length, x, y) for n, (x, y, length) in enumerate(places, 1)]
    labels = placed(named, FRAME)
    assert sorted(spot for label in labels for spot in label.spots) == sorted(named)
    assert all(FRAME.holds(label.box) for label in labels)
    for index, label in enumerate(labels):
        assert not any(label.box.overlaps(other.box) for other in labels[:index])
