"""Jan's threads: a folder with ``thread.json`` and ``messages.jsonl``, or several such folders.

Messages of all versions are read: content as parts, or as text with ``<think>`` in it; calls as
parts or in ``metadata.tool_calls``; times in seconds or milliseconds. A torn, glued or broken line
affects only itself. Of two lines with the same id the later one counts. Branches are in the
messages' metadata. Replies that lost their parent when a branch was switched are put back behind
the question before them. A message with ``metadata.error`` is left out. The first assistant's
instructions are the system prompt. The format cannot store a summary and signatures of thinking. A
result of several blocks becomes one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import ImageBlock, TextBlock, ThinkingBlock, ToolUseBlock, encode_json

from ..common.chat_records import Reading, beside, expand, id_of, kept_fields, without_metadata
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.jsonl import read_lines
from ..common.record import Record
from ..common.recorded_message import (
    RecordedMessage,
    call_block_of_value,
    image_block,
    image_url,
    output_text,
    result_block,
    result_text,
    text_blocks,
    thinking_block,
)
from ..common.times import milliseconds
from ..common.trees import Branching, families, paths, read_paths, without_unplaced, written_path
from ..common.writing import json_lines, safe_name

__all__ = ["FORMAT", "looks_jan", "read_jan", "write_jan"]

FORMAT = "jan"

_THREAD = "thread.json"
_MESSAGES = "messages.jsonl"
_THINK = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
_TREE = {"parentId", "activeChildId"}
"""Fields of a message's metadata that give its place in the tree."""
_OPEN_STATES = ("pending", "stopped")


def looks_jan(probe: Probe) -> bool:
    """Are they a thread's files, by name, or one of them, by its fields?"""
    names = {path.rpartition("/")[2] for path in probe.files}
    if len(probe.files) > 1:
        return _MESSAGES in names and names <= {_THREAD, _MESSAGES}
    objects = [_text(line.get("object")) for line in probe.lines] or [probe.fields.get("object")]
    known = objects[0] == "thread.message" if objects else False
    return known or (probe.fields.get("object") == "thread" and "assistants" in probe.fields)


def _text(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def read_jan(files: Files, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *files*: for each thread's folder the active path, then its other
    branches. If ``thread.json`` cannot be read, the messages of its folder are still read.

    Raises TranscriptError if there is no thread. With *strict*, also for the first file or line
    that cannot be read, except a torn last line.
    """
    folders: dict[str, dict[str, bytes]] = {}
    for path, raw in sorted(files.items()):
        folder, _, name = path.rpartition("/")
        if name not in (_THREAD, _MESSAGES):
            name = _guessed_name(raw) if len(files) == 1 else ""
        if name:
            folders.setdefault(folder, {})[name] = raw
    conversations: list[Conversation] = []
    for folder, both in folders.items():
        conversations += _Thread(folder, both, strict=strict).read()
    if not conversations:
        raise TranscriptError(f"no thread of Jan: neither {_THREAD} nor {_MESSAGES}")
    return tuple(conversations)


def _guessed_name(raw: bytes) -> str:
    lines, _ = read_lines(raw)
    objects = {Record.of(line.raw).text("object") for line in lines}
    if "thread.message" in objects:
        return _MESSAGES
    return _THREAD if raw.lstrip().startswith(b"{") and b'"thread"' in raw else ""


class _Thread:
    """One folder while it becomes conversations."""

    def __init__(self, folder: str, files: Mapping[str, bytes], *, strict: bool) -> None:
        self.reading = Reading(strict=strict, where=f"{folder}/" if folder else "")
        self.thread = Record.of(None)
        if _THREAD in files:
            self.thread = self._read_thread(files[_THREAD])
        rows, notes = read_lines(files.get(_MESSAGES, b""), strict=strict)
        self.reading.notes += notes
        self.rows: dict[str, Record] = {}
        for row in rows:
            record = Record.of(row.raw, row.line)
            id = id_of(record, "id") or f"line-{row.line}"
            if record.text("role") not in ("user", "assistant", "system"):
                self.reading.refuse(row.line, "a message without a known role", row.raw)
                continue
            if id in self.rows:
                detail = f"message {id} occurs twice; the later one counts"
                self.reading.note(self.rows[id].number, "duplicate", detail)
            self.rows[id] = record
        threads = (id_of(record, "thread_id") for record in self.rows.values())
        named = id_of(self.thread, "id") or next(filter(None, threads), "")
        self.id = named or folder.rpartition("/")[2] or FORMAT

    def _read_thread(self, raw: bytes) -> Record:
        try:
            document = read_document(raw, self.reading.notes, strict=self.reading.strict)
        except TranscriptError as error:
            if self.reading.strict:
                raise TranscriptError(f"{self.reading.where}{_THREAD}: {error}") from error
            self.reading.note(1, "bad_thread", f"{_THREAD}: {error}", visible=True)
            return Record.of(None)
        return Record.of(document)

    def read(self) -> tuple[Conversation, ...]:
        messages = {id: self._messages(id, record) for id, record in self.rows.items()}
        parents = self._parents()
        without_unplaced(messages, parents, self.reading)
        head = self._active_leaf(parents)
        ways = paths(parents, head, self.reading) or [[]]
        assistants = self.thread.records("assistants") or [Record.of(None)]
        file_fields = self.thread.rest({"id", "title"})
        return read_paths(
            [[message for id in way for message in messages[id]] for way in ways],
            self.reading,
            session=self.id,
            format=FORMAT,
            title=self.thread.text("title") or "",
            system=assistants[0].text("instructions") or "",
            kept=file_fields,
        )

    def _parents(self) -> dict[str, str | None]:
        """Each message's parent. If there is no link at all, the messages follow each other in the
        file's order.
        """
        linked = {
            id: record.record("metadata")
            for id, record in self.rows.items()
            if "parentId" in record.record("metadata").fields
        }
        parents: dict[str, str | None] = {}
        before: str | None = None
        for id in self.rows:
            parents[id] = id_of(linked[id], "parentId") or None if id in linked else before
            before = id
        return self._reattached(parents) if linked else parents

    def _reattached(self, parents: dict[str, str | None]) -> dict[str, str | None]:
        question: str | None = None
        moved: dict[str, str] = {}
        for id, record in self.rows.items():
            role, parent = record.text("role"), parents[id]
            if role == "assistant" and parent not in self.rows and question is not None:
                parents[id] = question
                moved[question] = id
                detail = f"{id} stands behind {question} again"
                self.reading.note(record.number, "detached", detail)
            elif role == "user":
                # The children of that question came after the reply that had lost its place, so
                # they follow the reply.
                if parent in moved and parent == question:
                    parents[id] = moved[parent]
                question = id
        return parents

    def _active_leaf(self, parents: Mapping[str, str | None]) -> str | None:
        """The leaf that the active children lead to from the root, else the newest one."""
        children: dict[str | None, list[str]] = {}
        for id, parent in parents.items():
            children.setdefault(parent if parent in parents else None, []).append(id)
        order = {
            id: (record.at("created_at", "created"), node)
            for node, (id, record) in enumerate(self.rows.items())
        }
        node: str | None = None
        seen: set[str] = set()
        while below := [child for child in children.get(node, []) if child not in seen]:
            above = self.thread if node is None else self.rows[node]
            active = id_of(above.record("metadata"), "activeChildId")
            node = active if active in below else max(below, key=lambda id: order[id])
            seen.add(node)
        return node

    def _messages(self, id: str, record: Record) -> list[RecordedMessage]:
        role = record.text("role")
        metadata = record.record("metadata")
        is_reply = role == "assistant"
        failed = metadata.raw("error") not in (None, b'""', b"false")
        message = RecordedMessage(
            role="assistant" if is_reply else "system" if role == "system" else "user",
            blocks=list(self._blocks(id, record, metadata, is_reply=is_reply)),
            id=id,
            number=record.number,
            created_at=record.at("created_at", "created"),
            completed_at=record.at("completed_at", "updated"),
            raw=encode_json(record.fields),
            interrupted=is_reply and record.text("status") in _OPEN_STATES,
        )
        if failed:
            return [msgspec.structs.replace(message, role="assistant", blocks=[], error="error")]
        if metadata.items("inline_file_contents"):
            detail = "contents of files, kept in extra"
            self.reading.note(record.number, "inline_files", detail, visible=True)
        parts = expand(message) if is_reply else [message]
        links = ("id", "thread_id")
        parts[0].extra = beside(without_metadata(record, _TREE), _record(parts), without=links)
        return parts

    def _blocks(
        self, id: str, record: Record, metadata: Record, *, is_reply: bool
    ) -> Iterator[bytes]:
        whole = record.text("content")
        if whole is not None:
            yield from _texts(whole, is_reply)
        results: list[bytes] = []
        for index, part in enumerate(record.records("content")):
            blocks_of_part = list(_part(part, f"call_{id}_{index}", is_reply))
            if not blocks_of_part and part.text("type") != "text":
                kind = part.text("type") or "a part without a type"
                self.reading.note(record.number, "part", kind, visible=True)
            calls = [block for block in blocks_of_part if part.text("type") == "tool_call"]
            if not calls:
                yield from results
                results = []
                yield from blocks_of_part
                continue
            yield calls[0]
            results += calls[1:]
        yield from results
        yield from _older_calls(metadata, id)


def _part(part: Record, otherwise: str, is_reply: bool) -> Iterator[bytes]:
    text = part.record("text").text("value")
    text = part.text("text") or "" if text is None else text
    match part.text("type"):
        case "text":
            yield from _texts(text, is_reply)
        case "reasoning" if text:
            yield thinking_block(text)
        case "image_url" if url := part.record("image_url").text("url"):
            yield image_block(url)
        case "tool_call":
            call_id = part.text("tool_call_id") or otherwise
            yield call_block_of_value(
                call_id, part.text("tool_name") or "tool", part.value("input")
            )
            output = part.value("output")
            if output is not None:
                yield result_block(call_id, output_text(output))


def _texts(text: str, is_reply: bool) -> Iterator[bytes]:
    """A text. The thinking that older replies contain in their text becomes a block of its own."""
    index = 0
    for match in _THINK.finditer(text) if is_reply else ():
        yield from text_blocks(text[index : match.start()])
        if match[1]:
            yield thinking_block(match[1])
        index = match.end()
    yield from text_blocks(text[index:])


def _older_calls(metadata: Record, id: str) -> Iterator[bytes]:
    """Calls, then their results, as ``metadata.tool_calls`` stores them."""
    results: list[bytes] = []
    for index, call in enumerate(metadata.records("tool_calls")):
        tool = call.record("tool")
        function = tool.record("function")
        call_id = tool.text("id") or f"call_{id}_{index}"
        yield call_block_of_value(
            call_id, function.text("name") or "tool", function.value("arguments")
        )
        response = call.record("response")
        if response.fields and call.text("state") != "pending":
            parts = [part.text("text") or "" for part in response.records("content")]
            output = "\n".join(filter(None, parts)) if parts else response.text("content") or ""
            is_error = bool(response.text("error"))
            results.append(result_block(call_id, output, is_error=is_error))
    yield from results


# Writing.


def write_jan(conversations: Sequence[Conversation]) -> Files:
    """A folder for each conversation, ``threads/<id>``, with its branches in the messages."""
    files: dict[str, bytes] = {}
    for index, family in enumerate(families(conversations)):
        folder = f"threads/{safe_name(family.main.id)}"
        if f"{folder}/{_THREAD}" in files:
            folder = f"{folder}-{index}"
        files[f"{folder}/{_THREAD}"] = encode_json(_thread(family)) + b"\n"
        files[f"{folder}/{_MESSAGES}"] = json_lines(_rows(family))
    return files


def _thread(family: Branching) -> dict[str, Any]:
    main = family.main
    assistant = {"assistant_id": FORMAT, "assistant_name": "Jan"}
    model = next((message.model for message in main.messages if message.model), None)
    first = {**assistant, **({"model": {"id": model}} if model else {})}
    first |= {"instructions": main.system} if main.system else {}
    times = [message.created_at for message in main.messages if message.created_at]
    created = {"created": int(min(times)), "updated": int(max(times))} if times else {}
    defaults = {"object": "thread", "assistants": [first], **created, "metadata": {}}
    thread = {**defaults, **kept_fields(main, FORMAT), "id": main.id, "title": main.title}
    if len(family.all) > 1 and main.messages:
        # A field of our own, because Jan cannot mark the active one of several first messages.
        metadata = Record.of(encode_json(thread["metadata"])).fields
        thread["metadata"] = {**metadata, "activeChildId": main.messages[0].id}
    return thread


def _rows(family: Branching) -> Iterator[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    parents: dict[str, str | None] = {}
    for group, above, _ in written_path(family, FORMAT, folded=True):
        first = group[0]
        links = {"id": first.id, "object": "thread.message", "thread_id": family.main.id}
        rows[first.id] = {**_record(group), **first.extra, **links}
        parents[first.id] = above
    if len(family.all) > 1:
        active = dict(pairwise(_main_path(family, parents)))
        for id, row in rows.items():
            metadata: dict[str, Any] = Record.of(encode_json(row.get("metadata"))).rest(())
            metadata |= {"parentId": parents[id], "activeChildId": active.get(id)}
            row["metadata"] = metadata
    yield from rows.values()


def _main_path(family: Branching, written: Mapping[str, str | None]) -> list[str]:
    return [message.id for message in family.main.messages if message.id in written]


def _record(group: Sequence[RecordedMessage]) -> dict[str, Any]:
    first, last = group[0], group[-1]
    record: dict[str, Any] = {
        "object": "thread.message",
        "role": first.role,
        "status": "stopped" if any(message.interrupted for message in group) else "ready",
        "type": "text",
        "content": list(_parts(group)),
    }
    if first.created_at:
        record["created_at"] = milliseconds(first.created_at)
    if last.completed_at:
        record["completed_at"] = milliseconds(last.completed_at)
    return record


def _parts(group: Sequence[RecordedMessage]) -> Iterator[dict[str, Any]]:
    results = {result.tool_use_id: result for message in group for result in message.results}
    for block in (block for message in group for block in message.content):
        match block:
            case TextBlock():
                yield {"type": "text", "text": {"value": block.text, "annotations": []}}
            case ThinkingBlock():
                yield {"type": "reasoning", "text": {"value": block.thinking, "annotations": []}}
            case ImageBlock() if url := image_url(block.source):
                yield {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}
            case ToolUseBlock():
                call: dict[str, Any] = {"tool_call_id": block.id, "tool_name": block.name}
                call["input"] = block.input
                if block.id in results:
                    call["output"] = result_text(results[block.id])
                yield {"type": "tool_call", **call}
