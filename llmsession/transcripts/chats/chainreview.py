"""ChainReview's session files: what is sent to the model, as Anthropic messages.

Messages have no ids and no times, so ids are derived. ``condensedSummary`` is the ``summary``. The
format cannot store ids, times, models and usage, a title, a system prompt, and branches.
"""

from __future__ import annotations

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import block_type, encode_json

from ..common.assembly import CHAT, assemble
from ..common.chat_records import Reading, id_of
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Probe
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, text_blocks

__all__ = ["FORMAT", "looks_chainreview", "read_chainreview"]

FORMAT = "chainreview"


def looks_chainreview(probe: Probe) -> bool:
    """Is it a session with a repository's path and the messages that are sent to the model?"""
    return {"id", "repoPath", "apiHistory"} <= probe.fields.keys()


def read_chainreview(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The one conversation in *raw*, a file's bytes.

    Raises TranscriptError if there is no ``apiHistory``. With *strict*, also for a message that
    cannot be read.
    """
    reading = Reading(strict=strict)
    session = Record.of(read_document(raw, reading.notes, strict=strict))
    if (session.raw("apiHistory") or b"")[:1] != b"[":
        raise TranscriptError("not a session of ChainReview: no apiHistory in it")
    messages = []
    for number, item in enumerate(session.items("apiHistory"), 1):
        row = Record.of(item, number)
        role, blocks = row.text("role"), _blocks(row)
        if role not in ("user", "assistant") or blocks is None:
            reading.refuse(number, "a message without a role and content", item)
            continue
        messages.append(
            RecordedMessage(
                role="user" if role == "user" else "assistant",
                blocks=blocks,
                number=number,
                extra=row.rest(("role", "content")),
                raw=bytes(item),
            )
        )
    fields = session.rest(("id", "apiHistory", "condensedSummary"))
    conversation = assemble(
        messages,
        rules=CHAT,
        notes=reading.notes,
        records=reading.records,
        session=id_of(session, "id") or FORMAT,
        format=FORMAT,
        summary=session.text("condensedSummary") or "",
        extra={FORMAT: msgspec.Raw(encode_json(fields))},
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
