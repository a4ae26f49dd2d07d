"""``llmsession check``: check a saved recording for violated invariants."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from llmsession.errors import InvalidInput
from llmsession.testing.checker.checker import MARGIN_S, check
from llmsession.testing.recording.entries import Begun, Recording, decode_lines
from llmsession.testing.recording.violation import INVARIANTS, Violation

from ..common.exit_codes import BROKEN_PROMISE
from ..common.terminal import say, say_json
from ..common.violations import print_violations

__all__ = ["check_record"]


def check_record(
    record: Annotated[Path, typer.Argument(help="A file that `stress --record` wrote.")],
    *,
    margin: Annotated[
        float | None,
        typer.Option(help="Seconds that an interrupt may take beyond its grace period."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a recording of a stress run or a simulation for violated invariants.

    No session is run. For the violation with the shortest proof, the entries that prove it are
    printed. Exits 1 if an invariant is violated.
    """
    if margin is not None and margin < 0:
        raise InvalidInput(f"--margin is {margin}; it cannot be negative")
    with record.open("rb") as lines:
        recording = decode_lines(lines)
    if not any(isinstance(entry, Begun) for entry in recording.entries):
        raise InvalidInput(f"{record} is not a recording of a run: it has no `begun` entry")
    violations = check(recording, margin_s=_margin_s(recording) if margin is None else margin)
    figures = _figures(recording, violations)
    if as_json:
        say_json(figures)
    else:
        _print_table(figures)
    if violations:
        print_violations(violations, of=f"in {record}")
        sys.exit(BROKEN_PROMISE)


def _margin_s(recording: Recording) -> float:
    margin_s = recording.begun.margin_s
    return MARGIN_S if margin_s is None else margin_s


def _figures(recording: Recording, violations: Sequence[Violation]) -> dict[str, Any]:
    counts = Counter(violation.invariant for violation in violations)
    return {
        "sessions": len(recording.sessions),
        "entries": len(recording.entries),
        "records": sum(len(session.log) for session in recording.sessions.values()),
        "seed": recording.begun.seed,
        "whole": recording.left is not None,
        "missing": recording.missing,
        "violations": [str(violation) for violation in violations],
        "invariants": {str(number): counts[number] for number in INVARIANTS},
    }


def _print_table(figures: dict[str, Any]) -> None:
    for name in ("sessions", "entries", "records", "seed"):
        say(f"{name:<10} {figures[name]:>10,}")
    say(f"{'violations':<10} {len(figures['violations']):>10,}")
    if not figures["whole"]:
        say("the recording ends before its run did: commands that were open then have no answer")
    if figures["missing"]:
        say(f"{figures['missing']:,} entries of the run are missing and were not checked")
    for number, invariant in INVARIANTS.items():
        times = figures["invariants"][str(number)]
        say(f"  {number:>2}  {invariant:<90} {f'violated {times} times' if times else 'holds'}")
