"""README and the security page: the quickstart, and a test for each promise and each threat."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def quickstart() -> tuple[str, str]:
    """The program of the README, and what the README says that it prints."""
    section = README.split("\n## Quickstart\n")[1].split("\n## ")[0]
    blocks = dict(re.findall(r"```(python|output)\n(.*?)```", section, re.DOTALL))
    return blocks["python"], blocks["output"]


def test_the_quickstart_streams_and_interrupts_in_at_most_twenty_lines() -> None:
    program, _ = quickstart()
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
    assert "stream_text()" in program
    assert "interrupt()" in program


def test_the_quickstart_runs_as_it_is_printed(tmp_path: Path) -> None:
    program, output = quickstart()
    file = tmp_path / "quickstart.py"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, output), done.stderr
    assert done.stderr == ""


def promises(page: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The rows of the tables of promises on *page*: each row, and the tests that it names."""
    section = page.split("# What you can rely on\n")[1].split("\n## Documentation", maxsplit=1)[0]
    rows = [line for line in section.splitlines() if "`tests/" in line]
    return [(row, re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)) for row in rows]


PROMISES = (ROOT / "docs" / "explanation" / "promises.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "rows"), [(README, 8), (PROMISES, 15)], ids=["README", "page"])
def test_every_promise_names_a_test_that_exists(page: str, rows: int) -> None:
    promised = promises(page)
    assert len(promised) >= rows
    for row, tests in promised:
        assert tests, row
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_the_page_of_promises_has_each_invariant_and_each_promise_of_the_readme() -> None:
    rows = promises(PROMISES)
    numbers = [int(row.split("|")[1]) for row, _ in rows if row.split("|")[1].strip().isdecimal()]
    assert sorted(numbers) == list(range(1, 15))
    tests = {test for _, named in rows for test in named}
    for row, named in promises(README):
        assert len(named) == 1, row
        assert named[0] in tests, row


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/contributing/release.md"])
def test_every_file_that_a_page_for_contributors_names_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:docs|examples|llmsession|proto|tests|tools)/[\w./-]*)`", text)
    assert len(named) >= 3
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_threat_in_the_security_page_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) >= 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
