"""Two hosts of one process take sessions from each other while clients use them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmsession.cluster import connect_cluster
from llmsession.testing.checker.histories import check_history
from llmsession.testing.scripted import Scripted, say
from llmsession.testing.stress.client_load import ClientLoad, LoadPlan, read_log
from llmsession.turns.request import Request, StepTag
from tests.cluster.faults.world import DEADLINE_S
from tests.cluster.hosts import LocalHost, local_host, refresh
from tests.store.conftest import Database

pytestmark = [pytest.mark.real_time, pytest.mark.sockets, pytest.mark.long]

ROUNDS = 15


def reply(_request: Request, tag: StepTag) -> Scripted:
    """Some replies take longer than it takes until another host has the session."""
    return say("a reply of several words").slow(0.02 * (tag.turn % 5), delta_chars=4)


async def test_two_hosts_that_take_sessions_from_each_other_keep_the_logs_right(
    database: Database, tmp_path: Path, seed: int
) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        local_host(database, tmp_path, "a", reply) as a,
        local_host(database, tmp_path, "b", reply) as b,
        connect_cluster([a.address]) as one,
        connect_cluster([b.address]) as other,
        database.store() as store,
    ):
        await refresh(a, b)
        load = ClientLoad([one, other], LoadPlan(seed=seed))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(load.run())
            await load.started.wait()
            for _ in range(ROUNDS):
                for host in (a, b):
                    await taken(host, load.sessions)
                    await load.progressed(1)
            load.stop()
            await running
        logs = {session: await read_log(store.read, session) for session in load.sessions}
        assert check_history(load.history(logs)) == ()
        assert [*load.errors, *load.troubles] == []
        epochs = [log[-1].epoch for log in logs.values()]
        assert min(epochs) > ROUNDS, "hardly anything was taken"


async def taken(host: LocalHost, sessions: tuple[str, ...]) -> None:
    await asyncio.gather(*(host.manager.open(session, takeover=True) for session in sessions))
