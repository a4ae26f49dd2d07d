"""A bound that is exceeded is said by name and fails the run; noise alone does not."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as command
from benchmarks.report import Row, exceeded, settled


def row(name: str, *ratios: float, bound: float | None = 2.0) -> Row:
    return Row(name=name, ours=1.0, bare=1.0, unit="us", ratios=ratios, bound=bound)


def test_the_median_of_the_rounds_counts_not_one_of_them() -> None:
    assert row("a", 1.0, 1.5, 90.0).holds
    assert not row("a", 1.0, 2.5, 2.6).holds
    assert row("a", 90.0, bound=None).holds


def test_what_holds_is_measured_once() -> None:
    runs: list[list[Row]] = [[row("a", 1.9)]]
    assert settled(runs.pop) == [row("a", 1.9)]


def test_what_does_not_hold_is_measured_once_more_and_the_rest_stays_as_it_was() -> None:
    runs = [[row("a", 1.5), row("b", 1.0)], [row("a", 2.5), row("b", 1.2)]]
    found = settled(runs.pop)
    assert [(each.name, each.ratio) for each in found] == [("a", 1.5), ("b", 1.2)]
    assert found[0].note == "measured twice, because of 2.50 at first"
    assert not exceeded(found)


def test_what_is_over_its_bound_twice_is_exceeded_and_is_named() -> None:
    runs = [[row("a", 2.7)], [row("a", 2.5)]]
    found = settled(runs.pop)
    assert not runs
    assert exceeded(found) == ["a: ratio 2.50, bound 2"]


@pytest.mark.parametrize(("ratio", "code"), [(1.0, 0), (3.0, 1)])
def test_the_command_exits_1_where_a_bound_is_exceeded_and_says_which(
    ratio: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.BENCHMARKS, "steps", lambda: [row("a step", ratio)])
    assert command.main(["steps"]) == code
    said = "EXCEEDED: steps: a step: ratio 3.00, bound 2\n" if code else ""
    assert capsys.readouterr().err == said


def test_a_benchmark_that_there_is_not_is_bad_usage() -> None:
    assert command.main(["stepz"]) == 2
