"""Run the benchmarks: all, or those named, such as ``http``, ``turns`` or ``peers``.

``peers`` takes options of its own: ``python -m benchmarks.peers --help``; two commits are compared
by ``python -m benchmarks.diff``.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import (
    commit,
    compaction,
    deltas,
    durability,
    durability_postgres,
    growth,
    http,
    interrupt,
    live,
    memory,
    scale,
    skew,
    steps,
    transport,
    turns,
    written,
)
from benchmarks.cluster import table as cluster
from benchmarks.machine import QUIET, Others, commit_of, this_machine, wait_until_quiet
from benchmarks.peers.__main__ import main as run_peers
from benchmarks.report import Row, exceeded, print_rows, settled
from benchmarks.results import RESULTS, Taken, read_results, this_python, write_results

__all__ = ["BENCHMARKS", "main"]

BENCHMARKS: dict[str, Callable[[], Sequence[Row]]] = {
    "commit": commit.run,
    "compaction": compaction.run,
    "deltas": deltas.run,
    "durability": durability.run,
    "durability_postgres": durability_postgres.run,
    "growth": growth.run,
    "http": http.run,
    "interrupt": interrupt.run,
    "live": live.run,
    "memory": memory.run,
    "scale": scale.run,
    "skew": skew.run,
    "steps": steps.run,
    "transport": transport.run,
    "turns": turns.run,
    "written": written.run,
}
CLUSTER = "cluster"
"""It measures a group of its rows once more, not all of them."""
PEERS = "peers"
"""Last, because it is long: it compares with other libraries, and has no bounds."""
PATIENCE_S = 600.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (all)")
    parser.add_argument(
        "--save", action="store_true", help=f"write what was found to {RESULTS.name}, for the docs"
    )
    parser.add_argument(
        "--patience", type=float, metavar="SECONDS",
        help="wait at most so long before each benchmark until others leave the machine alone"
        f" (with --save {PATIENCE_S:g}, else 0)",
    )  # fmt: skip
    asked = parser.parse_args(arguments)
    known = [*BENCHMARKS, CLUSTER, PEERS]
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    patience_s = asked.patience if asked.patience is not None else PATIENCE_S * asked.save
    print(f"Python {platform.python_version()}, {platform.machine()}")
    broken: list[str] = []
    for name in asked.names or known:
        if name == PEERS:
            broken += ["peers: a work of ours failed"] if run_peers([]) else []
            continue
        taken = _taken(name, patience_s)
        broken += [f"{name}: {told}" for told in exceeded(taken.rows)]
        if asked.save:
            save(name, taken)
    for told in broken:
        print(f"EXCEEDED: {told}", file=sys.stderr)
    return 1 if broken else 0


def _taken(name: str, patience_s: float) -> Taken:
    """The rows of benchmark *name*, printed, and what they were taken on."""
    quiet = _is_quiet(patience_s)
    others = Others()
    rows = cluster.run() if name == CLUSTER else settled(BENCHMARKS[name])
    print_rows(rows)
    return Taken(
        machine=this_machine(),
        commit=commit_of(),
        day=datetime.now(UTC).date().isoformat(),
        quiet=quiet,
        others=others.cores,
        took_s=others.took_s,
        rows=list(rows),
    )


def _is_quiet(patience_s: float) -> bool:
    if not patience_s:
        return False
    quiet, cores = wait_until_quiet(patience_s)
    if not quiet:
        print(f"others use {cores:.2f} cores, more than {QUIET:g}: measured all the same")
    return quiet


def save(name: str, taken: Taken, path: Path = RESULTS) -> None:
    """Put *taken* in place of what *path* had for this benchmark and this Python."""
    results = read_results(path)
    results.setdefault(this_python(), {})[name] = taken
    write_results(results, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
