"""``llmsession lab``: policies side by side, on the same recorded conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.policies import make_policy, policy_names
from llmsession.errors import InvalidInput, SessionError
from llmsession.lab.comparing import Compared, ScheduleName, compare, ready, summed
from llmsession.lab.report import html_report
from llmsession.transcripts import Conversation, read
from llmsession.turns.spending.prices import PriceTable

from ..common.exit_codes import BROKEN_PROMISE, USAGE
from ..common.files import (
    FormatName,
    check_format,
    one_line,
    price_table,
    print_failure,
    print_left_out,
    progress_bar,
    sources,
)
from ..common.options import option
from ..common.terminal import say_json
from .lab_table import print_caveats, print_markdown, print_rows

__all__ = ["lab"]

ALL = "all"
MIN_WINDOW_TOKENS = 1_000


class ScheduleChoice(StrEnum):
    """What ``--schedule`` may be."""

    own = "own"
    cache = "cache"
    both = "both"


_SCHEDULES: dict[ScheduleChoice, tuple[ScheduleName, ...]] = {
    ScheduleChoice.own: ("own",),
    ScheduleChoice.cache: ("cache",),
    ScheduleChoice.both: ("own", "cache"),
}


class _Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What every file is put on."""

    policies: tuple[Policy, ...]
    windows: tuple[int, ...]
    prices: PriceTable | None
    format: str | None
    min_tokens: int
    schedules: tuple[ScheduleName, ...]


class _Results(msgspec.Struct):
    """The comparisons of all files on the command line, and their sums."""

    rows: list[Compared] = []
    sums: list[Compared] = []
    failed: bool = False


def lab(
    # Typer would refuse the whole call for one file that may not be read.
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Recorded conversations.", readable=False),
    ],
    *,
    policies: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Their names; else all there are.")
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(
            min=MIN_WINDOW_TOKENS,
            metavar="TOKENS",
            help="The model's context window; may be given again. 200,000 without any.",
        ),
    ] = None,
    schedule: Annotated[
        ScheduleChoice,
        typer.Option(
            help="When a policy acts: as it declares, always as the provider's cache allows, or"
            " a row for either.",
        ),
    ] = ScheduleChoice.own,
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prices in dollars; else a write is 1.25, a read 0.1."),
    ] = None,
    min_tokens: Annotated[
        int, typer.Option(min=0, metavar="TOKENS", help="Leave smaller conversations out.")
    ] = 0,
    only_sums: Annotated[
        bool, typer.Option("--sums", help="Only a row for each FILE or DIR, and over all.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    as_markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Tables of cost and retained facts."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write a report that needs nothing else.")
    ] = None,
    format: FormatName = None,
) -> None:
    """Replay recorded conversations under several policies. Asks no model, sends nothing.

    For each recorded request: what the policy would have sent, what the provider's cache makes of
    it, and whether what the reply took from earlier tool results was still there. The cost is
    counterfactual: the recorded model did not see the shorter context. Exit code 1: a request was
    invalid; 2: a file could not be read, or more than 1 % of it was left out, which is said on
    stderr (all other files are compared).
    """
    check_format(format)
    with option("--policies"):
        selected = _policies(policies)
    if as_json and as_markdown:
        raise InvalidInput("--json and --markdown exclude each other")
    bench = _Bench(
        policies=selected,
        windows=tuple(dict.fromkeys(window or [200_000])),
        prices=None if prices is None else price_table(prices),
        format=format,
        min_tokens=min_tokens,
        schedules=_SCHEDULES[schedule],
    )
    if html is not None and not html.parent.is_dir():
        raise InvalidInput(f"--html: {html}: there is no folder {html.parent}")
    results = _compare_all(files, bench, alone=as_json and not only_sums)
    if as_json:
        for compared in results.sums if only_sums else _totals(results):
            _print_json(compared)
    else:
        comparisons = results.sums if only_sums else [*results.rows, *_totals(results)]
        rows = [compared.row for compared in comparisons]
        if as_markdown:
            print_markdown(rows)
        else:
            print_rows(rows)
            print_caveats()
    if html is not None:
        html.write_text(html_report(results.rows, _totals(results)), encoding="utf-8")
    _exit(results)


def _policies(named: str | None) -> tuple[Policy, ...]:
    names = policy_names() if named is None else tuple(filter(None, named.split(",")))
    if not names:
        raise InvalidInput(f"no policy is named; there are: {', '.join(policy_names())}")
    return tuple(make_policy(name.strip()) for name in dict.fromkeys(names))


def _compare_all(files: Sequence[Path], bench: _Bench, *, alone: bool) -> _Results:
    """With *alone* each row is printed as soon as it is known."""
    results = _Results(rows=[], sums=[])
    for path in files:
        try:
            parts = sources(path, bench.format)
        except (OSError, SessionError) as error:
            print_failure(path, one_line(error))
            results.failed = True
            continue
        rows: list[Compared] = []
        for where, written in parts:
            try:
                conversations = read(written, bench.format)
                results.failed |= print_left_out(where, conversations).is_too_much
                for compared in _compare_file(where, conversations, bench):
                    rows.append(compared)
                    if alone:
                        _print_json(compared)
            except SessionError as error:
                print_failure(where, one_line(error))
                results.failed = True
        results.rows += rows
        results.sums += summed(str(path), rows)
    if len(files) > 1:
        results.sums += summed(ALL, results.rows)
    return results


def _compare_file(
    where: Path, conversations: Sequence[Conversation], bench: _Bench
) -> Iterator[Compared]:
    subjects = ready(conversations, min_tokens=bench.min_tokens)
    if not subjects:
        return
    messages = sum(len(subject.recording.messages) for subject in subjects)
    total = messages * len(bench.policies) * len(bench.windows) * len(bench.schedules)
    with _progress(where.name, total) as advanced:
        yield from compare(
            str(where),
            subjects,
            bench.policies,
            bench.windows,
            schedules=bench.schedules,
            prices=bench.prices,
            advanced=advanced,
        )


@contextmanager
def _progress(name: str, total: int) -> Iterator[partial[None]]:
    """A bar on a terminal, nothing elsewhere; gone when the file is done."""
    with progress_bar("{task.percentage:.0f} %") as progress:
        yield partial(progress.advance, progress.add_task(name, total=total))


def _totals(results: _Results) -> list[Compared]:
    """The sums that say more than a row there is."""
    rows = {compared.row.file for compared in results.rows}
    return [total for total in results.sums if len(rows) > 1 and total.row.file not in rows]


def _print_json(compared: Compared) -> None:
    say_json(compared.row, flush=True)


def _exit(results: _Results) -> None:
    """A request that is invalid is worse than a file that cannot be read."""
    for compared in results.rows:
        for fault in compared.faults:
            row = compared.row
            under = "" if row.schedule == "own" else f", schedule {row.schedule}"
            print_failure(row.file, f"{row.policy}{under}, window {row.window}: {fault}")
    if any(compared.row.invalid_requests for compared in results.rows):
        raise typer.Exit(BROKEN_PROMISE)
    if results.failed:
        raise typer.Exit(USAGE)
