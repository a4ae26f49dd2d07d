"""The directory of a cluster in a real PostgreSQL: who is in the view, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pytest

from llmsession import InvalidInput, SessionInUse, StoreError
from llmsession.cluster.directory import Directory
from llmsession.cluster.placement import Host, View
from llmsession.cluster.sql import LOCK_CLASS
from llmsession.store.protocol import Lease, Owner, this_process
from tests.cluster.faults.network import Wire, running_wire
from tests.store.conftest import Database, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

LONG_S = 1000.0


@asynccontextmanager
async def opened(
    database: Database, count: int = 1, **options: float
) -> AsyncIterator[list[Directory]]:
    """Directories of one cluster, which poll so seldom that only notifications count."""
    settings = {"lease_s": LONG_S, "settle_s": LONG_S, "poll_s": LONG_S, **options}
    async with asyncio.timeout(150), AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Directory(database.dsn, "c", schema=database.schema, **settings)
            )
            for _ in range(count)
        ]


@asynccontextmanager
async def behind_wires(
    database: Database, count: int, **options: float
) -> AsyncIterator[list[tuple[Directory, Wire]]]:
    """Likewise, each with its wire to the database."""
    settings = {"lease_s": LONG_S, "settle_s": LONG_S, "poll_s": LONG_S, **options}
    async with asyncio.timeout(90), AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            wire = await stack.enter_async_context(running_wire(str(database.server.socket)))
            dsn = f"postgresql://postgres@127.0.0.1:{wire.port}/postgres?sslmode=disable"
            directory = Directory(dsn, "c", schema=database.schema, **settings)
            made.append((await stack.enter_async_context(directory), wire))
        yield made


def states(view: View) -> dict[str, str]:
    return {host.name: host.state for host in view.hosts}


def _note(versions: list[int], _before: View, after: View) -> None:
    versions.append(after.version)


async def until_states(directory: Directory, **expected: str) -> None:
    while states(directory.view) != expected:
        with suppress(StoreError):  # the first use finds that a connection is lost
            await directory.refresh()


async def join(directory: Directory, name: str) -> None:
    await directory.join(name, f"tcp://{name}:1", this_process(f"i-{name}"))


async def test_every_host_is_told_of_a_host_that_joins_drains_and_leaves(
    database: Database,
) -> None:
    async with opened(database, 2) as (first, second):
        await join(first, "a")
        await until_states(second, a="up")
        await join(second, "b")
        await until_states(first, a="up", b="joining")
        await second.drain("a")
        # Where no host is up, one that has not settled is better than none.
        await until_states(first, a="draining", b="up")
        await first.leave()
        await until_states(second, b="up")
        assert first.view.version >= 4


async def test_a_change_is_pushed_to_hosts_that_do_not_poll(database: Database) -> None:
    async with opened(database, 2) as (first, second):
        changed: asyncio.Queue[View] = asyncio.Queue()
        second.watch(lambda before, after: changed.put_nowait(after))
        await join(first, "a")
        while states(await changed.get()) != {"a": "up"}:
            pass
        await first.drain("a")
        while states(await changed.get()) != {"a": "draining"}:
            pass
        await first.leave()
        while states(await changed.get()) != {}:
            pass


async def test_versions_of_the_view_rise_and_all_hosts_read_the_same(database: Database) -> None:
    async with opened(database, 3) as directories:
        seen: list[list[int]] = [[] for _ in directories]
        for versions, directory in zip(seen, directories, strict=True):
            directory.watch(partial(_note, versions))
        await asyncio.gather(
            *(join(each, name) for each, name in zip(directories, "abc", strict=True))
        )
        views = set()
        for directory in directories:
            await directory.refresh()
            views.add(directory.view)
        assert len(views) == 1
        for versions in seen:
            assert versions == sorted(set(versions))


async def test_a_host_that_has_settled_is_given_sessions(database: Database) -> None:
    async with opened(database, 2, settle_s=0.0) as (first, second):
        await join(first, "a")
        await join(second, "b")
        await first.refresh()
        await until_states(second, a="up", b="up")


async def test_whoever_notices_removes_a_host_whose_lease_ran_out(database: Database) -> None:
    async with opened(database) as (directory,):
        await join(directory, "a")
        database.sql(
            "INSERT INTO @host SELECT cluster, 'gone', address, 'up', 'i-gone', 0, '', '',"
            " now() - interval '1 s', now() FROM @host"
        )
        await directory.refresh()
        assert set(states(directory.view)) == {"a"}
        assert database.sql("SELECT name FROM @host") == [("a",)]


async def test_after_an_outage_of_the_database_nobody_is_removed_who_has_yet_to_come_back(
    database: Database,
) -> None:
    async with behind_wires(database, 2, poll_s=0.1) as ((first, wire), (second, other_wire)):
        await join(first, "a")
        await join(second, "b")
        await until_states(first, a="up", b="joining")
        wire.set("cut")
        other_wire.set("cut")
        while first.age_s < 0.5:  # noqa: ASYNC110  # nobody tells how long it has been away
            await asyncio.sleep(0.05)
        database.sql("UPDATE @host SET lease_until = now() - interval '1 s'")
        wire.set("whole")
        while first.age_s > 0.5:
            with suppress(StoreError):
                await first.refresh()
        await first.refresh()
        assert set(states(first.view)) == {"a", "b"}


async def test_a_host_that_is_lost_amid_a_change_holds_up_the_others_for_a_while_only(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmsession.cluster.directory.HOLD_S", 0.5)
    async with behind_wires(database, 1) as ((lost, wire),), opened(database) as (other,):
        await join(other, "a")
        with database.server.session() as session:
            key = f"hashtext('{database.schema}/c')"
            session.run(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK_CLASS}, {key})")
            draining = asyncio.create_task(lost.drain("a"))
            await database.wait_for(1)
            wire.set("silent")  # so it never hears that it may change the rows now
            session.run("COMMIT")
        while other.wanted != 3:
            with suppress(StoreError):
                await other.set_wanted(3)
        wire.set("cut")
        with pytest.raises(StoreError):
            await draining


async def test_a_host_that_was_removed_enters_again_once_it_renews_its_lease(
    database: Database,
) -> None:
    async with opened(database, 2) as (first, second):
        await join(first, "a")
        await join(second, "b")
        database.sql("DELETE FROM @host WHERE name = 'a'")
        await first.refresh()
        await second.refresh()
        assert set(states(second.view)) == {"a", "b"}


async def test_a_host_whose_process_ended_on_this_machine_is_gone_at_once(
    database: Database,
) -> None:
    async with opened(database) as (directory,):
        await join(directory, "b")
        # The pid was given to another process, which began later.
        database.sql(
            "INSERT INTO @host SELECT cluster, 'a', address, 'up', 'i-a', pid, '1', machine,"
            " lease_until, settled_at FROM @host"
        )
        database.sql("UPDATE @host_view SET version = version + 1")
        await directory.refresh()  # it learns of the process
        await directory.refresh()
        assert set(states(directory.view)) == {"b"}
        assert await directory.is_gone(Host("a", "tcp://a:1", "up", "i-a"))
        [own] = directory.view.hosts
        assert not await directory.is_gone(own)


FAR = Owner("i-far", 7, "1", "another machine")


async def test_the_sessions_of_a_host_that_is_declared_dead_are_free_at_once_everywhere(
    database: Database,
) -> None:
    async with opened(database, 2) as (first, second), database.store() as store:
        await join(first, "a")
        database.sql(
            "INSERT INTO @host SELECT cluster, 'far', address, 'up', 'i-far', 7, '1',"
            " 'another machine', lease_until, settled_at FROM @host"
        )
        database.sql("UPDATE @host_view SET version = version + 1")
        # It is on a machine that nobody can see, and it is lost: its lease would run for an hour.
        await store.create("s", this_process("i-a"))
        database.sql("INSERT INTO @owner VALUES ('i-far', now() + interval '1 hour')")
        database.sql("UPDATE @session SET owner = 'i-far', owner_host = 'another machine'")
        await second.refresh()
        with pytest.raises(SessionInUse):
            await store.acquire("s", this_process("i-a"))
        assert await second.declare_dead("i-far", "its node was declared dead")
        assert set(states(second.view)) == {"a"}
        assert await store.acquire("s", this_process("i-a")) == Lease("s", 2, 0)
        await until_states(first, a="up")
        assert not await second.declare_dead("i-far", "its node was declared dead")
        assert not await second.declare_dead("nobody", "why not")


async def test_a_host_that_was_wrongly_declared_dead_enters_again_and_keeps_its_sessions(
    database: Database,
) -> None:
    async with opened(database, 2) as (first, second), database.store() as store:
        await join(first, "a")
        await store.create("s", FAR)
        await first.join("far", "tcp://far:1", FAR)
        await second.refresh()
        version = second.view.version
        assert await second.declare_dead("i-far", "silent to two observers")
        while second.view.version < version + 2 or "far" not in states(second.view):
            await second.refresh()
        await until(lambda: database.sql("SELECT FROM @owner WHERE name = 'i-far'"))
        with pytest.raises(SessionInUse):
            await store.acquire("s", this_process("i-a"))


async def test_a_process_with_the_name_of_a_host_replaces_it(database: Database) -> None:
    async with opened(database, 2) as (first, second):
        await join(first, "a")
        await second.join("a", "tcp://new:1", this_process("i-new"))
        await first.refresh()  # it does not take its name back
        await second.refresh()
        [host] = second.view.hosts
        assert (host.address, host.incarnation) == ("tcp://new:1", "i-new")


async def test_a_host_is_asked_to_hand_a_session_over(database: Database) -> None:
    async with opened(database, 2) as (first, second):
        await join(first, "a")
        asked: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        first.watch(on_move=lambda session, target: asked.set_result((session, target)))
        await second.refresh()
        [host] = second.view.hosts
        await second.ask_to_move("anna/with space", host, "b")
        assert await asked == ("anna/with space", "b")


async def test_a_lost_connection_is_made_again_and_still_listens(database: Database) -> None:
    async with opened(database, 2) as (first, second):
        await join(first, "a")
        await until_states(second, a="up")
        database.server.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'llmsession'"
        )
        while True:
            try:
                await first.drain("a")
                break
            except StoreError:
                continue
        await until_states(second, a="draining")


async def test_what_is_not_there_or_has_no_name_is_refused(database: Database) -> None:
    with pytest.raises(InvalidInput, match="no space"):
        Directory(database.dsn, "a b")
    async with opened(database) as (directory,):
        with pytest.raises(InvalidInput, match="no host 'x'"):
            await directory.drain("x")
