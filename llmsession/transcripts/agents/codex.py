"""Codex's rollout files: one JSON line for each event; some events are items of the Responses
interface.

The recordings that this reader was written against show these properties, which it handles as
follows:

- A request's usage stands behind the last item of its reply, before or behind the outputs of its
  calls, depending on the version. It is repeated several times. It counts only if the session's
  token total has changed, and then for the newest reply without usage.
- Input tokens include the cached ones, and output tokens the reasoning.
- Reasoning is encrypted or empty. It is kept in ``extra`` and cannot be sent to any other provider.
- Parallel work (a sub-agent's notice) becomes user text in the middle of a tool loop. The next
  reply answers it.
- ``compacted`` replaced the context. The history continues across it, and the replacement is kept
  among the records, with a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json
from llmsession.turns.usage import Usage

from ..common.assembly import assemble
from ..common.conversation import Conversation, Note
from ..common.format import Files
from ..common.jsonl import JsonLine, read_lines
from ..common.message_list import with_system
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, summary_mark
from ..common.times import iso_time, seconds_of
from ..common.writing import BESIDE, json_lines, path_of
from ..message_lists.openai_chat import chat_usage
from ..message_lists.openai_items import ItemReader, write_items

__all__ = ["FORMAT", "looks_codex", "read_codex", "write_codex"]

FORMAT = "codex"

_LINES = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}


def looks_codex(fields: dict[str, msgspec.Raw]) -> bool:
    """Do these fields of one line show that the file is a rollout?"""
    return Record(0, fields).text("type") in _LINES and "payload" in fields


def read_codex(raw: bytes, strict: bool = False) -> tuple[Conversation, ...]:
    """The one conversation in *raw*, a file's bytes.

    Raises TranscriptError if no line of the file is of this format. With *strict*, also for the
    first line that cannot be read, except a torn last one.
    """
    lines, notes = read_lines(raw, strict=strict)
    if not any(looks_codex(Record.of(line.raw).fields) for line in lines):
        what = "no line of it is one" if raw.strip() else "it is empty"
        raise TranscriptError(f"not a Codex rollout: {what}")
    rollout = _Rollout(notes, strict)
    for line in lines:
        rollout.take(line)
    return (rollout.conversation(),)


class _Rollout:
    def __init__(self, notes: list[Note], strict: bool) -> None:
        self.notes = notes
        self.strict = strict
        self.items = ItemReader(notes)
        self.session = ""
        self.title = ""
        self.meta: bytes | None = None
        self.records: list[msgspec.Raw] = []
        self.total: bytes | None = None
        self.answered: RecordedMessage | None = None

    def note(self, number: int, what: str, detail: str = "", *, visible: bool = False) -> None:
        self.notes.append(Note(number, what, detail, visible))

    def take(self, line: JsonLine) -> None:
        record = Record.of(line.raw, line.line)
        payload, kind = record.record("payload"), record.text("type")
        time = seconds_of(record.value("timestamp"))
        match kind:
            case "response_item":
                if not self.items.add(record.raw("payload") or b"{}", line.line, time):
                    self._refuse(line.line, "an item without a type")
            case "event_msg":
                self._event(payload)
            case "session_meta":
                self._begin(payload, record.raw("payload"))
            case "turn_context":
                self.items.model = payload.text("model") or self.items.model
                self.note(line.line, "turn_context", payload.text("model") or "")
            case "compacted":
                self.items.end_reply()
                self.items.messages += summary_mark(payload.text("message") or "")
                self.records.append(msgspec.Raw(line.raw))
                detail = f"{len(payload.items('replacement_history'))} items took its place"
                self.note(line.line, "compacted", detail, visible=True)
            case _:
                self._keep_unknown(record, line)

    def _refuse(self, number: int, why: str) -> None:
        if self.strict:
            raise TranscriptError(why, number)
        self.note(number, "bad_line", why, visible=True)

    def _keep_unknown(self, record: Record, line: JsonLine) -> None:
        if "role" in record.fields or "llmsession" in record.fields:
            self._refuse(line.line, "not a line of this format")
            return
        self.records.append(msgspec.Raw(line.raw))
        self.note(line.line, "unknown_type", record.text("type") or "")

    def _begin(self, payload: Record, raw: bytes | None) -> None:
        if self.meta is not None:
            self.note(payload.number, "session_meta", "the session was resumed")
            return
        self.meta = raw
        self.session = payload.text("id") or self.session

    def _event(self, payload: Record) -> None:
        kind = payload.text("type") or ""
        match kind:
            case "token_count":
                self._count(payload)
            case "turn_aborted":
                self.items.end_reply()
                if self.items.messages:
                    self.items.messages[-1].interrupted = True
            case "task_started":
                self.items.end_reply()
                self.items.starts = True
            case "thread_name_updated":
                self.title = payload.text("thread_name") or self.title
        self.note(payload.number, "event", kind)

    def _count(self, payload: Record) -> None:
        reply = self.items.end_reply()
        info = payload.record("info")
        total = info.raw("total_token_usage")
        if total is None or total == self.total:
            return
        self.total = total
        if reply is None:
            reply = next((s for s in reversed(self.items.messages) if s.role == "assistant"), None)
        if reply is None or reply.usage is not None:
            self.note(payload.number, "usage", "of no reply in the recording")
            return
        reply.usage = chat_usage(_as_chat(info.record("last_token_usage")))

    def conversation(self) -> Conversation:
        self.items.end_reply()
        extra: dict[str, Any] = dict(self.items.system.extra())
        system = self.items.system.text
        if self.meta is not None:
            extra["session_meta"] = msgspec.Raw(self.meta)
            instructions = Record.of(self.meta).record("base_instructions").text("text")
            system = "\n\n".join(filter(None, (instructions, system)))
        return assemble(
            self.items.messages,
            session=self.session or FORMAT,
            format=FORMAT,
            notes=self.notes,
            title=self.title,
            system=system,
            extra=extra,
            records=tuple(self.records),
        )


def _as_chat(usage: Record) -> Record:
    cached = {"cached_tokens": msgspec.Raw(b"%d" % usage.count("cached_input_tokens"))}
    return Record(0, {**usage.fields, "input_tokens_details": msgspec.Raw(encode_json(cached))})


# Writing.


def write_codex(conversations: Sequence[Conversation]) -> Files:
    """A rollout for each conversation."""
    return {
        path_of(index, conversation, ".jsonl"): json_lines(_lines(conversation))
        for index, conversation in enumerate(conversations)
    }


def _line(time: float, kind: str, payload: Any) -> dict[str, Any]:
    return {"timestamp": iso_time(time), "type": kind, "payload": payload}


def _event(time: float, kind: str, **fields: Any) -> dict[str, Any]:
    return _line(time, "event_msg", {"type": kind, **fields})


def _lines(conversation: Conversation) -> Iterator[Any]:
    own = conversation.format in (FORMAT, "own")
    first = conversation.messages[0].created_at if conversation.messages else 0.0
    yield _line(first, "session_meta", _meta(conversation, own))
    if conversation.title:
        yield _event(first, "thread_name_updated", thread_name=conversation.title)
    groups = list(_groups(conversation, own))
    system = {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": conversation.system}],
    }
    has_system = own and "session_meta" in conversation.extra
    rows = with_system(conversation, groups, None if has_system else system, own=own)
    for row in rows:
        # System messages are items; everything else is a whole line.
        yield (
            row
            if isinstance(row, dict) and "payload" in row
            else _line(first, "response_item", row)
        )
    if conversation.format == FORMAT:
        yield from (raw for raw in conversation.records if not _summary_in(raw))


def _meta(conversation: Conversation, own: bool) -> dict[str, Any]:
    recorded = Record.of(conversation.extra.get("session_meta") if own else None).fields
    fields = {name: raw for name, raw in conversation.extra.items() if name not in BESIDE}
    beside = {} if recorded or not own else fields
    return {**beside, **recorded, "id": conversation.id}


def _groups(conversation: Conversation, own: bool) -> Iterator[list[dict[str, Any]]]:
    """What each message is written as: its items, and the events around them."""
    custom: set[str] = set()
    model: str | None = None
    total = Usage()
    turns = [message.turn for message in conversation.messages]
    for index, message in enumerate(conversation.messages):
        began, ended = message.created_at, message.completed_at
        lines: list[dict[str, Any]] = []
        if conversation.summary and index == conversation.summary_upto:
            lines.append(_compacted(conversation, began))
        if not index or turns[index - 1] != message.turn:
            lines.append(_event(began, "task_started", turn_id=str(message.turn)))
        if message.model and message.model != model:
            model = message.model
            lines.append(_line(began, "turn_context", {"model": model}))
        items = list(write_items(message, custom, own=own))
        lines += [
            _line(ended if place else began, "response_item", item)
            for place, item in enumerate(items)
        ]
        if message.is_assistant:
            usage = message.usage
            total = total + (usage or Usage())
            counts = usage and {
                "total_token_usage": _token_counts(total),
                "last_token_usage": _token_counts(usage),
            }
            lines.append(_event(ended, "token_count", info=counts))
        is_last = index + 1 == len(turns) or turns[index + 1] != message.turn
        if is_last and message.turn in conversation.interrupted:
            lines.append(_event(ended, "turn_aborted", reason="interrupted"))
        if conversation.summary and index + 1 == len(turns) == conversation.summary_upto:
            lines.append(_compacted(conversation, ended))
        yield lines


def _compacted(conversation: Conversation, time: float) -> dict[str, Any]:
    """The line for the conversation's summary.

    If the summary was read from the file, the line includes what Codex put in place of the history.
    The line stands behind the messages that it summarises: at the end of the file it would hide
    everything after them.
    """
    kept = conversation.records if conversation.format == FORMAT else ()
    same = (Record.of(raw) for raw in reversed(kept) if _summary_in(raw) == conversation.summary)
    payload = next(same, Record.of(None)).fields.get("payload", {"message": conversation.summary})
    return _line(time, "compacted", payload)


def _summary_in(raw: msgspec.Raw) -> str | None:
    """The summary in the line *raw*; None if the line does not report a compaction."""
    record = Record.of(raw)
    if record.text("type") != "compacted":
        return None
    return record.record("payload").text("message") or " "


def _token_counts(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens,
        "cached_input_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
