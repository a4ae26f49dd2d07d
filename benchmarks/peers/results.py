"""What a run of the works found: values, and their file."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from .running import Ran

__all__ = ["Found", "Results", "figure", "here", "read_results", "write_results"]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One peer's outcome of one work. ``versions`` are of the packages that its environment is
    made of; ``load`` is what the machine was busy with, in running tasks, before it."""

    versions: dict[str, str] = {}
    taken: str = ""
    load: float = 0.0
    ran: Ran = Ran()


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found, by work and peer, and where."""

    machine: str = ""
    seed: int = 0
    found: dict[str, dict[str, Found]] = {}

    def joined(self, other: Results) -> Results:
        """These with what *other* has in place of the same."""
        found = {work: dict(peers) for work, peers in self.found.items()}
        for work, peers in other.found.items():
            found[work] = {**found.get(work, {}), **peers}
        return msgspec.structs.replace(other, found=found)


def here() -> str:
    """This machine, as far as figures depend on it."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        told = f", {memory:.0f} GB"
    except (OSError, ValueError):
        told = ""
    cores = os.cpu_count()
    return (
        f"{cores} cores{told}, {platform.machine()}, {platform.system()},"
        f" Python {platform.python_version()}"
    )


def figure(measured: Mapping[str, Any], name: str) -> float | None:
    """A measure as one number: of a list the median, of a truth value 1 or 0; None where it is
    none."""
    value = measured.get(name)
    if isinstance(value, list):
        return statistics.median(value) if value else None
    return float(value) if isinstance(value, int | float) else None


def read_results(path: Path) -> Results:
    """The results in *path*; none, where there is no such file."""
    if not path.exists():
        return Results()
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write_results(path: Path, results: Results) -> None:
    """As JSON that a reader can compare: figures in four digits, a line for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = _rounded(msgspec.to_builtins(results))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return value
