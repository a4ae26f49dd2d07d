"""A host hands over what is placed elsewhere; an operator moves sessions and lets hosts drain."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from llmsession import InvalidConfig, InvalidInput, MemoryStore, SessionManager
from llmsession.cluster.clients import connect_cluster, link_maker
from llmsession.cluster.control import move_session
from llmsession.cluster.host import ClusterHost, advertised
from llmsession.cluster.placement import EMPTY, Host, HostState, View, host_of
from llmsession.session.manager import runtime_of
from llmsession.testing.scripted import ScriptedProvider, never
from tests.cluster.hosts import LocalHost, local_host, refresh
from tests.session.registry.test_owner_lease import LeasingMemory
from tests.store.conftest import Database
from tests.transport.places import CONFIG, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


async def live(host: LocalHost, *sessions: str) -> None:
    """Wait until exactly these are live at *host*."""
    await until(lambda: set(host.manager.live) == set(sessions))


async def test_a_host_that_joins_is_handed_its_share_and_nothing_else(
    database: Database, tmp_path: Path
) -> None:
    async with asyncio.timeout(100), local_host(database, tmp_path, "a") as a:
        for number in range(12):
            await a.manager.create(CONFIG, session_id=f"s{number}")
        async with local_host(database, tmp_path, "b") as b:
            await refresh(a, b)
            sessions = {f"s{number}" for number in range(12)}
            stay = {name for name in sessions if host_of(b.directory.view, name) == own(b, "a")}
            assert 0 < len(stay) < 12
            await live(a, *stay)


def own(host: LocalHost, name: str) -> object:
    return host.directory.view.by_name(name)


async def test_a_host_that_is_asked_to_drain_hands_all_its_sessions_over(
    database: Database, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(100),
        local_host(database, tmp_path, "a", lambda request, tag: "said") as a,
        local_host(database, tmp_path, "b", lambda request, tag: "said") as b,
        connect_cluster([a.address]) as sessions,
    ):
        await refresh(a, b)
        for number in range(6):
            await sessions.create(CONFIG, session_id=f"s{number}")
        await b.directory.drain("a")
        await live(a)
        for number in range(6):
            session = await sessions.open(f"s{number}")
            assert await (await session.send("hi")).text() == "said"
        await live(b, *(f"s{number}" for number in range(6)))


async def test_a_host_that_ends_hands_over_what_is_live_and_a_lone_one_keeps_it(
    database: Database, tmp_path: Path
) -> None:
    async with asyncio.timeout(100), local_host(database, tmp_path, "a") as a:
        await a.manager.create(CONFIG, session_id="s")
        await a.host.hand_over_all(LONG_S)
        assert set(a.manager.live) == {"s"}
        async with local_host(database, tmp_path, "b"):
            await a.host.hand_over_all(LONG_S)
            assert not a.manager.live


async def test_a_host_whose_name_another_took_hands_over_and_does_not_drain_the_other(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    async with asyncio.timeout(100), local_host(database, tmp_path, "a") as a:
        await a.manager.create(CONFIG, session_id="s")
        async with local_host(database, tmp_path / "other", "a") as other:
            await refresh(a, other)
            await a.host.hand_over_all(LONG_S)
            assert not a.manager.live
            assert [host.state for host in other.directory.view.hosts] == ["up"]


LONG_S = 1000.0


async def test_an_operator_moves_a_session_to_a_host_and_its_clients_follow(
    database: Database, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(100),
        local_host(database, tmp_path, "a", lambda request, tag: "said") as a,
        local_host(database, tmp_path, "b", lambda request, tag: "said") as b,
        connect_cluster([a.address]) as sessions,
        database.store() as store,
    ):
        await refresh(a, b)
        session = await sessions.create(CONFIG, session_id="s")
        for target in (b, a, b):
            host = await move_session(b.directory, store, "s", target.name, link_maker())
            assert host.address == target.address
            assert target.manager.live == ("s",)
            assert await (await session.send("hi")).text() == "said"
        with pytest.raises(InvalidInput, match="no host 'x'; it has a, b"):
            await move_session(b.directory, store, "s", "x", link_maker())


class ToldViews:
    """A ``HostDirectory`` whose news come when a test sends them."""

    name, age_s = "demo", 0.0

    def __init__(self, view: View) -> None:
        self.view = view

    def watch(
        self,
        on_view: Callable[[View, View], None] | None = None,
        on_move: Callable[[str, str], None] | None = None,
    ) -> None:
        assert on_view is not None
        assert on_move is not None
        self.on_view, self.on_move = on_view, on_move

    async def drain(self, host: str) -> None: ...

    async def is_gone(self, host: Host) -> bool:
        return False


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_news_of_the_directory_after_the_manager_has_ended_are_left_alone() -> None:
    view = View(1, (Host("a", "unix:a", "up", "1"), Host("b", "unix:b", "up", "2")))
    directory = ToldViews(view)
    async with SessionManager(provider=ScriptedProvider([])) as manager:
        ClusterHost(manager, directory, "a")
    directory.on_view(EMPTY, view)
    directory.on_move("s", "b")


async def test_a_host_that_ends_waits_for_no_step_after_its_grace_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llmsession.cluster.host.AT_ONCE", 2)
    b = Host("b", "unix:b", "up", "2")
    provider = ScriptedProvider(lambda request, tag: never())
    async with asyncio.timeout(100), SessionManager(provider=provider) as manager:
        own = runtime_of(manager).owner.name
        before, after = (
            View(number, (Host("a", "unix:a", state, own), b))
            for number, state in enumerate[HostState](("up", "draining"))
        )
        directory = ToldViews(after)
        host = ClusterHost(manager, directory, "a")
        for session in placed_at("a", before, 5):
            await (await manager.create(CONFIG, session_id=session)).send("hi")
        directory.on_view(before, after)  # it begins to wait for the ends of the steps
        for _ in range(100):
            await asyncio.sleep(0)
        await host.hand_over_all(0.0)
        assert not manager.live


def placed_at(name: str, view: View, count: int) -> list[str]:
    """Ids of *count* sessions that are placed at the host *name*."""
    ids = (f"s{number}" for number in itertools.count())
    return list(itertools.islice((s for s in ids if host_of(view, s) == view.by_name(name)), count))


def manager_of(store: MemoryStore) -> SessionManager:
    return SessionManager(provider=ScriptedProvider([]), store=store)


async def left_open(store: MemoryStore, session: str) -> None:
    """Another manager leaves *session* with an open turn."""
    provider = ScriptedProvider(lambda request, tag: never())
    async with SessionManager(provider=provider, store=store) as manager:
        await (await manager.create(CONFIG, session_id=session)).send("hi")
        await manager.release()


async def test_a_host_also_finds_open_turns_that_no_view_told_it_of() -> None:
    view = View(1, (Host("a", "unix:a", "up", "1"),))
    store = MemoryStore()
    async with asyncio.timeout(100), manager_of(store) as manager:
        host = ClusterHost(manager, ToldViews(view), "a")
        recovering = asyncio.create_task(host.recover(4, look_s=0.01))
        await left_open(store, "before")
        await until(lambda: set(manager.live) == {"before"})
        await left_open(store, "after")
        await until(lambda: set(manager.live) == {"before", "after"})
        recovering.cancel()


async def test_a_host_recovers_nothing_while_its_own_lease_is_not_valid() -> None:
    view = View(1, (Host("a", "unix:a", "up", "1"),))
    store = LeasingMemory()
    await left_open(store, "s")
    store.is_valid = False
    async with asyncio.timeout(100), manager_of(store) as manager:
        host = ClusterHost(manager, ToldViews(view), "a")
        recovering = asyncio.create_task(host.recover(4, look_s=0.0))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not manager.live
        store.renew()
        await until(lambda: manager.live == ("s",))
        recovering.cancel()


def test_an_address_that_no_other_machine_can_use_is_not_advertised() -> None:
    assert advertised(None, ["http://x", "tcp://h:1"]) == "tcp://h:1"
    assert advertised("grpc://h:2", ["tcp://0.0.0.0:1"]) == "grpc://h:2"
    for addresses in (["tcp://0.0.0.0:1"], []):
        with pytest.raises(InvalidConfig):
            advertised(None, addresses)


def test_the_socket_of_a_host_is_found_from_any_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir("/tmp")
    here = Path.cwd()
    assert advertised(None, ["unix:a.sock"]) == f"unix:{here}/a.sock"
    assert advertised("unix:run/a.sock", ["unix:b.sock"]) == f"unix:{here}/run/a.sock"
    assert advertised(None, ["unix:/run/a.sock"]) == "unix:/run/a.sock"
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.chdir(deep)
    assert advertised(None, ["unix:a.sock"]) == "unix:a.sock"  # absolute it is too long
