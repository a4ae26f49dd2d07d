"""Each tutorial does what it prints: it is walked block by block, in an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.walking import reader_environment, walk

TUTORIALS = sorted(
    page
    for page in (Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md")
    if page.name != "index.md"
)


@pytest.mark.parametrize("page", TUTORIALS, ids=[page.stem for page in TUTORIALS])
def test_a_tutorial_does_what_it_prints(page: Path, tmp_path: Path) -> None:
    walk(page, tmp_path, reader_environment(tmp_path, Path(sys.executable).parent))
