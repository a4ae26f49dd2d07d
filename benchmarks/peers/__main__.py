"""The same work with llmsession and with its peers, side by side.

Each peer is installed in an environment of its own, the first time. Every figure is printed. With
--out they are also written, DIR/docs/explanation/comparison.md with its plots and
DIR/benchmarks/peers/results.json; rows that were not run stay as they are.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from .catalogue import OURS, PEERS, Peer
from .environments import Environment, environment_of
from .page import ahead, table, write_page
from .results import Found, Results, here, read_results, write_results
from .running import Ran, run_work
from .works import WORKS, Work

__all__ = ["main", "run_all"]

RESULTS = Path("benchmarks/peers/results.json")


def _chosen(given: str, known: Iterable[str], kind: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        told = f"no {kind} {unknown[0]!r}; there are {', '.join(known)}"
        raise argparse.ArgumentTypeError(told)
    return names


def _peers(given: str) -> list[str]:
    return _chosen(given, PEERS, "peer")


def _works(given: str) -> list[str]:
    return _chosen(given, WORKS, "work")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done, whatever the peers did; 1: a work of ours failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--peers", type=_peers, default=list(PEERS), help="separated by commas")
    parser.add_argument("--works", type=_works, default=list(WORKS), help="separated by commas")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of cancels and kills")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write page, plots and results")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--refresh", action="store_true", help="look for newer releases")
    asked = parser.parse_args(arguments)
    results = Results()
    for found in run_all(
        [PEERS[name] for name in asked.peers],
        [WORKS[name] for name in asked.works],
        seed=asked.seed,
        quick=asked.quick,
        refresh=asked.refresh,
    ):
        results = results.joined(found)
        if asked.out:
            _write(found, asked.out)
    if asked.json:
        print(msgspec.json.encode(results).decode())
    else:
        _tell(results)
    ours = [peers[OURS].ran for peers in results.found.values() if OURS in peers]
    return 1 if any(ran.failed for ran in ours) else 0


def _write(found: Results, root: Path) -> None:
    results = read_results(root / RESULTS).joined(found)
    write_results(root / RESULTS, results)
    write_page(results, root)


def run_all(
    peers: Sequence[Peer], works: Sequence[Work], *, seed: int, quick: bool, refresh: bool = False
) -> Iterator[Results]:
    """Work for work, each with every peer one after the other, so that what else the machine does
    is about the same for all of them."""
    places = {peer.name: _environment(peer, refresh) for peer in peers}
    for work in works:
        rows: dict[str, Found] = {}
        for peer in peers:
            place = places[peer.name]
            load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
            started = time.monotonic()
            if place.missing:
                ran = Ran(failed=f"not installed: {place.missing}")
            else:
                sizes = work.quick if quick else None
                ran = run_work(peer, place.python, work, seed=seed, sizes=sizes)
            rows[peer.name] = Found(
                versions=place.versions,
                taken=time.strftime("%Y-%m-%d"),
                load=load,
                ran=ran,
            )
            outcome = ran.failed or ran.unsupported or "done"
            took_s = time.monotonic() - started
            print(f"{work.name}, {peer.name}: {outcome} ({took_s:.0f} s)", file=sys.stderr)
        yield Results(machine=here(), seed=seed, found={work.name: rows})


def _environment(peer: Peer, refresh: bool) -> Environment:
    print(f"{peer.name}: its environment ...", file=sys.stderr)
    place = environment_of(peer, refresh=refresh)
    versions = " ".join(f"{name} {number}" for name, number in place.versions.items())
    print(f"{peer.name}: {place.missing or versions}", file=sys.stderr)
    return place


def _tell(results: Results) -> None:
    print(results.machine)
    for name in results.found:
        work = WORKS[name]
        print(f"\n{work.title}\n{table(work, results)}")
        for told in ahead(work, results):
            print(f"ahead of us: {told}")


if __name__ == "__main__":
    sys.exit(main())
