"""Memory of evicted, of live and of idle sessions, beside an anyio task with a stream.

Each case runs in a process of its own; what counts is the growth of its resident set.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from benchmarks.recorded import Replays, recorded_message
from benchmarks.report import Row
from llmsession import MemoryStore, SessionConfig, SessionManager, SqliteStore
from llmsession.session.handles.session import LLMSession
from llmsession.session.manager import runtime_of
from llmsession.store import Batch, Store

__all__ = ["MAX_IDLE_BYTES", "PROVIDER", "resident_bytes", "run"]

EVICTED = 100_000
LIVE = 10_000
IDLE = 20_000
MAX_IDLE_BYTES = 16 * 1024
TASKS = 10_000
MAX_EVICTED, MAX_LIVE = 0.5, 4.0
PROVIDER = Replays((recorded_message(1, "assistant", "a short answer"),))


def resident_bytes() -> int:
    """The resident set of this process, garbage collected."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


async def _evicted() -> float:
    """Bytes for each of 100,000 sessions that were created and evicted, store included."""
    store = MemoryStore()
    async with SessionManager(provider=PROVIDER, store=store) as manager:
        config = SessionConfig(model="m")
        await manager.create(config)
        await runtime_of(manager).evict_idle()
        before = resident_bytes()
        for at in range(EVICTED):
            await manager.create(config)
            if at % 1000 == 999:
                await runtime_of(manager).evict_idle()
        await runtime_of(manager).evict_idle()
        assert not manager.live
        return (resident_bytes() - before) / EVICTED


async def _stored() -> float:
    """Of those, the bytes that the store in memory holds: each session's log and row."""
    store = MemoryStore()
    async with SessionManager(provider=PROVIDER, store=store) as manager:
        config = SessionConfig(model="m")
        session = await manager.create(config)
        (record,) = await store.read(session.id)
        body = record.body
        owner = (await store.row(session.id)).owner
        assert owner is not None
        before = resident_bytes()
        for at in range(EVICTED):
            lease = await store.create(f"{at:032x}", owner)
            store.append(_batch(lease.session, bytes(bytearray(body))), lambda result: None)
            await store.release(lease)
        return (resident_bytes() - before) / EVICTED


def _batch(session: str, body: bytes) -> Batch:
    return Batch(session, 1, 0, (body,))


async def _live() -> float:
    """Bytes for each of 10,000 held sessions with a subscriber and ten messages, store included."""
    async with SessionManager(provider=PROVIDER) as manager:
        config = SessionConfig(model="m")
        await manager.create(config)
        before = resident_bytes()
        held: list[tuple[LLMSession, object]] = []
        for _ in range(LIVE):
            session = await manager.create(config)
            subscription = session.subscribe()
            for _ in range(5):
                await (await session.send("a short question")).outcome()
            while subscription.buffered[0]:
                await anext(subscription)
            held.append((session, subscription))
        assert all(len(session.conversation()) == 10 for session, _ in held)
        return (resident_bytes() - before) / LIVE


async def _idle(store: Store) -> float:
    """Bytes for each of 20,000 held sessions that have made one turn, *store* included."""
    async with SessionManager(provider=PROVIDER, store=store) as manager:
        config = SessionConfig(model="m")
        held = [await manager.create(config)]
        await (await held[0].send("a short question")).outcome()
        before = resident_bytes()
        for _ in range(IDLE):
            session = await manager.create(config)
            await (await session.send("a short question")).outcome()
            held.append(session)
        assert all(len(session.conversation()) == 2 for session in held)
        return (resident_bytes() - before) / IDLE


async def _idle_in_memory() -> float:
    return await _idle(MemoryStore())


async def _idle_in_sqlite() -> float:
    with tempfile.TemporaryDirectory() as folder:
        return await _idle(SqliteStore(f"{folder}/sessions.db"))


async def _tasks() -> float:
    """Bytes for each of 10,000 anyio tasks that wait on a stream of their own."""
    async with anyio.create_task_group() as group:
        before = resident_bytes()
        kept = []

        async def wait(stream: MemoryObjectReceiveStream[object]) -> None:
            async for _ in stream:
                pass

        for _ in range(TASKS):
            send, receive = anyio.create_memory_object_stream[object](16)
            kept.append((send, receive))
            group.start_soon(wait, receive)
        await anyio.sleep(0.1)
        used = (resident_bytes() - before) / TASKS
        group.cancel_scope.cancel()
        for send, receive in kept:
            send.close()
            receive.close()
    return used


CASES: dict[str, Callable[[], Awaitable[float]]] = {
    "evicted": _evicted,
    "stored": _stored,
    "live": _live,
    "idle in memory": _idle_in_memory,
    "idle in sqlite": _idle_in_sqlite,
    "tasks": _tasks,
}


def _measure(case: str) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", case],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def run() -> list[Row]:
    tasks, stored = _measure("tasks"), _measure("stored")
    return [
        Row(
            name=f"an evicted session of {EVICTED:,}",
            ours=_measure("evicted"),
            bare=tasks,
            unit="bytes",
            bound=MAX_EVICTED,
            note=f"of which {stored:,.0f} bytes are its log and row in the store in memory",
        ),
        Row(
            name=f"a live session of {LIVE:,} with a subscriber and 10 messages",
            ours=_measure("live"),
            bare=tasks,
            unit="bytes",
            bound=MAX_LIVE,
            note="its log in the store in memory included",
        ),
        *(
            Row(
                name=f"an idle session of {IDLE:,} with one turn, {store}",
                ours=_measure(case),
                bare=MAX_IDLE_BYTES,
                unit="bytes",
                bound=1.0,
                note="bare here: 16 KiB",
            )
            for case, store in (
                ("idle in memory", "its log in the store in memory included"),
                ("idle in sqlite", "its log in SQLite"),
            )
        ),
    ]


if __name__ == "__main__":
    print(anyio.run(CASES[sys.argv[1]]))
