"""The project around the code: lint, format, types, the lock, the wheel, and setting up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent

PIN = re.compile(r"([a-z0-9-]+)==([a-z0-9.+!]+)( ; [\w\s'=<>!.*()-]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
COMMENT = re.compile(r" *# {1,4}[\w\s.:()-]+")


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command of this Python; its output is the failure's message."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    return {pin[1]: pin[2] for line in lines if (pin := PIN.fullmatch(line))}


def requirements() -> Iterator[Requirement]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for group in (
        pyproject["build-system"]["requires"],
        pyproject["project"]["dependencies"],
        *pyproject["project"]["optional-dependencies"].values(),
        *pyproject["dependency-groups"].values(),
    ):
        yield from (Requirement(line) for line in group if not line.startswith("llmsession["))


def test_the_linter_finds_nothing() -> None:
    run("ruff", "check", ".")


def test_every_file_is_formatted() -> None:
    run("ruff", "format", "--check", ".")


@pytest.mark.timeout(600)  # without a cache it reads every dependency
def test_the_strict_type_checker_finds_nothing() -> None:
    run("mypy")


@pytest.mark.timeout(600)
def test_code_of_a_user_is_checked_against_the_installed_package(tmp_path: Path) -> None:
    # From elsewhere and without our settings: the types are found through py.typed or not at all.
    cache = ROOT / ".mypy_cache" / "user"
    user_code = shutil.copy(ROOT / "tests" / "typing" / "user_code.py", tmp_path)
    flags = ("--strict", f"--config-file={os.devnull}", f"--cache-dir={cache}")
    run("mypy", *flags, user_code, cwd=tmp_path)


def test_the_lock_holds_pins_and_hashes_and_names_no_host_or_folder() -> None:
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    odd = [line for line in lines if not any(p.fullmatch(line) for p in (PIN, HASH, COMMENT))]
    assert odd == []
    assert "://" not in "".join(lines)


def test_the_lock_covers_every_dependency_of_the_project() -> None:
    pins = locked()
    missing = []
    for requirement in requirements():
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None or not requirement.specifier.contains(pin):
            missing.append(str(requirement))
    assert missing == [], "run make lock"


def test_the_wheel_holds_one_import_package_and_its_types(tmp_path: Path) -> None:
    run("hatchling", "build", "-t", "wheel", "-d", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"llmsession"}
    assert {"llmsession/__init__.py", "llmsession/py.typed"} <= set(names)
    wire = {"wire.schema.json", "session.proto"}
    assert {f"llmsession/transport/v1/{name}" for name in wire} <= set(names)


def test_setting_up_with_an_old_python_says_so_in_one_line(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1 || exit 1\n')
    old.chmod(0o755)
    # Not as a child of a make that runs these tests: it would add its own lines and options.
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        ["make", "setup", f"PYTHON={old}"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    said, *stopped = done.stderr.splitlines()
    assert done.returncode != 0
    assert said.startswith("llmsession needs Python 3.11 or newer")
    assert "3.9.1" in said
    assert len(stopped) == 1  # make's own line
    assert not (tmp_path / ".venv").exists()
