"""The clients of a load note every error, and go on."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from llmsession import SessionManager, StoreError
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import StoredRecord
from llmsession.testing.checker.histories import check_history
from llmsession.testing.scripted import ScriptedProvider
from llmsession.testing.stress.client_load import ClientLoad, LoadPlan, read_log
from tests.store.conftest import until

PLAN = LoadPlan(sessions=1, pause_s=0.01, model="m")


class UnreadableStore(MemoryStore):
    """Cannot be read while it *fails*."""

    fails = False

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        if self.fails:
            raise StoreError("no answer", committed=False)
        return await super().read(session, after=after, limit=limit)


async def test_a_subscription_that_fails_is_a_trouble_and_begins_again() -> None:
    store = UnreadableStore()
    provider = ScriptedProvider(lambda request, tag: "said")
    async with SessionManager(provider=provider, store=store) as manager:
        load = ClientLoad([manager], PLAN)
        async with anyio.create_task_group() as group:
            group.start_soon(load.run)
            await load.started.wait()
            store.fails = True
            await until(lambda: load.troubles)
            store.fails = False
            await load.progressed(1)
            load.stop()
        logs = {session: await read_log(store.read, session) for session in load.sessions}
    assert check_history(load.history(logs)) == ()
    assert all("StoreError: no answer" in trouble for trouble in load.troubles)


async def test_a_load_ends_although_an_owner_writes_when_all_turns_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a host does that hands the session over just then: the subscribers have read more."""
    last_of = ClientLoad.last_of

    def record_before(load: ClientLoad, session: str) -> int | None:
        last = last_of(load, session)
        return None if last is None else last - 1

    monkeypatch.setattr(ClientLoad, "last_of", record_before)
    provider = ScriptedProvider(lambda request, tag: "said")
    async with SessionManager(provider=provider, store=MemoryStore()) as manager:
        load = ClientLoad([manager], PLAN)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(load.run)
                await load.started.wait()
                load.stop()
