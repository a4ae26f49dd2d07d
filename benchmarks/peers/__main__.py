"""Run the peers' works side by side: ``python -m benchmarks.peers``."""

from __future__ import annotations

import argparse, json, sys

from .catalogue import PEERS
from .environments import environment_of
from .running import run_work
from .works import WORKS
import msgspec, time


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--peers")
    parser.add_argument("--works")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--refresh", action="store_true")
    a = parser.parse_args(arguments)
    for p in (a.peers or ",".join(PEERS)).split(","):
        peer = PEERS[p]
        env = environment_of(peer, refresh=a.refresh)
        print(p, env.versions, env.missing, flush=True)
        if env.missing:
            continue
        for w in (a.works or ",".join(WORKS)).split(","):
            work = WORKS[w]
            t = time.time()
            ran = run_work(
                peer, env.python, work, seed=a.seed, sizes=work.quick if a.quick else None
            )
            print(
                " ",
                w,
                f"{time.time() - t:.1f}s",
                json.dumps(msgspec.to_builtins(ran))[:1500],
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
