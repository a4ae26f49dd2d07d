"""ChatGPT's export, ``conversations.json``: an array of conversations, each a tree of nodes.

A node has the id of its message. Calls are messages to a tool (``recipient``). Neither calls nor
the tools' answers have call ids, so an answer is paired with the oldest open call of its tool, else
with the oldest open call. System messages and the user's custom instructions form the system
prompt. The format cannot store a summary and usage. A result of several blocks becomes one text. A
reply with text and calls becomes one node for each, and the later nodes have derived ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import (
    encode_json,
    joined_text,
    split_blocks,
)

from ..common.call_pairs import clean_call_id, clean_name
from ..common.chat_records import Reading, id_of
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Probe
from ..common.record import Record
from ..common.recorded_message import (
    RecordedMessage,
    call_block_of_value,
    result_block,
    text_blocks,
    thinking_block,
)
from ..common.trees import newest_leaf, paths, read_paths

__all__ = ["FORMAT", "looks_chatgpt", "read_chatgpt"]

FORMAT = "chatgpt"

_ROLES = ("system", "user", "assistant", "tool")
_INSTRUCTIONS = ("user_profile", "user_instructions", "model_set_context")
_OPEN = ("in_progress", "finished_partial_completion")


def looks_chatgpt(probe: Probe) -> bool:
    """Is it a conversation with a mapping of nodes, or an array that contains one?"""
    document = probe.items or [probe.fields]
    return any(
        isinstance(item, dict)
        and isinstance(item.get("mapping"), dict)
        and ("current_node" in item or "conversation_id" in item or "create_time" in item)
        for item in document
    )


def read_chatgpt(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: for each the active path, then its other
    branches.

    Raises TranscriptError if there is no conversation. With *strict*, also for a conversation or a
    node that cannot be read.
    """
    notes = Reading(strict=strict)
    document = read_document(raw, notes.notes, strict=strict)
    items = split_blocks(document) if document.startswith(b"[") else [msgspec.Raw(document)]
    conversations: list[Conversation] = []
    for number, item in enumerate(items, 1):
        record = Record.of(item, number)
        if "mapping" not in record.fields:
            notes.refuse(number, "a conversation without a mapping", item)
            continue
        reading = Reading(strict=strict, where=f"conversation {number}, ")
        reading.notes, notes.notes = notes.notes, []
        reading.records, notes.records = notes.records, []
        conversations += _read_one(record, reading)
    if not conversations:
        raise TranscriptError("not a ChatGPT export: no conversation with a mapping in it")
    conversations[-1] = notes.added_to(conversations[-1])
    return tuple(conversations)


def _read_one(record: Record, reading: Reading) -> tuple[Conversation, ...]:
    nodes: dict[str, Record] = {}
    for number, (id, item) in enumerate(record.record("mapping").fields.items(), 1):
        node = Record.of(item, number)
        if node.fields:
            nodes[id] = node
        else:
            reading.refuse(number, "a node that is not an object", item)
    parents = {id: id_of(node, "parent") or None for id, node in nodes.items()}
    read = {id: _Node(id, node, reading) for id, node in nodes.items()}
    head = id_of(record, "current_node")
    if head not in nodes:
        times = {id: node.record("message").at("create_time") for id, node in nodes.items()}
        if nodes:
            reading.note(1, "no_head", f"{head or 'current_node'}: the newest branch is active")
        head = newest_leaf(parents, times) or ""
    ways = paths(parents, head or None, reading) or [[]]
    merged: set[str] = set()
    return read_paths(
        [_way([read[id] for id in way], reading, merged) for way in ways],
        reading,
        session=id_of(record, "conversation_id", "id") or f"{FORMAT}-{record.number}",
        format=FORMAT,
        title=record.text("title") or "",
        kept=_kept(record),
    )


def _kept(record: Record) -> dict[str, Any]:
    return record.rest({"mapping", "current_node", "title", "conversation_id"})


class _Node:
    """One node: its author, and its content."""

    def __init__(self, id: str, node: Record, reading: Reading) -> None:
        self.id = id
        self.number = node.number
        self.message = node.record("message")
        self.content = self.message.record("content")
        author = self.message.record("author")
        self.role = author.text("role") or ""
        self.tool = author.text("name") or ""
        self.recipient = self.message.text("recipient") or "all"
        self.blocks: list[bytes] = []
        self._message: RecordedMessage | None = None
        if not self.message.fields:
            self.role = ""
        elif self.role not in _ROLES:
            raw = encode_json(self.message.fields)
            reading.refuse(node.number, "a message without an author that is known", raw)
            self.role = ""
        elif self.kind == "reasoning_recap":
            reading.note(node.number, "reasoning_recap", "a line for the reader")
        else:
            self.blocks = list(self._read(reading))

    @property
    def kind(self) -> str:
        return self.content.text("content_type") or "text"

    @property
    def is_instruction(self) -> bool:
        return self.role == "system" or self.kind.endswith("_editable_context")

    @property
    def is_call(self) -> bool:
        return self.role == "assistant" and self.recipient != "all"

    def _read(self, reading: Reading) -> Iterator[bytes]:
        if self.kind == "thoughts":
            thoughts = self.content.records("thoughts")
            texts = [thought.text("content") or thought.text("summary") for thought in thoughts]
            if any(texts):
                yield thinking_block("\n\n".join(filter(None, texts)))
            return
        if self.kind.endswith("_editable_context"):
            for name in _INSTRUCTIONS:
                yield from text_blocks(self.content.text(name) or "")
            return
        for part in self.content.items("parts"):
            text = _text_of_part(bytes(part))
            if text is None:
                kind = Record.of(part).text("content_type") or "a part without a type"
                reading.note(self.number, "part", kind, visible=True)
            yield from text_blocks(text or "")
        for name in ("text", "result"):
            yield from text_blocks(self.content.text(name) or "")

    def text(self) -> str:
        """All of its content, as one text."""
        message = RecordedMessage(role="user", blocks=self.blocks)
        return joined_text(message.content, "\n\n")

    def as_message(self, blocks: list[bytes]) -> RecordedMessage:
        """The node as a message of ours with *blocks*. Equal blocks give the same object, whatever
        path it is on.
        """
        if self._message is None or self._message.blocks != blocks:
            self._message = self._new(blocks)
        return self._message

    def _new(self, blocks: list[bytes]) -> RecordedMessage:
        is_reply = self.role == "assistant" and not self.is_instruction
        return RecordedMessage(
            role="system" if self.is_instruction else "assistant" if is_reply else "user",
            blocks=blocks,
            id=self.id,
            number=self.number,
            created_at=self.message.at("create_time"),
            completed_at=self.message.at("update_time"),
            model=self.message.record("metadata").text("model_slug") if is_reply else None,
            extra=self._extra(),
            raw=encode_json(self.message.fields),
            interrupted=is_reply and self.message.text("status") in _OPEN,
        )

    def _extra(self) -> dict[str, Any]:
        """The fields that the message does not hold, or not unchanged."""
        held = {"id", "create_time", "update_time", "recipient", "weight"}
        if self.message.text("status") == "finished_successfully":
            held.add("status")
        if not self.message.record("author").record("metadata").fields:
            held.add("author")
        parts = self.content.items("parts")
        is_plain = self.content.fields.keys() <= {"content_type", "parts"}
        if is_plain and self.kind == "text" and all(bytes(part)[:1] == b'"' for part in parts):
            held.add("content")
        return self.message.rest(held)


def _text_of_part(raw: bytes) -> str | None:
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    return Record.of(raw).text("text")


def _way(nodes: Sequence[_Node], reading: Reading, merged: set[str]) -> list[RecordedMessage]:
    """The messages of one path: calls get ids, and answers get the ids of the calls they answer.

    What a tool says after its answer is added to that answer. The ids of such nodes are added to
    *merged*, and the nodes are kept beside the messages, once.
    """
    way: list[RecordedMessage] = []
    tools: dict[str, str] = {}
    waiting: list[str] = []
    for node in nodes:
        if not node.role or node.kind == "reasoning_recap":
            continue
        if node.is_call:
            call_id = clean_call_id(f"call_{node.id}")
            tools[call_id] = node.recipient
            waiting.append(call_id)
            call = call_block_of_value(call_id, clean_name(node.recipient), node.text())
            way.append(node.as_message([call]))
        elif node.role == "tool" and not node.is_instruction:
            call_id = _answered(waiting, tools, node.tool)
            if not call_id and way and (of := _last_answer(way[-1])) and tools[of] == node.tool:
                longer = [_longer(way[-1].blocks[0], node.text())]
                way[-1] = msgspec.structs.replace(way[-1], blocks=longer)
                if node.id not in merged:
                    merged.add(node.id)
                    raw = encode_json(node.message.fields)
                    reading.leave_out(node.number, "merged", raw, "is a part of the answer before")
                continue
            is_error = node.kind == "system_error"
            way.append(node.as_message([result_block(call_id, node.text(), is_error=is_error)]))
        else:
            if node.role == "user" and not node.is_instruction:
                waiting.clear()
            way.append(node.as_message(node.blocks))
    return way


def _last_answer(message: RecordedMessage) -> str:
    """The call that *message* answers; "" if it answers none that is known."""
    return next((result.tool_use_id for result in message.results), "")


def _longer(result: bytes, text: str) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(result)
    texts = filter(None, (fields["content"], text))
    return encode_json({**fields, "content": "\n\n".join(texts)})


def _answered(waiting: list[str], tools: dict[str, str], tool: str) -> str:
    """Remove the open call that *tool* answers from those that wait, and return it; "" if none
    waits.
    """
    first = tool.partition(".")[0]
    ranks = [(tools[id] != tool, tools[id].partition(".")[0] != first) for id in waiting]
    return waiting.pop(ranks.index(min(ranks))) if ranks else ""
