"""NeuroLink's conversations as Redis stores them: one JSON object for each session.

Calls and results are rows without call ids. They are paired by adjacency: a run of results answers
the run of calls before it, and each result answers the oldest open call of its tool, else the
oldest open call. Summaries and truncation markers that the system put among the messages are left
out. ``summarizedMessage`` is the ``summary``. The format cannot store a system prompt, thinking,
usage, and branches. A result of several blocks becomes one text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json

from ..common.assembly import CHAT, assemble
from ..common.call_pairs import clean_call_id, clean_name
from ..common.chat_records import Reading, id_of
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Probe
from ..common.record import Record
from ..common.recorded_message import (
    RecordedMessage,
    call_block_of_value,
    output_text,
    result_block,
    summary_mark,
    text_blocks,
)

__all__ = ["FORMAT", "looks_neurolink", "read_neurolink"]

FORMAT = "neurolink"

_KEY = "neurolink:conversation:"
_SUMMARY_FIELDS = ("summarizedUpToMessageId", "summarizedMessage", "tokenThreshold")
_SUMMARY_TITLE = "[Previous conversation summary]:"
_TELLING = {*_SUMMARY_FIELDS, "lastTokenCount", "lastApiTokenCount"}
_HELD = {"id", "role", "content", "timestamp", "tool", "args"}
"""Fields of a row that the message holds."""
_ROLES = ("user", "assistant", "system", "tool_call", "tool_result")


def looks_neurolink(probe: Probe) -> bool:
    """Is it a session with the fields that NeuroLink counts and summarises by, or a dump of such
    keys?
    """
    fields = probe.fields
    if fields and all(name.startswith(_KEY) for name in fields):
        return True
    messages = fields.get("messages")
    if "sessionId" not in fields or not isinstance(messages, list):
        return False
    roles = {row.get("role") for row in messages if isinstance(row, dict)}
    stamped = {"createdAt", "updatedAt", "userId"} <= fields.keys() and bool(roles & {"user"})
    return bool(fields.keys() & _TELLING) or bool(roles & {"tool_call", "tool_result"}) or stamped


def read_neurolink(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: one, or one for each key of a dump.

    Raises TranscriptError if there is no session. With *strict*, also for a session or message that
    cannot be read.
    """
    reading = Reading(strict=strict)
    document = Record.of(read_document(raw, reading.notes, strict=strict))
    names = [name for name in document.fields if name.startswith(_KEY)]
    sessions = [_value(document, name) for name in names] if names else [document]
    conversations: list[Conversation] = []
    for number, session in enumerate(sessions, 1):
        if (session.raw("messages") or b"")[:1] != b"[":
            reading.refuse(number, "a session without messages", encode_json(session.fields))
            continue
        conversations.append(_conversation(session, reading))
        reading = Reading(strict=strict)
    if not conversations:
        raise TranscriptError("not a session of NeuroLink: no messages in it")
    conversations[-1] = reading.added_to(conversations[-1])
    return tuple(conversations)


def _value(dump: Record, name: str) -> Record:
    # Redis stores texts, so in a dump the JSON may be encoded once more as a text.
    text = dump.text(name)
    if text is None:
        return dump.record(name)
    try:
        return Record.of(read_document(text.encode("utf-8", "replace"), []))
    except TranscriptError:
        return Record.of(None)


def _conversation(session: Record, reading: Reading) -> Conversation:
    held = ("sessionId", "messages", "title", "summarizedMessage")
    return assemble(
        _messages(session, reading),
        rules=CHAT,
        notes=reading.notes,
        records=reading.records,
        session=id_of(session, "sessionId", "id") or FORMAT,
        format=FORMAT,
        title=session.text("title") or "",
        summary=(session.text("summarizedMessage") or "").strip(),
        extra={FORMAT: msgspec.Raw(encode_json(session.rest(held)))},
    )


def _messages(session: Record, reading: Reading) -> Iterator[RecordedMessage]:
    waiting: list[tuple[str, str]] = []
    answering = False
    pointer = id_of(session, "summarizedUpToMessageId")
    is_past = False
    for row in session.records("messages"):
        if is_past:
            yield from summary_mark(session.text("summarizedMessage") or "")
        is_past = bool(pointer) and id_of(row, "id") == pointer
        role = row.text("role") or ""
        metadata = row.record("metadata")
        raw = encode_json(row.fields)
        if role not in _ROLES:
            reading.refuse(row.number, "a message without a known role", raw)
            continue
        if metadata.flag("isSummary"):
            text = (row.text("content") or "").removeprefix(_SUMMARY_TITLE)
            yield from summary_mark(text)
        if metadata.flag("isSummary") or row.flag("isTruncationMarker"):
            why = "summary" if metadata.flag("isSummary") else "truncation_marker"
            reading.leave_out(row.number, why, raw, row.text("content") or "", visible=True)
            continue
        if (role == "tool_call" and answering) or role in ("user", "assistant"):
            waiting.clear()
        answering = role == "tool_result"
        tool = row.text("tool") or "tool"
        if role == "tool_call":
            call_id = clean_call_id(f"call_{id_of(row, 'id') or row.number}")
            waiting.append((call_id, tool))
            block = call_block_of_value(call_id, clean_name(tool), row.value("args"))
            yield _message(row, "assistant", [block])
        elif role == "tool_result":
            index = next((index for index, (_, name) in enumerate(waiting) if name == tool), 0)
            call_id = waiting.pop(index)[0] if waiting else ""
            yield _message(row, "user", [_result(row, call_id)])
        else:
            yield _message(row, role, text_blocks(row.text("content") or ""))
    if is_past:
        yield from summary_mark(session.text("summarizedMessage") or "")


def _result(row: Record, call_id: str) -> bytes:
    result = row.value("result")
    text = row.text("content") or ""
    if not text and result is not None:
        text = output_text(result)
    failed = row.record("result").raw("error") is not None or row.record("metadata").flag("isError")
    return result_block(call_id, text, is_error=failed)


def _message(row: Record, role: Any, blocks: list[bytes]) -> RecordedMessage:
    has_more = row.text("role") == "tool_call" and row.text("content")
    return RecordedMessage(
        role=role,
        blocks=blocks,
        id=id_of(row, "id"),
        number=row.number,
        created_at=row.at("timestamp"),
        extra=row.rest(_HELD - {"content"} if has_more else _HELD),
        raw=encode_json(row.fields),
    )
