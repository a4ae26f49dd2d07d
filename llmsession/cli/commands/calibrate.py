"""``llmsession calibrate``: how exact token counters are on recorded conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmsession.errors import SessionError
from llmsession.lab.accuracy import Accuracy, Measured, measure, summed
from llmsession.lab.counters import COUNTERS, find_tiktoken
from llmsession.transcripts import read

from ..common.exit_codes import USAGE
from ..common.files import (
    FormatName,
    RecordedFiles,
    check_format,
    one_line,
    print_failure,
    print_left_out,
    read_file,
)
from ..common.terminal import TerminalConsole, say_json

__all__ = ["calibrate", "print_rows"]

_FIGURES = ("requests", "median", "p95", "bias")
NARROWEST_NAME = 8
_FIGURES_WIDTH = max(map(len, COUNTERS)) + sum(max(len(name), 7) for name in _FIGURES) + 16
"""The width of all columns but the names, with the gaps and edges."""


def calibrate(
    files: RecordedFiles,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
    format: FormatName = None,
) -> None:
    """Compare token counters with the usage that providers reported. Sends nothing.

    For each two consecutive requests it compares the growth of the prompt that the provider
    reported with the growth that each counter computes. Prints a row per file, model and counter,
    and one row per counter over all files. Pairs that prove nothing are left out and counted by
    reason. Exits with 2 if a file could not be read; the others are compared.
    """
    check_format(format)
    tiktoken = find_tiktoken()
    measured: list[Measured] = []
    failed = False
    for path in files:
        try:
            conversations = read(read_file(path), format)
            print_left_out(path, conversations)
            measured += measure(str(path), conversations, tiktoken)
        except (OSError, SessionError) as error:
            failed = True
            print_failure(path, one_line(error))
    if len({pair.row.file for pair in measured}) > 1:
        measured += summed(measured)
    rows = [pair.row for pair in measured]
    if as_json:
        for row in rows:
            say_json(row)
    elif rows:
        print_rows(rows)
    if failed:
        raise typer.Exit(USAGE)


def print_rows(rows: Sequence[Accuracy], console: Console | None = None) -> None:
    """Print a table of *rows*, and the remarks on each file."""
    console = console or TerminalConsole()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # Only the names are shortened: Rich would narrow all columns alike, and a figure that is cut
    # off is wrong.
    room = max(NARROWEST_NAME, (console.width - _FIGURES_WIDTH) // 2)
    for name in ("file", "model"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=room)
    table.add_column("counter", no_wrap=True)
    for name in _FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    last_place = None
    for row in rows:
        place = (escape(Path(row.file).name), escape(row.model))
        figures = (_percent(row.median_error), _percent(row.p95_error), _percent(row.bias, "+"))
        named = ("", "") if place == last_place else place
        table.add_row(*named, row.counter, str(row.requests), *figures)
        last_place = place
    console.print(table)
    for file in dict.fromkeys(row.file for row in rows):
        for remark in _remarks([row for row in rows if row.file == file]):
            said = f"{escape(Path(file).name)}: {escape(remark)}"
            console.print(said, soft_wrap=True, highlight=False)


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{share:{sign}.1%}"


def _remarks(rows: Sequence[Accuracy]) -> list[str]:
    remarks = []
    if rows[0].excluded:
        counted = Counter(rows[0].excluded).most_common()
        reasons = ", ".join(f"{reason} {count}" for reason, count in counted)
        remarks.append(f"left out: {reasons}")
    if not any(row.requests for row in rows):
        remarks.append("nothing to compare: no two requests in a row with reported usage")
    skipped: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            counters = skipped.setdefault(note, [])
            if row.counter not in counters:
                counters.append(row.counter)
    return remarks + [f"{', '.join(counters)}: {note}" for note, counters in skipped.items()]
