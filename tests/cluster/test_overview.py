"""An overview of all hosts: what each answers, and that a host that is silent holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console

from llmsession.cli.commands.top_view import cluster_look_at, newest_view, tables_of
from llmsession.cluster.clients import link_maker
from llmsession.cluster.overview import HostAnswer, Overview
from llmsession.transport.wire.messages import HostEntry
from tests.cluster.hosts import local_host, refresh
from tests.store.conftest import Database
from tests.transport.places import CONFIG

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


@asynccontextmanager
async def silent(folder: Path) -> AsyncIterator[HostEntry]:
    """A host that was stopped: it takes connections, and never says a word."""
    ends = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ends.wait()
        writer.transport.abort()

    server = await asyncio.start_unix_server(take, folder / "silent.sock")
    yield HostEntry("silent", f"unix:{folder}/silent.sock", "up")
    ends.set()
    server.close()


async def test_each_host_answers_for_itself_and_a_silent_or_dead_one_is_shown_as_such(
    database: Database, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(100),
        local_host(database, tmp_path, "a", lambda request, tag: "said") as a,
        local_host(database, tmp_path, "b", lambda request, tag: "said") as b,
        silent(tmp_path) as stopped,
    ):
        await refresh(a, b)
        await a.manager.create(CONFIG, session_id="s")
        dead = HostEntry("dead", f"unix:{tmp_path}/nobody.sock", "up")
        known = [HostEntry(host.name, host.address, "up") for host in (a, b)]
        overview = Overview(link_maker())
        try:
            first = await overview.read([*known, stopped, dead], limit=10)
            again = await overview.read([*known, stopped, dead], limit=10)
        finally:
            await overview.aclose()
        for answers in (first, again):
            live = [answer.snapshot and answer.snapshot.live for answer in answers]
            assert live == [1, 0, None, None]
            assert answers[2].error == "no answer"
            assert "cannot be reached" in str(answers[3].error)
        newest = newest_view(again)
        assert newest is not None
        assert (newest.cluster, newest.view) == ("c", a.directory.view.version)
        assert [host.name for host in newest.hosts] == ["a", "b"]

        look = cluster_look_at("c", newest.view, again, ({}, 0.0), limit=10)
        assert (look.totals.live, len(look.sessions)) == (1, 1)
        assert look.sessions[0].host == "a"
        console = Console(width=120, record=True)
        console.print(tables_of(look, 120))
        shown = console.export_text()
        assert "2 of 4 answer" in shown
        assert "no answer" in shown


@pytest.mark.parametrize("width", [60, 110])
def test_a_long_error_or_address_leaves_room_for_the_names_of_the_hosts(width: int) -> None:
    why = "the service cannot be reached: FileNotFoundError: [Errno 2] No such file or directory"
    answers = [HostAnswer(host=HostEntry("laptop-1", f"unix:/{'a' * 100}.sock", "up"), error=why)]
    console = Console(width=width, record=True)
    console.print(tables_of(cluster_look_at("default", 1, answers, ({}, 0.0), limit=10), width))
    shown = console.export_text()
    for text in ("laptop-1", "default", "0 of 1 answer", "$0.00", "directory"):
        assert text in shown


async def test_a_service_alone_has_no_cluster_and_a_tenant_is_shown_none(
    database: Database, tmp_path: Path
) -> None:
    async with asyncio.timeout(100), local_host(database, tmp_path, "a") as a:
        known = a.service.snapshot(None).cluster
        assert known is not None
        assert (known.host, known.state, known.lease_valid) == ("a", "up", True)
        assert known.directory_age_s < 100
        assert a.service.snapshot("anna").cluster is None
        a.service.admission.router = None
        assert a.service.snapshot(None).cluster is None
