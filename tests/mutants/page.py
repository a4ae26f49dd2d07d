"""The catalogue as a part of docs/testing.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .mutant import Mutant

__all__ = ["on_page", "put_on_page", "tables"]

_PART = re.compile(r"(<!-- mutants -->\n)(.*?)(<!-- end of mutants -->)", re.DOTALL)


def tables(catalogue: Mapping[str, Sequence[Mutant]]) -> str:
    """A table for each part of *catalogue*, as Markdown."""
    parts: list[str] = []
    for title, mutants in catalogue.items():
        rows = [f"| {each.name} | {each.breaks} | `{each.node}` |" for each in mutants]
        head = ["| what was broken | the promise | caught by |", "| --- | --- | --- |"]
        parts.append("\n".join([f"### {title}", "", *head, *rows]))
    return "\n" + "\n\n".join(parts) + "\n\n"


def on_page(page: str) -> str | None:
    """The tables that stand on *page*; None if it has no place for them."""
    found = _PART.search(page)
    return found[2] if found else None


def put_on_page(page: str, catalogue: Mapping[str, Sequence[Mutant]]) -> str:
    """*page* with the tables of *catalogue*. Raises ValueError if it has no place for them."""
    if on_page(page) is None:
        raise ValueError("the page has no lines <!-- mutants --> and <!-- end of mutants -->")
    return _PART.sub(lambda found: found[1] + tables(catalogue) + found[3], page)
