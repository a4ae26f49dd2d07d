"""The page says who is ahead, also when it is a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.peers.catalogue import OURS
from benchmarks.peers.page import ahead, plot, table, write_page
from benchmarks.peers.results import Found, Results, read_results, write_results
from benchmarks.peers.running import Ran
from benchmarks.peers.works import WORKS

CANCELS = WORKS["random_cancels"]


def results(work: str, **measured: dict[str, Any]) -> Results:
    names = {"ours": OURS, "theirs": "langgraph", "third": "pydantic-ai"}
    found = {names[name]: Found(ran=Ran(figures)) for name, figures in measured.items()}
    return Results(machine="a machine", found={work: found})


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
                OURS: Found(ran=Ran({"return_s": 0.1, "hangs": False})),
                "langgraph": Found(ran=Ran(unsupported="there is | no such call")),
                "pydantic-ai": Found(ran=Ran({"return_s": None, "hangs": True})),
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


def test_results_come_back_and_rows_that_were_not_run_stay(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks" / "results.json"
    assert read_results(path) == Results()
    write_results(path, results("random_cancels", ours={"cancels": 1}, theirs={"cancels": 1}))
    joined = read_results(path).joined(results("random_cancels", ours={"cancels": 2}))
    rows = joined.found["random_cancels"]
    assert rows[OURS].ran.measured == {"cancels": 2}
    assert rows["langgraph"].ran.measured == {"cancels": 1}
