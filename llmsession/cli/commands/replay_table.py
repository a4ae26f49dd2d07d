"""The table that ``replay`` prints at the end, and the remarks below it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..common.terminal import TerminalConsole
from .replayed import ReplayedFile

__all__ = ["print_table"]

_COLUMNS = {
    "turns": "turns",
    "steps": "steps",
    "messages": "msgs",
    "requests": "reqs",
    "invalid_requests": "bad\nreqs",
    "orphans": "orp-\nhans",
    "differences": "diff-\ners",
    "repaired": "rep-\naired",
    "skipped": "skip-\nped",
    "compactions": "com-\npact",
    "interrupts": "intr-\nrupt",
    "seconds": "secs",
}
_WRONG = {"invalid_requests", "orphans", "differences"}
"""Columns that are 0 unless a check failed."""
_ODD = ("unknown_type", "unknown_fields", "bad_utf8", "duplicate")
"""The reader's notes that are printed although no content is lost. The other such notes are
bookkeeping lines of known formats."""
NARROWEST_NAME = 8
"""If fewer characters are left for the file's name, a list is printed instead of a table."""

_Rows: TypeAlias = Sequence[tuple[str, Mapping[str, Any]]]


def print_table(replayed: Iterable[ReplayedFile], console: Console | None = None) -> None:
    """Print a row per file, a sum if there are several, and the remarks on each file."""
    console = console or TerminalConsole()
    rows = [(Path(result.file).name, result.figures()) for result in replayed if not result.error]
    if not rows:
        return
    room = console.width - _figures_width(rows)
    if room >= NARROWEST_NAME:
        console.print(_table(rows, room))
    else:
        for file, figures in rows:
            figures_text = ", ".join(f"{name} {_shown(name, figures[name])}" for name in _COLUMNS)
            console.print(f"{escape(file)}: {figures_text}", highlight=False)
    for file, figures in rows:
        remarks = _remarks(figures)
        if remarks:
            said = f"{escape(file)}: {'; '.join(remarks)}"
            console.print(said, soft_wrap=True, highlight=False)
        for fault in figures["faults"]:
            console.print(f"  [red]{escape(fault)}[/]", soft_wrap=True, highlight=False)
    console.print("Recorded replies, no model.", style="dim")


def _widths(rows: _Rows) -> dict[str, int]:
    sums = _sums(rows)
    return {
        name: max(map(len, [*title.split("\n"), _shown(name, sums[name])]))
        for name, title in _COLUMNS.items()
    }


def _sums(rows: _Rows) -> dict[str, float]:
    return {name: sum(figures[name] for _, figures in rows) for name in _COLUMNS}


def _figures_width(rows: _Rows) -> int:
    """The width of all columns but the file's name."""
    return sum(width + 1 for width in _widths(rows).values()) + 2


def _table(rows: _Rows, room: int) -> Table:
    """The table, with *room* characters for the file's name. Only that column is shortened: Rich
    would narrow all columns alike, and a figure that is cut off is wrong."""
    table = Table(box=SIMPLE_HEAD, padding=0, show_footer=len(rows) > 1)
    sums, widths = _sums(rows), _widths(rows)
    table.add_column("file", "sum", no_wrap=True)
    for name, title in _COLUMNS.items():
        total = _red(name, _shown(name, sums[name]))
        table.add_column(title, total, justify="right", no_wrap=True, min_width=widths[name])
    for file, figures in rows:
        short = file if len(file) <= room else file[: room - 1] + "…"
        cells = [_red(name, _shown(name, figures[name])) for name in _COLUMNS]
        table.add_row(escape(short), *cells)
    return table


def _shown(name: str, value: float) -> str:
    return f"{value:.1f}" if name == "seconds" else str(value)


def _red(name: str, text: str) -> str:
    return f"[red]{text}[/]" if name in _WRONG and text != "0" else text


def _remarks(figures: Mapping[str, Any]) -> list[str]:
    remarks = []
    if figures["skipped_reasons"]:
        remarks.append(f"skipped: {_counted(figures['skipped_reasons'])}")
    odd = {name: count for name, count in figures["notes"].items() if name in _ODD}
    if odd:
        remarks.append(f"noted: {_counted(odd)}")
    if figures["lacks"]:
        remarks.append(f"lacks: {', '.join(figures['lacks'])}")
    if "history_equal" in figures:
        remarks.append(f"interrupts: {_counted(figures['interrupt_results'])}")
        remarks.append(f"turns sent again {figures['resent']}, kept short {figures['kept']}")
        remarks.append("history equal" if figures["history_equal"] else "[red]history differs[/]")
    return remarks


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
