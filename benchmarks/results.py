"""The results file: what the benchmarks found, on which machine, at which commit, under what load.

The tables of ``docs/explanation/benchmarks.md`` are made of it (``python -m docs.generate``). A run
with ``--save`` replaces the results of the benchmarks that it ran, of its own Python. Others stay.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from benchmarks.report import Row

__all__ = ["RESULTS", "Results", "Taken", "read_results", "rounded", "this_python", "write_results"]

RESULTS = Path(__file__).with_name("results.json")


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one benchmark, and what they were taken on."""

    machine: str
    commit: str
    day: str
    quiet: bool
    """Did others leave the machine alone before the run? What they used meanwhile says ``others``,
    in cores; servers and clients that the benchmark starts are in it while they run."""
    others: float
    took_s: float
    rows: list[Row]


Results: TypeAlias = dict[str, dict[str, Taken]]
"""By Python (``3.11``), then by benchmark."""


def this_python() -> str:
    """The name of this Python in the results: ``3.14``, and ``3.14t`` without the global lock."""
    free = "t" if "free-threading" in platform.python_build()[0] else ""
    return ".".join(platform.python_version_tuple()[:2]) + free


def read_results(path: Path = RESULTS) -> Results:
    """The results in *path*; none, where there is no such file."""
    if not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write_results(results: Results, path: Path = RESULTS) -> None:
    """As JSON that a reader can compare: figures in four digits, by name."""
    ordered = {python: dict(sorted(of.items())) for python, of in sorted(results.items())}
    plain = rounded(msgspec.to_builtins(ordered))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n")


def rounded(value: Any) -> Any:
    """*value*, which is made of what JSON has, with its figures in four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
