"""What must not grow: placement with 1,000 hosts and 10 million sessions, and the start of a host
in a store with many sessions."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from functools import partial
from itertools import pairwise

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import msgspec

from benchmarks.cluster.figures import Measured, absolute, in_turns, paired
from benchmarks.cluster.processes import READY_S, Stage
from benchmarks.report import Row
from llmsession import SessionConfig
from llmsession.cluster import Host, View, connect_cluster, host_of
from llmsession.cluster.placement import hash_of, score

__all__ = ["Placement", "StartUp", "joined", "placement", "start_up", "view_of"]

MOST_OFF = 0.04
MOST_LOOK_UP_US = 1.0
BOUND = 1.25
LOOK_S = 0.01


class Placement(msgspec.Struct, frozen=True):
    """How much is simulated."""

    hosts: int = 1_000
    sessions: int = 10_000_000
    cached: int = 2_000


class StartUp(msgspec.Struct, frozen=True):
    """How many sessions there are in the store."""

    sizes: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    rounds: int = 3


def view_of(version: int, hosts: int) -> View:
    entries = (Host(f"host {at}", f"tcp://h{at}:1", "up", f"i{at}") for at in range(hosts))
    return View(version, tuple(entries))


# Placement.


def joined(hosts: int, sessions: range) -> int:
    """How many of *sessions* move when a host joins *hosts* others: those for which it has the
    highest score. The first host with a higher one settles it, so few are looked at."""
    *others, newest = (hash_of(host.name) for host in view_of(2, hosts + 1).hosts)
    moved = 0
    for at in sessions:
        session = hash_of(f"session {at}")
        mark = score(newest, session)
        for other in others:
            if score(other, session) > mark:
                break
        else:
            moved += 1
    return moved


def placement(plan: Placement) -> list[Row]:
    """The rows. Each session is looked at: none of the figures is of a sample."""
    cores = os.cpu_count() or 1
    bounds = [plan.sessions * at // (4 * cores) for at in range(4 * cores + 1)]
    ranges = [range(*pair) for pair in pairwise(bounds)]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        moved = sum(pool.map(partial(joined, plan.hosts), ranges))
    share = moved / plan.sessions * (plan.hosts + 1)
    view = view_of(1, plan.hosts)
    looked_up = [_look_up_us(view, plan.cached) for _ in range(5)]
    return [
        absolute(
            f"a join to {plan.hosts:,} hosts: sessions that move, off 1/(n+1) by",
            [abs(share - 1) * 100],
            MOST_OFF * 100,
            "%",
            f"{moved:,} of {plan.sessions:,} sessions",
        ),
        absolute(
            f"route look-up in {plan.hosts:,} hosts, cached", looked_up, MOST_LOOK_UP_US, "us"
        ),
    ]


def _look_up_us(view: View, count: int) -> float:
    """Microseconds for the host of a session that was looked up before."""
    names = [f"session {at}" for at in range(count)]
    for name in names:
        host_of(view, name)
    begun = time.process_time()
    for name in names:
        host_of(view, name)
    return (time.process_time() - begun) / count * 1e6


# Start.


class _Store(msgspec.Struct):
    """A database with many sessions, one of which has an open turn."""

    dsn: str
    session: str
    head: int


async def start_up(stage: Stage, plan: StartUp) -> list[Row]:
    """A host starts in a store with many sessions. One of them has a turn that its dead owner left
    open: the start is over when it has been resumed."""
    stores = [await _filled(stage, size) for size in plan.sizes]
    found = await in_turns([partial(_started, stage, store) for store in stores], plan.rounds)
    few = plan.sizes[0]
    return [
        paired(
            f"start of a host, {what}, {size:,} sessions",
            figure,
            ours,
            found[0],
            unit=unit,
            bound=BOUND,
            note=f"beside {few:,}",
        )
        for size, ours in zip(plan.sizes[1:], found[1:], strict=True)
        for what, figure, unit in (
            ("CPU until an open turn is resumed", "cpu", "ms"),
            ("rows read in PostgreSQL", "read", "rows"),
        )
    ]


async def _filled(stage: Stage, size: int) -> _Store:
    dsn = stage.database()
    [host] = stage.start(dsn, "a")
    config = SessionConfig(model="slow", recovery="resume")
    async with connect_cluster([host.address]) as sessions:
        await (await sessions.create(SessionConfig(model="short"), session_id="first")).close()
        session = await sessions.create(config, session_id="open")  # the last one
        await session.send("go")
        stage.stop([host])
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_COPIES.format(count=size - 2))
        await connection.execute("VACUUM ANALYZE")
        head = await connection.fetchval(_HEAD, session.id)
    finally:
        await connection.close()
    return _Store(dsn, session.id, head)


_HEAD = "SELECT head FROM llmsession.session WHERE id = $1"
_READ = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables
"""
_COPIES = """
WITH made AS (
    INSERT INTO llmsession.session (id, log, epoch, head, created_at, touched_at)
    SELECT 'copy ' || n, nextval('llmsession.log_number'), epoch, head, created_at, touched_at
      FROM llmsession.session, generate_series(1, {count}) AS n WHERE id = 'first'
    RETURNING id, log
), spanned AS (
    INSERT INTO llmsession.span (session, first, last, log, born)
    SELECT made.id, p.first, p.last, made.log, made.id
      FROM made, llmsession.span p WHERE p.session = 'first'
)
INSERT INTO llmsession.record (log, seq, epoch, body)
SELECT made.log, r.seq, r.epoch, r.body
  FROM made, llmsession.record r
 WHERE r.log = (SELECT log FROM llmsession.session WHERE id = 'first')
"""


async def _started(stage: Stage, store: _Store) -> Measured:
    connection = await asyncpg.connect(store.dsn)
    try:
        before = await _rows_read(connection)
        [host] = await asyncio.to_thread(stage.start, store.dsn, "a")
        store.head = await _head_above(connection, store)
        spent_s = host.cpu_s()
        stage.stop([host])
        return {"cpu": spent_s * 1e3, "read": await _rows_read(connection) - before}
    finally:
        await connection.close()


async def _head_above(connection: asyncpg.Connection, store: _Store) -> int:
    async with asyncio.timeout(READY_S):
        while True:
            head: int = await connection.fetchval(_HEAD, store.session)
            if head > store.head:
                return head
            await asyncio.sleep(LOOK_S)


async def _rows_read(connection: asyncpg.Connection) -> float:
    """The rows that others have read in this database, by index or not. The server adds up what a
    connection did when that ends."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    async with asyncio.timeout(READY_S):
        while True:
            if await connection.fetchval(others) == 1:
                break
            await asyncio.sleep(LOOK_S)
    return float(await connection.fetchval(_READ))
