"""Retention rules delete sessions, and forget what was said, and leave alone what is in use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest

from llmsession import (
    InvalidInput,
    MemoryStore,
    Retention,
    RetentionReport,
    SessionConfig,
    SessionManager,
    SessionNotFound,
    StoreError,
)
from llmsession.session.handles.session import live_state
from llmsession.session.log.state import fold
from llmsession.session.manager import runtime_of
from llmsession.store.protocol import Lease, Owner, SessionRow, StoredRecord
from llmsession.testing.scripted import ScriptedProvider, never, say
from llmsession.transcripts import Conversation
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from tests.session.actors import PATIENCE_S, contents, meanwhile, settled
from tests.session.probes import log_of

CONFIG = SessionConfig(model="m")
DAY_S = 86_400.0


class Years:
    """A manager over a store, with a clock that the test sets in days."""

    def __init__(self, store: MemoryStore) -> None:
        self.days = 0.0
        self.store = store
        self.script: list[Any] = []
        self.manager: SessionManager

    def clock(self) -> float:
        return 1_000_000.0 + self.days * DAY_S

    async def session(self, name: str, *days: float, **labels: str) -> None:
        """A cold session with a turn on each of *days*."""
        self.days = days[0]
        session = await self.manager.create(CONFIG, session_id=name, labels=labels)
        for day in days:
            self.days = day
            await (await session.send(f"{name} on day {day}")).text()
        del session
        await runtime_of(self.manager).evict_idle()

    async def names(self) -> list[str]:
        return [row.session for row in await self.manager.list()]

    async def apply(
        self, *rules: Retention, day: float | None = None, dry_run: bool = False
    ) -> RetentionReport:
        """Apply *rules*, on another *day* than it was."""
        self.days = self.days if day is None else day
        return await self.manager.apply_retention(rules, dry_run=dry_run)


@asynccontextmanager
async def years(store: MemoryStore | None = None) -> AsyncIterator[Years]:
    on = Years(store or MemoryStore())
    provider = ScriptedProvider(lambda request, tag: say("fine"))
    with anyio.fail_after(PATIENCE_S):
        async with SessionManager(provider=provider, store=on.store, clock=on.clock) as on.manager:
            yield on


def idle(days: float, **labels: str | None) -> Retention:
    return Retention(labels=labels, delete_idle_s=days * DAY_S)


def old(days: float, **labels: str | None) -> Retention:
    return Retention(labels=labels, forget_after_s=days * DAY_S)


async def test_sessions_that_were_idle_for_too_long_are_deleted() -> None:
    async with years() as on:
        await on.session("early", 0)
        await on.session("late", 0, 60)
        report = await on.apply(idle(30.5), day=90)
        assert report == RetentionReport(dry_run=False, deleted=("early",), limits={"idle": 1})
        assert await on.names() == ["late"]
        with pytest.raises(SessionNotFound):
            await on.manager.open("early")


async def test_a_rule_is_about_the_sessions_with_its_labels_and_the_strictest_counts() -> None:
    async with years() as on:
        await on.session("a", 0, kind="chat", user="7")
        await on.session("b", 0, kind="chat")
        await on.session("c", 0)
        rules = (idle(40, kind="chat", user=None), idle(60), idle(100, kind="chat"))
        report = await on.apply(*rules, day=50)
        assert report.deleted == ("a",)
        assert (await on.apply(idle(80), idle(60, kind="chat"), day=70)).deleted == ("b",)
        assert await on.names() == ["c"]


async def test_what_was_said_too_long_ago_is_forgotten() -> None:
    async with years() as on:
        await on.session("s", 0, 10, 20)
        await on.session("young", 15)
        report = await on.apply(old(15), day=30)
        assert report == RetentionReport(dry_run=False, forgotten={"s": 2}, limits={"age": 2})
        assert on.manager.live == ()
        session = await on.manager.open("s")
        assert [m.text for m in session.conversation()] == ["s on day 20", "fine"]
        bodies = b"".join(record.body for record in await on.store.read("s"))
        assert b"day 0" not in bodies
        assert b"day 10" not in bodies
        assert contents(fold("s", await log_of(on.store, "s"))) == contents(live_state(session))
        del session
        await runtime_of(on.manager).evict_idle()
        assert await on.apply(old(15)) == RetentionReport(dry_run=False)  # there is no more


async def test_a_session_that_is_to_be_deleted_is_not_opened_to_forget() -> None:
    async with years() as on:
        await on.session("s", 0)
        report = await on.apply(old(10), idle(20), day=30)
        assert report == RetentionReport(dry_run=False, deleted=("s",), limits={"idle": 1})


async def test_a_dry_run_tells_the_same_and_changes_nothing() -> None:
    async with years() as on:
        await on.session("early", 0)
        await on.session("mixed", 0, 80)
        held = await on.manager.create(CONFIG, session_id="held")
        on.days = 100
        rules = (idle(50), old(30))
        before = {row.session: row for row in await on.manager.list()}
        report = await on.apply(*rules, dry_run=True)
        assert {row.session: row for row in await on.manager.list()} == before
        assert report.dry_run
        done = await on.apply(*rules)
        assert done == msgspec.structs.replace(report, dry_run=False)
        assert done.deleted == ("early",)
        assert done.forgotten == {"mixed": 1}
        assert held.status().phase == "idle"


async def test_what_somebody_holds_here_is_left_alone_and_named() -> None:
    async with years() as on:
        on.days = 0
        held = await on.manager.create(CONFIG, session_id="held")
        await (await held.send("hello")).text()
        on.days = 90
        for rule in (idle(30), old(30)):
            report = await on.apply(rule)
            assert report.skipped == {"held": "it is in use in this process"}
            assert (report.deleted, report.forgotten) == ((), {})
        assert len(held.conversation()) == 2
        # Live and held by nobody is not in use.
        del held
        assert "held" in on.manager.live
        assert (await on.apply(idle(30))).deleted == ("held",)
        assert on.manager.live == ()


@pytest.mark.real_time
@pytest.mark.parametrize("dry_run", [False, True])
async def test_what_another_owner_holds_is_left_alone_and_named(dry_run: bool) -> None:
    store = MemoryStore()
    async with years(store) as on, years(store) as other:
        await on.session("s", 0)
        session = await other.manager.open("s")
        on.days = 90
        for rule in (idle(30), old(30)):
            report = await on.apply(rule, dry_run=dry_run)
            assert list(report.skipped) == ["s"]
            assert "in use by" in report.skipped["s"]
        assert len(session.conversation()) == 2
        del session


async def test_a_turn_that_an_owner_left_open_is_not_ended_by_a_rule() -> None:
    store = MemoryStore()
    async with years(store) as on:
        await on.session("s", 0)
        provider = ScriptedProvider([never()])
        crashed = SessionManager(provider=provider, store=store, clock=on.clock)
        async with crashed:
            session = await crashed.open("s")
            await session.send("open")
            await settled()
            log = await store.read("s")
        held = store._logs["s"]
        held.bodies = [record.body for record in log]
        held.row = msgspec.structs.replace(held.row, head=len(log), owner=None)
        report = await on.apply(old(30), day=90)
        assert report.skipped == {"s": "it has an open turn"}
        assert len(await store.read("s")) == len(log)


async def test_a_session_that_was_written_to_meanwhile_is_kept() -> None:
    class Touched(MemoryStore):
        async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
            lease = await super().acquire(session, owner, takeover=takeover)
            log = self._logs[session]
            log.row = msgspec.structs.replace(log.row, touched_at=log.row.touched_at + 1)
            return lease

    async with years(Touched()) as on:
        await on.session("s", 0)
        report = await on.apply(idle(30), day=90)
        assert report.skipped == {"s": "it was written to while retention was looking at it"}
        assert (await on.store.row("s")).owner is None
        assert len((await on.manager.open("s")).conversation()) == 2


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_surplus_session_that_was_written_to_after_it_was_counted_is_kept(
    dry_run: bool,
) -> None:
    class WrittenTo(MemoryStore):
        """``a`` gets a record as soon as a page of rows was read."""

        async def rows(self, **page: Any) -> Sequence[SessionRow]:
            rows = await super().rows(**page)
            if rows:
                log = self._logs["a"]
                log.row = msgspec.structs.replace(log.row, touched_at=on.clock())
            return rows

    async with years(WrittenTo()) as on:
        for day, name in enumerate(("a", "b", "c")):
            await on.session(name, day)
        report = await on.apply(Retention(max_sessions=2), day=90, dry_run=dry_run)
        assert report.deleted == ()
        assert report.skipped == {"a": "it was written to while retention was looking at it"}
        # Now it is the newest, so another one is deleted the next time.
        assert (await on.apply(Retention(max_sessions=2))).deleted == ("b",)


async def test_a_session_that_is_being_opened_is_kept() -> None:
    class SlowToRead(MemoryStore):
        gate: anyio.Event | None = None

        async def read(
            self, session: str, *, after: int = 0, limit: int | None = None
        ) -> Sequence[StoredRecord]:
            if self.gate is not None:
                await self.gate.wait()
            return await super().read(session, after=after, limit=limit)

    store = SlowToRead()
    async with years(store) as on:
        await on.session("s", 0)
        on.days, store.gate = 90, anyio.Event()
        async with (
            meanwhile(partial(on.manager.open, "s")) as opened,
            meanwhile(partial(on.apply, idle(30))) as reports,
        ):
            store.gate.set()
        assert reports == [
            RetentionReport(dry_run=False, skipped={"s": "it is in use in this process"})
        ]
        [session] = opened
        assert await (await session.send("still here")).text() == "fine"


@pytest.mark.parametrize("how", ["the row", "the deletion", "cancelled"])
async def test_a_session_whose_deletion_failed_is_given_back(how: str) -> None:
    class Failing(MemoryStore):
        is_down = True

        async def row(self, session: str) -> SessionRow:
            if how == "the row" and self.is_down:
                raise StoreError("the network is down", committed=None)
            return await super().row(session)

        async def delete(self, session: str, *, epoch: int | None = None) -> None:
            if how == "cancelled":
                await anyio.sleep_forever()
            raise StoreError("the network is down", committed=None)

    store = Failing()
    async with years(store) as on, years(store) as other:
        await on.session("s", 0)
        with anyio.move_on_after(10):
            report = await on.apply(idle(30), day=90)
            assert report.skipped == {"s": "the network is down"}
        store.is_down = False
        await anyio.sleep(2)
        assert len((await other.manager.open("s")).conversation()) == 2


async def test_a_session_that_was_taken_while_retention_stood_still_is_kept() -> None:
    class Held(MemoryStore):
        """Holds back a deletion, as a process does that stands still before it."""

        def __init__(self) -> None:
            super().__init__()
            self.reached, self.goes_on = anyio.Event(), anyio.Event()

        async def delete(self, session: str, *, epoch: int | None = None) -> None:
            self.reached.set()
            await self.goes_on.wait()
            await super().delete(session, epoch=epoch)

    store = Held()
    async with years(store) as stopped, years(store) as other:
        await stopped.session("s", 0)
        reports: list[RetentionReport] = []
        async with anyio.create_task_group() as group:

            async def sweep() -> None:
                reports.append(await stopped.apply(idle(30), day=90))

            group.start_soon(sweep)
            await store.reached.wait()
            session = await other.manager.open("s", takeover=True)
            assert await (await session.send("still here")).text() == "fine"
            store.goes_on.set()
        [report] = reports
        assert report.deleted == ()
        assert "another owner" in report.skipped["s"]
        assert await (await session.send("and again")).text() == "fine"


async def test_one_session_that_cannot_be_read_does_not_keep_the_others() -> None:
    async with years() as on:
        for name in ("a", "b", "c"):
            await on.session(name, 0)
        on.store._logs["b"].bodies[1] = b"{"
        report = await on.apply(old(30), day=90)
        assert report.forgotten == {"a": 1, "c": 1}
        assert "record 2" in report.skipped["b"]


async def test_a_fork_forgets_what_it_has_of_its_parent_by_when_it_was_said() -> None:
    async with years() as on:
        await on.session("s", 0)
        on.days = 60
        session = await on.manager.open("s")
        fork = await session.fork(session_id="f")
        await (await fork.send("new")).text()
        del session, fork
        await runtime_of(on.manager).evict_idle()
        assert (await on.apply(old(30), day=80)).forgotten == {"f": 1, "s": 1}
        assert len((await on.manager.open("f")).conversation()) == 2


async def test_an_import_is_as_old_as_what_was_said_in_it() -> None:
    async with years() as on:
        on.days = 100
        body = encode_blocks("hello")
        messages = tuple(
            Message(id=f"{turn}", session="x", turn=turn, role="user", body=body, created_at=time)
            for turn, time in enumerate((on.clock() - 90 * DAY_S, on.clock()), start=1)
        )
        conversation = Conversation(id="i", format="own", messages=messages)
        await on.manager.import_conversation(conversation, CONFIG)
        assert (await on.apply(old(30))).forgotten == {"i": 1}


async def test_young_sessions_are_not_read() -> None:
    reads: list[tuple[str, int | None]] = []

    class Counting(MemoryStore):
        async def read(
            self, session: str, *, after: int = 0, limit: int | None = None
        ) -> Sequence[StoredRecord]:
            reads.append((session, limit))
            return await super().read(session, after=after, limit=limit)

    async with years(Counting()) as on:
        await on.session("young", 80, 81)
        reads.clear()
        await on.apply(old(30), day=90)
        assert reads == [("young", 1)]


@pytest.mark.parametrize(
    "rule",
    [
        Retention(),
        Retention(delete_idle_s=0),
        Retention(forget_after_s=-1.0),
        Retention(delete_idle_s=float("inf")),
        Retention(forget_after_s=True),
        "30 days",
    ],
)
async def test_a_rule_that_says_no_time_is_refused_before_anything_is_done(rule: Any) -> None:
    async with years() as on:
        await on.session("s", 0)
        on.days = 90
        with pytest.raises(InvalidInput):
            await on.apply(idle(30), rule)
        assert await on.names() == ["s"]
