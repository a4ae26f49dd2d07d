"""The typed lines of a Claude Code recording, and which of them are its active path."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from llmsession.turns.blocks import split_blocks, text_block
from llmsession.turns.usage import Usage

from ..common.conversation import Note

__all__ = ["ClaudeBlock", "ClaudeLine", "active_path", "decode_line", "split_sessions"]


class ClaudeBlock(msgspec.Struct, frozen=True):
    """A content block. ``call_id`` is the id of a tool_use or tool_result, else empty."""

    type: str
    call_id: str
    text: str
    raw: bytes


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Body(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"[]")
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Record(msgspec.Struct, rename="camel"):
    type: str = ""
    uuid: str | None = None
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None
    session_id: str | None = None
    request_id: str | None = None
    timestamp: str | None = None
    is_sidechain: bool | None = None
    is_meta: bool | None = None
    is_compact_summary: bool | None = None
    is_visible_in_transcript_only: bool | None = None
    is_api_error_message: bool | None = None
    source_tool_use_id: str | None = msgspec.field(name="sourceToolUseID", default=None)
    subtype: str | None = None
    operation: str | None = None
    summary: str | None = None
    leaf_uuid: str | None = None
    custom_title: str | None = None
    content: Any = None
    attachment: Any = None
    message: msgspec.Raw = msgspec.Raw(b"null")
    written: msgspec.Raw = msgspec.Raw(b"null")
    """In a file that we wrote: fields that the format has no place for."""


class ClaudeLine(msgspec.Struct, frozen=True):
    """One line of the file. ``body`` and ``blocks`` are those of its message, if it has one."""

    number: int
    record: _Record
    body: _Body
    blocks: tuple[ClaudeBlock, ...]

    @property
    def type(self) -> str:
        """The type of the line, as the file names it."""
        return self.record.type

    @property
    def is_message(self) -> bool:
        """Is it a message of the user's side or of the model?"""
        return self.record.type in ("user", "assistant")

    @property
    def at(self) -> float:
        """The line's time in seconds since the epoch; 0 if it has none."""
        try:
            return datetime.fromisoformat(self.record.timestamp or "").timestamp()
        except ValueError:
            return 0.0

    @property
    def response(self) -> str:
        """A key that the lines of one API response share."""
        return self.body.id or self.record.request_id or self.record.uuid or f"#{self.number}"

    @property
    def usage(self) -> Usage | None:
        """The usage of the response so far; None if the line does not report it."""
        reported = self.body.usage
        if reported is None:
            return None
        return Usage(
            input_tokens=reported.input_tokens or 0,
            output_tokens=reported.output_tokens or 0,
            cache_read_tokens=reported.cache_read_input_tokens or 0,
            cache_write_tokens=reported.cache_creation_input_tokens or 0,
        )


class _BlockFields(msgspec.Struct):
    type: str = ""
    id: Any = None
    tool_use_id: Any = None
    text: Any = None


_records = msgspec.json.Decoder(_Record)
_bodies = msgspec.json.Decoder(_Body)
_block_fields = msgspec.json.Decoder(_BlockFields)


def decode_line(number: int, raw: bytes) -> ClaudeLine:
    """The typed line. Raises msgspec.ValidationError if a field has the wrong type."""
    record = _records.decode(raw)
    if record.type not in ("user", "assistant"):
        return ClaudeLine(number, record, _Body(), ())
    body = _bodies.decode(record.message)
    if bytes(body.content).startswith(b'"'):
        text = msgspec.json.decode(body.content, type=str)
        raws = [text_block(text)] if text else []
    else:
        raws = [bytes(raw) for raw in split_blocks(body.content)]
    return ClaudeLine(number, record, body, tuple(_block(raw) for raw in raws))


def _block(raw: bytes) -> ClaudeBlock:
    fields = _block_fields.decode(raw)
    calls = {"tool_use": fields.id, "tool_result": fields.tool_use_id}
    text = fields.text if isinstance(fields.text, str) else ""
    return ClaudeBlock(fields.type, str(calls.get(fields.type) or ""), text, raw)


def split_sessions(lines: list[ClaudeLine]) -> list[list[ClaudeLine]]:
    """The lines of each conversation, in file order. Sessions that are joined by a parent link are
    one conversation. A line without a session belongs to the session before it.
    """
    home: dict[str, str] = {}  # maps a session to the session that it continues

    def root(session: str) -> str:
        while home.setdefault(session, session) != session:
            session = home[session]
        return session

    session_of_uuid: dict[str, str] = {}
    current = next((line.record.session_id for line in lines if line.record.session_id), "")
    sessions: list[str] = []
    for line in lines:
        record = line.record
        current = record.session_id or current
        sessions.append(current)
        for uuid in (record.uuid, record.parent_uuid, record.logical_parent_uuid):
            if uuid in session_of_uuid:
                home[root(current)] = root(session_of_uuid[uuid])
        if record.uuid:
            session_of_uuid.setdefault(record.uuid, current)
    groups: dict[str, list[ClaudeLine]] = {}
    for line, session in zip(lines, sessions, strict=True):
        groups.setdefault(root(session), []).append(line)
    return list(groups.values())


def active_path(lines: list[ClaudeLine]) -> tuple[set[int], list[Note]]:
    """The numbers of the message lines that the model saw last, and notes on broken links.

    *lines* have unique uuids and no sidechains. The path goes from the last message to its root
    over the parents, and across a compaction by its logical parent. If a parent is not in the file,
    the line before takes its place. Parallel calls are siblings in the tree. So the path includes
    all lines of a response on it, the results of its calls, and what those results brought with
    them.
    """
    place = {line.record.uuid: index for index, line in enumerate(lines) if line.record.uuid}
    index: int | None = max(
        (index for index, line in enumerate(lines) if line.is_message), default=None
    )
    path: set[int] = set()
    notes: list[Note] = []
    while index is not None and index not in path:
        path.add(index)
        record = lines[index].record
        parent = record.parent_uuid or record.logical_parent_uuid
        before = index
        index = place.get(parent) if parent else None
        if parent and index is None:
            notes.append(Note(lines[before].number, "missing_parent", parent, visible=True))
            index = before - 1 if before else None
    active = {lines[index].number for index in path if lines[index].is_message}
    return active | _siblings(lines, active), notes


def _siblings(lines: list[ClaudeLine], active: set[int]) -> set[int]:
    replies = [line for line in lines if line.type == "assistant"]
    responses = {line.response for line in replies if line.number in active}
    ours = [line for line in replies if line.response in responses]
    calls = {block.call_id for line in ours for block in line.blocks if block.type == "tool_use"}
    answers = {
        line.number
        for line in lines
        if line.type == "user"
        and (
            line.record.source_tool_use_id in calls
            or any(block.type == "tool_result" and block.call_id in calls for block in line.blocks)
        )
    }
    return {line.number for line in ours} | answers
