"""Run the benchmarks: all, or those named, such as ``http`` or ``turns``."""

from __future__ import annotations

import platform
import sys

from benchmarks import (
    commit,
    compaction,
    deltas,
    durability,
    durability_postgres,
    http,
    interrupt,
    memory,
    steps,
    transport,
    turns,
)
from benchmarks.report import print_rows

__all__ = ["main"]

BENCHMARKS = {
    "commit": commit.run,
    "compaction": compaction.run,
    "deltas": deltas.run,
    "durability": durability.run,
    "durability_postgres": durability_postgres.run,
    "http": http.run,
    "interrupt": interrupt.run,
    "memory": memory.run,
    "steps": steps.run,
    "transport": transport.run,
    "turns": turns.run,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    print(f"Python {platform.python_version()}, {platform.machine()}")
    held = [print_rows(BENCHMARKS[name]()) for name in names or BENCHMARKS]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
