"""Turns that were left open are found in a store and recovered before anybody asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import msgspec
import pytest

from llmsession import MemoryStore, SessionConfig, SessionManager, StoreError, records
from llmsession.session.unfinished import LOOK_S, has_open_turn, keep_recovering, recover_unfinished
from llmsession.session.values.config import Recovery
from llmsession.store import (
    Batch,
    Owner,
    SessionFilter,
    SessionRow,
    Store,
    StoredRecord,
    UnfinishedIndex,
)
from llmsession.store.protocol import EVERYTHING, AppendResult, Lost
from llmsession.testing import FaultyStore
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, never, say
from llmsession.turns.request import Request, StepTag
from tests.session.actors import settled, stage

DEAD = Owner("the dead", pid=1, started="never", host="nowhere")


def only_some_hang(request: Request, tag: StepTag) -> ScriptedReply:
    return never() if b"hang" in bytes(request.messages[-1].body) else say("hello")


@asynccontextmanager
async def manager_of(store: Store, reply: str = "again") -> AsyncIterator[SessionManager]:
    with anyio.fail_after(100):
        provider = ScriptedProvider(lambda request, tag: say(reply))
        async with SessionManager(provider=provider, store=store) as manager:
            yield manager


S = TypeVar("S", bound=MemoryStore)


async def left_open(**sessions: Recovery) -> MemoryStore:
    """See ``fill``."""
    return await fill(MemoryStore(), **sessions)


async def fill(store: S, **sessions: Recovery) -> S:
    """A store whose sessions were released, each in the middle of its second turn; and two with
    nothing open, ``done`` and ``new``."""
    with anyio.fail_after(100):
        provider = ScriptedProvider(only_some_hang)
        async with SessionManager(provider=provider, store=store) as manager:
            for name, recovery in sessions.items():
                config = SessionConfig(model="m", recovery=recovery)
                session = await manager.create(config, session_id=name)
                await (await session.send("hi")).text()
                await session.send("hang")
            done = await manager.create(SessionConfig(model="m"), session_id="done")
            await (await done.send("hi")).text()
            await manager.create(SessionConfig(model="m"), session_id="new")
            await settled()
            await manager.release()
    return store


async def test_what_was_left_open_ends_or_goes_on_and_nothing_else_is_touched() -> None:
    store = await left_open(drops="drop", resumes="resume")
    async with manager_of(store) as manager:
        report = await recover_unfinished(manager)
        assert set(report.recovered) == {"drops", "resumes"}
        assert report.failed == {}
        assert set(manager.live) == {"drops", "resumes"}
        await settled()
    last = {
        row.session: records.decode_record((await store.read(row.session))[-1].body)
        for row in await store.rows()
    }
    assert isinstance(last["drops"], records.TurnAborted)
    assert isinstance(last["resumes"], records.TurnCommitted)
    assert last["resumes"].turn == 2
    assert isinstance(last["done"], records.TurnCommitted)
    assert isinstance(last["new"], records.SessionCreated)


async def test_so_many_are_opened_at_once_and_no_more() -> None:
    sessions: dict[str, Recovery] = {f"s{number}": "drop" for number in range(12)}
    store = await left_open(**sessions)
    async with manager_of(store) as manager:
        opening, most, open_ = 0, 0, manager.open

        async def counted(session: str, **options: Any) -> object:
            nonlocal opening, most
            opening += 1
            most = max(most, opening)
            await anyio.sleep(1)
            opening -= 1
            return await open_(session, **options)

        manager.open = counted  # type: ignore[method-assign,assignment]  # it is watched
        report = await recover_unfinished(manager, at_once=3)
        assert set(report.recovered) == set(sessions)
        assert most == 3


async def test_one_that_cannot_be_opened_is_named_and_the_others_are_recovered() -> None:
    store = await left_open(bad="drop", good="drop")
    read = store.read

    async def failing(session: str, *, after: int = 0, limit: int | None = None) -> object:
        if session == "bad":
            raise StoreError("the disk is on fire", committed=False)
        return await read(session, after=after, limit=limit)

    store.read = failing  # type: ignore[assignment,method-assign]  # a disk that fails
    async with manager_of(store) as manager:
        report = await recover_unfinished(manager)
        assert report.recovered == ("good",)
        assert {name: str(error) for name, error in report.failed.items()} == {
            "bad": "the disk is on fire"
        }


class Counted(MemoryStore):
    """Counts the rows and the records that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_read: list[str] = []
        self.logs_read: list[str] = []

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        rows = await super().rows(after=after, limit=limit, filter=filter)
        self.rows_read += [row.session for row in rows]
        return rows

    async def unfinished(self, *, after: str = "", limit: int = 1000) -> Sequence[SessionRow]:
        rows = await super().unfinished(after=after, limit=limit)
        self.rows_read += [row.session for row in rows]
        return rows

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        self.logs_read.append(session)
        return await super().read(session, after=after, limit=limit)


async def test_only_sessions_with_an_open_turn_are_looked_at_however_many_there_are() -> None:
    store = await fill(Counted(), bad="drop", good="drop")
    for number in range(2000):
        await store.release(await store.create(f"other-{number}", Owner("o")))
    store.rows_read.clear()
    store.logs_read.clear()
    async with manager_of(store) as manager:
        report = await recover_unfinished(manager, wanted=lambda session: session == "good")
        assert report.recovered == ("good",)
        assert store.rows_read == ["bad", "good"]
        assert set(store.logs_read) == {"good"}
        await settled()
        await manager.release()
    async with manager_of(store) as manager:
        assert (await recover_unfinished(manager)).recovered == ("bad",)
        await settled()
        await manager.release()
    store.rows_read.clear()
    async with manager_of(store) as manager:
        assert (await recover_unfinished(manager)).recovered == ()
        assert store.rows_read == []


async def test_a_session_of_which_the_store_does_not_know_it_is_looked_at_once() -> None:
    store = await fill(Counted())
    for session in ("done", "new"):
        lease = await store.acquire(session, DEAD)
        labelled = records.SessionLabelled(labels={}, seq=lease.head + 1, epoch=lease.epoch)
        bodies = (records.encode_record(labelled),)
        batch = Batch(session, lease.epoch, lease.head, bodies, unfinished=True)
        store.append(batch, lambda result: None)
        await store.release(lease)
    for expected in ({"done", "new"}, set[str]()):
        store.logs_read.clear()
        async with manager_of(store) as manager:
            assert (await recover_unfinished(manager)).recovered == ()
        assert set(store.logs_read) == expected


async def test_where_the_store_does_not_know_what_is_unfinished_every_session_is_looked_at() -> (
    None
):
    store = FaultyStore(await left_open(drops="drop", resumes="resume"))
    assert not isinstance(store, UnfinishedIndex)
    async with manager_of(store) as manager:
        assert set((await recover_unfinished(manager)).recovered) == {"drops", "resumes"}
        await settled()


@pytest.mark.real_time
class Told:
    """A log that keeps the names of what it is told."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def info(self, name: str, **_: Any) -> None:
        self.names.append(name)

    error = info


@asynccontextmanager
async def recovering(manager: SessionManager) -> AsyncIterator[Told]:
    log = Told()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(keep_recovering, manager, at_once=4, log=log))
        yield log
        group.cancel_scope.cancel()


class FailsLabels(MemoryStore):
    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        if b"session.labelled" in batch.bodies[0]:
            done(Lost("the disk is on fire", committed=False))
        else:
            super().append(batch, done)


async def test_a_turn_whose_session_an_outage_ended_goes_on_although_nobody_opens_it() -> None:
    store, script = FailsLabels(), [never(), "back"]
    async with (
        stage(script, store=store, recovery="resume") as on,
        recovering(on.manager) as log,
    ):
        await on.begin("x")
        await fill(store, another="resume")  # left open by somebody else meanwhile
        with pytest.raises(StoreError):
            await on.session.label({"a": "b"})
        await anyio.sleep(LOOK_S + 5)
        assert log.names == ["sessions.recovered"]
        assert on.manager.live == ("s",)
        assert await (await on.manager.open("s")).turn(1).text() == "back"


async def test_a_search_for_open_turns_that_failed_is_made_again() -> None:
    store = await left_open(resumes="resume")
    unfinished, failures = store.unfinished, [StoreError("the disk is on fire", committed=False)]

    async def failing(*, after: str = "", limit: int = 1000) -> Sequence[SessionRow]:
        if failures:
            raise failures.pop()
        return await unfinished(after=after, limit=limit)

    store.unfinished = failing  # type: ignore[method-assign]  # a disk that fails
    async with manager_of(store) as manager, recovering(manager) as log:
        await anyio.sleep(2 * LOOK_S)
        assert log.names == ["sessions.not_recovered", "sessions.recovered"]
        assert manager.live == ("resumes",)


async def test_what_another_owner_holds_is_left_to_it() -> None:
    store = MemoryStore()
    async with stage([never()], store=store) as on:
        await on.begin("hello")
        async with manager_of(store) as other:
            report = await recover_unfinished(other)
            assert (report.recovered, report.failed) == ((), {})
        assert on.session.status().phase == "running"
        await on.session.interrupt()


# Which logs have an open turn: a released session's from its end, a dead owner's from all of it.


class Log:
    """A store of one log, of records as short as ``accepted 1``; it counts what is read of it."""

    def __init__(self, *records: str) -> None:
        self.read_records = 0
        kinds = [record.partition(" ") for record in records]
        bodies = [
            {"kind": kind if "." in kind else f"turn.{kind}"}
            | ({"turn": int(turn)} if turn else {})
            for kind, _, turn in kinds
        ]
        self._stored = [
            StoredRecord(seq, 1, msgspec.json.encode(body)) for seq, body in enumerate(bodies, 1)
        ]

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> list[StoredRecord]:
        page = self._stored[after:][:limit]
        self.read_records += len(page)
        return page

    async def is_open(self, *, died: bool) -> bool:
        row = SessionRow("s", 1, len(self._stored), owner=DEAD if died else None)
        return await has_open_turn(self, row)  # type: ignore[arg-type]  # reading is all it takes


CREATED = "session.created"
WHOLE = ("accepted 1", "step.completed 1", "committed 1")


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize(
    ("log", "is_open"),
    [
        ((CREATED,), False),
        ((CREATED, "accepted 1"), True),
        ((CREATED, *WHOLE), False),
        ((CREATED, "accepted 1", "failed 1"), False),
        ((CREATED, "accepted 1", "aborted 1", "accepted 2"), True),
        ((CREATED, *WHOLE, "accepted 2", "tools.requested 2"), True),
        ((CREATED, *WHOLE, "accepted 2", "summaries.stored", "session.labelled"), True),
        ((CREATED, "accepted 1", "accepted 2", "committed 1", "started 2"), True),
        ((CREATED, "accepted 1", *["accepted 2", "aborted 2"] * 500), True),
        ((CREATED, *WHOLE, *["accepted 2", "aborted 2"] * 500), False),
        ((CREATED, "accepted 1", "session.forked"), False),
        ((CREATED, "accepted 1", "session.forked", "accepted 2"), True),
        ((CREATED, *WHOLE, "context.warning 1"), False),
    ],
)
async def test_a_log_tells_whether_a_turn_is_open(
    log: tuple[str, ...], is_open: bool, died: bool
) -> None:
    assert await Log(*log).is_open(died=died) == is_open


async def test_of_a_dead_owner_a_queued_turn_is_found_behind_one_that_ended() -> None:
    log = (CREATED, "accepted 1", "accepted 2", "committed 1")
    assert await Log(*log).is_open(died=True)


async def test_of_a_long_log_that_was_released_only_the_end_is_read() -> None:
    log = Log(CREATED, *[record for turn in range(1, 2001) for record in WHOLE])
    assert not await log.is_open(died=False)
    assert log.read_records < 100


async def test_a_record_that_cannot_be_read_is_passed_over() -> None:
    log = Log(CREATED, "accepted 1", "session.labelled")
    log._stored[-1] = StoredRecord(3, 1, b"no JSON")
    assert await log.is_open(died=False)
