"""Part 5: the service is killed in the middle of a turn and started again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
from rich.console import Console

from llmsession.session.values.config import SessionConfig
from llmsession.testing.local_service import ServedProgram
from llmsession.transport.interface import ManagerInterface, SessionInterface
from llmsession.turns import records as r
from llmsession.turns.previews import TextDelta

from .recordings import LONG

__all__ = ["show_kill"]

NAMES = ("red", "green", "blue")
STREAMED_CHARS = 200
"""How much of each reply every subscriber has received before the service is killed."""


class _Changes:
    """Wakes a waiting task at each change, so that it can check its condition again."""

    def __init__(self) -> None:
        self._changed = anyio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()


class _Subscriber:
    """A client that follows a session and stays subscribed while the service restarts."""

    def __init__(self, session: SessionInterface, way: str) -> None:
        self.session = session
        self.way = way
        self.chars = 0
        self.records: list[r.Record] = []
        self.ended = anyio.Event()

    async def follow(self, notify: Callable[[], None]) -> None:
        events = self.session.subscribe(after=0)
        async for event in events:
            if isinstance(event, TextDelta):
                self.chars += len(event.text)
            elif isinstance(event, r.RecordBase):
                self.records.append(event)
                if r.is_terminal(event):
                    self.ended.set()
            notify()


async def show_kill(
    console: Console, service: ServedProgram, ways: Mapping[str, ManagerInterface]
) -> bool:
    """Kill *service* while three replies stream, start it again, and let its clients reconnect.

    *ways* are clients by transport. Returns whether every subscriber received exactly the records
    that are in the log."""
    console.print("\n[bold]5. The service is killed in the middle of a turn[/]")
    config = SessionConfig(model=LONG, recovery="resume")
    sessions = next(iter(ways.values()))
    for name in NAMES:
        await sessions.create(config, session_id=name)
    followers = [
        _Subscriber(await client.open(name), way) for way, client in ways.items() for name in NAMES
    ]
    async with anyio.create_task_group() as group:
        changes = _Changes()
        for follower in followers:
            group.start_soon(follower.follow, changes.notify)
        for name in NAMES:
            await (await sessions.open(name)).send("Tell me something long.")
        await changes.wait_for(
            lambda: all(follower.chars >= STREAMED_CHARS for follower in followers)
        )
        over = " and ".join(ways)
        console.print(f"{len(NAMES)} replies stream to {len(followers)} subscribers, over {over}")
        pid = service.pid
        await service.kill()
        console.print(f"[bold red]kill -9 {pid}[/]")
        killed_at = anyio.current_time()
        await service.start()
        console.print(f"started again: ready after {anyio.current_time() - killed_at:.1f} s")
        await changes.wait_for(lambda: all(follower.ended.is_set() for follower in followers))
        took_s = anyio.current_time() - killed_at
        group.cancel_scope.cancel()
    whole = True
    for name in NAMES:
        log = await _log_of(sessions, name)
        mine = [follower for follower in followers if follower.session.id == name]
        same = all(one.records == log[: len(one.records)] for one in mine)
        ends = [sum(map(r.is_terminal, one.records)) for one in mine]
        whole = whole and same and set(ends) == {1}
        how = next(record for record in log if r.is_terminal(record))
        ended = str(how.__struct_config__.tag).removeprefix("turn.")
        console.print(
            f"{name + ':':<7}{len(mine)} subscribers resumed, each saw one end ({ended});"
            f" same as the log: [bold]{same}[/]"
        )
    console.print(f"the turns continued on their own; the last ended {took_s:.1f} s after the kill")
    return whole


async def _log_of(sessions: ManagerInterface, name: str) -> list[r.Record]:
    """All records of a session, read by a new subscriber."""
    session = await sessions.open(name)
    last, log = (await session.read_status()).seq, list[r.Record]()
    events = session.subscribe(after=0)
    async for event in events:
        if isinstance(event, r.RecordBase):
            log.append(event)
            if event.seq >= last:
                break
    events.close()
    return log
