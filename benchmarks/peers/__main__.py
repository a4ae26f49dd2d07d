"""The same work with llmsession and with its peers, side by side.

Each peer is installed in an environment of its own, the first time. Every figure is printed. With
--out they are also written after each run, DIR/docs/explanation/comparison.md with its plots and
DIR/benchmarks/peers/results.json. There, new rounds replace those that the same peer had of the
same work; with --resume they are added to them, so that a long measurement may be done in slices.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.machine import Others, commit_of, wait_until_quiet

from .catalogue import OURS, PEERS, Peer
from .environments import Environment, environment_of
from .page import ahead, table, write_page
from .results import Results, Round, here, read_results, write_results
from .rounds import Run, planned
from .running import Ran, run_work
from .works import WORKS

__all__ = ["main"]

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


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--peers", type=_peers, default=list(PEERS), help="separated by commas")
    parser.add_argument("--works", type=_works, default=list(WORKS), help="separated by commas")
    parser.add_argument(
        "--rounds", type=int, default=1, metavar="N",
        help="each work N times with each peer, every round beginning with another peer (1)",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true",
        help="go on with the rounds that --out has already, until there are N",
    )  # fmt: skip
    parser.add_argument(
        "--slice", type=float, metavar="SECONDS", help="begin no run after so many seconds"
    )
    parser.add_argument(
        "--patience", type=float, default=0.0, metavar="SECONDS",
        help="wait at most so long before each work until others leave the machine alone (0)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the moments of cancels and kills")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write page, plots and results")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--refresh", action="store_true", help="look for newer releases")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done, whatever the peers did; 1: a work of ours failed."""
    parser = _arguments()
    asked = parser.parse_args(arguments)
    if asked.rounds < 1:
        parser.error("--rounds is at least 1")
    if asked.resume and not asked.out:
        parser.error("--resume needs --out, which has the rounds to go on with")
    file = asked.out / RESULTS if asked.out else None
    kept = read_results(file) if file else Results()
    if asked.resume and kept.found and kept.seed != asked.seed:
        parser.error(f"the rounds in {file} began with --seed {kept.seed}")
    measured = _Measured(asked, kept)
    for _ in measured.go_on():
        if file:
            write_results(file, measured.results)
            write_page(read_results(file), asked.out)  # it has rounded figures
    results = measured.results if asked.resume else measured.new
    if asked.json:
        print(msgspec.json.encode(results).decode())
    else:
        _tell(results)
    ours = [peers[OURS] for peers in measured.new.found.values() if OURS in peers]
    return 1 if any(found.failures for found in ours) else 0


class _Measured:
    """The results while they grow. ``new`` are those of this command alone."""

    def __init__(self, asked: argparse.Namespace, kept: Results) -> None:
        self._asked = asked
        self.results = msgspec.structs.replace(kept, machine=here(), seed=asked.seed)
        self.new = Results(machine=here(), seed=asked.seed)
        self._commit = commit_of()
        self._places = {
            name: _environment(PEERS[name], refresh=asked.refresh) for name in asked.peers
        }

    def go_on(self) -> Iterator[None]:
        """Run what is missing, one run after the other."""
        asked, started = self._asked, time.monotonic()
        runs = list(planned(asked.rounds, asked.works, list(PEERS), asked.peers, self._done))
        work = ""
        quiet = False
        for at, run in enumerate(runs):
            if asked.slice is not None and time.monotonic() - started >= asked.slice:
                print(f"{len(runs) - at} runs are left for --resume", file=sys.stderr)
                return
            if self._is_not_offered(run):
                continue
            if run.work != work:
                work = run.work
                quiet = asked.patience > 0 and wait_until_quiet(asked.patience)[0]
            new = self._run(run, quiet=quiet)
            versions = self._places[run.peer].versions
            if not self.new.rounds_of(run.work, run.peer) and not asked.resume:
                self.results = self.results.without(run.work, run.peer)
            self.results = self.results.having(run.work, run.peer, versions, new)
            self.new = self.new.having(run.work, run.peer, versions, new)
            yield

    def _done(self, work: str, peer: str) -> int:
        """How many rounds are there to go on with. What a peer does not do is not asked again."""
        found = self.results.found.get(work, {}).get(peer)
        if not self._asked.resume or not found or found.versions != self._places[peer].versions:
            return 0
        return self._asked.rounds if found.unsupported else len(found.rounds)

    def _is_not_offered(self, run: Run) -> bool:
        """Did the peer say so, a round ago?"""
        return any(each.ran.unsupported for each in self.new.rounds_of(run.work, run.peer))

    def _run(self, run: Run, *, quiet: bool) -> Round:
        place, work = self._places[run.peer], WORKS[run.work]
        others = Others()
        if place.missing:
            ran = Ran(failed=f"not installed: {place.missing}")
        else:
            sizes = work.quick if self._asked.quick else None
            seed = self._asked.seed + run.round
            ran = run_work(PEERS[run.peer], place.python, work, seed=seed, sizes=sizes)
        new = Round(
            day=datetime.now(UTC).date().isoformat(),
            commit=self._commit,
            quiet=quiet,
            others=others.cores,
            took_s=others.took_s,
            ran=ran,
        )
        outcome = ran.failed or ran.unsupported or "done"
        meanwhile = f"{new.took_s:.0f} s, others {new.others:.2f} cores"
        print(f"{run.work}, {run.peer}, {run.round + 1}: {outcome} ({meanwhile})", file=sys.stderr)
        return new


def _environment(peer: Peer, *, refresh: bool) -> Environment:
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
