"""Many clients of one service, each behind a way that is cut again and again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from llmsession import (
    Lagged,
    Message,
    SessionConfig,
    TransportError,
    TurnAborted,
    connect,
    records,
)
from llmsession.transport import ManagerInterface, RemoteManager, SessionInterface
from tests.transport.served_program import REPLY

__all__ = ["Watcher", "Writer", "connected", "cuts"]


def cuts(seed: int) -> Iterator[int]:
    """After how many bytes connections are cut, the next one each time."""
    chance = random.Random(seed)
    while True:
        # Mostly long enough to get something done; or nobody would ever come to an end.
        if chance.random() < 0.25:
            yield chance.randrange(20, 2_000)
        else:
            yield chance.randrange(10_000, 400_000)


@asynccontextmanager
async def connected(address: str, patience_s: float) -> AsyncIterator[RemoteManager]:
    """As ``connect``; a first connection that is cut is made again, too."""
    while True:
        try:
            entered = connect(address, patience_s=patience_s)
            sessions = await entered.__aenter__()
        except TransportError:
            await asyncio.sleep(0.05)
        else:
            break
    try:
        yield sessions
    finally:
        await entered.__aexit__(None, None, None)


class Writer:
    """Says one thing after the other in a session, until it is *enough*."""

    def __init__(self, name: str, *, resumes: bool, pause_s: float) -> None:
        self.name = name
        self._config = SessionConfig(model="m", recovery="resume" if resumes else "drop")
        self._chance = random.Random(name)
        self._pause_s = pause_s
        self.made = asyncio.Event()
        self.accepted: list[int] = []
        self.outcomes: dict[int, str] = {}
        self.last_seq = 0
        self.history: tuple[Message, ...] = ()

    async def run(self, sessions: ManagerInterface, enough: asyncio.Event) -> None:
        session = await sessions.create(self._config, session_id=self.name)
        self.made.set()
        while not enough.is_set():
            await self._say(session)
            await asyncio.sleep(self._chance.uniform(0, self._pause_s))
        self.last_seq = (await session.read_status()).seq
        self.history = await session.read_conversation()

    async def _say(self, session: SessionInterface) -> None:
        turn = await session.send(f"{self.name} {len(self.accepted)}")
        self.accepted.append(turn.id.number)
        if self._chance.random() < 0.2:
            await session.interrupt(turn.id)
        try:
            assert await turn.text() == REPLY
            self.outcomes[turn.id.number] = "committed"
        except TurnAborted:
            self.outcomes[turn.id.number] = "aborted"


class Watcher:
    """Follows a session from its beginning until it has seen all that its writer knows of."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.seen: list[Any] = []

    async def run(self, sessions: ManagerInterface, enough: asyncio.Event) -> None:
        await self._writer.made.wait()
        session = await sessions.open(self._writer.name)
        reading = asyncio.ensure_future(self._read(session))
        try:
            await enough.wait()
            while not self._writer.last_seq or len(self.seen) < self._writer.last_seq:
                if reading.done():
                    reading.result()  # what ended it
                await asyncio.sleep(0.02)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, session: SessionInterface) -> None:
        after = 0
        while True:
            async for event in session.subscribe(after=after):
                if isinstance(event, records.RecordBase):
                    self.seen.append(event)
                elif isinstance(event, Lagged):
                    after = event.cursor
