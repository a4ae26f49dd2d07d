"""Noticing that a client is gone: one that says nothing is asked, and one that does not answer
is dropped; so is one that does not take its goodbye."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmsession.errors import ProtocolError

from .connection import Connection
from .limits import Limits

__all__ = ["watch"]

LINGER_S = 5.0
"""How long a peer may take to read what is left when its connection ends."""


async def watch(
    connection: Connection,
    limits: Limits,
    *,
    heard_at: Callable[[], float],
    over: Callable[[], None],
    abort: Callable[[], None],
) -> None:
    """Ask a silent peer whether it is there, and ``abort`` one that does not answer; ``over`` ends
    one that has not said hello. One that is ending has a while to read what is left, whatever it
    says meanwhile. *heard_at* is when its last whole frame came, by the event loop's
    time: who sends a byte now and then is dropped, too. Ends by cancellation or by a drop."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(limits.hello_s)
    if not connection.authenticated:
        connection.fail(ProtocolError(f"no hello in {limits.hello_s:g} s"))
        await asyncio.sleep(LINGER_S)
        over()
    asked_at: float | None = None
    while not connection.is_closing:
        now = loop.time()
        # At the same time counts: it is asked later than it is heard, and uvloop's clock stands
        # still within a turn of the loop.
        if asked_at is not None and heard_at() >= asked_at:
            asked_at = None
        if asked_at is not None and now - asked_at >= limits.keepalive_s:
            break
        if asked_at is None and now - heard_at() >= limits.keepalive_s:
            asked_at = now
            connection.ping()
        await asyncio.sleep(limits.keepalive_s / 2)
    else:
        await asyncio.sleep(LINGER_S)
    abort()
