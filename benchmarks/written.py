"""What a store writes for a turn, beside the bytes of the turn's records.

A turn here is the two records of a question and an answer, 1.2 kB, in two commits, as a session
makes them: the first marks the session as unfinished, and the second takes the mark away. All
sessions append at once and wait for each other, so groups are as large as there are sessions. The
bytes hardly depend on the machine.

For SQLite they are what the process gives to the system to write: the WAL, and the pages that
checkpoints copy from it. For PostgreSQL they are those of its WAL, without the pages that it writes
as a whole after a checkpoint of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.durability_postgres import server_for_benchmarks
from benchmarks.report import Row
from llmsession import SqliteStore
from llmsession.store import Appended, AppendResult, Batch, Store, this_process
from llmsession.store.postgres.store import PostgresStore

__all__ = ["run"]

SESSIONS = (1, 50, 1_000)
MIN_TURNS, APPENDS = 20, 2_000
"""Each session makes so many turns, or as many as make so many appends of all sessions."""
QUESTION = b'{"kind":"turn.accepted","text":"' + b"what it was about " * 14 + b'"}'
ANSWER = b'{"kind":"turn.committed","text":"' + b"it was about this " * 48 + b'"}'
TURN_BYTES = len(QUESTION) + len(ANSWER)
MAX_SQLITE, MAX_POSTGRES = 12.0, 1.6
IO = Path("/proc/self/io")


def _written() -> int:
    """Bytes that this process has written so far."""
    lines = dict(line.split(": ") for line in IO.read_text().splitlines())
    return int(lines["wchar"])


async def _append(store: Store, session: str, head: int, body: bytes, is_open: bool) -> None:
    answered: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    store.append(Batch(session, 1, head, (body,), 1.0, unfinished=is_open), answered.set_result)
    assert isinstance(await answered, Appended)


async def _bytes_of_a_turn(store: Store, sessions: int, count: Callable[[], int]) -> float:
    names = [f"{at * 7_919 % 10_007:05d}-session" for at in range(sessions)]
    await asyncio.gather(*[store.create(name, this_process("benchmark")) for name in names])
    turns = max(MIN_TURNS, APPENDS // sessions // 2)
    before = 0
    for turn in range(-2, turns):  # the first ones fill the first page of each session
        if turn == 0:
            before = count()
        for at, body in enumerate((QUESTION, ANSWER)):
            head = 2 * (turn + 2) + at
            await asyncio.gather(*[_append(store, name, head, body, at == 0) for name in names])
    await store.aclose()
    return (count() - before) / turns / sessions


def _row(kind: str, sessions: int, written: float, bound: float) -> Row:
    return Row(
        name=f"bytes that {kind} writes for a turn, {sessions:,} sessions, beside its records",
        ours=written,
        bare=TURN_BYTES,
        unit="B",
        bound=bound,
    )


def run() -> list[Row]:
    rows = []
    for sessions in SESSIONS if IO.exists() else ():
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteStore(f"{folder}/s.db")
            written = asyncio.run(_bytes_of_a_turn(store, sessions, _written))
        rows.append(_row("SQLite", sessions, written, MAX_SQLITE))
    with server_for_benchmarks() as server:

        def wal_bytes() -> int:
            [(position,)] = server.sql("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
            return int(position)

        for sessions in SESSIONS:
            tables = PostgresStore(server.dsn, schema=f"written{sessions}")
            written = asyncio.run(_bytes_of_a_turn(tables, sessions, wal_bytes))
            rows.append(_row("PostgreSQL", sessions, written, MAX_POSTGRES))
    return rows
