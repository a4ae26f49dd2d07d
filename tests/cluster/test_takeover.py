"""A host that is killed or stands still: its turns go on elsewhere, and no client has to ask."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmsession import SessionConfig, connect, records
from llmsession.cluster.directory import Directory
from llmsession.cluster.placement import View
from llmsession.transcripts import write_own
from tests.cluster.hosts import started_host
from tests.store.conftest import Database
from tests.testing.conversations import recording, text

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

NAMES = ("a", "b", "c")
REQUEST_S = 1.0
"""Each request takes so long, so that a turn is open when its host is killed."""
PACED = ("--replay-delay", str(REQUEST_S))


@asynccontextmanager
async def three_hosts(database: Database, folder: Path) -> AsyncIterator[dict[str, Process]]:
    """Three hosts that are all up, and answer each other."""
    (folder / "talk.jsonl").write_bytes(write_own(recording([[text("hi")], [text("hello")]])))
    hosts: dict[str, Process] = {}
    try:
        for name in NAMES:
            hosts[name] = await started_host(database, folder, name, *PACED)
        yield hosts
    finally:
        for process in hosts.values():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.wait()


async def turns_begun(folder: Path, name: str, count: int) -> list[str]:
    """The ids of *count* sessions at the host *name*, each in the middle of a turn."""
    async with connect(f"unix:{folder}/{name}.sock") as sessions:
        config = SessionConfig(model="m", recovery="resume")
        opened = [await sessions.create(config) for _ in range(count)]
        for session in opened:
            await session.send("hi")
        return [session.id for session in opened]


async def kinds(database: Database, session: str) -> list[str]:
    async with database.store(schema="llmsession") as store:
        return [
            type(records.decode_record(each.body)).__name__ for each in await store.read(session)
        ]


async def all_committed(database: Database, sessions: Sequence[str]) -> None:
    """Wait until each of *sessions* has committed its turn: nobody but its host acts."""
    async with database.store(schema="llmsession") as store:
        for session in sessions:
            while True:
                stored = await store.read(session)
                if isinstance(records.decode_record(stored[-1].body), records.TurnCommitted):
                    break
                await asyncio.sleep(0.05)


async def test_the_turns_of_a_host_that_is_killed_go_on_at_others_without_a_client(
    database: Database, tmp_path: Path
) -> None:
    async with asyncio.timeout(150), three_hosts(database, tmp_path) as hosts:
        sessions = await turns_begun(tmp_path, "a", 6)
        hosts["a"].kill()
        await all_committed(database, sessions)
        for session in sessions:
            found = await kinds(database, session)
            assert found.count("TurnResumed") == 1
            assert found.count("TurnCommitted") == 1


async def test_a_host_that_is_stopped_loses_its_sessions_and_comes_back_without_them(
    database: Database, tmp_path: Path
) -> None:
    async with asyncio.timeout(150), three_hosts(database, tmp_path) as hosts:
        async with Directory(database.dsn, "c", poll_s=1000.0) as directory:
            await until_view(directory, all_up)
            sessions = await turns_begun(tmp_path, "a", 3)
            hosts["a"].send_signal(signal.SIGSTOP)
            await until_view(directory, lambda view: view.by_name("a") is None)
            await all_committed(database, sessions)
            hosts["a"].send_signal(signal.SIGCONT)
            await until_view(directory, lambda view: view.by_name("a") is not None)
        for session in sessions:
            found = await kinds(database, session)
            assert found.count("TurnCommitted") == 1


async def until_view(directory: Directory, holds: Callable[[View], bool]) -> None:
    """Wait until *holds* of the view."""
    changed = asyncio.Event()
    directory.watch(lambda before, after: changed.set())
    while not holds(directory.view):
        await changed.wait()
        changed.clear()


def all_up(view: View) -> bool:
    """So long they have watched each other, too."""
    return [host.state for host in view.hosts] == ["up"] * len(NAMES)
