"""The lab's tables for a terminal: one per file, window and schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmsession.lab.labels import short
from llmsession.lab.report import CAVEATS
from llmsession.lab.table import Row, frontier

from ..common.terminal import TerminalConsole, say

__all__ = ["print_caveats", "print_markdown", "print_rows"]

_FIGURES = (
    "cost",
    "retained",
    "+recall",
    "recalls",
    "rewrites",
    "sums",
    "peak",
    "invalid",
    "large",
)
"""The columns. ``+recall`` is the share that could be recalled of what was not retained, ``sums``
counts summaries, and ``large`` counts requests that did not fit into the window."""


NARROWEST_NAME = 10


def _width(name: str) -> int:
    return max(6, len(name))


def print_rows(rows: Sequence[Row], console: Console | None = None) -> None:
    """A table for each file, window and schedule in *rows*. A star marks the Pareto frontier."""
    console = console or TerminalConsole()
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.file, row.window, row.schedule), []).append(row)
    for (file, window, schedule), group in groups.items():
        unit = "dollars" if group[0].unit == "usd" else "plain input tokens"
        title = f"{escape(Path(file).name or file)}, window {window:,}, costs in {unit}"
        if schedule != "own":
            title += f", schedule {schedule}"
        console.print(title, soft_wrap=True, highlight=False)
        console.print(_table(group, console.width))


def _table(rows: Sequence[Row], width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    room = max(NARROWEST_NAME, width - sum(map(_width, _FIGURES)) - len(_FIGURES))
    table.add_column("policy", overflow="ellipsis", no_wrap=True, max_width=room)
    for name in _FIGURES:
        # Only the policy's name is shortened: a figure that is cut off is wrong.
        table.add_column(name, justify="right", no_wrap=True, min_width=_width(name))
    best = frontier(rows)
    for row in rows:
        table.add_row(
            f"{'*' if row in best else ' '} {row.policy}",
            f"{row.cost:.4f}" if row.unit == "usd" else short(row.cost),
            _percent(row.retained),
            _percent(row.recallable),
            str(row.recalls),
            str(row.rewrites),
            str(row.summaries),
            short(row.peak_context),
            str(row.invalid_requests),
            str(row.too_large),
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def print_markdown(rows: Sequence[Row]) -> None:
    """Print a Markdown table for each file in *rows*: a line per policy, a column per window and
    schedule. A cell holds the cost and the share retained, in bold on the column's Pareto
    frontier."""
    for file in dict.fromkeys(row.file for row in rows):
        ours = [row for row in rows if row.file == file]
        columns = list(dict.fromkeys((row.window, row.schedule) for row in ours))
        best = [
            row
            for column in columns
            for row in frontier(r for r in ours if (r.window, r.schedule) == column)
        ]
        say(f"{Path(file).name or file}\n")
        names = [f"{window:,}{_under(schedule)}" for window, schedule in columns]
        say(f"| policy | {' | '.join(names)} |")
        say(f"| --- |{' --- |' * len(columns)}")
        for policy in dict.fromkeys(row.policy for row in ours):
            line = [row for row in ours if row.policy == policy]
            say(f"| `{policy}` | {' | '.join(_cell(row, row in best) for row in line)} |")
        say()


def _under(schedule: str) -> str:
    return "" if schedule == "own" else f", {schedule}"


def _cell(row: Row, is_best: bool) -> str:
    cost = f"{row.cost:.2f}" if row.unit == "usd" else short(row.cost)
    text = f"{cost}, {_percent(row.retained)}"
    if row.too_large:
        return f"{text}, {row.too_large} not sent"
    return f"**{text}**" if is_best else text


def print_caveats(console: Console | None = None) -> None:
    """Print the notes that a reader of the tables needs."""
    console = console or TerminalConsole()
    for caveat in ("* = on the Pareto frontier of cost against retained facts.", *CAVEATS):
        console.print(escape(caveat), highlight=False)
