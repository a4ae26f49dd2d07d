"""Outlines source code: what a file declares, and on which lines.

The rules look at one line at a time and know no grammar. They know the declarations of Python,
JavaScript and TypeScript, Java and similar languages, Go, Rust and C-like languages. No line can
make a search slow, and a long file is read up to ``MAX_LINES`` and ``MAX_CHARS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llmsession.turns.blocks import ToolUseBlock

from .file_calls import file_call

__all__ = ["MAX_CHARS", "MAX_LINES", "Language", "fold_code", "folded_read", "language_of"]

MAX_LINES, MAX_CHARS = 10_000, 400_000
_READ_LINE_CHARS = 300
_SHOWN_LINE_CHARS = 140
_MIN_SIGNATURES = 3

# The line numbers that a tool writes before each line of a file: " 12→", "12\t", "12 | ", "12: ".
_NUMBERED = re.compile(r"[ ]{0,8}(\d{1,7})(?:→|\t|[ ]?\|[ ]?|:[ ])")


class Language(NamedTuple):
    """The rules of one language.

    ``declares`` matches the beginning of a declaration after its indentation. ``max_indent`` is the
    deepest indentation to look at, in columns, because deeper lines are inside a function.
    """

    name: str
    declares: re.Pattern[str]
    max_indent: int


_WORD = r"[\w$]{1,80}"
_MODIFIERS = (
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|override"
    r"|virtual|inline|extern|constexpr|sealed|open|data|readonly|declare|unsafe|pub(?:\(\w{1,12}\))?)"
    r"\s{1,4}){0,6}"
)
_PYTHON = Language(
    "python",
    re.compile(r"(?:async\s{1,4})?def\s{1,4}\w|class\s{1,4}\w|@\w|[A-Z][A-Z0-9_]{2,60}\s{0,4}[:=]"),
    8,
)
_SCRIPT = Language(
    "script",
    re.compile(
        rf"{_MODIFIERS}(?:function\b|class\s|interface\s|enum\s|type\s{{1,4}}{_WORD}\s{{0,4}}[=<]"
        rf"|namespace\s|(?:const|let|var)\s{{1,4}}{_WORD}\s{{0,4}}[:=])"
        rf"|(?!(?:if|for|while|switch|catch|return|else|await|throw|new)\b)"
        rf"{_MODIFIERS}(?:get\s|set\s|\*)?#?{_WORD}\s{{0,2}}\([^;]{{0,200}}\{{\s{{0,4}}$"
    ),
    4,
)
_TYPE = r"[\w$.]{1,80}(?:<[\w$<>\[\],.? ]{0,100}>)?[\[\]?]{0,4}"
_JAVA = Language(
    "java",
    re.compile(
        rf"{_MODIFIERS}(?:class|interface|enum|record|struct|trait|object|namespace|fun)\s{{1,4}}"
        rf"{_WORD}|(?!(?:if|for|while|switch|catch|return|else|throw|new)\b)"
        rf"{_MODIFIERS}{_TYPE}\s{{1,4}}{_WORD}\s{{0,2}}\([^;]{{0,200}}[{{,)]\s{{0,4}}$"
    ),
    8,
)
_GO = Language(
    "go", re.compile(r"func\b|type\s{1,4}\w|(?:const|var)\s{1,4}(?:\w{1,80}|\()|package\s"), 0
)
_RUST = Language(
    "rust",
    re.compile(rf"{_MODIFIERS}(?:fn|struct|enum|trait|impl|mod|type|const|static|macro_rules!)\b"),
    4,
)
_C = Language(
    "c",
    re.compile(
        r"(?:typedef|struct|union|enum|class|namespace|template)\b|#\s{0,4}define\s{1,4}\w"
        r"|(?!(?:if|for|while|switch|return|else|goto|case)\b)"
        rf"[A-Za-z_][\w:<>,*& ]{{1,120}}[ *&]{_WORD}(?:::~?{_WORD})?\s{{0,2}}\([^;]{{0,200}}$"
    ),
    0,
)
_BY_ENDING = {
    "py": _PYTHON, "pyi": _PYTHON,
    "js": _SCRIPT, "jsx": _SCRIPT, "ts": _SCRIPT, "tsx": _SCRIPT, "mjs": _SCRIPT, "cjs": _SCRIPT,
    "mts": _SCRIPT, "cts": _SCRIPT, "vue": _SCRIPT, "svelte": _SCRIPT,
    "java": _JAVA, "kt": _JAVA, "cs": _JAVA, "scala": _JAVA, "swift": _JAVA, "php": _JAVA,
    "go": _GO,
    "rs": _RUST,
    "c": _C, "h": _C, "cc": _C, "cpp": _C, "cxx": _C, "hpp": _C, "hh": _C, "m": _C, "mm": _C,
}  # fmt: skip


class _Line(NamedTuple):
    number: int
    text: str


def language_of(path: str) -> Language | None:
    """The rules for the file at *path*, by its ending; None if there are none."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return _BY_ENDING.get(name.rsplit(".", 1)[-1].lower()) if "." in name else None


def fold_code(text: str, path: str, *, max_chars: int) -> str | None:
    """The signatures in *text*, each with its line number, in at most *max_chars* characters.

    *text* is what a tool returned for the file at *path*. None for a file without rules, for fewer
    than three signatures, and if the result would not be shorter than half of *text*. Line numbers
    that the tool wrote are kept; otherwise lines are counted from 1. If there is no room for all,
    the least indented signatures are taken, and a line says how many are left out.
    """
    language = language_of(path)
    if language is None:
        return None
    lines = list(_lines(text))
    signatures = [line for line in lines if _is_signature(line.text, language)]
    if len(signatures) < _MIN_SIGNATURES:
        return None
    title = f"{path[-120:]}: {len(lines):,} lines; what it declares, by line number:"
    room = min(max_chars, len(text) // 2) - len(title)
    selection = _fitting(signatures, room)
    if len(selection) < _MIN_SIGNATURES:
        return None
    left = len(signatures) - len(selection)
    more = [f"({left:,} more)"] if left else []
    return "\n".join([title, *(_told(line) for line in selection), *more])


def folded_read(text: str, call: ToolUseBlock | None, *, max_chars: int) -> str | None:
    """An outline of *text*, if it is what *call* read of a source file; else None."""
    known = file_call(call) if call is not None else None
    if known is None or known.kind != "read":
        return None
    return fold_code(text, known.path, max_chars=max_chars)


def _lines(text: str) -> Iterator[_Line]:
    """The lines of *text* that are not blank, with their numbers. Written line numbers are
    removed.
    """
    raw = text[:MAX_CHARS].split("\n", MAX_LINES)[:MAX_LINES]
    numbered = [_NUMBERED.match(line[:40]) for line in raw]
    marks = sum(mark is not None for mark in numbered)
    # A tool numbers every line of a file, but may add lines of its own around it.
    is_numbered = marks * 2 > sum(bool(line.strip()) for line in raw)
    for count, (line, mark) in enumerate(zip(raw, numbered, strict=True), 1):
        if is_numbered and mark is None:
            continue
        number = int(mark[1]) if is_numbered and mark else count
        words = line[mark.end() :] if is_numbered and mark else line
        if words.strip():
            yield _Line(number, words[:_READ_LINE_CHARS].replace("\t", "    ").rstrip())


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _is_signature(text: str, language: Language) -> bool:
    indent = _indent(text)
    return indent <= language.max_indent and language.declares.match(text, indent) is not None


def _told(line: _Line) -> str:
    text = line.text
    if len(text) > _SHOWN_LINE_CHARS:
        text = f"{text[: _SHOWN_LINE_CHARS - 4]} ..."
    return f"{line.number}: {text}"


def _fitting(signatures: Sequence[_Line], room: int) -> list[_Line]:
    """As many of *signatures* as fit, in their order. The least indented ones are taken first."""
    room -= 20  # room for the line that says how many are left out
    selection: list[_Line] = []
    for line in sorted(signatures, key=lambda line: (_indent(line.text), line.number)):
        room -= len(_told(line)) + 1
        if room < 0:
            break
        selection.append(line)
    return sorted(selection)
