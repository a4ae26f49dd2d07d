"""ChatGPT's export, ``conversations.json``: an array of conversations, each a tree of nodes.

A node's id is its message's. Calls are messages to a tool (``recipient``); neither they nor the
tools' answers carry call ids: an answer is paired with the oldest open call of its tool, else
with the oldest open call. What the system and the user's own instructions say is the system
prompt. Not held by this format: a summary, and usage; a result of several blocks becomes one
text, and a reply with text and calls a node for each, of which the later ones have derived ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import (
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    encode_json,
    split_blocks,
)

from ..common.assembly import clean_call_id
from ..common.chat_records import Reading, beside, id_of, kept_fields
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.record import Record
from ..common.recorded_message import (
    RecordedMessage,
    arguments_of,
    call_block_of_value,
    result_block,
    result_text,
    text_blocks,
    thinking_block,
)
from ..common.trees import Branching, families, newest_leaf, paths, read_paths, written_path

__all__ = ["FORMAT", "looks_chatgpt", "read_chatgpt", "write_chatgpt"]

FORMAT = "chatgpt"

_ROLES = ("system", "user", "assistant", "tool")
_INSTRUCTIONS = ("user_profile", "user_instructions", "model_set_context")
_OPEN = ("in_progress", "finished_partial_completion")


def looks_chatgpt(peek: Probe) -> bool:
    """Is it a conversation with a mapping of nodes, or an array with one?"""
    document = peek.items or [peek.fields]
    return any(
        isinstance(item, dict)
        and isinstance(item.get("mapping"), dict)
        and ("current_node" in item or "conversation_id" in item or "create_time" in item)
        for item in document
    )


def read_chatgpt(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: of each the active path, then its other
    branches.

    Raises TranscriptError: no conversation in it; and, if *strict*, one that cannot be read, or
    a node.
    """
    notes = Reading(strict=strict)
    document = read_document(raw, notes.notes, strict=strict)
    items = split_blocks(document) if document.startswith(b"[") else [msgspec.Raw(document)]
    found: list[Conversation] = []
    for number, item in enumerate(items, 1):
        record = Record.of(item, number)
        if "mapping" not in record.fields:
            notes.refuse(number, "a conversation without a mapping", item)
            continue
        reading = Reading(strict=strict, where=f"conversation {number}, ")
        reading.notes, notes.notes = notes.notes, []
        reading.records, notes.records = notes.records, []
        found += _read_one(record, reading)
    if not found:
        raise TranscriptError("not a ChatGPT export: no conversation with a mapping in it")
    found[-1] = msgspec.structs.replace(
        found[-1],
        notes=(*found[-1].notes, *notes.notes),
        records=(*found[-1].records, *notes.records),
    )
    return tuple(found)


def _read_one(record: Record, reading: Reading) -> tuple[Conversation, ...]:
    nodes: dict[str, Record] = {}
    for number, (id, item) in enumerate(record.record("mapping").fields.items(), 1):
        node = Record.of(item, number)
        if node.fields:
            nodes[id] = node
        else:
            reading.refuse(number, "a node that is no object", item)
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
    """One node: whose it is, and what it says."""

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
        self._said: RecordedMessage | None = None
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
        """Everything that it says, as one text."""
        said = RecordedMessage(role="user", blocks=self.blocks)
        return "\n\n".join(block.text for block in said.content if isinstance(block, TextBlock))

    def said(self, blocks: list[bytes], tools: dict[str, str]) -> RecordedMessage:
        """It as a message of ours with *blocks*; *tools* are the tools' names by call. The same
        object for the same blocks, whatever path it is on."""
        known = self._said
        if known is None or known.blocks != blocks:
            known = self._said = self._new(blocks, tools)
        return known

    def _new(self, blocks: list[bytes], tools: dict[str, str]) -> RecordedMessage:
        is_reply = self.role == "assistant" and not self.is_instruction
        said = RecordedMessage(
            role="system" if self.is_instruction else "assistant" if is_reply else "user",
            blocks=blocks,
            id=self.id,
            number=self.number,
            created_at=self.message.at("create_time"),
            completed_at=self.message.at("update_time"),
            model=self.message.record("metadata").text("model_slug") if is_reply else None,
            raw=encode_json(self.message.fields),
            interrupted=is_reply and self.message.text("status") in _OPEN,
        )
        for _, written in list(_messages(said, tools))[:1]:
            said.extra = beside(self.message, written)
        return said


def _text_of_part(raw: bytes) -> str | None:
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    return Record.of(raw).text("text")


def _way(nodes: Sequence[_Node], reading: Reading, merged: set[str]) -> list[RecordedMessage]:
    """The messages of one path: calls get ids, and answers the ids of the calls they answer.

    What a tool says after its answer is more of that answer; the ids of such nodes are added to
    *merged*, and they are kept beside the messages, once.
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
            call = call_block_of_value(call_id, clean_call_id(node.recipient), node.text())
            way.append(node.said([call], tools))
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
            way.append(node.said([result_block(call_id, node.text(), is_error=is_error)], tools))
        else:
            if node.role == "user" and not node.is_instruction:
                waiting.clear()
            way.append(node.said(node.blocks, tools))
    return way


def _last_answer(said: RecordedMessage) -> str:
    """The call that *said* answers; "" if it answers none that is known."""
    return next((result.tool_use_id for result in said.results), "")


def _longer(result: bytes, text: str) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(result)
    texts = filter(None, (fields["content"], text))
    return encode_json({**fields, "content": "\n\n".join(texts)})


def _answered(waiting: list[str], tools: dict[str, str], tool: str) -> str:
    """Take the open call that *tool* answers out of those that wait; "" if none waits."""
    first = tool.partition(".")[0]
    ranks = [(tools[id] != tool, tools[id].partition(".")[0] != first) for id in waiting]
    return waiting.pop(ranks.index(min(ranks))) if ranks else ""


# Writing.


def write_chatgpt(conversations: Sequence[Conversation]) -> Files:
    """One file with all conversations, each with its branches."""
    whole = [_conversation(family) for family in families(conversations)]
    return {"conversations.json": encode_json(whole) + b"\n"}


def _conversation(family: Branching) -> dict[str, Any]:
    main = family.main
    root = f"{main.id}/root"
    mapping: dict[str, dict[str, Any]] = {}

    def add(id: str, parent: str | None, message: dict[str, Any] | None) -> str:
        mapping[id] = {"id": id, "message": message, "parent": parent, "children": []}
        if parent is not None:
            mapping[parent]["children"].append(id)
        return id

    start = last = add(root, None, None)
    if main.system:
        prompt = RecordedMessage(
            role="system", blocks=text_blocks(main.system), id=f"{main.id}/system"
        )
        start = last = add(prompt.id, root, next(_messages(prompt, {}))[1])
    ends: dict[str, str] = {}
    messages = (message for each in family.all for message in each.messages)
    tools = {call.id: call.name for message in messages for call in message.tool_calls}
    for (said,), above, is_head in written_path(family, FORMAT, folded=False):
        below = start if above is None else ends[above]
        for id, message in _messages(said, tools):
            below = add(id, below, {**message, **(said.extra if id == said.id else {})})
            if "recipient" in said.extra and id == said.id:
                for call in said.calls:
                    tools[call.id] = Record(0, said.extra).text("recipient") or call.name
        ends[said.id] = below
        last = below if is_head else last
    told = {"title": main.title, "conversation_id": main.id, "current_node": last}
    return {**kept_fields(main, FORMAT), **told, "mapping": mapping}


def _messages(said: RecordedMessage, tools: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The messages that *said* is written as, by their ids: one for its thinking, one for its
    texts, one for each call or result."""
    contents = list(_contents(said, tools))
    for at, (author, recipient, content) in enumerate(contents):
        id = f"{said.id}+{at}" if at else said.id
        yield (
            id,
            {
                "id": id,
                "author": {"role": author["role"], "name": author.get("name"), "metadata": {}},
                "create_time": said.created_at or None,
                "update_time": _changed_at(said),
                "content": content,
                "status": "in_progress" if said.interrupted else "finished_successfully",
                "weight": 1.0,
                "metadata": {"model_slug": said.model} if said.model else {},
                "recipient": recipient,
            },
        )


def _changed_at(said: RecordedMessage) -> float | None:
    return said.completed_at if said.completed_at not in (0.0, said.created_at) else None


def _contents(
    said: RecordedMessage, tools: dict[str, str]
) -> Iterator[tuple[dict[str, str], str, dict[str, Any]]]:
    author: dict[str, str] = {"role": said.role}
    texts: list[str] = []
    for block in said.content:
        match block:
            case ThinkingBlock():
                thoughts = [{"summary": "", "content": block.thinking}]
                yield author, "all", {"content_type": "thoughts", "thoughts": thoughts}
            case TextBlock():
                texts.append(block.text)
            case ToolResultBlock():
                told: dict[str, Any] = {
                    "content_type": "execution_output",
                    "text": result_text(block),
                }
                if block.is_error:
                    told["content_type"] = "system_error"
                name = tools.get(block.tool_use_id, "")
                yield {"role": "tool", **({"name": name} if name else {})}, "all", told
    calls = said.calls
    if texts or not (calls or said.blocks):
        yield author, "all", {"content_type": "text", "parts": texts}
    for call in calls:
        code = {"content_type": "code", "language": "unknown", "text": _code(call)}
        yield author, tools.get(call.id, call.name), code


def _code(call: ToolUseBlock) -> str:
    """A call's input as it was said: as JSON, unless it was no object."""
    match call.input:
        case {"arguments": str(text), **others} if not others:
            return text
    return arguments_of(call)
