from __future__ import annotations

from llmsession.transcripts.common.builder import Reply, TurnBuilder
from llmsession.turns.blocks import encode_json, text_block


def call(id: str) -> bytes:
    return encode_json({"type": "tool_use", "id": id, "name": "run", "input": {}})


def result(id: str) -> bytes:
    return encode_json({"type": "tool_result", "tool_use_id": id, "content": "done"})


def ids(builder: TurnBuilder) -> list[str]:
    return [message.id for message in builder.build().messages]


def test_texts_without_a_reply_between_them_are_one_message() -> None:
    builder = TurnBuilder("s", "x")
    assert builder.user([text_block("a")], 1.0) == 1
    assert builder.user([text_block("b")], 2.0) == 1
    (message,) = builder.build().messages
    assert (message.text, message.created_at, message.completed_at) == ("ab", 1.0, 2.0)


def test_a_result_that_comes_before_its_call_finds_it() -> None:
    builder = TurnBuilder("s", "x")
    builder.user([text_block("a")], 1.0)
    builder.result(2, "c1", result("c1"), 2.0)
    builder.reply(Reply(blocks=[(3, call("c1"))]))
    assert ids(builder) == ["s/u1.0", "s/a1.0", "s/u1.1"]
    assert builder.notes == []


def test_a_result_that_comes_a_turn_late_is_put_behind_its_call() -> None:
    builder = TurnBuilder("s", "x")
    builder.user([text_block("a")], 1.0)
    builder.reply(Reply(blocks=[(2, call("c1"))]))
    builder.interrupt()
    builder.user([text_block("b")], 3.0)
    builder.result(4, "c1", result("c1"), 4.0)
    assert ids(builder) == ["s/u1.0", "s/a1.0", "s/u1.1", "s/u2.0"]


def test_a_text_that_would_join_a_finished_turn_starts_one() -> None:
    builder = TurnBuilder("s", "x")
    builder.user([text_block("a")], 1.0)
    builder.reply(Reply(blocks=[(2, text_block("b"))]))
    assert builder.user([text_block("c")], 3.0, joins=True) == 2
    assert builder.build().interrupted == ()


def test_an_interrupt_of_nothing_changes_nothing() -> None:
    builder = TurnBuilder("s", "x")
    builder.interrupt()
    assert builder.build().interrupted == ()
    assert builder.user([text_block("a")], 1.0) == 1


def test_notes_come_out_in_the_order_of_their_lines() -> None:
    builder = TurnBuilder("s", "x")
    builder.note(9, "late")
    builder.note(2, "early")
    assert [note.line for note in builder.build().notes] == [2, 9]
