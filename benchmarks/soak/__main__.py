"""``python -m benchmarks.soak``: a service under mixed load with faults, and whether it held.

What it leaves (the store, logs, ``report.json`` with all samples, records of what broke) is in a
new folder, which is named, and stays where something broke.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .conductor import run_soak
from .report import Report, SoakPlan, figures, told_as_table, write_page

__all__ = ["main"]

PAGE = Path("docs/contributing/soak.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: it held; 1: something grew, or a promise was broken."""
    plan = SoakPlan()
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=plan.minutes)
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--clients", type=int, default=plan.clients, help="processes at once")
    parser.add_argument("--lives", type=int, default=plan.lives, help="visitors in each of them")
    parser.add_argument("--round", type=float, default=plan.round_s, metavar="SECONDS")
    parser.add_argument("--rest", type=float, default=plan.rest_s, metavar="SECONDS")
    parser.add_argument("--store", help="postgresql://...; a SQLite file of its own without it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help=f"write the figures into {PAGE}")
    asked = parser.parse_args(arguments)
    plan = SoakPlan(
        minutes=asked.minutes, seed=asked.seed, clients=asked.clients, lives=asked.lives,
        round_s=asked.round, rest_s=asked.rest, store=asked.store,
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"in {folder}", file=sys.stderr)
    report = asyncio.run(run_soak(plan, folder))
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
    print(msgspec.json.encode(figures(report)).decode() if asked.json else told_as_table(report))
    if asked.write:
        write_page(report, _machine(), PAGE)
    _tell(report)
    if report.holds:
        shutil.rmtree(folder)
    return 0 if report.holds else 1


def _tell(report: Report) -> None:
    for growth in report.growths:
        print(f"grew: {growth.what}: {growth.told}", file=sys.stderr)
    for complaint in report.complaints:
        print(f"broken: {complaint}", file=sys.stderr)
    print("it held" if report.holds else "it did not hold", file=sys.stderr)


def _machine() -> str:
    day, python = time.strftime("%Y-%m-%d"), platform.python_version()
    return f"{day}, {platform.machine()}, {os.cpu_count()} processors, Python {python}"


if __name__ == "__main__":
    sys.exit(main())
