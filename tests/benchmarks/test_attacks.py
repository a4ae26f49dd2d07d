"""Each attack of the benchmarks, for a moment: the service is as it was, and answers others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.attacks.loads import ATTACKS, Budget
from llmsession import connect
from tests.transport.places import CONFIG, address_of, serving, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})])  # as all transports
@pytest.mark.parametrize("name", ATTACKS)
async def test_a_client_that_behaves_is_served_and_nothing_is_left_of_the_attack(
    name: str, tmp_path: Path
) -> None:
    kind, attack = ATTACKS[name]
    async with serving(address_of(kind, tmp_path), lambda *_: "fine") as served:
        service, most = served.service, [0, 0]
        await served.manager.create(CONFIG, session_id="s")
        await served.manager.create(CONFIG, session_id="t")
        async with connect(served.address) as sessions:
            session = await sessions.open("t")
            # By the usual rate, ten seconds would be waited after a message of 32 MB.
            rate = 3e7 if kind == "grpc" else 3e6
            budget = Budget(0.3, bytes_per_s=rate, connections=10)
            attacking = asyncio.ensure_future(attack(served.address, budget))
            while not attacking.done():
                assert await (await session.send("hi")).text() == "fine"
                statistics = service.statistics()
                most = [
                    max(most[0], statistics.incoming_bytes),
                    max(most[1], statistics.subscriptions),
                ]
            await attacking
            limits = service.admission.limits
            assert most[0] <= limits.incoming_bytes
            assert most[1] <= limits.own_subscriptions_per_session + 2
            await until(lambda: service.statistics().incoming_bytes == 0)
            await until(lambda: service.statistics().subscriptions == 0)
            await until(lambda: service.admission.pending_hellos.count == 0)
            assert await (await session.send("still there?")).text() == "fine"
