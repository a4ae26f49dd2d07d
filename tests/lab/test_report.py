"""The report opens, is one file, and shows what the rows say."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from llmsession.compaction.policies import Balanced, FullHistory
from llmsession.lab.charts import MAX_POINTS, WIDTH, Dot, Line, curves, scatter
from llmsession.lab.comparing import Compared, compare, ready, summed
from llmsession.lab.labels import CHAR_WIDTH, LINE_HEIGHT
from llmsession.lab.report import CAVEATS, MAX_CHARTED, html_report
from tests.compaction.conversations import required
from tests.lab.recorded import Recorded
from tests.lab.talks import long_talk

VOID = {"meta"}


class Page(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


def compared(file: str = "talk <one>.jsonl") -> list[Compared]:
    subjects = ready([long_talk().done()])
    return list(compare(file, subjects, [Balanced(), FullHistory()], [16_000, 200_000]))


def test_the_page_is_whole_and_says_what_a_reader_has_to_know() -> None:
    page = Page(html_report(compared()))
    text = "".join(page.texts)
    assert all(caveat in text for caveat in CAVEATS)
    assert "counterfactual" in text
    assert "talk <one>.jsonl" in text
    assert page.tags.count("section") == 2
    assert page.tags.count("svg") == 4


def test_the_page_needs_nothing_else() -> None:
    html = html_report(compared())
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(page.tags)
    assert not {"src", "href", "xlink:href", "srcset", "data"} & page.attributes.keys()
    assert not re.search(r"https?:|url\(|@import", html)


def test_every_chart_is_well_formed_and_marks_each_rewrite() -> None:
    rows = compared()
    charts = re.findall(r"<svg.*?</svg>", html_report(rows), re.DOTALL)
    trees = [ElementTree.fromstring(chart) for chart in charts]
    marks = [each for each in trees[0].iter("circle") if each.get("class") == "mark"]
    first = rows[0]
    assert len(marks) == sum(step.rewritten for step in required(first.curve).steps) > 0
    assert {title.text for title in trees[0].iter("title")} >= {"balanced"}


def test_a_policy_that_gave_up_is_hollow_and_not_bold() -> None:
    html = html_report(compared())
    small = html.split("<section>")[1]
    scatter_chart = re.findall(r"<svg.*?</svg>", small, re.DOTALL)[1]
    assert "balanced" in scatter_chart
    bold = re.findall(r"<tr class=best><td>\d+</td><td>(\w+)", small)
    assert bold == ["balanced"]


def test_sums_stand_in_front() -> None:
    rows = [*compared("one"), *compared("two")]
    page = html_report(rows, summed("both of them", rows))
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        *["both of them"] * 2,
        *["one"] * 2,
        *["two"] * 2,
    ]


def test_a_page_without_rows_or_needs_is_a_page() -> None:
    Page(html_report([]))
    subjects = ready([Recorded().ask().reply("done", None).done()])
    Page(html_report(list(compare("f", subjects, [Balanced()], [16_000]))))


def test_a_long_curve_is_thinned_and_keeps_its_height() -> None:
    points = tuple((float(at), float(at % 997)) for at in range(5_000))
    drawn = curves([Line("long", "red", points)], limit=None, x_name="x", y_name="y")
    tree = ElementTree.fromstring(drawn)
    (line,) = tree.iter("polyline")
    shown = [pair.split(",") for pair in (line.get("points") or "").split()]
    assert len(shown) <= MAX_POINTS
    top = min(float(y) for _, y in shown)
    assert top == min(float(y) for _, y in shown if y)


def test_without_points_there_is_no_chart() -> None:
    assert curves([], limit=1.0, x_name="x", y_name="y") == ""
    assert scatter([], [], x_name="x", y_name="y") == ""


def test_equal_dots_and_odd_names_are_drawn() -> None:
    dots = [Dot("<a>", "red", 1.0, 1.0, "a & b"), Dot("b", "blue", 1.0, 1.0, "b", hollow=True)]
    tree = ElementTree.fromstring(scatter(dots, [(1.0, 1.0)], x_name="x", y_name="y"))
    assert [each.findtext("title") for each in tree.iter("circle")] == ["a & b", "b"]
    assert [each.text for each in tree.iter("text")][-1] == "1-2"


def crowd(count: int) -> list[Dot]:
    """Policies as they lie in a wide window: most on one spot, some far off, some unmeasured."""
    rng = random.Random(3)
    dots = [Dot(f"policy_number_{n}", "red", 155_000.0, 1.0, f"told {n}") for n in range(count)]
    for n in range(0, count, 3):
        y = None if n % 4 == 0 else rng.uniform(0.9, 1.0)
        x = rng.uniform(135_000, 160_000)
        dots[n] = Dot(f"policy_number_{n}", "red", x, y, f"told {n}", hollow=n % 5 == 0)
    dots[1] = Dot("far_off", "red", 9e9, -50.0, "told far", hollow=True)
    return dots


def named_numbers(labels: list[str], names: list[str]) -> set[int]:
    """The numbers of all dots that *labels* name, by number or by name."""
    found: set[int] = set()
    for label in labels:
        if label in names:
            found.add(names.index(label) + 1)
            continue
        for part in label.split(", "):
            low, _, high = part.partition("-")
            found |= set(range(int(low), int(high or low) + 1))
    return found


@pytest.mark.parametrize("count", [2, 7, 30, 66])
def test_every_dot_is_drawn_and_named_and_no_two_labels_overlap(count: int) -> None:
    dots = crowd(count)
    chart = scatter(dots, [(155_000.0, 1.0)], x_name="cost", y_name="retained")
    tree = ElementTree.fromstring(chart)
    marks = [*tree.iter("circle"), *tree.iter("rect")]
    assert {mark.findtext("title") for mark in marks} == {dot.told for dot in dots}
    assert all(0 <= float(mark.get("cx") or mark.get("x") or 0) <= WIDTH for mark in marks)
    labels = [text for text in tree.iter("text") if text.get("class") == "name"]
    titles = ", ".join(label.findtext("title") or "" for label in labels).split(", ")
    assert sorted(titles) == sorted(f"{n} {dot.name}" for n, dot in enumerate(dots, 1))
    boxes = [
        (float(text.get("x") or 0), float(text.get("y") or 0), len(text.text or "") * CHAR_WIDTH)
        for text in tree.iter("text")
        if text.get("class") == "name"
    ]
    for (x, y, width), (other_x, other_y, other_width) in combinations(boxes, 2):
        beside = x + width <= other_x + 0.2 or other_x + other_width <= x + 0.2
        assert beside or abs(y - other_y) >= LINE_HEIGHT - 0.2


def test_the_labels_of_a_few_dots_are_their_names_or_numbers_of_the_rows() -> None:
    names = [f"p{n}" for n in range(1, 9)]
    dots = [Dot(name, "red", 1.0 + (n > 4), 1.0, name) for n, name in enumerate(names)]
    dots[3] = Dot("p4", "red", 1.5, 0.5, "p4")
    tree = ElementTree.fromstring(scatter(dots, [], x_name="x", y_name="y"))
    labels = [text.text or "" for text in tree.iter("text") if text.get("class") == "name"]
    assert sorted(labels) == ["1-3, 5", "6-8", "p4"]
    assert named_numbers(labels, names) == set(range(1, 9))


def test_every_row_of_the_table_is_in_the_charts_by_its_number() -> None:
    for section in html_report(compared()).split("<section>")[1:]:
        chart = re.findall(r"<svg.*?</svg>", section, re.DOTALL)[-1]
        tree = ElementTree.fromstring(chart)
        titles = [
            title
            for text in tree.iter("text")
            if text.get("class") == "name"
            for title in (text.findtext("title") or "").split(", ")
        ]
        rows = re.findall(r"<tr[^>]*><td>(\d+)</td><td>(\w+)</td>", section)
        assert sorted(titles) == sorted(" ".join(row) for row in rows) != []


def test_files_past_the_largest_have_the_scatter_without_the_curves() -> None:
    one = compared()[0]
    files = [f"file-{n}" for n in range(MAX_CHARTED + 1)]
    rows = [replace(one, row=replace(one.row, file=file)) for file in files]
    sections = html_report(rows).split("<section>")[1:]
    assert sorted(section.count("<svg") for section in sections) == [1] + [2] * MAX_CHARTED


def test_no_tick_is_repeated_or_overlaps_another() -> None:
    points = tuple((float(n), 155_000.0 + n) for n in range(4))
    dots = [Dot("a", "red", 155_001.0, 0.99991, "a"), Dot("b", "red", 155_009.0, 0.99998, "b")]
    charts = [
        curves([Line("a", "red", points)], limit=200_000.0, x_name="request", y_name="context"),
        curves([Line("a", "red", ((0.0, 7.0),))], limit=None, x_name="request", y_name="context"),
        scatter(dots, [], x_name="cost", y_name="retained"),
    ]
    for chart in charts:
        ticks = [t for t in ElementTree.fromstring(chart).iter("text") if t.get("class") == "tick"]
        upright = [t for t in ticks if t.get("text-anchor") == "end"]
        flat = [t for t in ticks if t.get("text-anchor") == "middle"][:-1]
        for axis in (upright, flat):
            texts = [t.text for t in axis]
            assert len(set(texts)) == len(texts) >= 1
        (name,) = [t for t in ticks if t.get("text-anchor") is None]
        assert all(float(t.get("y") or 0) - float(name.get("y") or 0) >= 11 for t in upright)
        for left, right in pairwise(flat):
            room = float(right.get("x") or 0) - float(left.get("x") or 0)
            assert room > 3.2 * (len(left.text or "") + len(right.text or ""))
