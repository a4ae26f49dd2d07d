"""The models are of our code, hold in every state, and find the bugs that are put into them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from llmsession.turns.machine import Phase
from model.checking import (
    BUGS,
    CLUSTER,
    FORMULA_SCOPE,
    FORMULAS,
    QUICK_SCOPE,
    RESTING_SCOPES,
    SCOPES,
    SESSION,
    AnyScope,
    Bug,
    ClusterScope,
    check,
    missing,
)

TEXT = SESSION.read_text(encoding="utf-8")
TEXTS = {model: model.read_text(encoding="utf-8") for model in (SESSION, CLUSTER)}
PAGE = (SESSION.parents[1] / "docs" / "contributing" / "model.md").read_text(encoding="utf-8")
NAMED = re.compile(r"\b((?:\w+/)+\w+)\.py: (\w+(?:\.\w+)?)")


def named(model: Path) -> list[tuple[str, str]]:
    """The files and the names in them that the comments of *model* speak of."""
    comments = " ".join(re.findall(r"/\*(.*?)\*/", TEXTS[model], re.DOTALL))
    return NAMED.findall(comments)


@pytest.mark.parametrize(("model", "least"), [(SESSION, 40), (CLUSTER, 20)])
def test_each_step_of_a_model_names_what_exists_in_the_code(model: Path, least: int) -> None:
    assert len(set(named(model))) >= least
    for file, name in named(model):
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


@pytest.mark.parametrize("model", TEXTS, ids=lambda model: model.stem)
def test_every_bug_of_a_model_is_put_in_and_told_on_the_page(model: Path) -> None:
    bugs = [bug for bug in BUGS if bug.scope.model == model]
    section = TEXTS[model].split("Bugs that can be put in")[1].split("#define bit_of")[0]
    defined = set(re.findall(r"#define ([A-Z]\w+) \d+\n", section)) - {"LOG", "NOBODY"}
    assert defined == {bug.name for bug in bugs}
    for bug in bugs:
        assert f"BROKEN {bug.breaks}\\n" in TEXTS[model]
        assert re.search(rf"^\| `{bug.name}` \| {bug.breaks} \| .+ \|$", PAGE, re.MULTILINE)


def test_every_test_that_the_page_names_exists() -> None:
    root = SESSION.parents[1]
    guards = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(guards) >= len([bug for bug in BUGS if bug.scope.model == SESSION])
    for file, test in guards:
        assert f"def {test}(" in (root / file).read_text(encoding="utf-8"), f"{file}::{test}"


def skip_without_a_checker() -> None:
    wanting = missing()
    if wanting:
        pytest.skip(wanting)


@pytest.mark.timeout(600)
def test_hosts_keep_every_promise_while_a_session_is_handed_over(tmp_path: Path) -> None:
    skip_without_a_checker()
    result = check(QUICK_SCOPE, tmp_path)
    assert result.broken == "", result.trace
    assert result.states > 50_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scope", RESTING_SCOPES, ids=lambda scope: scope.name)
def test_every_run_of_the_cluster_comes_to_rest(scope: ClusterScope, tmp_path: Path) -> None:
    skip_without_a_checker()
    result = check(scope, tmp_path, comes_to_rest=True)
    assert result.broken == ""
    assert result.states > 30_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_the_model_keeps_every_promise_in_every_state(scope: AnyScope, tmp_path: Path) -> None:
    skip_without_a_checker()
    result = check(scope, tmp_path)
    print(f"\n{scope.name}: {result.states:,} states, {result.seconds:.0f} s")
    assert result.broken == "", result.trace
    assert result.states > 30_000


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
    assert 2 <= len(result.trace) <= 20, result.trace
    print("\n" + bug.name, *result.trace, f"BROKEN: {result.broken}", sep="\n  ")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_formula_finds_a_turn_that_nobody_recovers(tmp_path: Path) -> None:
    skip_without_a_checker()
    no_recovery = next(bug for bug in BUGS if bug.name == "NO_RECOVERY")
    result = check(FORMULA_SCOPE, tmp_path, bug=no_recovery, formula=FORMULAS[0])
    assert result.broken == FORMULAS[0]
