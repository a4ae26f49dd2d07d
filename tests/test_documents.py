"""The documents say what the code does: generated parts are equal, examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from llmsession.compaction.policies import registry
from llmsession.providers import counters_markdown
from llmsession.session.compacting import machine as compaction_machine
from llmsession.session.values import environment
from llmsession.turns import machine as turn_machine

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "table"), [("turn", turn_machine), ("compaction", compaction_machine)]
)
def test_the_tables_in_the_architecture_are_those_in_the_code(name: str, table: ModuleType) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    marks = rf"<!-- {name} table -->\n(.*?)<!-- end of {name} table -->"
    page = re.search(marks, text, re.DOTALL)
    assert page is not None
    assert page[1] == table.table_markdown()


@pytest.mark.parametrize(
    ("page", "name", "table"),
    [
        ("explanation/compaction", "environment", environment.table_markdown),
        ("explanation/compaction", "settings", registry.table_markdown),
        ("how-to/use-providers", "counters", counters_markdown),
        ("explanation/tokens", "counters", counters_markdown),
    ],
)
def test_the_tables_of_a_page_are_those_in_the_code(
    page: str, name: str, table: Callable[[], str]
) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} table -->\n(.*?)<!-- end of {name} table -->", text, re.DOTALL)
    assert found is not None
    assert found[1] == table()


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


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/contributing/release.md"])
def test_every_file_that_a_page_for_contributors_names_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:docs|examples|llmsession|proto|tests|tools)/[\w./-]*)`", text)
    assert len(named) >= 3
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_every_local_link_of_a_document_leads_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_every_threat_in_the_security_page_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) >= 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
