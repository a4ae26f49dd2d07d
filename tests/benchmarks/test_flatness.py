"""What is flat, and what has grown: a leak put in on purpose is found, noise and warming up are not
taken for one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from benchmarks.soak.flatness import Rules, Sample, fit, growths, lines

RULES = Rules()
BASE = 120_000_000
MINUTE_S = 60.0


def samples(
    minutes: int,
    rss: Callable[[float], float],
    *,
    life: int = 1,
    start_s: float = 0.0,
    handles: Callable[[int], int] = lambda rest: 30,
    tasks: Callable[[int], int] = lambda rest: 12,
    sessions: Callable[[int], int] = lambda rest: 0,
) -> list[Sample]:
    """A life of so many minutes: 50 s of load in each, then a rest. *rss* is bytes by seconds of
    the life; under load 10 MB come on top."""
    found = []
    for minute in range(minutes):
        for second in range(0, 60, 2):
            at_s, rest = minute * MINUTE_S + second, minute + 1 if second >= 50 else 0
            found.append(
                Sample(
                    at_s=start_s + at_s,
                    life=life,
                    rest=rest,
                    rss_bytes=int(rss(at_s)) + (0 if rest else 10_000_000),
                    handles=handles(rest) if rest else 80,
                    threads=9,
                    tasks=tasks(rest) if rest else 300,
                    sessions=sessions(rest) if rest else 40,
                )
            )
    return found


def what_grew(found: list[Sample]) -> set[str]:
    return {growth.what for growth in growths(found, RULES)}


def test_a_service_that_goes_up_and_down_is_flat() -> None:
    random = Random(1)
    assert not growths(samples(20, lambda at: BASE + random.uniform(-8e6, 8e6)), RULES)


def test_a_list_that_grows_for_ever_is_found_under_load_and_at_rest() -> None:
    random = Random(1)
    leaked: list[float] = []

    def rss(at: float) -> float:
        leaked.append(at)  # one entry a look, as if it held 30 kB: 54 MB an hour
        return BASE + 30_000 * len(leaked) + random.uniform(-4e6, 4e6)

    told = growths(samples(20, rss), RULES)
    assert {growth.what for growth in told} == {"memory"}
    assert ["load" in growth.told for growth in told] == [True, False]


def test_warming_up_is_no_growth_and_neither_is_one_great_spike() -> None:
    warm = samples(20, lambda at: BASE + min(at, 300.0) * 100_000)
    assert not growths(warm, RULES)
    spiked = samples(20, lambda at: BASE + (200e6 if 1000 < at < 1060 else 0))
    assert not growths(spiked, RULES)


@pytest.mark.parametrize("mb_an_hour", [6, 20])
def test_a_growth_below_the_rule_is_flat(mb_an_hour: int) -> None:
    assert not growths(samples(30, lambda at: BASE + mb_an_hour * 1e6 * at / 3600), RULES)


def test_a_growth_that_is_small_beside_the_whole_is_flat() -> None:
    large = samples(30, lambda at: 2e9 + 100e6 * at / 3600)
    assert not growths(large, RULES)
    assert what_grew(samples(30, lambda at: BASE + 100e6 * at / 3600)) == {"memory"}


def test_what_grows_in_every_life_a_little_is_found_over_all_lives() -> None:
    found = []
    for life in range(1, 7):
        start_s = (life - 1) * 3 * MINUTE_S
        found += samples(2, lambda at, n=life: BASE + n * 8e6, life=life, start_s=start_s)  # type: ignore[misc]  # a default binds the loop's variable
    assert [growth.told.partition(":")[0] for growth in growths(found, RULES)] == [
        "first rests of all lives"
    ]


def test_short_lives_are_not_judged_by_an_hour() -> None:
    short = samples(3, lambda at: BASE + 1e6 * at)
    assert lines(short, RULES) == []


def test_handles_that_do_not_come_back_are_found_though_they_are_few_under_load() -> None:
    assert what_grew(samples(20, lambda at: BASE, handles=lambda rest: 30 + rest)) == {"handles"}
    assert not growths(samples(20, lambda at: BASE, handles=lambda rest: 30 + rest % 5), RULES)


def test_tasks_that_do_not_come_back_are_found() -> None:
    assert what_grew(samples(20, lambda at: BASE, tasks=lambda rest: 12 + rest)) == {"tasks"}


def test_the_least_of_a_rest_counts_what_was_still_ending_does_not() -> None:
    found = samples(5, lambda at: BASE)
    ending = Sample(at_s=300.0, life=1, rest=5, rss_bytes=BASE, handles=99, tasks=99, sessions=9)
    assert not growths([*found, ending], RULES)


def test_a_session_that_stays_in_memory_while_nobody_is_there_is_found() -> None:
    stays = samples(5, lambda at: BASE, sessions=lambda rest: int(rest == 3))
    assert growths(stays, RULES)[0].told == "life 1: 1 were there at rest 3"


def test_each_life_has_a_base_of_its_own() -> None:
    first = samples(5, lambda at: BASE, handles=lambda rest: 30)
    second = samples(5, lambda at: BASE, life=2, start_s=5 * MINUTE_S, handles=lambda rest: 60)
    assert "handles" not in what_grew([*first, *second])


def test_a_line_is_the_median_of_all_pairs() -> None:
    points: list[tuple[float, int | None]] = [(at * 100.0, 1000 + at * 50) for at in range(9)]
    points[4] = (400.0, 10**9)
    line = fit("x", points, RULES)
    assert line is not None
    assert (line.window_s, line.points, line.median_bytes) == (800.0, 9, 1250)
    assert line.bytes_per_hour == 1800.0
    assert fit("x", [(at, None) for at, _ in points], RULES) is None


def test_where_the_system_tells_nothing_of_a_process_tasks_are_judged_all_the_same() -> None:
    unknown = [Sample(at_s=at * 60.0, life=1, rest=at, tasks=10 + 3 * at) for at in range(1, 10)]
    assert what_grew(unknown) == {"tasks"}
