"""The loop that somebody would write without a session, with the same durable records.

It encodes the records that a turn leaves, appends them to the same store, waits for each append
before it goes on, and reads the stream and runs the tool in tasks of their own, which could be
cancelled. That is what a turn cannot avoid. It has no mailbox, no queue, no machine, no fold, no
subscribers; it neither checks nor sizes a request, and an interrupt would leave it anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from llmsession import MemoryStore
from llmsession.providers import Provider
from llmsession.store import Batch, this_process
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.records import encode_record
from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.request import Request, StepTag
from llmsession.turns.usage import Usage

__all__ = ["HandWritten"]

T = TypeVar("T")
Run: TypeAlias = Callable[[], Awaitable[str]]
REQUEST = Request(model="m", max_tokens=1, messages=())


class HandWritten:
    """A conversation in *store*, whose works run in *group*."""

    def __init__(self, provider: Provider, store: MemoryStore, group: TaskGroup) -> None:
        self._provider = provider
        self._store = store
        self._group = group
        self._turn = 0

    async def begin(self, session: str) -> None:
        """Make its log."""
        lease = await self._store.create(session, this_process("benchmark"))
        self._session, self._epoch, self._head = session, lease.epoch, lease.head

    async def turn(self, said: str, run: Run | None = None) -> None:
        """One turn; *run* answers its tool calls."""
        self._turn, step = self._turn + 1, 1
        turn = self._turn
        await self._append(r.TurnAccepted(turn=turn, body=encode_blocks(said), started=True))
        while True:
            reply = await self._in_task(partial(self._read, step))
            content = msgspec.Raw(b"[" + b",".join(reply.blocks) + b"]")
            message = r.AssistantReply(body=content, started_at=0.0, stop_reason=reply.stop_reason)
            if run is None or not reply.calls:
                break
            offers = tuple(r.PendingCall(call.id, call.name, "session") for call in reply.calls)
            requested = r.ToolsRequested(turn=turn, step=step, reply=message, calls=offers)
            await self._append(requested)
            answers = []
            for call in reply.calls:
                told = msgspec.Raw(msgspec.json.encode(await self._in_task(run)))
                answers.append(r.Answer(call_id=call.id, content=told))
            answered = r.ToolsAnswered(turn=turn, step=step, answers=tuple(answers))
            await self._append(answered, r.StepCompleted(turn=turn, step=step))
            step += 1
        ended = r.TurnCommitted(turn=turn, stop_reason="end_turn", usage=Usage(), reply=message)
        await self._append(ended)

    async def _read(self, step: int) -> Reply:
        builder = ReplyBuilder()
        async for event in self._provider.stream(REQUEST, StepTag(self._turn, step, 1)):
            builder.feed(event)
        return builder.reply()

    async def _in_task(self, work: Callable[[], Awaitable[T]]) -> T:
        """What *work* returns, done in a task of its own, in a scope that could be cancelled."""
        found: list[T] = []
        done = anyio.Event()

        async def perform() -> None:
            with anyio.CancelScope():
                found.append(await work())
            done.set()

        self._group.start_soon(perform)
        await done.wait()
        return found[0]

    async def _append(self, *records: r.Record) -> None:
        bodies = tuple(
            encode_record(
                msgspec.structs.replace(record, seq=self._head + at, epoch=self._epoch, at=1.0)
            )
            for at, record in enumerate(records, 1)
        )
        durable = anyio.Event()
        batch = Batch(self._session, self._epoch, self._head, bodies, 1.0)
        self._store.append(batch, lambda _: durable.set())
        await durable.wait()
        self._head += len(records)
