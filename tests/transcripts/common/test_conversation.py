from __future__ import annotations

import msgspec

from llmsession.transcripts import Conversation, Note
from llmsession.turns.messages import Message, Role

TEXT = b'{"type":"text","text":"x"}'
CALL = b'{"type":"tool_use","id":"c1","name":"run","input":{}}'
RESULT = b'{"type":"tool_result","tool_use_id":"c1","content":"y"}'


def message(turn: int, role: Role, *blocks: bytes) -> Message:
    body = msgspec.Raw(b"[" + b",".join(blocks) + b"]")
    return Message(id=f"{turn}{role}{len(body)}", session="s", turn=turn, role=role, body=body)


def conversation(*messages: Message, notes: tuple[Note, ...] = ()) -> Conversation:
    return Conversation(id="s", format="own", messages=messages, notes=notes)


def test_turns_group_the_messages_by_turn_number() -> None:
    one, two = message(1, "user", TEXT), message(1, "assistant", TEXT)
    three = message(4, "user", TEXT)
    assert conversation(one, two, three).turns == ((one, two), (three,))


def test_a_turn_is_finished_by_a_reply_without_calls_only() -> None:
    said = conversation(
        message(1, "user", TEXT), message(1, "assistant", TEXT),
        message(2, "user", TEXT), message(2, "assistant", TEXT, CALL),
        message(3, "user", TEXT),
        message(4, "user", TEXT), message(4, "assistant", CALL), message(4, "user", RESULT),
    )  # fmt: skip
    assert said.unfinished == (2, 3, 4)


def test_unanswered_names_the_calls_without_a_result() -> None:
    asked = message(1, "user", TEXT), message(1, "assistant", CALL)
    assert conversation(*asked).unanswered == ("c1",)
    assert conversation(*asked, message(1, "user", RESULT)).unanswered == ()


def test_notes_are_counted_by_kind() -> None:
    notes = (Note(1, "a"), Note(2, "b"), Note(3, "b"))
    assert conversation(notes=notes).count_notes() == {"b": 2, "a": 1}
