"""Appending to a SQLite store, durably, beside a bare thread that only inserts; opening a session.

The bare side has the same writers, the same bytes, the same queue into one thread, the same group
commit at ``synchronous=FULL`` and the same way back; its one statement inserts a row under its
key (session, seq). It has no sessions, no fence, no owners and no large blocks. Beside the slowest
percent there is a thread without a database, too: what the disk does by itself.

With PEER_PYTHON set to a Python that has ``openai-agents``, its SQLiteSession is measured too.
"""

from __future__ import annotations

import asyncio
import gc
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

from benchmarks.recorded import Replays, recorded_message
from benchmarks.report import Row, percentile
from llmsession import SessionConfig, SessionManager, SqliteStore
from llmsession.store import Appended, AppendResult, Batch, this_process
from llmsession.store.caller import Caller
from llmsession.store.sqlite.checkpoints import CHECKPOINT_PAGES
from llmsession.store.sqlite.file import PAGE_BYTES
from llmsession.store.writer_thread import BatchingThread, deliver
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks, parse_blocks
from llmsession.turns.records import decode_record, encode_record
from llmsession.turns.usage import Usage

__all__ = ["BODY", "MAX_P99", "MIN_SHARE", "Done", "appends_a_second", "latencies", "run"]

WRITERS = (1, 50, 1_000, 10_000)
PACED = (50, 1_000)
"""The numbers of writers at which latencies are measured, too."""
ROUNDS = 5
ROUND_S = 1.0
WARM_S = 1.5
"""So long after the first append latencies are counted: what a first statement costs, connections,
plans and caches, and a WAL that grows for the first time, is no commit's latency."""
PACED_S = 2.0
PAGE = bytes(PAGE_BYTES)
"""What SQLite writes into its WAL for one append to a session, at least."""
BODY = b'{"kind":"step.completed","text":"' + b"what a model said, " * 14 + b'"}'  # 300 bytes

MIN_SHARE = 0.6
MAX_P99 = 5.0
MAX_OPENING = 3.0
MAX_READING = 1.5
MESSAGES = 2_000
QUESTION = "what does the file say about the third case? " * 5
ANSWER = "it says that the third case is like the second one, but for the order. " * 12
PROVIDER = Replays((recorded_message(1, "assistant", "a short answer"),))
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
        self._thread: BatchingThread[Item] = BatchingThread(
            "bare", perform=self._perform, on_idle=lambda: None, idle_s=lambda: None,
            on_end=self._end, reject=lambda item, reason: None,
        )  # fmt: skip

    async def open(self, writers: int) -> None:
        self._ended = asyncio.Event()
        self._caller = Caller()
        self._db = apsw.Connection(self._path)
        self._db.pragma("page_size", PAGE_BYTES)
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", "FULL")
        self._db.pragma("cache_size", -16_384)  # as the store
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
        deliver([(caller, done, Appended(head + 1)) for _, head, done, caller in items])
        if self._pages >= CHECKPOINT_PAGES:
            self._pages = 0
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _end(self) -> None:
        self._db.close()
        self._caller.call(self._ended.set)

    async def close(self) -> None:
        self._thread.stop()
        await self._ended.wait()


class FileAlone:
    """No database: each group is written behind the last one, a page for each append as in a WAL,
    into a file that has its room already, and synced. Nothing is ever copied from there."""

    ROOM_BYTES = CHECKPOINT_PAGES * len(PAGE)

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/file"
        self._at = 0
        self._thread: BatchingThread[Item] = BatchingThread(
            "file", perform=self._perform, on_idle=lambda: None, idle_s=lambda: None,
            on_end=self._end, reject=lambda item, reason: None,
        )  # fmt: skip

    async def open(self, writers: int) -> None:
        self._ended = asyncio.Event()
        self._caller = Caller()
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR)
        for at in range(0, self.ROOM_BYTES, 1 << 20):
            os.pwrite(self._file, bytes(1 << 20), at)
        os.fsync(self._file)

    def append(self, at: int, head: int, done: Done) -> None:
        self._thread.put((at, head, done, Caller()))

    def _perform(self, items: list[Item]) -> None:
        pages = PAGE * len(items)
        if self._at + len(pages) > self.ROOM_BYTES:
            self._at = 0
        os.pwrite(self._file, pages, self._at)
        os.fdatasync(self._file)
        self._at += len(pages)
        deliver([(caller, done, Appended(head + 1)) for _, head, done, caller in items])

    def _end(self) -> None:
        os.close(self._file)
        self._caller.call(self._ended.set)

    async def close(self) -> None:
        self._thread.stop()
        await self._ended.wait()


async def appends_a_second(side: Appending, writers: int) -> float:
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


async def latencies(side: Appending, writers: int, rate: float) -> list[float]:
    """Seconds from being due to being answered, at *rate* appends a second over all sessions, in
    turn, each at its time whether the others were answered or not. Those of the first WARM_S are
    not told."""
    await side.open(writers)
    took: list[float] = []
    heads = [0] * writers
    everything = asyncio.Event()
    total = int(rate * (WARM_S + PACED_S))
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
    return took[int(rate * WARM_S) :]


def _throughput(make: Callable[[str], Appending], writers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(appends_a_second(make(folder), writers))


def _spread(make: Callable[[str], Appending], writers: int, rate: float) -> tuple[float, float]:
    """The median and the 99th percentile of the latency."""
    with tempfile.TemporaryDirectory() as folder:
        took = asyncio.run(latencies(make(folder), writers, rate))
    return statistics.median(took), percentile(took, 0.99)


def _spread_row(writers: int, rate: float) -> Row:
    """How far the slowest percent is from the median. Where the bare thread's is further, or that
    of a file alone, more than their own is not asked for."""
    gc.collect()
    # What was imported is the same for all sides; a full collection of it takes 10 ms and more,
    # once in a second or two, and is nobody's commit.
    gc.freeze()
    sides: tuple[Callable[[str], Appending], ...] = (Ours, Bare, FileAlone)
    rounds = [tuple(_spread(side, writers, rate) for side in sides) for _ in range(ROUNDS)]
    gc.unfreeze()
    ratios, bare, alone = (
        tuple(late / usual for usual, late in spreads) for spreads in zip(*rounds, strict=True)
    )
    usual, late = sorted((each[0] for each in rounds), key=lambda pair: pair[1] / pair[0])[
        ROUNDS // 2
    ]
    return Row(
        name=f"durable append, {writers:,} sessions, p99 beside the median, at half that load",
        ours=late * 1e3,
        bare=usual * 1e3,
        unit="ms",
        ratios=ratios,
        bound=max(MAX_P99, statistics.median(bare), statistics.median(alone)),
        note=(
            f"beside their own medians: the bare thread's p99 {statistics.median(bare):.2f},"
            f" that of a file alone {statistics.median(alone):.2f}"
        ),
    )


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
    name = f"durable append, {writers:,} sessions"
    return [
        Row(
            name=name,
            ours=1e6 / ours,
            bare=1e6 / bare,
            unit="us",
            ratios=tuple(b / a for a, b, _ in rounds),
            bound=1 / MIN_SHARE,
            note=_peer() if writers == PACED[0] else "",
        ),
        Row(
            name=f"{name}, beside inserting in order of arrival, without a key",
            ours=1e6 / ours,
            bare=1e6 / heap,
            unit="us",
            ratios=tuple(b / a for a, _, b in rounds),
        ),
        *([_spread_row(writers, ours / 2)] if writers in PACED else []),
    ]


async def _write_long(folder: str) -> None:
    """A session "long" of MESSAGES messages: turns of a question and an answer."""
    async with SessionManager(provider=PROVIDER, store=SqliteStore(f"{folder}/long.db")) as manager:
        await manager.create(SessionConfig(model="m"), session_id="long")
    store = SqliteStore(f"{folder}/long.db")
    lease = await store.acquire("long", this_process("benchmark"))
    records: list[r.Record] = []
    for turn in range(1, MESSAGES // 2 + 1):
        seq = lease.head + len(records) + 1
        said = r.AssistantReply(body=encode_blocks(ANSWER), started_at=0.0)
        records += [
            r.TurnAccepted(
                seq=seq, epoch=lease.epoch, turn=turn, body=encode_blocks(QUESTION), started=True
            ),
            r.TurnCommitted(
                seq=seq + 1, epoch=lease.epoch, turn=turn, stop_reason="end_turn", usage=Usage(),
                reply=said,
            ),
        ]  # fmt: skip
    written = asyncio.Event()
    bodies = tuple(encode_record(record) for record in records)
    store.append(Batch("long", lease.epoch, lease.head, bodies, 1.0), lambda _: written.set())
    await written.wait()
    await store.release(lease)
    await store.aclose()


async def _open_s(folder: str) -> float:
    """CPU seconds of opening it, by a manager that has its store open."""
    async with SessionManager(provider=PROVIDER, store=SqliteStore(f"{folder}/long.db")) as manager:
        await manager.create(SessionConfig(model="m"))
        started = time.process_time()
        session = await manager.open("long")
        took = time.process_time() - started
        assert len(session.conversation()) == MESSAGES
        return took


def _read_s(folder: str) -> float:
    """CPU seconds of reading its bytes, on a connection that is open, and of decoding them: the
    records, and the blocks of what was said."""
    db = apsw.Connection(f"{folder}/long.db")
    db.execute("SELECT * FROM session").fetchall()
    ends = (1 << 32, 2 << 32)
    started = time.process_time()
    said = 0
    for (body,) in db.execute("SELECT body FROM record WHERE place BETWEEN ? AND ?", ends):
        match decode_record(body):
            case (
                r.TurnAccepted(body=content) | r.TurnCommitted(reply=r.AssistantReply(body=content))
            ):
                said += len(parse_blocks(content))
    took = time.process_time() - started
    assert said == MESSAGES
    db.close()
    return took


def _opening() -> Row:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_write_long(folder))
        pairs = [(asyncio.run(_open_s(folder)), _read_s(folder)) for _ in range(2 * ROUNDS)]
    ours, bare = sorted(pairs, key=lambda pair: pair[0] / pair[1])[ROUNDS]
    return Row(
        name=f"CPU of opening a session of {MESSAGES:,} messages, beside decoding its bytes",
        ours=ours * 1e3,
        bare=bare * 1e3,
        unit="ms",
        ratios=tuple(a / b for a, b in pairs),
        bound=MAX_OPENING,
    )


async def _reading() -> Row:
    """The log of a session by its store, beside a cursor over the same rows."""
    with tempfile.TemporaryDirectory() as folder:
        await _write_long(folder)
        store = SqliteStore(f"{folder}/long.db")
        db = apsw.Connection(f"{folder}/long.db")
        query = "SELECT epoch, body FROM record WHERE place BETWEEN ? AND ? ORDER BY place"
        pairs = []
        for _ in range(10 * ROUNDS):
            started = time.process_time()
            records = await store.read("long")
            middle = time.process_time()
            rows = db.execute(query, (1 << 32, 2 << 32)).fetchall()
            pairs.append((middle - started, time.process_time() - middle))
            assert len(records) == len(rows)
        db.close()
        await store.aclose()
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Row(
        name=f"CPU of reading a log of {MESSAGES:,} messages, beside a cursor over its rows",
        ours=ours * 1e3,
        bare=bare * 1e3,
        unit="ms",
        ratios=tuple(a / b for a, b in pairs),
        bound=MAX_READING,
    )


def _peer() -> str:
    python = os.environ.get("PEER_PYTHON")
    if not python:
        return "openai-agents SQLiteSession: n/a; PEER_PYTHON names no Python that has it"
    asked = [python, "-I", str(PEER)]  # -I: the folder of the script has an http.py
    found = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    if found.returncode:
        return f"openai-agents SQLiteSession: n/a; {found.stderr.strip().splitlines()[-1:]}"
    return f"openai-agents {found.stdout.strip()}"


def run() -> list[Row]:
    rows = [row for writers in WRITERS for row in _rows(writers)]
    return [*rows, _opening(), asyncio.run(_reading())]
