"""Make a release, and publish nothing: ``make release VERSION=0.2.0``.

Each step has to pass before the next one begins. ``--rehearse`` tries all of them on the tree as
it is: what would stop a release is said, and only what is broken stops it. A tag is made with
``--tag`` alone, and pushing it is left to you. docs/contributing/release.md is the list to follow.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

__all__ = ["Stopped", "changelog_problems", "main", "notes_of", "version_problems"]

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((?:a|b|rc)[1-9]\d*)?")
"""Semantic versions, with the pre-releases that Python installers know."""
SECTION = re.compile(r"^## \[([^\]]+)\](?: - (\S+))?[ \t]*$", re.MULTILINE)


class Stopped(Exception):
    """The release cannot be made; the message says why, and what to do."""


# What is decided by looking at texts.


def version_problems(version: str, pyproject: str, init: str) -> list[str]:
    """What is wrong with *version*, given the texts of the two files that have it, too."""
    problems = []
    if not VERSION.fullmatch(version):
        problems.append(f"{version!r} is no version like 1.2.3 or 1.2.3rc1")
    declared = tomllib.loads(pyproject)["project"]["version"]
    if declared != version:
        problems.append(f"pyproject.toml has version {declared}: set it to {version}")
    found = re.search(r'^__version__ = "([^"]*)"$', init, re.MULTILINE)
    if found is None or found[1] != version:
        told = found[1] if found else "none"
        problems.append(f"llmsession/__init__.py has __version__ {told}: set it to {version}")
    return problems


def changelog_problems(version: str, changelog: str, today: date) -> list[str]:
    """What is wrong with the text *changelog* for a release of *version* on *today*."""
    sections = SECTION.findall(changelog)
    names = [name for name, _ in sections]
    if not names or names[0] != "Unreleased":
        return ["CHANGELOG.md does not begin with a section [Unreleased]: add an empty one"]
    if version not in names:
        return [
            f"CHANGELOG.md has no section [{version}]: name what stands under [Unreleased] so,"
            f" as '## [{version}] - {today}', and put an empty [Unreleased] before it"
        ]
    problems = []
    if names[1] != version:
        problems.append(f"the section [{version}] of CHANGELOG.md is not the newest one")
    if notes_of("Unreleased", changelog):
        problems.append(f"[Unreleased] of CHANGELOG.md is not empty: move it to [{version}]")
    if not notes_of(version, changelog):
        problems.append(f"the section [{version}] of CHANGELOG.md is empty: say what changed")
    day = dict(sections)[version]
    try:
        is_wrong = date.fromisoformat(day) > today
    except ValueError:
        is_wrong = True
    if is_wrong:
        problems.append(f"the date of [{version}] in CHANGELOG.md is {day!r}: write {today}")
    return problems


def notes_of(version: str, changelog: str) -> str:
    """What the section of *version* says, without its heading; "" where there is none."""
    found = SECTION.search(changelog)
    while found is not None:
        following = SECTION.search(changelog, found.end())
        if found[1] == version:
            return changelog[found.end() : following.start() if following else None].strip()
        found = following
    return ""


# The steps.


class Release:
    """One release, or its rehearsal, step by step."""

    def __init__(self, version: str, *, rehearse: bool, tests: bool) -> None:
        self.version = version
        self.tag = f"v{version}"
        self._rehearse = rehearse
        self._tests = tests

    def run(self) -> list[Path]:
        """Every step; returns the files to publish. Raises Stopped."""
        self._check_texts()
        self._check_tree()
        self._check_code()
        self._keep_artefacts()
        files = self._build()
        self._check_metadata(files)
        self._try_wheel(next(file for file in files if file.suffix == ".whl"))
        return files

    def _check_texts(self) -> None:
        _say("version and changelog")
        pyproject, init = _text("pyproject.toml"), _text("llmsession/__init__.py")
        today = datetime.now(UTC).date()
        self._refuse(
            [
                *version_problems(self.version, pyproject, init),
                *changelog_problems(self.version, _text("CHANGELOG.md"), today),
            ]
        )

    def _check_tree(self) -> None:
        _say("the tree")
        changed = _output("git", "status", "--porcelain")
        problems = [f"the tree is not clean: commit or stash\n{changed}"] if changed else []
        if _output("git", "tag", "--list", self.tag):
            problems.append(f"the tag {self.tag} exists: a version is released once")
        self._refuse(problems)

    def _check_code(self) -> None:
        if self._tests:
            _say("make check, make test")
            _run("make", "check")
            _run("make", "test")
        else:
            _say("make check and make test are left out")

    def _keep_artefacts(self) -> None:
        """Later versions have to open the stores and read the recordings of this one."""
        from tests.compatibility.__main__ import RELEASES, make_artefacts

        _say("stores and recordings for later versions")
        folder = RELEASES / self.version
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / self.version
            make_artefacts(made)
            if folder.is_dir() and _same(made, folder):
                return
            if not self._rehearse:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(made, folder)
            self._refuse(
                [f"{folder.relative_to(ROOT)} was not made by this code: commit it, and run again"]
            )

    def _build(self) -> list[Path]:
        """The sdist, and a wheel that is built from what is in the sdist."""
        _say("sdist and wheel")
        target = ROOT / "dist"
        shutil.rmtree(target, ignore_errors=True)
        _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(target))
        (sdist,) = target.glob("*.tar.gz")
        with tempfile.TemporaryDirectory() as scratch:
            with tarfile.open(sdist) as archive:
                archive.extractall(scratch, filter="data")
            (source,) = Path(scratch).iterdir()
            command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
            _run(*command, cwd=source)
        return sorted(target.iterdir())

    def _check_metadata(self, files: Sequence[Path]) -> None:
        _say("twine check")
        _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))

    def _try_wheel(self, wheel: Path) -> None:
        """In an empty environment: the quickstart, then the command."""
        from tests.test_packaging import PRINTED, QUICKSTART, Environment

        _say("the wheel in an empty environment")
        with tempfile.TemporaryDirectory() as scratch:
            environment = Environment(Path(scratch), wheel)
            if environment.passes(QUICKSTART) != PRINTED:
                raise Stopped("the quickstart of README.md prints something else")
            environment.becomes("cli")
            said = environment.run("-m", "llmsession", "--version").stdout
            declared = tomllib.loads(_text("pyproject.toml"))["project"]["version"]
            if said != f"llmsession {declared}\n":
                raise Stopped(f"llmsession --version prints {said!r}")

    def _refuse(self, problems: list[str]) -> None:
        if problems and not self._rehearse:
            raise Stopped("\n".join(problems))
        for problem in problems:
            _say(f"would stop a release: {problem}")


def _same(made: Path, kept: Path) -> bool:
    """Do both folders say the same? The bytes of a store and the pieces of a preview differ each
    time; what is in the stores, what the client says and each record do not."""
    for name in ("store.json", "records.jsonl"):
        if not (kept / name).is_file() or (made / name).read_bytes() != (kept / name).read_bytes():
            return False
    return _client_side(made) == _client_side(kept)


def _client_side(folder: Path) -> list[object]:
    lines = [json.loads(line) for line in (folder / "wire.jsonl").read_text("utf-8").splitlines()]
    return [line["frame"] for line in lines if line["from"] == "client"]


def _text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _say(line: str) -> None:
    print(f"release: {line}", flush=True)


def _run(*command: str, cwd: Path = ROOT) -> None:
    if subprocess.run(command, cwd=cwd, check=False).returncode:
        raise Stopped(f"{' '.join(command)} failed")


def _output(*command: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; the exit code is 1 where one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("version", nargs="?", help="without one, that of pyproject.toml")
    parser.add_argument("--rehearse", action="store_true", help="try the steps on any tree")
    parser.add_argument("--tag", action="store_true", help="make the tag, here only")
    parser.add_argument("--no-tests", action="store_true", help="leave out make check, make test")
    options = parser.parse_args(arguments)
    if options.tag and options.rehearse:
        parser.error("--tag is for a release, not for a rehearsal")
    version = options.version or tomllib.loads(_text("pyproject.toml"))["project"]["version"]
    release = Release(version, rehearse=options.rehearse, tests=not options.no_tests)
    try:
        files = release.run()
    except Stopped as stopped:
        print(f"release: stopped: {stopped}", file=sys.stderr)
        return 1
    if options.tag:
        notes = notes_of(version, _text("CHANGELOG.md"))
        message = f"llmsession {version}\n\n{notes}\n"
        _run("git", "tag", "--annotate", "--cleanup=verbatim", release.tag, "-m", message)
        _say(f"tagged {release.tag}, here only")
    _say(f"{len(files)} files in dist: {', '.join(file.name for file in files)}")
    _say("nothing was published; docs/contributing/release.md says how to go on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
