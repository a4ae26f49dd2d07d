"""A few busy sessions on one store, told to a file as they go: what was shown, what was answered.

What is told was durable by the promise of the store. It is told after it was shown, so a process
that is killed in between has told less than it knew, never more.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import anyio
import anyio.lowlevel
import msgspec

from llmsession import (
    Lagged,
    LLMSession,
    SessionConfig,
    SessionManager,
    Store,
    Tool,
    ToolResult,
    ToolUse,
)
from llmsession.errors import SessionError, StoreError
from llmsession.testing import ScriptedProvider, call, say
from llmsession.testing.scripted import Scripted
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag

__all__ = ["Told", "live", "read_told"]

SESSIONS = ("s0", "s1", "s2")


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. ``shown``: the record *seq* with the hash *body* was published. ``answered``: the
    command *command* was, with turn *turn*. ``forgetting``: from here on old records may change.
    ``failed``: the session met an error of the store. ``points``: so many write points, at the end.
    """

    what: str
    session: str = ""
    seq: int = 0
    body: str = ""
    command: str = ""
    turn: int = 0
    count: int = 0
    committed: bool | None = None


class Teller:
    """Tells to a file that outlives this process, in one write a line."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, **fields: object) -> None:
        os.write(self._file, msgspec.json.encode(Told(**fields)) + b"\n")  # type: ignore[arg-type]  # as named


def read_told(path: str) -> list[Told]:
    """What a life has told, in order."""
    with open(path, "rb") as file:
        return [msgspec.json.decode(line, type=Told) for line in file if line.endswith(b"\n")]


def reply(request: Request, tag: StepTag) -> Scripted:
    """Two steps with tools, then an answer: alike for every run."""
    if tag.step < 3 and b"work" in bytes(request.messages[-1].body) + bytes(
        request.messages[0].body
    ):
        tool = "ask" if tag.step == 1 else "run"
        return say("a moment") + call(tool, {"at": tag.step}, id=f"c{tag.turn}_{tag.step}")
    return say(f"done with turn {tag.turn}")


async def run(at: int) -> str:
    await anyio.lowlevel.checkpoint()
    return f"ran {at} " + "x" * 20_000


TOOLS = (
    Tool(name="ask", input_schema={"type": "object"}),
    Tool(name="run", input_schema={"type": "object"}, run=run),
)


@asynccontextmanager
async def _watched(session: LLMSession, tell: Callable[..., None]) -> AsyncIterator[None]:
    """Tells what the session publishes, and answers the calls that it offers."""
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, session, tell)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def _watch(session: LLMSession, tell: Callable[..., None]) -> None:
    async with session.subscribe(after=0) as events:
        async for event in events:
            if isinstance(event, Lagged):
                return
            if isinstance(event, r.RecordBase):
                body = hashlib.sha256(r.encode_record(event)).hexdigest()
                tell(what="shown", session=session.id, seq=event.seq, body=body)
            elif isinstance(event, ToolUse) and event.runner == "caller":
                with suppress(SessionError):
                    result = ToolResult(event.id, "y" * 500, compact_summary="short")
                    await session.submit_tool_results([result])


async def live(
    store: Store, tell: Callable[..., None], *, seed: int, rounds: int, forget: bool = True
) -> None:
    """Live *rounds* of random commands in each of a few sessions, then leave in order.

    A session whose store fails stops there; that is told.
    """
    provider = ScriptedProvider(reply)
    async with (
        SessionManager(provider=provider, store=store, idle_s=0.0) as manager,
        anyio.create_task_group() as group,
    ):
        for at, name in enumerate(SESSIONS):
            act = _Acting(tell, Random(f"{seed}/{at}"), forget)
            group.start_soon(act.live, manager, name, rounds)


class _Acting:
    """One session's life."""

    def __init__(self, tell: Callable[..., None], random: Random, forget: bool) -> None:
        self._tell = tell
        self._random = random
        self._weights = (6, 4, 3, 1, 1, 1, 1, forget, forget * 0.5)

    async def live(self, manager: SessionManager, name: str, rounds: int) -> None:
        recovery = self._random.choice(("drop", "resume"))
        config = SessionConfig(model="m", tools=TOOLS, recovery=recovery)
        try:
            session = await manager.create(config, session_id=name)
            self._tell(what="answered", session=name)
            async with _watched(session, self._tell):
                for at in range(rounds):
                    await self._act(session, f"{name}-{at}")
        except StoreError as error:
            self._tell(what="failed", session=name, committed=error.committed)

    async def _act(self, session: LLMSession, command: str) -> None:
        name, tell, random = session.id, self._tell, self._random
        wanted = random.choices(
            ("work", "talk", "interrupt", "rewind", "fork", "label", "compact", "forget", "purge"),
            self._weights,
        )[0]
        match wanted:
            case "work" | "talk":
                turn = await session.send(f"{wanted} on {command}", command_id=command)
                tell(what="answered", session=name, command=command, turn=turn.id.number)
                await turn.outcome()
            case "interrupt":
                turn = await session.send("work on", command_id=command)
                tell(what="answered", session=name, command=command, turn=turn.id.number)
                for _ in range(random.randrange(30)):
                    await anyio.lowlevel.checkpoint()
                await session.interrupt(policy=random.choice(("drop_turn", "keep_steps")))
            case "rewind":
                turns = sorted({message.turn for message in session.conversation()})
                await session.rewind(random.choice([0, *turns]), when_busy="interrupt")
            case "fork":
                fork = await session.fork(
                    session_id=f"{name}-fork-{command}", when_busy="interrupt"
                )
                tell(what="answered", session=fork.id)
                await (await fork.send("talk apart")).outcome()
            case "label":
                await session.label({"at": command})
            case "compact":
                await session.compact()
            case "forget" | "purge":
                tell(what="forgetting", session=name)
                turns = [message.turn for message in session.conversation()]
                if wanted == "purge" or not turns:
                    await session.clear(purge=True, when_busy="interrupt")
                else:
                    await session.forget(random.choice(turns), when_busy="interrupt")
