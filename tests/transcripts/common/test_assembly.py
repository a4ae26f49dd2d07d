from __future__ import annotations

from typing import Any

import pytest

from llmsession.compaction.rules.repair import tool_pair_repair
from llmsession.transcripts import Conversation
from llmsession.transcripts.common.assembly import assemble, clean_call_id, derived_id
from llmsession.transcripts.common.chat_message import (
    MISSING,
    Reading,
    Said,
    call_block,
    result_block,
    text_blocks,
)


def user(id: str, *blocks: bytes | str, **fields: Any) -> Said:
    return Said(role="user", id=id, blocks=blocks_of(blocks), **fields)


def model(id: str, *blocks: bytes | str, **fields: Any) -> Said:
    return Said(role="assistant", id=id, blocks=blocks_of(blocks), **fields)


def blocks_of(blocks: tuple[bytes | str, ...]) -> list[bytes]:
    return [
        block
        for each in blocks
        for block in (text_blocks(each) if isinstance(each, str) else [each])
    ]


def call(id: str) -> bytes:
    return call_block(id, "run", {})


def result(id: str, text: str = "done") -> bytes:
    return result_block(id, text)


def assembled(*said: Said) -> Conversation:
    conversation = assemble(said, Reading(strict=False), session="s", format="x")
    if not conversation.unanswered:
        tool_pair_repair(conversation.messages, "strict")
    return conversation


def shape(conversation: Conversation) -> list[str]:
    letters = {"TextBlock": "t", "ToolUseBlock": "c", "ToolResultBlock": "r"}
    return [
        f"{message.turn}{message.id}:"
        + "".join(letters.get(type(block).__name__, "o") for block in message.content)
        for message in conversation.messages
    ]


def test_every_user_message_opens_a_turn_and_keeps_its_id() -> None:
    conversation = assembled(user("a", "1"), user("b", "2"), model("c", "3"), user("d", "4"))
    assert shape(conversation) == ["1a:t", "2b:t", "2c:t", "3d:t"]
    assert conversation.unfinished == (1, 3)
    assert conversation.notes == ()


def test_results_stand_in_messages_of_their_own_in_the_order_of_the_calls() -> None:
    said = [user("a", "go"), model("b", call("1"), call("2")), user("r2", result("2"))]
    conversation = assembled(*said, user("r1", result("1")), model("c", "done"))
    assert shape(conversation) == ["1a:t", "1b:cc", "1r1:r", "1r2:r", "1c:t"]


def test_what_came_with_results_stands_behind_them_and_opens_no_turn() -> None:
    conversation = assembled(
        user("a", "go"),
        model("b", call("1")),
        user("r", "mind this", result("1")),
        model("c", "ok"),
    )
    assert shape(conversation) == ["1a:t", "1b:c", "1r:rt", "1c:t"]
    assert conversation.interrupted == ()


def test_a_result_a_turn_late_is_moved_behind_its_call_and_noted() -> None:
    conversation = assembled(
        user("a", "go"), model("b", call("1")), user("c", "next"), user("d", "here", result("1"))
    )
    assert shape(conversation) == ["1a:t", "1b:c", "1b#results:r", "2c:t", "3d:t"]
    assert conversation.count_notes() == {"moved": 1}
    assert conversation.interrupted == (1,)


def test_a_result_before_its_call_finds_it_if_no_other_call_has_that_id() -> None:
    conversation = assembled(
        user("a", "go"), user("r", result("1")), model("b", call("1")), user("z")
    )
    assert shape(conversation)[:3] == ["1a:t", "1b:c", "1r:r"]


def test_a_result_before_two_calls_of_its_id_belongs_to_neither() -> None:
    conversation = assembled(
        user("a", "go"),
        user("r", result("1")),
        model("b", call("1")),
        model("c", call("1")),
        user("z"),
    )
    assert conversation.count_notes() == {"orphan_result": 1, "renamed": 1, "unanswered_call": 2}


def test_an_orphan_result_is_left_out_and_kept_beside_the_messages() -> None:
    conversation = assembled(user("a", "go"), user("r", result("9", "lost")), model("b", "ok"))
    assert shape(conversation) == ["1a:t", "1b:t"]
    (note,) = conversation.notes
    assert (note.what, note.visible) == ("orphan_result", True)
    assert b"lost" in bytes(conversation.records[0])


def test_of_two_results_of_one_call_the_first_stays() -> None:
    conversation = assembled(
        user("a", "go"), model("b", call("1")), user("r", result("1", "one"), result("1", "two"))
    )
    assert [each.text for each in conversation.messages[2].tool_results] == ["one"]
    assert conversation.count_notes() == {"duplicate": 1}


def test_an_unanswered_call_gets_a_neutral_error_result_that_is_flagged() -> None:
    conversation = assembled(
        user("a", "go"), model("b", call("1"), call("2")), user("r", result("2")), user("c", "next")
    )
    assert shape(conversation) == ["1a:t", "1b:cc", "1r:rr", "2c:t"]
    answers = conversation.messages[2]
    assert answers.synthetic == (0,)
    first, second = answers.tool_results
    assert (first.tool_use_id, first.text, first.is_error) == ("1", MISSING, True)
    assert (second.tool_use_id, second.text) == ("2", "done")
    assert conversation.count_notes() == {"unanswered_call": 1}


def test_a_call_without_any_result_gets_a_message_that_stands_in() -> None:
    conversation = assembled(user("a", "go"), model("b", call("1")), model("c", "on"))
    assert shape(conversation) == ["1a:t", "1b:c", "1b#results:r", "1c:t"]
    assert conversation.messages[2].synthetic == (0,)


@pytest.mark.parametrize("answered", [True, False])
def test_a_call_that_nothing_came_after_is_still_open(answered: bool) -> None:
    results = [user("r", result("1"))] if answered else []
    conversation = assembled(user("a", "go"), model("b", call("1"), call("2")), *results)
    assert conversation.unanswered == (("2",) if answered else ("1", "2"))
    assert conversation.notes == ()


def test_a_call_id_that_comes_back_is_renamed_with_its_result() -> None:
    conversation = assembled(
        user("a", "go"), model("b", call("1")), user("r", result("1", "one")),
        model("c", call("1")), user("q", result("1", "two")), model("d", "ok"),
    )  # fmt: skip
    calls = [one.id for message in conversation.messages for one in message.tool_calls]
    results = [(r.tool_use_id, r.text) for m in conversation.messages for r in m.tool_results]
    assert calls == ["1", "1_2"]
    assert results == [("1", "one"), ("1_2", "two")]
    assert conversation.count_notes() == {"renamed": 1}


def test_a_call_id_that_no_provider_takes_is_made_one_that_they_take() -> None:
    conversation = assembled(
        user("a", "go"), model("b", call("functions.run:0"), call("functions_run_0")),
        user("r", result("functions.run:0", "one"), result("functions_run_0", "two")),
    )  # fmt: skip
    assert [each.id for each in conversation.messages[1].tool_calls] == [
        "functions_run_0_2",
        "functions_run_0",
    ]
    assert [each.text for each in conversation.messages[2].tool_results] == ["one", "two"]
    assert clean_call_id("") == "call"


def test_a_reply_before_any_user_text_and_an_empty_one_are_kept_beside_the_messages() -> None:
    conversation = assembled(model("x", "hi", raw=b'{"x":1}'), user("a", "go"), model("y"))
    assert shape(conversation) == ["1a:t"]
    assert conversation.count_notes() == {"no_user_message": 1, "empty": 1}
    assert [bytes(record) for record in conversation.records] == [
        b'{"left_out":"no_user_message","record":{"x":1}}',
        b'{"left_out":"empty","record":null}',
    ]


def test_results_alone_are_nobodys_question() -> None:
    conversation = assembled(user("r", result("1"), b'{"type":"tool_result"}'), model("b", "ok"))
    assert conversation.messages == ()


def test_blocks_on_the_wrong_side_and_malformed_ones_are_left_out() -> None:
    conversation = assembled(
        user("a", "go", call("1")), model("b", "ok", result("2"), b'{"type":"tool_use","id":3}')
    )
    assert shape(conversation) == ["1a:t", "1b:t"]
    assert conversation.count_notes() == {"misplaced": 3}


def test_texts_of_the_system_at_the_beginning_are_the_system_prompt() -> None:
    said = [Said(role="system", blocks=blocks_of((text,))) for text in ("one", "two")]
    conversation = assembled(*said, user("a", "go"), Said(role="system", blocks=blocks_of(("3",))))
    assert conversation.system == "one\n\ntwo"
    assert conversation.count_notes() == {"system": 1}


def test_a_stopped_reply_interrupts_its_turn() -> None:
    conversation = assembled(user("a", "1"), model("b", "par", cut=True), user("c", "2"))
    assert conversation.interrupted == (1,)


def test_an_id_that_comes_twice_is_made_unique_and_missing_ones_are_derived() -> None:
    conversation = assembled(user("a", "1"), model("a", "2"), user("", "3"))
    ids = [message.id for message in conversation.messages]
    assert ids == ["a", "a~2", derived_id("s", 2)]
    assert conversation.count_notes() == {"duplicate_id": 1}
    assert len(derived_id("s", 2)) == len("c0a38bae-3dbd-83c7-e7ee-f3b6a22351c8")
