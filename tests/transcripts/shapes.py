"""Conversations as short texts, to be compared."""

from __future__ import annotations

from typing import Any

from llmsession.transcripts import Conversation, Note

__all__ = ["content_of", "ids", "noted", "said", "shape"]

_LETTERS = {
    "TextBlock": "t",
    "ToolUseBlock": "c",
    "ToolResultBlock": "r",
    "ThinkingBlock": "k",
    "ImageBlock": "i",
}


def ids(conversation: Conversation) -> list[str]:
    return [message.id for message in conversation.messages]


def said(conversation: Conversation) -> list[str]:
    """The texts of the messages that have one."""
    return [message.text for message in conversation.messages if message.text]


def shape(conversation: Conversation) -> list[str]:
    """Turn ids with what each message holds: text, call, result, k for thinking, image."""
    return [
        f"{message.turn_id}:"
        + "".join(_LETTERS.get(type(block).__name__, "o") for block in message.content)
        for message in conversation.messages
    ]


def noted(conversation: Conversation, what: str) -> Note:
    """The only note of this kind."""
    (note,) = [note for note in conversation.notes if note.what == what]
    return note


def content_of(conversation: Conversation) -> list[tuple[Any, ...]]:
    """What every round trip keeps: ids, order, text, calls and results."""
    return [
        (
            message.id,
            message.role,
            message.text,
            [(call.id, call.name, call.input) for call in message.tool_calls],
            [(result.tool_use_id, result.text) for result in message.tool_results],
        )
        for message in conversation.messages
    ]
