"""What the rounds of the works found: values, and their file."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.machine import this_machine
from benchmarks.results import rounded

from .running import Ran

__all__ = ["Found", "Results", "Round", "here", "read_results", "write_results"]


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one work of one peer, and what it was taken on."""

    day: str = ""
    commit: str = ""
    """The one of llmsession."""
    quiet: bool = False
    """Did others leave the machine alone before the run?"""
    others: float | None = None
    """How many cores they used meanwhile; None where that was not looked at."""
    took_s: float = 0.0
    ran: Ran = Ran()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of one work of one peer, in their order. ``versions`` are of the packages that its
    environment is made of, the same in all of them."""

    versions: dict[str, str] = {}
    rounds: tuple[Round, ...] = ()

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The figures of those rounds that have some."""
        rans = (each.ran for each in self.rounds)
        return [ran.measured for ran in rans if not (ran.failed or ran.unsupported)]

    @property
    def unsupported(self) -> str | None:
        """Why the peer does not do the work, where it says so."""
        return next((each.ran.unsupported for each in self.rounds if each.ran.unsupported), None)

    @property
    def failures(self) -> list[str]:
        """Why there are no figures of a round, for each such round."""
        return [each.ran.failed for each in self.rounds if each.ran.failed]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found, by work and peer, and where."""

    machine: str = ""
    seed: int = 0
    """Of the first round; each further round has the next one."""
    found: dict[str, dict[str, Found]] = {}

    def rounds_of(self, work: str, peer: str) -> tuple[Round, ...]:
        """What there is of it."""
        return self.found.get(work, {}).get(peer, Found()).rounds

    def without(self, work: str, peer: str) -> Results:
        """These without the rounds of one peer with one work."""
        left = {name: found for name, found in self.found.get(work, {}).items() if name != peer}
        return msgspec.structs.replace(self, found={**self.found, work: left})

    def having(self, work: str, peer: str, versions: Mapping[str, str], new: Round) -> Results:
        """These with one round more. Rounds of other versions are dropped."""
        before = self.found.get(work, {}).get(peer, Found())
        rounds = before.rounds if before.versions == dict(versions) else ()
        found = Found(versions=dict(versions), rounds=(*rounds, new))
        works = {**self.found, work: {**self.found.get(work, {}), peer: found}}
        return msgspec.structs.replace(self, found=works)


def here() -> str:
    """This machine, as far as figures depend on it."""
    return f"{this_machine()}, Python {platform.python_version()}"


def read_results(path: Path) -> Results:
    """The results in *path*; none, where there is no such file."""
    if not path.exists():
        return Results()
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write_results(path: Path, results: Results) -> None:
    """As JSON that a reader can compare: figures in four digits, a line for each round."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = rounded(msgspec.to_builtins(results))
    lines: list[bytes] = []
    for peers in plain["found"].values():
        for found in peers.values():
            for at, each in enumerate(found["rounds"]):
                # In its place stands the number of its line, until the rest has its lines.
                found["rounds"][at] = f"round {len(lines)}"
                lines.append(msgspec.json.encode(each))
    text = msgspec.json.format(msgspec.json.encode(plain), indent=1)
    path.write_bytes(_PLACE.sub(lambda place: lines[int(place[1])], text) + b"\n")


_PLACE = re.compile(rb'"round (\d+)"')
