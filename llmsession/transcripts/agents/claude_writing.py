"""Writes session files in Claude Code's format: one JSON line for each block, each the child of the
one before.

A field of ours in each line says which message it is a part of, so that ids, order and turns are
restored. If Claude Code has continued such a file, it is read like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any

import msgspec

from llmsession.turns.blocks import join_blocks, split_blocks, text_block
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

from ..common.conversation import Conversation, Note
from ..common.times import iso_time
from ..common.writing import json_lines, path_of
from .claude_lines import ClaudeLine

__all__ = ["FORMAT", "INTERRUPTED", "is_written", "read_written", "write_claude_code"]

FORMAT = "claude-code"

INTERRUPTED = "[Request interrupted by user]"


class _Written(msgspec.Struct, omit_defaults=True):
    """Fields that a line of Claude Code has no place for."""

    id: str
    turn: int
    created_at: float = 0.0
    completed_at: float = 0.0
    synthetic: tuple[int, ...] = ()
    provider: str | None = None
    error: str | None = None
    extra: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_written = msgspec.json.Decoder(_Written)


def write_claude_code(conversations: Sequence[Conversation]) -> dict[str, bytes]:
    """A file for each conversation, including branches, by its name: the index and the id."""
    return {
        path_of(index, conversation, ".jsonl"): json_lines(_lines(conversation))
        for index, conversation in enumerate(conversations)
    }


def _lines(conversation: Conversation) -> Iterator[dict[str, Any]]:
    messages = conversation.messages
    parent: str | None = None
    for index, message in enumerate(messages):
        is_last = index + 1 == len(messages) or messages[index + 1].turn != message.turn
        bodies = list(_bodies(message))
        if is_last and message.turn in conversation.interrupted:
            marker = {"role": "user", "content": [msgspec.Raw(text_block(INTERRUPTED))]}
            bodies.append(({"type": "user"}, marker))
        for part, (fields, body) in enumerate(bodies):
            uuid = _uuid(f"{conversation.id} {message.id} {part}")
            yield {
                "parentUuid": parent,
                "isSidechain": False,
                "sessionId": conversation.id,
                "uuid": uuid,
                "timestamp": iso_time(message.completed_at),
                **fields,
                "message": body,
            }
            parent = uuid
    if conversation.title:
        yield {
            "type": "custom-title",
            "customTitle": conversation.title,
            "sessionId": conversation.id,
        }


def _uuid(name: str) -> str:
    """A UUID as Claude Code requires it, always the same for *name*: version 8, from a hash."""
    digits = sha256(name.encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"


def _bodies(message: Message) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    written = _Written(
        id=message.id,
        turn=message.turn,
        created_at=message.created_at,
        completed_at=message.completed_at,
        synthetic=message.synthetic,
        provider=message.provider,
        error=message.error,
        extra=message.extra,
    )
    blocks = [bytes(raw) for raw in split_blocks(message.body)]
    for part in [[raw] for raw in blocks] or [[]]:
        body: dict[str, Any] = {"role": message.role, "content": list(map(msgspec.Raw, part))}
        if message.is_assistant:
            body |= {"id": message.id, "type": "message", "model": message.model}
            body["stop_reason"] = message.stop_reason
            body |= {"usage": _usage(message.usage)} if message.usage else {}
        yield {"type": message.role, "written": written}, body


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


# Reading them back.


def is_written(lines: Sequence[ClaudeLine]) -> bool:
    """Did we write each message line of a session, and did Claude Code add nothing?"""
    known = {"user", "assistant", "custom-title"}
    own_lines = [line for line in lines if line.is_message and not _is_marker(line)]
    ours = all(_read(line) is not None for line in own_lines)
    turns = [_turn(line) for line in own_lines]
    return (
        bool(own_lines)
        and ours
        and turns == sorted(turns)
        and all(line.type in known for line in lines)
    )


def _is_marker(line: ClaudeLine) -> bool:
    is_text = len(line.blocks) == 1 and line.blocks[0].text == INTERRUPTED
    return line.type == "user" and is_text and _read(line) is None


def _read(line: ClaudeLine) -> _Written | None:
    try:
        written = _written.decode(line.record.written)
    except msgspec.ValidationError:
        return None
    return written if written.turn > 0 else None


def _turn(line: ClaudeLine) -> int:
    written = _read(line)
    return written.turn if written else 0


def read_written(lines: Sequence[ClaudeLine], notes: Sequence[Note]) -> Conversation:
    """The conversation that the lines of one session were written from."""
    session = next((line.record.session_id for line in lines if line.record.session_id), "unknown")
    messages: list[Message] = []
    interrupted: list[int] = []
    titles = [line.record.custom_title for line in lines if line.record.custom_title]
    message_lines = [line for line in lines if line.is_message]
    for id, group in groupby(
        message_lines, key=lambda line: own.id if (own := _read(line)) else ""
    ):
        parts = list(group)
        written = _read(parts[0])
        if written is None:
            interrupted += [messages[-1].turn] if messages else []
            continue
        messages.append(_message(session, id, parts, written))
    return Conversation(
        id=session,
        format=FORMAT,
        title=titles[-1] if titles else "",
        messages=tuple(messages),
        notes=tuple(notes),
        interrupted=tuple(dict.fromkeys(interrupted)),
    )


def _message(session: str, id: str, lines: Sequence[ClaudeLine], written: _Written) -> Message:
    last = lines[-1]
    is_reply = last.type == "assistant"
    return Message(
        id=id,
        session=session,
        turn=written.turn,
        role="assistant" if is_reply else "user",
        body=join_blocks(block.raw for line in lines for block in line.blocks),
        created_at=written.created_at,
        completed_at=written.completed_at,
        synthetic=written.synthetic,
        model=last.body.model if is_reply else None,
        provider=written.provider,
        usage=last.usage if is_reply else None,
        stop_reason=last.body.stop_reason if is_reply else None,
        error=written.error,
        extra=written.extra,
    )
