"""The story of ``make run``: what it shows happened; a file it cannot use is one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.story.__main__ import main
from llmsession.transcripts import Conversation, write_own
from tests.testing.conversations import call, recording, result, text

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples" / "recordings").glob("*.jsonl"))
WAIT_S = 280


def tell(*files: Path) -> int:
    try:
        main([*map(str, files)])
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder for the story's own, with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def started(room: Path, columns: int) -> subprocess.Popen[str]:
    """The story, told by a process of its own."""
    environ = os.environ | {"COLUMNS": str(columns), "TMPDIR": str(room), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "examples.story", *map(str, EXAMPLES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        cwd=ROOT,
        start_new_session=True,
    )


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_in(told: str) -> int:
    return int(told.partition("pid ")[2].partition(",")[0])


def test_the_story_shows_the_interrupt_the_receipt_each_swap_the_recall_and_the_restart(
    room: Path,
) -> None:
    with started(room, 60) as story:
        told, err = story.communicate(timeout=WAIT_S)
    assert (story.returncode, err) == (0, "")
    assert "recorded replies, no model" in told
    assert "the history is unchanged: True" in told
    assert "- deploy (call_1)" in told
    # The second one comes after the turn was committed, and is told all the same.
    assert told.count("replaced ") == 2
    assert "characters returned: True" in told
    assert f"kill -9 {pid_in(told)}" in told
    joined = " ".join(told.split())
    assert joined.count("2 subscribers resumed, each saw one end (committed)") == 3
    assert joined.count("same as the log: True") == 3
    assert all(path.name in told for path in EXAMPLES)
    bars = [line for line in told.splitlines() if "█" in line]
    assert len(bars) >= 6
    assert all(line.endswith(" of 44,000 tokens") and len(line) <= 60 for line in bars)
    assert list(room.iterdir()) == []
    assert not is_there(pid_in(told))


def test_ctrl_c_in_the_middle_leaves_no_process_and_no_file(room: Path) -> None:
    with started(room, 80) as story:
        assert story.stdout is not None
        told = ""
        for line in story.stdout:
            told += line
            if line.startswith("step "):
                break
        assert list(room.iterdir()) != []
        os.killpg(story.pid, signal.SIGINT)  # as a terminal does: to the service, too
        rest, err = story.communicate(timeout=WAIT_S)
    assert (story.returncode, err) == (130, "")
    assert "kill -9" not in rest
    assert list(room.iterdir()) == []
    assert not is_there(pid_in(told))


def test_a_file_that_cannot_be_read_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for bad in (empty, tmp_path, tmp_path / "nowhere.jsonl"):
        assert tell(bad) == 2
        told, err = capsys.readouterr()
        assert told == ""
        assert err.startswith(f"story: {bad}: ")
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
