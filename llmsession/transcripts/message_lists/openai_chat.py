"""Lists of OpenAI chat messages.

A file is an array of messages, an object with ``messages``, or an array of tasks that each contain
such a list, as benchmarks of agents publish them. They have no ids, times or usage. System and
developer messages are kept beside the conversation. Some models gave the same id to several calls;
it is made unique.

Some programs write calls flat, ``{"id": ..., "name": ..., "arguments": {...}}``, and use the call's
id as the ``id`` of its result. Both are read, also mixed with OpenAI's own form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import block_type, encode_json, split_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

from ..common.content_parts import has_other_fields, openai_blocks, openai_parts, result_content
from ..common.conversation import Conversation, Note
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.message_list import MessageList, SystemTexts, with_system
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, call_block, result_block
from ..common.writing import BESIDE, given_ids, path_of

__all__ = [
    "FORMAT",
    "STOP_REASONS",
    "chat_usage",
    "looks_openai_chat",
    "read_chat",
    "read_openai_chat",
    "write_openai_chat",
]

FORMAT = "openai-chat"

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
_SYSTEM = ("system", "developer")
_KNOWN = {"role", "content", "tool_calls", "function_call", "tool_call_id", "id", "is_error"}
_LISTS = ("messages", "traj", "trajectory")
_IDS = ("id", "conversation_id", "session_id", "sessionId")


def looks_openai_chat(probe: Probe) -> bool:
    """Is the file a list of chat messages, or of tasks with such a list?"""
    if isinstance(probe.document, dict):
        return _are_chat(probe.fields.get("messages"))
    if probe.items and all(isinstance(item, dict) for item in probe.items[:3]):
        first = probe.items[0]
        lists = (first.get(name) for name in _LISTS)
        return _are_chat(probe.items) or any(_are_chat(entry) for entry in lists)
    return False


def _are_chat(messages: Any) -> bool:
    if not isinstance(messages, list) or not messages:
        return False
    return all(
        isinstance(message, dict)
        and message.get("role") in _ROLES
        and ("content" in message or "tool_calls" in message)
        for message in messages
    )


def read_openai_chat(raw: bytes, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: one for each list of messages.

    Raises TranscriptError if there is no list of messages. With *strict*, also for a message that
    cannot be read.
    """
    notes: list[Note] = []
    document = read_document(raw, notes, strict=strict)
    if document.startswith(b"{"):
        return (_read_task(Record.of(document, 1), notes, strict, FORMAT),)
    items = split_blocks(document) if document.startswith(b"[") else []
    records = [Record.of(item, index) for index, item in enumerate(items, 1)]
    if any(record.text("role") in _ROLES for record in records):
        return (read_chat(items, notes, strict).conversation(FORMAT, FORMAT),)
    conversations: list[Conversation] = []
    for record in records:
        try:
            conversations.append(_read_task(record, notes, strict, f"{FORMAT}-{record.number}"))
        except TranscriptError as error:
            if strict:
                raise
            notes.append(Note(record.number, "bad_record", str(error), visible=True))
            continue
        notes = []
    if not conversations:
        raise TranscriptError("no list of chat messages in it")
    if notes:
        conversations[-1] = msgspec.structs.replace(
            conversations[-1], notes=(*conversations[-1].notes, *notes)
        )
    return tuple(conversations)


def _read_task(record: Record, notes: list[Note], strict: bool, otherwise: str) -> Conversation:
    name = next((name for name in _LISTS if record.raw(name)), None)
    if name is None or not (record.raw(name) or b"").startswith(b"["):
        raise TranscriptError(f"record {record.number}: no list of chat messages")
    chat = read_chat(record.items(name), notes, strict)
    task_id = next(filter(None, (record.text(item) for item in _IDS)), None)
    task, trial = record.value("task_id"), record.value("trial")
    if task_id is None and task is not None:
        task_id = f"task-{task}" + ("" if trial is None else f"-trial-{trial}")
    extra = record.rest({name, "id", "title"})
    return chat.conversation(task_id or otherwise, FORMAT, record.text("title") or "", extra)


def read_chat(
    items: Sequence[bytes | msgspec.Raw], notes: list[Note], strict: bool = False
) -> MessageList:
    """Chat messages in their order. *notes* are the notes on the file that contains them."""
    chat = MessageList([], SystemTexts(), notes)
    legacy: list[str] = []
    calls: set[str] = set()
    for number, item in enumerate(items, 1):
        record = Record.of(item, number)
        role = record.text("role")
        if role in _SYSTEM:
            notes.append(chat.system.add(len(chat.messages), item, number))
        elif role == "user":
            chat.messages.append(_user(record, notes))
        elif role == "assistant":
            calls.update(call.text("id") or "" for call in record.records("tool_calls"))
            chat.messages.append(_assistant(record, notes, legacy))
        elif role in ("tool", "function"):
            chat.messages.append(_result(record, notes, legacy, calls))
        elif strict:
            raise TranscriptError(f"message {number}: it has no known role")
        else:
            notes.append(
                Note(number, "bad_message", "a message without a known role", visible=True)
            )
    return chat


def _extra(record: Record, known: set[str] = _KNOWN) -> dict[str, Any]:
    extra = record.rest(known)
    if has_other_fields(record.raw("content")):
        extra["parts"] = msgspec.Raw(record.raw("content") or b"null")
    return extra


def _user(record: Record, notes: list[Note]) -> RecordedMessage:
    return RecordedMessage(
        number=record.number,
        role="user",
        blocks=openai_blocks(record.raw("content"), record.number, notes),
        id=record.text("id") or "",
        extra=_extra(record),
    )


def _assistant(record: Record, notes: list[Note], legacy: list[str]) -> RecordedMessage:
    signed = [
        bytes(raw)
        for raw in record.items("thinking_blocks")
        if block_type(raw) == "redacted_thinking" or Record.of(raw).text("signature")
    ]
    blocks = signed + openai_blocks(record.raw("content"), record.number, notes)
    refusal = record.text("refusal")
    if not blocks and refusal:
        blocks = openai_blocks(encode_json(refusal), record.number, notes)
    blocks += [_call(call) for call in record.records("tool_calls")]
    tool_calls = record.raw("tool_calls")
    if tool_calls is not None and not tool_calls.startswith(b"["):
        notes.append(Note(record.number, "bad_calls", "tool_calls is not a list", visible=True))
    if record.raw("function_call"):
        legacy.append(f"function_{record.number}")
        function = record.record("function_call")
        arguments = function.text("arguments")
        blocks.append(call_block(legacy[-1], function.text("name") or "", arguments))
    known = _KNOWN | ({"thinking_blocks"} if signed else set())
    extra = _extra(record, known)
    if extra.keys() & {"reasoning_content", "reasoning", "reasoning_details"}:
        notes.append(Note(record.number, "reasoning", "unsigned: kept in extra, never sent"))
    return RecordedMessage(
        number=record.number,
        role="assistant",
        blocks=blocks,
        id=record.text("id") or "",
        provider="openai",
        extra=extra,
    )


def _call(call: Record) -> bytes:
    is_flat = not call.record("function").fields and call.text("name") is not None
    function = call if is_flat else call.record("function")
    raw = function.raw("arguments")
    arguments = function.text("arguments") if raw and raw.startswith(b'"') else raw
    if not function.fields and call.record("custom").fields:
        custom = call.record("custom")
        messages = encode_json({"input": custom.text("input") or ""})
        return call_block(call.text("id") or "", custom.text("name") or "", messages)
    return call_block(call.text("id") or "", function.text("name") or "", arguments)


def _result(
    record: Record, notes: list[Note], legacy: list[str], calls: set[str]
) -> RecordedMessage:
    blocks = openai_blocks(record.raw("content"), record.number, notes)
    raw_content = record.raw("content") or b'""'
    content = record.text("content") or "" if raw_content.startswith(b'"') else blocks
    call, message_id = record.text("tool_call_id") or "", record.text("id") or ""
    if not call and (message_id in calls or not legacy):
        call, message_id = message_id, ""
    elif not call:
        call = legacy.pop()
    is_error = True if record.flag("is_error") else None
    return RecordedMessage(
        number=record.number,
        role="user",
        blocks=[result_block(call, content, is_error=is_error)],
        id=message_id,
        extra=_extra(record),
    )


def chat_usage(usage: Record) -> Usage | None:
    """Usage as OpenAI reports it, in either of its interfaces. There the prompt's tokens include
    the cached ones.
    """
    if not usage.fields.keys() & {"prompt_tokens", "input_tokens"}:
        return None
    details = usage.record("prompt_tokens_details").fields or usage.record("input_tokens_details")
    details_record = details if isinstance(details, Record) else Record(0, details)
    prompt = usage.count("prompt_tokens") or usage.count("input_tokens")
    cached = min(prompt, details_record.count("cached_tokens"))
    return Usage(
        input_tokens=prompt - cached,
        output_tokens=usage.count("completion_tokens") or usage.count("output_tokens"),
        cache_read_tokens=cached,
    )


# Writing.


def write_openai_chat(conversations: Sequence[Conversation]) -> Files:
    """A file for each conversation: an object with its id and its messages.

    A message has an id in the file only if its place does not determine it.
    """
    return {
        path_of(index, conversation, ".json"): _write_one(conversation)
        for index, conversation in enumerate(conversations)
    }


def _write_one(conversation: Conversation) -> bytes:
    plain = _document(conversation, ids=False)
    if [message.id for message in read_openai_chat(plain)[0].messages] == [
        message.id for message in conversation.messages
    ]:
        return plain
    return _document(conversation, ids=True)


def _document(conversation: Conversation, *, ids: bool) -> bytes:
    own = conversation.format in (FORMAT, "own")
    groups = [list(_written(message, own)) for message in conversation.messages]
    if ids:
        given_ids(conversation.messages, groups)
    fields: dict[str, Any] = {"id": conversation.id}
    if conversation.title:
        fields["title"] = conversation.title
    system = {"role": "system", "content": conversation.system}
    fields["messages"] = with_system(conversation, groups, system, own=own)
    extra = conversation.extra if own else {}
    extra_fields = {name: raw for name, raw in extra.items() if name not in BESIDE}
    return encode_json({**extra_fields, **fields}) + b"\n"


def _written(message: Message, own: bool) -> Iterator[dict[str, Any]]:
    raws = [bytes(raw) for raw in split_blocks(message.body)]
    extra: dict[str, Any] = dict(Record.of(message.extra).fields) if own else {}
    parts = extra.pop("parts", None)
    if message.is_assistant:
        yield {**extra, **_written_reply(raws, parts)}
        return
    results = [raw for raw in raws if block_type(raw) == "tool_result"]
    for raw in results:
        result = Record.of(raw)
        call = result.text("tool_use_id") or ""
        fields = {"role": "tool", "tool_call_id": call, "content": result_content(raw, "chat")}
        yield {**extra, **fields} | ({"is_error": True} if result.flag("is_error") else {})
    others = [raw for raw in raws if block_type(raw) != "tool_result"]
    if others or not results:
        yield {
            **({} if results else extra),
            "role": "user",
            "content": openai_parts(others, "chat", parts),
        }


def _written_reply(raws: Sequence[bytes], parts: bytes | None) -> dict[str, Any]:
    calls, thinking, texts = [], [], []
    for raw in raws:
        kind, block = block_type(raw), Record.of(raw)
        if kind == "tool_use":
            arguments = (block.raw("input") or b"{}").decode()
            function = {"name": block.text("name") or "", "arguments": arguments}
            call = {"id": block.text("id") or "", "type": "function", "function": function}
            calls.append(call)
        elif kind in ("thinking", "redacted_thinking"):
            thinking.append(msgspec.Raw(raw))
        else:
            texts.append(raw)
    fields: dict[str, Any] = {"role": "assistant"}
    fields["content"] = openai_parts(texts, "chat", parts) if texts else None
    if thinking:
        fields["thinking_blocks"] = thinking
    if calls:
        fields["tool_calls"] = calls
    return fields
