"""Run the benchmarks: all, or those named, such as ``http``, ``turns`` or ``peers``.

``peers`` takes options of its own: ``python -m benchmarks.peers --help``.
"""

from __future__ import annotations

import platform
import sys

from benchmarks import (
    commit,
    compaction,
    deltas,
    durability,
    durability_postgres,
    growth,
    http,
    interrupt,
    memory,
    scale,
    skew,
    steps,
    transport,
    turns,
    written,
)
from benchmarks.cluster import table as cluster
from benchmarks.peers.__main__ import main as run_peers
from benchmarks.report import exceeded, print_rows, settled

__all__ = ["main"]

BENCHMARKS = {
    "commit": commit.run,
    "compaction": compaction.run,
    "deltas": deltas.run,
    "durability": durability.run,
    "durability_postgres": durability_postgres.run,
    "growth": growth.run,
    "http": http.run,
    "interrupt": interrupt.run,
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


def main(names: list[str]) -> int:
    known = [*BENCHMARKS, CLUSTER, PEERS]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    print(f"Python {platform.python_version()}, {platform.machine()}")
    broken = [told for name in names or known for told in _broken(name)]
    for told in broken:
        print(f"EXCEEDED: {told}", file=sys.stderr)
    return 1 if broken else 0


def _broken(name: str) -> list[str]:
    """What did not hold, in words."""
    if name == PEERS:
        return ["peers: a work of ours failed"] if run_peers([]) else []
    rows = cluster.run() if name == CLUSTER else settled(BENCHMARKS[name])
    print_rows(rows)
    return [f"{name}: {told}" for told in exceeded(rows)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
