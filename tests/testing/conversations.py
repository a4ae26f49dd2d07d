"""Recorded conversations made by hand, a turn at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from llmsession.transcripts import Conversation
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, message_id
from llmsession.turns.usage import Usage

__all__ = ["call", "recording", "result", "text", "tool_loop"]

Said: TypeAlias = list[dict[str, Any]]
"""The blocks of one message. In a turn the user speaks first."""


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(call_id: str, name: str = "look", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "seen", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def recording(*turns: Sequence[Said], interrupted: Sequence[int] = ()) -> Conversation:
    """Turns of messages of blocks. A message is the assistant's if a user's is due to end before
    it: the first is the user's, and so is each that holds a result or is marked by ``None``."""
    messages = [
        message for number, turn in enumerate(turns, 1) for message in _messages(number, turn)
    ]
    return Conversation(
        id="by-hand", format="own", messages=tuple(messages), interrupted=tuple(interrupted)
    )


def _messages(number: int, turn: Sequence[Said]) -> list[Message]:
    messages: list[Message] = []
    for at, blocks in enumerate(turn):
        role = "user" if at == 0 or any(_is_users(block) for block in blocks) else "assistant"
        owner = TurnId("u" if role == "user" else "a", number)
        reply = {"model": "recorded-model", "usage": Usage(input_tokens=7, output_tokens=3)}
        messages.append(
            Message(
                id=message_id("by-hand", owner, sum(m.role == role for m in messages)),
                session="by-hand",
                turn=number,
                role=role,  # type: ignore[arg-type]  # one of the two
                body=encode_blocks([_bare(block) for block in blocks]),
                **(reply if role == "assistant" else {}),  # type: ignore[arg-type]  # fields of several types
            )
        )
    return messages


def _is_users(block: dict[str, Any]) -> bool:
    return block["type"] == "tool_result" or "by_user" in block


def _bare(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "by_user"}


def tool_loop() -> Conversation:
    """Three turns: a tool loop with parallel calls, a thought and a steer; a plain answer; and a
    loop whose call id was used before."""
    return recording(
        [
            [text("what is in here?")],
            [text("let me look"), call("c1", path="."), call("c2", path="src")],
            [result("c1", "a\nb"), result("c2", [text("c")], is_error=True), text("quickly")],
            [call("c3", "read", path="a")],
            [result("c3", "the content of a")],
            [text("There are three files, and nothing else that would matter to anybody.")],
        ],
        [[text("thanks"), text("really")], [text("you are welcome")]],
        [[text("again")], [call("c1", path=".")], [result("c1", "a")], [text("one file")]],
    )
