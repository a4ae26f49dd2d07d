"""A mutant: one rule of the code, broken on purpose, and the test that has to notice."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

__all__ = ["Edit", "Mutant", "Unfit", "read_mutants"]


class Unfit(Exception):
    """A mutant that cannot be put into the code as it is now; the message names it."""


class Edit(msgspec.Struct, frozen=True):
    """*new* in place of *old*, which stands in *file*, below ``llmsession/``, exactly once."""

    file: str
    old: str
    new: str


class Mutant(msgspec.Struct, frozen=True):
    """``name`` says what the broken code does; ``breaks`` which promise that is: an invariant, a
    rule of ARCHITECTURE.md, or a page of docs. ``test`` of ``suite``, a file below ``tests/``,
    has to fail by it. ``also`` are further edits, where one rule is held in several places."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    suite: str
    test: str
    also: tuple[Edit, ...] = ()

    @property
    def node(self) -> str:
        """The test as pytest names it."""
        return f"tests/{self.suite}::{self.test}"

    def broken(self, root: Path) -> dict[Path, str]:
        """The files below *root* that it changes, as they read then. Raises Unfit."""
        texts: dict[Path, str] = {}
        for edit in (Edit(self.file, self.old, self.new), *self.also):
            path = root / "llmsession" / edit.file
            if not path.is_file():
                raise Unfit(f"mutant {self.name!r}: there is no {edit.file}")
            text = texts[path] if path in texts else path.read_text("utf-8")
            found = text.count(edit.old)
            if found != 1:
                told = f"is {found} times in {edit.file}, not once: {edit.old!r}"
                raise Unfit(f"mutant {self.name!r}: what it replaces {told}")
            texts[path] = text.replace(edit.old, edit.new)
            try:
                compile(texts[path], str(path), "exec")
            except SyntaxError as error:
                raise Unfit(f"mutant {self.name!r} is no Python: {error}") from error
        return texts


_PLACE = re.compile(r"in (\S+), by (\S+)")
_TITLE = re.compile(r"(.+) \((.+)\)")


def read_mutants(text: str) -> tuple[Mutant, ...]:
    """The mutants that *text* describes, file by file, with an empty line between two files::

        in FILE, by SUITE
        NAME (BREAKS)
            - OLD
            + NEW
            TEST

    OLD and NEW may be several lines, or parts of lines; without NEW the old lines go. A line
    ``also in FILE`` begins a further edit. A test of another suite has the suite on a line before
    it. Raises ValueError for a text that is not so.
    """
    mutants: list[Mutant] = []
    for group in text.strip("\n").split("\n\n"):
        heading, *entries = re.split(r"\n(?! )", group)
        file, suite = _matched(_PLACE, heading)
        mutants += [_read(entry, file, suite) for entry in entries]
    return tuple(mutants)


def _read(entry: str, file: str, suite: str) -> Mutant:
    title, *lines = entry.split("\n")
    name, breaks = _matched(_TITLE, title)
    *lines, test = (line.removeprefix("    ") for line in lines)
    if lines[-1].endswith(".py") and not lines[-1].startswith(("- ", "+ ")):
        suite = lines.pop()
    parts: list[tuple[str, list[str], list[str]]] = [(file, [], [])]
    for line in lines:
        sign, _, code = line.partition(" ")
        if sign == "also":
            parts.append((code.removeprefix("in "), [], []))
        else:
            _, old, new = parts[-1]
            (new if sign == "+" else old).append(code)
    edit, *also = (Edit(file, "\n".join(old), "\n".join(new)) for file, old, new in parts)
    return Mutant(name, breaks, edit.file, edit.old, edit.new, suite, test, tuple(also))


def _matched(pattern: re.Pattern[str], line: str) -> tuple[str, str]:
    match = pattern.fullmatch(line)
    if match is None:
        raise ValueError(f"among the mutants there is a line {line!r}")
    return str(match[1]), str(match[2])
