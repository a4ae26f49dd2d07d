"""A caller that is cancelled at any await of a command takes nothing back and tears nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from llmsession.errors import DuplicateToolResult, TurnNotOpen
from llmsession.session.handles.session import LLMSession, Turn
from llmsession.session.log.state import fold
from llmsession.session.manager import SessionManager, runtime_of
from llmsession.session.values.config import CompactionConfig, SessionConfig, Tool, ToolResult
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import (
    EVERYTHING,
    AppendResult,
    Batch,
    Lease,
    Owner,
    SessionFilter,
    SessionRow,
)
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, say
from llmsession.turns.request import Request, StepTag
from tests.session.probes import (
    assert_request_is_sound,
    differences,
    live_state,
    log_of,
    run_virtually,
    said,
    settle,
    unpaired,
)

WAYS = [("asyncio", "scope"), ("asyncio", "task"), ("trio", "scope")]
"""How a caller is cancelled: by a scope of anyio's, or by ``Task.cancel`` as ``asyncio.timeout``
does it."""
LAPS = 4
"""How many turns of the event loop the store takes, so that there are awaits to cancel at."""


class UnhurriedStore(MemoryStore):
    def __init__(self, group: TaskGroup) -> None:
        super().__init__()
        self._group = group

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        async def later() -> None:
            await _laps()
            super(UnhurriedStore, self).append(batch, done)

        self._group.start_soon(later)

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        await _laps()
        return await super().acquire(session, owner, takeover=takeover)

    async def release(self, lease: Lease) -> None:
        await _laps()
        await super().release(lease)

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        await _laps()
        return await super().rows(after=after, limit=limit, filter=filter)


async def _laps() -> None:
    for _ in range(LAPS):
        await checkpoint()


def _reply(request: Request, _tag: StepTag) -> ScriptedReply:
    last = bytes(request.messages[-1].body)
    if b"use the tool" in last:
        return call("mine", {"path": "x"}, id="c")
    return say("fine")


class GatedProvider:
    """A session, a command that is cancelled after *laps* turns of the loop, and what holds."""

    def __init__(self, laps: int, command: str, way: str) -> None:
        self.laps = laps
        self.command = command
        self.way = way
        self.finished = False
        self.provider = ScriptedProvider(_reply)
        compaction = CompactionConfig(keep_recent_turns=1, keep_recent_steps=1)
        self.config = SessionConfig(model="m", tools=[Tool(name="mine")], compaction=compaction)

    async def __call__(self) -> tuple[bool, str]:
        async with anyio.create_task_group() as group:
            store = UnhurriedStore(group)
            async with SessionManager(provider=self.provider, store=store) as manager:
                self.manager = manager
                self.session: LLMSession = await manager.create(self.config, session_id="s")
                with anyio.fail_after(60):
                    became = await getattr(self, f"_{self.command}")()
                    await self._assert_sound(store)
            assert runtime_of(manager).running_works == ()
        return self.finished, became

    async def _cancelled(self, command: Callable[[], Awaitable[Any]]) -> None:
        """Run *command*, and cancel the task that waits for it after some turns of the loop."""

        async def call() -> None:
            await command()
            self.finished = True

        async def caller(scope: anyio.CancelScope) -> None:
            with scope:
                await call()

        if self.way == "task":
            task = asyncio.create_task(call())
            for _ in range(self.laps + 1):  # a task that is cancelled before that never begins
                await checkpoint()
            task.cancel()
            await asyncio.wait([task])
            assert self.finished or task.cancelled(), "the cancellation was swallowed"
            await settle()
            return
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()
            group.start_soon(caller, scope)
            for _ in range(self.laps):
                await checkpoint()
            scope.cancel()
        await settle()

    async def _assert_sound(self, store: MemoryStore) -> None:
        outcome = await (await self.session.send("and then")).outcome()
        assert outcome.status == "committed"
        log = await log_of(store, "s")
        assert differences(live_state(self.session), fold("s", log)) == []
        assert unpaired(said(self.session.conversation())) == []
        for request in self.provider.requests:
            assert_request_is_sound(request, self.provider.profile("m"))

    # The commands: each returns what became of it.

    async def _send(self) -> str:
        await self._cancelled(lambda: self.session.send("hello"))
        texts = [blocks[0]["text"] for _, blocks in said(self.session.conversation())]
        assert texts in ([], ["hello", "fine"])
        return "taken" if texts else "never asked"

    async def _submit(self) -> str:
        turn = await self._turn_that_waits()
        results = [ToolResult("c", "42")]
        await self._cancelled(lambda: self.session.submit_tool_results(results))
        if self.session.status().phase == "running":
            await self.session.submit_tool_results(results)
            assert await turn.text() == "fine"
            return "never asked"
        with pytest.raises((DuplicateToolResult, TurnNotOpen)):
            await self.session.submit_tool_results(results)
        assert await turn.text() == "fine"
        return "taken"

    async def _interrupt(self) -> str:
        turn = await self._turn_that_waits()
        base = self.session.conversation()
        await self._cancelled(self.session.interrupt)
        if self.session.status().phase == "running":
            await self.session.interrupt()
            became = "never asked"
        else:
            became = "taken"
        assert (await turn.outcome()).status == "aborted"
        assert self.session.conversation() is base
        return became

    async def _outcome(self) -> str:
        turn = await self._turn_that_waits()
        await self._cancelled(turn.outcome)
        assert self.session.status().phase == "running"
        await self.session.submit_tool_results([ToolResult("c", "42")])
        assert (await turn.outcome()).status == "committed"
        return "taken"

    async def _events(self) -> str:
        turn = await self._turn_that_waits()

        async def read() -> None:
            async for _ in turn:
                pass

        await self._cancelled(read)
        assert self.session.status().phase == "running"
        await self.session.submit_tool_results([ToolResult("c", "42")])
        kinds = [type(event).__name__ async for event in turn]
        assert (kinds[0], kinds[-1]) == ("TurnAccepted", "TurnCommitted")
        return "taken"

    async def _compact(self) -> str:
        for _ in range(2):
            await self._turn_that_waits()
            waiting = self.session.status().turn
            assert waiting is not None
            open_call = next(iter(live_state(self.session).open.values())).calls[0].id
            await self.session.submit_tool_results([ToolResult(open_call, "line\n" * 2000)])
            await settle()
        base = self.session.conversation()
        await self._cancelled(self.session.compact)
        assert self.session.conversation() is base
        return "taken" if self.session.status().compacted_before else "never asked"

    async def _open(self) -> str:
        await self.session.close()
        await self._cancelled(lambda: self.manager.open("s"))
        became = "taken" if self.manager.live else "never asked"
        self.session = await self.manager.open("s")
        assert self.session.status().epoch == 2
        return became

    async def _list(self) -> str:
        await self._cancelled(self.manager.list)
        return "taken"

    async def _turn_that_waits(self) -> Turn:
        turn = await self.session.send("use the tool")
        await settle()
        assert self.session.status().turn_phase == "tools"
        return turn


@pytest.mark.parametrize("command", ["send", "submit", "interrupt", "compact", "open", "list"])
@pytest.mark.parametrize(("backend", "way"), WAYS)
def test_a_command_whose_caller_is_cancelled_is_done_whole_all_the_same(
    backend: str, way: str, command: str
) -> None:
    finished, laps, seen = False, 0, []
    while not finished:
        finished, became = run_virtually(backend, GatedProvider(laps, command, way))
        seen.append(became)
        laps += 1
    # It is enqueued before its first await, so no cancellation comes too early for it.
    assert laps > LAPS
    assert set(seen) == {"taken"}


@pytest.mark.parametrize("waiting", ["outcome", "events"])
@pytest.mark.parametrize(("backend", "way"), WAYS)
def test_cancelling_the_wait_for_a_turn_does_not_interrupt_it(
    backend: str, way: str, waiting: str
) -> None:
    for laps in range(8):
        finished, _ = run_virtually(backend, GatedProvider(laps, waiting, way))
        assert not finished
