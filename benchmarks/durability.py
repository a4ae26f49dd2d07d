"""Appending to a SQLite store, durably, beside a bare thread that only inserts.

The bare side has the same writers, the same bytes, the same queue into one thread, the same group
commit at ``synchronous=FULL`` and the same way back; its one statement inserts a row under its
key (session, seq). It has no sessions, no fence, no owners and no large blocks.

With PEER_PYTHON set to a Python that has ``openai-agents``, its SQLiteSession is measured too.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

import anyio
import apsw

from benchmarks.report import Row, percentile
from llmsession import SqliteStore
from llmsession.store import Appended, AppendResult, Batch, this_process
from llmsession.store.caller import Caller
from llmsession.store.threads import Answers, GroupThread

__all__ = ["run"]

WRITERS = (50, 1_000)
ROUNDS = 5
ROUND_S = 1.0
BODY = b'{"kind":"step.completed","text":"' + b"what a model said, " * 14 + b'"}'  # 300 bytes
CHECKPOINT_PAGES = 4000  # as the store
LEAST_SHARE = 0.6
MOST_P99 = 5.0
PEER = Path(__file__).with_name("peer_sqlite.py")

Done: TypeAlias = Callable[[AppendResult], None]


class Appending(Protocol):
    """What is compared: both sides append *BODY* to session number *at*, whose head is *head*."""

    async def open(self, writers: int) -> None: ...
    def append(self, at: int, head: int, done: Done) -> None: ...
    async def close(self) -> None: ...


class Ours:
    def __init__(self, folder: str) -> None:
        self._store = SqliteStore(f"{folder}/ours.db")

    async def open(self, writers: int) -> None:
        owner = this_process("benchmark")
        async with anyio.create_task_group() as group:
            for at in range(writers):
                group.start_soon(self._store.create, f"session {at}", owner)

    def append(self, at: int, head: int, done: Done) -> None:
        self._store.append(Batch(f"session {at}", 1, head, (BODY,), time.time()), done)

    async def close(self) -> None:
        await self._store.aclose()


Item: TypeAlias = tuple[int, int, Done, Caller]


class Bare:
    """*keyed*: under (session, seq) in one number; else in the order of arrival, without any way
    back to a session's records."""

    def __init__(self, folder: str, *, keyed: bool = True) -> None:
        self._path = f"{folder}/bare-{keyed}.db"
        self._keyed = keyed
        self._pages = 0
        self._thread: GroupThread[Item] = GroupThread(
            "bare", perform=self._perform, rest=lambda: None, rest_s=lambda: None,
            end=self._end, refuse=lambda item, why: None,
        )  # fmt: skip

    async def open(self, writers: int) -> None:
        self._ended = asyncio.Event()
        self._caller = Caller()
        self._db = apsw.Connection(self._path)
        for name, value in (("journal_mode", "wal"), ("synchronous", "FULL")):
            self._db.pragma(name, value)
        self._db.execute("CREATE TABLE record (place INTEGER PRIMARY KEY, epoch INT, body BLOB)")
        self._db.set_wal_hook(self._grown)

    def _grown(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return 0

    def append(self, at: int, head: int, done: Done) -> None:
        self._thread.put((at, head, done, Caller()))

    def _perform(self, items: list[Item]) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        if self._keyed:
            rows = [(at << 32 | head + 1, 1, BODY) for at, head, _, _ in items]
            db.executemany("INSERT INTO record VALUES (?, ?, ?)", rows)
        else:
            db.executemany(
                "INSERT INTO record (epoch, body) VALUES (?, ?)", [(1, BODY)] * len(items)
            )
        db.execute("COMMIT")
        answers = Answers()
        for _, head, done, caller in items:
            answers.add(caller, done, Appended(head + 1))
        answers.deliver()
        if self._pages >= CHECKPOINT_PAGES:
            self._pages = 0
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _end(self) -> None:
        self._db.close()
        self._caller.call(self._ended.set)

    async def close(self) -> None:
        self._thread.stop()
        await self._ended.wait()


async def _appends_a_second(side: Appending, writers: int) -> float:
    """How many appends are answered, when each writer sends the next as soon as it has the
    answer."""
    loop = asyncio.get_running_loop()
    await side.open(writers)
    heads = [0] * writers
    ends = time.perf_counter() + ROUND_S

    async def write(at: int) -> None:
        while time.perf_counter() < ends:
            answered: asyncio.Future[AppendResult] = loop.create_future()
            side.append(at, heads[at], answered.set_result)
            assert isinstance(await answered, Appended)
            heads[at] += 1

    started = time.perf_counter()
    await asyncio.gather(*[write(at) for at in range(writers)])
    took = time.perf_counter() - started
    await side.close()
    return sum(heads) / took


async def _latencies(side: Appending, writers: int, rate: float) -> list[float]:
    """Seconds from being due to being answered, at *rate* appends a second over all sessions, in
    turn, each at its time whether the others were answered or not."""
    await side.open(writers)
    took: list[float] = []
    heads = [0] * writers
    everything = asyncio.Event()
    total = int(rate * ROUND_S)
    started = time.perf_counter()
    sent = 0

    def answer(due: float) -> Done:
        def done(result: AppendResult) -> None:
            assert isinstance(result, Appended)
            took.append(time.perf_counter() - due)
            if len(took) == total:
                everything.set()

        return done

    while sent < total:
        due = min(total, int((time.perf_counter() - started) * rate))
        while sent < due:
            at = sent % writers
            side.append(at, heads[at], answer(started + sent / rate))
            heads[at] += 1
            sent += 1
        await asyncio.sleep(0.0005)
    await everything.wait()
    await side.close()
    return took


def _throughput(make: Callable[[str], Appending], writers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_appends_a_second(make(folder), writers))


def _spread(writers: int, rate: float) -> tuple[float, float]:
    """The median and the 99th percentile of the latency."""
    with tempfile.TemporaryDirectory() as folder:
        took = asyncio.run(_latencies(Ours(folder), writers, rate))
    return statistics.median(took), percentile(took, 0.99)


def _rows(writers: int) -> list[Row]:
    rounds = [
        (
            _throughput(Ours, writers),
            _throughput(Bare, writers),
            _throughput(lambda folder: Bare(folder, keyed=False), writers),
        )
        for _ in range(ROUNDS)
    ]
    ours, bare, heap = (statistics.median(values) for values in zip(*rounds, strict=True))
    spreads = [_spread(writers, ours / 2) for _ in range(ROUNDS)]
    middle, p99 = sorted(spreads, key=lambda spread: spread[1] / spread[0])[ROUNDS // 2]
    name = f"durable append, {writers:,} sessions"
    return [
        Row(
            name=name,
            ours=1e6 / ours,
            bare=1e6 / bare,
            unit="us",
            ratios=tuple(b / a for a, b, _ in rounds),
            bound=1 / LEAST_SHARE,
            note=_peer() if writers == WRITERS[0] else "",
        ),
        Row(
            name=f"{name}, beside inserting in order of arrival, without a key",
            ours=1e6 / ours,
            bare=1e6 / heap,
            unit="us",
            ratios=tuple(b / a for a, _, b in rounds),
        ),
        Row(
            name=f"{name}, p99 beside the median, at half that load",
            ours=p99 * 1e3,
            bare=middle * 1e3,
            unit="ms",
            ratios=tuple(late / usual for usual, late in spreads),
            bound=MOST_P99,
        ),
    ]


def _peer() -> str:
    python = os.environ.get("PEER_PYTHON")
    if not python:
        return "openai-agents SQLiteSession: n/a; PEER_PYTHON names no Python that has it"
    found = subprocess.run([python, PEER], capture_output=True, text=True, timeout=120, check=False)
    if found.returncode:
        return f"openai-agents SQLiteSession: n/a; {found.stderr.strip().splitlines()[-1:]}"
    return f"openai-agents {found.stdout.strip()}"


def run() -> list[Row]:
    return [row for writers in WRITERS for row in _rows(writers)]
