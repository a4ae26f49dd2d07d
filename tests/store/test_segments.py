"""Where shared records lie: beside a model that copies lists."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llmsession.store.segments import (
    LAST_SEQ,
    Segment,
    cut,
    layout,
    moved,
    segment_of,
    stored,
    united,
    unused,
    within,
)

OWN = 1


def sources(segments: list[Segment]) -> list[int]:
    """The log of each record, one after the other; every seq once, in order."""
    logs: list[int] = []
    for part in segments:
        assert part.first == len(logs) + 1
        assert part.upto >= part.first
        logs += [part.source] * (part.upto - part.first + 1)
    return logs


def of(logs: list[int]) -> list[Segment]:
    """Segments of one record each."""
    return [Segment(seq, seq, log) for seq, log in enumerate(logs, 1)]


logs = st.lists(st.integers(min_value=1, max_value=3), max_size=12)


@given(logs)
def test_what_is_stored_gives_the_same_layout_again(wanted: list[int]) -> None:
    kept = stored(of(wanted), OWN)
    assert sources(layout(kept, OWN, len(wanted))) == wanted
    # Nothing is stored of the range that goes on growing, nor two neighbours of one log.
    assert not kept or kept[-1].source != OWN
    assert all(a.source != b.source for a, b in pairwise(kept))


@given(logs, st.integers(min_value=0, max_value=5))
def test_what_is_appended_lies_in_the_sessions_own_log(wanted: list[int], more: int) -> None:
    grown = layout(stored(of(wanted), OWN), OWN, len(wanted) + more)
    assert sources(grown) == wanted + [OWN] * more


@given(logs, st.integers(min_value=0, max_value=12))
def test_a_cut_has_the_first_records(wanted: list[int], upto: int) -> None:
    assert sources(cut(of(wanted), upto)) == wanted[:upto]


@given(logs, st.integers(min_value=1, max_value=13), st.integers(min_value=0, max_value=13))
def test_a_window_has_the_records_between(wanted: list[int], first: int, upto: int) -> None:
    found = within(layout(stored(of(wanted), OWN), OWN, len(wanted)), first, upto)
    seqs = [seq for part in found for seq in range(part.first, part.upto + 1)]
    assert seqs == list(range(first, min(upto, len(wanted)) + 1))
    assert [part.source for part in found for _ in range(part.first, part.upto + 1)] == (
        wanted[first - 1 : upto] if upto >= first else []
    )


@given(logs, st.sets(st.integers(min_value=1, max_value=12)))
def test_moved_records_lie_elsewhere_and_the_others_stay(wanted: list[int], seqs: set[int]) -> None:
    seqs = {seq for seq in seqs if seq <= len(wanted)}
    expected = [9 if seq in seqs else log for seq, log in enumerate(wanted, 1)]
    assert sources(moved(of(wanted), seqs, 9)) == expected


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)).map(sorted).map(tuple)))
def test_unused_is_all_that_is_in_no_range(used: list[tuple[int, int]]) -> None:
    taken = {seq for first, upto in used for seq in range(first, upto + 1)}
    ranges = list(unused(used))
    free = {seq for first, upto in ranges for seq in range(first, min(upto, 30) + 1)}
    assert free == set(range(1, 31)) - taken
    assert ranges[-1][1] == LAST_SEQ


def test_a_log_that_is_used_to_its_end_has_nothing_unused() -> None:
    assert list(unused([(1, LAST_SEQ)])) == []
    assert list(unused([(3, LAST_SEQ), (1, 1)])) == [(2, 2)]


@given(logs, st.integers(min_value=0, max_value=14))
def test_the_segment_of_a_record_is_the_one_that_holds_it(wanted: list[int], seq: int) -> None:
    found = segment_of(layout(stored(of(wanted), OWN), OWN, len(wanted)), seq)
    assert (found is None) == (not 1 <= seq <= len(wanted))
    assert found is None or found.source == wanted[seq - 1]


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)).map(sorted).map(tuple)))
def test_united_ranges_are_in_order_and_apart_and_hold_the_same(
    ranges: list[tuple[int, int]],
) -> None:
    parts = united(ranges, 7)
    assert all(one.upto + 1 < other.first for one, other in pairwise(parts))
    held = {seq for part in parts for seq in range(part.first, part.upto + 1)}
    assert held == {seq for first, upto in ranges for seq in range(first, upto + 1)}
