"""Somebody who comes, works in a session for a while, vanishes, and comes back, perhaps to another:
sends, steers, interrupts, compacts, forks, rewinds, clears, forgets, deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from llmsession import CompactionConfig, Lagged, SessionConfig, Tool, ToolResult, ToolUse
from llmsession.errors import (
    Gone,
    InvalidInput,
    Overloaded,
    Refused,
    SessionError,
    TurnEnded,
)
from llmsession.store import SessionFilter
from llmsession.testing.workload.tools import words
from llmsession.transport import RemoteManager, RemoteSession
from llmsession.turns.machine import TurnLimits
from llmsession.turns.records import RecordBase

from .errand import MODEL, Errand, TellTale
from .joining import joined

__all__ = ["LABELS", "live"]

T = TypeVar("T")
LABELS = {"soak": "life"}
"""What retention goes by: sessions of stress are deleted by who made them."""
MAX_TURNS = 60
"""After so many a session is deleted, so that the load stays the same over an hour."""
EXPECTED = (Gone, Refused, InvalidInput, TurnEnded)
"""What may be answered where several work in one session: everything else is a complaint."""


def _config(random: Random) -> SessionConfig:
    return SessionConfig(
        model=MODEL,
        system=f"soak {random.randrange(1000)}",
        tools=(Tool(name="ask"), Tool(name="fetch")),
        max_tokens=1000,
        window_tokens=random.choice((6_000, 12_000, 30_000)),
        recovery=random.choice(("drop", "resume")),
        interrupt_policy=random.choice(("drop_turn", "keep_steps", "keep_text")),
        limits=TurnLimits(max_steps=12, max_seconds=30.0),
        tool_deadline_s=3.0,
        compaction=CompactionConfig(
            policy=random.choice(("balanced", "balanced", "swap_tool_results")),
            threshold=0.5,
            keep_recent_turns=2,
            keep_recent_steps=4,
            cap_chars=3000,
        ),
    )


async def live(errand: Errand, number: int, tale: TellTale) -> None:
    """Until the errand's time is over; then every turn that was accepted has to have its end."""
    await _Life(errand, number, tale).run()


class _Life:
    def __init__(self, errand: Errand, number: int, tale: TellTale) -> None:
        self._errand = errand
        self._random = Random(f"{errand.seed}/{number}")
        self._name = f"{errand.name}-{number}"
        self._tale = tale
        self._made = 0
        self._open: dict[str, set[int]] = {}
        self._old: set[str] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._errand.seconds
        while loop.time() < until:
            address = self._random.choice(self._errand.addresses)
            async with joined(address, self._errand.patience_s) as sessions:
                try:
                    stay_s = min(self._random.uniform(2, 10), until - loop.time())
                    await self._visit(sessions, loop.time() + stay_s)
                except SessionError as error:
                    await self._met(error)
            # Gone in the midst of whatever runs.
            self._tale.counts["vanished"] += 1
            await asyncio.sleep(self._random.uniform(0, 0.5))
        async with joined(self._errand.addresses[0], self._errand.patience_s) as last:
            for session, turns in self._open.items():
                for turn in turns:
                    await self._await_end(last, session, turn)

    async def _visit(self, sessions: RemoteManager, until: float) -> None:
        session = await self._enter(sessions)
        watching = asyncio.ensure_future(self._watch(session))
        try:
            while asyncio.get_running_loop().time() < until:
                if not await self._act(sessions, session):
                    return
                await asyncio.sleep(self._random.uniform(0, 0.1))
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError, SessionError):
                await watching

    async def _enter(self, sessions: RemoteManager) -> RemoteSession:
        random = self._random
        if random.random() < 0.6:
            mine = SessionFilter(labels={**LABELS})
            rows = await self._ask("list", sessions.list(limit=200, filter=mine))
            if rows:
                self._tale.counts["came back"] += 1
                return await self._ask("open", sessions.open(random.choice(rows).session))
        self._made += 1
        name = f"{self._name}-{self._made}"
        made = sessions.create(_config(random), session_id=name, labels=LABELS)
        return await self._ask("create", made)

    # What is asked.

    async def _ask(self, command: str, asked: Awaitable[T]) -> T:
        """The answer. One that does not come, or is our fault, is a complaint."""
        self._tale.counts[command] += 1
        try:
            async with asyncio.timeout(self._errand.patience_s):
                return await asked
        except TimeoutError:
            self._tale.complaints.append(f"{command} was not answered")
            raise

    async def _met(self, error: SessionError) -> None:
        kind = type(error).__name__
        self._tale.counts[f"met {kind}"] += 1
        if isinstance(error, Overloaded):
            await asyncio.sleep(min(5.0, error.retry_after_s or 0.5))
        elif not isinstance(error, EXPECTED):
            self._tale.complaints.append(f"{kind}: {error}"[:300])

    async def _act(self, sessions: RemoteManager, session: RemoteSession) -> bool:
        """One thing; False if the session is over for us."""
        acts = {
            "send": 12, "steer": 3, "interrupt": 4, "compact": 2, "read": 2, "rewind": 0.5,
            "clear": 0.3, "purge": 0.2, "forget": 0.3, "fork": 0.4, "label": 0.3, "delete": 0.3,
        }  # fmt: skip
        (act,) = self._random.choices(list(acts), list(acts.values()))
        if session.id in self._old:
            act = "delete"
        try:
            return await self._perform(act, sessions, session)
        except Gone as error:
            await self._met(error)
            return False
        except SessionError as error:
            await self._met(error)
            return True

    async def _perform(self, act: str, sessions: RemoteManager, session: RemoteSession) -> bool:
        random = self._random
        busy: Any = random.choice(("interrupt", "reject"))
        match act:
            case "send" | "steer":
                await self._send(session, "steer" if act == "steer" else None)
            case "interrupt":
                await self._interrupt(session)
            case "compact":
                await self._ask(act, session.compact())
            case "read":
                await self._read(session)
            case "rewind":
                turns = list({each.turn for each in await session.read_conversation()})
                to = random.choice([0, *sorted(turns)[-3:]])
                await self._ask(act, session.rewind(to, when_busy=busy))
            case "clear" | "purge":
                await self._ask(act, session.clear(purge=act == "purge", when_busy=busy))
            case "forget":
                turns = list({each.turn for each in await session.read_conversation()})
                before = random.choice(sorted(turns)) if turns else 1
                await self._ask(act, session.forget(before, when_busy=busy))
            case "fork":
                self._made += 1
                name = f"{self._name}-{self._made}"
                fork = session.fork(session_id=name, labels=LABELS, when_busy=busy)
                await self._send(await self._ask(act, fork), None)
            case "label":
                await self._ask(act, session.label({**LABELS, "at": f"{random.random()}"}))
            case _:
                await self._ask(act, sessions.delete(session.id))
                self._open.pop(session.id, None)
                return False
        return True

    async def _send(self, session: RemoteSession, mode: Any) -> None:
        random, loop = self._random, asyncio.get_running_loop()
        mode = mode or random.choice(("queue",) * 8 + ("interrupt", "reject"))
        text = words(random, random.choice((40, 200, 1500)))
        began = loop.time()
        turn = await self._ask("send", session.send(text, when_busy=mode))
        self._tale.sends_ms.append((loop.time() - began) * 1000)
        self._open.setdefault(session.id, set()).add(turn.id.number)
        if random.random() < 0.7:
            await self._ask("outcome", turn.outcome())
            self._open.get(session.id, set()).discard(turn.id.number)
        if turn.id.number > MAX_TURNS:
            self._old.add(session.id)

    async def _interrupt(self, session: RemoteSession) -> None:
        began = asyncio.get_running_loop().time()
        policy: Any = self._random.choice((None, "drop_turn", "keep_steps", "keep_text"))
        await self._ask("interrupt", session.interrupt(policy=policy))
        self._tale.interrupts_ms.append((asyncio.get_running_loop().time() - began) * 1000)

    async def _read(self, session: RemoteSession) -> None:
        await self._ask("read", session.read_status())
        await self._ask("read", session.read_context())
        await self._ask("read", session.read_summary())

    async def _await_end(self, sessions: RemoteManager, session: str, turn: int) -> None:
        try:
            found = await self._ask("open", sessions.open(session))
            await self._ask("outcome", found.turn(turn).outcome())
        except TimeoutError:
            self._tale.complaints.append(f"turn {turn} of {session} has no end")
        except SessionError as error:
            await self._met(error)

    # What is seen.

    async def _watch(self, session: RemoteSession) -> None:
        """Read all from the beginning, or what is new, and answer most of the calls."""
        after: int | None = self._random.choice((0, None))
        while True:
            events, last = session.subscribe(after=after), 0
            async for event in events:
                match event:
                    case Lagged(cursor=cursor):
                        after = cursor
                        self._tale.counts["lagged"] += 1
                        break
                    case ToolUse():
                        await self._answer(session, event)
                    case RecordBase(seq=seq):
                        self._tale.counts["records seen"] += 1
                        if seq <= last:
                            told = f"{session.id}: record {seq} was told after {last}"
                            self._tale.complaints.append(told)
                        last = seq
                    case _:
                        self._tale.counts["previews seen"] += 1
            else:
                return

    async def _answer(self, session: RemoteSession, use: ToolUse) -> None:
        if self._random.random() < 0.05:
            return  # its deadline ends it
        said = words(self._random, self._random.choice((60, 800, 4000)))
        summary = "in short" if self._random.random() < 0.3 else None
        with suppress(Gone, Refused, InvalidInput, TurnEnded):
            await session.submit_tool_results([ToolResult(use.id, said, compact_summary=summary)])
