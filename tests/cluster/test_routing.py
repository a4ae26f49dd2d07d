"""Which host answers for a session: the owner, the placed one, or the one a client was sent to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmsession import SessionInUse, SessionMoved, SessionNotFound, connect
from llmsession.cluster import connect_cluster
from llmsession.cluster.placement import Host, View, host_of
from llmsession.cluster.routing import Routing
from llmsession.session.manager import runtime_of
from llmsession.transport.wire import messages as w
from tests.cluster.hosts import LocalHost, local_host, refresh
from tests.store.conftest import Database, until
from tests.transport.places import CONFIG

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


@asynccontextmanager
async def two_hosts(database: Database, folder: Path) -> AsyncIterator[tuple[LocalHost, LocalHost]]:
    async with (
        asyncio.timeout(100),
        local_host(database, folder, "a", ["one"]) as a,
        local_host(database, folder, "b", ["one"]) as b,
    ):
        await refresh(a, b)
        yield a, b


async def released(host: LocalHost, *, placed_on: LocalHost) -> str:
    """A session that nobody holds, made at *host* and placed on another one."""
    session = next(
        name
        for name in (f"s{number}" for number in range(1000))
        if getattr(host_of(host.directory.view, name), "name", "") == placed_on.name
    )
    handle = await host.manager.create(CONFIG, session_id=session)
    await handle.close()
    return session


async def test_a_session_that_lives_elsewhere_is_refused_with_the_address_of_its_host(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        session = await a.manager.create(CONFIG)
        async with connect(b.address) as client:
            with pytest.raises(SessionInUse) as refused:
                await client.open(session.id)
        assert refused.value.address == a.address
        assert refused.value.view == b.directory.view.version > 0


async def test_a_host_that_has_left_sends_clients_away_without_its_directory(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        session = await released(a, placed_on=a)
        a.routing.leave()
        with pytest.raises(SessionMoved) as sent_away:
            await a.routing.check(session, is_sent_here=True)
        assert sent_away.value.address == b.address
        async with connect_cluster([a.address]) as sessions:
            assert await (await (await sessions.open(session)).send("hi")).text() == "one"
        assert b.manager.live == (session,)


async def test_a_session_that_nobody_holds_is_served_by_the_host_that_it_is_placed_on(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        session = await released(a, placed_on=b)
        async with connect(a.address) as client:
            with pytest.raises(SessionMoved) as moved:
                await client.open(session)
        assert moved.value.address == b.address
        async with connect(b.address) as client:
            await client.open(session)
        assert session in b.manager.live


async def test_a_client_that_was_sent_to_a_host_is_served_there(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        session = await released(a, placed_on=b)
        await a.service.admission.open(None, w.Open(id=1, session=session, here=True))
        assert session in a.manager.live


class LateDirectory:
    """The directory of *host*, whose news do not arrive: the view stays as it is now, or *view*."""

    def __init__(self, host: LocalHost, view: View | None = None) -> None:
        self._directory = host.directory
        self.name = host.directory.name
        self.view = host.directory.view if view is None else view

    @property
    def age_s(self) -> float:
        return self._directory.age_s

    def watch(
        self,
        on_view: Callable[[View, View], None] | None = None,
        on_move: Callable[[str, str], None] | None = None,
    ) -> None:
        """Nothing arrives."""

    async def drain(self, host: str) -> None:
        await self._directory.drain(host)

    async def is_gone(self, host: Host) -> bool:
        return await self._directory.is_gone(host)


def route_by(directory: LateDirectory, host: LocalHost) -> None:
    host.service.admission.router = Routing(host.manager, directory, host.name)


def view_of_one(host: LocalHost) -> View:
    """A view in which *host* is alone."""
    view = host.directory.view
    return View(view.version, tuple(each for each in view.hosts if each.name == host.name))


async def test_hosts_that_know_of_the_other_one_only_do_not_send_a_client_to_and_fro(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        session = await released(a, placed_on=a)
        route_by(LateDirectory(a, view_of_one(b)), a)
        route_by(LateDirectory(b, view_of_one(a)), b)
        async with connect_cluster([a.address], patience_s=0.5) as sessions:
            handle = await sessions.open(session)
            assert await (await handle.send("hi")).text() == "one"
        assert (await a.manager.row(session)).epoch == 2  # it was taken once


async def test_a_host_that_has_not_heard_of_a_sessions_owner_does_not_serve_it(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        session = await b.manager.create(CONFIG)
        late = LateDirectory(a, view_of_one(a))
        route_by(late, a)
        async with connect(a.address) as client:
            with pytest.raises(SessionInUse):
                await client.open(session.id)
        async with connect_cluster([a.address]) as sessions:
            asked = a.service.admission.commands
            opening = asyncio.create_task(sessions.open(session.id))
            await until(lambda: opening.done() or a.service.admission.commands >= asked + 2)
            late.view = a.directory.view  # the news arrive
            assert await (await (await opening).send("hi")).text() == "one"
        assert (a.manager.live, b.manager.live) == ((), (session.id,))


async def test_a_host_that_drains_takes_no_session_that_another_one_can_take(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        session = await released(a, placed_on=b)
        await a.directory.drain("b")
        await refresh(a, b)
        with pytest.raises(SessionMoved) as moved:
            await b.service.admission.open(None, w.Open(id=1, session=session, here=True))
        assert moved.value.address == a.address
        await a.service.admission.open(None, w.Open(id=1, session=session))


async def test_commands_to_a_session_that_was_handed_over_are_answered_with_its_new_host(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b), connect(a.address) as client:
        session = await client.create(CONFIG, session_id="s")
        a.routing.hand_over_to("s", "b")
        await a.manager.hand_over("s")
        with pytest.raises(SessionMoved) as moved:
            await session.send("hi")
        assert moved.value.address == b.address
        # It comes back, and the same connection finds it.
        await b.manager.open("s")
        await b.manager.hand_over("s")
        await a.manager.open("s")
        turn = await session.send("hi")
        assert (await turn.text()) == "one"


async def test_a_client_that_was_sent_here_is_sent_on_if_the_session_was_handed_over_meanwhile(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        await a.manager.create(CONFIG, session_id="s")
        opening = w.Open(id=1, session="s", here=True)
        for source, target in ((a, b), (b, a), (a, b)):
            source.routing.hand_over_to("s", target.name)
            await source.manager.hand_over("s")
            with pytest.raises(SessionMoved) as moved:
                await source.service.admission.open(None, opening)
            assert moved.value.address == target.address
            await target.service.admission.open(None, opening)
            assert (source.manager.live, target.manager.live) == ((), ("s",))


async def test_a_session_whose_host_failed_to_hand_it_over_is_served_there_again(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        session = await a.manager.create(CONFIG)
        a.routing.hand_over_to(session.id, b.name)
        actor = runtime_of(a.manager).find_live(session.id)
        assert actor is not None
        actor.fence()  # it ends without a release, as when its store fails
        async with connect_cluster([b.address], patience_s=10.0) as sessions:
            assert await (await (await sessions.open(session.id)).send("hi")).text() == "one"
        assert (a.manager.live, b.manager.live) == ((session.id,), ())


async def test_a_session_without_an_id_gets_one_that_is_placed_on_its_host(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        for host in (a, b):
            made = [await host.manager.create(CONFIG, tenant="anna") for _ in range(5)]
            forked = await (await host.manager.create(CONFIG)).fork()
            placed = {host_of(host.directory.view, session.id) for session in [*made, forked]}
            assert {each.name for each in placed if each is not None} == {host.name}


async def test_a_session_that_never_was_is_not_found_anywhere(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b):
        for host in (a, b):
            with pytest.raises(SessionNotFound):
                await host.service.admission.open(None, w.Open(id=1, session="nobody"))
