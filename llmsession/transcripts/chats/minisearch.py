"""MiniSearch's browser database, as tables or as a dump that Dexie wrote.

A conversation is the chat history of one search run, ordered by time. Without a chat history it is
the search's own chat, else its query and the model's answer. Rows of other tables are kept with the
conversation that they belong to. The format cannot store a system prompt, calls and their results,
thinking, usage, a summary, and branches.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json

from ..common.assembly import CHAT, assemble
from ..common.chat_records import Reading, id_of
from ..common.conversation import Conversation
from ..common.document import read_document
from ..common.format import Probe
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, text_blocks

__all__ = ["FORMAT", "looks_minisearch", "read_minisearch"]

FORMAT = "minisearch"

_TABLES = ("searches", "llmResponses", "chatHistory")
_HELD = ("id", "conversationId", "role", "content", "timestamp")
"""Fields of a row that the message holds."""


def looks_minisearch(probe: Probe) -> bool:
    """Are two of its tables there, at the top level or in a dump?"""
    fields = probe.fields
    inner = fields.get("data")
    dumped = inner.get("data") if isinstance(inner, dict) else None
    names = set(fields)
    if isinstance(dumped, list):
        names = {str(table.get("tableName")) for table in dumped if isinstance(table, dict)}
    return len(names & set(_TABLES)) > 1 or "chatHistory" in names


def read_minisearch(raw: bytes, *, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes, in the order of their first row.

    Raises TranscriptError if none of the tables is there. With *strict*, also for a row that cannot
    be read.
    """
    reading = Reading(strict=strict)
    file = Record.of(read_document(raw, reading.notes, strict=strict))
    tables = _tables(file)
    if not tables.keys() & set(_TABLES):
        raise TranscriptError("not MiniSearch's database: none of its tables")
    runs: dict[str, _Run] = {}
    for name in _TABLES:
        for number, item in enumerate(tables.get(name, []), 1):
            row = Record.of(item, number)
            run_id = id_of(row, "conversationId" if name == "chatHistory" else "searchRunId")
            if run_id:
                runs.setdefault(run_id, _Run(run_id)).add(name, row)
            else:
                reading.refuse(number, f"a row of {name} without a run", item)
    conversations: list[Conversation] = []
    for run in runs.values():
        conversations.append(run.conversation(reading))
        reading = Reading(strict=strict)
    if not conversations:
        raise TranscriptError("MiniSearch's database is empty")
    return tuple(conversations)


def _tables(file: Record) -> dict[str, list[msgspec.Raw]]:
    dumped = file.record("data").records("data")
    if dumped:
        return {table.text("tableName") or "": table.items("rows") for table in dumped}
    return {name: file.items(name) for name in _TABLES if name in file.fields}


class _Run:
    """The rows of one search run."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.rows: dict[str, list[Record]] = {name: [] for name in _TABLES}

    def add(self, table: str, row: Record) -> None:
        self.rows[table].append(row)

    def conversation(self, reading: Reading) -> Conversation:
        searches = self.rows["searches"]
        tables = {name: [row.fields for row in self.rows[name]] for name in _TABLES[:2]}
        return assemble(
            self._messages(reading),
            rules=CHAT,
            notes=reading.notes,
            records=reading.records,
            session=self.id,
            format=FORMAT,
            title=(searches[0].text("query") or "") if searches else "",
            extra={FORMAT: msgspec.Raw(encode_json(tables))},
        )

    def _messages(self, reading: Reading) -> list[RecordedMessage]:
        rows = sorted(self.rows["chatHistory"], key=lambda row: row.at("timestamp"))
        chats = [rows, *(search.records("chatMessages") for search in self.rows["searches"])]
        for chat in chats:
            messages = [message for row in chat for message in _row_messages(row, reading)]
            if any(message.role == "user" for message in messages):
                return messages
        return self._asked_and_answered()

    def _asked_and_answered(self) -> list[RecordedMessage]:
        search = next(iter(self.rows["searches"]), Record.of(None))
        answer = next(iter(self.rows["llmResponses"]), Record.of(None))
        query = search.text("query") or answer.text("prompt") or ""
        reply = answer.text("response") or search.text("llmResponse") or ""
        asked_at = search.at("timestamp") or answer.at("timestamp")
        question = RecordedMessage(role="user", blocks=text_blocks(query), created_at=asked_at)
        model = answer.text("model")
        replied_at = answer.at("timestamp") or asked_at
        answered = RecordedMessage(
            role="assistant", blocks=text_blocks(reply), created_at=replied_at, model=model
        )
        return [message for message in (question, answered) if message.blocks]


def _row_messages(row: Record, reading: Reading) -> Iterator[RecordedMessage]:
    role, text = row.text("role"), row.text("content")
    if role not in ("user", "assistant") or text is None:
        reading.refuse(row.number, "a row without a role and text", encode_json(row.fields))
        return
    yield RecordedMessage(
        role="user" if role == "user" else "assistant",
        blocks=text_blocks(text),
        id=id_of(row, "id"),
        number=row.number,
        created_at=row.at("timestamp"),
        extra=row.rest(_HELD),
        raw=encode_json(row.fields),
    )
