"""CodeBuddy's SQLite file: one row for each message, of all agents and sessions in one table.

The role is in ``message_type``. Rows are ordered by time and, within the same time, by id. Times
are ISO 8601 or milliseconds. The database is loaded into memory; the file itself is never opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import clean_text, encode_json

from ..common.assembly import assemble
from ..common.conversation import Conversation, Note
from ..common.format import Probe, only_file
from ..common.jsonl import clip
from ..common.message_list import SystemTexts
from ..common.recorded_message import RecordedMessage, text_blocks
from ..common.times import seconds_of

if TYPE_CHECKING:
    import sqlite3

__all__ = ["FORMAT", "looks_codebuddy", "read_codebuddy"]

FORMAT = "codebuddy"

_MAGIC = b"SQLite format 3\x00"
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "bot": "assistant",
          "model": "assistant", "ai": "assistant"}  # fmt: skip
_MAX_ROWS = 1_000_000
_COLUMNS = ("id", "agent_id", "message_content", "message_type", "timestamp", "session_id",
            "metadata")  # fmt: skip


def looks_codebuddy(probe: Probe) -> bool:
    """Is the file a database that contains CodeBuddy's table?"""
    raw = only_file(probe.files)
    return raw is not None and raw.startswith(_MAGIC) and b"chat_history" in raw


def read_codebuddy(raw: bytes, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a database's bytes: one for each agent and session.

    Raises TranscriptError if *raw* is not a database, is corrupt, or lacks the table. With
    *strict*, also for a row that cannot be read.
    """
    import sqlite3  # a megabyte, which who reads no such file saves

    if not raw.startswith(_MAGIC):
        raise TranscriptError("not a SQLite database")
    try:
        with _InMemory(raw) as memory:
            return tuple(_read_all(memory.database, strict))
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeDecodeError) as error:
        raise TranscriptError(f"a database that cannot be read: {clip(str(error))}") from error


class _InMemory:
    def __init__(self, raw: bytes) -> None:
        import sqlite3

        self.database = sqlite3.connect(":memory:")
        # SQLite cannot read a database in WAL mode from memory. The header names the mode, so it is
        # changed in the copy.
        self.database.deserialize(raw[:18] + b"\x01\x01" + raw[20:])
        self.database.text_factory = lambda held: held.decode("utf-8", "replace")

    def __enter__(self) -> _InMemory:
        self.database.execute("PRAGMA trusted_schema=OFF")
        self.database.execute("PRAGMA query_only=ON")
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()


def _read_all(database: sqlite3.Connection, strict: bool) -> Iterator[Conversation]:
    tables = _tables(database)
    if "chat_history" not in tables:
        raise TranscriptError("not CodeBuddy's: there is no table chat_history")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in _rows(database, tables["chat_history"]):
        agent, session = _text(row.get("agent_id")), _text(row.get("session_id"))
        groups.setdefault((agent, session), []).append(row)
    if not groups:
        raise TranscriptError("the table chat_history is empty")
    titles, summaries = _titles(database, tables), _summaries(database, tables)
    named: set[str] = set()
    for (agent, session), rows in groups.items():
        conversation = _read_one(agent, session, rows, strict)
        id = conversation.id
        while conversation.id in named:
            id = f"{agent}/{id}"
            conversation = msgspec.structs.replace(conversation, id=id)
        named.add(id)
        yield msgspec.structs.replace(
            conversation,
            title=titles.get(session, ""),
            summary=summaries.get(agent, ""),
            labels={"agent": agent} if agent else {},
        )


def _tables(database: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table. Views are left out, and no generated column is computed."""
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    names = [_text(row[0]) for row in rows]
    known = {"chat_history", "chat_sessions", "chat_summaries"}
    return {
        name: [_text(row[1]) for row in database.execute(f"PRAGMA table_info({name})")]
        for name in names
        if name in known
    }


def _rows(database: sqlite3.Connection, columns: Sequence[str]) -> list[dict[str, Any]]:
    missing = {"message_content", "message_type"} - set(columns)
    if missing:
        raise TranscriptError(f"chat_history has no column {min(missing)}")
    quoted = ", ".join(f'"{name}"' for name in columns if '"' not in name)
    names = [name for name in columns if '"' not in name]
    fetched = database.execute(f"SELECT {quoted} FROM chat_history").fetchmany(_MAX_ROWS)
    rows = [dict(zip(names, row, strict=True)) for row in fetched]
    # Not sorted in SQL: one table can contain times of both kinds, and many within one second.
    return sorted(rows, key=lambda row: (seconds_of(row.get("timestamp")), _number(row.get("id"))))


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0.0


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _titles(database: sqlite3.Connection, tables: dict[str, list[str]]) -> dict[str, str]:
    if not {"session_id", "title"} <= set(tables.get("chat_sessions", ())):
        return {}
    rows = database.execute("SELECT session_id, title FROM chat_sessions").fetchmany(_MAX_ROWS)
    return {_text(session): _text(title) for session, title in rows}


def _summaries(database: sqlite3.Connection, tables: dict[str, list[str]]) -> dict[str, str]:
    """The latest summary of each agent."""
    if not {"agent_id", "summary", "timestamp"} <= set(tables.get("chat_summaries", ())):
        return {}
    rows = database.execute("SELECT agent_id, summary, timestamp FROM chat_summaries")
    fetched = sorted(rows.fetchmany(_MAX_ROWS), key=lambda row: seconds_of(row[2]))
    return {_text(agent): _text(summary) for agent, summary, _ in fetched}


def _read_one(
    agent: str, session: str, rows: Sequence[dict[str, Any]], strict: bool
) -> Conversation:
    notes: list[Note] = []
    messages: list[RecordedMessage] = []
    system = SystemTexts()
    id = session or agent or FORMAT
    for number, row in enumerate(rows, 1):
        kind = _text(row.get("message_type")).lower()
        text = clean_text(_text(row.get("message_content")))
        role = _ROLES.get(kind)
        if kind == "system":
            raw = encode_json({"role": "system", "content": text})
            notes.append(system.add(len(messages), raw, number))
        elif role is not None:
            messages.append(_message(row, number, id, text, is_reply=role == "assistant"))
        elif strict:
            raise TranscriptError(f"row {number}: unknown type {clip(kind)!r}")
        else:
            detail = f"unknown type {clip(kind)!r}"
            notes.append(Note(number, "bad_message", detail, visible=True))
    return assemble(
        messages, session=id, format=FORMAT, notes=notes, system=system.text, extra=system.extra()
    )


def _message(
    row: dict[str, Any], number: int, session: str, text: str, *, is_reply: bool
) -> RecordedMessage:
    metadata = _text(row.get("metadata"))
    extra: dict[str, Any] = {
        name: _kept(value)
        for name, value in row.items()
        if name not in _COLUMNS and value is not None
    }
    if metadata:
        extra["metadata"] = clean_text(metadata)
    rowid = _text(row.get("id"))
    return RecordedMessage(
        number=number,
        role="assistant" if is_reply else "user",
        blocks=text_blocks(text),
        id=f"{session}#{rowid}" if rowid else "",
        created_at=seconds_of(row.get("timestamp")),
        extra=extra,
    )


def _kept(value: Any) -> Any:
    return value if isinstance(value, int | float) else clean_text(_text(value))
