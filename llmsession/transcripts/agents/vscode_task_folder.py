"""What the task folders of Cline and Roo Code have in common.

This covers where the files are, how messages are read and written, and the two conversations of a
truncated task. Both applications keep the full history and hide a part of it from the model. What
the model is sent is the conversation; the full history is a branch of it, ``<id>/full``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import block_type, encode_json
from llmsession.turns.usage import Usage

from ..common.assembly import assemble
from ..common.content_parts import blocks_of, without_unsigned
from ..common.conversation import Conversation, Note, branch_of
from ..common.document import read_document
from ..common.format import Files
from ..common.record import Record
from ..common.recorded_message import RecordedMessage

__all__ = [
    "FULL",
    "HISTORY",
    "Folder",
    "find_folders",
    "read_kept",
    "task_message",
    "task_messages",
    "two_views",
]

HISTORY = "api_conversation_history.json"
FULL = "/full"
_KNOWN = {"role", "content", "id", "ts"}


class Folder(msgspec.Struct, frozen=True):
    """A task's files by name. ``id`` is the folder's name, "" if it has none. ``above`` holds all
    files, because some stand beside the task folders.
    """

    id: str
    files: Mapping[str, bytes]
    above: Files


def find_folders(files: Files, *names: str) -> list[Folder]:
    """The folders in *files* that contain one of *names*. A single file with any other name counts
    as a folder that contains it under the first of *names*.
    """
    folders: dict[str, Folder] = {}
    for path in sorted(files):
        place, _, name = path.rpartition("/")
        if name in names and place not in folders:
            start = f"{place}/" if place else ""
            inside = {p[len(start) :]: raw for p, raw in files.items() if p.startswith(start)}
            here = {p: raw for p, raw in inside.items() if "/" not in p}
            folders[place] = Folder(place.rpartition("/")[2], here, files)
    if not folders and len(files) == 1:
        return [Folder("", {names[0]: next(iter(files.values()))}, files)]
    return list(folders.values())


def read_kept(raw: bytes | None, name: str, notes: list[Note]) -> bytes | None:
    """A file beside the history, as JSON; None if there is none. If it cannot be read, the result
    is None, with a note, because the history can be read without it.
    """
    if raw is None:
        return None
    try:
        return read_document(raw, [], strict=True)
    except TranscriptError as error:
        notes.append(Note(1, "bad_file", f"{name}: {error}", visible=True))
        return None


def task_message(record: Record, id: str, notes: list[Note]) -> RecordedMessage:
    """A message in Anthropic's form, with the additional fields of a task. *id* is its id if it has
    none of its own.
    """
    blocks = blocks_of(record.raw("content"), record.number, notes)
    extra = record.rest(_KNOWN)
    blocks = without_unsigned(blocks, record.number, notes, extra, foreign="reasoning")
    blocks, rests = _plain_results(blocks)
    if rests:
        extra["results"] = rests
    is_reply = record.text("role") == "assistant"
    info = record.record("modelInfo")
    return RecordedMessage(
        number=record.number,
        role="assistant" if is_reply else "user",
        blocks=blocks,
        id=record.text("id") or id,
        created_at=record.at("ts"),
        model=(info.text("modelId") or info.text("id")) if is_reply else None,
        provider=(info.text("providerId") or info.text("provider")) if is_reply else None,
        usage=_usage(record.record("metrics")) if is_reply else None,
        extra=extra,
    )


def task_messages(
    records: Sequence[Record], id: str, notes: list[Note], strict: bool
) -> list[RecordedMessage | None]:
    """The messages of the task *id*, with None in place of a record that is not a message. Raises
    TranscriptError for such a record if *strict*.
    """
    messages: list[RecordedMessage | None] = []
    for record in records:
        if record.text("role") in ("user", "assistant"):
            messages.append(task_message(record, f"{id}#{record.number - 1}", notes))
        elif strict:
            raise TranscriptError(f"message {record.number}: it has no known role")
        else:
            messages.append(None)
            notes.append(
                Note(record.number, "bad_message", "a message without a known role", visible=True)
            )
    return messages


def _plain_results(blocks: Sequence[bytes]) -> tuple[list[bytes], dict[str, Any]]:
    """Blocks, and, by call, the fields of results that providers do not accept."""
    plain, rests = [], {}
    sendable = {"type", "tool_use_id", "content", "is_error", "cache_control"}
    for raw in blocks:
        block = Record.of(raw)
        rest = block.rest(sendable) if block_type(raw) == "tool_result" else {}
        if rest:
            rests[block.text("tool_use_id") or ""] = rest
            raw = encode_json({k: v for k, v in block.fields.items() if k in sendable})
        plain.append(raw)
    return plain, rests


def _usage(metrics: Record) -> Usage | None:
    tokens = metrics.record("tokens")
    if tokens.fields:
        return Usage(
            input_tokens=tokens.count("prompt"),
            output_tokens=tokens.count("completion"),
            cache_read_tokens=tokens.count("cached"),
        )
    if not metrics.fields.keys() & {"inputTokens", "outputTokens"}:
        return None
    return Usage(
        input_tokens=metrics.count("inputTokens"),
        output_tokens=metrics.count("outputTokens"),
        cache_read_tokens=metrics.count("cacheReadTokens"),
        cache_write_tokens=metrics.count("cacheWriteTokens"),
    )


def two_views(
    visible: Sequence[RecordedMessage],
    full: Sequence[RecordedMessage],
    id: str,
    format: str,
    **fields: Any,
) -> tuple[Conversation, ...]:
    """The conversation that the model is sent, and the full history, if it differs.

    *fields* are those of the first. A summary is marked in both.
    """
    conversation = assemble(visible, session=id, format=format, **fields)
    said, whole_said = (
        [message for message in messages if not message.summary] for messages in (visible, full)
    )
    if len(said) == len(whole_said) and all(a is b for a, b in zip(said, whole_said, strict=True)):
        return (conversation,)
    whole = branch_of(conversation, assemble(full, session=f"{id}{FULL}", format=format))
    return conversation, whole
