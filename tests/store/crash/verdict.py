"""What holds of a store after a life on it has ended, however it ended."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from llmsession import SessionManager, Store
from llmsession.compaction.validity import check_request
from llmsession.session.integrity import examine
from llmsession.session.loading import read_state
from llmsession.store import open_store
from llmsession.testing import ScriptedProvider
from llmsession.turns import records as r
from tests.session.actors import check_log

from .life import Told, reply

__all__ = ["judge", "judge_told"]


async def judge(address: str, told: Sequence[Told]) -> Counter[str]:
    """Everything that was told is there, nothing is half there, and every session goes on.

    Returns how often each thing was met, so that a test can say that it happened at all.
    """
    store = open_store(address)
    try:
        assert list(await store.check()) == []
        whole = [found async for found in examine(store)]
        assert [found for found in whole if not found.is_whole] == []
        met = await judge_told(store, told)
        met["open turns"] += sum(found.open_turns for found in whole)
    finally:
        await store.aclose()
    met.update(await _go_on(address))
    return met


async def judge_told(store: Store, told: Sequence[Told]) -> Counter[str]:
    """Whatever was shown or answered is in the log."""
    met: Counter[str] = Counter(each.what for each in told)
    rewritten = {each.session for each in told if each.what == "forgetting"}
    bodies: dict[str, list[bytes]] = {}
    for each in told:
        if each.what not in ("shown", "answered"):
            continue
        if each.session not in bodies:
            bodies[each.session] = [record.body for record in await store.read(each.session)]
        log = bodies[each.session]
        if each.what == "shown":
            assert each.seq <= len(log), f"{each} was shown, and the log has {len(log)} records"
            if each.session not in rewritten:
                assert hashlib.sha256(log[each.seq - 1]).hexdigest() == each.body, each
        elif each.command:
            state = await read_state(store, each.session)
            assert each.command in state.commands, each
            assert each.turn in state.accepted_at, each
    return met


async def _go_on(address: str) -> Counter[str]:
    """Open every session without a takeover: its owner is known to be dead. Then say something."""
    met: Counter[str] = Counter()
    provider = ScriptedProvider(reply)
    store = open_store(address)
    async with SessionManager(provider=provider, store=store) as manager:
        names = [row.session for row in await manager.list()]
        for name in names:
            before = await read_state(store, name)
            session = await manager.open(name)
            if before.running() is not None:
                met["went on from an open turn"] += 1
            await session.interrupt()  # what was resumed waits for its tools
            turn = await session.send("and now?")
            assert turn.id.number > before.counter.last
            outcome = await turn.outcome()
            assert outcome.status == "committed", outcome
            assert session.conversation()[-1].text == f"done with turn {turn.id.number}"
            if before.parent is None:  # a fork's log has turns that were left open in its parent's
                check_log([r.decode_record(stored.body) for stored in await store.read(name)])
            met["sessions"] += 1
        for request in provider.requests:
            assert check_request(request, provider.profile(request.model)) == ()
    return met
