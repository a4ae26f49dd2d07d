"""Conversations with usage, written by hand for these tests: no figure in them was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmsession.transcripts import Conversation
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message, Role
from llmsession.turns.usage import Usage

__all__ = ["Recorded", "call", "result"]


def call(call_id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": given}


def result(call_id: str, content: str = "seen") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


class Recorded:
    """Builds a conversation message by message; a reply says what its prompt held."""

    def __init__(self, model: str = "claude-opus-4-5") -> None:
        self.model = model
        self.messages: list[Message] = []
        self.turn = 0

    def ask(self, text: str = "go on") -> Recorded:
        self.turn += 1
        return self._add("user", text)

    def answer(self, *blocks: dict[str, Any]) -> Recorded:
        return self._add("user", list(blocks))

    def reply(
        self,
        content: str | list[dict[str, Any]],
        prompt: int | None,
        output: int = 0,
        *,
        cached: int = 0,
        **fields: Any,
    ) -> Recorded:
        usage = None if prompt is None else Usage(prompt - cached, output, cached)
        return self._add("assistant", content, **{"model": self.model, "usage": usage, **fields})

    def _add(self, role: Role, content: Any, **fields: Any) -> Recorded:
        message = Message(
            id=f"m{len(self.messages)}",
            session="s",
            turn=self.turn,
            role=role,
            body=encode_blocks(content),
            **fields,
        )
        self.messages.append(message)
        return self

    def done(self, interrupted: Sequence[int] = (), **fields: Any) -> Conversation:
        return Conversation(
            id="s",
            format="own",
            messages=tuple(self.messages),
            interrupted=tuple(interrupted),
            **fields,
        )
