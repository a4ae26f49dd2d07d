"""README and the security page: the quickstart, and a test for each promise and each threat."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def quickstart() -> str:
    found = re.search(r"## Quickstart\n\n```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_quickstart_is_at_most_twelve_lines_long() -> None:
    assert len([line for line in quickstart().splitlines() if line.strip()]) <= 12


def test_the_quickstart_runs_as_it_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "quickstart.py"
    file.write_text(quickstart(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stdout) == (0, "Hello from a script. 2\n"), done.stderr


def test_every_promise_in_the_readme_names_a_test_that_exists() -> None:
    section = README.split("## What you can rely on")[1].split("\n## ")[0]
    promised = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section)
    assert len(promised) >= 15
    for file, test in promised:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_every_threat_in_the_security_page_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) >= 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
