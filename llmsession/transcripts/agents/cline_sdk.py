"""Cline's current sessions: a transcript that is never compacted, and a sidecar file with what the
model is sent instead.

The sidecar replaces the first messages of the transcript. It counts only if a hash shows that these
messages are still the same. Ids and times are not part of the hash. The conversation is what the
model would be sent, and the full transcript is a branch of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json

from ..common.conversation import Conversation, Note
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, summary_mark
from .vscode_task_folder import read_kept, task_messages, two_views

__all__ = ["FORMAT", "looks_cline_sdk", "prefix_hash", "read_cline_sdk"]

FORMAT = "cline-sdk"

_ENDING = ".messages.json"
_KNOWN = {"messages", "sessionId", "system_prompt"}


def looks_cline_sdk(probe: Probe) -> bool:
    """Are the files a session of Cline, or the transcript of one?"""
    if any(path.endswith(_ENDING) for path in probe.files):
        return True
    fields = probe.fields
    telling = {"agent", "updated_at", "origin", "system_prompt"} & fields.keys()
    messages = fields.get("messages")
    return (
        bool(telling)
        and "version" in fields
        and "sessionId" in fields
        and (
            isinstance(messages, list)
            and all(isinstance(message, dict) and "role" in message for message in messages)
        )
    )


def read_cline_sdk(files: Files, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *files*: for each session what the model would be sent, then the full
    transcript, if it differs.

    Raises TranscriptError if there is no transcript, or if one cannot be read. With *strict*, also
    for a message that cannot be read.
    """
    paths = [path for path in sorted(files) if path.endswith(_ENDING)]
    if not paths and len(files) == 1:
        paths = list(files)
    if not paths:
        raise TranscriptError(f"not a Cline session: no *{_ENDING} in it")
    return tuple(
        conversation for path in paths for conversation in _read_session(files, path, strict)
    )


def _read_session(files: Files, path: str, strict: bool) -> tuple[Conversation, ...]:
    notes: list[Note] = []
    whole = Record.of(read_document(files[path], notes, strict=strict), 1)
    if "messages" not in whole.fields:
        raise TranscriptError("not a Cline session: no messages in it")
    base = path.removesuffix(_ENDING)
    id = whole.text("sessionId") or base.rpartition("/")[2] or FORMAT
    records = whole.records("messages")
    full = task_messages(records, id, notes, strict)
    sidecar = Record.of(read_kept(files.get(f"{base}.compaction.json"), "compaction.json", notes))
    manifest = read_kept(files.get(f"{base}.json"), "manifest", notes)
    extra = whole.rest(_KNOWN)
    if manifest is not None:
        extra["manifest"] = msgspec.Raw(manifest)
    visible: list[RecordedMessage | None] = list(full)
    unhidden: list[RecordedMessage | None] = list(full)
    if sidecar.fields:
        extra["compaction"] = msgspec.Raw(encode_json(sidecar.fields))
        if _fits(sidecar, records):
            compacted = sidecar.records("messages")
            count = sidecar.count("source_message_count")
            place, summary = _summary(compacted)
            kept = [*task_messages(compacted, f"{id}/compaction", notes, strict)]
            # The summary is a message, too. If it stands behind other messages, it replaces none of
            # them.
            kept[place:place] = summary_mark(summary)
            visible = [*kept, *full[count:]]
            unhidden = [*full[:count], *summary_mark(summary), *full[count:]]
            detail = f"stands for the first {count} messages"
            notes.append(Note(1, "compaction", detail))
        else:
            detail = "the sidecar is of other messages and does not count"
            notes.append(Note(1, "stale_sidecar", detail))
    return two_views(
        [message for message in visible if message is not None],
        [message for message in unhidden if message is not None],
        id,
        FORMAT,
        notes=notes,
        system=whole.text("system_prompt") or "",
        title=Record.of(manifest).record("metadata").text("title") or "",
        extra=extra,
    )


def _summary(messages: Sequence[Record]) -> tuple[int, str]:
    """The summary that one of *messages* is, and where it is marked among them."""
    for index, message in enumerate(messages):
        text = message.record("metadata").text("summary")
        if text:
            return (0 if index else 1), text
    return 0, ""


# The sidecar.


def _fits(sidecar: Record, records: Sequence[Record]) -> bool:
    count, prefix = sidecar.count("source_message_count"), sidecar.text("source_prefix_hash")
    if count > len(records) or sidecar.number_of("version") != 1:
        return False
    if prefix:
        return prefix == prefix_hash(records[:count])
    key = sidecar.text("source_last_message_key")
    return bool(key) and count > 0 and key == _last_key(records[count - 1])


def prefix_hash(records: Sequence[Record]) -> str:
    """The hash that Cline stores of the messages that a sidecar replaces, to recognise them."""
    digest = hashlib.sha256(f"cline-session-compaction-source-v2\n{len(records)}\n".encode())
    for record in records:
        role = record.text("role")
        rows = [["role", role], ["content", _hashed_content(record)]]
        rows += [
            [name, record.value(name)]
            for name in ("agent", "sessionId", "metadata", "modelInfo", "metrics")
        ]
        digest.update(_js_json(rows).encode("utf-8", "replace") + b"\n")
    return f"sha256:{digest.hexdigest()}"


def _last_key(record: Record) -> str:
    id, time, role = (record.text("id") or "").strip(), record.number_of("ts"), record.text("role")
    if id:
        return f"id:{id}"
    if time is not None:
        return f"ts:{role}:{_js_json(time)}"
    return f"content:{role}:{_js_json(_hashed_content(record))}"


def _hashed_content(record: Record) -> Any:
    content = record.value("content")
    if record.text("role") != "user":
        return content
    if isinstance(content, str):
        return _typed(content)
    return [
        {**part, "text": _typed(str(part.get("text") or ""))}
        if isinstance(part, dict) and part.get("type") == "text"
        else part
        for part in content or []
    ]


_NOTICE = re.compile(r"<mode_notice>.*?</mode_notice>", re.DOTALL)
_SLASH = re.compile(r"<user_command\b([^>]*)>.*</user_command>", re.DOTALL | re.IGNORECASE)
_SLASH_NAME = re.compile(r'slash="([^"]+)"', re.IGNORECASE)
_TEAM = "spawn a team of agents for the following task:"


def _typed(text: str) -> str:
    """What the user typed, without the text that Cline wraps around it."""
    typed = text.strip()
    for tag in ("user_input", "user_command"):
        inner = re.sub(rf"<{tag}\b[^>]*>(.*?)</{tag}>", r"\1", typed, flags=re.DOTALL)
        typed = (inner if inner != typed else re.sub(rf"<{tag}[^>]*>", "", typed)).strip()
    typed = _NOTICE.sub("", typed).strip()
    envelope = _SLASH.fullmatch(text.strip())
    name = _SLASH_NAME.search(envelope[1]) if envelope else None
    if name is None or not name[1].strip():
        return typed
    slash = name[1].strip()
    if slash.lower() == "team":
        slash = "team"
        if typed.lower().startswith(_TEAM):
            typed = typed[len(_TEAM) :].strip()
    return f"/{slash} {typed}" if typed else f"/{slash}"


def _js_json(value: Any) -> str:
    """*value* as JavaScript writes it, so that the hash is the same."""
    return json.dumps(_js_numbers(value), ensure_ascii=False, separators=(",", ":"))


def _js_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _js_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_js_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value
