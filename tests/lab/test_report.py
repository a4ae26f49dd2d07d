"""The report opens, is one file, and shows what the rows say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from llmsession.compaction.policies import Balanced, FullHistory
from llmsession.lab.charts import MAX_POINTS, Dot, Line, curves, scatter, short
from llmsession.lab.comparing import Compared, compare, ready, summed
from llmsession.lab.report import CAVEATS, html_report
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
    bold = re.findall(r"<tr class=best><td>(\w+)", small)
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
    assert {each.text for each in tree.iter("title")} == {"a & b", "b"}


def test_numbers_are_short() -> None:
    assert [short(each) for each in (0.853, 12, 1_234, 5_600_000, 2e9)] == [
        "0.853", "12", "1.23k", "5.6M", "2G",
    ]  # fmt: skip
