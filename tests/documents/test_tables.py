"""The generated parts of the documents are what the code says now."""

from __future__ import annotations

from docs.generate import generated
from tests.documents.pages import name_of


def test_every_generated_part_is_current() -> None:
    stale = [
        name_of(page)
        for page, text in generated().items()
        if page.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `make docs-tables`"
