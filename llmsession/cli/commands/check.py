"""``llmsession check``: were the promises kept, by a record alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from llmsession.errors import InvalidInput
from llmsession.testing.checker.checker import MARGIN_S, check
from llmsession.testing.recording.entries import Begun, Recording, decode_lines
from llmsession.testing.recording.violation import INVARIANTS

from ..common.exit_codes import BROKEN_PROMISE
from ..common.violations import print_breaches

__all__ = ["check_record"]


def check_record(
    record: Annotated[Path, typer.Argument(help="What `stress --record` wrote.")],
    *,
    margin: Annotated[
        float | None,
        typer.Option(help="Seconds that an interrupt may take beyond its grace period."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Decide from a record of stress, a simulation or a service whether each promise was kept.

    Nothing is run. Of what was broken the shortest part of the record that shows it is printed.
    Exits 1 if a promise was broken.
    """
    if margin is not None and margin < 0:
        raise InvalidInput(f"--margin is {margin}; it cannot be negative")
    with record.open("rb") as lines:
        recording = decode_lines(lines)
    if not any(isinstance(entry, Begun) for entry in recording.entries):
        raise InvalidInput(f"{record} is no record of a run: it has no entry that says which")
    breaches = check(recording, margin_s=_margin(recording) if margin is None else margin)
    figures = _figures(recording, [breach.invariant for breach in breaches])
    if as_json:
        figures["broken"] = [str(breach) for breach in breaches]
        print(msgspec.json.encode(figures).decode())
    else:
        _print(figures)
    if breaches:
        print_breaches(breaches, of=f"in {record}")
        sys.exit(BROKEN_PROMISE)


def _margin(recording: Recording) -> float:
    told = recording.begun.margin_s
    return MARGIN_S if told is None else told


def _figures(recording: Recording, broken: list[int]) -> dict[str, Any]:
    return {
        "sessions": len(recording.sessions),
        "entries": len(recording.entries),
        "records": sum(len(session.log) for session in recording.sessions.values()),
        "seed": recording.begun.seed,
        "whole": recording.left is not None,
        "missing": recording.missing,
        "breaches": len(broken),
        "invariants": {str(number): broken.count(number) for number in INVARIANTS},
    }


def _print(figures: dict[str, Any]) -> None:
    for name in ("sessions", "entries", "records", "seed", "breaches"):
        print(f"{name:<10} {figures[name]:>10,}")
    if not figures["whole"]:
        print("the record ends before its run did: who waited then was not answered in it")
    if figures["missing"]:
        print(f"{figures['missing']:,} entries of its run are not in it: nothing is said of those")
    for number, told in INVARIANTS.items():
        times = figures["invariants"][str(number)]
        print(f"  {number:>2}  {told:<90} {'kept' if not times else f'broken {times} times'}")
