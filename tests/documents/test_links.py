"""Every link and image of a document leads to a file, and to a heading that is in it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.documents.pages import ROOT, links, name_of, pages, prose, text_of

_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_NAMED = re.compile(r"<a (?:id|name)=\"([^\"]+)\"|^\(([\w-]+)\)=$|\{#([\w-]+)\}", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of *page*: those that code hosts give its headings, and those that it names."""
    found: set[str] = {name for names in _NAMED.findall(text_of(page)) for name in names if name}
    times: Counter[str] = Counter()
    for heading in _HEADING.findall(prose(page)):
        anchor = _anchor(heading)
        number = times[anchor]
        times[anchor] += 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def _anchor(heading: str) -> str:
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def _wrong(page: Path, link: str) -> str | None:
    """What is wrong with *link* on *page*, if anything."""
    if re.match(r"[a-z]+:", link):
        return None
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT):
        return "is outside of the project"
    if not target.exists():
        return "is no file"
    if anchor and (target.suffix != ".md" or anchor not in anchors(target)):
        return "has no such heading"
    return None


@pytest.mark.parametrize("page", pages("link"), ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    wrong = {link: why for link in links(page) if (why := _wrong(page, link))}
    assert wrong == {}


def test_links_are_found_wherever_they_stand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](one.md) and [`b`](two.md#x), ![c [d]](three.svg)\n`[no](code.md)`\n"
        "```text\n[no](block.md)\n```\n<!-- [no](comment.md) -->\n"
        '[e]: four.md\n<img alt="" src="five.svg"> [![f](six_(7).md "title")](eight.md)\n'
    )
    found = {"one.md", "two.md#x", "three.svg", "six_(7).md", "eight.md", "four.md", "five.svg"}
    assert set(links(page)) == found


def test_headings_have_the_anchors_of_code_hosts(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What `it` does, and why\n## Twice\n## Twice\n```sh\n# no heading\n```\n"
        '<a id="by-hand"></a>\n## [A link](x.md)\n(named)=\n## snake_case'
    )
    assert anchors(page) == {
        "what-it-does-and-why", "twice", "twice-1", "by-hand", "a-link", "named", "snake_case",
    }  # fmt: skip
