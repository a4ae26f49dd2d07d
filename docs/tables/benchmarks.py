"""The figures of the benchmarks, from the results file."""

from __future__ import annotations

import inspect
from importlib import import_module
from textwrap import dedent

from benchmarks.__main__ import CLUSTER
from benchmarks.report import Row
from benchmarks.results import Results, Taken, read_results

from .markdown import table, text

__all__ = ["cluster", "figures", "taken"]

MAIN = "3.11"
"""The Python whose figures are given in full; of the others only the ratios are."""


def figures(results: Results | None = None) -> str:
    """A section for each benchmark: what it measures, and its rows."""
    results = read_results() if results is None else results
    names = [name for name in results.get(MAIN, {}) if name != CLUSTER]
    return "\n".join(_section(name, results) for name in names)


def cluster() -> str:
    """The rows of the cluster's benchmark."""
    results = read_results()
    return _rows(CLUSTER, results) if CLUSTER in results.get(MAIN, {}) else ""


def taken(results: Results | None = None) -> str:
    """What each benchmark was taken on."""
    results = read_results() if results is None else results
    rows = [
        [f"`{name}`", python, of.day, f"`{of.commit}`", of.machine, _busy(of), f"{of.took_s:.0f} s"]
        for python, each in results.items()
        for name, of in each.items()
    ]
    head = ["Benchmark", "Python", "Taken", "Commit", "Machine", "Used by others", "Took"]
    return table(head, rows)


def _busy(of: Taken) -> str:
    before = "quiet before" if of.quiet else "busy before"
    return f"{before}, {of.others:.2f} cores meanwhile"


def _section(name: str, results: Results) -> str:
    module = import_module(f"benchmarks.{name}")
    said = [_paragraph(part) for part in (inspect.getdoc(module) or "").split("\n\n")]
    return "\n\n".join([f"### `{name}`", *said, _rows(name, results)])


def _paragraph(part: str) -> str:
    """A paragraph of a docstring on one line; of a list each item on one; commands as they are."""
    if part.startswith("    "):
        return f"```sh\n{dedent(part)}\n```"
    if not part.startswith("* "):
        return text(part)
    return "\n".join(f"* {text(item)}" for item in part[2:].split("\n* "))


def _rows(name: str, results: Results) -> str:
    others = [python for python in results if python != MAIN and name in results[python]]
    ratios = {
        python: {row.name: _ratio(row) for row in results[python][name].rows} for python in others
    }
    head = [
        "What",
        "Ours",
        "Bare",
        "Ratio (range)",
        "Bound",
        *(f"On {python}" for python in others),
    ]
    rows = [
        [
            f"{row.name}; {row.note}" if row.note else row.name,
            f"{row.ours:.4g} {row.unit}",
            f"{row.bare:.4g} {row.unit}",
            _ratio(row),
            "none" if row.bound is None else f"{row.bound:g}",
            *(ratios[python].get(row.name, "") for python in others),
        ]
        for row in results[MAIN][name].rows
    ]
    return table(head, rows)


def _ratio(row: Row) -> str:
    spread = f" ({min(row.ratios):.3g} to {max(row.ratios):.3g})" if row.ratios else ""
    return f"{row.ratio:.2f}{spread}"
