"""``llmsession top``: what a service does, as it does it."""

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
        float, typer.Option(min=0.05, metavar="SECONDS", help="How often it looks.")
    ] = 1.0,
    sessions: Annotated[
        int, typer.Option(min=1, max=1000, help="Of at most so many sessions; running ones first.")
    ] = 100,
    once: Annotated[
        bool, typer.Option("--once", help="Two looks, for the tokens a second; then leave.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a look.")] = False,
) -> None:
    """A line for each live session of a service: phase, model, context, tokens a second,
    interrupts, compactions, cost; and totals. Ctrl-C leaves.

    Nothing is opened or held by it. Interrupts and compactions count since a session came to
    memory. With a token, a tenant sees its own sessions.
    """
    service = service_at(connect, token_file, ca)
    if service is None:
        raise InvalidInput("which service? name it with --connect")
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
            await anext(looks)  # a first one, without rates
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
