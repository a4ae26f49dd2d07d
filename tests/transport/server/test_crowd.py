"""A crowd of clients, cut off at random bytes, at a service that is killed again and again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from llmsession import SqliteStore, records
from llmsession.session.log.read_state import read_state
from tests.transport.cutting import CuttingProxy
from tests.transport.killing import killed, started
from tests.transport.server.crowd import Watcher, Writer, connected, cuts

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


class Size(NamedTuple):
    clients: int
    sessions: int
    kills: int
    lives_s: tuple[float, float]
    """How long the service lives, between two kills."""
    pause_s: float
    limit_s: float


QUICK = Size(clients=6, sessions=18, kills=2, lives_s=(0.5, 1.5), pause_s=0.2, limit_s=150)
# Short lives let hardly anybody do anything: with (0.5, 1.5) there is one turn a session.
FULL = Size(clients=100, sessions=1000, kills=10, lives_s=(4, 12), pause_s=10.0, limit_s=1500)


@pytest.mark.parametrize(
    "size",
    [
        QUICK,
        pytest.param(FULL, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
    ids=["quick", "full"],
)
async def test_every_accepted_turn_has_one_end_at_every_client_and_commits_are_the_stores(
    tmp_path: Path, size: Size
) -> None:
    process = await started(tmp_path)
    proxy = CuttingProxy(f"unix:{tmp_path}/p.sock", f"unix:{tmp_path}/s.sock", cuts(7))
    enough, chance = asyncio.Event(), random.Random(7)
    writers = [
        Writer(f"s{number:04}", resumes=number % 2 == 1, pause_s=size.pause_s)
        for number in range(size.sessions)
    ]
    watchers: list[tuple[Writer, Watcher]] = []
    try:
        async with asyncio.timeout(size.limit_s), proxy.running(), AsyncExitStack() as stack:
            crowd = [
                await stack.enter_async_context(connected(proxy.address, size.limit_s))
                for _ in range(size.clients)
            ]
            async with asyncio.TaskGroup() as group:
                for number, writer in enumerate(writers):
                    group.create_task(writer.run(crowd[number % size.clients], enough))
                    for other in (0, 1):  # its own client, and somebody else
                        watcher = Watcher(writer)
                        watchers.append((writer, watcher))
                        client = crowd[(number + other) % size.clients]
                        group.create_task(watcher.run(client, enough))
                for _ in range(size.kills):
                    await asyncio.sleep(chance.uniform(*size.lives_s))
                    await killed(process)
                    process = await started(tmp_path)
                await asyncio.sleep(0.5)
                enough.set()
            assert proxy.cut >= size.clients
    finally:
        await killed(process)
    await hold_against_the_store(tmp_path, writers, watchers)


async def hold_against_the_store(
    folder: Path, writers: list[Writer], watchers: list[tuple[Writer, Watcher]]
) -> None:
    store = SqliteStore(folder / "sessions.db")
    try:
        logs = {
            writer.name: [records.decode_record(row.body) for row in await store.read(writer.name)]
            for writer in writers
        }
        for writer, watcher in watchers:
            # In order, each once, nothing left out.
            assert watcher.seen == logs[writer.name][: len(watcher.seen)]
            ends = Counter(record.turn for record in watcher.seen if records.is_terminal(record))
            assert set(ends.values()) <= {1}
            assert set(writer.accepted) == set(ends)
            said = {
                record.turn: str(record.__struct_config__.tag).removeprefix("turn.")
                for record in watcher.seen
                if records.is_terminal(record)
            }
            assert writer.outcomes == said
        for writer in writers:
            assert writer.accepted == sorted(set(writer.accepted))
            assert writer.history == (await read_state(store, writer.name)).history
    finally:
        await store.aclose()
    ended = Counter(how for writer in writers for how in writer.outcomes.values())
    assert ended["committed"]
    assert ended["aborted"]
