"""Lists of Anthropic messages: an array of them, or an object with ``messages``.

Blocks stay byte for byte. Thinking without a signature cannot be sent and is kept in ``extra``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json, split_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

from ..common.content_parts import blocks_of, without_unsigned
from ..common.conversation import Conversation, Note
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.message_list import MessageList, SystemTexts, with_system
from ..common.record import Record
from ..common.recorded_message import RecordedMessage
from ..common.writing import BESIDE, given_ids, path_of

__all__ = [
    "FORMAT",
    "anthropic_usage",
    "looks_anthropic_list",
    "read_anthropic_list",
    "read_anthropic_message",
    "read_anthropic_messages",
    "system_text",
    "write_anthropic_list",
]

FORMAT = "anthropic-messages"

_KNOWN = {"role", "content", "id", "model", "usage", "stop_reason"}
_TELLING = {
    "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document",
    "server_tool_use", "compaction",
}  # fmt: skip


def looks_anthropic_list(probe: Probe) -> bool:
    """Is the file a list of messages of both sides, with a block type that only Anthropic has?"""
    messages = probe.fields.get("messages") if isinstance(probe.document, dict) else probe.document
    if not isinstance(messages, list) or not messages:
        return False
    plain = all(
        isinstance(message, dict) and message.get("role") in ("user", "assistant", "system")
        for message in messages
    )
    return plain and any(_tells(message.get("content")) for message in messages)


def _tells(content: Any) -> bool:
    blocks = content if isinstance(content, list) else []
    return any(isinstance(block, dict) and block.get("type") in _TELLING for block in blocks)


def read_anthropic_list(raw: bytes, strict: bool = False) -> tuple[Conversation, ...]:
    """The one conversation in *raw*, a file's bytes.

    Raises TranscriptError if *raw* is not a list of messages. With *strict*, also for a message
    that cannot be read.
    """
    notes: list[Note] = []
    document = read_document(raw, notes, strict=strict)
    whole = Record.of(document if document.startswith(b"{") else None, 1)
    items = whole.items("messages") if whole.fields else []
    if document.startswith(b"["):
        items = split_blocks(document)
    listed = read_anthropic_messages(items, notes, strict)
    if not listed.messages:
        raise TranscriptError("no list of Anthropic messages in it")
    if whole.raw("system"):
        listed.system.add(0, encode_json({"role": "system", "content": whole.fields["system"]}))
    extra = whole.rest({"messages", "id", "title", "system"})
    id, title = whole.text("id") or FORMAT, whole.text("title") or ""
    return (listed.conversation(id, FORMAT, title, extra),)


def read_anthropic_messages(
    items: Sequence[bytes | msgspec.Raw], notes: list[Note], strict: bool = False
) -> MessageList:
    """Messages in their order. *notes* are the notes on the file that contains them."""
    listed = MessageList([], SystemTexts(), notes)
    for number, item in enumerate(items, 1):
        record = Record.of(item, number)
        role = record.text("role")
        if role in ("system", "developer"):
            notes.append(listed.system.add(len(listed.messages), item, number))
        elif role in ("user", "assistant"):
            listed.messages.append(read_anthropic_message(record, notes))
        elif strict:
            raise TranscriptError(f"message {number}: it has no known role")
        else:
            notes.append(
                Note(number, "bad_message", "a message without a known role", visible=True)
            )
    return listed


def read_anthropic_message(record: Record, notes: list[Note]) -> RecordedMessage:
    """One message, of a list or as the provider replied."""
    blocks = blocks_of(record.raw("content"), record.number, notes)
    extra = record.rest(_KNOWN)
    blocks = without_unsigned(blocks, record.number, notes, extra)
    is_reply = record.text("role") == "assistant"
    return RecordedMessage(
        number=record.number,
        role="assistant" if is_reply else "user",
        blocks=blocks,
        id=record.text("id") or "",
        model=record.text("model") if is_reply else None,
        provider="anthropic" if is_reply else None,
        usage=anthropic_usage(record.record("usage")) if is_reply else None,
        stop_reason=record.text("stop_reason") if is_reply else None,
        extra=extra,
    )


def anthropic_usage(usage: Record) -> Usage | None:
    """Usage as Anthropic reports it; None if *usage* is empty."""
    if "input_tokens" not in usage.fields and "output_tokens" not in usage.fields:
        return None
    return Usage(
        input_tokens=usage.count("input_tokens"),
        output_tokens=usage.count("output_tokens"),
        cache_read_tokens=usage.count("cache_read_input_tokens"),
        cache_write_tokens=usage.count("cache_creation_input_tokens"),
    )


def system_text(content: bytes | None) -> str:
    """A request's system prompt, a text or blocks, as one text."""
    texts = SystemTexts()
    texts.add(0, encode_json({"role": "system", "content": msgspec.Raw(content or b"null")}))
    return texts.text


# Writing.


def write_anthropic_list(conversations: Sequence[Conversation]) -> Files:
    """A file for each conversation: an object with its id, system prompt and messages.

    A message has an id in the file only if its place does not determine it.
    """
    return {
        path_of(index, conversation, ".json"): _write_one(conversation)
        for index, conversation in enumerate(conversations)
    }


def _write_one(conversation: Conversation) -> bytes:
    if not conversation.messages:
        return _document(conversation, ids=False)
    plain = _document(conversation, ids=False)
    if [message.id for message in read_anthropic_list(plain)[0].messages] == [
        message.id for message in conversation.messages
    ]:
        return plain
    return _document(conversation, ids=True)


def _document(conversation: Conversation, *, ids: bool) -> bytes:
    own = conversation.format in (FORMAT, "own")
    groups = [[_written(message, own)] for message in conversation.messages]
    if ids:
        given_ids(conversation.messages, groups)
    fields: dict[str, Any] = {"id": conversation.id}
    if conversation.title:
        fields["title"] = conversation.title
    if conversation.system and not (own and "system_messages" in conversation.extra):
        fields["system"] = conversation.system
    fields["messages"] = with_system(conversation, groups, None, own=own)
    extra = conversation.extra if own else {}
    extra_fields = {name: raw for name, raw in extra.items() if name not in BESIDE}
    return encode_json({**extra_fields, **fields}) + b"\n"


def _written(message: Message, own: bool) -> dict[str, Any]:
    extra: dict[str, Any] = dict(Record.of(message.extra).fields) if own else {}
    unsigned = [bytes(raw) for raw in Record.of(encode_json(extra)).items("unsigned_thinking")]
    extra.pop("unsigned_thinking", None)
    content = [msgspec.Raw(raw) for raw in [*unsigned, *map(bytes, split_blocks(message.body))]]
    return {**extra, "role": message.role, "content": content}
