"""A few busy sessions on one store, told to a file as they go: what was shown, what was answered.

What is told was durable by the promise of the store. It is told after it was shown, so a process
that is killed in between has told less than it knew, never more.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import closing, suppress
from random import Random

import anyio
import anyio.lowlevel
import msgspec

from llmsession import (
    Lagged,
    LLMSession,
    SessionConfig,
    SessionExists,
    SessionManager,
    Store,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
)
from llmsession.errors import SessionError, StoreError
from llmsession.session.actor.snapshot_writer import snapshots_every
from llmsession.session.values.config import Recovery
from llmsession.store import PostgresStore, open_store
from llmsession.testing import ScriptedProvider, call, say
from llmsession.testing.scripted import Scripted
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag

__all__ = ["SESSIONS", "Plan", "Teller", "Told", "live", "open_place", "read_told"]

SESSIONS = ("s0", "s1", "s2")
RECORDS_BETWEEN_SNAPSHOTS = 5


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. ``shown``: the record *seq* with the hash *body* was published. ``answered``: the
    session is there, or the command *command*, which said *body*, has turn *turn*. ``forgetting``:
    from here on old records may change. ``failed``: the session met an error of the store.
    ``points``: so many write points, at the end.
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
    """Two steps with tools where work was asked for, then an answer: alike for every run."""
    said = b"".join(bytes(message.body) for message in request.messages if message.role == "user")
    works = said.rfind(b"work on") > max(
        said.rfind(other) for other in (b"talk", b"now?", b"first")
    )
    if tag.step < 3 and works:
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


async def _watch(session: LLMSession, tell: Callable[..., None]) -> None:
    with closing(session.subscribe(after=0)) as events:
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


class Plan(msgspec.Struct, frozen=True):
    """What a life does is a function of its *seed*; *rounds* commands in each of the *sessions*.
    *forget*: also what rewrites logs."""

    seed: str
    rounds: int
    forget: bool = True
    sessions: tuple[str, ...] = SESSIONS


def open_place(place: str) -> Store:
    """The store at *place*: an address; of PostgreSQL with "#" and the schema behind it."""
    address, _, schema = place.partition("#")
    return PostgresStore(address, schema=schema) if schema else open_store(address)


async def live(store: Store, tell: Callable[..., None], plan: Plan) -> None:
    """Do what *plan* says, in sessions that are made or go on; leave in order.

    A session whose store fails stops there; that is told.
    """
    provider = ScriptedProvider(reply)
    with snapshots_every(RECORDS_BETWEEN_SNAPSHOTS):
        await _live(provider, store, tell, plan)


async def _live(
    provider: ScriptedProvider, store: Store, tell: Callable[..., None], plan: Plan
) -> None:
    async with (
        SessionManager(provider=provider, store=store, idle_s=0.0) as manager,
        anyio.create_task_group() as group,
    ):
        for name in plan.sessions:
            group.start_soon(_Acting(tell, name, plan).live, manager)


class _Acting:
    """One session's life."""

    def __init__(self, tell: Callable[..., None], name: str, plan: Plan) -> None:
        self._tell = tell
        self._name = name
        self._plan = plan
        self._random = Random(f"{plan.seed}/{name}")
        self._weights = (6, 4, 3, 1, 1, 1, 1, plan.forget, plan.forget * 0.5)

    async def live(self, manager: SessionManager) -> None:
        async with anyio.create_task_group() as group:
            try:
                session = await self._begin(manager)
                self._tell(what="answered", session=self._name)
                group.start_soon(_watch, session, self._tell)
                for at in range(self._plan.rounds):
                    await self._act(session, f"{self._plan.seed}/{at}")
            except StoreError as error:
                self._tell(
                    what="failed", session=self._name, body=str(error), committed=error.committed
                )
            group.cancel_scope.cancel()

    async def _begin(self, manager: SessionManager) -> LLMSession:
        recoveries: tuple[Recovery, ...] = ("drop", "resume")
        recovery = self._random.choice(recoveries)
        config = SessionConfig(model="m", tools=TOOLS, recovery=recovery)
        try:
            return await manager.create(config, session_id=self._name)
        except SessionExists:
            session = await manager.open(self._name, tools=TOOLS)
        # A turn that goes on offers its calls again.
        asked = [use.id for use in session.open_calls() if use.runner == "caller"]
        if asked:
            await session.submit_tool_results([ToolResult(call, "late") for call in asked])
        return session

    async def _send(self, session: LLMSession, said: str, command: str) -> Turn:
        turn = await session.send(said, command_id=command)
        self._tell(
            what="answered", session=session.id, command=command, turn=turn.id.number, body=said
        )
        return turn

    async def _act(self, session: LLMSession, command: str) -> None:
        name, random = session.id, self._random
        wanted = random.choices(
            ("work", "talk", "interrupt", "rewind", "fork", "label", "compact", "forget", "purge"),
            self._weights,
        )[0]
        match wanted:
            case "work" | "talk":
                turn = await self._send(session, f"{wanted} on {command}", command)
                await turn.outcome()
            case "interrupt":
                await self._send(session, f"work on {command}", command)
                for _ in range(random.randrange(30)):
                    await anyio.lowlevel.checkpoint()
                await session.interrupt(policy=random.choice(("drop_turn", "keep_steps")))
            case "rewind":
                turns = sorted({message.turn for message in session.conversation()})
                await session.rewind(random.choice([0, *turns]), when_busy="interrupt")
            case "fork":
                fork_id = f"{name}-fork-{command.replace('/', '-')}"
                fork = await session.fork(session_id=fork_id, when_busy="interrupt")
                self._tell(what="answered", session=fork.id)
                await (await fork.send("talk apart")).outcome()
            case "label":
                await session.label({"at": command})
            case "compact":
                await session.compact()
            case "forget" | "purge":
                self._tell(what="forgetting", session=name)
                turns = [message.turn for message in session.conversation()]
                if wanted == "purge" or not turns:
                    await session.clear(purge=True, when_busy="interrupt")
                else:
                    await session.forget(random.choice(turns), when_busy="interrupt")
