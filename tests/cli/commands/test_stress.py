"""``llmsession stress``: figures, the exit code of a violation, and its proof."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmsession.cli.commands import stress
from llmsession.testing.checker import checker
from llmsession.testing.checker.checker import check
from llmsession.testing.recording.entries import Begun, Invoked, Recording, decode_lines
from llmsession.testing.recording.violation import Violation
from llmsession.testing.stress.run import StressPlan, StressReport
from llmsession.turns.request import Profile
from tests.cli.commands.test_check import check_again
from tests.cli.stores import Run

__all__ = ["check_again"]

SMALL = ("--sessions", "2", "--turns", "4", "--interrupts", "2", "--seed", "3")


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "stress")


def test_json_is_one_object_with_the_promised_figures(run: Run) -> None:
    ran = run(*SMALL, "--json")
    assert (ran.code, ran.err) == (0, "")
    (figures,) = ran.figures
    assert set(figures) >= {
        "sessions", "turns", "interrupts", "violations", "interrupt_p50_ms", "interrupt_p99_ms",
        "turns_per_second",
    }  # fmt: skip
    assert (figures["sessions"], figures["seed"], figures["violations"]) == (2, 3, [])
    assert figures["turns"] > 0


def test_the_record_can_be_kept_and_checked_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    assert run(*SMALL, "--record", path).code == 0
    with path.open("rb") as lines:
        assert check(decode_lines(lines)) == ()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_violation_is_exit_code_1_with_the_seed_and_the_shortest_proof(
    run: Run, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    calls = tuple(Invoked(session="s0", call=at, command="send", at=0.0) for at in range(3))
    begun = Begun(seed=7, plan={}, profile=Profile(name="stress"), grace_s=0.1)

    async def broken(plan: StressPlan) -> StressReport:
        return StressReport(
            plan=plan,
            counts={"turns": 1},
            violations=(Violation(13, "s0", "long", calls), Violation(4, "s0", "short", calls[:1])),
            seconds=1.0,
            interrupt_p50_ms=1.0,
            interrupt_p99_ms=2.0,
            recording=Recording([begun, *calls]),
        )

    monkeypatch.setattr(stress, "run_stress", broken)
    ran = run("--seed", 7, *(["--json"] if as_json else []))
    assert ran.code == 1
    assert "2 violations with seed 7" in ran.err
    assert "shortest proof (invariant 4 in session s0: short)" in ran.err
    assert ran.err.count("\n") == 5
    if as_json:
        assert len(ran.figures[0]["violations"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sessions", "0"],
        ["--turns", "-1"],
        ["--interrupts", "-1"],
        ["--seconds", "nan"],
        ["--block", "-1"],
        ["--block", "0.1", "--connect", "unix:s.sock", "--yes"],
        ["--seed", "x"],
        ["--record", "/"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_one_line_and_exit_code_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).refusal


def test_a_run_that_does_not_begin_leaves_an_earlier_recording_as_it_is(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "record.jsonl"
    path.write_bytes(b"an earlier run")
    for wrong in (["--sessions", "0"], ["--simulate", "--turns", "4"], ["--hosts", "2"]):
        assert run(*wrong, "--record", path).refusal
        assert path.read_bytes() == b"an earlier run"


# Simulation

SCHEDULES = ("--simulate", "--seeds", "2", "--seed", "5")


def test_a_simulation_tells_what_it_reached_and_what_it_did_not(run: Run) -> None:
    ran = run(*SCHEDULES, "--json")
    assert (ran.code, ran.err) == (0, "")
    (figures,) = ran.figures
    assert (figures["seed"], figures["seeds"], figures["violations"]) == (5, 2, [])
    assert figures["turns"] > 0
    assert "machine: Started in ACCEPTED" in figures["reached"]
    # Two schedules cannot reach everything.
    assert figures["unreached"]
    assert not set(figures["unreached"]) & set(figures["reached"])


def test_a_simulation_tells_the_same_each_time(run: Run) -> None:
    (first,), (again,) = (run(*SCHEDULES, "--json").figures for _ in range(2))
    assert first | {"seconds": 0} == again | {"seconds": 0}


def test_a_schedule_that_fails_is_shrunk_and_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, check_again: Run, tmp_path: Path
) -> None:
    # Interrupts that cover nothing: the sends before them go on.
    monkeypatch.setattr(checker, "check_interrupts", _no_interrupt_is_right)
    path = tmp_path / "record.jsonl"
    ran = run("--simulate", "--seeds", 40, "--record", path)
    assert ran.code == 1
    assert "steps to 1 (" in ran.err
    assert ": interrupt " in ran.err
    assert "violations" in ran.out
    # What was written is the recording of the shrunk schedule, and another check says the same.
    again = check_again(path)
    assert again.code == 1
    assert "an interrupt was made" in again.err


def _no_interrupt_is_right(session: Any, records: Any, violations: Any, within_s: float) -> None:
    for call in session.invoked.values():
        if call.command == "interrupt":
            violations.add(8, "an interrupt was made", call)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--simulate", "--turns", "3"], "--turns"),
        (["--simulate", "--seeds", "0"], "seeds is 0"),
        (["--simulate", "--sessions", "0"], "sessions is 0"),
        (["--simulate", "--connect", "unix:/nowhere"], "--connect"),
        (["--seeds", "3"], "--simulate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_simulation_that_cannot_be_is_refused_in_one_line(
    run: Run, arguments: list[str], named: str
) -> None:
    assert named in run(*arguments).refusal
