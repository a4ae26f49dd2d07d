"""``llmsession story``: what it shows happened, and what it cannot be told with is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmsession.cli import main
from llmsession.transcripts import Conversation, write_own
from tests.testing.conversations import call, recording, result, text

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "recordings").glob("*.jsonl"))


def tell(*files: Path) -> int:
    try:
        main(["story", *map(str, files)])
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@pytest.fixture(params=["80", "60"])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", request.param)
    return int(request.param)


def test_the_story_shows_the_interrupt_the_receipt_each_swap_and_the_recall(
    columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tell(*EXAMPLES) == 0
    told, err = capsys.readouterr()
    assert err == ""
    assert "recorded replies, no model" in told
    assert "history is base: True" in told
    assert "- deploy (call_1)" in told
    # The second one comes after the turn was committed, and is told all the same.
    assert told.count("swapped ") == 2
    assert "returned whole: True" in told
    assert all(path.name in told for path in EXAMPLES)
    bars = [line for line in told.splitlines() if "█" in line]
    assert len(bars) >= 10
    assert all(line.endswith(" of 44,000 tokens") and len(line) <= columns for line in bars)


def test_a_file_that_cannot_be_read_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for bad in (empty, tmp_path, tmp_path / "nowhere.jsonl"):
        assert tell(bad) == 2
        told, err = capsys.readouterr()
        assert told == ""
        assert err.startswith(f"llmsession: {bad}: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "said",
    [
        recording([[text("a")], [text("b")]]),
        recording([[text("a")], [call("c1"), call("c2")], [result("c1")], [text("b")]]),
        recording([[text("a")], [call("c1")], [result("c1")]]),
        recording([[result("c1")], [text("b")]]),
    ],
    ids=["no call", "an open call", "no end", "no question"],
)
def test_a_conversation_that_the_story_cannot_be_told_with_is_refused_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Conversation
) -> None:
    path = tmp_path / "short.jsonl"
    path.write_bytes(write_own(said))
    assert tell(path) == 2
    told, err = capsys.readouterr()
    assert (told, err.count("\n")) == ("", 1)
    assert "the story needs one" in err
