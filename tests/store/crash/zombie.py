"""A process that has a session, is stopped where a test wants it, and goes on when it has none.

All of them are forked from one process, which has imported everything.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import msgspec

from llmsession import LLMSession, SessionConfig, SessionManager, Tool, ToolResult, ToolUse
from llmsession.errors import SessionError
from llmsession.session.handles.session import live_state
from llmsession.testing import ScriptedProvider, call, say
from llmsession.testing.scripted import Scripted
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import StreamEvent

from .life import Teller, open_place

__all__ = ["Order", "Where", "serve"]

Where: TypeAlias = Literal["idle", "streaming", "tool", "caller"]
"""What it does when it is stopped: nothing; a reply streams; a tool runs; the caller's one does."""


class Order(msgspec.Struct, frozen=True):
    """On which store (see ``open_place``), what it tells, where it stops, and the file whose
    coming lets it go on."""

    place: str
    told: str
    where: Where
    may_go_on: str


class _Stopping(ScriptedProvider):
    """Its streams stop in the middle, if they are to."""

    def __init__(self, zombie: _Zombie) -> None:
        super().__init__(zombie.reply)
        self._zombie = zombie

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        async with aclosing(super().stream(request, tag)) as events:
            at = 0
            async for event in events:
                yield event
                at += 1
                if at == 3 and self._zombie.where == "streaming":
                    await self._zombie.stand_still()


class _Zombie:
    def __init__(self, order: Order) -> None:
        self.where = order.where
        self._tell = Teller(order.told)
        self._may_go_on = Path(order.may_go_on)
        self._shown = 0
        self._submitted = anyio.Event()
        self._session: LLMSession

    def reply(self, request: Request, tag: StepTag) -> Scripted:
        if tag.step == 1 and self.where in ("tool", "caller"):
            return call(self.where, {}, id="c1")
        return say("the end, after a long story")

    async def stand_still(self) -> None:
        """Until it is told to go on. What was durable before has been shown."""
        while self._shown < live_state(self._session).head:  # noqa: ASYNC110  # two values may change
            await anyio.sleep(0.001)
        self._tell(what="reached")
        while not self._may_go_on.exists():  # noqa: ASYNC110  # another process makes it
            await anyio.sleep(0.001)

    async def _tool(self) -> str:
        await self.stand_still()
        return "done"

    async def live(self, place: str) -> None:
        tools = (
            Tool(name="tool", input_schema={"type": "object"}, run=self._tool),
            Tool(name="caller", input_schema={"type": "object"}),
        )
        config = SessionConfig(model="m", tools=tools)
        async with (
            SessionManager(provider=_Stopping(self), store=open_place(place)) as manager,
            anyio.create_task_group() as group,
        ):
            session = self._session = await manager.create(config, session_id="s")
            group.start_soon(self._watch, session)
            turn = await session.send("hello")
            if self.where == "idle":
                await turn.outcome()
                await self.stand_still()
            else:
                try:
                    await turn.outcome()
                except SessionError as error:
                    self._tell(what=type(error).__name__)
            if self.where == "caller":
                # Its turn may have been ended by the lease before it went on.
                await self._submitted.wait()
            try:
                await session.send("still there?")
            except SessionError as error:
                self._tell(what=type(error).__name__)
            group.cancel_scope.cancel()

    async def _watch(self, session: LLMSession) -> None:
        with closing(session.subscribe(after=0)) as events:
            async for event in events:
                if isinstance(event, r.RecordBase):
                    body = hashlib.sha256(r.encode_record(event)).hexdigest()
                    self._tell(what="shown", session=session.id, seq=event.seq, body=body)
                    self._shown = event.seq
                elif isinstance(event, ToolUse) and event.runner == "caller":
                    await self.stand_still()
                    try:
                        await session.submit_tool_results([ToolResult(event.id, "mine")])
                    except SessionError as error:
                        self._tell(what=type(error).__name__)
                    self._submitted.set()


def serve() -> None:
    """Fork a zombie for each order on standard input. Says its pid, and its status at its end."""
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        child = os.fork()
        if child == 0:
            os.close(0)
            os._exit(_live(order))
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


def _live(order: Order) -> int:
    signal.alarm(170)
    try:
        anyio.run(_Zombie(order).live, order.place)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 3
    return 0
