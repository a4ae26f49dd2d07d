"""What a run leaves for the documents, and what two commits differ by."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import __main__ as command
from benchmarks import diff
from benchmarks.diff import change_of
from benchmarks.machine import LOOK_S, QUIET, wait_until_quiet
from benchmarks.report import Row
from benchmarks.results import Taken, read_results, this_python, write_results
from docs.tables import benchmarks as page

ROW = Row(name="a turn", ours=123.456, bare=2.0, unit="us", ratios=(1.0, 2.0, 9.87654), bound=3.0)
TAKEN = Taken(
    machine="2 cores", commit="abc", day="2026-11-23", quiet=True, others=0.0123, took_s=9.6,
    rows=[ROW],
)  # fmt: skip


def test_a_run_replaces_what_its_own_python_found_and_leaves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results({"2.7": {"turns": TAKEN}, this_python(): {"steps": TAKEN, "turns": TAKEN}}, path)
    command.save("turns", replace(TAKEN, commit="def"), path)
    found = read_results(path)
    assert found["2.7"]["turns"].commit == found[this_python()]["steps"].commit == "abc"
    assert found[this_python()]["turns"].commit == "def"
    assert found["2.7"]["turns"].rows[0].ours == 123.5
    assert found["2.7"]["turns"].rows[0].ratio == 2.0


def test_where_nothing_was_taken_there_are_no_results(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([0.0, 0.0], (True, 0.0)),
        ([0.0, 1.5, QUIET, 0.0], (True, 0.0)),
        ([0.0, 1.5, 0.0, 1.5], (False, 1.5)),
    ],
)
def test_a_lull_is_not_taken_for_a_quiet_machine(
    looks: list[float], found: tuple[bool, float]
) -> None:
    left = iter(looks)
    assert wait_until_quiet(4 * LOOK_S, lambda: next(left)) == found
    assert next(left, None) is None


def test_the_page_says_what_was_measured_with_its_bound_and_beside_other_pythons() -> None:
    slower = replace(TAKEN, rows=[Row(name="a turn", ours=3, bare=1, unit="us")])
    results = {"3.11": {"turns": TAKEN}, "3.14": {"turns": slower}}
    lines = page.figures(results).splitlines()
    assert lines[0] == "### `turns`"
    assert lines[-1] == "| a turn | 123.5 us | 2 us | 2.00 (1 to 9.88) | 3 | 3.00 |"
    told = "| `turns` | 3.14 | 2026-11-23 | `abc` | 2 cores | quiet before, 0.01 cores meanwhile |"
    assert page.taken(results).splitlines()[-1] == f"{told} 10 s |"


def rounds(noise: float, slower: float, seed: int) -> list[tuple[float, float, float]]:
    """Five rounds on a machine that drifts: (BASE, BASE once more, this tree)."""
    chance = random.Random(seed)
    found = []
    for _ in range(5):
        speed = chance.uniform(0.5, 1.0)
        a, b, c = (speed * chance.lognormvariate(0.0, noise) for _ in range(3))
        found.append((a, b, c * slower))
    return found


def test_noise_is_seldom_taken_for_a_regression() -> None:
    told = [change_of("a", rounds(0.05, 1.0, seed)) for seed in range(400)]
    assert sum(change.is_slower for change in told) <= 20  # 5 %
    assert sum(change.is_faster for change in told) <= 20


def test_a_change_of_three_times_the_noise_is_found_and_one_of_a_hundredth_is_not() -> None:
    assert sum(change_of("a", rounds(0.05, 1.3, seed)).is_slower for seed in range(100)) >= 90
    assert change_of("a", rounds(0.001, 1.1, 1)).is_slower
    assert change_of("a", rounds(0.001, 1 / 1.1, 1)).is_faster
    assert not change_of("a", rounds(0.001, 1.01, 1)).is_slower


def test_the_verdict_names_the_row_and_the_noise() -> None:
    same = change_of("turns: a turn", [(1.0, 1.0, 1.2)] * 3)
    assert same.told() == "turns: a turn: 1.200 (1.200 to 1.200), noise 3.0%: SLOWER"


def test_a_benchmark_that_there_is_not_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        diff.main(["HEAD", "no-such"])
    assert "no benchmark 'no-such'; there are commit" in capsys.readouterr().err


def test_a_commit_that_there_is_not_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff.main(["no-such-commit"]) == 2
    assert capsys.readouterr().err.startswith("no commit 'no-such-commit' here: ")
