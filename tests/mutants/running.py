"""Runs mutants: each in a copy of the tree, by the test that has to notice it."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import msgspec

from .mutant import Mutant
from .warm import Order
from .witness import TESTIMONY, Testimony

__all__ = ["ROOT", "Baseline", "Outcome", "Verdict", "Workshop"]

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "build", "dist", "benchmarks", "deploy", "*.db", "*.db-*"
)
TEST_S = 170.0
"""How long a test may take that meets a mutant. Without one each takes a few seconds. With one, a
test with a real clock may wait for its whole patience, 150 s, for what does not come.
"""
PROCESS_S = 200.0
"""How long its process may take, which also starts Python, and a server for some."""
# It is the mutant that is at fault here, not the rule that is noticed.
_NO_CATCH = re.compile(r"(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError)")

Outcome: TypeAlias = Literal["caught", "survived", "timed out", "broken"]


class Verdict(msgspec.Struct, frozen=True):
    """What became of a mutant. ``how`` is what the test said. It is ``broken`` where it cannot be
    told whether the test would notice: no test ran, or it met code that is no code."""

    mutant: str
    outcome: Outcome
    test: str
    how: str
    seconds: float


class Baseline(msgspec.Struct, frozen=True):
    """The named tests without any mutant: those that do not pass, by name, and what they said."""

    failing: dict[str, str]
    seconds: float


class Workshop:
    """Copies of the tree, one for each of *jobs*. The tree itself is never changed.

    Use it in a ``with``: the copies go at its end.
    """

    def __init__(self, jobs: int = 1, root: Path = ROOT) -> None:
        self._root = root
        self._jobs = max(1, jobs)
        self._folder = TemporaryDirectory(prefix="llmsession-mutants-")
        self._benches: list[_Bench] = []
        self._free: Queue[_Bench] = Queue()

    def __enter__(self) -> Workshop:
        for number in range(self._jobs):
            tree = Path(self._folder.name).resolve() / str(number)
            shutil.copytree(self._root, tree, ignore=_LEFT_OUT)
            self._benches.append(_Bench(tree))
            self._free.put(self._benches[-1])
        return self

    def __exit__(self, *_: object) -> None:
        for bench in self._benches:
            bench.close()
        self._folder.cleanup()

    def baseline(self, nodes: Sequence[str]) -> Baseline:
        """Run each of *nodes* once on the code as it is."""
        wanted = list(dict.fromkeys(nodes))
        began = time.monotonic()
        shares = [share for at in range(self._jobs) if (share := wanted[at :: self._jobs])]
        failing: dict[str, str] = {}
        with ThreadPoolExecutor(self._jobs) as pool:
            for share, seen in zip(shares, pool.map(self._try_all, shares), strict=True):
                failing.update(_not_passing(share, seen))
        return Baseline(failing, time.monotonic() - began)

    def _try_all(self, nodes: Sequence[str]) -> list[Testimony]:
        with self._bench() as bench:
            return list(_tried(bench, nodes))

    def verdicts(self, mutants: Sequence[Mutant]) -> Iterator[Verdict]:
        """What becomes of each of *mutants*, in their order. Raises Unfit."""
        with ThreadPoolExecutor(self._jobs) as pool:
            yield from pool.map(self._judged, mutants)

    def _judged(self, mutant: Mutant) -> Verdict:
        with self._bench() as bench:
            began = time.monotonic()
            with _put_in(mutant, bench.tree):
                seen = bench.tested([mutant.node], process_s=PROCESS_S)
        outcome, how = _judge(seen)
        return Verdict(mutant.name, outcome, mutant.node, how, time.monotonic() - began)

    @contextmanager
    def _bench(self) -> Iterator[_Bench]:
        bench = self._free.get()
        try:
            yield bench
        finally:
            self._free.put(bench)


class _Bench:
    """A copy in *tree*, and the process that runs its tests."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        environment.pop("PYTEST_ADDOPTS", None)
        environment.pop("PYTHONPYCACHEPREFIX", None)  # what is compiled of a copy goes with it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.warm"],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what has been read ahead is not seen by select
        )

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def tested(self, nodes: Sequence[str], *, process_s: float | None) -> Testimony | None:
        """What pytest saw of *nodes*; None if it was not over in *process_s*. Without that limit
        the code is as it is, and what is compiled of it is kept."""
        testimony, output = self.tree / "testimony.json", self.tree / "output.txt"
        testimony.unlink(missing_ok=True)
        # By a thread: what a signal raises in a callback, asyncio's loop reports, and goes on.
        limit = ["--timeout", f"{TEST_S:g}", "--timeout-method", "thread"]
        limit = [] if process_s is None else limit
        order = Order(
            ["-p", "tests.mutants.witness", "-p", "no:cacheprovider", *limit, *nodes],
            str(output),
            {TESTIMONY: str(testimony)},
            bytecode=process_s is None,
        )
        if not self._carried_out(order, process_s):
            return None
        if not testimony.exists():
            said = output.read_text("utf-8", "replace")
            if "+ Timeout +" in said:
                return None
            said = said[-2000:]
            return Testimony(str(self.tree / "llmsession"), uncollected=[said])
        seen = msgspec.json.decode(testimony.read_bytes(), type=Testimony)
        if Path(seen.package) != self.tree / "llmsession":
            raise RuntimeError(f"{seen.package} was tested, not the copy in {self.tree}")
        return seen

    def _carried_out(self, order: Order, process_s: float | None) -> bool:
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        orders.write(msgspec.json.encode(order) + b"\n")
        orders.flush()
        child = int(answers.readline())
        is_over = bool(select.select([answers], [], [], process_s)[0])
        if not is_over:
            with suppress(ProcessLookupError):  # it ended at this moment
                os.killpg(child, signal.SIGKILL)
        answers.readline()
        return is_over


@contextmanager
def _put_in(mutant: Mutant, tree: Path) -> Iterator[None]:
    changed = mutant.broken(tree)
    before = {path: path.read_text("utf-8") for path in changed}
    try:
        _write(changed)
        yield
    finally:
        _write(before)


def _write(texts: dict[Path, str]) -> None:
    for path, text in texts.items():
        path.write_text(text, "utf-8")
        # A file of the same size, written in the same second, would be taken for the old one.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


def _tried(bench: _Bench, nodes: Sequence[str]) -> Iterator[Testimony]:
    """What pytest saw of *nodes*; in halves where one is not there, for then it runs none."""
    seen = bench.tested(nodes, process_s=None)
    if seen is None or len(nodes) == 1 or seen.passed or seen.failed or seen.skipped:
        yield seen or Testimony("")
        return
    half = len(nodes) // 2
    yield from _tried(bench, nodes[:half])
    yield from _tried(bench, nodes[half:])


def _not_passing(nodes: Sequence[str], seen: Sequence[Testimony]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if not any(each.ran(node) for each in seen):
            told = [how for each in seen for how in each.told_of(node)]
            broken = [how for each in seen for how in each.uncollected]
            yield node, next(iter([*told, *broken]), "there is no such test")


def _judge(seen: Testimony | None) -> tuple[Outcome, str]:
    if seen is None:
        return "timed out", f"not over in {TEST_S:g} s"
    if seen.uncollected:
        return "broken", seen.uncollected[0]
    if not seen.failed:
        return ("survived", "") if seen.passed else ("broken", "no test ran")
    for how in seen.failed.values():
        if _NO_CATCH.match(how):
            return "broken", how
    return "caught", next(iter(seen.failed.values()))
