"""Checks the models whole. Then it puts in each bug, and prints how the bug is found."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .checking import (
    BUGS,
    FORMULA_SCOPE,
    FORMULAS,
    RESTING_SCOPES,
    SCOPES,
    AnyScope,
    Bug,
    CheckResult,
    check,
    missing,
)


def main() -> int:
    """Return 0 if every property holds and each bug breaks the property that it should. Return 1
    otherwise, and 2 if Spin is missing."""
    lacking = missing()
    if lacking:
        sys.stderr.write(lacking + "\n")
        return 2
    failures = 0
    for scope in SCOPES:
        result = _checked(scope)
        failures += _report(f"every property, {scope.name}", result, "")
    for resting in RESTING_SCOPES:
        result = _checked(resting, comes_to_rest=True)
        failures += _report(f"every run comes to rest, {resting.name}", result, "")
    for formula in FORMULAS:
        result = _checked(FORMULA_SCOPE, formula=formula)
        failures += _report(formula.replace("_", " "), result, "")
    for bug in BUGS:
        result = _checked(bug.scope, bug=bug)
        failures += _report(bug.name, result, bug.breaks)
        for line in result.trace:
            _print(f"      {line}")
    return 1 if failures else 0


def _checked(
    scope: AnyScope, *, bug: Bug | None = None, formula: str = "", comes_to_rest: bool = False
) -> CheckResult:
    with tempfile.TemporaryDirectory() as folder:
        return check(scope, Path(folder), bug=bug, formula=formula, comes_to_rest=comes_to_rest)


def _report(what: str, result: CheckResult, expected: str) -> bool:
    """Print the result. Returns whether it differs from *expected*."""
    outcome = f"breaks: {result.broken}" if result.broken else "holds"
    figures = f"{result.states:,} states, {result.seconds:.0f} s, {result.memory_mb:,.0f} MB"
    _print(f"{what}: {outcome} ({figures})")
    return result.broken != expected


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


sys.exit(main())
