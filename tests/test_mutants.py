"""The catalogue of mutants: it fits the code, and each of them is caught."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from llmsession.testing import INVARIANTS
from tests.mutants.__main__ import main
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Edit, Mutant, Unfit, read_mutants
from tests.mutants.running import ROOT, Workshop

EVERY_INVARIANT = {*INVARIANTS, 14}
"""14 is the one that ``replay`` checks."""


def rules() -> set[int]:
    """The numbers of the rules in ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").split("\n## Rules\n")[1]
    return {int(number) for number in re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)}


# The catalogue.


@cache
def broken(mutant: Mutant) -> dict[Path, str]:
    """The files of *mutant*. Kept, because two tests look at all of them. Raises Unfit."""
    return mutant.broken(ROOT)


def test_every_mutant_fits_the_code_at_one_place() -> None:
    unfit = []
    for mutant in MUTANTS:
        try:
            broken(mutant)
        except Unfit as error:
            unfit.append(str(error))
    assert unfit == []


def test_no_mutant_uses_a_name_that_is_not_there(tmp_path: Path) -> None:
    # It would be noticed by any test, whatever rule it is about.
    for number, mutant in enumerate(MUTANTS):
        for path, text in broken(mutant).items():
            (tmp_path / f"{number:03}_{path.stem}.py").write_text(text, "utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821"]
    done = subprocess.run([*ruff, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_mutant_has_a_name_of_its_own_and_changes_something() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 45
    assert all(mutant.old != mutant.new for mutant in MUTANTS)


def test_every_mutant_names_a_test_that_exists() -> None:
    contract = ROOT / "llmsession" / "testing" / "store_contract"
    shared = "".join(path.read_text("utf-8") for path in contract.glob("*.py"))
    missing = []
    for mutant in MUTANTS:
        file = ROOT / "tests" / mutant.suite
        source = file.read_text("utf-8") if file.is_file() else ""
        where, _, test = mutant.test.rpartition("::")
        if where:
            source = shared if f"class {where}(" in source else ""
        if f"def {test}(" not in source:
            missing.append(mutant.node)
    assert missing == []


def test_every_invariant_and_every_rule_is_broken_by_a_mutant() -> None:
    broken = {mutant.breaks for mutant in MUTANTS}
    wanted = {f"invariant {number}" for number in EVERY_INVARIANT}
    # The first one is about where decisions stand, which tests/test_architecture.py looks at.
    wanted |= {f"rule {number}" for number in rules() - {1}}
    assert wanted - broken == set()
    pages = broken - wanted
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_the_list_names_every_mutant_with_its_rule_and_its_test(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for mutant in MUTANTS:
        assert lines[lines.index(f"  {mutant.name} ({mutant.breaks})") + 1].strip() == mutant.node


# How they are written down.


def test_mutants_are_read_from_a_text() -> None:
    text = """
in a.py, by test_a.py
one (rule 1)
    - if x:
    -
    -     y()
    + if not x:
    test_one
two, of another suite and in two files (docs/a.md)
    - gone
    also in b.py
    - old
    + new
    test_b.py
    TestB::test_two

in c.py, by test_c.py
three (invariant 2)
    - 1
    + 2
    test_three
"""
    assert read_mutants(text) == (
        Mutant("one", "rule 1", "a.py", "if x:\n\n    y()", "if not x:", "test_a.py", "test_one"),
        Mutant("two, of another suite and in two files", "docs/a.md", "a.py", "gone", "",
               "test_b.py", "TestB::test_two", (Edit("b.py", "old", "new"),)),
        Mutant("three", "invariant 2", "c.py", "1", "2", "test_c.py", "test_three"),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["one (rule 1)\n    - x\n    t", "in a.py, by b.py\none\n    t"])
def test_a_text_of_mutants_that_lacks_something_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="among the mutants there is a line 'one"):
        read_mutants(text)


# What does not fit.

FITTING = Mutant("x", "rule 1", "turns/ids.py", "self.last += 1", "self.last += 2", "x.py", "t")


def test_a_mutant_changes_its_own_files_and_only_in_the_copy() -> None:
    path = ROOT / "llmsession" / "turns" / "ids.py"
    before = path.read_text("utf-8")
    assert FITTING.broken(ROOT) == {path: before.replace("self.last += 1", "self.last += 2")}
    assert path.read_text("utf-8") == before


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (Edit("turns/ids.py", "nobody wrote this", ""), "0 times in turns/ids.py"),
        (Edit("turns/ids.py", "number", "n"), r"\d+ times in turns/ids.py, not once"),
        (Edit("turns/nowhere.py", "x", "y"), "there is no turns/nowhere.py"),
        (Edit("turns/ids.py", "self.last += 1", "self.last +="), "is no Python"),
    ],
)
def test_a_mutant_that_does_not_fit_any_more_is_named(edit: Edit, told: str) -> None:
    mutant = Mutant("it breaks", "rule 1", edit.file, edit.old, edit.new, "x.py", "t")
    with pytest.raises(Unfit, match=rf"^mutant 'it breaks'.*{told}"):
        mutant.broken(ROOT)


def test_a_mutant_that_nobody_wrote_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "of no such name"]) == 2
    assert capsys.readouterr().err == "error: no mutant is called 'of no such name'\n"


# Running them.


NUMBERS = "test_numbers_start_at_1_and_never_come_back"


def mutant_of_ids(name: str, line: str, test: str = NUMBERS) -> Mutant:
    old = "self.last += 1"
    return Mutant(name, "rule 1", "turns/ids.py", old, line, "turns/test_ids.py", test)


@pytest.mark.timeout(600)  # it starts five processes, on a machine that does other things
def test_what_becomes_of_a_mutant_is_told_apart(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    mutants = (
        mutant_of_ids("caught", "self.last += 0"),
        mutant_of_ids("survived", "self.last += 1 + 0"),
        mutant_of_ids("no name", "self.last += nobody"),
        mutant_of_ids("no test", "self.last += 0", "test_nothing"),
    )
    with Workshop(1, tree) as workshop:
        baseline = workshop.baseline([mutant.node for mutant in mutants])
        verdicts = list(workshop.verdicts(mutants))
    assert set(baseline.failing) == {mutants[3].node}
    assert [(each.mutant, each.outcome) for each in verdicts] == [
        ("caught", "caught"),
        ("survived", "survived"),
        ("no name", "broken"),
        ("no test", "broken"),
    ]
    assert verdicts[0].how.startswith("assert")
    assert verdicts[2].how.startswith("NameError")
    assert "last += 1\n" in (tree / "llmsession" / "turns" / "ids.py").read_text("utf-8")


def small_tree(folder: Path) -> Path:
    """A project of one test, with the real code."""
    tree = folder / "tree"
    shutil.copytree(ROOT / "llmsession", tree / "llmsession")
    shutil.copytree(ROOT / "tests" / "mutants", tree / "tests" / "mutants")
    (tree / "tests" / "turns").mkdir()
    shutil.copy(ROOT / "tests" / "turns" / "test_ids.py", tree / "tests" / "turns")
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_mutant_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--json"])
    told = json.loads(capsys.readouterr().out)
    others = [each for each in told["mutants"] if each["outcome"] != "caught"]
    assert (told["baseline"]["failing"], others) == ({}, [])
    assert code == 0
    assert len(told["mutants"]) == len(MUTANTS)
