"""``llmsession check``: a record decides, whoever made it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llmsession.cli import main
from llmsession.testing.recording.entries import (
    Begun,
    Entry,
    Invoked,
    LeftBehind,
    Returned,
    encode_lines,
)


def check_again(*arguments: str) -> int:
    """Run ``llmsession check``; its exit code."""
    try:
        main(["check", *arguments])
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def written(path: Path, *entries: Entry) -> str:
    path.write_bytes(b"".join(encode_lines(entries)))
    return str(path)


CALL = Invoked(session="s", call=1, command="interrupt", order=1, at=1.0)


def answered(at: float) -> Returned:
    return Returned(session="s", call=1, seq=0, result="not_running", order=2, at=at)


def test_a_recording_in_which_every_invariant_holds_is_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = written(tmp_path / "r", Begun(seed=3), CALL, answered(1.1), LeftBehind())
    assert check_again(record) == 0
    told, err = capsys.readouterr()
    assert told.count(" holds\n") == 13
    assert "ends before its run did" not in told
    assert err == ""


def test_a_violation_is_exit_code_1_with_the_entries_that_prove_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = written(tmp_path / "r", Begun(), CALL, answered(9.0), LeftBehind())
    assert check_again(record, "--json") == 1
    told, err = capsys.readouterr()
    figures = msgspec.json.decode(told)
    assert len(figures["violations"]) == 1
    assert figures["invariants"]["8"] == 1
    assert figures["whole"] is True
    assert "1 violation in" in err
    assert err.count('"entry":') == 2


def test_the_margin_of_an_interrupt_can_be_given_and_is_else_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = (CALL, answered(5.0), LeftBehind())
    assert check_again(written(tmp_path / "a", Begun(), *entries)) == 1
    assert check_again(written(tmp_path / "a", Begun(), *entries), "--margin", "10") == 0
    assert check_again(written(tmp_path / "b", Begun(margin_s=10.0), *entries)) == 0


def test_a_record_that_was_cut_off_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_again(written(tmp_path / "r", Begun(), CALL)) == 1
    told, err = capsys.readouterr()
    assert "the recording ends before its run did" in told
    assert "was never answered" in err


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "not a recording of a run"),
        (b'{"entry":"begun"}\n{"entry":', "line 2"),
        (b'{"entry":"nonsense"}\n', "line 1"),
        (b"\xff\xfe\n", "line 1"),
        (
            b'{"entry":"invoked","call":1,"command":"send","session":"s"}\n',
            "not a recording of a run",
        ),
    ],
    ids=["empty", "cut", "another kind", "no text", "no beginning"],
)
def test_what_is_no_record_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, named: str
) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    assert check_again(str(path)) == 2
    told, err = capsys.readouterr()
    assert told == ""
    assert named in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["nowhere"], [], ["--margin", "-1", "{}"]], ids=" ".join)
def test_bad_usage_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    record = written(tmp_path / "r", Begun(), LeftBehind())
    assert check_again(*(part.format(record) if part == "{}" else part for part in arguments)) == 2
    assert "Traceback" not in capsys.readouterr().err
