"""The page says who is ahead, also when it is a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.peers.catalogue import OURS
from benchmarks.peers.page import ahead, plot, table, write_page
from benchmarks.peers.results import Found, Results, Round, read_results, write_results
from benchmarks.peers.running import Ran
from benchmarks.peers.works import WORKS

CANCELS = WORKS["random_cancels"]


def results(work: str, **measured: dict[str, Any]) -> Results:
    names = {"ours": OURS, "theirs": "langgraph", "third": "pydantic-ai"}
    found = {names[name]: of(figures) for name, figures in measured.items()}
    return Results(machine="a machine", found={work: found})


def of(*rounds: dict[str, Any]) -> Found:
    return Found(rounds=tuple(Round(day="a day", ran=Ran(figures)) for figures in rounds))


def why(ran: Ran) -> Found:
    return Found(rounds=(Round(ran=ran),))


def test_a_peer_with_a_better_figure_is_said_to_be_ahead_with_both_figures() -> None:
    found = results("random_cancels", ours={"cancel_ms": [4.0, 4.0]}, theirs={"cancel_ms": [1.0]})
    assert list(ahead(CANCELS, found)) == ["langgraph in `cancel_ms` 1 ms, ours 4 ms"]


def test_what_is_worse_or_hardly_better_is_not_ahead() -> None:
    found = results(
        "random_cancels",
        ours={"cancel_ms": [4.0], "refused_next": 0},
        theirs={"cancel_ms": [3.9], "refused_next": 20},
    )
    assert list(ahead(CANCELS, found)) == []


def test_more_is_better_where_the_measure_says_so() -> None:
    found = results("persistence", ours={"turns_per_s": 10.0}, theirs={"turns_per_s": 30.0})
    said = list(ahead(WORKS["persistence"], found))
    assert said == ["langgraph in `turns_per_s` 30 turns/s, ours 10 turns/s"]


def test_a_row_tells_why_there_is_no_figure_and_a_hang_is_never() -> None:
    found = Results(
        found={
            "stubborn_tool": {
                OURS: of({"return_s": 0.1, "hangs": False}),
                "langgraph": why(Ran(unsupported="there is | no such call")),
                "pydantic-ai": of({"return_s": None, "hangs": True}),
            }
        }
    )
    rows = table(WORKS["stubborn_tool"], found).splitlines()
    assert "not offered: there is / no such call" in rows[3]
    assert rows[4].startswith("| pydantic-ai | never |")
    assert len({row.count("|") for row in rows[:5]}) == 1


def test_a_plot_is_well_formed_and_names_every_row() -> None:
    found = results(
        "random_cancels", ours={"cancel_ms": [1.0, 9.0]}, theirs={"cancel_ms": [900.0]}, third={}
    )
    drawn = plot(CANCELS, found)
    texts = [node.text or "" for node in ElementTree.fromstring(drawn).iter() if node.text]
    assert {OURS, "langgraph", "pydantic-ai"} <= set(texts)
    assert any("logarithmic" in text for text in texts)


def test_writing_the_page_twice_keeps_what_stands_around_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "explanation" / "comparison.md"
    page.parent.mkdir(parents=True)
    page.write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")
    found = results("random_cancels", ours={"cancel_ms": [1.0]}, theirs={"cancel_ms": [2.0]})
    write_page(found, tmp_path)
    once = page.read_text()
    write_page(found, tmp_path)
    assert page.read_text() == once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert (tmp_path / "docs" / "pictures" / "peers" / "random_cancels.svg").exists()


def row_of(work: str, *rounds: dict[str, Any]) -> list[str]:
    """The cells of the row of a peer with these rounds, by the table."""
    found = Results(found={work: {OURS: of(*rounds)}})
    head, _, row, *_ = table(WORKS[work], found).splitlines()
    return [
        f"{name}={cell}" for name, cell in zip(head.split(" | "), row.split(" | "), strict=True)
    ]


def test_a_cell_is_the_median_of_the_rounds_with_their_range() -> None:
    cells = row_of(
        "random_cancels",
        {"cancel_ms": [1.0, 1.0, 9.0], "refused_next": 0, "hangs": 3, "left": {"part": 2}},
        {"cancel_ms": [3.0, 3.0, 5.0], "refused_next": 0, "hangs": 5, "left": {"whole": 1}},
        {"cancel_ms": [2.0, 2.0, 7.0], "refused_next": 0, "hangs": 4, "left": {"part": 1}},
    )
    assert "refused_next=0" in cells
    assert "cancel_ms, ms=2 (1 to 3; p99 7)" in cells
    assert "hangs=4 (3 to 5)" in cells
    assert "left=part 3, whole 1" in cells


def test_rounds_that_disagree_are_counted_and_the_word_of_most_is_told() -> None:
    cells = row_of(
        "stubborn_tool",
        {"return_s": 0.5, "false_outcome": True, "next_refused": False, "told": "aborted"},
        {"return_s": None, "hangs": True, "false_outcome": False, "next_refused": False},
        {"return_s": 0.5, "false_outcome": True, "next_refused": False, "told": "aborted"},
    )
    assert "return_s, s=0.5 (never in 1 of 3)" in cells
    assert "false_outcome=yes in 2 of 3" in cells
    assert "next_refused=no" in cells
    assert "told=aborted" in cells


def test_rounds_without_figures_are_told_beside_those_that_have_some() -> None:
    rounds = (*of({"turns_per_s": 2.0}).rounds, Round(ran=Ran(failed="out of memory")))
    found = Results(found={"persistence": {OURS: Found(rounds=rounds)}})
    row = table(WORKS["persistence"], found).splitlines()[2]
    assert row.startswith(f"| {OURS} (no figures of 1 of 2 rounds: out of memory) | 2 |")


def test_a_plot_draws_the_range_of_the_rounds() -> None:
    several = of({"turns_per_s": 30.0}, {"turns_per_s": 10.0}, {"turns_per_s": 20.0})
    one = of({"turns_per_s": 20.0})
    found = Results(found={"persistence": {OURS: several, "langgraph": one}})
    drawn = ElementTree.fromstring(plot(WORKS["persistence"], found))
    shapes = {name: list(drawn.iter(f"{{http://www.w3.org/2000/svg}}{name}")) for name in LINES}
    (line,) = shapes["line"]
    widths = [float(rect.get("width", "0")) for rect in shapes["rect"] if rect.get("class") in BARS]
    assert widths[0] == widths[1]
    assert float(line.get("x1", "0")) < float(line.get("x2", "0"))


LINES, BARS = ("line", "rect"), ("ours", "theirs")


def test_results_come_back_with_a_line_for_each_round(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks" / "results.json"
    assert read_results(path) == Results()
    kept = results("random_cancels", ours={"cancels": 1, "cancel_ms": [1.0, 2.0]}, theirs={})
    kept = kept.having("random_cancels", OURS, {}, Round(ran=Ran({"cancels": 2})))
    write_results(path, kept)
    assert read_results(path) == kept
    assert sum(b'"day"' in line for line in path.read_bytes().splitlines()) == 3


def test_a_round_is_added_to_those_of_the_same_versions_only() -> None:
    new = Round(ran=Ran({"cancels": 2}))
    kept = Results().having("two_sends", OURS, {"it": "1"}, new)
    assert len(kept.having("two_sends", OURS, {"it": "1"}, new).rounds_of("two_sends", OURS)) == 2
    assert kept.having("two_sends", OURS, {"it": "2"}, new).rounds_of("two_sends", OURS) == (new,)


def test_rows_that_are_measured_anew_leave_the_others_as_they_are() -> None:
    kept = results("random_cancels", ours={"cancels": 1}, theirs={"cancels": 1})
    left = kept.without("random_cancels", OURS)
    assert left.rounds_of("random_cancels", OURS) == ()
    assert left.rounds_of("random_cancels", "langgraph") == kept.rounds_of(
        "random_cancels", "langgraph"
    )
