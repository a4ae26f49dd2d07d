"""Do hot sessions starve others? The slowest percent of the appends of 1,000 quiet sessions beside
10 that append a megabyte as soon as the last one is durable, in SQLite and in PostgreSQL.

The quiet ones append at a steady rate, each at its time whether the others were answered or not.
The bare side is the same without the hot ones, in the same rounds. What cannot be avoided is one
commit with a megabyte of large batches: the one that is being written when a quiet append comes, or
its own (``store.large_batches``).
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable

from benchmarks.durability_postgres import server_for_benchmarks
from benchmarks.report import Row, percentile
from llmsession import SqliteStore
from llmsession.store import Appended, AppendResult, Batch, Store, this_process
from llmsession.store.postgres.store import PostgresStore

__all__ = ["run"]

QUIET, HOT = 1_000, 10
RATE = 1_000
"""Quiet appends a second, over all quiet sessions."""
ROUND_S, ROUNDS = 2.0, 3
LARGE = tuple(b"%064d" % number * 256 for number in range(64))  # 1 MiB, in records of 16 KiB
SMALL = (b'{"kind":"step.completed"}' * 12,)
MAX_RATIO = 8.0


async def _append(store: Store, session: str, head: int, bodies: tuple[bytes, ...]) -> None:
    answered: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    store.append(Batch(session, 1, head, bodies, 1.0), answered.set_result)
    assert isinstance(await answered, Appended)


async def _p99(store: Store, hot: int) -> float:
    """Of the seconds from being due to being durable, of quiet appends beside *hot* sessions."""
    owner = this_process("benchmark")
    names = [f"quiet {at}" for at in range(QUIET)] + [f"hot {at}" for at in range(hot)]
    await asyncio.gather(*[store.create(name, owner) for name in names])
    took: list[float] = []
    started = time.perf_counter()

    async def heat(session: str) -> None:
        head = 0
        while time.perf_counter() < started + ROUND_S:
            await _append(store, session, head, LARGE)
            head += len(LARGE)

    async def once(number: int) -> None:
        head, at = divmod(number, QUIET)
        await _append(store, f"quiet {at}", head, SMALL)
        took.append(time.perf_counter() - started - number / RATE)

    async with asyncio.TaskGroup() as group:
        for at in range(hot):
            group.create_task(heat(f"hot {at}"))
        sent = 0
        while (passed := time.perf_counter() - started) < ROUND_S:
            while sent < passed * RATE:
                group.create_task(once(sent))
                sent += 1
            await asyncio.sleep(0.0005)
    return percentile(took, 0.99)


async def _measured(store: Store, hot: int) -> float:
    try:
        return await _p99(store, hot)
    finally:
        await store.aclose()


def _row(name: str, make: Callable[[str], Store]) -> Row:
    rounds = [
        tuple(asyncio.run(_measured(make(f"skew{at}_{hot}"), hot)) for hot in (HOT, 0))
        for at in range(ROUNDS)
    ]
    beside, alone = (statistics.median(column) for column in zip(*rounds, strict=True))
    return Row(
        name=f"p99 of {QUIET:,} quiet sessions in {name} beside {HOT} hot ones, and without them",
        ours=beside * 1e3,
        bare=alone * 1e3,
        unit="ms",
        ratios=tuple(a / b for a, b in rounds),
        bound=MAX_RATIO,
    )


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [_row("SQLite", lambda name: SqliteStore(f"{folder}/{name}.db"))]
    with server_for_benchmarks() as server:
        rows.append(_row("PostgreSQL", lambda name: PostgresStore(server.dsn, schema=name)))
    return rows
