"""The service is killed, really, and started again: clients lose nothing and see nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from llmsession import SqliteStore, TurnAborted, connect, records
from llmsession.transport import RemoteManager
from tests.transport.killing import killed, started
from tests.transport.places import CONFIG
from tests.transport.served_program import REPLY

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


class Client:
    """Sends and watches, and keeps what it saw."""

    def __init__(self, sessions: RemoteManager, name: str) -> None:
        self.sessions = sessions
        self.name = name
        self.accepted: list[int] = []
        self.seen: list[Any] = []
        self.outcomes: dict[int, str] = {}

    async def run(self, enough: asyncio.Event) -> None:
        session = await self.sessions.create(CONFIG, session_id=self.name)
        events = session.subscribe(after=0)
        watching = asyncio.ensure_future(self._watch(events))
        while not enough.is_set():
            turn = await session.send(f"{self.name} {len(self.accepted)}")
            self.accepted.append(turn.id.number)
            try:
                assert await turn.text() == REPLY
                self.outcomes[turn.id.number] = "committed"
            except TurnAborted:
                self.outcomes[turn.id.number] = "aborted"
        last = (await session.read_status()).seq
        while not self.seen or self.seen[-1].seq < last:  # noqa: ASYNC110  # the events tell
            await asyncio.sleep(0.01)
        events.close()
        await watching

    async def _watch(self, events: Any) -> None:
        async for event in events:
            if isinstance(event, records.RecordBase):
                self.seen.append(event)


async def test_killed_and_started_again_every_accepted_turn_has_one_end_at_every_client(
    tmp_path: Path,
) -> None:
    process = await started(tmp_path)
    enough = asyncio.Event()
    async with asyncio.timeout(150), AsyncExitStack() as stack:
        address = f"unix:{tmp_path}/s.sock"
        connected = [await stack.enter_async_context(connect(address)) for _ in range(3)]
        clients = [Client(connected[number % 3], f"s{number}") for number in range(9)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run(enough))
            for _ in range(3):
                await asyncio.sleep(0.4)
                await killed(process)
                process = await started(tmp_path)
            await asyncio.sleep(0.3)
            enough.set()
    await killed(process)
    store = SqliteStore(tmp_path / "sessions.db")
    try:
        for client in clients:
            log = [records.decode_record(row.body) for row in await store.read(client.name)]
            assert client.seen == log[: len(client.seen)]
            ends = Counter(record.turn for record in client.seen if records.is_terminal(record))
            assert set(ends.values()) == {1}
            assert set(client.accepted) == set(ends)
            assert client.accepted == sorted(set(client.accepted))
            said = {record.turn: record.__struct_config__.tag for record in client.seen
                    if records.is_terminal(record)}  # fmt: skip
            assert {turn: f"turn.{how}" for turn, how in client.outcomes.items()} == said
        assert "aborted" in {how for client in clients for how in client.outcomes.values()}
    finally:
        await store.aclose()
