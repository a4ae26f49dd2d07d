"""``llmsession stress``: many sessions at once, checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
import typer

from llmsession.testing.breach import Breach
from llmsession.testing.record import encode_lines
from llmsession.testing.stress import StressPlan, StressReport, run_stress

from .exit_codes import BROKEN_PROMISE

__all__ = ["stress"]


def stress(
    *,
    sessions: Annotated[int, typer.Option(help="Sessions at once.")] = 20,
    turns: Annotated[int, typer.Option(help="Sends to each session, beside bursts.")] = 50,
    interrupts: Annotated[
        int, typer.Option(help="Interrupts of each session, beside bursts.")
    ] = 10,
    seconds: Annotated[float, typer.Option(help="Start nothing new after this long.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of all that is chosen; not of the timing.")] = 0,
    record: Annotated[Path | None, typer.Option(help="Write the record there, as JSON lines.")] = (
        None
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Send, answer, steer, interrupt, compact and vanish, all at once, and check what happened.

    The replies are made up; no model answers. Exits 1 if a promise was broken.
    """
    plan = StressPlan(
        sessions=sessions, turns=turns, interrupts=interrupts, seconds=seconds, seed=seed
    )
    if record is not None:
        record.open("wb").close()  # a place that cannot be written to is said before the work
    report = anyio.run(run_stress, plan)
    if record is not None:
        with record.open("wb") as file:
            file.writelines(encode_lines(report.recording.entries))
    if as_json:
        print(msgspec.json.encode(_figures(report)).decode())
    else:
        _print_table(report)
    if report.breaches:
        _print_breaches(report)
        sys.exit(BROKEN_PROMISE)


def _figures(report: StressReport) -> dict[str, Any]:
    return {
        "sessions": report.plan.sessions,
        "turns": report.turns,
        "interrupts": report.counts.get("interrupts", 0),
        "breaches": len(report.breaches),
        "interrupt_p50_ms": report.interrupt_p50_ms,
        "interrupt_p99_ms": report.interrupt_p99_ms,
        "turns_per_second": round(report.turns_per_second, 1),
        "seconds": round(report.seconds, 3),
        "seed": report.plan.seed,
        "broken": [str(breach) for breach in report.breaches],
        "counts": report.counts,
    }


def _print_table(report: StressReport) -> None:
    figures = _figures(report)
    for name in ("sessions", "turns", "interrupts", "breaches", "seed"):
        print(f"{name:<18} {figures[name]:>10,}")
    print(f"{'turns a second':<18} {report.turns_per_second:>10,.1f}")
    print(f"{'interrupt p50':<18} {report.interrupt_p50_ms:>10,.1f} ms")
    print(f"{'interrupt p99':<18} {report.interrupt_p99_ms:>10,.1f} ms")
    print("reached:")
    for name, times in report.counts.items():
        print(f"  {name:<40} {times:>8,}")


def _print_breaches(report: StressReport) -> None:
    """Each breach, and the entries that show the shortest one, on stderr: JSON stays whole."""
    seed = report.plan.seed
    print(f"{len(report.breaches)} breaches with seed {seed}:", file=sys.stderr)
    for breach in report.breaches[:20]:
        print(f"  {breach}", file=sys.stderr)
    shortest = min(report.breaches, key=_size)
    print(f"the shortest record that shows one ({shortest}):", file=sys.stderr)
    for line in encode_lines(shortest.shown):
        print(f"  {line.decode().rstrip()}", file=sys.stderr)


def _size(breach: Breach) -> int:
    return sum(map(len, encode_lines(breach.shown)))
