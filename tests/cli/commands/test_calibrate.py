"""``llmsession calibrate`` as it is called: a process with arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmsession.transcripts import write
from tests.lab.recorded import Recorded, call, result

RUN = "from llmsession.cli import main; main()"
COUNTERS = ["chars4", "tiktoken", "estimate", "ours", "ours+tiktoken"]


def calibrate(
    cache: Path, *arguments: str | Path, columns: int = 120
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, "calibrate", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LLMSESSION_CACHE": str(cache), "COLUMNS": str(columns)},
    )


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    built = Recorded().ask().reply([call("c1", at="there")], 1_000, 60).answer(result("c1"))
    built.reply("done", 1_100).ask().reply("and more", 900)
    ((_, content),) = write([built.done()]).items()
    path = tmp_path / "recording.jsonl"
    path.write_bytes(content)
    return path


def test_every_counter_has_a_row_of_json(tmp_path: Path, recording: Path) -> None:
    done = calibrate(tmp_path, "--json", recording)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["counter"] for row in rows] == COUNTERS
    for row in rows:
        assert list(row) == [
            "file", "model", "counter", "requests", "median_error", "p95_error", "bias",
            "excluded", "notes",
        ]  # fmt: skip
        assert (row["file"], row["model"]) == (str(recording), "claude-opus-4-5")
        assert row["excluded"] == {"context_shrank": 1}
        assert row["requests"] == (0 if "tiktoken" in row["counter"] else 1)


def test_several_files_have_a_sum(tmp_path: Path, recording: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(recording.read_bytes())
    done = calibrate(tmp_path, "--json", recording, other)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["file"] for row in rows] == [
        file for file in (str(recording), str(other), "all") for _ in COUNTERS
    ]
    assert rows[-2]["requests"] == 2


def test_the_table_says_what_was_left_out_and_skipped(tmp_path: Path, recording: Path) -> None:
    done = calibrate(tmp_path, recording)
    assert done.returncode == 0
    assert all(counter in done.stdout for counter in COUNTERS)
    assert "recording.jsonl: left out: context_shrank 1" in done.stdout
    assert "tiktoken, ours+tiktoken: skipped: no o200k vocabulary" in done.stdout


def test_a_file_that_cannot_be_read_is_one_line_and_the_others_are_compared(
    tmp_path: Path, recording: Path
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"not json\n")
    done = calibrate(tmp_path, "--json", broken, tmp_path / "missing", recording)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith(f"llmsession: {broken}: ")
    assert second.startswith(f"llmsession: {tmp_path / 'missing'}: ")
    assert len(done.stdout.splitlines()) == len(COUNTERS)


@pytest.mark.parametrize(
    ("arguments", "named"), [((), "FILE"), (("--from", "nothing", "x"), "nothing")]
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    done = calibrate(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert named in line


def test_a_recording_without_usage_says_that_there_is_nothing_to_compare(tmp_path: Path) -> None:
    ((_, content),) = write([Recorded().ask().reply("done", None).done()]).items()
    path = tmp_path / "plain.jsonl"
    path.write_bytes(content)
    done = calibrate(tmp_path, path)
    assert done.returncode == 0
    assert "plain.jsonl: nothing to compare" in done.stdout


def test_figures_stay_whole_on_a_narrow_terminal(tmp_path: Path, recording: Path) -> None:
    long = tmp_path / f"{'a-long-name' * 9}.jsonl"
    long.write_bytes(recording.read_bytes())
    done = calibrate(tmp_path, long, columns=80)
    table = done.stdout.split("left out")[0]
    assert all(counter in table for counter in COUNTERS)
    assert table.count("%") == 9
    assert "median" in table
