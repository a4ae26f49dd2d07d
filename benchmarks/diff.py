"""Compare two commits: ``make bench-diff BASE=main``, ``python -m benchmarks.diff BASE NAME...``.

The package of BASE and the one that stands here are measured by the same benchmarks, those that
stand here, in processes of their own. In each round BASE is measured twice and this tree once, each
round in another order. What the two runs of BASE differ by is the noise of the machine. A row has
become slower if the median of its changes is above that noise, and above 3 %.

Exit codes: 0, nothing became slower; 1, something did; 2, bad usage; 3, nothing could be compared.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.__main__ import BENCHMARKS
from benchmarks.machine import Others, commit_of, this_machine
from benchmarks.report import Row

__all__ = ["Change", "change_of", "main"]

ROOT = Path(__file__).resolve().parents[1]
USUAL = ("turns", "steps", "commit", "deltas", "interrupt")
"""Those that need no other program and take under a minute each."""
ROUNDS = 5
LEAST = 0.03
"""A smaller change is not told from what another order of the functions in memory makes."""
SIGMAS = 3.0
NORMAL = 1.4826
"""The median absolute deviation of normal noise, times this, is its standard deviation."""


class Change(msgspec.Struct, frozen=True):
    """What became of one row. All are factors: 1.1 is a tenth slower."""

    name: str
    ratio: float
    """The median over the rounds: this tree divided by BASE."""
    low: float
    high: float
    noise: float
    """A change up to this factor is the machine's. At least 1 + ``LEAST``."""

    @property
    def is_slower(self) -> bool:
        return self.ratio > self.noise

    @property
    def is_faster(self) -> bool:
        return self.ratio < 1 / self.noise

    def told(self) -> str:
        verdict = "SLOWER" if self.is_slower else "faster" if self.is_faster else "the same"
        return (
            f"{self.name}: {self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}), noise"
            f" {self.noise - 1:.1%}: {verdict}"
        )


def change_of(name: str, rounds: Sequence[tuple[float, float, float]]) -> Change:
    """The change of a row. *rounds* are its figures: (BASE, BASE once more, this tree).

    The noise is three standard errors of the median, made of what the runs of BASE differ by and of
    how far the changes scatter.
    """
    same = [math.log(b / a) / math.sqrt(2) for a, b, _ in rounds]
    changes = [math.log(c) - (math.log(a) + math.log(b)) / 2 for a, b, c in rounds]
    middle = statistics.median(changes)
    off = [abs(value) for value in same] + [abs(value - middle) for value in changes]
    error = NORMAL * statistics.median(off) * math.sqrt(math.pi / 2 * 1.5 / len(rounds))
    return Change(
        name=name,
        ratio=math.exp(middle),
        low=math.exp(min(changes)),
        high=math.exp(max(changes)),
        noise=math.exp(max(SIGMAS * error, math.log(1 + LEAST))),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diff",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument("names", nargs="*", metavar="NAME", default=USUAL,
                        help=f"which benchmarks ({', '.join(USUAL)})")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"({ROUNDS})")
    asked = parser.parse_args(arguments)
    if asked.rounds < 3:
        parser.error("--rounds must be at least 3: noise cannot be told from less")
    if unknown := [name for name in asked.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    others = Others()
    try:
        with _tree_of(asked.base) as base:
            told = f"{commit_of(ROOT)} beside {asked.base}"
            print(f"{told}, {asked.rounds} rounds; {this_machine()}", flush=True)
            changes, failed = _changes(base, asked.names, asked.rounds)
    except subprocess.CalledProcessError as error:
        print(f"no commit {asked.base!r} here: {error.stderr.strip()}", file=sys.stderr)
        return 2
    print(f"others used {others.cores:.2f} cores")
    for told in failed:
        print(f"not compared: {told}", file=sys.stderr)
    slower = [change.name for change in changes if change.is_slower]
    if slower:
        print(f"SLOWER: {'; '.join(slower)}", file=sys.stderr)
    return 1 if slower else 0 if changes else 3


def _changes(base: Path, names: Sequence[str], rounds: int) -> tuple[list[Change], list[str]]:
    """Each row's change, printed when it is known, and what could not be compared."""
    changes: list[Change] = []
    failed: list[str] = []
    for name in names:
        found: list[list[dict[str, float]]] = [[], [], []]
        trees = (base, base, ROOT)
        try:
            for round_ in range(rounds):
                for place in range(3):
                    side = (round_ + place) % 3
                    found[side].append(_figures(trees[side], name))
        except _FailedError as error:
            failed.append(f"{name}: {error}")
            continue
        rows = [row for row in found[0][0] if all(row in each for side in found for each in side)]
        for row in rows:
            figures = [[each[row] for each in side] for side in found]
            change = change_of(f"{name}: {row}", list(zip(*figures, strict=True)))
            changes.append(change)
            print(change.told(), flush=True)
    return changes, failed


class _FailedError(Exception):
    """A benchmark ended with an error, which is said."""


def _figures(tree: Path, name: str) -> dict[str, float]:
    """The figures of the rows of benchmark *name* with the package in *tree*, by row."""
    command = [sys.executable, "-c", _ROWS, name]
    ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if ran.returncode:
        said = ran.stderr.strip().splitlines()
        where = "BASE" if tree != ROOT else "this tree"
        raise _FailedError(f"it failed with the package of {where}: {said[-1] if said else '?'}")
    rows = msgspec.json.decode(ran.stdout.splitlines()[-1], type=list[Row])
    return {row.name: row.ours for row in rows if row.ours > 0}


_ROWS = """
import sys
sys.path.insert(0, "")
import msgspec
from benchmarks.__main__ import BENCHMARKS
print(msgspec.json.encode(list(BENCHMARKS[sys.argv[1]]())).decode())
"""
"""The folder of the tree comes first in the path, before the installed package."""


@contextmanager
def _tree_of(base: str) -> Iterator[Path]:
    """The package of commit *base* with the benchmarks that stand here, for as long as the context.

    Raises CalledProcessError if there is no such commit.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        _git("worktree", "add", "--detach", str(tree), base)
        try:
            for part in ("benchmarks", "tests"):  # the benchmarks use parts of the tests
                shutil.rmtree(tree / part)
                shutil.copytree(ROOT / part, tree / part)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    command = ["git", "-C", str(ROOT), *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
