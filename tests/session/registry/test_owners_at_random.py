"""Whatever fails at the store, a session is held by a manager exactly while it is live there."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

import anyio
import pytest

from llmsession import (
    MemoryStore,
    Retention,
    SessionConfig,
    SessionError,
    SessionManager,
    StoreError,
)
from llmsession.session.manager import runtime_of
from llmsession.store.protocol import AppendResult, Batch, Lease, Lost, Owner, SessionRow
from llmsession.testing.scripted import ScriptedProvider, say
from tests.session.probes import run_virtually
from tests.virtual_time import BACKENDS

T = TypeVar("T")
CONFIG = SessionConfig(model="m")
NAMES = ("a", "b")
ROUNDS, CALLS_A_ROUND = 4, 10
Call: TypeAlias = Callable[[SessionManager, str], Awaitable[None]]
HEALED_S = 100.0
"""A session is given back at the latest so long after the store works again."""


class Unreliable(MemoryStore):
    """Fails at random before or after it has done what it was asked, or takes long, while it has a
    *random*."""

    random: random.Random | None = None

    async def create(self, session: str, owner: Owner) -> Lease:
        return await self._do(partial(super().create, session, owner))

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        return await self._do(partial(super().acquire, session, owner, takeover=takeover))

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        return await self._do(partial(super().fork, parent, upto, session, owner))

    async def release(self, lease: Lease) -> None:
        await self._do(partial(super().release, lease))

    async def row(self, session: str) -> SessionRow:
        return await self._do(partial(super().row, session))

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        await self._do(partial(super().delete, session, epoch=epoch))

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        kind = 1.0 if self.random is None else self.random.random()
        if kind > 0.3:
            super().append(batch, done if kind > 0.5 else lambda _: None)
        if kind <= 0.5:
            done(Lost("the network is down", committed=None))

    async def _do(self, call: Callable[[], Awaitable[T]]) -> T:
        if self.random is None:
            return await call()
        kind, slow_s = self.random.random(), self.random.choice((0.0, 1.0, 20.0))
        if kind < 0.3:
            await anyio.sleep(slow_s)
        if kind < 0.15:
            raise StoreError("the network is down", committed=None)
        try:
            return await call()
        finally:  # also where it was refused
            if kind > 0.6:
                await anyio.sleep(slow_s)
                raise StoreError("the network is down", committed=None)


async def create(manager: SessionManager, name: str) -> None:
    await manager.create(CONFIG, session_id=name)


async def open_it(manager: SessionManager, name: str) -> None:
    await manager.open(name)


async def take(manager: SessionManager, name: str) -> None:
    await manager.open(name, takeover=True)


async def fork(manager: SessionManager, name: str) -> None:
    await (await manager.open(name)).fork(session_id=NAMES[name == NAMES[0]])


async def send(manager: SessionManager, name: str) -> None:
    await (await (await manager.open(name)).send("x")).outcome()


async def close(manager: SessionManager, name: str) -> None:
    await (await manager.open(name)).close()


async def hand_over(manager: SessionManager, name: str) -> None:
    await manager.hand_over(name, when="now")


async def delete(manager: SessionManager, name: str) -> None:
    await manager.apply_retention([Retention(delete_idle_s=1e-9)])


CALLS: tuple[Call, ...] = (create, open_it, take, fork, send, close, hand_over)


async def held_as_live(seed: int) -> None:
    rng, store = random.Random(seed), Unreliable()
    provider = ScriptedProvider(lambda request, tag: say("yes"))
    a_manager = partial(SessionManager, provider=provider, store=store, idle_s=rng.choice((1, 500)))
    calls = CALLS if rng.random() < 0.7 else (*CALLS, delete)
    async with a_manager() as one, a_manager() as two:
        for _ in range(ROUNDS):
            store.random = rng
            async with anyio.create_task_group() as group:
                for _ in range(CALLS_A_ROUND):
                    manager, patience_s = (
                        rng.choice((one, two)),
                        rng.choice((0.0, 0.5, 10.0, 100.0)),
                    )
                    group.start_soon(waiting, patience_s, rng.choice(calls), manager, rng)
                    await anyio.sleep(rng.choice((0.0, 0.0, 1.0)))
            store.random = None
            await anyio.sleep(HEALED_S)
            for row in await store.rows():
                for manager in (one, two):
                    runtime = runtime_of(manager)
                    actor = runtime.find_live(row.session)
                    if row.owner == runtime.owner:
                        assert actor is not None, f"{row} is held for nobody, seed {seed}"
                    elif actor is not None and delete not in calls:
                        # Another one took it, and the actor has not noticed yet.
                        is_stale = actor.core.journal.lease.epoch < row.epoch
                        assert is_stale, f"{row} is live and was given away, seed {seed}"


async def waiting(
    patience_s: float, call: Call, manager: SessionManager, rng: random.Random
) -> None:
    """Make *call*, and wait for its end no longer than *patience_s*."""
    with anyio.move_on_after(patience_s), suppress(SessionError):
        await call(manager, rng.choice(NAMES))


@pytest.mark.timeout(120)
def test_what_a_store_holds_for_a_manager_is_live_there_and_nothing_else() -> None:
    for seed in range(150):
        run_virtually(BACKENDS[seed % 2], partial(held_as_live, seed))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_a_store_holds_is_live_in_many_random_lives() -> None:
    for seed in range(1000, 6000):
        run_virtually(BACKENDS[seed % 2], partial(held_as_live, seed))
