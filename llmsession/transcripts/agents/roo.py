"""Roo Code's task folders: one list of messages, in which tags say what is hidden.

A summary hides all messages with its id in ``condenseParent``, and a marker those that it cut off
(``truncationParent``). The conversation is what the model would be sent: everything from the last
summary on. The tags stay in ``extra``, and the full history is a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import block_type, encode_json, split_blocks

from ..common.conversation import Conversation, Note
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, summary_mark
from .vscode_task_folder import (
    HISTORY,
    Folder,
    find_folders,
    read_kept,
    task_message,
    two_views,
)

__all__ = ["FORMAT", "looks_roo", "read_roo"]

FORMAT = "roo-code"

_LEGACY = "claude_messages.json"
_ITEM = "history_item.json"
_TAGS = {
    "condenseId", "condenseParent", "truncationId", "truncationParent", "isSummary",
    "isTruncationMarker", "reasoning_details",
}  # fmt: skip


def looks_roo(probe: Probe) -> bool:
    """Are the files a task of Roo Code, or the history of one?"""
    names = {path.rpartition("/")[2] for path in probe.files}
    if _LEGACY in names or (HISTORY in names and _ITEM in names):
        return True
    histories = [raw for path, raw in probe.files.items() if path.rpartition("/")[2] == HISTORY]
    if histories and len(probe.files) > 1:
        return any(_is_tagged(Probe({"": raw}).items) for raw in histories)
    return _is_tagged(probe.items)


def _is_tagged(items: Sequence[Any]) -> bool:
    return any(isinstance(item, dict) and "role" in item and _TAGS & item.keys() for item in items)


def read_roo(files: Files, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *files*: for each task what the model would be sent, then the full
    history, if it differs.

    Raises TranscriptError if there is no task, or if a history cannot be read. With *strict*, also
    for a message that cannot be read.
    """
    folders = find_folders(files, HISTORY, _LEGACY)
    if not folders:
        raise TranscriptError(f"not a Roo Code task: no {HISTORY} in it")
    return tuple(conversation for folder in folders for conversation in _read_task(folder, strict))


class _Tagged(msgspec.Struct):
    message: RecordedMessage
    record: Record


def _read_task(folder: Folder, strict: bool) -> tuple[Conversation, ...]:
    notes: list[Note] = []
    name = HISTORY if HISTORY in folder.files else _LEGACY
    document = read_document(folder.files[name], notes, strict=strict)
    if not document.startswith(b"["):
        raise TranscriptError(f"{name}: not a list of messages")
    item = Record.of(read_kept(folder.files.get(_ITEM), _ITEM, notes))
    id = folder.id or item.text("id") or FORMAT
    tagged = _read_messages(split_blocks(document), id, notes, strict)
    summaries = [entry.message for entry in tagged if entry.record.flag("isSummary")]
    visible = _with_mark(_effective(tagged, notes), summaries)
    extra: dict[str, Any] = {}
    if item.fields:
        extra["history_item"] = msgspec.Raw(encode_json(item.fields))
    for other in folder.files.keys() - {name, _ITEM}:
        notes.append(Note(1, "other_file", other))
    return two_views(
        visible,
        _with_mark([entry.message for entry in tagged], summaries),
        id,
        FORMAT,
        notes=notes,
        title=item.text("task") or "",
        extra=extra,
    )


def _read_messages(
    items: Sequence[msgspec.Raw], id: str, notes: list[Note], strict: bool
) -> list[_Tagged]:
    tagged: list[_Tagged] = []
    reasoning: list[msgspec.Raw] = []
    for number, raw in enumerate(items, 1):
        record = Record.of(raw, number)
        if record.text("type") == "reasoning":
            reasoning.append(msgspec.Raw(bytes(raw)))
            notes.append(Note(number, "reasoning", "kept in extra, never sent"))
        elif record.text("role") in ("user", "assistant"):
            message = task_message(record, f"{id}#{number - 1}", notes)
            if reasoning and message.role == "assistant":
                message.extra["reasoning_items"] = reasoning
                reasoning = []
            tagged.append(_Tagged(message, record))
        elif strict:
            raise TranscriptError(f"message {number}: it has no known role")
        else:
            notes.append(
                Note(number, "bad_message", "a message without a known role", visible=True)
            )
    return tagged


def _with_mark(
    messages: Sequence[RecordedMessage], summaries: Sequence[RecordedMessage]
) -> list[RecordedMessage]:
    """*messages*, with a summary mark behind the last of *summaries*, which are messages. The
    summary also replaces its own message.
    """
    marked: list[RecordedMessage] = []
    for message in messages:
        marked.append(message)
        if summaries and message is summaries[-1]:
            marked += summary_mark(_text(message))
    return marked


def _text(message: RecordedMessage) -> str:
    texts = (Record.of(raw).text("text") for raw in message.blocks if block_type(raw) == "text")
    return "\n\n".join(text for text in texts if text)


def _effective(tagged: Sequence[_Tagged], notes: list[Note]) -> list[RecordedMessage]:
    summaries = [index for index, entry in enumerate(tagged) if entry.record.flag("isSummary")]
    if not summaries:
        return [entry.message for entry in tagged if not _is_hidden(entry.record, tagged)]
    since = tagged[summaries[-1] :]
    notes.append(
        Note(since[0].record.number, "condensed", "what is before it is only in the full history")
    )
    calls = {
        Record.of(raw).text("id")
        for entry in since
        for raw in entry.message.blocks
        if block_type(raw) == "tool_use"
    }
    visible = []
    for entry in since:
        if _is_parted(entry.record, since):
            continue
        blocks = [
            raw
            for raw in entry.message.blocks
            if block_type(raw) != "tool_result" or Record.of(raw).text("tool_use_id") in calls
        ]
        if len(blocks) == len(entry.message.blocks):
            visible.append(entry.message)
            continue
        notes.append(
            Note(entry.record.number, "truncated_result", "its call is before the summary")
        )
        if blocks:
            visible.append(msgspec.structs.replace(entry.message, blocks=blocks))
    return visible


def _is_hidden(record: Record, tagged: Sequence[_Tagged]) -> bool:
    """Does anything in the list hide it? A parent that is gone hides nothing."""
    parent = record.text("condenseParent")
    condensed = parent and any(entry.record.text("condenseId") == parent for entry in tagged)
    return bool(condensed) or _is_parted(record, tagged)


def _is_parted(record: Record, tagged: Sequence[_Tagged]) -> bool:
    parent = record.text("truncationParent")
    return bool(parent) and any(entry.record.text("truncationId") == parent for entry in tagged)
