"""The documents as data: their pages, and the code blocks, headings and links of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

__all__ = ["ROOT", "Block", "blocks", "links", "name_of", "pages", "prose", "text_of"]

PENDING: dict[str, tuple[str, ...]] = {
    "ARCHITECTURE.md": ("language",),
    "CONTRIBUTING.md": ("language",),
}
"""Page -> the checks that it does not pass yet, which leave it out. To be emptied."""

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(\S*)")
_HIDDEN = re.compile(r"^<!-- (setup|check)$")
_NOT_RUN = re.compile(r"^\s*<!-- not run: .+ -->$")
_TARGET = r"\(<?((?:[^()\s<>]|\([^()\s]*\))+)>?(?:\s+\"[^\"]*\")?\)"
_LINKS = (
    re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]" + _TARGET),
    re.compile(r"!\[[^\]]*\]" + _TARGET),  # also as the text of a link
    re.compile(r"^\s*\[[^\]]+\]:\s+(\S+)", re.MULTILINE),
    re.compile(r"<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=\"([^\"]+)\""),
)


class Block(NamedTuple):
    """A fenced block of a page, or a hidden one, which is Python in an HTML comment."""

    page: Path
    line: int
    """The line of the page on which its text begins."""
    language: str
    text: str
    is_hidden: bool = False
    is_run: bool = True
    """False for a block below ``<!-- not run: why -->``."""


def pages(check: str = "") -> list[Path]:
    """Every document that a user or a contributor reads, as it stands in the repository, but for
    those that are known not to pass *check* yet."""
    top = sorted(ROOT.glob("*.md"))
    site = (file for file in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in file.parts)
    # The site shows some files of the root as pages of its own: links to the same files.
    files = [*top, *(file for file in site if not file.is_symlink())]
    return [file for file in files if check not in PENDING.get(name_of(file), ())]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """The blocks of *page*, in its order."""
    return tuple(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    lines = text_of(page).splitlines()
    start, end, language, is_hidden, is_run = 0, "", "", False, True
    for number, line in enumerate(lines):
        if end:
            if line.strip() == end if is_hidden else _closes(line, end):
                text = dedent("\n".join(lines[start:number])) + "\n"
                yield Block(page, start + 1, language, text, is_hidden, is_run)
                end, is_run = "", True
        elif _HIDDEN.match(line):
            start, end, language, is_hidden, is_run = number + 1, "-->", "python", True, True
        elif fence := _FENCE.match(line):
            start, end, language, is_hidden = number + 1, fence[2], fence[3], False
        elif _NOT_RUN.match(line):
            is_run = False
        elif line.strip():
            is_run = True


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and set(mark) == {fence[0]}


@cache
def prose(page: Path) -> str:
    """The text of *page* without its blocks and comments; what is left keeps its line."""
    kept, end = [], ""
    for line in text_of(page).splitlines():
        fence = _FENCE.match(line)
        if end:
            end = "" if _closes(line, end) else end
            kept.append("")
        elif fence:
            end = fence[2]
            kept.append("")
        else:
            kept.append(line)
    text = "\n".join(kept)
    return re.sub(
        r"<!--.*?-->", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL
    )


def links(page: Path) -> list[str]:
    """The targets of the links and images of *page*."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    every = (found for kind in _LINKS for found in kind.findall(text))
    return list(dict.fromkeys(every))
