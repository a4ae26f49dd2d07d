"""``llmsession lab``: rows, tables and reports, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from llmsession.transcripts import write
from tests.cli.stores import Run, run
from tests.lab.talks import long_talk
from tests.lab.test_table import COLUMNS

RUN = "from llmsession.cli import main; main()"
TWO = ("--policies", "balanced,full_history")


@pytest.fixture
def lab(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "120")
    return partial(run, capsys, "lab")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    ((_, content),) = write([long_talk().done()]).items()
    path = tmp_path / "recording.jsonl"
    path.write_bytes(content)
    return path


def test_a_row_of_json_a_window_and_policy(lab: Run, recording: Path) -> None:
    done = lab("--json", *TWO, "--window", "16000", "--window", "200000", recording)
    assert (done.code, done.err) == (0, "")
    rows = done.figures
    assert [(row["window"], row["policy"]) for row in rows] == [
        (16_000, "balanced"), (16_000, "full_history"),
        (200_000, "balanced"), (200_000, "full_history"),
    ]  # fmt: skip
    for row in rows:
        assert list(row) == COLUMNS
        assert row["file"] == str(recording)
        assert row["invalid_requests"] == 0


def process(*arguments: str | Path, code: str = "") -> subprocess.CompletedProcess[str]:
    """``lab`` in a process of its own, which runs *code* first."""
    return subprocess.run(
        [sys.executable, "-c", code + RUN, "lab", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_same_call_says_the_same(recording: Path) -> None:
    # In two processes: the order of a set differs between them.
    calls = [process("--json", *TWO, "--window", "16000", recording).stdout for _ in range(2)]
    assert calls[0] == calls[1] != ""


def test_without_policies_all_there_are_are_compared(lab: Run, recording: Path) -> None:
    done = lab("--json", recording)
    names = [row["policy"] for row in done.figures]
    assert names[0] == "balanced"
    assert {"full_history", "swap_tool_results"} <= set(names)


def test_the_tables_say_what_they_are_worth(
    lab: Run, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = lab(*TWO, "--window", "16000", recording)
    assert done.code == 0
    assert "recording.jsonl, window 16,000, costs in plain input tokens" in done.out
    assert "* balanced" in done.out
    assert "counterfactual" in done.out
    assert "extractive" in done.out
    header = next(line for line in done.out.splitlines() if "policy" in line)
    assert header.split()[1:] == [
        "cost", "retained", "+recall", "recalls", "rewrites", "sums", "peak", "invalid", "large",
    ]  # fmt: skip


def test_markdown_has_a_line_a_policy_and_a_column_a_window(lab: Run, recording: Path) -> None:
    done = lab("--markdown", *TWO, "--window", "16000", "--window", "200000", recording)
    assert done.code == 0
    _, _, head, line, balanced, full, _ = done.out.split("\n", 6)
    assert head == "| policy | 16,000 | 200,000 |"
    assert line == "| --- | --- | --- |"
    assert balanced.startswith("| `balanced` | **")
    assert "not sent" in full
    assert full.endswith(", 100.0%** |")


def test_a_file_with_more_than_one_percent_left_out_is_compared_and_bad_input(
    lab: Run, tmp_path: Path
) -> None:
    said = [("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d"), ("assistant", "e")]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": r, "content": text} for r, text in said]))
    done = lab("--json", *TWO, path)
    missing = "1 of 5 calls, results and messages (20.0%) left out: system 1"
    assert (done.code, done.err) == (2, f"llmsession: {path}: {missing}\n")
    assert [row["requests"] for row in done.figures] == [2, 2]


def test_a_folder_is_read_whole_and_summed(lab: Run, tmp_path: Path, recording: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_bytes(recording.read_bytes())
    done = lab("--json", *TWO, folder)
    files = [row["file"] for row in done.figures]
    assert (
        files
        == [str(folder / name) for name in ("a.jsonl", "b.jsonl") for _ in TWO] + [str(folder)] * 2
    )
    only = lab("--json", "--sums", *TWO, folder, recording)
    rows = only.figures
    assert [row["file"] for row in rows] == [
        name for name in (str(folder), str(recording), "all") for _ in TWO
    ]
    assert rows[0]["requests"] == 2 * rows[2]["requests"]


def test_small_conversations_are_left_out_if_asked(lab: Run, recording: Path) -> None:
    done = lab("--json", *TWO, "--min-tokens", "1000000", recording)
    assert (done.code, done.out) == (0, "")


def test_prices_of_a_file_make_it_dollars(lab: Run, tmp_path: Path, recording: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('["claude-opus-4-6"]\ninput = 2\noutput = 10\ncache_read = "0.2"\n')
    done = lab("--json", *TWO, "--prices", prices, recording)
    row = done.figures[0]
    assert row["unit"] == "usd"
    read, written = row["cache_read"], row["cache_write"]
    assert row["cost"] == pytest.approx((read * 0.2 + written * 2) / 1e6, abs=1e-6)


def test_a_report_is_written(lab: Run, tmp_path: Path, recording: Path) -> None:
    out = tmp_path / "report.html"
    done = lab(*TWO, "--html", out, recording)
    assert done.code == 0
    html = out.read_text("utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert "counterfactual" in html
    assert "<svg" in html


def test_a_file_that_cannot_be_read_is_one_line_and_the_others_are_compared(
    lab: Run, tmp_path: Path, recording: Path
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"not json\n")
    done = lab("--json", *TWO, broken, tmp_path / "missing", recording)
    assert done.code == 2
    first, second = done.err.splitlines()
    assert first.startswith(f"llmsession: {broken}: ")
    assert second.startswith(f"llmsession: {tmp_path / 'missing'}: ")
    assert str(recording) in done.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "FILE"),
        (("--policies", "nothing", "x"), "there is no policy 'nothing'"),
        (("--policies", ",", "x"), "no policy is given"),
        (("--from", "nothing", "x"), "nothing"),
        (("--window", "5", "x"), "1000"),
        (("--prices", "no-such-file.toml", "x"), "no-such-file.toml"),
        (("--html", "no-such-folder/x.html", "x"), "no-such-folder"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    lab: Run, arguments: tuple[str, ...], named: str
) -> None:
    assert named in lab(*arguments).refusal


def test_an_invalid_request_is_named_and_is_exit_code_1(recording: Path) -> None:
    tears = (
        "import msgspec\n"
        "from llmsession.compaction.view.plan import Plan\n"
        "from llmsession.compaction.policies import register\n"
        "class Tears(msgspec.Struct, frozen=True):\n"
        "    name = 'tears'\n"
        "    def due(self, used_tokens, limit_tokens): return True\n"
        "    def plan(self, view, messages, budget):\n"
        "        return None if view.omitted else Plan(policy='tears', reason='',\n"
        "            compacted_before=0, omitted=((1, 2),), tokens_before=9, tokens_after=1,\n"
        "            figures={'kept_before_tokens': 1 << 30})\n"
        "Tears.name = 'tears'\n"
        "register(Tears)\n"
    ).replace("    name = 'tears'\n", "    pass\n")
    done = process("--json", "--policies", "tears", recording, code=tears)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["invalid_requests"] > 0
    assert all(f"{recording}: tears, window 200000: before message" in line
               for line in done.stderr.splitlines())  # fmt: skip
    assert done.stderr
