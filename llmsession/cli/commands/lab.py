"""``llmsession lab``: compare compaction policies on the same recorded conversations."""

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
    """The values of ``--schedule``."""

    own = "own"
    cache = "cache"
    both = "both"


_SCHEDULES: dict[ScheduleChoice, tuple[ScheduleName, ...]] = {
    ScheduleChoice.own: ("own",),
    ScheduleChoice.cache: ("cache",),
    ScheduleChoice.both: ("own", "cache"),
}


class _Bench(msgspec.Struct, frozen=True, kw_only=True):
    """The options that all files are compared with."""

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
    # Typer would reject the whole command for one file that may not be read; the others are
    # compared.
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Recorded conversations.", readable=False),
    ],
    *,
    policies: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Names of policies. Default: all of them."),
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(
            min=MIN_WINDOW_TOKENS,
            metavar="TOKENS",
            help="Context window of the model; repeatable. Default: 200,000.",
        ),
    ] = None,
    schedule: Annotated[
        ScheduleChoice,
        typer.Option(
            help="When a policy acts: own (as it declares), cache (as the provider's cache"
            " allows) or both (a row for each).",
        ),
    ] = ScheduleChoice.own,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Prices in dollars. Default: relative (write 1.25, read 0.1)."
        ),
    ] = None,
    min_tokens: Annotated[
        int, typer.Option(min=0, metavar="TOKENS", help="Skip smaller conversations.")
    ] = 0,
    only_sums: Annotated[
        bool, typer.Option("--sums", help="Print only the sums per FILE or DIR, and over all.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
    as_markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print Markdown tables of cost and retained facts."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write a self-contained HTML report.")
    ] = None,
    format: FormatName = None,
) -> None:
    """Compare compaction policies on recorded conversations. No model is called.

    For each recorded request it computes the request that the policy would have sent, the cost with
    the provider's cache, and whether the facts that the reply took from earlier tool results were
    still in the request. The cost is counterfactual: the recorded model did not see the shorter
    context.

    Exits with 1 if a request was invalid. Exits with 2 if a file could not be read, or if more than
    1 % of it was left out; stderr names the file, and all other files are compared.
    """
    check_format(format)
    with option("--policies"):
        selected = _policies(policies)
    if as_json and as_markdown:
        raise InvalidInput("--json and --markdown cannot be combined; use one of them")
    bench = _Bench(
        policies=selected,
        windows=tuple(dict.fromkeys(window or [200_000])),
        prices=None if prices is None else price_table(prices),
        format=format,
        min_tokens=min_tokens,
        schedules=_SCHEDULES[schedule],
    )
    if html is not None and not html.parent.is_dir():
        raise InvalidInput(f"--html: cannot write {html}: the folder {html.parent} does not exist")
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
        raise InvalidInput(f"no policy is given; known policies: {', '.join(policy_names())}")
    return tuple(make_policy(name.strip()) for name in dict.fromkeys(names))


def _compare_all(files: Sequence[Path], bench: _Bench, *, alone: bool) -> _Results:
    """Compare the policies on all *files*. With *alone* each row is printed as soon as it is
    known."""
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
    """Show a progress bar on a terminal until the file is done; elsewhere show nothing."""
    with progress_bar("{task.percentage:.0f} %") as progress:
        yield partial(progress.advance, progress.add_task(name, total=total))


def _totals(results: _Results) -> list[Compared]:
    """The sums over several rows. A sum over one row would repeat that row."""
    rows = {compared.row.file for compared in results.rows}
    return [total for total in results.sums if len(rows) > 1 and total.row.file not in rows]


def _print_json(compared: Compared) -> None:
    say_json(compared.row, flush=True)


def _exit(results: _Results) -> None:
    """Exit with the code of the worst result: an invalid request is worse than an unreadable
    file."""
    for compared in results.rows:
        for fault in compared.faults:
            row = compared.row
            under = "" if row.schedule == "own" else f", schedule {row.schedule}"
            print_failure(row.file, f"{row.policy}{under}, window {row.window}: {fault}")
    if any(compared.row.invalid_requests for compared in results.rows):
        raise typer.Exit(BROKEN_PROMISE)
    if results.failed:
        raise typer.Exit(USAGE)
