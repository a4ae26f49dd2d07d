"""ChainReview's session files: what is sent to the model, as Anthropic's messages.

Messages have no ids and no times: ids are derived. ``condensedSummary`` is the ``summary``. Not
held by this format: ids, times, models and usage, a title, a system prompt, and that a branch is
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import block_type, encode_json, join_blocks

from ..common.assembly import CHAT, assemble
from ..common.chat_records import Reading, beside, id_of, kept_fields, outgoing
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, text_blocks, text_of
from ..common.times import iso_time
from ..common.writing import path_of

__all__ = ["FORMAT", "looks_chainreview", "read_chainreview", "write_chainreview"]

FORMAT = "chainreview"


def looks_chainreview(peek: Probe) -> bool:
    """Is it a session with a repository's path and what is sent to the model?"""
    return {"id", "repoPath", "apiHistory"} <= peek.fields.keys()


def read_chainreview(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The one conversation in *raw*, a file's bytes.

    Raises TranscriptError: no ``apiHistory``; and, if *strict*, a message that cannot be read.
    """
    reading = Reading(strict=strict)
    session = Record.of(read_document(raw, reading.notes, strict=strict))
    if (session.raw("apiHistory") or b"")[:1] != b"[":
        raise TranscriptError("not a session of ChainReview: no apiHistory in it")
    said = []
    for number, item in enumerate(session.items("apiHistory"), 1):
        row = Record.of(item, number)
        role, blocks = row.text("role"), _blocks(row)
        if role not in ("user", "assistant") or blocks is None:
            reading.refuse(number, "a message without a role and content", item)
            continue
        one = RecordedMessage(
            role="user" if role == "user" else "assistant",
            blocks=blocks,
            number=number,
            raw=bytes(item),
        )
        one.extra = beside(row, _message(one))
        said.append(one)
    kept = session.rest(("id", "apiHistory", "condensedSummary"))
    conversation = assemble(
        said,
        rules=CHAT,
        notes=reading.notes,
        records=reading.records,
        session=id_of(session, "id") or FORMAT,
        format=FORMAT,
        summary=session.text("condensedSummary") or "",
        extra={FORMAT: msgspec.Raw(encode_json(kept))},
    )
    return (conversation,)


def _blocks(row: Record) -> list[bytes] | None:
    text = row.text("content")
    if text is not None:
        return text_blocks(text)
    if (row.raw("content") or b"")[:1] != b"[":
        return None
    blocks = [bytes(block) for block in row.items("content")]
    return blocks if all(map(block_type, blocks)) else None


def write_chainreview(conversations: Sequence[Conversation]) -> Files:
    """A file for each conversation."""
    return {
        path_of(at, conversation, ".json"): _document(conversation)
        for at, conversation in enumerate(conversations)
    }


def _document(conversation: Conversation) -> bytes:
    times = [message.created_at for message in conversation.messages if message.created_at]
    stamps = {"createdAt": iso_time(min(times)), "updatedAt": iso_time(max(times))} if times else {}
    history = [{**_message(said), **said.extra} for said in outgoing(conversation, FORMAT)]
    summary = {"condensedSummary": conversation.summary} if conversation.summary else {}
    session: dict[str, Any] = {
        **stamps,
        "repoPath": "",
        "tokenCount": 0,
        **kept_fields(conversation, FORMAT),
        "id": conversation.id,
        **summary,
        "apiHistory": history,
    }
    return encode_json(session) + b"\n"


def _message(said: RecordedMessage) -> dict[str, Any]:
    text = text_of([said])
    if text and said.blocks == text_blocks(text):
        return {"role": said.role, "content": text}
    return {"role": said.role, "content": join_blocks(said.blocks)}
