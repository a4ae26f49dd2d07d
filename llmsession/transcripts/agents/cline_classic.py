"""Cline's classic task folders: the full history, and files that say what is hidden from the model.

The range that was cut out is in the list of tasks, and replaced texts are in
``context_history.json``. A program that ignores them sends a prompt that is too long. Both are
applied here: the conversation is what the model would be sent, and the full history is a branch of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import block_type, encode_json, split_blocks, text_block

from ..common.conversation import Conversation, Note
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.record import Record
from ..common.recorded_message import RecordedMessage
from .vscode_task_folder import (
    HISTORY,
    Folder,
    find_folders,
    read_kept,
    task_messages,
    two_views,
)

__all__ = ["FORMAT", "looks_cline_classic", "read_cline_classic"]

FORMAT = "cline-classic"

_OVERRIDES = "context_history.json"
_TASKS = "state/taskHistory.json"
_TELLING = {"modelInfo", "metrics"}
_INTERRUPTED = ("\n\n[Response interrupted by user]", "\n\n[Response interrupted by API Error]")


def looks_cline_classic(probe: Probe) -> bool:
    """Are the files a task of Cline, or the history of one?"""
    if any(path.rpartition("/")[2] == HISTORY for path in probe.files):
        return True
    return any(
        isinstance(item, dict) and "role" in item and "ts" in item and _TELLING & item.keys()
        for item in probe.items
    )


def read_cline_classic(files: Files, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *files*: for each task what the model would be sent, then the full
    history, if it differs.

    Raises TranscriptError if there is no task, or if a history cannot be read. With *strict*, also
    for a message that cannot be read.
    """
    folders = find_folders(files, HISTORY)
    if not folders:
        raise TranscriptError(f"not a Cline task: no {HISTORY} in it")
    return tuple(conversation for folder in folders for conversation in _read_task(folder, strict))


def _read_task(folder: Folder, strict: bool) -> tuple[Conversation, ...]:
    notes: list[Note] = []
    document = read_document(folder.files[HISTORY], notes, strict=strict)
    if not document.startswith(b"["):
        raise TranscriptError(f"{HISTORY}: not a list of messages")
    item = _history_item(folder, notes)
    id = folder.id or item.text("id") or FORMAT
    records = [Record.of(raw, number) for number, raw in enumerate(split_blocks(document), 1)]
    messages = task_messages(records, id, notes, strict)
    full = [message for message in messages if message is not None]
    for message in full:
        message.interrupted = _is_cut(message)
    overrides = read_kept(folder.files.get(_OVERRIDES), _OVERRIDES, notes)
    cut = _deleted_range(item, len(messages))
    visible = _shown(messages, cut, _new_texts(overrides), notes)
    extra: dict[str, Any] = {"source_messages": len(messages)}
    if overrides is not None:
        extra["context_history"] = msgspec.Raw(overrides)
    if item.fields:
        extra["history_item"] = msgspec.Raw(encode_json(item.fields))
    for name in folder.files.keys() - {HISTORY, _OVERRIDES, "history_item.json"}:
        notes.append(Note(1, "other_file", name))
    return two_views(
        visible,
        full,
        id,
        FORMAT,
        notes=notes,
        title=item.text("task") or "",
        extra={name: msgspec.Raw(encode_json(value)) for name, value in extra.items()},
    )


def _is_cut(message: RecordedMessage) -> bool:
    last = Record.of(message.blocks[-1] if message.blocks else None).text("text") or ""
    return message.role == "assistant" and last.endswith(_INTERRUPTED)


def _history_item(folder: Folder, notes: list[Note]) -> Record:
    own = read_kept(folder.files.get("history_item.json"), "history_item.json", notes)
    if own is not None:
        return Record.of(own)
    for path, raw in folder.above.items():
        if path.rpartition("/")[2] == "taskHistory.json":
            document = read_kept(raw, path, notes) or b"[]"
            items = (
                [Record.of(item) for item in split_blocks(document)] if document[:1] == b"[" else []
            )
            named = [item for item in items if item.text("id") == folder.id]
            return next(iter(named or (items if len(items) == 1 else [])), Record(0, {}))
    return Record(0, {})


def _deleted_range(item: Record, messages: int) -> range:
    """The indexes of the messages that were cut out."""
    match item.value("conversationHistoryDeletedRange"):
        case [int(first), int(last)] if 0 <= first <= last:
            return range(first, min(last, messages - 1) + 1)
    return range(0)


def _new_texts(overrides: bytes | None) -> dict[int, dict[int, str]]:
    """The texts that replace blocks, by message and block. The latest text counts."""
    texts: dict[int, dict[int, str]] = {}
    for place, edits in _pairs(msgspec.json.decode(overrides) if overrides else []):
        match edits:
            case [_, list(blocks)]:
                for block, updates in _pairs(blocks):
                    match updates[-1] if isinstance(updates, list) and updates else None:
                        case [_, _, [str(text), *_], *_]:
                            texts.setdefault(place, {})[block] = text
    return texts


def _pairs(rows: Any) -> list[tuple[int, Any]]:
    items = rows if isinstance(rows, list) else []
    return [
        (row[0], row[1])
        for row in items
        if isinstance(row, list) and len(row) > 1 and isinstance(row[0], int)
    ]


def _shown(
    messages: Sequence[RecordedMessage | None],
    cut: range,
    texts: dict[int, dict[int, str]],
    notes: list[Note],
) -> list[RecordedMessage]:
    visible: list[RecordedMessage] = []
    for index, item in enumerate(messages):
        if item is None or index in cut:
            continue
        if cut and index == cut.stop:
            raws = [raw for raw in item.blocks if block_type(raw) != "tool_result"]
            if len(raws) < len(item.blocks):
                notes.append(Note(index + 1, "truncated_result", "its call is in the hidden part"))
                item = msgspec.structs.replace(item, blocks=raws)
            if not raws:
                continue
        if index in texts:
            blocks = [_with_text(raw, texts[index].get(n)) for n, raw in enumerate(item.blocks)]
            if blocks != item.blocks:
                notes.append(Note(index + 1, "replaced_text", "as the model would be sent it"))
                item = msgspec.structs.replace(item, blocks=blocks)
        visible.append(item)
    if cut:
        detail = f"messages {cut.start + 1} to {cut.stop} are only in the full history"
        notes.append(Note(cut.start + 1, "truncated", detail))
    return visible


def _with_text(raw: bytes, text: str | None) -> bytes:
    if text is None:
        return raw
    if block_type(raw) == "tool_result":
        return encode_json({**Record.of(raw).fields, "content": text})
    return text_block(text) if block_type(raw) == "text" else raw
