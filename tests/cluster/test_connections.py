"""A host has at most 8 connections to PostgreSQL, whatever it does and whatever it loses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmsession import SessionConfig, SessionManager, SpendingBudget, StoreError
from llmsession.session.manager import runtime_of
from llmsession.testing.scripted import say
from tests.store.conftest import Database, until
from tests.store.postgres.server import PostgresServer

from .hosts import local_host

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

MAX_PER_HOST = 8
OURS = "FROM pg_stat_activity WHERE application_name = 'llmsession'"


class Sampled:
    """The highest number of connections that was seen, and how often it was looked."""

    def __init__(self) -> None:
        self.highest = self.looks = 0


@contextmanager
def sampled(server: PostgresServer) -> Iterator[Sampled]:
    """Look at the server's connections again and again, in a thread."""
    seen, ended = Sampled(), threading.Event()

    def look() -> None:
        with server.session() as session:
            while not ended.is_set():
                [(count,)] = session.ask(f"SELECT count(*) {OURS}")
                seen.highest, seen.looks = max(seen.highest, count), seen.looks + 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


async def test_a_busy_host_that_loses_its_connections_has_never_more_than_eight(
    database: Database, tmp_path: Path
) -> None:
    script = [say("hello")] * 10_000
    with sampled(database.server) as seen:
        async with asyncio.timeout(100), local_host(database, tmp_path, "a", script) as host:
            manager = host.manager
            await manager.set_tenant_budget("acme", SpendingBudget(max_tokens=10**9))
            done = asyncio.Event()
            works = [
                *(talk(manager, f"s{number}", done) for number in range(12)),
                *(again(lambda: manager.list(titles=True), done) for _ in range(4)),
                *(again(lambda: manager.search("hello"), done) for _ in range(4)),
                *(again(lambda: manager.tenant_spending("acme"), done) for _ in range(4)),
                again(runtime_of(manager).store.vacuum, done),
                again(host.directory.refresh, done),
            ]
            tasks = [asyncio.create_task(work) for work in works]
            for _ in range(3):
                await busy(seen, 40)
                await asyncio.to_thread(
                    database.server.sql, f"SELECT pg_terminate_backend(pid) {OURS}"
                )
            await busy(seen, 40)
            done.set()
            await asyncio.gather(*tasks)
    assert MAX_PER_HOST // 2 < seen.highest <= MAX_PER_HOST


async def busy(seen: Sampled, looks: int) -> None:
    """Let it go on until the connections were counted *looks* times more."""
    last = seen.looks + looks
    await until(lambda: seen.looks >= last)


async def talk(manager: SessionManager, name: str, done: asyncio.Event) -> None:
    session = await manager.create(SessionConfig(model="m"), session_id=name, tenant="acme")
    while not done.is_set():
        await (await session.send("hello")).text()


async def again(act: Callable[[], Awaitable[Any]], done: asyncio.Event) -> None:
    while not done.is_set():
        try:
            await act()
        except StoreError:  # a search writes; it is not repeated where its connection was lost
            await asyncio.sleep(0.001)
