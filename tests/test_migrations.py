"""The migration pages: our side of each does what it prints, walked block by block."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.walking import reader_environment, walk

PAGES = sorted((Path(__file__).parents[1] / "docs" / "explanation").glob("migrate-from-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_our_side_of_a_migration_page_does_what_it_prints(page: Path, tmp_path: Path) -> None:
    walk(page, tmp_path, reader_environment(tmp_path, Path(sys.executable).parent))
