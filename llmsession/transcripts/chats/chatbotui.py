"""Chatbot UI's exports: its older JSON file (versions 1 to 4), and rows of its database.

Neither form has tool calls or branches. Messages of the older one have neither ids nor times, so
their ids are derived. ``prompt`` is the system prompt. Neither form can store calls and their
results, thinking, usage, a summary, and branches. The older file also lacks ids, times and each
message's own model; the rows lack the images, which are paths there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json, split_blocks

from ..common.assembly import CHAT, assemble
from ..common.chat_records import Reading, beside, id_of, kept_fields, outgoing
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, text_blocks, text_of

__all__ = [
    "FORMAT",
    "ROWS_FORMAT",
    "looks_chatbot_ui",
    "looks_chatbot_ui_rows",
    "read_chatbot_ui",
    "read_chatbot_ui_rows",
    "write_chatbot_ui",
]

FORMAT = "chatbot-ui"
ROWS_FORMAT = "chatbot-ui-rows"

_LATEST = 4
_ROLES: dict[str, Literal["user", "assistant", "system"]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
}
_CHAT_IDS = ("chat_id", "chatId")


def looks_chatbot_ui(probe: Probe) -> bool:
    """Is it an export of version 1 to 4?"""
    fields = probe.fields
    if probe.items:
        return all(_is_conversation(item) for item in probe.items)
    return "history" in fields and (
        fields.get("version") in range(1, _LATEST + 1) or "folders" in fields
    )


def _is_conversation(item: Any) -> bool:
    if not isinstance(item, dict) or not {"id", "name", "messages"} <= item.keys():
        return False
    messages = item["messages"]
    return isinstance(messages, list) and all(
        isinstance(message, dict) and message.keys() >= {"role", "content"} for message in messages
    )


def read_chatbot_ui(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes, in order.

    Raises TranscriptError if *raw* is not such an export. With *strict*, also for a conversation or
    message that cannot be read.
    """
    reading = Reading(strict=strict)
    document = read_document(raw, reading.notes, strict=strict)
    file = Record.of(document)
    is_bare = document.startswith(b"[")
    if not is_bare and "history" not in file.fields:
        raise TranscriptError("not a Chatbot UI export: it has no history")
    items = split_blocks(document) if is_bare else file.items("history")
    file_fields: dict[str, Any] = {"file": file.rest({"history"})}
    conversations: list[Conversation] = []
    for number, item in enumerate(items, 1):
        record = Record.of(item, number)
        if (record.raw("messages") or b"")[:1] != b"[":
            reading.refuse(number, "a conversation without messages", item)
            continue
        reading.where = f"conversation {number}, "
        conversations.append(_conversation(record, reading, file_fields))
        reading, file_fields = Reading(strict=strict), {}
    if not conversations:
        raise TranscriptError("not a Chatbot UI export: no conversation in it")
    conversations[-1] = reading.added_to(conversations[-1])
    return tuple(conversations)


def _conversation(record: Record, reading: Reading, file_fields: dict[str, Any]) -> Conversation:
    model = id_of(record.record("model"), "id") or None
    messages: list[RecordedMessage] = []
    for number, item in enumerate(record.items("messages"), 1):
        message = Record.of(item, number)
        text, role = message.text("content"), _ROLES.get(message.text("role") or "")
        if text is None or role is None:
            reading.refuse(number, "a message without a role and text", item)
            continue
        one = RecordedMessage(role=role, blocks=text_blocks(text), number=number, raw=bytes(item))
        one.model = model if role == "assistant" else None
        one.extra = beside(message, {"role": role, "content": text})
        messages.append(one)
    rest = record.rest({"id", "name", "messages", "prompt"})
    return assemble(
        messages,
        rules=CHAT,
        notes=reading.notes,
        records=reading.records,
        session=id_of(record, "id") or f"{FORMAT}-{record.number}",
        format=FORMAT,
        title=record.text("name") or "",
        system=record.text("prompt") or "",
        extra={FORMAT: msgspec.Raw(encode_json({"conversation": rest, **file_fields}))},
    )


def write_chatbot_ui(conversations: Sequence[Conversation]) -> Files:
    """One file of version 4 with all conversations."""
    about_file = Record(0, kept_fields(conversations[0], FORMAT)).record("file").fields
    whole: dict[str, Any] = {"folders": [], "prompts": [], **about_file}
    history = [_written(conversation) for conversation in conversations]
    return {
        "chatbot_ui_history.json": encode_json({**whole, "version": _LATEST, "history": history})
        + b"\n"
    }


def _written(conversation: Conversation) -> dict[str, Any]:
    recorded = _with_text(outgoing(conversation, FORMAT))
    model = next((message.model for message in recorded if message.model), None)
    messages = [
        {"role": message.role, "content": text_of([message]), **message.extra}
        for message in recorded
    ]
    defaults = {"model": {"id": model, "name": model}} if model else {}
    rest = Record(0, kept_fields(conversation, FORMAT)).record("conversation").fields
    return {
        **defaults,
        "temperature": 1,
        "folderId": None,
        **rest,
        "id": conversation.id,
        "name": conversation.title,
        "messages": messages,
        "prompt": conversation.system,
    }


def _with_text(messages: Sequence[RecordedMessage]) -> list[RecordedMessage]:
    """The messages that these formats can store: all except those with calls or results alone."""
    return [message for message in messages if text_of([message]) or not message.blocks]


# Rows of the database.


def looks_chatbot_ui_rows(probe: Probe) -> bool:
    """Are there messages with sequence numbers, as rows of a table or of a dump of tables?"""
    rows = probe.items or probe.fields.get("messages")
    return isinstance(rows, list) and any(
        isinstance(row, dict) and "sequence_number" in row and "role" in row for row in rows
    )


def read_chatbot_ui_rows(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: one for each chat, in the order of the rows.

    *raw* is an array of messages, or an object with the tables ``messages`` and ``chats``. Raises
    TranscriptError if it contains no messages. With *strict*, also for a row that cannot be read.
    """
    reading = Reading(strict=strict)
    document = read_document(raw, reading.notes, strict=strict)
    file = Record.of(document)
    items = split_blocks(document) if document.startswith(b"[") else file.items("messages")
    chats = {id_of(chat, "id"): chat for chat in file.records("chats")}
    by_chat: dict[str, list[tuple[float, float, RecordedMessage]]] = {id: [] for id in chats if id}
    for number, item in enumerate(items, 1):
        row = Record.of(item, number)
        place, role = row.number_of("sequence_number"), _ROLES.get(row.text("role") or "")
        if place is None or role is None or row.text("content") is None:
            reading.refuse(number, "a row without a role, text and sequence number", item)
            continue
        message = _row_message(row, role, reading)
        rows = by_chat.setdefault(id_of(row, *_CHAT_IDS) or ROWS_FORMAT, [])
        rows.append((place, message.created_at, message))
    if not by_chat or not any(by_chat.values()):
        raise TranscriptError("not Chatbot UI's rows: no message with a sequence number in it")
    conversations: list[Conversation] = []
    for chat_id, placed in by_chat.items():
        chat = chats.get(chat_id, Record.of(None))
        conversations.append(_chat(chat_id, chat, placed, reading))
        reading = Reading(strict=strict)
    return tuple(conversations)


def _row_message(
    row: Record, role: Literal["user", "assistant", "system"], reading: Reading
) -> RecordedMessage:
    if row.items("image_paths"):
        reading.note(row.number, "images", "paths of images, kept in extra", visible=True)
    held = {"id", "sequence_number", *_CHAT_IDS, "role", "content", "created_at", "updated_at"}
    held |= {"model"} if role == "assistant" else set()
    held |= set() if row.items("image_paths") else {"image_paths"}
    return RecordedMessage(
        role=role,
        blocks=text_blocks(row.text("content") or ""),
        id=id_of(row, "id"),
        number=row.number,
        created_at=row.at("created_at"),
        completed_at=row.at("updated_at"),
        model=row.text("model") if role == "assistant" else None,
        extra=row.rest(held),
        raw=encode_json(row.fields),
    )


def _chat(
    chat_id: str, chat: Record, placed: list[tuple[float, float, RecordedMessage]], reading: Reading
) -> Conversation:
    messages = [item for _, _, item in sorted(placed, key=lambda row: row[:2])]
    return assemble(
        messages,
        rules=CHAT,
        notes=reading.notes,
        records=reading.records,
        session=chat_id,
        format=ROWS_FORMAT,
        title=chat.text("name") or "",
        system=chat.text("prompt") or "",
        extra={ROWS_FORMAT: msgspec.Raw(encode_json(chat.rest({"id", "name", "prompt"})))},
    )
