"""LobeChat's rows: an array of messages, or an export with tables (``messages``, ``topics``,
``messagePlugins``, ``threads``), whose columns are in camel case or in snake case.

The rows of one topic form a tree. A tool's answer is a row. The reply to parallel answers hangs off
the first of them, so all answers of a reply are read with it, in the order of its calls. At a fork
the active branch counts, else the first one with descendants, else the first one. Several roots
follow each other. A compressed group becomes the ``summary``, and its pinned messages stay. The
format cannot store a system prompt. A result of several blocks becomes one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import ThinkingBlock, encode_json, split_blocks
from llmsession.turns.usage import Usage

from ..common.chat_records import Reading, beside, id_of, kept_fields, read_usage, without_metadata
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
    summary_mark,
    text_blocks,
    text_of,
    thinking_block,
    thinking_of,
)
from ..common.times import milliseconds
from ..common.trees import Branching, families, paths, read_paths, written_path

__all__ = ["FORMAT", "looks_lobechat", "read_lobechat", "write_lobechat"]

FORMAT = "lobechat"

_ROLES = ("user", "assistant", "system", "tool")
_GROUP = "compressedGroup"
_LINKS = ("id", "parentId", "parent_id", "topicId", "topic_id")
_TELLING = {"parentId", "parent_id", "topicId", "topic_id"}
_TABLES = ("data", "state")
_BETWEEN = "____"
"""Separates a plugin's identifier from the name of its function, in the tool names that the model
sees.
"""


def looks_lobechat(probe: Probe) -> bool:
    """Are there rows with ids, roles, and a link to a topic or a parent?"""
    rows = _table(probe.fields, "messages") if probe.fields else probe.items
    return any(_is_row(row) for row in rows)


def _table(fields: dict[str, Any], name: str) -> list[Any]:
    inner = [fields, *(fields.get(item) for item in _TABLES)]
    tables = (item.get(name) for item in inner if isinstance(item, dict))
    return next((table for table in tables if isinstance(table, list)), [])


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or "id" not in row:
        return False
    return row.get("role") in (*_ROLES, _GROUP) and bool(row.keys() & _TELLING)


def read_lobechat(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes: for each topic the active path, then its other
    branches and its threads.

    Raises TranscriptError if there are no rows. With *strict*, also for a row that cannot be read.
    """
    reading = Reading(strict=strict)
    document = read_document(raw, reading.notes, strict=strict)
    whole = Record.of(document)
    inner = [whole, *(whole.record(name) for name in _TABLES)]
    home = next(
        (message for message in inner if (message.raw("messages") or b"")[:1] == b"["), None
    )
    items = split_blocks(document) if document.startswith(b"[") else []
    if home is not None:
        items = home.items("messages")
    tables = _Tables(home or whole)
    topics: dict[str, list[_Row]] = {}
    for number, item in enumerate(items, 1):
        row = _Row(Record.of(item, number), tables)
        if row.id and row.role in (*_ROLES, _GROUP):
            topics.setdefault(row.topic, []).append(row)
        else:
            reading.refuse(number, "a row without an id and a known role", item)
    if not topics:
        raise TranscriptError("not LobeChat's rows: no message in it")
    conversations: list[Conversation] = []
    for topic, rows in topics.items():
        conversations += _Topic(topic, rows, tables, reading).read()
        reading = Reading(strict=strict)
    return tuple(conversations)


class _Tables:
    """The tables beside the messages: topics, threads, and plugins by their message's id."""

    def __init__(self, home: Record) -> None:
        self.topics = {id_of(row, "id"): row for row in home.records("topics")}
        plugins = home.records("messagePlugins") or home.records("message_plugins")
        self.plugins = {id_of(row, "id"): row for row in plugins}
        self.threads = {id_of(row, "id"): row for row in home.records("threads")}


class _Row:
    """One row, whose columns may be in either case."""

    def __init__(self, record: Record, tables: _Tables) -> None:
        self.record = record
        self.plugin = tables.plugins.get(id_of(record, "id")) or record.record("plugin")
        self.id = id_of(record, "id")
        self.role = record.text("role") or ""
        self.parent = id_of(record, "parentId", "parent_id")
        self.thread = id_of(record, "threadId", "thread_id")
        session = id_of(record, "sessionId", "session_id", "agentId", "agent_id")
        self.topic = id_of(record, "topicId", "topic_id") or session or FORMAT
        self.at = record.at("createdAt", "created_at")

    @property
    def answers(self) -> str:
        """The id of the call that this row answers."""
        return id_of(self.record, "tool_call_id", "toolCallId") or id_of(
            self.plugin, "tool_call_id", "toolCallId"
        )

    @property
    def calls(self) -> list[str]:
        return [id_of(tool, "id") for tool in self.record.records("tools")]


class _Topic:
    """The rows of one topic while they become conversations."""

    def __init__(self, topic: str, rows: list[_Row], tables: _Tables, reading: Reading) -> None:
        self.topic = topic
        self.tables = tables
        self.reading = reading
        self.rows = {row.id: row for row in sorted(rows, key=lambda row: row.at)}
        self.alias = {
            last: row.id
            for row in self.rows.values()
            if row.role == _GROUP and (last := id_of(row.record, "lastMessageId"))
        }
        """A compressed group is placed where its last message was."""
        self.callers = {call: row.id for row in reversed(self.rows.values()) for call in row.calls}
        self.answers: dict[str, list[_Row]] = {}
        self.owner = {
            row.id: owner for row in self.rows.values() if (owner := self._owner(row)) is not None
        }
        for id, owner in self.owner.items():
            self.answers.setdefault(owner, []).append(self.rows[id])

    def _owner(self, row: _Row) -> str | None:
        """The assistant's row that a tool's row belongs to, found by its parent or by its call."""
        if row.role != "tool":
            return None
        parent = self.rows.get(row.parent)
        if parent is not None and row.answers in parent.calls:
            return parent.id
        if row.answers in self.callers:
            return self.callers[row.answers]
        return parent.id if parent is not None and parent.role == "assistant" else None

    def read(self) -> tuple[Conversation, ...]:
        parents = {id: self._parent(row) for id, row in self.rows.items() if id not in self.owner}
        main = [id for id in parents if not self.rows[id].thread]
        children: dict[str | None, list[str]] = {}
        for id in main:
            parent = parents[id] if parents[id] in parents else None
            children.setdefault(parent, []).append(id)
        head: str | None = None
        for root in children.get(None, []):
            # Several roots are one conversation: they are rows from before links existed, or rows
            # whose parent was deleted.
            if parents[root] is None:
                parents[root] = head
            elif parents[root] not in parents:
                detail = f"{parents[root]}: stands behind the row before"
                self.reading.note(self.rows[root].record.number, "missing_parent", detail)
                parents[root] = head
            head = self._active_leaf(root, children)
        ways = paths(parents, head, self.reading) or [[]]
        messages = {id: self._messages(self.rows[id]) for id in parents}
        topic = self.tables.topics.get(self.topic, Record.of(None))
        summary = topic.text("historySummary") or topic.text("history_summary") or ""
        file_fields = topic.rest({"id", "title", "historySummary", "history_summary"})
        return read_paths(
            [[message for id in way for message in messages[id]] for way in ways],
            self.reading,
            session=self.topic,
            format=FORMAT,
            title=topic.text("title") or "",
            summary=summary,
            kept=file_fields,
        )

    def _parent(self, row: _Row) -> str | None:
        parent = row.parent
        if not parent and row.thread in self.tables.threads:
            thread = self.tables.threads[row.thread]
            parent = id_of(thread, "sourceMessageId", "source_message_id")
        parent = self.owner.get(parent, parent)
        if parent not in self.rows:
            parent = self.alias.get(parent, parent)
        return parent or None

    def _active_leaf(self, root: str, children: dict[str | None, list[str]]) -> str:
        node, seen = root, {root}
        while below := [child for child in children.get(node, []) if child not in seen]:
            branch = self.rows[node].record.record("metadata").number_of("activeBranchIndex")
            grown = [child for child in below if child in children]
            if branch is not None and 0 <= branch < len(below) and branch == int(branch):
                node = below[int(branch)]
            else:
                node = (grown or below)[0]
            seen.add(node)
        return node

    def _messages(self, row: _Row) -> list[RecordedMessage]:
        if row.role == _GROUP:
            raw = encode_json(row.record.fields)
            self.reading.leave_out(row.record.number, "compressed_group", raw, "is the summary")
            pinned = row.record.records("pinnedMessages")
            unknown = [item for item in pinned if id_of(item, "id") not in self.rows]
            mark = summary_mark(row.record.text("content") or "")
            return [*mark, *(self._one(_Row(item, self.tables)) for item in unknown)]
        answers = self.answers.get(row.id, [])
        return [self._one(row), *(self._one(item) for item in answers)]

    def _one(self, row: _Row) -> RecordedMessage:
        record = row.record
        is_reply = row.role == "assistant"
        error = record.value("error") or record.value("pluginError")
        message = RecordedMessage(
            role="assistant" if is_reply else "system" if row.role == "system" else "user",
            blocks=_blocks(row),
            id=row.id,
            number=record.number,
            created_at=row.at,
            model=record.text("model") if is_reply else None,
            provider=record.text("provider") if is_reply else None,
            usage=_usage(record) if is_reply else None,
            error=encode_json(error).decode() if error and is_reply else None,
            raw=encode_json(record.fields),
        )
        rest = without_metadata(record, {"activeBranchIndex"})
        message.extra = beside(rest, next(iter(_rows(message))), without=_LINKS)
        if row.plugin.fields:
            message.extra["plugin"] = msgspec.Raw(encode_json(row.plugin.fields))
        return message


def _usage(record: Record) -> Usage | None:
    metadata = record.record("metadata")
    return read_usage(metadata.record("usage")) or read_usage(metadata)


def _blocks(row: _Row) -> list[bytes]:
    record = row.record
    text = record.text("content") or ""
    if row.role == "tool":
        failed = record.value("pluginError") or row.plugin.value("error")
        return [result_block(row.answers, text, is_error=bool(failed))]
    blocks = text_blocks(text)
    if row.role != "assistant":
        return blocks
    reasoning = record.record("reasoning")
    thought = reasoning.text("content")
    if thought:
        blocks.insert(0, thinking_block(thought, reasoning.text("signature") or ""))
    return blocks + [
        _call(tool, row.id, index) for index, tool in enumerate(record.records("tools"))
    ]


def _call(tool: Record, row_id: str, index: int) -> bytes:
    plugin = tool.text("identifier")
    name = tool.text("apiName") or tool.text("api_name") or "tool"
    name = f"{plugin}{_BETWEEN}{name}" if plugin else name
    return call_block_of_value(
        id_of(tool, "id") or f"call_{row_id}_{index}", name, tool.value("arguments")
    )


# Writing.


def write_lobechat(conversations: Sequence[Conversation]) -> Files:
    """One file with two tables: all messages, and a topic for each conversation."""
    messages: list[dict[str, Any]] = []
    topics: list[dict[str, Any]] = []
    for family in families(conversations):
        main = family.main
        summary = {"historySummary": main.summary} if main.summary else {}
        topics.append({**kept_fields(main, FORMAT), "id": main.id, "title": main.title, **summary})
        messages += _topic_rows(family)
    return {"messages.json": encode_json({"messages": messages, "topics": topics}) + b"\n"}


def _topic_rows(family: Branching) -> list[dict[str, Any]]:
    """The rows of a conversation and its branches. A path that shares no message with the first one
    becomes a topic of its own, because several roots of one topic would follow each other.
    """
    links = _Links(family.main.id)
    rows: list[dict[str, Any]] = []
    times: dict[str, float] = {}
    for (message,), above, _ in written_path(family, FORMAT, folded=False):
        topic = links.topic_of(message.id, above)
        for index, row in enumerate(_rows(message)):
            id = f"{message.id}+{index}" if index else message.id
            parent = links.add(message.id, id, above, is_answer=row["role"] == "tool")
            extra = {} if index else message.extra
            times[id] = message.created_at
            rows.append({**row, **extra, "id": id, "parentId": parent, "topicId": topic})
    active = {message.id for message in family.main.messages}
    for row in rows:
        # In the order in which they are read.
        forks = sorted(links.below.get(row["id"], []), key=lambda id: times[id])
        chosen = [index for index, id in enumerate(forks) if id in active]
        if len(forks) > 1 and chosen:
            metadata = Record.of(encode_json(row.get("metadata"))).fields
            row["metadata"] = {**metadata, "activeBranchIndex": chosen[0]}
    return rows


class _Links:
    """The parent of each row: an answer hangs off its assistant's row, and the next row off the
    first answer.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.below: dict[str, list[str]] = {}
        self._topics: dict[str, str] = {}
        self._next: dict[str, str] = {}
        """For each message, the row that the next message hangs off."""
        self._owner: dict[str, str] = {}
        """For each message or row of answers, the row of its assistant."""

    def topic_of(self, message: str, above: str | None) -> str:
        first = f"{self.topic}#{message}" if self._topics else self.topic
        return self._topics.setdefault(message, first if above is None else self._topics[above])

    def add(self, message: str, row: str, above: str | None, *, is_answer: bool) -> str | None:
        """The parent of *row*, which is one of the rows of the message *message*."""
        parent = self._next.get(message) or (None if above is None else self._next[above])
        if is_answer and above is not None:
            owner = self._owner.get(above, self._next[above])
            self._owner[message] = self._owner[row] = owner
            if message not in self._next:
                self._next[message] = self._next[above] if above in self._owner else row
            return owner
        self._next[message] = row
        self._owner.pop(message, None)
        if parent is not None:
            self.below.setdefault(self._owner.get(parent, parent), []).append(row)
        return parent


def _rows(message: RecordedMessage) -> Iterator[dict[str, Any]]:
    """The rows that *message* is written as: one for each result, and one for the rest."""
    times = {"createdAt": milliseconds(message.created_at)} if message.created_at else {}
    for result in message.results:
        answer = {
            "role": "tool",
            "tool_call_id": result.tool_use_id,
            "content": result_text(result),
        }
        yield answer | times | ({"pluginError": {"type": "error"}} if result.is_error else {})
    if message.results and not text_of([message]):
        return
    row: dict[str, Any] = {"role": message.role, "content": text_of([message]), **times}
    if message.role == "assistant":
        row |= _reply_columns(message)
    yield row


def _reply_columns(message: RecordedMessage) -> dict[str, Any]:
    row: dict[str, Any] = {}
    thought = thinking_of([message])
    if thought:
        blocks = (block for block in message.content if isinstance(block, ThinkingBlock))
        signature = next(filter(None, (block.signature for block in blocks)), None)
        row["reasoning"] = {"content": thought} | ({"signature": signature} if signature else {})
    if message.calls:
        row["tools"] = [
            {
                "id": call.id,
                "identifier": call.name.rpartition(_BETWEEN)[0],
                "apiName": call.name.rpartition(_BETWEEN)[2],
                "arguments": arguments_of(call),
                "type": "default",
            }
            for call in message.calls
        ]
    row |= {name: value for name in ("model", "provider") if (value := getattr(message, name))}
    if message.usage is not None:
        row["metadata"] = {
            "totalInputTokens": message.usage.input_tokens + message.usage.cache_read_tokens,
            "inputCachedTokens": message.usage.cache_read_tokens,
            "totalOutputTokens": message.usage.output_tokens,
        }
    return row
