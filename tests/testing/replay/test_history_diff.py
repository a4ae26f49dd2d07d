"""What may differ between two histories that are the same, and what may not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession.testing.replay.history_diff import normalized, same_history, turn_differences
from llmsession.transcripts import clean_call_id
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage
from tests.testing.conversations import call, recording, result, text

TURN = recording(
    [
        [text("a")],
        [text("b"), call("c1"), call("c2")],
        [result("c1", "1"), result("c2", "2"), text("steer")],
        [text("the end of it")],
    ]
).messages


def changed(at: int, blocks: list[dict[str, Any]] | None = None, **fields: Any) -> list[Message]:
    messages = list(TURN)
    if blocks is not None:
        fields["body"] = encode_blocks(blocks)
    messages[at] = msgspec.structs.replace(messages[at], **fields)
    return messages


def test_a_call_id_that_the_session_replaced_is_the_recorded_one() -> None:
    recorded = recording([[text("a")], [call("f.x:0|y"), call("z" * 90)], [result("f.x:0|y")]])
    renamed = recording(
        [[text("a")], [call("f_x_0_y"), call(clean_call_id("z" * 90))], [result("f_x_0_y")]]
    )
    assert same_history(recorded.messages, renamed.messages) is None


def test_ids_turn_numbers_times_and_suffixes_may_differ() -> None:
    other = [
        msgspec.structs.replace(m, id=f"x{at}", session="s", turn=9, created_at=5, completed_at=6)
        for at, m in enumerate(TURN)
    ]
    other[1] = msgspec.structs.replace(
        other[1], body=encode_blocks([text("b"), call("c1_2"), call("c2_3")])
    )
    other[2] = msgspec.structs.replace(
        other[2], body=encode_blocks([result("c1_2", "1"), result("c2_3", "2"), text("steer")])
    )
    assert same_history(TURN, other) is None
    assert normalized(TURN) == normalized(other)


def test_a_receipt_may_be_there_and_a_text_of_the_user_may_not() -> None:
    said = [text("a"), text("Note from the session")]
    assert same_history(TURN, changed(0, said, synthetic=(1,))) is None
    assert same_history(TURN, changed(0, said)) == (
        "turn 1, message 0: block 1 is only in the second"
    )


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (changed(0, [text("A")]), "turn 1, message 0: block 0 (text): its text differs"),
        (changed(1, [text("b"), call("c2"), call("c1")]), "message 1: block 1 (tool_use): its id"),
        (changed(2, [result("c1", "1"), text("steer")]), "message 2: block 1"),
        (changed(1, [text("b"), call("c1", x=1), call("c2")]), "its input differs"),
        (changed(3, usage=Usage(input_tokens=1)), "message 3: usage is"),
        (changed(3, stop_reason="cancelled"), "message 3: stop_reason is None"),
        (changed(3, model="another"), "message 3: model is 'recorded-model'"),
        (changed(2, synthetic=(0,)), "message 2: settled is ()"),
        (list(TURN[:3]), "turn 1, message 3: only in the first"),
        ([], "turn 1 is only in the first history"),
    ],
)
def test_everything_else_is_a_difference(messages: list[Message], told: str) -> None:
    difference = same_history(TURN, messages)
    assert difference is not None
    assert told in difference


def test_results_with_the_wrong_call_are_a_difference() -> None:
    swapped = changed(2, [result("c2", "1"), result("c1", "2"), text("steer")])
    assert same_history(TURN, swapped) is not None


def test_a_turn_as_it_was_recorded_has_no_difference() -> None:
    assert turn_differences(TURN, TURN) == []
    assert len(turn_differences(changed(3, [text("B")]), TURN)) == 1


def test_results_of_calls_that_were_never_answered_are_not_compared() -> None:
    recorded = changed(2, [result("c1", "1"), text("steer")])
    assert turn_differences(TURN, recorded, unanswered={"c2"}) == []
    assert turn_differences(TURN, recorded, unanswered={"c1"}) != []


def test_recorded_results_out_of_call_order_are_the_same() -> None:
    recorded = changed(2, [result("c2", "2"), result("c1", "1"), text("steer")])
    assert turn_differences(TURN, recorded) == []


def test_a_false_is_error_and_a_missing_content_are_as_if_they_were_not_there() -> None:
    recorded = changed(2, [result("c1", "1", is_error=False), result("c2", "2"), text("steer")])
    assert turn_differences(TURN, recorded) == []
    wrong = changed(2, [result("c1", "1", is_error=True), result("c2", "2"), text("steer")])
    assert turn_differences(TURN, wrong) != []


SETTLED = [result("c1", "1"), result("c2", "No result", is_error=True)]


@pytest.mark.parametrize(
    "kept",
    [
        TURN[:3],
        [*TURN[:2], changed(2, SETTLED, synthetic=(1,))[2]],
        [*TURN[:2], changed(2, SETTLED[1:], synthetic=(0,))[2]],
        changed(3, [text("the e")], stop_reason="cancelled"),
    ],
    ids=["whole steps", "a settled call", "only a settled call", "a part of the text"],
)
def test_a_turn_that_was_cut_short_is_a_beginning_of_the_recorded_one(kept: list[Message]) -> None:
    assert turn_differences(kept, TURN, cut_short=True) == []


@pytest.mark.parametrize(
    "kept",
    [
        TURN[1:],
        [*TURN, *TURN[:1]],
        changed(3, [text("the x")], stop_reason="cancelled"),
        changed(3, [text("the e")]),
        [*TURN[:2], changed(2, [result("c1", "2")])[2]],
        [*changed(0, [text("A")])[:3]],
    ],
    ids=["no opening", "too long", "another text", "not marked", "wrong result", "wrong opening"],
)
def test_a_turn_that_was_cut_short_may_not_say_anything_else(kept: list[Message]) -> None:
    assert turn_differences(kept, TURN, cut_short=True) != []
