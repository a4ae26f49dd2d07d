"""Open WebUI's export: an array of chats, each with a tree of messages.

``chat.history`` counts; the flat list beside it is older. A reply's ``output`` items take
precedence over its ``content``, in which older versions stored thinking and tool calls as
``<details>`` elements. Calls and results inside one reply become messages of both sides. The newest
``contextSummary`` on a path is its ``summary``. The format cannot store signatures of thinking, nor
a summary that was not read from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import (
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    encode_json,
    split_blocks,
)
from llmsession.turns.usage import Usage

from ..common.chat_records import Reading, beside, expand, id_of, is_ours, kept_fields, read_usage
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
    result_block,
    text_blocks,
    text_of,
    thinking_block,
)
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

__all__ = ["FORMAT", "looks_open_webui", "read_open_webui", "write_open_webui"]

FORMAT = "open-webui"

_LINKS = ("id", "parentId", "childrenIds")
_CHAT = {"history", "messages", "title"}
_REFUSED = ("failed", "rejected")
_DETAILS = re.compile(
    r'<details type="(reasoning|tool_calls)"([^>]*)>(.*?)</details>\n?', re.DOTALL
)
_SUMMARY = re.compile(r"\s*<summary>.*?</summary>\n?", re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_ENTITIES = {"&quot;": '"', "&#x27;": "'", "&#39;": "'", "&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))


def looks_open_webui(probe: Probe) -> bool:
    """Is it a chat with a history of messages, or an array that contains one?"""
    document = probe.items or [probe.fields]
    return any(isinstance(item, dict) and _is_chat(item) for item in document)


def _is_chat(item: dict[str, Any]) -> bool:
    chat = item.get("chat", item)
    history = chat.get("history") if isinstance(chat, dict) else None
    return isinstance(history, dict) and isinstance(history.get("messages"), dict)


def read_open_webui(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: for each chat the active path, then its other
    branches.

    Raises TranscriptError if there is no chat. With *strict*, also for a chat or message that
    cannot be read.
    """
    notes = Reading(strict=strict)
    document = read_document(raw, notes.notes, strict=strict)
    items = split_blocks(document) if document.startswith(b"[") else [msgspec.Raw(document)]
    conversations: list[Conversation] = []
    for number, item in enumerate(items, 1):
        record = Record.of(item, number)
        chat = record.record("chat") if record.raw("chat") else record
        if not chat.record("history").fields and not chat.items("messages"):
            notes.refuse(number, "a chat without a history", item)
            continue
        reading = Reading(strict=strict, where=f"chat {number}, ")
        reading.notes, notes.notes = notes.notes, []
        reading.records, notes.records = notes.records, []
        conversations += _read_chat(record, chat, reading)
    if not conversations:
        raise TranscriptError("not an Open WebUI export: no chat with a history in it")
    conversations[-1] = notes.added_to(conversations[-1])
    return tuple(conversations)


def _read_chat(record: Record, chat: Record, reading: Reading) -> tuple[Conversation, ...]:
    history = chat.record("history")
    rows = _rows(chat, history, reading)
    messages = {id: _messages(row, id, reading) for id, row in rows.items()}
    parents = {id: id_of(row, "parentId") or None for id, row in rows.items()}
    if not history.fields:  # a flat list, from a version before the tree
        parents = dict(zip(rows, [None, *rows], strict=False))
    gone = without_unplaced(messages, parents, reading)
    head = id_of(history, "currentId")
    head = gone.get(head, head) or ""
    if head not in parents:
        times = {id: row.at("timestamp") for id, row in rows.items()}
        newest = newest_leaf(parents, times)
        if newest is not None:
            reading.note(1, "no_head", f"{head or 'currentId'}: the newest branch is active")
        head = newest or ""
    ways = paths(parents, head or None, reading) or [[]]
    # Each summary is stored at the first message that it does not replace.
    summaries = {id: (id, row.text("contextSummary") or "") for id, row in rows.items()}
    mark_summaries(messages, summaries, gone)
    outer = record.rest({"chat", "id", "title"}) if chat is not record else {}
    file_fields = {"chat": chat.rest(_CHAT if chat is not record else {*_CHAT, "id"}), **outer}
    return read_paths(
        [[message for id in way for message in messages[id]] for way in ways],
        reading,
        session=id_of(record, "id") or id_of(chat, "id") or f"{FORMAT}-{record.number}",
        format=FORMAT,
        title=record.text("title") or chat.text("title") or "",
        system=chat.record("params").text("system") or chat.text("system") or "",
        kept=file_fields,
    )


def _rows(chat: Record, history: Record, reading: Reading) -> dict[str, Record]:
    listed = history.record("messages").fields
    items = list(listed.values()) or chat.items("messages")
    names = list(listed) or [""] * len(items)
    rows: dict[str, Record] = {}
    for number, (name, item) in enumerate(zip(names, items, strict=True), 1):
        record = Record.of(item, number)
        id = name or id_of(record, "id") or f"message-{number}"
        if record.text("role") in ("user", "assistant", "system"):
            rows[id] = record
        else:
            reading.refuse(number, "a message without a known role", item)
    return rows


def _messages(record: Record, id: str, reading: Reading) -> list[RecordedMessage]:
    role = record.text("role")
    is_reply = role == "assistant"
    error = record.record("error").text("content") or record.text("error") or None
    message = RecordedMessage(
        role="assistant" if is_reply else "user" if role == "user" else "system",
        blocks=_reply(record, id, reading) if is_reply else _user(record),
        id=id,
        number=record.number,
        created_at=record.at("timestamp"),
        model=record.text("model") if is_reply else None,
        usage=_usage(record) if is_reply else None,
        error=error if is_reply else None,
        raw=encode_json(record.fields),
        interrupted=is_reply and (record.raw("done") == b"false" or _is_incomplete(record)),
    )
    parts = expand(message) if is_reply else [message]
    parts[0].extra = beside(record, _record(parts), without=_LINKS)
    return parts


def _usage(record: Record) -> Usage | None:
    return read_usage(record.record("usage")) or read_usage(record.record("info"))


def _is_incomplete(record: Record) -> bool:
    items = record.records("output")
    return bool(items) and items[-1].text("status") == "incomplete"


def _user(record: Record) -> list[bytes]:
    urls = (file.text("url") for file in record.records("files") if file.text("type") == "image")
    images = [image_block(url) for url in urls if url and url.startswith(("data:image/", "http"))]
    return text_blocks(record.text("content") or "") + images


def _reply(record: Record, id: str, reading: Reading) -> list[bytes]:
    blocks: list[bytes] = []
    for index, item in enumerate(record.records("output")):
        blocks_of_item = _item(item, f"call_{id}_{index}")
        if blocks_of_item is None:
            kind = item.text("type") or "an item without a type"
            reading.note(record.number, "item", kind, visible=not kind.startswith("open_webui:"))
        blocks += blocks_of_item or []
    return blocks or list(_from_html(record.text("content") or "", id))


def _item(item: Record, otherwise: str) -> list[bytes] | None:
    """The blocks of one output item; None for an item of another kind."""
    match item.text("type"):
        case "message":
            parts = item.records("content")
            return [block for part in parts for block in text_blocks(part.text("text") or "")]
        case "reasoning":
            parts = item.records("content") or item.records("summary")
            thought = "\n\n".join(filter(None, (part.text("text") for part in parts)))
            return [thinking_block(thought)] if thought else []
        case "function_call":
            call_id = item.text("call_id") or item.text("id") or otherwise
            return [
                call_block_of_value(call_id, item.text("name") or "tool", item.value("arguments"))
            ]
        case "function_call_output":
            is_error = item.text("status") in _REFUSED
            return [result_block(item.text("call_id") or "", _output(item), is_error=is_error)]
    return None


def _output(item: Record) -> str | list[msgspec.Raw]:
    whole = item.text("output")
    if whole is not None:
        return whole
    blocks = []
    for part in item.records("output"):
        url = part.text("image_url")
        if url and part.text("type") == "input_image":
            blocks.append(msgspec.Raw(image_block(url)))
        else:
            blocks += [msgspec.Raw(block) for block in text_blocks(part.text("text") or "")]
    return blocks


def _from_html(content: str, id: str) -> Iterator[bytes]:
    """The blocks of older content: text with thinking and tool calls as HTML in it."""
    index = 0
    for number, match in enumerate(_DETAILS.finditer(content)):
        yield from text_blocks(content[index : match.start()])
        index = match.end()
        attributes = {name: _plain(value) for name, value in _ATTRIBUTE.findall(match[2])}
        if match[1] == "reasoning":
            yield thinking_block(_unquoted(_SUMMARY.sub("", match[3], count=1)))
            continue
        call_id = attributes.get("id") or f"call_{id}_{number}"
        yield call_block_of_value(
            call_id, attributes.get("name") or "tool", _json_text(attributes.get("arguments", ""))
        )
        if attributes.get("done") != "false":
            yield result_block(call_id, _json_text(attributes.get("result", "")))
    yield from text_blocks(content[index:])


def _plain(escaped: str) -> str:
    return _ENTITY.sub(lambda entity: _ENTITIES[entity[0]], escaped)


def _unquoted(text: str) -> str:
    lines = text.strip("\n").split("\n")
    return _plain("\n".join(re.sub(r"^> ?", "", line) for line in lines))


def _json_text(text: str) -> str:
    """A text without a possible additional JSON encoding as a string."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text
    return value if isinstance(value, str) else text


# Writing.


def write_open_webui(conversations: Sequence[Conversation]) -> Files:
    """One file with all chats, each with its branches."""
    chats = [_chat(family) for family in families(conversations)]
    return {"chats.json": encode_json(chats) + b"\n"}


def _chat(family: Branching) -> dict[str, Any]:
    main = family.main
    rows: dict[str, dict[str, Any]] = {}
    head, active = None, {recorded.id for recorded in main.messages}
    for group, above, is_head in written_path(family, FORMAT, folded=True):
        first = group[0]
        links: dict[str, Any] = {"id": first.id, "parentId": above, "childrenIds": []}
        rows[first.id] = {**_record(group), **first.extra, **links}
        if above is not None:
            rows[above]["childrenIds"].append(first.id)
        head = first.id if is_head else head
    fields = dict(kept_fields(main, FORMAT))
    inner = Record.of(fields.pop("chat", None)).fields
    has_system = bool(main.system) and not is_ours(main, FORMAT)
    params = {"params": {"system": main.system}} if has_system else {}
    times = [message.created_at for message in main.messages if message.created_at]
    stamps = {"created_at": int(min(times)), "updated_at": int(max(times))} if times else {}
    chat = {
        **params,
        **inner,
        "title": main.title,
        "history": {"currentId": head, "messages": rows},
        "messages": [row for id, row in rows.items() if id in active],
    }
    return {"id": main.id, "title": main.title, **stamps, **fields, "chat": chat}


def _record(group: Sequence[RecordedMessage]) -> dict[str, Any]:
    first, last = group[0], [message for message in group if message.role != "user"][-1:]
    record: dict[str, Any] = {"role": first.role, "content": text_of(group)}
    if first.created_at:
        whole = first.created_at == int(first.created_at)
        record["timestamp"] = int(first.created_at) if whole else first.created_at
    if first.role == "user":
        images = [block for block in first.content if isinstance(block, ImageBlock)]
        urls = [url for image in images if (url := image_url(image.source))]
        return record | ({"files": [{"type": "image", "url": url} for url in urls]} if urls else {})
    if first.role == "system":
        return record
    record["done"] = not any(message.interrupted for message in group)
    if first.model:
        record["model"] = first.model
    if any(not isinstance(block, TextBlock) for message in group for block in message.content):
        record["output"] = list(_items(group))
    for message in last:
        if message.usage is not None:
            record["usage"] = _reported(message.usage)
        if message.error:
            record["error"] = {"content": message.error}
    return record


def _reported(usage: Usage) -> dict[str, Any]:
    cached = {"cached_tokens": usage.cache_read_tokens}
    reported = {"input_tokens": usage.input_tokens + usage.cache_read_tokens}
    reported["output_tokens"] = usage.output_tokens
    if usage.cache_write_tokens:
        reported["cache_creation_input_tokens"] = usage.cache_write_tokens
    return reported | ({"input_tokens_details": cached} if usage.cache_read_tokens else {})


def _items(group: Sequence[RecordedMessage]) -> Iterator[dict[str, Any]]:
    for block in (block for message in group for block in message.content):
        match block:
            case TextBlock():
                part = {"type": "output_text", "text": block.text}
                yield {"type": "message", "role": "assistant", "content": [part]}
            case ThinkingBlock():
                part = {"type": "output_text", "text": block.thinking}
                yield {"type": "reasoning", "content": [part]}
            case ToolUseBlock():
                call = {"call_id": block.id, "name": block.name, "arguments": arguments_of(block)}
                yield {"type": "function_call", "status": "completed", **call}
            case ToolResultBlock():
                status = "failed" if block.is_error else "completed"
                answer = {"call_id": block.tool_use_id, "status": status}
                yield {
                    "type": "function_call_output",
                    **answer,
                    "output": list(_output_parts(block)),
                }


def _output_parts(block: ToolResultBlock) -> Iterator[dict[str, Any]]:
    whole = [{"type": "text", "text": block.content}]
    for part in whole if isinstance(block.content, str) else block.content:
        url = image_url(part.get("source")) if isinstance(part, dict) else None
        if isinstance(part, dict) and part.get("type") == "text":
            yield {"type": "input_text", "text": str(part.get("text") or "")}
        elif url:
            yield {"type": "input_image", "image_url": url}
        else:
            yield {"type": "input_text", "text": encode_json(part).decode()}
