"""Managers that share a store share the budgets of tenants: nobody spends what another one did."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest

from llmsession import (
    BudgetExhausted,
    CompactionConfig,
    LLMSession,
    MemoryStore,
    Price,
    SessionConfig,
    SessionManager,
    SessionMoved,
    Spending,
    SpendingBudget,
    Store,
    StoreError,
    TurnFailed,
    Usage,
)
from llmsession.session.core.account import Account
from llmsession.session.core.shared_tenants import HOLD_S, SLICES
from llmsession.session.core.tenants import Tenants
from llmsession.session.log.read_state import read_state
from llmsession.session.manager import runtime_of
from llmsession.session.values.config import SummariserConfig
from llmsession.store import Appended, AppendResult, Batch, Lost, Owner
from llmsession.store.counting import Amounts
from llmsession.testing.scripted import ScriptedProvider, say
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.spending.prices import PriceTable
from tests.session.actors import settled
from tests.session.compacting.conversations import one_call_a_turn, tools

CONFIG = SessionConfig(model="m")
PRICES = {"m": Price.usd(1, 10)}
COST = 10


class CountedStore(MemoryStore):
    """Counts the calls of each method. ``breaks`` names one that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.breaks = ""

    async def reserve(self, *args: Any, **options: Any) -> Any:
        self._called("reserve")
        return await super().reserve(*args, **options)

    async def spent_by(self, account: str) -> Spending:
        self._called("spent_by")
        return await super().spent_by(account)

    async def read(self, session: str, **place: Any) -> Any:
        self._called("read")
        return await super().read(session, **place)

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if name == self.breaks:
            raise StoreError("the disk is gone", committed=False)


@asynccontextmanager
async def manager_of(
    store: Store, limit: int | None = None, *, delay_s: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[SessionManager]:
    """Every reply costs 10 tokens, all of them output, and takes *delay_s*."""

    def cheap(request: Request, tag: StepTag) -> Any:
        return say("hi").slow(delay_s()).costing(Usage(output_tokens=COST))

    budgets = {"acme": SpendingBudget(max_tokens=limit)} if limit is not None else {}
    async with SessionManager(
        provider=ScriptedProvider(cheap), store=store, prices=PRICES, tenant_budgets=budgets
    ) as manager:
        yield manager


async def said(session: LLMSession) -> None:
    await (await session.send("go")).text()


async def is_refused(session: LLMSession) -> bool:
    """Send, and return whether the budget was used up: before the turn, or in it."""
    try:
        await said(session)
    except BudgetExhausted as error:
        return (error.whose, error.name) == ("tenant", "acme")
    return False


async def spent_in_logs(store: Store) -> Spending:
    total = Spending()
    for row in await store.rows():
        if row.head:
            state = await read_state(store, row.session)
            total += Account(state, PriceTable(PRICES), Tenants()).spent()
    return total


async def test_what_one_manager_spent_is_missing_at_the_other() -> None:
    store = MemoryStore()
    async with manager_of(store, 40) as one, manager_of(store, 40) as two:
        first = await one.create(CONFIG, tenant="acme")
        second = await two.create(CONFIG, tenant="acme")
        for session in (first, second, first, second):
            await said(session)
        assert await is_refused(first)
        assert await is_refused(second)
        assert await one.tenant_spending("acme") == await two.tenant_spending("acme")
        assert await one.tenant_spending("acme") == await spent_in_logs(store)
        assert (await one.tenant_spending("acme")).tokens == 40


async def test_a_turn_that_began_ends_where_others_have_spent_the_budget() -> None:
    store = MemoryStore()
    async with manager_of(store, COST) as one, manager_of(store, COST) as two:
        second = await two.create(CONFIG, tenant="acme")
        await said(await one.create(CONFIG, tenant="acme"))
        outcome = await (await second.send("go")).outcome()
        assert (outcome.status, outcome.stop_reason) == ("failed", "budget")
        with pytest.raises(BudgetExhausted, match="'acme' is used up: 10 of 10"):
            await second.send("go")


async def test_the_store_is_asked_once_for_many_requests() -> None:
    store = CountedStore()
    async with manager_of(store, 100 * SLICES * COST) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        for _ in range(90):
            await said(session)
        assert store.calls["reserve"] == 1


async def test_many_sessions_of_a_manager_ask_the_store_once() -> None:
    store = CountedStore()
    async with manager_of(store, 10_000) as manager, anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(said, await manager.create(CONFIG, tenant="acme"))
    assert store.calls["reserve"] == 1


async def test_a_slice_is_not_used_once_it_has_ended() -> None:
    store = CountedStore()
    async with manager_of(store, 10_000) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        await said(session)
        await anyio.sleep(HOLD_S)
        await said(session)
        assert store.calls["reserve"] == 2


async def test_a_restart_reads_no_log_again() -> None:
    store = CountedStore()
    for limit in (None, 1_000):  # first nobody counts
        async with manager_of(store, limit) as manager:
            for _ in range(3):
                await said(await manager.create(CONFIG, tenant="acme"))
    assert store.calls["read"] == 3  # when it was counted for the first time
    async with manager_of(store, 60) as manager:
        assert await is_refused(await manager.create(CONFIG, tenant="acme"))
    assert store.calls["read"] == 3


async def test_what_a_manager_held_that_died_is_free_when_its_slice_ends() -> None:
    store = MemoryStore()
    async with manager_of(store, 40) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        await said(session)
        dead, limit = "a manager that died", Amounts(40)
        grant = await store.reserve(
            "acme", dead, limit, Amounts(30), pending=Spending(), hold_s=HOLD_S
        )
        assert grant.part.tokens
        begun = anyio.current_time()
        for _ in range(3):
            await said(session)
        assert anyio.current_time() - begun <= HOLD_S + 1
        assert await is_refused(session)


async def test_a_manager_that_is_left_gives_its_slice_back() -> None:
    store = MemoryStore()
    async with manager_of(store, 40) as one:
        session = await one.create(CONFIG, tenant="acme")
        async with manager_of(store, 40) as two:
            await said(await two.create(CONFIG, tenant="acme"))
        begun = anyio.current_time()
        for _ in range(3):
            await said(session)
        assert anyio.current_time() == begun


async def test_a_batch_of_which_nobody_knows_whether_it_was_written_is_counted_once() -> None:
    class Doubtful(MemoryStore):
        in_doubt = False

        def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
            def answered(result: AppendResult) -> None:
                lost = self.in_doubt and batch.charge is not None and isinstance(result, Appended)
                done(Lost("the connection broke", None) if lost else result)

            super().append(batch, answered)

    store = Doubtful()
    async with manager_of(store, 25) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        store.in_doubt = True
        with pytest.raises(StoreError):
            await said(session)
        store.in_doubt = False
        assert (await manager.tenant_spending("acme")).tokens == COST
        assert await manager.tenant_spending("acme") == await spent_in_logs(store)
        assert not await is_refused(session)
        assert not await is_refused(session)
        assert await is_refused(session)


async def test_a_batch_that_was_surely_not_written_is_not_counted_and_frees_its_part() -> None:
    class Failing(MemoryStore):
        fails = False

        def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
            if self.fails and batch.charge is not None:
                done(Lost("the disk is full", False))
            else:
                super().append(batch, done)

    store = Failing()
    async with manager_of(store, COST) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        store.fails = True
        for _ in range(4):
            with pytest.raises(StoreError):
                await said(session)
        store.fails = False
        await said(session)
        assert await is_refused(session)
        assert await manager.tenant_spending("acme") == await spent_in_logs(store)


async def test_what_a_stream_spent_whose_session_was_taken_holds_no_part_of_the_budget() -> None:
    store = MemoryStore()
    cost = Usage(output_tokens=COST)
    replies = [say("half of it").costing(cost).hanging(at=2), *2 * [say("hi").costing(cost)]]
    async with SessionManager(
        provider=ScriptedProvider(replies),
        store=store,
        prices=PRICES,
        tenant_budgets={"acme": SpendingBudget(max_tokens=15)},
    ) as manager:
        lost = await manager.create(CONFIG, tenant="acme")
        turn = await lost.send("go")
        await anyio.sleep(1)
        assert lost.usage().total.output_tokens == COST
        await store.acquire(lost.id, Owner("another"), takeover=True)
        with pytest.raises(SessionMoved):
            await lost.label(title="x")
        with pytest.raises(SessionMoved):
            await turn.outcome()
        assert await manager.tenant_spending("acme") == await spent_in_logs(store)
        other = await manager.create(CONFIG, tenant="acme")
        await said(other)
        with anyio.fail_after(60):  # 5 of 15 are left
            await said(other)


async def test_what_a_summary_spent_that_a_close_cut_off_holds_no_part_of_the_budget() -> None:
    store = MemoryStore()
    summary = say("short").costing(Usage(output_tokens=COST)).hanging(at=1)
    compaction = CompactionConfig(
        keep_recent_turns=1,
        schedule="at_once",
        summariser=SummariserConfig(model="small", improve_results=True),
    )
    async with SessionManager(
        provider=ScriptedProvider(one_call_a_turn),
        summariser=ScriptedProvider([summary], profile=Profile(window_tokens=200_000)),
        store=store,
        tenant_budgets={"acme": SpendingBudget(max_tokens=1_000_000)},
    ) as manager:
        session = await manager.create(
            SessionConfig(model="m", tools=tools(), compaction=compaction), tenant="acme"
        )
        for _ in range(2):
            await said(session)
        await settled()
        assert runtime_of(manager).running_works == (f"summary of c1 in {session.id}",)
        await session.close()
        spent = await manager.tenant_spending("acme")
        assert spent.tokens == (await spent_in_logs(store)).tokens


async def test_what_was_spent_and_is_not_written_yet_is_not_reserved_again() -> None:
    class Slow(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.held: list[tuple[Batch, Callable[[AppendResult], None]]] = []
            self.is_slow = True

        def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
            if batch.charge is None or not self.is_slow:
                super().append(batch, done)
            else:
                self.held.append((batch, done))

        def write(self) -> None:
            self.is_slow = False
            for batch, done in self.held:
                super().append(batch, done)

    store = Slow()
    async with manager_of(store, 15) as manager:
        turns = []
        for _ in range(3):
            session = await manager.create(CONFIG, tenant="acme")
            turns.append(await session.send("go"))
            await anyio.sleep(2)
        begun = len(store.held)
        store.write()
        outcomes = [await turn.outcome() for turn in turns]
    assert begun == 2, "the third began although 20 of 15 were spent"
    assert [outcome.stop_reason for outcome in outcomes] == ["end_turn", "end_turn", "budget"]


async def test_a_turn_fails_where_the_store_cannot_say_what_is_left() -> None:
    store = CountedStore()
    async with manager_of(store, 100) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        store.breaks = "reserve"
        with pytest.raises(TurnFailed, match="the disk is gone"):
            await said(session)
        store.breaks = ""
        await said(session)


async def test_an_interrupt_ends_a_turn_that_waits_for_the_slices_of_others() -> None:
    store = MemoryStore()
    async with manager_of(store, 1) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        for number in range(2):
            await store.reserve(
                "acme", f"{number}", Amounts(1), Amounts(1), pending=Spending(), hold_s=1_000
            )
        turn = await session.send("go")
        await anyio.sleep(30)
        await session.interrupt()
        assert (await turn.outcome()).status == "aborted"


@pytest.mark.parametrize("seed", range(12))
async def test_managers_spend_a_budget_whole_and_exceed_it_by_what_is_under_way_only(
    seed: int,
) -> None:
    """Any number of managers and sessions, in any order; some end without giving anything back."""
    random = Random(seed)
    limit, managers = random.choice((1, 25, 300, 1_000)), random.randint(1, 4)
    sessions, pauses = random.randint(1, 3), random.choice(((0.0,), (0.0, 0.3), (0.0, 0.1, 7.0)))

    class Forgetful(MemoryStore):
        async def give_back(self, owner: str) -> None:
            if random.random() < 0.5:
                await super().give_back(owner)

    store = Forgetful()

    async def live(session: LLMSession, sends: int) -> None:
        for _ in range(sends):
            await anyio.sleep(random.choice(pauses))
            if await is_refused(session):
                return

    async def host() -> None:
        async with (
            manager_of(store, limit, delay_s=lambda: random.choice(pauses)) as manager,
            anyio.create_task_group() as group,
        ):
            for _ in range(sessions):
                session = await manager.create(CONFIG, tenant="acme")
                group.start_soon(live, session, random.choice((3, 1_000)))

    async with anyio.create_task_group() as group:
        for _ in range(managers):
            group.start_soon(host)
    async with manager_of(store, limit) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        while not await is_refused(session):
            pass
        spent = await manager.tenant_spending("acme")
    assert spent == await spent_in_logs(store)
    assert limit <= spent.tokens < limit + managers * sessions * COST
