"""``llmsession check``: a record decides, whoever made it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from llmsession.testing.recording.entries import (
    Begun,
    Entry,
    Invoked,
    LeftBehind,
    Returned,
    encode_lines,
)
from tests.cli.stores import Run, run


@pytest.fixture
def check_again(capsys: pytest.CaptureFixture[str]) -> Run:
    return partial(run, capsys, "check")


def written(path: Path, *entries: Entry) -> str:
    path.write_bytes(b"".join(encode_lines(entries)))
    return str(path)


CALL = Invoked(session="s", call=1, command="interrupt", order=1, at=1.0)


def answered(at: float) -> Returned:
    return Returned(session="s", call=1, seq=0, result="not_running", order=2, at=at)


def test_a_recording_in_which_every_invariant_holds_is_exit_code_0(
    check_again: Run, tmp_path: Path
) -> None:
    record = written(tmp_path / "r", Begun(seed=3), CALL, answered(1.1), LeftBehind())
    ran = check_again(record)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count(" holds\n") == 13
    assert "ends before its run did" not in ran.out


def test_a_violation_is_exit_code_1_with_the_entries_that_prove_it(
    check_again: Run, tmp_path: Path
) -> None:
    record = written(tmp_path / "r", Begun(), CALL, answered(9.0), LeftBehind())
    ran = check_again(record, "--json")
    assert ran.code == 1
    (figures,) = ran.figures
    assert len(figures["violations"]) == 1
    assert figures["invariants"]["8"] == 1
    assert figures["whole"] is True
    assert "1 violation in" in ran.err
    assert ran.err.count('"entry":') == 2


def test_the_margin_of_an_interrupt_can_be_given_and_is_else_the_records(
    check_again: Run, tmp_path: Path
) -> None:
    entries = (CALL, answered(5.0), LeftBehind())
    record = written(tmp_path / "a", Begun(), *entries)
    assert check_again(record).code == 1
    assert check_again(record, "--margin", 10).code == 0
    assert check_again(written(tmp_path / "b", Begun(margin_s=10.0), *entries)).code == 0


def test_a_record_that_was_cut_off_says_so(check_again: Run, tmp_path: Path) -> None:
    ran = check_again(written(tmp_path / "r", Begun(), CALL))
    assert ran.code == 1
    assert "the recording ends before its run did" in ran.out
    assert "was never answered" in ran.err


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
    check_again: Run, tmp_path: Path, content: bytes, named: str
) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    assert named in check_again(path).refusal


@pytest.mark.parametrize("arguments", [["nowhere"], [], ["--margin", "-1", "{}"]], ids=" ".join)
def test_bad_usage_is_exit_code_2(check_again: Run, tmp_path: Path, arguments: list[str]) -> None:
    record = written(tmp_path / "r", Begun(), LeftBehind())
    ran = check_again(*(part.format(record) for part in arguments))
    assert ran.code == 2
    assert "Traceback" not in ran.err
