"""``llmsession calibrate``: rows and tables, and what it refuses."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from llmsession.providers.counting.encodings import ENCODINGS
from llmsession.transcripts import write
from tests.cli.stores import Run, run
from tests.lab.recorded import Recorded, call, result

COUNTERS = ["chars4", "tiktoken", "estimate", "ours", "ours+tiktoken"]


@pytest.fixture
def calibrate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LLMSESSION_CACHE", str(tmp_path))
    # What this process has loaded, or has not found, is not for the tests after this one.
    monkeypatch.setattr(ENCODINGS, "_loaded", {})
    return partial(run, capsys, "calibrate")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    built = Recorded().ask().reply([call("c1", at="there")], 1_000, 60).answer(result("c1"))
    built.reply("done", 1_100).ask().reply("and more", 900)
    ((_, content),) = write([built.done()]).items()
    path = tmp_path / "recording.jsonl"
    path.write_bytes(content)
    return path


def test_every_counter_has_a_row_of_json(calibrate: Run, recording: Path) -> None:
    done = calibrate("--json", recording)
    assert (done.code, done.err) == (0, "")
    rows = done.figures
    assert [row["counter"] for row in rows] == COUNTERS
    for row in rows:
        assert list(row) == [
            "file", "model", "counter", "requests", "median_error", "p95_error", "bias",
            "excluded", "notes",
        ]  # fmt: skip
        assert (row["file"], row["model"]) == (str(recording), "claude-opus-4-5")
        assert row["excluded"] == {"context_shrank": 1}
        assert row["requests"] == (0 if "tiktoken" in row["counter"] else 1)


def test_several_files_have_a_sum(calibrate: Run, tmp_path: Path, recording: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(recording.read_bytes())
    done = calibrate("--json", recording, other)
    rows = done.figures
    assert [row["file"] for row in rows] == [
        file for file in (str(recording), str(other), "all") for _ in COUNTERS
    ]
    assert rows[-2]["requests"] == 2


def test_the_table_says_what_was_left_out_and_skipped(calibrate: Run, recording: Path) -> None:
    done = calibrate(recording)
    assert done.code == 0
    assert all(counter in done.out for counter in COUNTERS)
    assert "recording.jsonl: left out: context_shrank 1" in done.out
    assert "tiktoken, ours+tiktoken: skipped: no o200k vocabulary" in done.out


def test_a_file_that_cannot_be_read_is_one_line_and_the_others_are_compared(
    calibrate: Run, tmp_path: Path, recording: Path
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"not json\n")
    done = calibrate("--json", broken, tmp_path / "missing", recording)
    assert done.code == 2
    first, second = done.err.splitlines()
    assert first.startswith(f"llmsession: {broken}: ")
    assert second.startswith(f"llmsession: {tmp_path / 'missing'}: ")
    assert len(done.out.splitlines()) == len(COUNTERS)


@pytest.mark.parametrize(
    ("arguments", "named"), [((), "FILE"), (("--from", "nothing", "x"), "nothing")]
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    calibrate: Run, arguments: tuple[str, ...], named: str
) -> None:
    assert named in calibrate(*arguments).refusal


def test_a_recording_without_usage_says_that_there_is_nothing_to_compare(
    calibrate: Run, tmp_path: Path
) -> None:
    ((_, content),) = write([Recorded().ask().reply("done", None).done()]).items()
    path = tmp_path / "plain.jsonl"
    path.write_bytes(content)
    done = calibrate(path)
    assert done.code == 0
    assert "plain.jsonl: nothing to compare" in done.out


def test_figures_stay_whole_on_a_narrow_terminal(
    calibrate: Run, tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / f"{'a-long-name' * 9}.jsonl"
    long.write_bytes(recording.read_bytes())
    monkeypatch.setenv("COLUMNS", "80")
    done = calibrate(long)
    table = done.out.split("left out")[0]
    assert all(counter in table for counter in COUNTERS)
    assert table.count("%") == 9
    assert "median" in table
