"""What a SQLite store costs with millions of cold sessions: each work beside 10,000 to 10 million.

    python -m benchmarks scale                              # up to a million
    python -m benchmarks.scale 10000 1000000 10000000       # 10 million take 4 GB and some minutes

The rows are written straight into the tables, in bulk: sessions of one turn, of which a few have
unfinished work, every 1,000th has a label that is rare and each one of 20 that are common. Then the
store is opened by its own class. A work is done for sessions that lie anywhere, and its CPU is the
median over some of them. A row is a growth law: the exponent of the CPU over the number of
sessions, as in ``growth``. Looking at every session is left to what says so: a filter by time,
``check`` and ``vacuum``.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import apsw

from benchmarks.growth import exponent
from benchmarks.report import Row, print_rows
from llmsession import SqliteStore
from llmsession.store import Appended, AppendResult, Batch, SessionFilter, this_process
from llmsession.store.protocol import Word

__all__ = ["law", "run"]

SIZES = (10_000, 100_000, 1_000_000)
MAX_EXPONENT = 0.1
TIMES = 60
UNFINISHED = 20
PAGE = 100
BODY = b'{"kind":"turn.committed","text":"' + b"what a model said, " * 4 + b'"}'
OWNER = this_process("benchmark")

Work: TypeAlias = Callable[[SqliteStore, str], Awaitable[object]]
"""Does one thing with a session that is there."""


def name_of(number: int) -> str:
    """The id of a session. Ids are not in the order in which the sessions were made."""
    return f"{number * 7_919 % 99_999_989:08d}-cold-session"


async def fill(path: Path, sessions: int) -> None:
    """Make a store with so many sessions of one record."""
    store = SqliteStore(path)
    await store.rows_with([Word("needle")], _words)  # makes an index: what comes then is indexed
    await store.aclose()
    db = apsw.Connection(str(path))
    # Nothing has to survive a crash here. With a WAL, everything would be written twice.
    db.pragma("journal_mode", "DELETE")
    db.pragma("journal_mode", "OFF")
    db.pragma("synchronous", "OFF")
    db.pragma("cache_size", -200_000)
    # In the order of the ids, and each log in its order, so that every tree grows at its end.
    names = sorted((name_of(number), number) for number in range(sessions))
    with db:
        db.executemany(
            "INSERT INTO session (id, epoch, head, log, created_at, touched_at, labels, unfinished)"
            " VALUES (?, 1, 1, ?, 1.0, ?, ?, ?)",
            (
                (name, log, float(number), _labels(number), int(number < UNFINISHED))
                for log, (name, number) in enumerate(names, 1)
            ),
        )
        db.executemany(
            "INSERT INTO label VALUES ('starred', 'yes', ?)",
            ((name,) for name, number in names if number % 1_000 == 0),
        )
        for tenant in range(20):
            db.executemany(
                "INSERT INTO label VALUES ('tenant', ?, ?)",
                ((f"{tenant:02d}", name) for name, number in names if number % 20 == tenant),
            )
        db.executemany(
            "INSERT INTO record VALUES (?, 1, NULL, ?)",
            ((log << 32 | 1, BODY) for log in range(1, sessions + 1)),
        )
        db.executemany(
            "INSERT INTO indexed VALUES (?, 1)", ((log,) for log in range(1, sessions + 1))
        )
        db.execute("UPDATE meta SET value = ? WHERE name = 'log'", (sessions,))
    db.pragma("journal_mode", "WAL")
    db.close()


def _labels(number: int) -> str:
    starred = '"starred":"yes",' if number % 1_000 == 0 else ""
    return f'{{{starred}"tenant":"{number % 20:02d}"}}'


async def _append(store: SqliteStore, session: str, epoch: int, head: int) -> None:
    answered: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    for unfinished in (True, False):
        batch = Batch(session, epoch, head, (BODY,), 1.0, unfinished=unfinished)
        answered = asyncio.get_running_loop().create_future()
        store.append(batch, answered.set_result)
        assert isinstance(await answered, Appended)
        head += 1


async def _turn(store: SqliteStore, session: str) -> None:
    """Open a cold session, append the records of a turn, and evict it."""
    lease = await store.acquire(session, OWNER)
    assert len(await store.read(session)) == lease.head
    await _append(store, session, lease.epoch, lease.head)
    await store.release(lease)


async def _create(store: SqliteStore, session: str) -> None:
    lease = await store.create(f"{session}-new", OWNER)
    await _append(store, lease.session, lease.epoch, 0)
    await store.release(lease)


async def _page(store: SqliteStore, session: str) -> None:
    assert await store.rows(after=session, limit=PAGE)


async def _labelled(store: SqliteStore, session: str) -> None:
    assert await store.rows(
        after=session, limit=PAGE, filter=SessionFilter(labels={"tenant": "07"})
    )


async def _with_any_value(store: SqliteStore, session: str) -> None:
    assert await store.rows(
        after=session, limit=PAGE, filter=SessionFilter(labels={"tenant": None})
    )


async def _unlabelled(store: SqliteStore, session: str) -> None:
    found = SessionFilter(labels={"tenant": "07"}, without=("starred",))
    assert await store.rows(after=session, limit=PAGE, filter=found)


async def _unfinished(store: SqliteStore, session: str) -> None:
    assert len(await store.unfinished()) == UNFINISHED


async def _search(store: SqliteStore, session: str) -> None:
    assert await store.rows_with([Word("needle")], _words, limit=PAGE)


async def _delete(store: SqliteStore, session: str) -> None:
    await store.delete(session)


async def _start(store: SqliteStore, session: str) -> None:
    again = SqliteStore(store.path)
    await again.release(await again.acquire(session, OWNER))
    await again.aclose()


def _words(body: bytes) -> list[str]:
    return ["needle"] if b"needle" in body else ["hay"]


WORKS: dict[str, Work] = {
    "starting: a store opened, a session taken, closed again": _start,
    "a turn of a cold session: taken, read, appended to, released": _turn,
    "a session created, with a turn": _create,
    "a page of 100 sessions": _page,
    "a page of 100 with a label": _labelled,
    "a page of 100 with a label of any value": _with_any_value,
    "a page of 100 with a label and without another one": _unlabelled,
    "finding 20 unfinished sessions": _unfinished,
    "a search that finds one session": _search,
    "deleting a session": _delete,
}


async def _measure(path: Path, sessions: int) -> dict[str, float]:
    """CPU seconds of each work."""
    await fill(path, sessions)
    store = SqliteStore(path)
    chosen = random.Random(7)
    lease = await store.create("0 a needle", OWNER)
    store.append(Batch(lease.session, 1, 0, (b'{"a":"needle"}',), 1.0), lambda _: None)
    found: dict[str, float] = {}
    for name, work in WORKS.items():
        took = []
        for number in chosen.sample(range(UNFINISHED, sessions * 9 // 10), TIMES):
            started = time.process_time()
            await work(store, name_of(number))
            took.append(time.process_time() - started)
        found[name] = statistics.median(took)
        print(f"    {sessions:,}: {name}: {found[name] * 1e6:,.0f} us", file=sys.stderr)
    await store.aclose()
    return found


def run(sizes: Sequence[int] = SIZES) -> list[Row]:
    costs: dict[str, list[float]] = {name: [] for name in WORKS}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for name, cost in asyncio.run(_measure(Path(folder) / "s.db", size)).items():
                costs[name].append(cost)
        gc.collect()
    return [law(name, sizes, "sessions", found) for name, found in costs.items()]


def law(name: str, sizes: Sequence[int], what: str, costs: Sequence[float]) -> Row:
    """The growth law of *costs*, in seconds, over *sizes*, which are numbers of *what*."""
    return Row(
        name=f"CPU of {name}: exponent over {sizes[0]:,} to {sizes[-1]:,} {what}",
        ours=exponent(sizes, costs),
        bare=1.0,
        unit="",
        bound=MAX_EXPONENT,
        note=f"{' / '.join(f'{cost * 1e6:,.1f}' for cost in costs)} us",
    )


if __name__ == "__main__":
    print_rows(run(tuple(map(int, sys.argv[1:])) or SIZES))
