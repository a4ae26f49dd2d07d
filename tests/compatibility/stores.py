"""The store of a release: made by its own code, with every kind of record, and summed up in figures
that every later version has to read out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.lowlevel
import msgspec

from llmsession import (
    CompactionConfig,
    SessionConfig,
    SessionManager,
    Store,
    TextDelta,
    Tool,
    ToolResult,
)
from llmsession.session.operations.integrity import examine
from llmsession.store import SqliteStore
from llmsession.transcripts import Conversation, write_own
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message

from .provider import answering

__all__ = ["KEY", "KINDS", "SEARCHES", "make_store", "summary_of"]

KEY = bytes(range(32))
"""Of the encrypted stores. It is public, as the stores are."""
KINDS = frozenset(kind.__struct_config__.tag for kind in get_args(r.Record))
SEARCHES = ("heron", "answered", "nobody wrote this")
PATIENCE_S = 100.0
NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
LOOK = Tool(name="look", input_schema={"type": "object", "properties": {"path": {}}})
PLAIN = SessionConfig(model="m", system="Be brief.", tools=(LOOK,), recovery="drop")
SMALL = SessionConfig(
    model="m",
    window_tokens=4_000,
    max_tokens=1_000,
    compaction=CompactionConfig(enabled=False, warning=0.25),
)


async def make_store(path: Path, *, key: bytes | None = None) -> None:
    """A store at *path* whose sessions have records of every kind. Nobody holds any of them."""
    clock = _Clock()

    def manager() -> SessionManager:
        store = SqliteStore(path, key=key, clock=clock)
        return SessionManager(provider=answering(), store=store, clock=clock)

    with anyio.fail_after(PATIENCE_S):
        async with manager() as first:
            await _conversations(first, clock)
            await _changes(first, clock)
            await _imports(first)
            await _open_turns(first)
            await first.release()  # and not close: two turns stay open
        async with manager() as second:
            resumed = await second.open("resumed", recovery="resume", unbound="caller")
            await _answer(resumed, 1)
            await resumed.turn(1).outcome()
        store = SqliteStore(path, key=key, clock=clock)
        await store.vacuum()
        kinds = await _kinds(store)
        await store.aclose()
    missing = KINDS - kinds.keys()
    if missing:
        raise SystemExit(f"no session of the store has a record of the kinds {sorted(missing)}")


class _Clock:
    """Seconds since the epoch, which pass only where ``pass_by`` says so."""

    def __init__(self) -> None:
        self._now = NOW

    def __call__(self) -> float:
        return self._now

    def pass_by(self, seconds: float) -> None:
        self._now += seconds


async def _called(session: Any) -> None:
    """Wait until *session* has asked for its tool."""
    while not session.open_calls():
        await anyio.lowlevel.checkpoint()


async def _answer(session: Any, turn: int) -> None:
    """Answer the call of *turn*, once it is there."""
    await _called(session)
    (use,) = session.open_calls()
    result = ToolResult(use.id, "A heron stands in the reeds. " * 10, compact_summary="a heron")
    await session.submit_tool_results([result], command_id=f"submit-{turn}")


async def _conversations(manager: SessionManager, clock: _Clock) -> None:
    """Replies, tools, a steer, a queue, an interrupt, a failure, for two tenants."""
    for tenant in ("anna", "ben"):
        session = await manager.create(
            PLAIN, session_id=f"{tenant}/main", labels={"user": tenant}, tenant=tenant,
            seed="They met before.", command_id=f"create-{tenant}",
        )  # fmt: skip
        turn = await session.send("call look please", command_id="send-1")
        clock.pass_by(1.0)
        await _called(session)
        waits = await session.send("say it was queued", command_id="send-2")
        steer = await session.send("also say hello", when_busy="steer", command_id="send-3")
        await _answer(session, 1)
        for open_turn in (turn, waits, steer):
            await open_turn.outcome()
        await (await session.send("think about herons")).text()
        await (await session.send("fail now")).outcome()
        hangs = await session.send("hang now")
        async for event in hangs:
            if isinstance(event, TextDelta):
                break
        await session.interrupt(hangs.id, command_id="interrupt-1")
        await session.interrupt(command_id="interrupt-2")  # nothing runs: it is only answered
        await (await session.send("what was I told? Ünïcode: 鷺 🦩")).text()
        clock.pass_by(60.0)


async def _changes(manager: SessionManager, clock: _Clock) -> None:
    """Forks, labels, other configurations, summaries, and what cuts a history."""
    main = await manager.open("anna/main", unbound="caller")
    await main.label({"user": "anna", "colour": "grey"}, title="Herons", command_id="label-1")
    await main.configure(system="Be very brief.", command_id="configure-1")
    await main.store_compact_summaries({"c1_1": "it saw a heron"}, command_id="summaries-1")
    await main.set_summary("They spoke of herons.", upto=1, command_id="summary-1")
    fork = await main.fork(session_id="anna/fork", labels={"of": "main"}, command_id="fork-1")
    await (await fork.send("say this is the fork")).text()
    await fork.rewind(to=1, command_id="rewind-1")

    warned = await manager.create(SMALL, session_id="warned")
    await (await warned.send("say reeds " * 450)).text()

    cleared = await manager.create(PLAIN, session_id="cleared", labels={"archived": "yes"})
    for number in range(4):
        await (await cleared.send(f"say number {number}")).text()
        clock.pass_by(10.0)
    await cleared.forget(3, command_id="forget-1")
    await cleared.clear(command_id="clear-1")
    await (await cleared.send("say it begins anew")).text()

    purged = await manager.create(PLAIN, session_id="purged")
    await (await purged.send("say what is purged")).text()
    await purged.clear(purge=True)


async def _imports(manager: SessionManager) -> None:
    messages = tuple(
        Message(
            id=f"m{number}", session="", turn=number // 2 + 1,
            role="assistant" if number % 2 else "user",
            body=encode_blocks(f"imported words {number}"), created_at=NOW - 1_000 + number,
        )
        for number in range(4)
    )  # fmt: skip
    imported = Conversation(
        id="elsewhere", format="own", messages=messages, title="From elsewhere",
        source="another system", extra={"mood": msgspec.Raw(b'"calm"')},
    )  # fmt: skip
    await manager.import_conversation(imported, PLAIN, session_id="imported")


async def _open_turns(manager: SessionManager) -> None:
    """``open`` waits for a tool, with a send behind it; ``resumed`` waits for one, too."""
    for name in ("open", "resumed"):
        session = await manager.create(PLAIN, session_id=name)
        await session.send("call look and wait")
        await _called(session)
    session = await manager.open("open", unbound="caller")
    await session.send("say it waited in the queue")
    session = await manager.create(PLAIN, session_id="handed over")
    await session.send("call look and wait")
    await _called(session)
    await manager.hand_over("handed over")


# What a later version has to read.


async def _kinds(store: Store) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for row in await store.rows():
        for stored in await store.read(row.session):
            kinds[msgspec.json.decode(stored.body)["kind"]] += 1
    return kinds


async def summary_of(make: Callable[[], Store]) -> dict[str, Any]:
    """What is in the store that *make* opens, as plain values. It is changed by nothing but the
    recovery of the session ``open``, which comes last."""
    store = make()
    sessions: dict[str, Any] = {}
    async for found in examine(store):
        row = await store.row(found.session)
        log = await store.read(found.session)
        sessions[found.session] = {
            "why_damaged": found.why,
            # Sorted: records that do not wait for each other may change places where it is made.
            "kinds": sorted(msgspec.json.decode(stored.body)["kind"] for stored in log),
            "open_turns": found.open_turns,
            "labels": row.labels,
            "parent": row.parent,
            "created_at": row.created_at,
            "touched_at": row.touched_at,
        }
    complaints = list(await store.check())
    await store.aclose()

    async with SessionManager(provider=answering(), store=make(), clock=lambda: NOW) as manager:
        for name, session in sessions.items():
            conversation = await manager.export_conversation(name)
            session["messages"] = [
                [message.id, message.turn, message.role, msgspec.json.decode(message.body)]
                for message in conversation.messages
            ]
            session["title"] = (await manager.row(name, titles=True)).title
            session["export"] = len(write_own(conversation).splitlines())
        found_in = {query: await _found(manager, query) for query in SEARCHES}
        opened = {name: await _opened(manager, name) for name in sessions if name != "open"}
        last = await manager.open("open", unbound="caller")  # recovery drops its turns
        outcomes = [(await last.turn(number).outcome()).status for number in (1, 2)]
        reply = await (await last.send("say hello again")).outcome()
    return {
        "complaints": complaints,
        "sessions": sessions,
        "search": found_in,
        "opened": opened,
        "recovered": {"outcomes": outcomes, "then": reply.status},
    }


async def _found(manager: SessionManager, query: str) -> list[str]:
    page = await manager.search(query)
    return [hit.session for hit in page.hits]


async def _opened(manager: SessionManager, name: str) -> dict[str, Any]:
    """What a session shows when it is opened."""
    session = await manager.open(name, unbound="caller")
    usage = session.usage()
    return {
        "system": session.config.system,
        "messages": len(session.conversation()),
        "requested": [message.role for message in session.context().messages],
        "tokens": [usage.total.input_tokens, usage.total.output_tokens],
        "calls": len(session.open_calls()),
    }
