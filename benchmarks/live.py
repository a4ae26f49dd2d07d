"""What a manager costs with 100,000 live sessions: each work beside 10,000 to 100,000.

    python -m benchmarks live
    python -m benchmarks.live 10000 300000     # other numbers

Each number of sessions has a process of its own, with a store in memory. Every session has made one
turn and is held by a handle, so none is evicted. A work is done with sessions that lie anywhere,
and its CPU is the median over some of them. Ten thousand sessions fit into the caches of some
processors, a hundred thousand into none: so the caches are filled with something else before the
works, whatever the number. Then the handles go, and all are evicted in one sweep. All of it is done
three times, in turns, and the least CPU of the three counts: what else the machine does can only
add. A row is a growth law: the exponent of the CPU over the number of sessions, as in ``growth``.
"""

from __future__ import annotations

import gc
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import anyio.lowlevel
import msgspec

from benchmarks.memory import MAX_IDLE_BYTES, PROVIDER, resident_bytes
from benchmarks.report import Row, print_rows
from benchmarks.scale import law
from llmsession import LLMSession, SessionConfig, SessionManager
from llmsession.session.manager import runtime_of

__all__ = ["run"]

SIZES = (10_000, 30_000, 100_000)
OTHER_BYTES = 512 * 2**20
"""More than the caches of a processor hold."""
MAX_HELD_S = 0.01
"""How long one sweep may hold the event loop at most, the collector's passes apart."""
TIMES = 100
ROUNDS = 3
CONFIG = SessionConfig(model="m")

Work: TypeAlias = Callable[[SessionManager, LLMSession], Awaitable[object]]


class Found(msgspec.Struct, frozen=True):
    """What one number of sessions costs: bytes for each, and CPU seconds of each work."""

    session_bytes: float
    works: dict[str, float]
    held_s: float


async def _turn(manager: SessionManager, session: LLMSession) -> None:
    await (await session.send("a short question")).outcome()


async def _interrupt(manager: SessionManager, session: LLMSession) -> None:
    await session.interrupt()


async def _status(manager: SessionManager, session: LLMSession) -> None:
    session.status()
    session.usage()


async def _open(manager: SessionManager, session: LLMSession) -> None:
    await manager.open(session.id)


async def _create(manager: SessionManager, session: LLMSession) -> None:
    await manager.create(CONFIG)


async def _page(manager: SessionManager, session: LLMSession) -> None:
    await manager.list(after=session.id, limit=100)


async def _counters(manager: SessionManager, session: LLMSession) -> None:
    assert not manager.open_turns


WORKS: dict[str, Work] = {
    "a trivial turn": _turn,
    "an interrupt of an idle session": _interrupt,
    "status() and usage()": _status,
    "opening a session that is live": _open,
    "creating a session": _create,
    "a page of 100 sessions": _page,
    "counting the open turns": _counters,
}
EVICT, REOPEN = "evicting a session, of all in one sweep", "opening an evicted session"


async def measure(sessions: int) -> Found:
    other = b"a" * OTHER_BYTES  # a page of zeros alone would be one page for all
    async with SessionManager(provider=PROVIDER, idle_s=3600) as manager:
        held = [await manager.create(CONFIG)]
        await _turn(manager, held[0])
        before = resident_bytes()
        for _ in range(sessions):
            held.append(await manager.create(CONFIG))
            await _turn(manager, held[-1])
        session_bytes = (resident_bytes() - before) / sessions
        chosen = random.Random(7)
        times: dict[str, list[float]] = {name: [] for name in WORKS}
        for _ in range(TIMES):
            other.find(b"b")  # reads all of it, to find none
            for name, work in WORKS.items():
                session = chosen.choice(held)
                started = time.process_time()
                await work(manager, session)
                times[name].append(time.process_time() - started)
        works = {name: statistics.median(took) for name, took in times.items()}
        names = [session.id for session in chosen.sample(held, TIMES)]
        held.clear()
        del session
        gc.collect()
        other.find(b"b")
        works[EVICT], held_s = await _swept(manager)
        took = []
        for name in names:
            other.find(b"b")
            started = time.process_time()
            await manager.open(name)
            took.append(time.process_time() - started)
        works[REOPEN] = statistics.median(took)
        return Found(session_bytes, works, held_s)


async def _swept(manager: SessionManager) -> tuple[float, float]:
    """CPU seconds of evicting one session, and the longest time without a turn for other tasks."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            started = time.process_time()
            await anyio.lowlevel.checkpoint()
            longest = max(longest, time.process_time() - started)

    gc.disable()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            started = time.process_time()
            evicted = await runtime_of(manager).evict_idle()
            took = time.process_time() - started
            group.cancel_scope.cancel()
    finally:
        gc.enable()
    return took / evicted, longest


def _measured(sessions: int) -> Found:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.live", "--one", str(sessions)],
        check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=Found)


def _least(found: Sequence[Found]) -> Found:
    return Found(
        session_bytes=min(each.session_bytes for each in found),
        works={name: min(each.works[name] for each in found) for name in found[0].works},
        held_s=max(each.held_s for each in found),
    )


def run(sizes: Sequence[int] = SIZES) -> list[Row]:
    rounds = [[_measured(size) for size in sizes] for _ in range(ROUNDS)]
    found = [_least(of_size) for of_size in zip(*rounds, strict=True)]
    rows = [
        Row(
            name=f"an idle session of {sizes[-1]:,} with one turn, its log in the store in memory"
            " included",
            ours=found[-1].session_bytes,
            bare=MAX_IDLE_BYTES,
            unit="bytes",
            bound=1.0,
            note="bare here: 16 KiB",
        )
    ]
    for name in found[0].works:
        rows.append(law(name, sizes, "live sessions", [each.works[name] for each in found]))
    rows.append(
        Row(
            name=f"the event loop is held by a sweep that evicts {sizes[-1]:,} sessions, at most",
            ours=found[-1].held_s,
            bare=MAX_HELD_S,
            unit="s",
            bound=1.0,
            note=f"bare here: {MAX_HELD_S:g} s",
        )
    )
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(msgspec.json.encode(anyio.run(measure, int(sys.argv[2]))).decode())
    else:
        print_rows(run(tuple(map(int, sys.argv[1:])) or SIZES))
