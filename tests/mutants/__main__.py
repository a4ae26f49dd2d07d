"""Break the rules of the code one by one, and see which test catches each: ``make mutants``."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec

from .catalogue import CATALOGUE, MUTANTS
from .mutant import Mutant, Unfit
from .running import ROOT, Baseline, Verdict, Workshop

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every mutant is caught. 1: one is not. 2: one cannot be tried, or a named test does not
    pass on the code as it is."""
    options = _parser().parse_args(arguments)
    try:
        if options.list:
            _print_list()
            return 0
        chosen = _chosen(options.only)
        for mutant in chosen:
            mutant.broken(ROOT)
        baseline, verdicts = _tried(chosen, options.jobs, quiet=options.json)
    except (OSError, Unfit, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        report = {"baseline": baseline, "mutants": verdicts}
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print_end(baseline, verdicts)
    if baseline.failing or any(verdict.outcome == "broken" for verdict in verdicts):
        return 2
    return 0 if all(verdict.outcome == "caught" for verdict in verdicts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a part of a name; again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at once")
    parser.add_argument("--json", action="store_true", help="print figures alone")
    parser.add_argument("--list", action="store_true", help="only list them")
    return parser


def _chosen(names: Sequence[str] | None) -> tuple[Mutant, ...]:
    if not names:
        return MUTANTS
    for name in names:
        if not any(name in mutant.name for mutant in MUTANTS):
            raise ValueError(f"no mutant is called {name!r}")
    return tuple(mutant for mutant in MUTANTS if any(name in mutant.name for name in names))


def _tried(
    mutants: Sequence[Mutant], jobs: int, *, quiet: bool
) -> tuple[Baseline, tuple[Verdict, ...]]:
    verdicts: list[Verdict] = []
    with Workshop(jobs) as workshop:
        baseline = workshop.baseline([mutant.node for mutant in mutants])
        for verdict in workshop.verdicts(mutants):
            verdicts.append(verdict)
            if not quiet:
                _print(verdict)
    return baseline, tuple(verdicts)


def _print_list() -> None:
    for title, mutants in CATALOGUE.items():
        print(f"\n{title}")
        for mutant in mutants:
            print(f"  {mutant.name} ({mutant.breaks})\n      {mutant.node}")


def _print(verdict: Verdict) -> None:
    print(f"{verdict.outcome:9} {verdict.seconds:5.1f} s  {verdict.mutant}", flush=True)
    if verdict.outcome != "caught":
        print(f"{'':18} {verdict.test}\n{'':18} {verdict.how}", flush=True)


def _print_end(baseline: Baseline, verdicts: Sequence[Verdict]) -> None:
    for node, how in baseline.failing.items():
        print(f"does not pass without any mutant: {node}\n    {how}")
    counts = Counter(verdict.outcome for verdict in verdicts)
    seconds = baseline.seconds + sum(verdict.seconds for verdict in verdicts)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"{len(verdicts)} mutants: {outcomes}; the tests alone took {baseline.seconds:.0f} s,")
    print(f"all of it {seconds:.0f} s of one core")


if __name__ == "__main__":
    sys.exit(main())
