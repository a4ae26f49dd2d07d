"""Who holds a session in PostgreSQL: leases, processes that died, stores that race."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import anyio.to_thread
import pytest

from llmsession import SessionConfig, SessionManager
from llmsession.errors import SessionExists, SessionInUse, StoreError
from llmsession.store import (
    Appended,
    Batch,
    Conflict,
    Lease,
    Owner,
    PostgresStore,
    StoredRecord,
    this_process,
)
from llmsession.store.held_leases import HeldLeases
from llmsession.store.liveness import lease_clock, our_start, this_host
from llmsession.store.postgres.connections import Connections
from llmsession.store.postgres.owners import Owners
from llmsession.store.postgres.sql import Statements
from llmsession.testing.scripted import ScriptedProvider
from llmsession.testing.store_contract.actions import Answer, append, bodies_of, raised, written
from tests.store.conftest import Database, until
from tests.store.postgres.proxy import Proxy, When

# On one backend: what is tested runs in the store's own loop, whoever asks.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ROOT = Path(__file__).resolve().parents[3]
ANN, BOB = this_process("ann"), this_process("bob")
FAR = Owner("far", 7, "1", "another machine")


@contextmanager
def other_process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """``postgres_racer`` in a process of its own, which is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.store.postgres.racer", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


async def test_sessions_of_a_process_that_was_killed_are_free_at_once(database: Database) -> None:
    async with database.store(lease_s=3600.0) as store:
        with other_process("hold", database.dsn, database.schema) as process:
            assert await anyio.to_thread.run_sync(_line, process) == b"held\n"
            error = await raised(SessionInUse, lambda: store.acquire("s", ANN))
            assert f"(pid {process.pid})" in str(error)
            process.kill()
            process.wait()
            assert await store.acquire("s", ANN) == Lease("s", 2, 1)
            assert await bodies_of(store, "s") == [b"from another process"]


async def test_an_owner_on_another_machine_keeps_its_sessions_for_its_lease(
    database: Database,
) -> None:
    async with database.store(lease_s=3600.0) as there, database.store() as here:
        await there.create("s", FAR)
        error = await raised(SessionInUse, lambda: here.acquire("s", ANN))
        assert "far (pid 7 on another machine)" in str(error)
        database.end_lease("far")
        assert await here.acquire("s", ANN) == Lease("s", 2, 0)


async def test_a_lease_is_renewed_while_its_store_is_open(database: Database) -> None:
    ask = "SELECT lease_until FROM @owner WHERE name = 'far'"
    async with database.store(lease_s=0.3) as store:
        await store.create("s", FAR)
        first = database.sql(ask)
        await until(lambda: database.sql(ask) > first)
        # Also one that was forgotten meanwhile: by whoever thought it dead.
        database.sql("DELETE FROM @owner")
        await until(lambda: database.sql(ask))


async def test_leases_are_renewed_while_everything_else_waits_for_a_vacuum(
    database: Database,
) -> None:
    ask = "SELECT lease_until FROM @owner WHERE name = 'far'"
    async with database.store(lease_s=0.3, readers=1) as store:
        lease = await store.create("s", FAR)
        with database.locked("session") as lock:
            async with anyio.create_task_group() as group:
                group.start_soon(store.rows)
                answer = append(store, lease, b"1")
                first = database.sql(ask)
                await database.wait_for(2)
                await until(lambda: database.sql(ask) > first)
                lock.run("ROLLBACK")
        await answer.wait()


async def test_a_store_that_closes_gives_up_what_its_owners_still_hold(database: Database) -> None:
    async with database.store(lease_s=3600.0) as there:
        await there.create("far's", FAR)
        await there.create("ann's", ANN)
    async with database.store() as here:
        assert (await here.acquire("far's", BOB)).epoch == 2
        assert (await here.acquire("ann's", BOB)).epoch == 2


class LateRenewals:
    """Stands for the connections to a database with leases. A renewal gets there when ``arrives``
    is set, whoever still waits for its answer."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self.leases: set[str] = set()
        self.arrives = asyncio.Event()
        self.sent: list[asyncio.Task[None]] = []

    async def open(self) -> LateRenewals:
        return self

    async def fetch(self, _statement: str, names: list[str], _lease_s: float) -> list[object]:
        self.sent.append(asyncio.create_task(self._arrive(names)))
        await asyncio.shield(self.sent[-1])
        return []

    async def _arrive(self, names: list[str]) -> None:
        await self.arrives.wait()
        self.leases.update(names)

    async def execute(self, statement: str, *values: object) -> None:
        if statement == self._statements.end_leases:
            self.leases.clear()

    async def add_listener(self, *_: object) -> None: ...

    def add_termination_listener(self, _: object) -> None: ...

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None: ...


async def test_a_renewal_that_arrives_late_does_not_undo_what_closing_a_store_did() -> None:
    statements = Statements("s")
    database = LateRenewals(statements)
    owners = Owners(cast(Connections, database), statements, "s", lease_s=3600.0)
    renewing = asyncio.create_task(owners.renew())
    await owners.lease(FAR)
    await until(lambda: database.sent)
    async with asyncio.TaskGroup() as group:
        group.create_task(owners.end(renewing))
        await anyio.wait_all_tasks_blocked()
        database.arrives.set()
    await database.sent[0]
    assert renewing.done()
    assert not database.leases


async def test_a_process_that_is_seen_to_live_keeps_its_sessions_when_its_lease_is_late(
    database: Database,
) -> None:
    async with database.store(lease_s=3600.0) as there, database.store() as here:
        await there.create("s", ANN)
        database.sql("UPDATE @owner SET lease_until = now() - interval '1 hour'")
        await raised(SessionInUse, lambda: here.acquire("s", BOB))


async def test_another_process_with_the_pid_of_a_dead_one_does_not_hold_its_sessions(
    database: Database,
) -> None:
    if not our_start():
        pytest.skip("this system does not say when a process started")
    dead = Owner("dead", os.getpid(), "1", this_host())
    async with database.store(lease_s=3600.0) as store:
        await store.create("s", dead)
        assert (await store.acquire("s", ANN)).epoch == 2


async def test_owners_that_are_long_gone_are_forgotten(database: Database) -> None:
    async with database.store(lease_s=0.1) as store:
        await store.create("s", ANN)
        database.sql("INSERT INTO @owner VALUES ('gone', now() - interval '2 days')")
        await until(lambda: len(database.sql("SELECT FROM @owner")) <= 1)


async def test_a_takeover_ends_although_others_take_the_session_too(database: Database) -> None:
    async with database.store() as one, database.store() as two:
        await one.create("s", ANN)
        leases: list[Lease] = []

        async def steal(at: int) -> None:
            store = (one, two)[at % 2]
            for _ in range(10):
                leases.append(await store.acquire("s", Owner(f"{at}"), takeover=True))

        async with anyio.create_task_group() as group:
            for at in range(6):
                group.start_soon(steal, at)
        # Each taking has an epoch of its own, and none was left out.
        assert sorted(lease.epoch for lease in leases) == list(range(2, 62))


async def test_of_two_that_find_a_session_free_one_gets_it(
    database: Database, store: PostgresStore
) -> None:
    await store.release(await store.create("s", ANN))
    taken: list[Lease] = []
    refused: list[str] = []

    async def take(owner: Owner) -> None:
        try:
            taken.append(await store.acquire("s", owner))
        except SessionInUse as error:
            refused.append(error.owner)

    # Both have looked before either can take.
    with database.locked("session", "id = 's'") as lock:
        async with anyio.create_task_group() as group:
            for count, owner in enumerate((ANN, BOB), 1):
                group.start_soon(take, owner)
                await database.wait_for(count)
            lock.run("ROLLBACK")
    assert taken == [Lease("s", 2, 0)]
    holder = (await store.row("s")).owner
    assert holder is not None
    assert refused == [f"{holder.name} (pid {holder.pid})"]


async def test_processes_that_steal_from_each_other_never_write_one_position(
    database: Database, store: PostgresStore
) -> None:
    for at in range(3):
        await store.create(f"s{at}", ANN)
    with ExitStack() as stack:
        racers = [
            stack.enter_context(other_process("race", database.dsn, database.schema, name))
            for name in ("one", "two", "three")
        ]
        for racer in racers:
            assert await anyio.to_thread.run_sync(_line, racer) == b"ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"go\n")
            racer.stdin.flush()
        told = [json.loads(await anyio.to_thread.run_sync(_line, racer)) for racer in racers]
    assert sum(len(one["conflicts"]) for one in told) > 0, "nobody was fenced: no race"
    for at in range(3):
        acknowledged = [
            StoredRecord(seq, epoch, body.encode())
            for seq, epoch, body in sorted(entry for one in told for entry in one.get(f"s{at}", []))
        ]
        assert await store.read(f"s{at}") == acknowledged
        assert [record.seq for record in acknowledged] == list(range(1, len(acknowledged) + 1))
    assert await store.check() == []


# What an owner is told.


class Heard:
    """What a store told an owner."""

    def __init__(self) -> None:
        self.taken_from: list[tuple[str, int]] = []
        self.times_missed = 0

    def taken(self, session: str, epoch: int) -> None:
        self.taken_from.append((session, epoch))

    def missed(self) -> None:
        self.times_missed += 1


async def _until_heard(
    there: PostgresStore, here: PostgresStore, session: str, heard: Heard
) -> None:
    """Take *session* to and fro until its owner *there* hears of it: it may not listen yet."""
    with anyio.fail_after(120):
        while not heard.taken_from:
            await there.acquire(session, ANN, takeover=True)
            await here.acquire(session, BOB, takeover=True)
            await anyio.sleep(0.01)


async def test_an_owner_hears_at_once_that_its_session_was_taken(database: Database) -> None:
    heard, others = Heard(), Heard()
    async with database.store(lease_s=3600.0) as there, database.store() as here:
        there.watch_owner(ANN, heard)
        here.watch_owner(BOB, others)
        await there.create("a session", ANN)
        await _until_heard(there, here, "a session", heard)
        session, epoch = heard.taken_from[-1]
        assert (session, epoch) == ("a session", (await here.row("a session")).epoch)
        # Whoever gave it back has lost nothing.
        await there.release(await there.create("free", ANN))
        await here.acquire("free", BOB)
        assert await there.epochs(["free", "a session", "none"]) == {"free": 2, "a session": epoch}
    assert {session for session, _ in heard.taken_from} == {"a session"}


async def test_a_lease_that_cannot_be_renewed_is_not_valid_until_it_is_renewed(
    database: Database,
) -> None:
    heard = Heard()
    async with database.store(lease_s=0.3) as store:
        store.watch_owner(ANN, heard)
        assert store.is_lease_valid(ANN)
        await store.create("s", ANN)
        with database.locked("owner") as lock:
            await until(lambda: not store.is_lease_valid(ANN))
            assert heard.times_missed == 0
            lock.run("ROLLBACK")
        await until(lambda: heard.times_missed)
        await until(lambda: store.is_lease_valid(ANN))


async def test_an_owner_hears_that_its_store_was_cut_off_once_it_listens_again(
    database: Database,
) -> None:
    heard = Heard()
    async with database.store(lease_s=3600.0) as store:
        store.watch_owner(ANN, heard)
        await store.create("s", ANN)
        await _until_heard(store, store, "s", heard)
        heard.taken_from.clear()
        database.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'llmsession'"
        )
        await until(lambda: heard.times_missed)
        await _until_heard(store, store, "s", heard)


# A store is told who is dead.


async def test_what_an_owner_on_another_machine_held_is_free_once_the_store_is_told_it_is_dead(
    database: Database,
) -> None:
    async with database.store(lease_s=3600.0) as here:
        await here.create("s", ANN)
        # Its machine is lost: nobody renews its lease.
        database.sql("INSERT INTO @owner VALUES ('far', now() + interval '1 hour')")
        database.sql("UPDATE @session SET owner = 'far', owner_host = 'another machine'")
        await raised(SessionInUse, lambda: here.acquire("s", ANN))
        await here.end_lease_of("nobody")
        await here.end_lease_of("\0")
        await raised(SessionInUse, lambda: here.acquire("s", ANN))
        await here.end_lease_of("far")
        assert await here.acquire("s", ANN) == Lease("s", 2, 0)


async def test_an_owner_that_was_wrongly_said_to_be_dead_is_told_and_keeps_what_nobody_took(
    database: Database,
) -> None:
    heard = Heard()
    async with database.store(lease_s=3600.0) as there, database.store() as here:
        there.watch_owner(FAR, heard)
        kept, lost = await there.create("kept", FAR), await there.create("lost", FAR)
        with database.locked("owner", "name = 'far'") as lock:
            # It is told when the lease has ended. It cannot renew it before.
            async with anyio.create_task_group() as group:
                group.start_soon(here.end_lease_of, "far")
                await database.wait_for(1)
                lock.run("ROLLBACK")
        await until(lambda: heard.times_missed)
        await until(lambda: there.is_lease_valid(FAR))
        # Everybody sees that it lives.
        await raised(SessionInUse, lambda: here.acquire("kept", BOB))
        await here.acquire("lost", BOB, takeover=True)
        assert isinstance(await append(there, lost, b"late").wait(), Conflict)
        await written(there, kept, b"1")
        assert await there.epochs(["kept", "lost"]) == {"kept": 1, "lost": 2}


async def test_an_owner_whose_lease_was_ended_looks_what_it_lost_although_it_was_not_told(
    database: Database,
) -> None:
    heard = Heard()
    async with database.store(lease_s=0.3) as store:
        store.watch_owner(FAR, heard)
        await store.create("s", FAR)
        await until(lambda: database.sql("SELECT FROM @owner"))
        database.sql("DELETE FROM @owner")
        await until(lambda: heard.times_missed)


async def test_a_process_that_stood_still_does_not_rely_on_its_lease_before_it_has_asked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood_still_s = [0.0]
    monkeypatch.setattr(HeldLeases, "now", lambda _: lease_clock() + stood_still_s[0])
    heard = Heard()
    async with database.store(lease_s=3600.0) as store:
        store.watch_owner(FAR, heard)
        await store.create("s", FAR)
        await until(lambda: store.is_lease_valid(FAR))
        with database.locked("owner") as lock:
            stood_still_s[0] = 3.0
            assert not store.is_lease_valid(FAR)
            await database.wait_for(1)  # it asks
            assert not store.is_lease_valid(FAR)
            assert heard.times_missed == 0
            lock.run("ROLLBACK")
        await until(lambda: heard.times_missed)
        await until(lambda: store.is_lease_valid(FAR))


def marking(store: PostgresStore, lease: Lease, unfinished: bool) -> Answer:
    """The answer to one more record of *lease*'s session that says so."""
    answer = Answer()
    batch = Batch(lease.session, lease.epoch, lease.head, (b"1",), unfinished=unfinished)
    store.append(batch, answer.done)
    return answer


async def marked(store: PostgresStore, lease: Lease, unfinished: bool) -> Lease:
    """The lease after a record that says so."""
    head = lease.head + 1
    assert await marking(store, lease, unfinished).wait() == Appended(head)
    return Lease(lease.session, lease.epoch, head)


async def test_what_an_owner_left_unfinished_is_found_once_it_is_known_to_be_dead(
    database: Database,
) -> None:
    async def mark(store: PostgresStore, session: str, owner: Owner) -> None:
        await marked(store, await store.create(session, owner), True)

    async def found() -> list[str]:
        return [row.session for row in await here.unfinished(limit=1)]

    async with database.store(lease_s=3600.0) as there, database.store() as here:
        for at in range(3):
            await mark(there, f"far-{at}", FAR)
            await mark(there, f"ann-{at}", ANN)
        # BOB takes one, and has not said anything of it yet.
        await here.acquire("far-0", BOB, takeover=True)
        assert await found() == []
        database.end_lease("far")
        assert await found() == ["far-1"]
        await there.release(Lease("ann-2", 1, 1))
        assert await found() == ["ann-2"]


async def test_what_a_dead_taker_left_is_found_while_the_owner_before_it_lives(
    database: Database,
) -> None:
    gone = Owner("gone", 8, "1", "another machine")
    async with database.store(lease_s=3600.0) as there, database.store() as here:
        await marked(there, await there.create("kept", FAR), True)
        await marked(there, await there.create("lost", FAR), True)
        await there.acquire("lost", gone, takeover=True)
        assert await here.unfinished() == []
        database.end_lease("gone")
        assert [row.session for row in await here.unfinished()] == ["lost"]


async def test_turns_write_no_row_to_the_list_of_unfinished_sessions(database: Database) -> None:
    listed = "SELECT session, xmin::text, ctid::text FROM @unfinished"
    async with database.store() as store:
        lease = await marked(store, await store.create("s", ANN), True)
        first = database.sql(listed)
        assert len(first) == 1
        for mark in (False, True, True, False):
            lease = await marked(store, lease, mark)
            assert database.sql(listed) == first
        await store.release(lease)
        assert database.sql(listed) == []


async def test_what_a_dead_owner_had_finished_leaves_the_list_and_comes_back_if_it_lives(
    database: Database,
) -> None:
    async with database.store(lease_s=3600.0) as there, database.store() as here:
        lease = await marked(there, await there.create("s", FAR), True)
        lease = await marked(there, lease, False)
        database.end_lease("far")
        assert await here.unfinished() == []
        assert database.sql("SELECT session FROM @unfinished") == []
        await marked(there, lease, True)
        assert [row.session for row in await here.unfinished()] == ["s"]


async def test_a_session_that_is_marked_while_it_leaves_the_list_is_on_it(
    database: Database,
) -> None:
    async with database.store(lease_s=3600.0) as store:
        lease = await marked(store, await store.create("s", FAR), True)
        lease = await marked(store, lease, False)
        with database.server.session() as leaving:
            leaving.run("BEGIN")
            leaving.ask(Statements(database.schema).forget_finished, ["far"])
            answer = marking(store, lease, True)
            await database.wait_for(1)
            leaving.run("COMMIT")
        assert await answer.wait() == Appended(3)
        assert database.sql("SELECT session FROM @unfinished") == [("s",)]
        assert await store.check() == []


async def test_a_manager_that_is_left_while_the_server_is_away_does_not_keep_its_sessions(
    frail_database: Database,
) -> None:
    server, provider = frail_database.server, ScriptedProvider([])
    async with (
        frail_database.store(retry_s=0.1) as store,
        SessionManager(provider=provider, store=store) as manager,
    ):
        await manager.create(SessionConfig(model="m"), session_id="s")
        await anyio.to_thread.run_sync(server.stop)
    await anyio.to_thread.run_sync(server.start)
    async with (
        frail_database.store() as store,
        SessionManager(provider=provider, store=store) as next_one,
    ):
        await next_one.open("s")


# Answers that are lost.


async def test_a_session_whose_making_was_cut_off_is_made_once(
    database: Database, proxy: Proxy
) -> None:
    moments: tuple[When, ...] = ("after", "before")
    for when in moments:
        session = f"cut {when}"
        async with database.store(dsn=proxy.dsn) as store:
            await store.rows()
            proxy.cut(session.encode(), when)
            lease = await store.create(session, ANN)
            assert lease == Lease(session, 1, 0)
            await written(store, lease, b"1")
            await raised(SessionExists, partial(store.create, session, ANN))
    assert proxy.cuts == 2


async def test_a_session_of_somebody_else_is_not_taken_for_one_that_was_cut_off(
    database: Database, proxy: Proxy
) -> None:
    async with database.store() as there, database.store(dsn=proxy.dsn) as here:
        await there.create("mine", BOB)
        await here.rows()
        proxy.cut(b"mine", "after")
        await raised(SessionExists, lambda: here.create("mine", ANN))
        assert proxy.cuts == 1


async def test_a_taking_that_was_cut_off_is_done_again(database: Database, proxy: Proxy) -> None:
    async with database.store() as there, database.store(dsn=proxy.dsn) as here:
        old = await there.create("mine", BOB)
        await here.create("other", ANN)
        proxy.cut(b"mine", "after")
        taken = await here.acquire("mine", ANN, takeover=True)
        await written(here, taken, b"1")
        assert isinstance(await append(there, old, b"late", head=1).wait(), Conflict)
        assert await bodies_of(here, "mine") == [b"1"]


async def test_a_taking_that_waits_for_a_lock_is_not_done_when_its_connection_has_gone(
    database: Database, proxy: Proxy
) -> None:
    async with database.store() as there, database.store(dsn=proxy.dsn, retry_s=0.0) as here:
        await there.create("theirs", BOB)
        await here.create("other", ANN)
        with database.locked("session", "id = 'theirs'"):
            async with anyio.create_task_group() as group:
                take = partial(here.acquire, "theirs", ANN, takeover=True)
                group.start_soon(raised, StoreError, take)
                await database.wait_for(1)
                proxy.cut_all()
            await until(lambda: not database.waiting())
        row = await there.row("theirs")
        assert (row.owner, row.epoch) == (BOB, 1)


async def test_of_a_taking_that_was_cut_off_without_patience_nobody_knows_whether_it_was_done(
    database: Database, proxy: Proxy
) -> None:
    async with database.store() as there, database.store(dsn=proxy.dsn, retry_s=0.0) as here:
        await there.create("theirs", BOB)
        await here.create("other", ANN)
        proxy.cut(ANN.host.encode(), "after")  # no other statement here has it
        error = await raised(StoreError, lambda: here.acquire("theirs", ANN, takeover=True))
        assert error.committed is None
        row = await there.row("theirs")
        assert (row.owner, row.epoch) == (ANN, 2)
