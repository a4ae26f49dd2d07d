"""``llmsession top``: show what a service, or all hosts of a cluster, are doing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import anyio
import msgspec
import typer
from rich.console import RenderableType
from rich.live import Live

from llmsession.errors import InvalidInput
from llmsession.transport.wire.messages import ClusterStatistics, HostEntry, ServiceSnapshot

from ..common.service import (
    CaFile,
    ConnectTo,
    ServiceAt,
    StoreOrNone,
    TokenFile,
    a_store,
    host_links,
    service_at,
)
from ..common.terminal import TerminalConsole, say_json
from .top_view import cluster_look_at, look_at, newest_view, table_of, tables_of

if TYPE_CHECKING:
    from llmsession.transport.client.link import Link

__all__ = ["top"]

Render: TypeAlias = Callable[[int, int | None], RenderableType]
Looks: TypeAlias = AsyncIterator[tuple[Any, Render]]
"""Updates, each with a function that renders it for a width and, if known, a height."""


def top(
    *,
    connect: ConnectTo = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="All hosts of this cluster; found with --store, or with --connect to one of them.",
        ),
    ] = None,
    store: StoreOrNone = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    interval: Annotated[
        float, typer.Option(min=0.05, metavar="SECONDS", help="Seconds between two updates.")
    ] = 1.0,
    sessions: Annotated[
        int, typer.Option(min=1, max=1000, help="Show at most N sessions; running ones first.")
    ] = 100,
    once: Annotated[bool, typer.Option("--once", help="Print one update and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per update.")
    ] = False,
) -> None:
    """Show each session in the memory of a service or a cluster, and totals. Ctrl-C exits.

    Columns: phase, model, context, tokens a second, interrupts, compactions and cost. Watching
    opens no session and keeps none in memory. Interrupts and compactions are counted since the
    session was loaded into memory. With a token, a tenant sees only its own sessions.

    With --cluster a table of the hosts comes first. A host that does not answer within a second is
    shown as such, and the others are not kept waiting.
    """
    if cluster is None:
        if store is not None:
            raise InvalidInput("--store needs --cluster: name the cluster to watch")
        service = service_at(connect, token_file, ca)
        if service is None:
            raise InvalidInput("--connect is missing: name the service to watch")
        looks = _looks(service, interval, sessions)
    else:
        watched = _Watched(
            name=cluster,
            links=lambda: host_links(token_file, ca),
            interval_s=interval,
            limit=sessions,
        )
        if connect is None:
            looks = watched.by_directory(a_store(store))
        elif store is None:
            looks = watched.by_host(ServiceAt(connect, token_file, ca))
        else:
            raise InvalidInput("--store and --connect cannot be combined; use one of them")
    try:
        anyio.run(_watch, looks, once, as_json)
    except KeyboardInterrupt:
        return


async def _watch(looks: Looks, once: bool, as_json: bool) -> None:
    console = TerminalConsole()
    try:
        if once or as_json:
            await anext(looks)  # the first look has no rates: they need an earlier one
            async for look, render in looks:
                if as_json:
                    say_json(look, flush=True)
                else:
                    console.print(render(console.width, None))
                if once:
                    return
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            async for _, render in looks:
                height = console.height if console.is_terminal else None
                live.update(render(console.width, height), refresh=True)
    finally:
        await looks.aclose()  # type: ignore[attr-defined]  # it is a generator


async def _looks(service: ServiceAt, interval_s: float, limit: int) -> Looks:
    async with service.sessions() as sessions:
        before: tuple[float, ServiceSnapshot] | None = None
        while True:
            figures = await sessions.statistics(limit=limit)
            now = time.monotonic()
            look = look_at(figures, before[1] if before else None, now - before[0] if before else 0)
            yield look, partial(table_of, look)
            before = now, figures
            await anyio.sleep(interval_s)


View: TypeAlias = tuple[int, tuple[HostEntry, ...]]
"""The version of a view, and its hosts."""


class _Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that is watched, and how."""

    name: str
    links: Callable[[], Awaitable[Callable[[str], Link]]]
    interval_s: float
    limit: int

    async def by_directory(self, store: str) -> Looks:
        """The hosts are those in the directory."""
        from llmsession.cluster.directory import Directory

        async with Directory(store, self.name) as directory:

            def view_of(_: ClusterStatistics | None) -> View:
                view = directory.view
                hosts = (HostEntry(host.name, host.address, host.state) for host in view.hosts)
                return view.version, tuple(hosts)

            async for update in self._rounds(view_of):
                yield update

    async def by_host(self, service: ServiceAt) -> Looks:
        """The hosts are those in the newest view of any host that answers, at first *service*."""
        async with service.sessions() as sessions:
            newest = (await sessions.statistics(limit=1)).cluster
        if newest is None:
            raise InvalidInput(
                f"--connect {service.address}: the service does not show this client a cluster"
            )
        if newest.cluster != self.name:
            raise InvalidInput(
                f"--cluster {self.name}: the host at {service.address} belongs to cluster"
                f" {newest.cluster!r}"
            )

        def view_of(answered: ClusterStatistics | None) -> View:
            nonlocal newest
            if newest is None or (answered is not None and answered.view >= newest.view):
                newest = answered
            assert newest is not None  # checked above, and replaced by newer ones only
            return newest.view, newest.hosts

        async for update in self._rounds(view_of):
            yield update

    async def _rounds(self, view_of: Callable[[ClusterStatistics | None], View]) -> Looks:
        """Ask all hosts again and again. *view_of* gives the hosts, from the newest statistics that
        a host answered with."""
        from llmsession.cluster.overview import Overview

        overview = Overview(await self.links())
        try:
            before: dict[str, tuple[float, ServiceSnapshot]] = {}
            newest: ClusterStatistics | None = None
            while True:
                version, hosts = view_of(newest)
                answers = await overview.read(hosts, limit=self.limit)
                look = cluster_look_at(
                    self.name, version, answers, (before, time.monotonic()), limit=self.limit
                )
                yield look, partial(tables_of, look)
                for answer in answers:
                    if answer.snapshot is not None:
                        before[answer.host.name] = time.monotonic(), answer.snapshot
                newest = newest_view(answers)
                await anyio.sleep(self.interval_s)
        finally:
            await overview.aclose()
