"""Every how-to guide begins with an example, and says what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import ROOT, blocks, name_of, text_of

FOLDER = ROOT / "docs" / "how-to"
GUIDES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_guide_begins_with_an_example_and_what_it_prints(page: Path) -> None:
    shown = [block for block in blocks(page) if not block.is_hidden]
    lines = text_of(page).splitlines()
    headings = [number for number, line in enumerate(lines, 1) if line.startswith("## ")]
    assert shown[0].line < headings[0], "the example stands before the first heading"
    # A block of the kind `console` holds what is printed itself.
    first = [block.language for block in shown[:3]]
    assert first[0] == "console" or {"output", "text"} & set(first), first


def test_the_index_lists_every_guide() -> None:
    listed = set(text_of(FOLDER / "index.md").split())
    assert [page.stem for page in GUIDES if page.stem not in listed] == []
