"""What counts for whom, as the table of the documentation."""

from __future__ import annotations

from typing import NamedTuple

from ..protocol import Counting
from .counter import API_ACCURACY
from .counts import ESTIMATE_ACCURACY
from .encodings import encoding_name, fit_of

__all__ = ["Counted", "table_markdown"]


class Counted(NamedTuple):
    """A row: *whose* requests, by a model that stands for them, are counted by *kind*, a class of
    providers or of counters, through *how*."""

    whose: str
    model: str
    kind: type
    how: str
    extra: str = ""


def table_markdown(rows: tuple[Counted, ...]) -> str:
    """*rows* as a table. The first counter of each is its own, where its class counts; the next is
    tiktoken, as far as the model's fit goes; the last is the estimate by characters."""
    lines = [
        "| models | asked first | extra | off by | without an answer | off by |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        fit = f"{encoding_name(row.model)} times {fit_of(row.model).factor:g}"
        then = f"{fit}; without its vocabulary characters"
        accuracy = f"{_percent(fit_of(row.model).accuracy)}; {_percent(ESTIMATE_ACCURACY)}"
        extra = f"`llmsession[{row.extra}]`" if row.extra else ""
        # Of a protocol's class: its members are looked for, and none of them is called.
        counts = issubclass(row.kind, Counting)
        first = f"`{row.kind.__name__}`, {row.how}" if counts else "nobody"
        by = _percent(API_ACCURACY) if counts else ""
        lines.append(f"| {row.whose} | {first} | {extra} | {by} | {then} | {accuracy} |")
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines) + "\n"


def _percent(share: float) -> str:
    return f"{round(share * 100)} %"
