"""``llmsession top``: show what a service is doing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
import typer
from rich.live import Live

from llmsession.errors import InvalidInput
from llmsession.transport.wire.messages import ServiceSnapshot

from ..common.service import CaFile, ConnectTo, ServiceAt, TokenFile, service_at
from ..common.terminal import TerminalConsole, say_json
from .top_view import Look, look_at, table_of

__all__ = ["top"]


def top(
    *,
    connect: ConnectTo = None,
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
    """Show each session in the memory of a service, and totals. Ctrl-C exits.

    Columns: phase, model, context, tokens a second, interrupts, compactions and cost. Watching
    opens no session and keeps none in memory. Interrupts and compactions are counted since the
    session was loaded into memory. With a token, a tenant sees only its own sessions.
    """
    service = service_at(connect, token_file, ca)
    if service is None:
        raise InvalidInput("--connect is missing: name the service to watch")
    try:
        anyio.run(_watch, service, interval, sessions, once, as_json)
    except KeyboardInterrupt:
        return


async def _watch(
    service: ServiceAt, interval_s: float, limit: int, once: bool, as_json: bool
) -> None:
    looks = _looks(service, interval_s, limit)
    console = TerminalConsole()
    try:
        if once or as_json:
            await anext(looks)  # the first look has no rates: they need an earlier one
            async for look in looks:
                if as_json:
                    say_json(look, flush=True)
                else:
                    console.print(table_of(look, console.width))
                if once:
                    return
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            async for look in looks:
                height = console.height if console.is_terminal else None
                live.update(table_of(look, console.width, height), refresh=True)
    finally:
        await looks.aclose()  # type: ignore[attr-defined]  # it is a generator


async def _looks(service: ServiceAt, interval_s: float, limit: int) -> AsyncIterator[Look]:
    async with service.sessions() as sessions:
        before: tuple[float, ServiceSnapshot] | None = None
        while True:
            figures = await sessions.statistics(limit=limit)
            now = time.monotonic()
            yield look_at(
                figures, before[1] if before else None, now - before[0] if before else 0.0
            )
            before = now, figures
            await anyio.sleep(interval_s)
