"""The pictures of the docs are those that the code draws, and each says in words what it shows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pictures.draw import FOLDER, PICTURES
from docs.pictures.turn import DRAWN, NAMED, ways

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", PICTURES)
def test_a_committed_picture_is_what_the_source_draws(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PICTURES[name](), "make pictures"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_title_a_description_and_colours_for_dark_mode(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    root = ET.fromstring(text)
    for element in ("title", "desc"):
        found = root.find(f"{SVG}{element}")
        assert found is not None
        assert found.text
        assert found.attrib["id"] in root.attrib["aria-labelledby"].split()
    assert "@media(prefers-color-scheme:dark)" in text
    assert "://" not in text.replace('xmlns="http://www.w3.org/2000/svg"', ""), "it asks a host"


def test_the_picture_of_a_turn_shows_each_way_of_the_turn_table_and_no_other() -> None:
    assert ways() == DRAWN | NAMED
    assert not DRAWN & NAMED


def images() -> Iterator[tuple[Path, str, str]]:
    """Each image of a document: the document, the alternative text, the file."""
    for page in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]:
        if "_build" not in page.parts:
            for alternative, target in IMAGE.findall(page.read_text("utf-8")):
                yield page, alternative, target


def test_every_image_of_a_document_is_there_and_has_an_alternative_text() -> None:
    for page, alternative, target in images():
        assert (page.parent / target).is_file(), f"{page}: {target}"
        assert alternative.strip(), f"{page}: {target}"


def test_every_picture_is_shown_in_a_document() -> None:
    shown = {(page.parent / target).resolve() for page, _, target in images()}
    assert {FOLDER.resolve() / name for name in PICTURES} <= shown
