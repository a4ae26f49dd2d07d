"""LibreChat's export of one conversation, with or without its branches.

A reply contains its tool calls with their results as parts of one message. Here each run of calls
is an assistant message, and their results are the user message behind it. A summary part is the
conversation's ``summary``. A reply that is an error is left out. The active path is the one to the
newest message. The format cannot store which path is active, nor a summary that was not read from
it. A result of several blocks becomes one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import ImageBlock, TextBlock, ThinkingBlock, ToolUseBlock, encode_json

from ..common.chat_records import Reading, beside, expand, id_of, is_ours, kept_fields
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.record import Record
from ..common.recorded_message import (
    RecordedMessage,
    arguments_of,
    call_block_of_value,
    image_block,
    image_url,
    output_text,
    result_block,
    result_text,
    text_blocks,
    text_of,
    thinking_block,
)
from ..common.times import iso_time
from ..common.trees import (
    Branching,
    families,
    mark_summaries,
    newest_leaf,
    paths,
    read_paths,
    without_unplaced,
    written_path,
)
from ..common.writing import path_of

__all__ = ["FORMAT", "looks_librechat", "read_librechat", "write_librechat"]

FORMAT = "librechat"

_NO_PARENT = "00000000-0000-0000-0000-000000000000"
_LINKS = ("messageId", "parentMessageId", "conversationId", "children")
_LISTS = ("messages", "messagesTree")
_NOT_SAID = {"summary", "error", "agent_update"}


def looks_librechat(probe: Probe) -> bool:
    """Is it an object with a conversation's id and messages, as LibreChat names them?"""
    fields = probe.fields
    return "conversationId" in fields and any(isinstance(fields.get(n), list) for n in _LISTS)


def read_librechat(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: the active path, then each other branch.

    Raises TranscriptError if *raw* is not such an export. With *strict*, also for a message that
    cannot be read.
    """
    reading = Reading(strict=strict)
    document = Record.of(read_document(raw, reading.notes, strict=strict))
    name = next((name for name in _LISTS if (document.raw(name) or b"")[:1] == b"["), None)
    if name is None:
        raise TranscriptError("not a LibreChat export: it has no messages")
    rows = _by_id(_flat(document.items(name), reading), reading)
    messages = {id: _messages(record, reading) for id, record in rows.items()}
    parents = {id: _parent(record) for id, record in rows.items()}
    links = dict(parents)
    gone = without_unplaced(messages, parents, reading)
    summaries = {
        id: (_first_kept(id, record, links), _summary(record)) for id, record in rows.items()
    }
    mark_summaries(messages, summaries, gone)
    times = {id: record.at("createdAt") for id, record in rows.items()}
    ways = paths(parents, newest_leaf(parents, times), reading) or [[]]
    options = document.record("options")
    file_fields = document.rest({*_LISTS, "conversationId", "title"})
    return read_paths(
        [[message for id in way for message in messages[id]] for way in ways],
        reading,
        session=id_of(document, "conversationId") or FORMAT,
        format=FORMAT,
        title=document.text("title") or "",
        system=options.text("promptPrefix") or options.text("system") or "",
        kept=file_fields,
    )


def _flat(items: Sequence[msgspec.Raw], reading: Reading) -> Iterator[tuple[Record, str]]:
    """The messages of a list or a tree, in order, each with the id of the message above it."""
    waiting = [(item, "") for item in reversed(items)]
    number = 0
    while waiting:
        item, above = waiting.pop()
        number += 1
        record = Record.of(item, number)
        if not id_of(record, "messageId"):
            reading.refuse(number, "a message without a messageId", item)
            continue
        yield record, above
        below = id_of(record, "messageId")
        waiting += [(child, below) for child in reversed(record.items("children"))]


def _by_id(records: Iterator[tuple[Record, str]], reading: Reading) -> dict[str, Record]:
    rows: dict[str, Record] = {}
    for record, above in records:
        id = id_of(record, "messageId")
        if id in rows:
            reading.note(record.number, "duplicate", f"message {id} occurs twice; this one counts")
        if above and record.raw("parentMessageId") is None:
            fields = {**record.fields, "parentMessageId": msgspec.Raw(encode_json(above))}
            record = Record(record.number, fields)
        rows[id] = record
    return rows


def _parent(record: Record) -> str | None:
    parent = id_of(record, "parentMessageId")
    return None if parent in ("", _NO_PARENT) else parent


def _summary(record: Record) -> str:
    parts = (part for part in record.records("content") if part.text("type") == "summary")
    texts = ["".join(text.text("text") or "" for text in part.records("content")) for part in parts]
    return "\n\n".join(filter(None, texts)) or record.text("summary") or ""


def _first_kept(id: str, record: Record, parents: Mapping[str, str | None]) -> str:
    """The first message, of *id* and those above it, that the summary in *record* does not
    replace.
    """
    parts = (part for part in record.records("content") if part.text("type") == "summary")
    kept = [part.record("coverage").text("retainedFromMessageId") for part in parts]
    above: str | None = id
    seen: set[str] = set()
    while above is not None and above not in seen:
        if kept and above == kept[-1]:
            return above
        seen.add(above)
        above = parents.get(above)
    return id


def _messages(record: Record, reading: Reading) -> list[RecordedMessage]:
    created = record.value("isCreatedByUser")
    is_user = created if isinstance(created, bool) else record.text("sender") == "User"
    message = RecordedMessage(
        role="user" if is_user else "assistant",
        blocks=_blocks(record, reading),
        id=id_of(record, "messageId"),
        number=record.number,
        created_at=record.at("createdAt"),
        model=None if is_user else record.text("model"),
        raw=encode_json(record.fields),
        interrupted=record.flag("unfinished"),
    )
    if record.flag("error"):
        message = msgspec.structs.replace(message, blocks=[], error=text_of([message]) or "error")
    parts = [message] if is_user else expand(message)
    parts[0].extra = beside(record, _record(parts), without=_LINKS)
    return parts


def _blocks(record: Record, reading: Reading) -> list[bytes]:
    blocks: list[bytes] = []
    results: list[bytes] = []
    parts = record.records("content")
    for index, part in enumerate(parts):
        call = part.record("tool_call")
        if part.text("type") == "tool_call" and call.fields:
            _add_call(call, f"call_{id_of(record, 'messageId')}_{index}", blocks, results)
            continue
        texts = _part(part)
        if texts:
            blocks += [*results, *texts]
            results = []
        elif part.text("text") != "":
            kind = part.text("type") or "a part without a type"
            reading.note(record.number, "part", kind, visible=kind not in _NOT_SAID)
    blocks += results
    return blocks or ([] if parts and record.text("text") is None else text_blocks(_text(record)))


def _add_call(call: Record, otherwise: str, blocks: list[bytes], results: list[bytes]) -> None:
    function = call.record("function")
    call_id = id_of(call, "id") or otherwise
    arguments = call.value("args") if "args" in call.fields else function.value("arguments")
    blocks.append(
        call_block_of_value(
            call_id, call.text("name") or function.text("name") or "tool", arguments
        )
    )
    output = call.value("output")
    output = function.value("output") if output is None else output
    if output is not None:
        results.append(result_block(call_id, output_text(output)))


def _part(part: Record) -> list[bytes]:
    match part.text("type"):
        case "text":
            return text_blocks(_text(part))
        case "think":
            thought = part.text("think") or part.record("think").text("value")
            return [thinking_block(thought)] if thought else []
        case "image_url":
            url = part.text("image_url") or part.record("image_url").text("url")
            return [image_block(url)] if url else []
    return []


def _text(record: Record) -> str:
    return record.text("text") or record.record("text").text("value") or ""


# Writing.


def write_librechat(conversations: Sequence[Conversation]) -> Files:
    """A file for each conversation, with its branches."""
    return {
        path_of(index, family.main, ".json"): _document(family)
        for index, family in enumerate(families(conversations))
    }


def _document(family: Branching) -> bytes:
    main = family.main
    rows: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    for group, above, is_head in written_path(family, FORMAT, folded=True):
        links = {"messageId": group[0].id, "parentMessageId": above or _NO_PARENT}
        row = {**_record(group), **group[0].extra, **links, "conversationId": main.id}
        # Of equally new messages, the last one belongs to the active path.
        (last if is_head else rows).append(row)
    options = {"promptPrefix": main.system} if main.system and not is_ours(main, FORMAT) else {}
    head = {"conversationId": main.id, "title": main.title}
    settings = {"branches": len(family.all) > 1, "recursive": False, "options": options}
    return (
        encode_json({**head, **settings, **kept_fields(main, FORMAT), "messages": rows + last})
        + b"\n"
    )


def _record(group: Sequence[RecordedMessage]) -> dict[str, Any]:
    first = group[0]
    is_user = first.role == "user"
    record: dict[str, Any] = {
        "sender": "User" if is_user else first.model or "Assistant",
        "isCreatedByUser": is_user,
        "text": text_of(group),
    }
    if any(not isinstance(block, TextBlock) for message in group for block in message.content):
        record["content"] = list(_parts(group))
    if first.created_at:
        record["createdAt"] = iso_time(first.created_at)
    if first.model:
        record["model"] = first.model
    if any(message.interrupted for message in group):
        record["unfinished"] = True
    return record


def _parts(group: Sequence[RecordedMessage]) -> Iterator[dict[str, Any]]:
    results = {result.tool_use_id: result for message in group for result in message.results}
    for block in (block for message in group for block in message.content):
        match block:
            case TextBlock():
                yield {"type": "text", "text": block.text}
            case ThinkingBlock():
                yield {"type": "think", "think": block.thinking}
            case ImageBlock() if url := image_url(block.source):
                yield {"type": "image_url", "image_url": {"url": url}}
            case ToolUseBlock():
                call: dict[str, Any] = {"id": block.id, "name": block.name}
                call["args"] = arguments_of(block)
                if block.id in results:
                    call |= {"output": result_text(results[block.id]), "progress": 1}
                yield {"type": "tool_call", "tool_call": {**call, "type": "tool_call"}}
