"""Checks the whole model, then puts each of its bugs in and tells how it is found."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .checking import BUGS, FORMULA_SCOPE, FORMULAS, SCOPES, Bug, Found, Scope, check, missing


def main() -> int:
    """0 if the model keeps its promises and each bug breaks the one it should; else 1, or 2
    where the checker is missing."""
    wanting = missing()
    if wanting:
        sys.stderr.write(wanting + "\n")
        return 2
    wrong = 0
    for scope in SCOPES:
        found = _checked(scope)
        wrong += _tell(f"every promise, {scope.name}", found, "")
    for formula in FORMULAS:
        found = _checked(FORMULA_SCOPE, formula=formula)
        wrong += _tell(formula.replace("_", " "), found, "")
    for bug in BUGS:
        found = _checked(bug.scope, bug=bug)
        wrong += _tell(bug.name, found, bug.breaks)
        for line in found.story:
            _say(f"      {line}")
    return 1 if wrong else 0


def _checked(scope: Scope, *, bug: Bug | None = None, formula: str = "") -> Found:
    with tempfile.TemporaryDirectory() as folder:
        return check(scope, Path(folder), bug=bug, formula=formula)


def _tell(what: str, found: Found, expected: str) -> bool:
    """Say what was found; is it something else than *expected*?"""
    said = f"breaks: {found.broken}" if found.broken else "holds"
    figures = f"{found.states:,} states, {found.seconds:.0f} s, {found.memory_mb:,.0f} MB"
    _say(f"{what}: {said} ({figures})")
    return found.broken != expected


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


sys.exit(main())
