"""What accounts spend in PostgreSQL, where several hosts append, take, and are cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest

from llmsession import BudgetExhausted, SessionConfig, SessionManager, SpendingBudget, Usage
from llmsession.store import Appended, Batch, Lease, Owner, PostgresStore
from llmsession.store.cipher import PLAIN
from llmsession.store.counting import Amounts, Charge, Uncounted
from llmsession.store.postgres.sql import account_mark
from llmsession.testing.scripted import ScriptedProvider, say
from llmsession.testing.store_contract.actions import Answer
from llmsession.turns.spending.spending import Spending
from tests.store.conftest import Database, until
from tests.store.postgres.proxy import Proxy, When

# On one backend: what is tested runs in the store's own loop, whoever asks.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ANN = Owner("ann")
ACME = {"tenant": "acme"}


async def charged(
    store: PostgresStore, lease: Lease, tokens: int = 1, account: str = "acme"
) -> Lease:
    answer = Answer()
    charge = Charge(account, Spending(tokens, 2 * tokens))
    place = (lease.session, lease.epoch, lease.head)
    store.append(Batch(*place, (b"1",), 1.0, ACME, charge=charge), answer.done)
    assert await answer.wait() == Appended(lease.head + 1)
    return Lease(lease.session, lease.epoch, lease.head + 1)


async def test_a_counter_is_begun_before_or_after_an_append_and_not_within(
    database: Database,
) -> None:
    """The append has begun when there is no counter yet. So the counter waits for it, and finds its
    records in the log."""
    listed: list[Uncounted] = []
    async with database.store() as one, database.store() as two:
        lease = await charged(one, await one.create("s", ANN))

        async def begin() -> None:
            listed.extend(await two.begin_count("acme", ACME, limit=10))

        async with anyio.create_task_group() as group:
            with database.locked("session", "id = 's'") as session:
                group.start_soon(charged, one, lease)
                await until(lambda: database.waiting() == 1)
                group.start_soon(begin)
                await until(lambda: database.waiting() == 2 or listed)
                session.run("ROLLBACK; BEGIN")
        assert listed == [Uncounted("s", 2)]
        assert await two.spent_by("acme") == Spending()


async def test_what_is_appended_while_the_counter_is_begun_is_counted_once(
    database: Database,
) -> None:
    """Each record spends a token, so a session's head is what it has spent."""
    random, heads = Random(1), dict[str, int]()

    async def write(store: PostgresStore, session: str) -> None:
        lease = await store.create(session, ANN)
        for _ in range(40):
            lease = await charged(store, lease)
        heads[session] = lease.head

    async with database.store() as one, database.store() as two, anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(write, (one, two)[number % 2], f"s{number}")
        await anyio.sleep(random.random() * 0.1)
        for store in (one, two):
            group.start_soon(_count, store)
    async with database.store() as store:
        assert await store.begin_count("acme", ACME, limit=10) == []
        assert (await store.spent_by("acme")).tokens == sum(heads.values()) == 12 * 40


async def _count(store: PostgresStore) -> None:
    while uncounted := await store.begin_count("acme", ACME, limit=3):
        spent = {each.session: Spending(each.upto, 2 * each.upto) for each in uncounted}
        await store.add_counted("acme", spent)


@pytest.mark.parametrize("when", ["before", "within", "after"])
async def test_a_charge_whose_answer_was_lost_is_counted_once(
    database: Database, proxy: Proxy, when: When
) -> None:
    async with database.store(dsn=proxy.dsn) as store:
        await store.begin_count("acme", ACME, limit=1)
        lease = await charged(store, await store.create("the one", ANN), 5)
        proxy.cut(b"the one", when)
        await charged(store, lease, 3)
        assert proxy.cuts == 1
        assert await store.spent_by("acme") == Spending(8, 16)


@pytest.mark.parametrize("when", ["before", "within", "after"])
async def test_a_slice_whose_answer_was_lost_is_held_once(
    database: Database, proxy: Proxy, when: When
) -> None:
    limit: dict[str, Any] = {"pending": Spending(), "hold_s": 1_000.0}
    async with database.store(dsn=proxy.dsn) as store, database.store() as other:
        await store.begin_count("acme", ACME, limit=1)
        proxy.cut(b"the owner", when)
        grant = await store.reserve("acme", "the owner", Amounts(100), Amounts(100), **limit)
        assert (grant.part.tokens, proxy.cuts) == (50, 1)
        grant = await other.reserve("acme", "other", Amounts(100), Amounts(100), **limit)
        assert grant.part.tokens == 25


async def test_a_group_charges_accounts_in_one_order_so_that_no_two_groups_wait_in_a_circle(
    database: Database,
) -> None:
    """One that waits for the first account holds none of the others."""
    first, *others = sorted(
        (f"account {number}" for number in range(12)), key=lambda name: account_mark(name, PLAIN)
    )
    async with database.store() as one, database.store() as two:
        for account in (first, *others):
            await one.begin_count(account, ACME, limit=1)
        leases = [await one.create(account, ANN) for account in (first, *others)]
        other = await two.create("other", ANN)
        mark = account_mark(first, PLAIN).hex()
        async with anyio.create_task_group() as group:
            with database.locked("counter", f"account = decode('{mark}', 'hex')") as session:
                for lease in leases:  # they are one group
                    group.start_soon(partial(charged, one, lease, account=lease.session))
                await until(database.waiting)
                for account in others:
                    other = await charged(two, other, account=account)
                session.run("ROLLBACK; BEGIN")
        assert (await one.spent_by(first)).tokens == 1
        assert [(await one.spent_by(account)).tokens for account in others] == [2] * len(others)


async def test_the_names_of_accounts_are_not_in_an_encrypted_stores_files(
    database: Database,
) -> None:
    async with database.store(key=bytes(32)) as store:
        await store.begin_count("acme-and-sons", {}, limit=1)
        await charged(store, await store.create("s", ANN), account="acme-and-sons")
        assert (await store.spent_by("acme-and-sons")).tokens == 1
    assert b"acme-and-sons" not in database.everything()


async def test_tables_from_before_there_were_counters_get_them(database: Database) -> None:
    async with database.store() as store:
        await store.create("s", ANN)
    database.sql("DROP TABLE @counter, @slice, @uncounted".replace("@", f'"{database.schema}".'))
    async with database.store() as store:
        await store.begin_count("acme", ACME, limit=1)
        await charged(store, await store.acquire("s", ANN))
        assert (await store.spent_by("acme")).tokens == 1


# With sessions.


@asynccontextmanager
async def host(database: Database, limit: int, **options: Any) -> AsyncIterator[SessionManager]:
    """Every reply costs 10 tokens."""
    provider = ScriptedProvider(lambda *_: say("hi").costing(Usage(output_tokens=10)))
    async with (
        database.store(**options) as store,
        SessionManager(
            provider=provider,
            store=store,
            tenant_budgets={"acme": SpendingBudget(max_tokens=limit)},
        ) as manager,
    ):
        yield manager


async def spend(manager: SessionManager, name: str) -> int:
    """Send until the budget is used up. Returns how many turns were answered."""
    session = await manager.create(SessionConfig(model="m"), session_id=name, tenant="acme")
    answered = 0
    while True:
        try:
            await (await session.send("go")).text()
        except BudgetExhausted:
            return answered
        answered += 1


async def test_hosts_that_work_at_once_spend_a_budget_whole_and_once(database: Database) -> None:
    answered = list[int]()

    async def work(manager: SessionManager, name: str) -> None:
        answered.append(await spend(manager, name))

    async with host(database, 1_000) as one, host(database, 1_000) as two:
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(work, (one, two)[number % 2], f"s{number}")
        spent = await one.tenant_spending("acme")
        assert spent == await two.tenant_spending("acme")
    assert spent.tokens == 10 * sum(answered)
    assert 1_000 <= spent.tokens < 1_000 + 6 * 10


@pytest.mark.parametrize("when", ["before", "within", "after"])
async def test_a_turn_that_was_cut_off_when_it_was_written_is_paid_for_once(
    database: Database, proxy: Proxy, when: When
) -> None:
    async with host(database, 100, dsn=proxy.dsn) as manager, host(database, 100) as other:
        session = await manager.create(SessionConfig(model="m"), session_id="it", tenant="acme")
        await (await session.send("go")).text()
        turn = await session.send("go")
        proxy.cut(b"turn.committed", when)
        await turn.text()
        assert proxy.cuts == 1
        assert (await other.tenant_spending("acme")).tokens == 20
