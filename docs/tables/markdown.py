"""Markdown made of docstrings and rows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

__all__ = ["paragraphs", "table", "text"]


def text(docstring: str) -> str:
    """A docstring's words as Markdown on one line: ````code```` and *parameter* as `code`."""
    line = " ".join(docstring.split())
    line = re.sub(r"``(.+?)``", r"`\1`", line)
    return re.sub(r"(?<![\w*`])\*(\w+)\*(?![\w*`])", r"`\1`", line)


def paragraphs(thing: object) -> list[str]:
    """The paragraphs of the docstring of *thing*, each on one line."""
    return [text(part) for part in (inspect.getdoc(thing) or "").split("\n\n") if part.strip()]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, with a line break at its end."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{''.join(map(_cell, line))}\n" for line in lines)


def _cell(cell: str) -> str:
    words = cell.replace("\n", " ").replace("|", r"\|")
    return f" {words} |" if words else " |"
