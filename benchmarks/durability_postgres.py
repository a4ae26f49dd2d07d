"""Appending to a PostgreSQL store, durably, beside the bare driver that only inserts.

The bare side has the same server, the same writers, the same bytes, the same way into a thread
with an event loop, the same group commit and the same way back; its one statement inserts rows
under their key (session, seq). It has no sessions, no fence, no owners and no large blocks. A
second bare side has what makes a log of rows: a row of the session whose head each append moves.
Reading a log is measured in the CPU of this process.

The server is a new one, its settings as they come (fsync, synchronous_commit), on a Unix socket.
Before latencies are measured it makes a checkpoint, as a server does now and then: only after one
it uses WAL files again, and until then it fills 16 MiB with zeros while every commit waits.
With PEER_PYTHON set to a Python that has ``langgraph-checkpoint-postgres`` and ``psycopg``, its
checkpointer is measured on the same server, too.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import asyncpg  # type: ignore[import-untyped]  # it has no types of its own

from benchmarks.durability import (
    BODY,
    MAX_P99,
    MIN_SHARE,
    Appending,
    Done,
    appends_a_second,
    latencies,
)
from benchmarks.report import Row, percentile
from llmsession.store import Appended, Batch, this_process
from llmsession.store.caller import Caller
from llmsession.store.postgres.store import PostgresStore
from llmsession.store.postgres.thread import LoopThread
from llmsession.store.writer_thread import deliver
from tests.store.postgres.server import NoServer, PostgresServer, running_server

__all__ = ["run", "server_for_benchmarks"]

WRITERS, PACED = (1, 50, 1_000, 10_000), (50, 1_000)
ROUNDS = 5
MESSAGES, MAX_READING = 2_000, 1.5
PEER = Path(__file__).with_name("peer_postgres.py")

INSERT = """
INSERT INTO {s}.record SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])
RETURNING session
"""
FENCED = """
WITH batch AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS b(session, seq, body)
), moved AS (
    UPDATE {s}.session s SET head = s.head + 1 FROM batch b
     WHERE s.id = b.session AND s.epoch = 1 AND s.head = b.seq - 1
    RETURNING b.session, b.seq, b.body
), written AS (
    INSERT INTO {s}.record SELECT * FROM moved
)
SELECT session FROM moved
"""


class Ours:
    """The store, in a schema of its own."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._store = PostgresStore(dsn, schema=schema)

    async def open(self, writers: int) -> None:
        owner = this_process("benchmark")
        async with anyio.create_task_group() as group:
            for at in range(writers):
                group.start_soon(self._store.create, f"session {at}", owner)

    def append(self, at: int, head: int, done: Done) -> None:
        self._store.append(Batch(f"session {at}", 1, head, (BODY,), 1.0), done)

    async def close(self) -> None:
        await self._store.aclose()


Item: TypeAlias = tuple[int, int, Done, Caller]


class Bare:
    """One connection in a thread of its own; *statement* writes what waits."""

    def __init__(self, dsn: str, schema: str, statement: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._statement = statement.format(s=schema)
        self._waiting: deque[Item] = deque()
        self._asleep = False
        self._thread = LoopThread("bare")

    async def open(self, writers: int) -> None:
        self._wake = asyncio.Event()
        await self._thread.run(lambda: self._begin(writers))

    async def _begin(self, writers: int) -> None:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(f"CREATE SCHEMA {self._schema}")
        await connection.execute(
            f"CREATE TABLE {self._schema}.record"
            " (session bigint, seq bigint, body bytea, PRIMARY KEY (session, seq));"
            f"CREATE TABLE {self._schema}.session"
            " (id bigint PRIMARY KEY, epoch bigint, head bigint) WITH (fillfactor = 70);"
            f"INSERT INTO {self._schema}.session"
            f" SELECT id, 1, 0 FROM generate_series(0, {writers - 1}) AS id"
        )
        self._writing = asyncio.create_task(self._write(connection))

    def append(self, at: int, head: int, done: Done) -> None:
        self._waiting.append((at, head, done, Caller()))
        if self._asleep:
            self._asleep = False
            self._thread.soon(self._wake.set)

    async def _write(self, connection: Any) -> None:
        while True:
            self._wake.clear()
            self._asleep = True
            items = [self._waiting.popleft() for _ in range(min(2000, len(self._waiting)))]
            if not items:
                await self._wake.wait()
                continue
            written = await connection.fetch(
                self._statement,
                [at for at, _, _, _ in items],
                [head + 1 for _, head, _, _ in items],
                [BODY] * len(items),
            )
            assert len(written) == len(items)
            deliver([(caller, done, Appended(head + 1)) for _, head, done, caller in items])

    async def close(self) -> None:
        await self._thread.run(self._end)
        await self._thread.end()

    async def _end(self) -> None:
        self._writing.cancel()


class Stage:
    """New tables for each measurement, on one server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._made = 0

    def _schema(self) -> str:
        self._made += 1
        return f"bench{self._made}"

    def ours(self) -> Ours:
        return Ours(self._server.dsn, self._schema())

    def bare(self, statement: str) -> Bare:
        return Bare(self._server.dsn, self._schema(), statement)

    def rows(self, writers: int) -> list[Row]:
        rounds = [
            (
                asyncio.run(appends_a_second(self.ours(), writers)),
                asyncio.run(appends_a_second(self.bare(INSERT), writers)),
                asyncio.run(appends_a_second(self.bare(FENCED), writers)),
            )
            for _ in range(ROUNDS)
        ]
        ours, bare, fenced = (statistics.median(values) for values in zip(*rounds, strict=True))
        name = f"durable append to PostgreSQL, {writers:,} sessions"
        return [
            Row(
                name=name,
                ours=1e6 / ours,
                bare=1e6 / bare,
                unit="us",
                ratios=tuple(b / a for a, b, _ in rounds),
                bound=1 / MIN_SHARE,
                note=self._peer() if writers == PACED[0] else "",
            ),
            Row(
                name=f"{name}, beside a bare driver that moves a head",
                ours=1e6 / ours,
                bare=1e6 / fenced,
                unit="us",
                ratios=tuple(b / a for a, _, b in rounds),
            ),
            *([self._spread_row(name, writers, ours / 2)] if writers in PACED else []),
        ]

    def _spread_row(self, name: str, writers: int, rate: float) -> Row:
        """How far the slowest percent is from the median, at *rate* appends a second."""
        spreads = [self._spread(self.ours(), writers, rate) for _ in range(ROUNDS)]
        middle, p99 = sorted(spreads, key=lambda spread: spread[1] / spread[0])[ROUNDS // 2]
        others = self._spread(self.bare(INSERT), writers, rate)
        return Row(
            name=f"{name}, p99 beside the median, at half that load",
            ours=p99 * 1e3,
            bare=middle * 1e3,
            unit="ms",
            ratios=tuple(late / usual for usual, late in spreads),
            bound=MAX_P99,
            note="the bare driver at the same rate: p99 {1:.4g} ms, median {0:.4g} ms".format(
                *(value * 1e3 for value in others)
            ),
        )

    def _spread(self, side: Appending, writers: int, rate: float) -> tuple[float, float]:
        """The median and the 99th percentile of the latency."""
        self._server.sql("CHECKPOINT")
        took = asyncio.run(latencies(side, writers, rate))
        return statistics.median(took), percentile(took, 0.99)

    def _peer(self) -> str:
        python = os.environ.get("PEER_PYTHON")
        if not python:
            return "langgraph's checkpointer: n/a; PEER_PYTHON names no Python that has it"
        found = subprocess.run(
            [python, "-P", PEER, self._server.dsn], capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        if found.returncode:
            return f"langgraph's checkpointer: n/a; {found.stderr.strip().splitlines()[-1:]}"
        return f"langgraph's checkpointer: {found.stdout.strip()}"


@contextmanager
def server_for_benchmarks() -> Iterator[PostgresServer]:
    """A new server with its files on the disk. Raises SystemExit if none can be run here."""
    try:
        with running_server(on_disk=True) as server:
            yield server
    except NoServer as error:
        raise SystemExit(f"no PostgreSQL can be run here: {error}") from error


async def _reading(dsn: str) -> Row:
    """The log of a session by its store, beside the driver that reads the same rows."""
    store = PostgresStore(dsn, schema="long")
    lease = await store.create("long", this_process("benchmark"))
    written = asyncio.Event()
    bodies = (BODY * 3,) * MESSAGES
    store.append(Batch("long", lease.epoch, 0, bodies, 1.0), lambda _: written.set())
    await written.wait()
    connection = await asyncpg.connect(dsn)
    query = "SELECT seq, epoch, body FROM long.record WHERE log = $1 ORDER BY seq"
    pairs = []
    for _ in range(10 * ROUNDS):
        started = time.process_time()
        records = await store.read("long")
        middle = time.process_time()
        rows = await connection.fetch(query, 1)
        pairs.append((middle - started, time.process_time() - middle))
        assert len(records) == len(rows) == MESSAGES
    await connection.close()
    await store.aclose()
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Row(
        name=f"CPU of reading a log of {MESSAGES:,} records in PostgreSQL, beside the bare driver",
        ours=ours * 1e3,
        bare=bare * 1e3,
        unit="ms",
        ratios=tuple(a / b for a, b in pairs),
        bound=MAX_READING,
    )


def run() -> list[Row]:
    with server_for_benchmarks() as server:
        stage = Stage(server)
        rows = [row for writers in WRITERS for row in stage.rows(writers)]
        return [*rows, asyncio.run(_reading(server.dsn))]
