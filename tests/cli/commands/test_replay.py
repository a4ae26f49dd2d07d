"""``llmsession replay``: figures for every file, one line for each that cannot be read."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec
import pytest

from llmsession.cli.commands import replayed
from llmsession.session.values.config import CompactionConfig
from llmsession.testing.replay.replay import DriveOptions, DriveReport
from llmsession.transcripts import Conversation, Note, write_own
from llmsession.turns.usage import Usage
from tests.cli.stores import Run
from tests.cli.stores import run as run_command
from tests.testing.conversations import call, recording, result, text, tool_loop

FIGURES = {
    "file", "format", "conversations", "skipped", "turns", "steps", "messages", "requests",
    "invalid_requests", "repaired", "compactions", "interrupts", "orphans", "seconds",
    "skipped_reasons", "differences",
}  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")
    return partial(run_command, capsys, "replay")


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    return written(tmp_path / "a-recorded-tool-loop.jsonl", tool_loop())


def written(path: Path, conversation: Conversation) -> Path:
    path.write_bytes(write_own(conversation))
    return path


def test_the_table_says_what_was_replayed_and_that_no_model_answered(run: Run, loop: Path) -> None:
    ran = run(loop)
    (row,) = [line for line in ran.out.splitlines() if line.startswith(" a-recorded")]
    assert row.split()[:5] == ["a-recorded-tool-loop.jsonl", "3", "6", "12", "6"]
    assert "Recorded replies, no model." in ran.out
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("columns", ["80", "100"])
def test_the_table_is_no_wider_than_the_terminal_and_keeps_every_figure(
    run: Run, loop: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = run(loop, loop, "--interrupt-every", 3).out.splitlines()
    assert max(map(len, table[:8])) <= int(columns)
    (total,) = [line for line in table if line.startswith(" sum")]
    assert len(total.split()) == 13
    assert "…" not in total


def test_a_terminal_too_narrow_for_the_table_gets_every_figure_as_a_list(
    run: Run, loop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = run(loop).out
    assert max(map(len, out.splitlines())) <= 60
    told = " ".join(out.split())
    assert "a-recorded-tool-loop.jsonl: turns 3, steps 6, messages 12, requests 6," in told
    assert "interrupts 0, seconds 0." in told


def test_a_line_of_an_unknown_kind_is_noted(run: Run, loop: Path) -> None:
    with loop.open("ab") as file:
        file.write(b'{"kind":"never seen"}\n')
    assert "a-recorded-tool-loop.jsonl: noted: unknown_type 1; lacks: times\n" in run(loop).out
    (figures,) = run("--json", loop).figures
    assert (figures["notes"], figures["skipped"]) == ({"unknown_type": 1}, 0)


def test_json_is_one_object_a_file(run: Run, loop: Path) -> None:
    ran = run("--json", loop, loop)
    assert [set(figures) >= FIGURES for figures in ran.figures] == [True, True]
    figures = ran.figures[0]
    assert (figures["file"], figures["format"]) == (str(loop), "own")
    assert (figures["conversations"], figures["turns"], figures["messages"]) == (1, 3, 12)
    assert "history_equal" not in figures
    assert ran.err == ""


def test_with_interrupts_the_history_is_compared_with_the_uninterrupted_one(
    run: Run, loop: Path
) -> None:
    ran = run(
        loop, "--json", "--interrupt-every", 1, "--interrupt-policy", "drop_turn", "--seed", 3,
        "--delta-chars", 4,
    )  # fmt: skip
    (figures,) = ran.figures
    assert figures["history_equal"] is True
    assert figures["interrupts"] == figures["resent"] > 0
    assert ran.code == 0
    assert "history equal" in run(loop, "--interrupt-every", 2).out


def test_the_options_reach_the_replay(
    run: Run, loop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[DriveOptions] = []

    async def replay(conversation: Conversation, options: DriveOptions, **_: object) -> DriveReport:
        seen.append(options)
        return DriveReport()

    monkeypatch.setattr(replayed, "replay_conversation", replay)
    run(
        loop, "--window", 5000, "--delta-chars", 7, "--delay-ms", 1.5, "--seed", 4,
        "--interrupt-every", 9, "--interrupt-policy", "keep_text",
    )  # fmt: skip
    assert seen == [
        DriveOptions(
            window_tokens=5000,
            delta_chars=7,
            delay_s=0.0015,
            seed=4,
            interrupt_every=9,
            interrupt_policy="keep_text",
            compaction=CompactionConfig().checked(),
        )
    ]


def test_what_was_skipped_is_said_with_its_reason(run: Run, tmp_path: Path) -> None:
    said = recording([[text("a")]], [[text("b"), text(" ")], [text("c")]])
    path = written(tmp_path / "one.jsonl", said)
    assert "one.jsonl: skipped: blank_text 1, no_reply 1" in run(path).out
    (figures,) = run("--json", path).figures
    assert (figures["skipped"], figures["skipped_reasons"]) == (2, {"no_reply": 1, "blank_text": 1})


@pytest.mark.parametrize("content", [None, b"", b"no transcript\n", b'{"a": 1}\n'])
def test_a_file_that_cannot_be_read_is_one_line_and_the_others_are_replayed(
    run: Run, loop: Path, tmp_path: Path, content: bytes | None
) -> None:
    bad = tmp_path / "bad.jsonl"
    if content is not None:
        bad.write_bytes(content)
    ran = run("--json", bad, loop)
    assert ran.code == 2
    assert ran.err.startswith(f"llmsession: {bad}: ")
    assert ran.err.count("\n") == 1
    broken, good = ran.figures
    assert (broken["skipped_reasons"], broken["turns"]) == ({"unreadable": 1}, 0)
    assert broken["error"] in ran.err
    assert (good["turns"], good["skipped"]) == (3, 0)


def test_a_folder_is_no_file(run: Run, tmp_path: Path) -> None:
    assert run(tmp_path).refusal == f"llmsession: {tmp_path}: Is a directory"


def test_whether_a_file_may_be_read_is_found_out_by_reading_it(
    run: Run, loop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the answer of the system: whoever runs the tests may be allowed to read everything.
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert run("--json", loop).code == 0


def test_a_broken_line_is_skipped_and_counted_or_with_strict_refused(run: Run, loop: Path) -> None:
    lines = loop.read_bytes().split(b"\n")
    loop.write_bytes(b"\n".join([*lines[:-2], b'{"torn":', *lines[-2:]]))
    (figures,) = run("--json", loop).figures
    assert figures["skipped_reasons"] == {"bad_line": 1}
    assert run("--strict", loop).refusal.startswith(f"llmsession: {loop}: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--from", "nonsense"],
        ["--interrupt-every", "0"],
        ["--interrupt-policy", "drop"],
        ["--delta-chars", "0"],
        ["--delay-ms", "-1"],
        ["--delay-ms", "inf"],
        ["--seed", "x"],
        ["--window", "1"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_code_2(run: Run, loop: Path, arguments: list[str]) -> None:
    assert run(loop, *arguments).refusal


def test_the_format_can_be_named(run: Run, loop: Path) -> None:
    assert run(loop, "--from", "own").code == 0
    assert "not a Claude Code session file" in run(loop, "--from", "claude-code").refusal


@pytest.mark.parametrize(
    "broken",
    [
        DriveReport(invalid_requests=1),
        DriveReport(orphans=1),
        DriveReport(differences=1),
        DriveReport(history_equal=False),
    ],
    ids=repr,
)
def test_a_broken_promise_is_exit_code_1_also_beside_a_file_that_cannot_be_read(
    run: Run, loop: Path, monkeypatch: pytest.MonkeyPatch, broken: DriveReport
) -> None:
    async def replay(*_: object, **__: object) -> DriveReport:
        return broken

    monkeypatch.setattr(replayed, "replay_conversation", replay)
    assert run(loop).code == 1
    assert run(loop, "nowhere").code == 1


def test_faults_are_told_below_the_table(
    run: Run, loop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def replay(*_: object, **__: object) -> DriveReport:
        return DriveReport(differences=1, faults=["recorded turn 1: [red] is no colour"])

    monkeypatch.setattr(replayed, "replay_conversation", replay)
    assert "  recorded turn 1: [red] is no colour" in run(loop).out


def test_visible_notes_of_the_reader_are_skipped_content(
    run: Run, loop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = msgspec.structs.replace(tool_loop(), notes=(Note(1, "lost", visible=True),))
    monkeypatch.setattr(replayed, "read", lambda *_, **__: (noted, noted))
    (figures,) = run("--json", loop).figures
    assert (figures["conversations"], figures["turns"], figures["skipped"]) == (2, 6, 2)


def test_a_recording_with_call_ids_that_no_provider_accepts_replays_as_recorded(
    run: Run, tmp_path: Path
) -> None:
    ids = ("call_a|fc_b", "functions.read:0", "functions.read:1", "x" * 300, "x" * 301)
    turn = [[text("go")]]
    for call_id in ids:
        turn += [[call(call_id)], [result(call_id)]]
    path = written(tmp_path / "own.jsonl", recording([*turn, [text("done")]]))
    ran = run("--json", path, "--interrupt-every", 3)
    (figures,) = ran.figures
    assert (ran.code, figures["differences"], figures["invalid_requests"]) == (0, 0, 0)
    assert (figures["steps"], figures["notes"], figures["left_out"]) == (6, {"renamed_call": 5}, {})


def prompts_inside(count: int) -> bytes:
    """A chat of 200 messages; *count* of them are system prompts in the middle, with no place."""
    roles = ["user", "assistant"] * 100
    roles[1 : 1 + count] = ["system"] * count
    messages = [{"role": role, "content": f"said {n}"} for n, role in enumerate(roles)]
    return msgspec.json.encode(messages)


def test_more_than_one_percent_left_out_is_bad_input_and_the_reasons_are_counted(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(prompts_inside(2))
    ran = run("--json", path)
    said = "2 of 200 calls, results and messages (1.0%) left out: system 2"
    assert (ran.code, ran.err) == (0, f"llmsession: {path}: {said}\n")
    assert ran.figures[0]["left_out"] == {"system": 2}
    path.write_bytes(prompts_inside(3))
    ran = run("--json", path)
    said = "3 of 200 calls, results and messages (1.5%) left out: system 3"
    assert (ran.code, ran.err) == (2, f"llmsession: {path}: {said}\n")
    assert ran.figures[0]["turns"] == 98


def test_what_the_recording_cannot_give_is_said_in_its_row(run: Run, tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    chat.write_bytes(
        b'[{"role":"system","content":"c"},{"role":"user","content":"a"},'
        b'{"role":"assistant","content":"b"}]'
    )
    (figures,) = run("--json", chat).figures
    assert (figures["format"], figures["turns"], figures["skipped"]) == ("openai-chat", 1, 0)
    assert figures["lacks"] == ["thinking that can be sent", "usage", "times", "models"]
    out = run(chat).out
    assert "chat.json: lacks: thinking that can be sent, usage, times, models\n" in out


def test_a_recording_that_lacks_nothing_says_nothing_of_it(run: Run, tmp_path: Path) -> None:
    timed = tuple(
        msgspec.structs.replace(
            message, created_at=1.0, model="m", usage=Usage(1, 1) if message.is_assistant else None
        )
        for message in tool_loop().messages
    )
    path = written(tmp_path / "own.jsonl", msgspec.structs.replace(tool_loop(), messages=timed))
    assert run("--json", path).figures[0]["lacks"] == []
    assert "lacks" not in run(path).out


def test_a_file_in_which_nothing_could_be_replayed_is_bad_input(
    run: Run, loop: Path, tmp_path: Path
) -> None:
    said = {"type": "thinking", "thinking": "hm", "signature": "s"}
    path = written(tmp_path / "odd.jsonl", recording([[said], [text("b")]]))
    why = "nothing in it could be replayed: refused_message 1"
    assert run(path).refusal == f"llmsession: {path}: {why}"
    ran = run("--json", path, loop)
    assert ran.code == 2
    assert [figures.get("error") for figures in ran.figures] == [why, None]
    assert ran.figures[1]["turns"] == 3


def test_a_file_without_a_single_turn_has_nothing_to_replay_and_is_no_error(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b'{"llmsession":1,"session":"s"}\n')
    ran = run("--json", path)
    assert (ran.code, ran.figures[0]["turns"]) == (0, 0)


def test_a_real_recording_replays(run: Run, shared_data: Path) -> None:
    path = shared_data / "claude-code-entireio-cli" / "30e81e82f6ba-0.jsonl"
    (figures,) = run("--json", "--interrupt-every", 4, path).figures
    assert (figures["format"], figures["turns"]) == ("claude-code", 5)
    assert (figures["invalid_requests"], figures["orphans"], figures["differences"]) == (0, 0, 0)
    assert figures["history_equal"] is True


RECORDED = {
    "codex-entireio-git-sync/*.jsonl": ("codex", 3),
    "pi-mono/*.jsonl": ("pi", 2),
    "gemini-cli-entireio-cli/ab*.json": ("gemini-cli", 1),
    "tau-bench-gpt4o-airline/gpt*.json": ("openai-chat", 30),
    "cassettes-pydantic-ai/*/*.yaml": ("cassette", 215),
}
"""The Claude Code sessions, eight conversations, have their own tests: together 214, of which the
long run alone replays all 200 of the large file, and 165 cassettes with 215 requests that are
conversations."""


@pytest.mark.parametrize("pattern", RECORDED)
def test_all_recordings_of_other_systems_replay_and_nothing_is_skipped_in_silence(
    run: Run, shared_data: Path, tmp_path: Path, pattern: str
) -> None:
    format, conversations = RECORDED[pattern]
    files = sorted(shared_data.glob(pattern))
    if format == "openai-chat":
        (file,) = files
        beginning = msgspec.json.decode(file.read_bytes())[:conversations]
        files = [tmp_path / file.name]
        files[0].write_bytes(msgspec.json.encode(beginning))
    ran = run("--json", *files)
    # Some cassettes hold a reply that nobody asked for, or a search of the provider's, and little
    # else.
    assert ran.code == (2 if format == "cassette" else 0)
    assert all(" left out: " in line for line in ran.err.splitlines())
    left = [figures["file"] for figures in ran.figures if figures["left_out"]]
    assert [line.split(": ")[1] for line in ran.err.splitlines()] == left
    assert len(ran.figures) == len(files) == (165 if format == "cassette" else len(files))
    assert {figures["format"] for figures in ran.figures} == {format}
    assert sum(figures["conversations"] for figures in ran.figures) == conversations
    for figures in ran.figures:
        wrong = (figures["invalid_requests"], figures["orphans"], figures["differences"])
        assert wrong == (0, 0, 0)
        assert figures["requests"] > 0 or figures["skipped_reasons"]
        assert figures["skipped"] == sum(figures["skipped_reasons"].values())


@pytest.mark.long
@pytest.mark.parametrize("pattern", [*RECORDED, "claude-code-entireio-cli/*.jsonl"])
def test_interrupted_replays_of_all_recordings_end_in_the_same_history(
    run: Run, shared_data: Path, pattern: str
) -> None:
    files = sorted(shared_data.glob(pattern))
    ran = run("--json", "--interrupt-every", 5, "--seed", 1, *files)
    assert ran.code == (2 if "cassettes" in pattern else 0)
    assert all(figures["history_equal"] for figures in ran.figures if figures["turns"])
