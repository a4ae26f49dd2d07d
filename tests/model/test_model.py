"""The model is of our code, holds in every state, and finds the bugs that are put into it."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from llmsession.turns.machine import Phase
from model.checking import (
    BUGS,
    FORMULA_SCOPE,
    FORMULAS,
    MODEL,
    SCOPES,
    Bug,
    Scope,
    bug_number,
    check,
    missing,
)

TEXT = MODEL.read_text(encoding="utf-8")
PAGE = (MODEL.parents[1] / "docs" / "contributing" / "model.md").read_text(encoding="utf-8")
NAMED = re.compile(r"\b((?:\w+/)+\w+)\.py: (\w+(?:\.\w+)?)")


def named() -> list[tuple[str, str]]:
    """The files and the names in them that the model's comments speak of."""
    comments = " ".join(re.findall(r"/\*(.*?)\*/", TEXT, re.DOTALL))
    return NAMED.findall(comments)


def test_each_step_of_the_model_names_what_exists_in_the_code() -> None:
    assert len(set(named())) >= 40
    for file, name in named():
        result: object = importlib.import_module(f"llmsession.{file.replace('/', '.')}")
        for part in name.split("."):
            result = inspect.getattr_static(result, part, None)
            assert result is not None, f"{file}.py has no {name}"


def test_the_phases_and_kinds_of_the_model_are_those_of_the_code() -> None:
    section = TEXT.split("turns/machine.py: Phase */")[1].split("/*")[0]
    phases = set(re.findall(r"#define (\w+) \d", section)) - {"NONE"}
    assert phases <= {phase.name for phase in Phase}
    assert {"STOPPING", "COMMITTING", "ABORTING"} <= phases


def test_each_step_of_an_actor_says_what_it_stands_for() -> None:
    actor = TEXT.split("proctype Actor")[1].split("proctype Rest")[0]
    steps = re.split(r"\n  :: d_step ", actor)[1:]
    unnamed = [step.splitlines()[0] for step in steps if not NAMED.search(step)]
    # The rest is what a store, a caller or a machine does to us.
    assert len(steps) >= 25
    assert len(unnamed) <= 9, unnamed


def test_every_bug_of_the_model_is_put_in_and_told_on_the_page() -> None:
    section = TEXT.split("Bugs that can be put in")[1].split("#define bit_of")[0]
    defined = set(re.findall(r"#define ([A-Z]\w+) \d+\n", section)) - {"LOG"}
    assert defined == {bug.name for bug in BUGS}
    for bug in BUGS:
        assert f"BROKEN {bug.breaks}\\n" in TEXT
        assert re.search(rf"^\| `{bug.name}` \| {bug.breaks} \| .+ \|$", PAGE, re.MULTILINE)


def test_every_test_that_the_page_names_exists() -> None:
    root = MODEL.parents[1]
    guards = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(guards) >= len(BUGS)
    for file, test in guards:
        assert f"def {test}(" in (root / file).read_text(encoding="utf-8"), f"{file}::{test}"


def skip_without_a_checker() -> None:
    wanting = missing()
    if wanting:
        pytest.skip(wanting)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_the_model_keeps_every_promise_in_every_state(scope: Scope, tmp_path: Path) -> None:
    skip_without_a_checker()
    result = check(scope, tmp_path)
    print(f"\n{scope.name}: {result.states:,} states, {result.seconds:.0f} s")
    assert result.broken == "", result.trace
    assert result.states > 100_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("formula", FORMULAS)
def test_the_model_keeps_what_is_said_of_the_end_of_every_run(formula: str, tmp_path: Path) -> None:
    skip_without_a_checker()
    result = check(FORMULA_SCOPE, tmp_path, formula=formula)
    print(f"\n{formula}: {result.states:,} states, {result.seconds:.0f} s")
    assert result.broken == "", result.trace
    assert result.states > 100_000


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_that_is_put_in_is_found_by_the_promise_that_it_breaks(
    bug: Bug, tmp_path: Path
) -> None:
    skip_without_a_checker()
    result = check(bug.scope, tmp_path, bug=bug)
    assert result.broken == bug.breaks
    assert 2 <= len(result.trace) <= 20
    print("\n" + bug.name, *result.trace, f"BROKEN: {result.broken}", sep="\n  ")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_formula_finds_a_turn_that_nobody_recovers(tmp_path: Path) -> None:
    skip_without_a_checker()
    result = check(
        FORMULA_SCOPE, tmp_path, bug=BUGS[bug_number("NO_RECOVERY") - 1], formula=FORMULAS[0]
    )
    assert result.broken == FORMULAS[0]
