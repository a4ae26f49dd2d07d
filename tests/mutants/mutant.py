"""A mutant: one rule of the code, broken on purpose, and the test that has to notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

__all__ = ["Edit", "Mutant", "Place", "Unfit", "Unnamed"]


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


Unnamed: TypeAlias = Callable[[str], Mutant]
"""A mutant that lacks only its name, which is its key in a table."""


class Place(msgspec.Struct, frozen=True):
    """A file, and the suite that most of its mutants are caught by. A call makes one of them."""

    file: str
    suite: str

    def __call__(
        self,
        breaks: str,
        old: str,
        new: str,
        test: str,
        *,
        suite: str | None = None,
        also: tuple[Edit, ...] = (),
    ) -> Unnamed:
        suite = suite or self.suite
        return lambda name: Mutant(name, breaks, self.file, old, new, suite, test, also)
