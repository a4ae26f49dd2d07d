"""What ``llmsession stress --simulate`` prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from llmsession.testing.recording.entries import encode_lines
from llmsession.testing.simulation.search import Failure, SimulationPlan, SimulationReport, simulate

from ..common.exit_codes import BROKEN_PROMISE
from ..common.violations import print_breaches

__all__ = ["run_simulation"]


def run_simulation(plan: SimulationPlan, *, as_json: bool, record: Path | None) -> None:
    """Simulate, tell what came of it, and exit with 1 if a promise was broken. The record that is
    written is of the shortest story that failed, else of the last one."""
    report = simulate(plan, told=_tell_progress)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    if record is not None:
        run = report.failures[0].run if report.failures else report.last
        with record.open("wb") as file:
            file.writelines(encode_lines(run.recording.entries))
    if as_json:
        print(msgspec.json.encode(_figures(report)).decode())
    else:
        _print_table(report)
    if report.failures:
        for failure in report.failures:
            _print_failure(failure)
        sys.exit(BROKEN_PROMISE)


def _tell_progress(done: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} stories", end="", file=sys.stderr, flush=True)


def _figures(report: SimulationReport) -> dict[str, Any]:
    return {
        "seed": report.plan.seed,
        "seeds": report.runs,
        "turns": report.turns,
        "breaches": sum(len(failure.breaches) for failure in report.failures),
        "seconds": round(report.seconds, 3),
        "virtual_seconds": round(report.virtual_s, 3),
        "reached": dict(sorted(report.reached.items())),
        "unreached": list(report.unreached),
        "failures": [
            {
                "seed": failure.story.seed,
                "acts": len(failure.story.acts),
                "shortest": len(failure.run.story.acts),
                "story": str(failure.run.story),
                "broken": [str(breach) for breach in failure.breaches],
            }
            for failure in report.failures
        ],
    }


def _print_table(report: SimulationReport) -> None:
    figures = _figures(report)
    for name in ("seeds", "turns", "breaches", "seed"):
        print(f"{name:<18} {figures[name]:>10,}")
    print(f"{'took':<18} {report.seconds:>10,.1f} s for {report.virtual_s:,.0f} virtual seconds")
    print("reached:")
    for name, times in figures["reached"].items():
        print(f"  {name:<48} {times:>8,}")
    if report.unreached:
        print("never reached, so nothing is said of it:")
        for name in report.unreached:
            print(f"  {name}")


def _print_failure(failure: Failure) -> None:
    before, after = len(failure.story.acts), len(failure.run.story.acts)
    print(
        f"seed {failure.story.seed} broke a promise; of its {before} acts {after} are enough"
        f" ({failure.tried} stories tried):",
        file=sys.stderr,
    )
    for line in str(failure.run.story).splitlines():
        print(f"  {line}", file=sys.stderr)
    print_breaches(failure.breaches, of="in that story")
