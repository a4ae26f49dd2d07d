"""Which counter is used for which models, as a table of the documentation."""

from __future__ import annotations

from typing import NamedTuple

from ..protocol import Counting
from .counter import API_ACCURACY
from .counts import ESTIMATE_ACCURACY
from .encodings import encoding_name, fit_of

__all__ = ["Counted", "table_markdown"]


class Counted(NamedTuple):
    """One row of the table of counters.

    *whose* says whose requests they are, and *model* is a model that stands for them. *kind* is the
    class of the provider or counter that is asked first, and *how* says how it counts. *extra* is
    the extra to install.
    """

    whose: str
    model: str
    kind: type
    how: str
    extra: str = ""


def table_markdown(rows: tuple[Counted, ...]) -> str:
    """*rows* as a Markdown table.

    The first column of counters is the class that counts by itself. The next is tiktoken, as well
    as it fits the model; the last is the estimate by characters.
    """
    lines = [
        "| models | asked first | extra | off by | without an answer | off by |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        fit = f"{encoding_name(row.model)} times {fit_of(row.model).factor:g}"
        then = f"{fit}; without its vocabulary characters"
        accuracy = f"{_percent(fit_of(row.model).accuracy)}; {_percent(ESTIMATE_ACCURACY)}"
        extra = f"`llmsession[{row.extra}]`" if row.extra else ""
        # issubclass on a runtime protocol only looks for its members; none of them is called.
        counts = issubclass(row.kind, Counting)
        first = f"`{row.kind.__name__}`, {row.how}" if counts else "nobody"
        by = _percent(API_ACCURACY) if counts else ""
        lines.append(f"| {row.whose} | {first} | {extra} | {by} | {then} | {accuracy} |")
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines) + "\n"


def _percent(share: float) -> str:
    return f"{round(share * 100)} %"
