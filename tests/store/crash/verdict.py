"""What holds of a store after a life on it has ended, however it ended."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import anyio

from llmsession import LLMSession, SessionConfig, SessionManager, Store
from llmsession.compaction.rules.check import check_request
from llmsession.session.log.read_state import read_state
from llmsession.session.log.state import SessionState, fold
from llmsession.session.operations.integrity import examine
from llmsession.session.snapshots.reading import read_from_snapshot
from llmsession.store.checked import checked_store
from llmsession.testing import ScriptedProvider
from tests.session.actors import check_log, contents
from tests.session.probes import live_state, log_of

from .life import SESSIONS, TOOLS, Told, open_place, reply

__all__ = ["judge", "judge_told"]


PATIENCE_S = 150.0


async def judge(place: str, told: Sequence[Told]) -> Counter[str]:
    """Everything that was told is there, nothing is half there, and every session goes on.

    *told* is from all lives on that store. Returns how often each thing was met, so that a test
    can say that it happened at all.
    """
    with anyio.fail_after(PATIENCE_S):
        met = await _look(place, told)
        met.update(await _go_on(place, told))
        return met


async def _look(place: str, told: Sequence[Told]) -> Counter[str]:
    """Reads alone, and takes nothing."""
    store = open_place(place)
    try:
        assert list(await store.check()) == []
        whole = [found async for found in examine(store)]
        assert [found for found in whole if not found.is_whole] == []
        met = await judge_told(store, told)
        met["open turns"] += sum(found.open_turns for found in whole)
        met["snapshots"] += sum([await _has_snapshot(store, found.session) for found in whole])
        return met
    finally:
        await store.aclose()


async def _has_snapshot(store: Store, name: str) -> bool:
    """Whether a session has a snapshot. It leads to what its log says, and is never torn."""
    reasons: list[str] = []
    state = await read_from_snapshot(checked_store(store), name, reasons.append)
    assert reasons == []
    assert contents(state) == contents(await read_state(store, name))
    return state.snapshot_head > 0


async def judge_told(store: Store, told: Sequence[Told]) -> Counter[str]:
    """Whatever was shown or answered is in the log."""
    met: Counter[str] = Counter(each.what for each in told)
    rewritten = _rewritten(told)
    bodies: dict[str, list[bytes]] = {}
    states: dict[str, SessionState] = {}
    for each in told:
        if each.what not in ("shown", "answered"):
            continue
        if each.session not in bodies:
            bodies[each.session] = [record.body for record in await store.read(each.session)]
            states[each.session] = await read_state(store, each.session)
        log = bodies[each.session]
        if each.what == "shown":
            assert each.seq <= len(log), f"{each} was shown, and the log has {len(log)} records"
            if each.session not in rewritten:
                assert hashlib.sha256(log[each.seq - 1]).hexdigest() == each.body, each
        elif each.command:
            assert each.command in states[each.session].commands, each
            assert each.turn in states[each.session].accepted_at, each
    numbers = [(each.session, each.turn) for each in told if each.command]
    assert len(set(numbers)) == len(numbers), "a TurnId was used twice"
    return met


def _rewritten(told: Iterable[Told]) -> set[str]:
    return {each.session for each in told if each.what == "forgetting"}


async def _go_on(place: str, told: Sequence[Told]) -> Counter[str]:
    """Open every session without a takeover: its owner is known to be dead. Then say something."""
    met: Counter[str] = Counter()
    provider = ScriptedProvider(reply)
    store = open_place(place)
    commands = {each.session: each for each in told if each.command}
    rewritten = _rewritten(told)
    async with SessionManager(provider=provider, store=store) as manager:
        names = [row.session for row in await manager.list()]
        for name in names:
            before = await read_state(store, name)
            session = await manager.open(name, tools=TOOLS)
            await _equals_its_log(session, store)
            if before.running() is not None:
                met["went on from an open turn"] += 1
            await session.interrupt()  # what was resumed waits for its tools
            if name in commands and name not in rewritten:
                again = commands[name]
                same = await session.send(again.body, command_id=again.command)
                assert same.id.number == again.turn
                met["asked again"] += 1
            turn = await session.send("and now?")
            assert turn.id.number > before.counter.last
            outcome = await turn.outcome()
            assert outcome.status == "committed", outcome
            assert session.conversation()[-1].text == f"done with turn {turn.id.number}"
            await _equals_its_log(session, store)
            if before.parent is None:  # a fork's log has turns that were left open in its parent's
                check_log(await log_of(store, name))
            met["sessions"] += 1
        empty = {row.session for row in await store.rows()} - set(names)
        for name in (set(SESSIONS) - set(names)) | empty:
            # Nobody was told of it, so nothing of it may be in the way of the next one.
            session = await manager.create(SessionConfig(model="m", tools=TOOLS), session_id=name)
            assert await (await session.send("first")).text() == "done with turn 1"
            met["made anew"] += 1
            met["left without a record"] += name in empty
        for request in provider.requests:
            assert check_request(request, provider.profile(request.model)) == ()
    return met


async def _equals_its_log(session: LLMSession, store: Store) -> None:
    """What the session has in memory is the fold of what is durable. It may be at work."""
    while True:
        log = await log_of(store, session.id)
        live = live_state(session)  # no await between this and the look at it
        if live.head <= len(log):
            assert contents(fold(session.id, log[: live.head])) == contents(live)
            return
