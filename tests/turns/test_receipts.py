from __future__ import annotations

from typing import get_args

import pytest

from llmsession.turns.receipts import PendingReceipt, brief_input, receipt_text, settled_text
from llmsession.turns.records import CallReceipt, CallStatus, SettleReason

PENDING = [
    PendingReceipt(
        3,
        (
            CallReceipt("c1", "bash", "finished", '{"cmd":"rm x"}'),
            CallReceipt("c2", "read", "failed"),
        ),
    ),
    PendingReceipt(5, (CallReceipt("c3", "bash", "unknown", "{}"),)),
]


def test_a_receipt_names_each_call_and_what_became_of_it_oldest_turn_first() -> None:
    # Written out: the text is part of what the model is sent, so it changes only on purpose.
    assert receipt_text(PENDING) == (
        "Note from the session: an earlier request was withdrawn after these tool calls had"
        " started.\n"
        '- bash (c1) {"cmd":"rm x"}: finished; its effects stand\n'
        "- read (c2): failed\n"
        "- bash (c3) {}: started; outcome unknown"
    )


@pytest.mark.parametrize("pending", [[], [PendingReceipt(3, ())]])
def test_without_started_calls_there_is_no_receipt(pending: list[PendingReceipt]) -> None:
    assert receipt_text(pending) is None


def test_calls_that_would_read_alike_share_a_line() -> None:
    def dropped(turn: int) -> PendingReceipt:
        return PendingReceipt(turn, (CallReceipt(f"c_{turn}", "run", "finished", "ls"),))

    other = PendingReceipt(9, (CallReceipt("d", "run", "failed", "ls"),))
    text = receipt_text([*map(dropped, range(1, 13)), other])
    assert text is not None
    assert text.splitlines()[1:] == [
        "- run (c_1, c_2, c_3, c_4, c_5, c_6, c_7, c_8 and 4 more like them) ls:"
        " finished; its effects stand",
        "- run (d) ls: failed",
    ]


@pytest.mark.parametrize("status", get_args(CallStatus))
def test_every_status_has_its_words(status: CallStatus) -> None:
    text = receipt_text([PendingReceipt(1, (CallReceipt("c", "n", status),))])
    assert text is not None
    assert "- n (c): " in text


@pytest.mark.parametrize("reason", get_args(SettleReason))
def test_every_settled_call_gets_a_result_that_claims_no_outcome(reason: SettleReason) -> None:
    assert settled_text(reason).startswith("No result")


def test_a_brief_is_one_line_of_limited_length() -> None:
    assert brief_input(b'{"a":\n\n  1,\t"b": "\xc3\xa9"}') == '{"a": 1, "b": "é"}'
    assert brief_input(b"x" * 120) == "x" * 120
    assert brief_input(b"x" * 121) == "x" * 119 + "…"
    assert brief_input(b"abcdef", limit_chars=4) == "abc…"


def test_a_brief_of_broken_bytes_is_still_text() -> None:
    assert brief_input(b"a\xff") == "a\ufffd"
