"""Tenants: who a session belongs to, what all their sessions have spent, and what they may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmsession import (
    BudgetExhausted,
    InvalidConfig,
    InvalidInput,
    LLMSession,
    MemoryStore,
    Price,
    ProviderError,
    Retention,
    SessionConfig,
    SessionFilter,
    SessionManager,
    Spending,
    SpendingBudget,
    SqliteStore,
    Store,
    StoreError,
    Usage,
)
from llmsession.session.core.account import Account
from llmsession.session.values.labels import TENANT_LABEL
from llmsession.store import StoredRecord
from llmsession.store.counting import CountingStore
from llmsession.testing import FaultyStore
from llmsession.testing.scripted import ScriptedProvider, never, say
from llmsession.turns.request import Request, StepTag
from tests.session.actors import settled

CONFIG = SessionConfig(model="m")
COST = Usage(input_tokens=7, output_tokens=3)
COST_NANO = 37_000
TEN = SpendingBudget(max_tokens=10)


@pytest.fixture(params=["counts", "does not count"])
def store(request: pytest.FixtureRequest) -> Store:
    """A store that counts what tenants spend, and one whose logs are summed up."""
    return MemoryStore() if request.param == "counts" else FaultyStore(MemoryStore())


@asynccontextmanager
async def manager_of(
    *, store: Store | None = None, script: Any = None, **more: Any
) -> AsyncIterator[SessionManager]:
    """Every reply costs COST, unless a *script* says otherwise."""

    def cheap(request: Request, tag: StepTag) -> Any:
        return say("hi").costing(COST)

    async with SessionManager(
        provider=ScriptedProvider(script or cheap),
        store=store if store is not None else MemoryStore(),
        prices={"m": Price.usd(1, 10)},
        **more,
    ) as manager:
        yield manager


async def said(session: LLMSession) -> None:
    await (await session.send("go")).text()


async def test_a_tenant_is_a_label_of_the_sessions_own_that_stays() -> None:
    async with manager_of() as manager:
        session = await manager.create(CONFIG, labels={"user": "7"}, tenant="acme")
        assert session.tenant == "acme"
        assert session.labels == {"user": "7", TENANT_LABEL: "acme"}
        await session.label({"user": "8"})
        assert session.labels == {"user": "8", TENANT_LABEL: "acme"}
        await session.label({})
        assert session.tenant == "acme"
        assert (await manager.create(CONFIG)).tenant is None
        found = await manager.list(filter=SessionFilter(labels={TENANT_LABEL: "acme"}))
        assert [row.session for row in found] == [session.id]


@pytest.mark.parametrize("name", [TENANT_LABEL, "llmsession.", "llmsession.anything"])
async def test_labels_of_the_sessions_own_are_refused_from_users(name: str) -> None:
    async with manager_of() as manager:
        with pytest.raises(InvalidInput, match="are reserved"):
            await manager.create(CONFIG, labels={name: "acme"})
        session = await manager.create(CONFIG, tenant="acme")
        with pytest.raises(InvalidInput, match="are reserved"):
            await session.label({name: "other"})
        with pytest.raises(InvalidInput, match="are reserved"):
            await session.fork(labels={name: "other"})
        assert session.labels == {TENANT_LABEL: "acme"}
        assert (await manager.create(CONFIG, labels={"llmsessions": "fine"})).tenant is None


async def test_a_fork_belongs_to_its_parents_tenant_whatever_labels_it_gets() -> None:
    async with manager_of() as manager:
        session = await manager.create(CONFIG, labels={"user": "7"}, tenant="acme")
        await said(session)
        assert (await session.fork()).labels == session.labels
        other = await session.fork(labels={"user": "8"})
        assert other.labels == {"user": "8", TENANT_LABEL: "acme"}


@pytest.mark.parametrize("tenant", ["", 3, "a\nb", "x" * 257])
async def test_a_tenant_that_is_no_name_is_refused(tenant: Any) -> None:
    async with manager_of() as manager:
        with pytest.raises(InvalidInput, match="tenant"):
            await manager.create(CONFIG, tenant=tenant)
        with pytest.raises(InvalidInput, match="tenant"):
            await manager.tenant_spending(tenant)
    with pytest.raises(InvalidInput, match="tenant"):
        SessionManager(provider=ScriptedProvider([]), tenant_budgets={tenant: TEN})


@pytest.mark.parametrize("budgets", [[], {"acme": 5}, {"acme": SpendingBudget(max_tokens=-1)}])
def test_tenant_budgets_that_cannot_be_are_refused(budgets: Any) -> None:
    with pytest.raises(InvalidConfig):
        SessionManager(provider=ScriptedProvider([]), tenant_budgets=budgets)


async def test_all_sessions_of_a_tenant_spend_one_budget_and_no_other_tenants(store: Store) -> None:
    budgets = {"acme": SpendingBudget(max_tokens=20), "other": TEN}
    async with manager_of(store=store, tenant_budgets=budgets) as manager:
        one = await manager.create(CONFIG, tenant="acme")
        two = await manager.create(CONFIG, tenant="acme")
        await said(one)
        await said(two)
        for session in (one, two, await manager.create(CONFIG, tenant="acme")):
            with pytest.raises(BudgetExhausted, match="tenant 'acme' is used up: 20 of 20"):
                await session.send("more")
        await said(await manager.create(CONFIG, tenant="other"))
        await said(await manager.create(CONFIG, tenant="free"))
        await said(await manager.create(CONFIG))


async def test_a_running_turn_of_one_session_ends_when_another_has_spent_the_rest(
    store: Store,
) -> None:
    async with manager_of(store=store, tenant_budgets={"acme": TEN}) as manager:
        one = await manager.create(CONFIG, tenant="acme")
        two = await manager.create(CONFIG, tenant="acme")
        first = await one.send("go")
        second = await two.send("go")  # both were accepted; nothing was spent yet
        third = await two.send("go")
        await first.text()
        await second.text()  # it was asked for before the first was answered
        outcome = await third.outcome()
        assert (outcome.status, outcome.stop_reason) == ("failed", "budget")
        assert outcome.exceeded is not None
        assert (outcome.exceeded.whose, outcome.exceeded.name) == ("tenant", "acme")


async def test_a_sessions_own_budget_goes_before_its_tenants() -> None:
    async with manager_of(tenant_budgets={"acme": TEN}) as manager:
        session = await manager.create(SessionConfig(model="m", budget=TEN), tenant="acme")
        await said(session)
        with pytest.raises(BudgetExhausted) as caught:
            await session.send("more")
        assert caught.value.whose == "session"


async def test_a_tenants_spending_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with manager_of(store=SqliteStore(path)) as manager:
        session = await manager.create(CONFIG, session_id="s", tenant="acme")
        await said(session)
        await said(await session.fork(session_id="f"))
        await said(await manager.create(CONFIG, tenant="other"))
        before = await manager.tenant_spending("acme")
    budgets = {"acme": SpendingBudget(max_tokens=13)}
    async with manager_of(store=SqliteStore(path), tenant_budgets=budgets) as manager:
        assert await manager.tenant_spending("acme") == before
        assert before == Spending(10 + 3, 2 * COST_NANO)  # the fork's prompt was charged before
        session = await manager.create(CONFIG, tenant="acme")
        with pytest.raises(BudgetExhausted, match="13 of 13"):
            await session.send("more")


async def test_an_interrupted_reply_is_charged_to_the_tenant_now_and_after_a_restart(
    store: Store,
) -> None:
    streams = [say("streams").costing(COST).hanging(at=3)]
    async with manager_of(store=store, script=streams, tenant_budgets={"acme": TEN}) as manager:
        session = await manager.create(CONFIG, session_id="s", tenant="acme")
        await session.send("go")
        await settled()
        await session.interrupt()
        with pytest.raises(BudgetExhausted):
            await session.send("more")
    async with manager_of(store=store, tenant_budgets={"acme": TEN}) as manager:
        session = await manager.open("s")
        with pytest.raises(BudgetExhausted):
            await session.send("more")


async def test_a_greater_budget_lets_the_tenants_sessions_go_on(store: Store) -> None:
    async with manager_of(store=store, tenant_budgets={"acme": TEN}) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        await said(session)
        await manager.set_tenant_budget("acme", SpendingBudget(max_tokens=11))
        await said(session)
        with pytest.raises(BudgetExhausted):
            await session.send("more")
        await manager.set_tenant_budget("acme", None)
        await said(session)


async def test_a_budget_that_is_set_late_counts_what_live_sessions_spent_before(
    store: Store,
) -> None:
    async with manager_of(store=store) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        await said(session)
        await manager.set_tenant_budget("acme", TEN)
        with pytest.raises(BudgetExhausted, match="10 of 10"):
            await session.send("more")


async def test_the_sum_has_what_a_live_session_knows_and_its_log_does_not_yet(store: Store) -> None:
    broken = say("half").costing(COST).raising(ProviderError("gone", kind="retryable"), at=2)
    async with manager_of(store=store, script=[broken, never()]) as manager:
        session = await manager.create(CONFIG, tenant="acme")
        await session.send("go")
        await anyio.sleep(30)  # it was tried again, and nothing of the turn is in the log
        assert await manager.tenant_spending("acme") == Spending(10, COST_NANO)


async def test_a_session_that_was_evicted_and_comes_back_is_counted_once(store: Store) -> None:
    async with manager_of(
        store=store, tenant_budgets={"acme": SpendingBudget(max_tokens=100)}
    ) as manager:
        session = await manager.create(CONFIG, session_id="s", tenant="acme")
        await said(session)
        await session.close()
        assert manager.live == ()
        again = await manager.open("s")
        assert await manager.tenant_spending("acme") == Spending(10, COST_NANO)
        await said(again)
        assert await manager.tenant_spending("acme") == Spending(13, 2 * COST_NANO)


async def test_what_a_deleted_session_spent_counts_as_long_as_somebody_knows_of_it(
    store: Store,
) -> None:
    async with manager_of(store=store, tenant_budgets={"acme": TEN}) as manager:
        await said(await manager.create(CONFIG, session_id="s", tenant="acme"))
        await manager.delete("s")
        again = await manager.create(CONFIG, session_id="s", tenant="acme")
        with pytest.raises(BudgetExhausted):
            await again.send("more")
        await again.close()
        await manager.apply_retention([Retention(delete_idle_s=1)], now=10.0**12)
        assert await manager.tenant_spending("acme") == Spending(10, COST_NANO)
    async with manager_of(store=store, tenant_budgets={"acme": TEN}) as manager:
        counted = Spending(10, COST_NANO) if isinstance(store, CountingStore) else Spending()
        assert await manager.tenant_spending("acme") == counted


async def test_money_of_a_tenant_needs_prices_and_is_counted_as_billed(store: Store) -> None:
    budgets = {"acme": SpendingBudget(max_cost_usd=2 * COST_NANO / 10**9)}
    async with manager_of(store=store, tenant_budgets=budgets) as manager:
        with pytest.raises(InvalidConfig, match="'mystery'"):
            await manager.create(SessionConfig(model="mystery"), tenant="acme")
        session = await manager.create(CONFIG, tenant="acme")
        with pytest.raises(InvalidConfig, match="'mystery'"):
            await session.configure(model="mystery")
        await said(session)
        await said(session)
        with pytest.raises(BudgetExhausted) as caught:
            await session.send("more")
        assert (caught.value.unit, caught.value.spent) == ("nano_usd", 2 * COST_NANO)


class Unreadable(MemoryStore):
    """A store whose logs cannot be read while it is told so."""

    broken = False
    reads = 0

    async def read(self, session: str, **place: Any) -> Any:
        self.reads += 1
        if self.broken:
            raise StoreError("the disk is gone", committed=False)
        return await super().read(session, **place)


async def test_a_tenant_whose_logs_cannot_be_read_gets_no_session_and_leaves_none() -> None:
    store = Unreadable()
    async with manager_of(store=store) as manager:
        await said(await manager.create(CONFIG, session_id="old", tenant="acme"))
    async with manager_of(store=store, tenant_budgets={"acme": TEN}) as manager:
        store.broken = True
        with pytest.raises(StoreError):
            await manager.create(CONFIG, session_id="new", tenant="acme")
        store.broken = False
        assert [row.session for row in await store.rows()] == ["old"]
        with pytest.raises(BudgetExhausted):
            await (await manager.create(CONFIG, session_id="new", tenant="acme")).send("x")


async def test_a_damaged_log_counts_up_to_its_damage_and_stops_nobody() -> None:
    class Damaged(MemoryStore):
        damage = False

        async def read(self, session: str, **place: Any) -> Any:
            page = list(await super().read(session, **place))
            if self.damage and session == "old" and page and page[-1].seq > 3:
                last = page[-1]
                page[-1] = StoredRecord(last.seq, last.epoch, b"not a record")
            return page

    store = Damaged()
    async with manager_of(store=store) as manager:
        old = await manager.create(CONFIG, session_id="old", tenant="acme")
        await said(old)
        await said(old)
    store.damage = True
    async with manager_of(store=store, tenant_budgets={"acme": TEN}) as manager:
        assert await manager.tenant_spending("acme") == Spending(10, COST_NANO)


async def test_the_first_session_of_a_tenant_asks_no_session_of_another_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, tell = list[str | None](), Account.tell_tenant

    def noted(account: Account) -> None:
        asked.append(account.tenant)
        tell(account)

    async with manager_of(store=store, tenant_budgets={"b": TEN}) as manager:
        early = await manager.create(CONFIG, tenant="late")
        others = [await manager.create(CONFIG, tenant=tenant) for tenant in ("a", "a", None)]
        for session in (early, *others):
            await said(session)
        monkeypatch.setattr(Account, "tell_tenant", noted)
        await manager.create(CONFIG, tenant="b")
        assert asked == ["b"]
        assert (await manager.tenant_spending("late")).tokens == 10
        assert asked == ["b", "late"]
        for session in (early, *others):
            await session.close()
        actors = manager._runtime._table
        assert [actor.session for actor in actors.of_tenant("b")] == [*actors.actors]
        assert actors.of_tenant("a") == actors.of_tenant("late") == ()


@pytest.mark.parametrize("counts", [True, False])
async def test_many_who_touch_a_tenant_at_once_have_its_logs_read_once(counts: bool) -> None:
    store = Unreadable()
    given = store if counts else FaultyStore(store)
    async with manager_of(store=given) as manager:
        for _ in range(3):
            await said(await manager.create(CONFIG, tenant="acme"))
    store.reads = 0
    async with manager_of(store=given) as manager, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(manager.tenant_spending, "acme")
    assert store.reads == 3 if counts else 6  # each log, and its end where that is not known
