"""The release process: what it refuses by looking, and the whole of it in a clone."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

import llmsession
from tools.release import changelog_problems, notes_of, version_problems

ROOT = Path(__file__).resolve().parent.parent
TODAY = date(2027, 1, 15)
INIT = '__version__ = "0.2.0"\n'
PYPROJECT = '[project]\nname = "llmsession"\nversion = "0.2.0"\n'
CHANGELOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2027-01-15

### Added

- A door.

## [0.1.0] - 2026-12-01

- First.
"""


@pytest.mark.parametrize("version", ["0.2.0", "1.12.3", "2.0.0rc1", "2.0.0b12"])
def test_a_version_that_is_the_same_everywhere_is_fine(version: str) -> None:
    pyproject, init = PYPROJECT.replace("0.2.0", version), INIT.replace("0.2.0", version)
    assert version_problems(version, pyproject, init) == []


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.3.0", "pyproject.toml has version 0.2.0: set it to 0.3.0"),
        ("0.3.0", "__version__ 0.2.0: set it to 0.3.0"),
        ("v0.2.0", "'v0.2.0' is no version"),
        ("0.2", "'0.2' is no version"),
        ("0.2.0.dev1", "is no version"),
        ("00.2.0", "is no version"),
    ],
)
def test_another_version_is_refused_with_what_to_do(version: str, said: str) -> None:
    assert any(said in problem for problem in version_problems(version, PYPROJECT, INIT))


def test_a_package_without_a_version_is_refused() -> None:
    (problem,) = version_problems("0.2.0", PYPROJECT, "")
    assert "__version__ none" in problem


def test_a_changelog_with_a_dated_section_for_the_version_is_fine() -> None:
    assert changelog_problems("0.2.0", CHANGELOG, TODAY) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("## [0.2.0] - 2027-01-15", "", "no section [0.2.0]: name what stands under [Unreleased]"),
        ("## [Unreleased]\n", "", "does not begin with a section [Unreleased]"),
        ("## [Unreleased]\n", "## [Unreleased]\n\n- More.\n", "[Unreleased] of CHANGELOG.md is"),
        ("### Added\n\n- A door.\n", "", "[0.2.0] of CHANGELOG.md is empty"),
        (" - 2027-01-15", "", "the date of [0.2.0] in CHANGELOG.md is ''"),
        ("2027-01-15", "15.1.2027", "is '15.1.2027': write 2027-01-15"),
        ("2027-01-15", "2027-01-16", "is '2027-01-16': write 2027-01-15"),
        ("## [0.2.0]", "## [0.3.0] - 2027-01-15\n\n- C.\n\n## [0.2.0]", "is not the newest one"),
    ],
)  # fmt: skip
def test_a_changelog_that_is_not_ready_is_refused_with_what_to_do(
    before: str, after: str, said: str
) -> None:
    assert before in CHANGELOG
    problems = changelog_problems("0.2.0", CHANGELOG.replace(before, after, 1), TODAY)
    assert any(said in problem for problem in problems), problems


def test_the_notes_of_a_release_are_what_its_section_says() -> None:
    assert notes_of("0.2.0", CHANGELOG) == "### Added\n\n- A door."
    assert notes_of("0.1.0", CHANGELOG) == "- First."
    assert notes_of("Unreleased", CHANGELOG) == notes_of("9.9.9", CHANGELOG) == ""


def test_the_version_of_this_tree_is_the_same_everywhere() -> None:
    pyproject, init = (
        (ROOT / name).read_text("utf-8") for name in ("pyproject.toml", "llmsession/__init__.py")
    )
    assert version_problems(llmsession.__version__, pyproject, init) == []


# The whole, in a clone.


@pytest.mark.long
def test_a_release_is_rehearsed_made_and_tagged_in_a_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git("clone", "-q", str(ROOT), str(clone), cwd=ROOT)
    said = release(clone, "--rehearse", "--no-tests")
    assert "nothing was published" in said
    version = llmsession.__version__
    changelog = clone / "CHANGELOG.md"
    if f"## [{version}]" not in changelog.read_text("utf-8"):
        assert f"would stop a release: CHANGELOG.md has no section [{version}]" in said
        titled = f"## [Unreleased]\n\n## [{version}] - 2026-01-01\n"
        text = changelog.read_text("utf-8").replace("## [Unreleased]\n", titled, 1)
        changelog.write_text(text, "utf-8")
    stopped = release(clone, version, "--no-tests", "--tag", code=1)
    assert "the tree is not clean" in stopped
    commit(clone)
    said = release(clone, version, "--no-tests", "--tag", code=None)
    if "commit it, and run again" in said:
        commit(clone)
        said = release(clone, version, "--no-tests", "--tag")
    assert f"tagged v{version}, here only" in said
    names = {file.name for file in (clone / "dist").iterdir()}
    assert names == {f"llmsession-{version}.tar.gz", f"llmsession-{version}-py3-none-any.whl"}
    assert git("tag", "--list", cwd=clone).split() == [f"v{version}"]
    assert f"the tag v{version} exists" in release(clone, version, "--no-tests", code=1)


def release(clone: Path, *arguments: str, code: int | None = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tools.release", *arguments],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done.stdout + done.stderr


def commit(clone: Path) -> None:
    git("add", "-A", cwd=clone)
    git("commit", "-q", "-m", "Prepare the release", cwd=clone)


def git(*arguments: str, cwd: Path) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=cwd, capture_output=True, text=True, check=True
    ).stdout
