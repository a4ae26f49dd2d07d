from __future__ import annotations

from pathlib import Path

import pytest

from llmsession.lab.accuracy import ALL, Accuracy, Measured, measure, summed
from llmsession.lab.counters import COUNTERS, find_tiktoken
from llmsession.transcripts import Conversation, read
from tests.lab.recorded import Recorded, call, result


def recorded(*grown: int, model: str = "gpt-5.4") -> Conversation:
    """Every reply and its result are 400 characters, or 108 tokens by chars4."""
    built, prompt = Recorded(model).ask(), 1_000
    for at, more in enumerate(grown):
        built.reply([call(f"c{at}", at="x" * 190)], prompt).answer(result(f"c{at}", "y" * 200))
        prompt += more
    return built.reply("done", prompt).done()


def row_of(measured: list[Measured], counter: str) -> Accuracy:
    (row,) = [each.row for each in measured if each.row.counter == counter]
    return row


def test_errors_are_relative_to_what_was_reported() -> None:
    row = row_of(measure("f", [recorded(108, 54, 216)], None), "chars4")
    assert (row.file, row.model, row.requests) == ("f", "gpt-5.4", 3)
    assert row.median_error == 0.5
    assert row.p95_error == 1.0
    assert row.bias == pytest.approx(3 * 108 / (108 + 54 + 216) - 1, abs=1e-4)


def test_there_is_a_row_for_each_model_and_counter() -> None:
    measured = measure("f", [recorded(108), recorded(108, model="claude-opus-4-5")], None)
    found = [(each.row.model, each.row.counter) for each in measured]
    assert found == [
        (model, counter) for model in ("gpt-5.4", "claude-opus-4-5") for counter in COUNTERS
    ]


def test_a_counter_without_its_vocabulary_says_that_it_was_skipped() -> None:
    measured = measure("f", [recorded(108)], None)
    for counter in ("tiktoken", "ours+tiktoken"):
        row = row_of(measured, counter)
        assert (row.requests, row.median_error, row.p95_error, row.bias) == (0, None, None, None)
        assert "vocabulary" in row.notes[0]
    assert row_of(measured, "ours").notes == ()
    counted = row_of(measure("f", [recorded(108)], len), "tiktoken")
    assert (counted.requests, counted.notes) == (1, ())


def test_what_is_left_out_is_counted_in_every_row() -> None:
    shrank = recorded(108, -500, 108)
    assert all(
        each.row.excluded == {"context_shrank": 1} and each.row.requests in (0, 2)
        for each in measure("f", [shrank], None)
    )


def test_a_file_with_nothing_to_compare_has_rows_that_say_so() -> None:
    for each in measure("f", [recorded()], None):
        assert (each.row.requests, each.row.median_error, each.row.model) == (0, None, "")


def test_each_conversation_starts_uncalibrated() -> None:
    once = row_of(measure("f", [recorded(*[300] * 12)], None), "ours")
    twice = measure("f", [recorded(*[300] * 12)] * 2, None)
    assert row_of(twice, "ours").median_error == once.median_error
    assert row_of(twice, "ours").bias == once.bias


def test_a_sum_is_of_all_pairs_and_not_of_rows() -> None:
    measured = measure("f", [recorded(108)], None) + measure("g", [recorded(54, -9, 54, 54)], None)
    row = row_of(summed(measured), "chars4")
    assert (row.file, row.model, row.requests) == (ALL, ALL, 4)
    assert row.median_error == 1.0
    assert row.excluded == {"context_shrank": 1}


RECORDED = (
    "claude-code-entireio-cli/*.jsonl",
    "codex-entireio-git-sync/*.jsonl",
    "pi-mono/*.jsonl",
)


def test_ours_is_close_on_recorded_conversations(shared_data: Path) -> None:
    tiktoken = find_tiktoken()
    files = sorted(path for pattern in RECORDED for path in shared_data.glob(pattern))
    assert len(files) == 13
    measured = [
        each for path in files for each in measure(path.name, read(path.read_bytes()), tiktoken)
    ]
    rows = {each.row.counter: each.row for each in summed(measured)}
    ours, plain = rows["ours"], rows["tiktoken" if tiktoken else "chars4"]
    assert ours.requests > 1_800
    for row in (ours, rows["estimate"]):
        assert None not in (row.median_error, row.p95_error, plain.median_error, plain.p95_error)
        assert (row.median_error or 1) < 0.12
        assert (row.p95_error or 1) < 0.35
        assert abs(row.bias or 1) < 0.03
        assert (row.median_error or 1) < 0.7 * (plain.median_error or 0)
        assert (row.p95_error or 1) < 0.7 * (plain.p95_error or 0)
