"""NeuroLink's conversations as Redis holds them: one JSON object for each session.

Calls and results are rows without call ids. They are paired by adjacency: a run of results
answers the run of calls before it, each the oldest open call of its tool, else the oldest one.
Summaries and truncation markers that the system put among the messages are left out;
``summarizedMessage`` is the ``summary``. Not held by this format: a system prompt, thinking,
usage, and that a branch is one; a result of several blocks becomes one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json

from ..common.assembly import CHAT, assemble, clean_call_id
from ..common.chat_records import Reading, beside, id_of, kept_fields, outgoing
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.record import Record
from ..common.recorded_message import (
    RecordedMessage,
    call_block_of_value,
    result_block,
    result_text,
    text_blocks,
    text_of,
)
from ..common.times import iso_time
from ..common.writing import path_of

__all__ = ["FORMAT", "looks_neurolink", "read_neurolink", "write_neurolink"]

FORMAT = "neurolink"

_KEY = "neurolink:conversation:"
_SUMMARY_FIELDS = ("summarizedUpToMessageId", "summarizedMessage", "tokenThreshold")
_TELLING = {*_SUMMARY_FIELDS, "lastTokenCount", "lastApiTokenCount"}
_ROLES = ("user", "assistant", "system", "tool_call", "tool_result")


def looks_neurolink(peek: Probe) -> bool:
    """Is it a session with what NeuroLink counts and summarises, or a dump of such keys?"""
    fields = peek.fields
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

    Raises TranscriptError: no session in it; and, if *strict*, a session or message that cannot
    be read.
    """
    reading = Reading(strict=strict)
    document = Record.of(read_document(raw, reading.notes, strict=strict))
    names = [name for name in document.fields if name.startswith(_KEY)]
    sessions = [_value(document, name) for name in names] if names else [document]
    found: list[Conversation] = []
    for number, session in enumerate(sessions, 1):
        if (session.raw("messages") or b"")[:1] != b"[":
            reading.refuse(number, "a session without messages", encode_json(session.fields))
            continue
        found.append(_conversation(session, reading))
        reading = Reading(strict=strict)
    if not found:
        raise TranscriptError("not a session of NeuroLink: no messages in it")
    return tuple(found)


def _value(dump: Record, name: str) -> Record:
    # Redis holds texts: a dump may hold the JSON once more as one.
    text = dump.text(name)
    if text is None:
        return dump.record(name)
    try:
        return Record.of(read_document(text.encode("utf-8", "replace"), []))
    except TranscriptError:
        return Record.of(None)


def _conversation(session: Record, reading: Reading) -> Conversation:
    told = ("sessionId", "messages", "title", "summarizedMessage")
    return assemble(
        _said(session, reading),
        rules=CHAT,
        notes=reading.notes,
        records=reading.records,
        session=id_of(session, "sessionId", "id") or FORMAT,
        format=FORMAT,
        title=session.text("title") or "",
        summary=session.text("summarizedMessage") or "",
        extra={FORMAT: msgspec.Raw(encode_json(session.rest(told)))},
    )


def _said(session: Record, reading: Reading) -> Iterator[RecordedMessage]:
    waiting: list[tuple[str, str]] = []
    answering = False
    for row in session.records("messages"):
        role = row.text("role") or ""
        metadata = row.record("metadata")
        raw = encode_json(row.fields)
        if role not in _ROLES:
            reading.refuse(row.number, "a message without a role that is known", raw)
            continue
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
            block = call_block_of_value(call_id, clean_call_id(tool), row.value("args"))
            yield _one(row, "assistant", [block], tool)
        elif role == "tool_result":
            at = next((at for at, (_, name) in enumerate(waiting) if name == tool), 0)
            call_id = waiting.pop(at)[0] if waiting else ""
            yield _one(row, "user", [_result(row, call_id)], tool)
        else:
            yield _one(row, role, text_blocks(row.text("content") or ""), tool)


def _result(row: Record, call_id: str) -> bytes:
    result = row.value("result")
    text = row.text("content") or ""
    if not text and result is not None:
        text = result if isinstance(result, str) else encode_json(result).decode()
    failed = row.record("result").raw("error") is not None or row.record("metadata").flag("isError")
    return result_block(call_id, text, is_error=failed)


def _one(row: Record, role: Any, blocks: list[bytes], tool: str) -> RecordedMessage:
    said = RecordedMessage(
        role=role,
        blocks=blocks,
        id=id_of(row, "id"),
        number=row.number,
        created_at=row.at("timestamp"),
        raw=encode_json(row.fields),
    )
    names = {each.tool_use_id: tool for each in said.results}
    written = next(iter(_rows(said, names)), {})
    said.extra = beside(row, written, without=("id",))
    return said


# Writing.


def write_neurolink(conversations: Sequence[Conversation]) -> Files:
    """A file for each conversation."""
    return {
        path_of(at, conversation, ".json"): _document(conversation)
        for at, conversation in enumerate(conversations)
    }


def _document(conversation: Conversation) -> bytes:
    tools = {call.id: call.name for message in conversation.messages for call in message.tool_calls}
    rows: list[dict[str, Any]] = []
    for said in outgoing(conversation, FORMAT):
        for at, row in enumerate(_rows(said, tools)):
            id = f"{said.id}+{at}" if at else said.id
            rows.append({**row, **({} if at else said.extra), "id": id})
    times = [message.created_at for message in conversation.messages if message.created_at]
    stamps = {"createdAt": iso_time(min(times)), "updatedAt": iso_time(max(times))} if times else {}
    summary = {"summarizedMessage": conversation.summary} if conversation.summary else {}
    session = {
        **stamps,
        "tokenThreshold": None,
        **kept_fields(conversation, FORMAT),
        "sessionId": conversation.id,
        "title": conversation.title,
        **summary,
        "messages": rows,
    }
    return encode_json(session) + b"\n"


def _rows(said: RecordedMessage, tools: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The rows that *said* is written as: its results, then its text, then its calls."""
    stamp = {"timestamp": iso_time(said.created_at)} if said.created_at else {}
    for result in said.results:
        row: dict[str, Any] = {"role": "tool_result", "content": result_text(result), **stamp}
        row["tool"] = tools.get(result.tool_use_id, "tool")
        yield row | ({"metadata": {"isError": True}} if result.is_error else {})
    text = text_of([said])
    if text or not said.blocks:
        yield {"role": said.role, "content": text, **stamp}
    for call in said.calls:
        yield {"role": "tool_call", "content": "", "tool": call.name, "args": call.input, **stamp}
