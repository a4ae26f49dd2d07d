"""Limits of a session's history: what exceeds them is forgotten for good, by itself."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from llmsession import (
    HistoryLimits,
    InvalidConfig,
    InvalidInput,
    MemoryStore,
    Retention,
    SessionConfig,
    SessionManager,
    StoreError,
    Subscription,
)
from llmsession.session.log.history_cuts import excess_of
from llmsession.session.manager import runtime_of
from llmsession.session.operations import retention
from llmsession.store.protocol import Lease, Owner, StoredRecord
from llmsession.store.sqlite.store import SqliteStore
from llmsession.testing.scripted import ScriptedProvider, never, say
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from tests.session.actors import PATIENCE_S, first, settled, stage
from tests.session.log.test_forget import Doubtful, said_in

HOUR_S = 3600.0


def texts(session: Any) -> list[str]:
    return [message.text for message in session.conversation()]


def message(turn: int, role: Any = "user") -> Message:
    return Message(id=f"{turn}", session="s", turn=turn, role=role, body=encode_blocks("x"))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


# The rule, by itself.


def test_whole_turns_go_and_nothing_of_a_turn_that_fits_for_any_history_and_limits() -> None:
    chance = random.Random(15)
    for _ in range(500):
        sizes = [chance.randint(1, 4) for _ in range(chance.randint(0, 8))]
        history = [message(n) for n, size in enumerate(sizes, 1) for _ in range(size)]
        times = {n: float(n * 10) for n in range(1, len(sizes) + 1)}
        limits = HistoryLimits(
            max_messages=chance.choice([None, 1, 3, 6]),
            max_tokens=chance.choice([None, 2, 5, 9]),
            max_age_s=chance.choice([None, 15.0, 35.0, 200.0]),
        )
        now = float(len(sizes) * 10 + 5)
        accepted_at = {n: 2 * n for n in times}
        excess = excess_of(
            history,
            accepted_at,
            times,
            99,
            limits=limits,
            now=now,
            tokens_of=lambda _: 1,
            all_tokens=partial(len, history),
        )
        kept = history[excess.messages :] if excess else history
        old = {n for n, time in times.items() if time < now - (limits.max_age_s or 1e9)}
        turns = sorted({each.turn for each in kept})
        assert not old & set(turns)
        if excess is not None:
            assert sum(excess.limits.values()) == len(sizes) - len(turns)
            assert excess.before == (turns[0] if turns else 0)
        # All that fit are kept: with the turn before them they would be too many, or it is old.
        fits = min(limits.max_messages or 99, limits.max_tokens or 99)
        assert len(kept) <= fits or len(turns) == 1
        before = turns[0] - 1 if turns else len(sizes)
        if before >= 1:
            assert before in old or len(kept) + sizes[before - 1] > fits


# A live session.


async def test_a_session_keeps_no_more_messages_than_it_may_and_the_words_of_others_are_gone() -> (
    None
):
    store = MemoryStore()
    script = [f"answer {n}" for n in range(6)]
    async with stage(script, store=store, retention=HistoryLimits(max_messages=4)) as on:
        for n in range(6):
            await on.say(f"question {n}")
            await settled()
            assert len(on.session.conversation()) <= 4
        assert texts(on.session) == ["question 4", "answer 4", "question 5", "answer 5"]
        for n in range(4):
            assert await said_in(store, f"question {n}") == []
            assert await said_in(store, f"answer {n}") == []
        request = on.provider.requests[-1]
        assert len(request.messages) == 5


async def test_tokens_of_the_history_are_limited_and_the_newest_turn_stays_whatever_it_has() -> (
    None
):
    limits = HistoryLimits(max_tokens=60)
    async with stage(["a", "b" * 400, "c"], retention=limits) as on:
        await on.say("first")
        await on.say("second")
        await settled()
        assert texts(on.session) == ["second", "b" * 400]
        await on.say("third")
        await settled()
        assert texts(on.session) == ["third", "c"]


async def test_what_went_is_an_event_a_status_and_a_line_in_the_log() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []

    class Logger:
        def bind(self, **_: Any) -> Logger:
            return self

        def info(self, name: str, **fields: Any) -> None:
            lines.append((name, fields))

        warning = error = info

    limits = HistoryLimits(max_messages=2)
    async with stage(["a", "b"], retention=limits, logger=Logger()) as on:
        events: Subscription = on.session.subscribe()
        await on.say("first", "second")
        event = await first(events, r.ConversationForgotten)
        assert (event.turns, event.messages, event.limits) == (1, 2, {"messages": 1})
        await settled()
        forgotten = on.session.status().forgotten
        assert (forgotten.turns, forgotten.messages) == (1, 2)
        assert forgotten.at == event.at > 0
        went = {"turns": 1, "messages": 2, "limits": {"messages": 1}}
        assert ("retention.forgot", went) in lines
        events.close()


async def test_an_open_turn_is_never_cut_and_the_limits_come_after_it() -> None:
    clock, limits = Clock(), HistoryLimits(max_age_s=HOUR_S)
    async with stage(["a", never(), "c"], retention=limits, clock=clock) as on:
        await on.say("first")
        turn = await on.begin("second")
        clock.now += 2 * HOUR_S
        on.session.reference.actor.retain()
        await settled()
        assert texts(on.session) == ["first", "a"]
        await on.session.interrupt(turn.id)
        await settled()
        assert texts(on.session) == []
        await on.say("third")
        assert texts(on.session) == ["third", "c"]


async def test_limits_that_are_configured_later_hold_from_then_on() -> None:
    async with stage(["a", "b"]) as on:
        await on.say("first", "second")
        await on.session.configure(retention=HistoryLimits(max_messages=2, max_age_s=60.0))
        await settled()
        assert texts(on.session) == ["second", "b"]
        assert on.session.labels == {"llmsession.max_age_s": "60.0"}
        await on.session.label({"user": "7"})
        assert on.session.labels == {"llmsession.max_age_s": "60.0", "user": "7"}
        await on.session.configure(retention=None)
        assert on.session.labels == {"user": "7"}


async def test_labels_that_are_on_their_way_into_the_log_are_not_lost_to_a_new_age() -> None:
    async with stage(["a"]) as on:
        async with anyio.create_task_group() as group:
            group.start_soon(on.session.label, {"user": "7"})

            async def configure() -> None:
                await on.session.configure(retention=HistoryLimits(max_age_s=60.0))

            group.start_soon(configure)
        assert on.session.labels == {"llmsession.max_age_s": "60.0", "user": "7"}


@pytest.mark.parametrize(
    "limits",
    [
        HistoryLimits(max_messages=0),
        HistoryLimits(max_tokens=True),
        HistoryLimits(max_age_s=float("inf")),
        HistoryLimits(max_age_s=-1),
    ],
)
async def test_a_limit_that_cannot_be_is_refused_and_named(limits: HistoryLimits) -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.max_"):
        SessionConfig(model="m", retention=limits).checked()


# Opening.


async def test_what_has_become_too_old_is_gone_when_open_returns() -> None:
    clock, store = Clock(), MemoryStore()
    limits = HistoryLimits(max_age_s=10 * HOUR_S)
    async with stage(["a marker", "b"], store=store, clock=clock, retention=limits) as on:
        await on.say("first")
        clock.now += 6 * HOUR_S
        await on.say("second")
        await on.evict()
        clock.now += 6 * HOUR_S
        session = await on.manager.open("s")
        assert texts(session) == ["second", "b"]
        assert await said_in(store, "marker") == []
        assert session.status().forgotten.limits == {"age": 1}
        on.session = session


async def test_a_kill_between_the_record_and_the_erasure_leaves_nothing_half() -> None:
    store = Doubtful()
    limits = HistoryLimits(max_messages=2)
    async with stage(["marker", "b", "c"], store=store, retention=limits) as on:
        await on.say("first")
        store.failures = [StoreError("cut", committed=False)]
        await on.say("second")
        await settled()
        assert on.session.status().phase == "cold"
        assert await said_in(store, "marker") != []
        session = await on.manager.open("s")
        assert texts(session) == ["second", "b"]
        assert await said_in(store, "marker") == []
        assert (await on.kinds()).count("conversation.forgotten") == 1
        on.session = session


# The manager's schedule.


async def fill(manager: SessionManager, *names: str, **options: Any) -> None:
    for name in names:
        session = await manager.create(SessionConfig(model="m", **options), session_id=name)
        await (await session.send(f"hello from {name}")).text()
        del session
    await runtime_of(manager).evict_idle()


def managed(store: Any, clock: Callable[[], float], **options: Any) -> SessionManager:
    provider = ScriptedProvider(lambda request, tag: say("fine"))
    return SessionManager(provider=provider, store=store, clock=clock, **options)


async def test_a_manager_with_rules_applies_them_by_itself_every_so_often() -> None:
    clock, store = Clock(), MemoryStore()
    rules = [Retention(delete_idle_s=40 * HOUR_S), Retention(forget_after_s=10 * HOUR_S)]
    with anyio.fail_after(PATIENCE_S):
        async with managed(store, clock, retention=rules, retention_every_s=HOUR_S) as manager:
            await fill(manager, "a", "b")
            await anyio.sleep(HOUR_S * 2)
            assert await said_in(store, "hello", "a") != []
            clock.now += 11 * HOUR_S
            await anyio.sleep(HOUR_S * 2)
            assert await said_in(store, "hello", "a") == []
            assert await said_in(store, "hello", "b") == []
            assert manager.live == ()
            clock.now += 41 * HOUR_S
            await anyio.sleep(HOUR_S * 2)
            assert [row.session for row in await manager.list()] == []


async def test_an_age_of_its_own_holds_for_a_session_that_nobody_opens() -> None:
    clock, store = Clock(), MemoryStore()
    with anyio.fail_after(PATIENCE_S):
        async with managed(store, clock, retention_every_s=HOUR_S) as manager:
            await fill(manager, "short", retention=HistoryLimits(max_age_s=10 * HOUR_S))
            await fill(manager, "long")
            clock.now += 11 * HOUR_S
            await anyio.sleep(HOUR_S * 2)
            assert await said_in(store, "hello", "short") == []
            assert await said_in(store, "hello", "long") != []


async def test_a_session_that_is_held_here_keeps_the_rules_as_well() -> None:
    clock, store = Clock(), MemoryStore()
    rules = [Retention(forget_after_s=10 * HOUR_S)]
    with anyio.fail_after(PATIENCE_S):
        async with managed(store, clock, retention=rules, retention_every_s=HOUR_S) as manager:
            session = await manager.create(SessionConfig(model="m"), session_id="s")
            await (await session.send("hello")).text()
            clock.now += 11 * HOUR_S
            await anyio.sleep(HOUR_S * 2)
            assert texts(session) == []
            assert await said_in(store, "hello") == []
            del session


@pytest.mark.real_time
async def test_the_schedule_leaves_a_session_to_another_manager_that_holds_it() -> None:
    reads: list[str] = []

    class Counting(MemoryStore):
        async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
            reads.append(session)
            return await super().acquire(session, owner, takeover=takeover)

    clock, store = Clock(), Counting()
    rules = [Retention(forget_after_s=HOUR_S, delete_idle_s=HOUR_S)]
    async with managed(store, clock) as other:
        session = await other.create(SessionConfig(model="m"), session_id="s")
        await (await session.send("hello")).text()
        clock.now += 2 * HOUR_S
        async with managed(store, clock, retention=rules, retention_every_s=0.01) as manager:
            await anyio.sleep(0.1)
            assert manager.live == ()
        assert reads == []
        assert texts(session) == ["hello", "fine"]
        await (await session.send("again")).text()  # nobody fenced it
        del session


async def test_of_each_tenant_the_sessions_with_the_newest_records_are_kept() -> None:
    clock, store = Clock(), MemoryStore()
    with anyio.fail_after(PATIENCE_S):
        async with managed(store, clock) as manager:
            for name, tenant in (("z", "t"), ("t/x", None), ("y", "t"), ("w", None), ("v", "t")):
                clock.now += HOUR_S
                await manager.create(SessionConfig(model="m"), session_id=name, tenant=tenant)
            await runtime_of(manager).evict_idle()
            rule = Retention(max_sessions=2)
            tried = await manager.apply_retention([rule], dry_run=True)
            assert tried.deleted == ("z",)
            report = await manager.apply_retention([rule])
            assert (report.deleted, report.limits) == (("z",), {"sessions": 1})
            again = await manager.apply_retention([rule])
            assert (again.deleted, again.skipped) == ((), {})


async def test_a_step_of_the_schedule_reads_few_logs_and_pauses_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, store = Clock(), MemoryStore()
    names = [f"s{n:02}" for n in range(8)]
    monkeypatch.setattr(retention, "MAX_COSTLY", 3)
    rules = [Retention(max_messages=2)]
    with anyio.fail_after(PATIENCE_S):
        async with managed(store, clock) as manager:
            for name in names:
                session = await manager.create(SessionConfig(model="m"), session_id=name)
                await (await session.send("one")).text()
                await (await session.send("two")).text()
        heads = {name: (await store.row(name)).head for name in names}

        async def changed() -> list[str]:
            return [name for name in names if (await store.row(name)).head != heads[name]]

        async with managed(store, clock, retention=rules, retention_every_s=HOUR_S):
            await settled()
            assert await changed() == names[:3]
            await anyio.sleep(retention.PAUSE_S * 4)
            assert await changed() == names


async def test_of_more_sessions_than_it_remembers_the_schedule_reads_only_the_others_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = set[str]()

    class Counting(MemoryStore):
        async def read(
            self, session: str, *, after: int = 0, limit: int | None = None
        ) -> Sequence[StoredRecord]:
            reads.add(session)
            return await super().read(session, after=after, limit=limit)

    monkeypatch.setattr(retention, "MAX_SEEN", 3)
    clock, store = Clock(), Counting()
    rules = [Retention(max_messages=100)]
    with anyio.fail_after(PATIENCE_S):
        async with managed(store, clock) as manager:
            await fill(manager, "a", "b", "c", "d", "e")

        async with managed(store, clock, retention=rules, retention_every_s=HOUR_S) as manager:

            async def read_in_a_pass() -> set[str]:
                reads.clear()
                await anyio.sleep(HOUR_S)
                return reads

            await anyio.sleep(HOUR_S / 2)
            assert reads == {"a", "b", "c", "d", "e"}
            for _ in range(3):
                assert await read_in_a_pass() == {"d", "e"}
            await manager.delete("a")
            for _ in range(2):  # one that notices it, and one that has room for another session
                assert await read_in_a_pass() == {"d", "e"}
            assert await read_in_a_pass() == {"e"}


async def test_rules_hold_in_a_store_of_sqlite_with_its_index_of_words(tmp_path: Any) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path / "s.db")
    async with managed(store, clock) as manager:
        await fill(manager, "a")
        assert len((await manager.search("hello")).hits) == 1
        clock.now += 2 * HOUR_S
        report = await manager.apply_retention([Retention(forget_after_s=HOUR_S)])
        assert report.forgotten == {"a": 1}
        assert (await manager.search("hello")).hits == ()


@pytest.mark.parametrize("age", [1e300, 1e12, float("inf"), float("nan"), 0, -1.0, True, "90d"])
def test_an_age_that_cannot_be_meant_is_refused_by_its_name(age: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"^retention.max_age_s is {re.escape(repr(age))}; it"):
        HistoryLimits(max_age_s=age).checked()
    if type(age) is float and age > 0:
        with pytest.raises(InvalidInput, match=r"^forget_after_s is "):
            Retention(forget_after_s=age).checked()


@pytest.mark.parametrize("name", ["max_messages", "max_tokens"])
@pytest.mark.parametrize("count", [0, -1, 10**30, 1.5, True])
def test_a_count_that_cannot_be_meant_is_refused_by_its_name(name: str, count: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"^retention.{name} is {re.escape(repr(count))}; it"):
        HistoryLimits(**{name: count}).checked()
