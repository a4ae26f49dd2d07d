"""pi's session files: a header line, then one entry on each line; in newer files the entries form a
tree.

- An aborted or failed reply ends its turn. Its thinking has no signature and cannot be sent.
- A shell command that the user ran was sent as user text, so it is a user message here, too.
- The summary of a compaction is the conversation's ``summary``; the messages that it summarises
  stay.
- In a tree the path to the last entry is the conversation, and each other leaf is a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import block_type, encode_json, split_blocks, text_block
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

from ..common.assembly import assemble
from ..common.conversation import Conversation, Note, branch_of
from ..common.format import Files
from ..common.jsonl import JsonLine, clip, read_lines
from ..common.record import Record
from ..common.recorded_message import (
    RecordedMessage,
    call_block,
    image_url,
    result_block,
    summary_mark,
    text_blocks,
    thinking_block,
)
from ..common.times import iso_time, milliseconds
from ..common.writing import BESIDE, json_lines, path_of

__all__ = ["FORMAT", "looks_pi", "read_pi", "write_pi"]

FORMAT = "pi"

_STOP_REASONS = {
    "stop": "end_turn",
    "toolUse": "tool_use",
    "length": "max_tokens",
    "aborted": "cancelled",
    "error": "error",
}
_WRITTEN_STOPS = {ours: theirs for theirs, ours in _STOP_REASONS.items()}
_KNOWN = {
    "user": {"role", "content", "timestamp"},
    "assistant": {
        "role", "content", "timestamp", "provider", "model", "usage", "stopReason", "errorMessage",
    },
    "toolResult": {"role", "content", "timestamp", "toolCallId", "isError"},
}  # fmt: skip
_BOOKKEEPING = {"model_change", "thinking_level_change", "label", "session_info", "custom"}
_OWN_THINKING = ("anthropic", "amazon-bedrock", "google-vertex")


def looks_pi(fields: dict[str, msgspec.Raw]) -> bool:
    """Do these fields of one line show that the file is pi's?"""
    record = Record(0, fields)
    if record.text("type") == "session":
        return "id" in fields and ("cwd" in fields or "version" in fields)
    return (
        record.text("type") == "message"
        and "uuid" not in fields
        and "timestamp" in fields
        and record.record("message").text("role") in _KNOWN
    )


def read_pi(raw: bytes, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: the active path, then the other branches.

    Raises TranscriptError if no line of the file is of this format. With *strict*, also for the
    first line that cannot be read, except a torn last one.
    """
    lines, notes = read_lines(raw, strict=strict)
    if not any(looks_pi(Record.of(line.raw).fields) for line in lines):
        what = "no line of it is one" if raw.strip() else "it is empty"
        raise TranscriptError(f"not a pi session file: {what}")
    session = _Session(notes, strict)
    for line in lines:
        session.take(line)
    return session.conversations()


class _Entry(msgspec.Struct):
    id: str
    parent: str
    message: RecordedMessage | None
    mark: list[RecordedMessage] = []
    """The entry's summary, if it is one, and the first entry that it does not replace."""
    first_kept: str = ""


class _Session:
    def __init__(self, notes: list[Note], strict: bool) -> None:
        self.notes = notes
        self.strict = strict
        self.header = Record(0, {})
        self.entries: list[_Entry] = []
        self.records: list[msgspec.Raw] = []
        self.summary = ""
        """A summary for which the file does not say which messages it replaces."""
        self.title = ""

    def note(self, number: int, what: str, detail: str = "", *, visible: bool = False) -> None:
        self.notes.append(Note(number, what, detail, visible))

    def take(self, line: JsonLine) -> None:
        record = Record.of(line.raw, line.line)
        kind = record.text("type") or ""
        message: RecordedMessage | None = None
        mark: list[RecordedMessage] = []
        first_kept: str | None = ""
        if kind == "session":
            if self.header.fields:
                self.note(line.line, "session", "the session was resumed")
            self.header = self.header if self.header.fields else record
            return
        if kind == "message":
            message = self._message(record)
        elif kind == "custom_message":
            message = self._custom(record)
        elif kind == "compaction":
            summary, first_kept = record.text("summary") or "", record.text("firstKeptEntryId")
            if first_kept:
                mark = summary_mark(summary)
            self.summary = summary if summary and not first_kept else self.summary
            self.note(line.line, "compaction", clip(summary), visible=True)
        elif kind == "branch_summary":
            self.records.append(msgspec.Raw(line.raw))
            self.note(line.line, kind, clip(record.text("summary") or ""), visible=True)
        elif kind in _BOOKKEEPING:
            self.title = record.text("name") or self.title if kind == "session_info" else self.title
            self.note(line.line, kind, record.text("modelId") or "")
        elif "role" in record.fields or "llmsession" in record.fields:
            self._refuse(line.line, "not a line of this format")
        else:
            self.records.append(msgspec.Raw(line.raw))
            self.note(line.line, "unknown_type", kind)
        id = record.text("id") or ""
        parent = record.text("parentId") or ""
        self.entries.append(_Entry(id, parent, message, mark, first_kept or ""))

    def _refuse(self, number: int, why: str) -> None:
        if self.strict:
            raise TranscriptError(why, number)
        self.note(number, "bad_line", why, visible=True)

    def _message(self, record: Record) -> RecordedMessage | None:
        message = record.record("message")
        role = message.text("role")
        time = message.at("timestamp") or record.at("timestamp")
        recorded: RecordedMessage
        if role == "assistant":
            recorded = self._reply(message)
        elif role == "toolResult":
            recorded = _result(message)
        elif role == "user":
            recorded = RecordedMessage(
                number=record.number,
                role="user",
                blocks=_blocks(message),
                extra=message.rest(_KNOWN["user"]),
            )
        elif role == "bashExecution":
            recorded = _bash(message)
            self.note(record.number, "bash_execution", "written out as the user's text")
        else:
            self._refuse(record.number, f"a message of an unknown role {clip(str(role))!r}")
            return None
        recorded.id = record.text("messageId") or record.text("id") or ""
        recorded.created_at = time
        recorded.completed_at = max(time, record.at("timestamp"))
        return recorded

    def _custom(self, record: Record) -> RecordedMessage:
        self.note(record.number, "custom_message", record.text("customType") or "")
        return RecordedMessage(
            number=record.number,
            role="user",
            blocks=_blocks(record),
            id=record.text("id") or "",
            created_at=record.at("timestamp"),
            extra={"entry": record.rest({"id", "parentId", "timestamp", "content"})},
        )

    def _reply(self, message: Record) -> RecordedMessage:
        number = message.number
        provider = message.text("provider")
        blocks: list[bytes] = []
        extra = message.rest(_KNOWN["assistant"])
        unsent: list[msgspec.Raw] = []
        calls: dict[str, Any] = {}
        for part, raw in zip(message.records("content"), message.items("content"), strict=True):
            kind = part.text("type")
            if kind == "text":
                blocks += text_blocks(part.text("text"))
            elif kind == "toolCall":
                call = part.text("id") or ""
                blocks.append(call_block(call, part.text("name") or "", part.raw("arguments")))
                rest = part.rest({"type", "id", "name", "arguments"})
                calls |= {call: rest} if rest else {}
            elif kind == "thinking":
                signed = part.text("thinkingSignature") if provider in _OWN_THINKING else None
                if signed:
                    blocks.append(thinking_block(part.text("thinking") or "", signed))
                else:
                    unsent.append(msgspec.Raw(bytes(raw)))
            elif kind:
                blocks.append(bytes(raw))
            else:
                self.note(number, "bad_block", "a part without a type", visible=True)
        if unsent:
            extra["unsigned_thinking"] = unsent
            self.note(number, "unsigned_thinking", "kept in extra, never sent")
        if calls:
            extra["calls"] = calls
        stop = message.text("stopReason")
        return RecordedMessage(
            number=number,
            role="assistant",
            blocks=blocks,
            model=message.text("model"),
            provider=provider,
            usage=_usage(message.record("usage")),
            stop_reason=_STOP_REASONS.get(stop or "", stop),
            error=message.text("errorMessage"),
            extra=extra,
            interrupted=stop in ("aborted", "error"),
        )

    def conversations(self) -> tuple[Conversation, ...]:
        paths = self._paths()
        session = self.header.text("id") or FORMAT
        main = assemble(
            paths[0],
            session=session,
            format=FORMAT,
            notes=self.notes,
            title=self.title,
            summary=self.summary,
            extra=self.header.rest({"type", "id"}),
            records=tuple(self.records),
        )
        branches = [
            branch_of(main, assemble(path, session=f"{session}/{path[-1].id}", format=FORMAT))
            for path in paths[1:]
        ]
        return (main, *branches)

    def _paths(self) -> list[list[RecordedMessage]]:
        """The messages of the active path, then those of each other branch."""
        if not any(entry.id for entry in self.entries):
            return [_with_marks(self.entries)]
        place = {entry.id: index for index, entry in enumerate(self.entries) if entry.id}
        parents = {entry.parent for entry in self.entries}
        last = len(self.entries) - 1
        leaves = [index for index, entry in enumerate(self.entries) if entry.id not in parents]
        paths: list[list[RecordedMessage]] = []
        for leaf in [last, *(index for index in reversed(leaves) if index != last)]:
            path = self._path(leaf, place)
            # A leaf that is not a message, for example a label, makes no branch.
            if not paths or not any(_begins(path, other) for other in paths):
                paths.append(path)
        return paths

    def _path(self, leaf: int, place: dict[str, int]) -> list[RecordedMessage]:
        path: list[_Entry] = []
        seen: set[int] = set()
        index: int | None = leaf
        while index is not None and index not in seen:
            seen.add(index)
            entry = self.entries[index]
            path.append(entry)
            if entry.parent and entry.parent not in place:
                self.note(index + 1, "missing_parent", entry.parent, visible=True)
            above = (
                index - 1
                if index and (entry.parent not in place and not self._is_root(entry))
                else None
            )
            index = place.get(entry.parent, above)
        return _with_marks(path[::-1])

    def _is_root(self, entry: _Entry) -> bool:
        return bool(entry.id) and not entry.parent


def _with_marks(entries: Sequence[_Entry]) -> list[RecordedMessage]:
    """The messages of *entries*, with each summary marked before the first entry that it does not
    replace. If that entry is not among them, the mark stands at the summary's own place.
    """
    ids = {entry.id for entry in entries}
    marks: dict[str, list[RecordedMessage]] = {}
    for entry in entries:
        at = entry.first_kept if entry.first_kept in ids else entry.id
        marks.setdefault(at, []).extend(entry.mark)
    path: list[RecordedMessage] = []
    for entry in entries:
        path += marks.pop(entry.id, [])
        path += [entry.message] if entry.message is not None else []
    return path


def _begins(path: list[RecordedMessage], other: list[RecordedMessage]) -> bool:
    path, other = (
        [message for message in messages if not message.summary] for messages in (path, other)
    )
    return len(path) <= len(other) and all(a is b for a, b in zip(path, other, strict=False))


def _blocks(holder: Record) -> list[bytes]:
    text = holder.text("content")
    if text is not None:
        return text_blocks(text)
    blocks = []
    for part, raw in zip(holder.records("content"), holder.items("content"), strict=True):
        if part.text("type") == "text":
            blocks.append(text_block(part.text("text") or ""))
        elif part.text("type") == "image" and part.text("data") is not None:
            source = {"type": "base64", "media_type": part.text("mimeType") or "image/png"}
            source["data"] = part.text("data") or ""
            blocks.append(encode_json({"type": "image", "source": source}))
        elif part.text("type"):
            blocks.append(bytes(raw))
    return blocks


def _result(message: Record) -> RecordedMessage:
    blocks = _blocks(message)
    error = True if message.flag("isError") else None
    block = result_block(message.text("toolCallId") or "", blocks, is_error=error)
    extra = message.rest(_KNOWN["toolResult"])
    return RecordedMessage(number=message.number, role="user", blocks=[block], extra=extra)


def _bash(message: Record) -> RecordedMessage:
    text = f"Ran `{message.text('command') or ''}`\n```\n{message.text('output') or ''}\n```"
    extra = {"bashExecution": message.rest({"timestamp"})}
    return RecordedMessage(
        number=message.number, role="user", blocks=[text_block(text)], extra=extra
    )


def _usage(usage: Record) -> Usage | None:
    counts = Usage(
        input_tokens=usage.count("input"),
        output_tokens=usage.count("output"),
        cache_read_tokens=usage.count("cacheRead"),
        cache_write_tokens=usage.count("cacheWrite"),
    )
    return None if counts == Usage() else counts


# Writing.


def write_pi(conversations: Sequence[Conversation]) -> Files:
    """A file for each conversation that is not a branch of another one in *conversations*. A branch
    is written into the file of its parent.
    """
    ids = {conversation.id for conversation in conversations}
    trees = [item for item in conversations if item.parent not in ids or item.parent == item.id]
    return {
        path_of(index, main, ".jsonl"): json_lines(
            _Written(main, [b for b in conversations if b.parent == main.id]).rows()
        )
        for index, main in enumerate(trees)
    }


class _Written:
    """One tree to be written: the trunk, the branches, and the rest of the active path."""

    def __init__(self, main: Conversation, branches: Sequence[Conversation]) -> None:
        self.main = main
        self.branches = branches
        self.own = main.format in (FORMAT, "own")
        self.taken: set[str] = set()

    def rows(self) -> Iterator[Any]:
        main = self.main
        fields = {k: raw for k, raw in main.extra.items() if k not in BESIDE} if self.own else {}
        first = main.messages[0].created_at if main.messages else 0.0
        yield {"cwd": "", "timestamp": iso_time(first), **fields, "type": "session", "version": 3,
               "id": main.id}  # fmt: skip
        shared = max((branch.shared_turns for branch in self.branches), default=0)
        trunk = [message for message in main.messages if message.turn <= shared]
        ends: dict[int, str] = {}
        last = ""
        for row in self._chain(main, trunk, last, ends):
            last = row["id"]
            yield row
        for branch in self.branches:
            own = [message for message in branch.messages if message.turn > branch.shared_turns]
            yield from self._chain(branch, own, ends.get(branch.shared_turns, ""), {})
        rest = [message for message in main.messages if message.turn > shared]
        for row in self._chain(main, rest, last, ends):
            last = row["id"]
            yield row
        if main.title:
            yield self._entry("session_info", last, first, name=main.title)
            last = "session_info"
        if main.summary:
            place = main.summary_upto
            kept: dict[str, str] = {}
            if place:  # the summary ends at an entry that is not written: use all before this one
                is_all = place >= len(main.messages)
                kept = {"firstKeptEntryId": "compaction" if is_all else main.messages[place].id}
            yield self._entry("compaction", last, first, summary=main.summary, **kept)
        elif self.branches and not rest and not main.title:
            yield self._entry("custom", last, first, customType="active-path")
        yield from main.records if main.format == FORMAT else ()

    def _entry(self, kind: str, parent: str, time: float, **fields: Any) -> dict[str, Any]:
        place = {"id": kind, "parentId": parent or None, "timestamp": iso_time(time)}
        return {"type": kind, **place, **fields}

    def _chain(
        self, conversation: Conversation, messages: Sequence[Message], last: str,
        ends: dict[int, str],
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """The entries of *messages*, behind the entry *last*. The last entry of each turn is stored
        in *ends*.
        """
        calls = {call.id: call.name for item in conversation.messages for call in item.tool_calls}
        for index, message in enumerate(messages):
            is_end = index + 1 == len(messages) or messages[index + 1].turn != message.turn
            for part, body in enumerate(_bodies(message, calls, self.own)):
                id = message.id if not part else f"{message.id}#{part}"
                extra = {"messageId": message.id} if part else {}
                yield self._row(id, last, message, body, extra)
                last = id
            cut = is_end and message.turn in conversation.interrupted
            if cut and message.stop_reason not in ("cancelled", "error"):
                body = {"role": "assistant", "content": [], "stopReason": "aborted"}
                id = f"{message.id}#aborted"
                yield self._row(id, last, message, body, {"messageId": id})
                last = id
            ends[message.turn] = last

    def _row(
        self, id: str, parent: str, message: Message, body: dict[str, Any], held: dict[str, Any]
    ) -> dict[str, Any]:
        entry = body.pop("entry", None)
        place = {"id": id, "parentId": parent or None, **held}
        place["timestamp"] = iso_time(message.completed_at)
        if entry is not None:
            return {**entry, **place, "content": body["content"]}
        body["timestamp"] = milliseconds(message.created_at)
        return {"type": "message", **place, "message": body}


def _bodies(message: Message, calls: dict[str, str], own: bool) -> Iterator[dict[str, Any]]:
    raws = [bytes(raw) for raw in split_blocks(message.body)]
    extra: dict[str, Any] = dict(Record.of(message.extra).fields) if own else {}
    if message.is_assistant:
        yield _written_reply(message, raws, extra)
        return
    others = [raw for raw in raws if block_type(raw) != "tool_result"]
    for raw in raws:
        if block_type(raw) != "tool_result":
            continue
        result = Record.of(raw)
        call = result.text("tool_use_id") or ""
        fields = {"toolName": calls.get(call, ""), **extra}
        content = result.raw("content") or b"[]"
        inner = [bytes(part) for part in split_blocks(content)] if content[:1] == b"[" else None
        parts = [{"type": "text", "text": result.text("content") or ""}]
        yield {
            **fields,
            "role": "toolResult",
            "toolCallId": call,
            "content": parts if inner is None else [_part(item) for item in inner],
            "isError": result.flag("is_error"),
        }
        extra = {}
    if others and "bashExecution" in extra:
        yield {**Record.of(extra["bashExecution"]).fields, "role": "bashExecution"}
    elif others and "entry" in extra:
        entry = dict(Record.of(extra["entry"]).fields)
        yield {"entry": entry, "content": [_part(raw) for raw in others]}
    elif others:
        yield {**extra, "role": "user", "content": [_part(raw) for raw in others]}


def _part(raw: bytes) -> Any:
    block = Record.of(raw)
    source = block.record("source")
    if block_type(raw) == "image" and image_url(block.value("source")) and source.text("data"):
        return {"type": "image", "data": source.text("data"), "mimeType": source.text("media_type")}
    return msgspec.Raw(raw)


def _written_reply(
    message: Message, raws: Sequence[bytes], extra: dict[str, Any]
) -> dict[str, Any]:
    rests = Record.of(extra.pop("calls", None))
    unsent = Record.of(encode_json({"held": extra.pop("unsigned_thinking", [])})).items("held")
    content: list[Any] = [msgspec.Raw(bytes(raw)) for raw in unsent]
    for raw in raws:
        block = Record.of(raw)
        match block_type(raw):
            case "tool_use":
                call = block.text("id") or ""
                named = {"id": call, "name": block.text("name") or ""}
                arguments = msgspec.Raw(block.raw("input") or b"{}")
                rest = rests.record(call).fields
                content.append({"type": "toolCall", **rest, **named, "arguments": arguments})
            case "thinking":
                signed = {"thinkingSignature": block.text("signature") or ""}
                content.append({"type": "thinking", "thinking": block.text("thinking"), **signed})
            case _:
                content.append(msgspec.Raw(raw))
    usage = message.usage or Usage()
    stop = message.stop_reason or ("tool_use" if message.tool_calls else "end_turn")
    fields: dict[str, Any] = {
        "role": "assistant",
        "content": content,
        "provider": message.provider or "",
        "model": message.model or "",
        "usage": {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cacheRead": usage.cache_read_tokens,
            "cacheWrite": usage.cache_write_tokens,
        },
        "stopReason": _WRITTEN_STOPS.get(stop, stop),
    }
    return {**extra, **fields} | ({"errorMessage": message.error} if message.error else {})
