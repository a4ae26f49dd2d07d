"""Keepalive: a silent client is sent a ping, and one that does not answer is dropped. So is one
that does not read its goodbye."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from llmsession.errors import ProtocolError

from .connection import Connection
from .limits import Limits

__all__ = ["LINGER_S", "keep_alive", "serve_peer"]

LINGER_S = 5.0
"""How long a peer may take to read what is left when its connection ends."""


async def keep_alive(
    connection: Connection,
    limits: Limits,
    *,
    heard_time: Callable[[], float],
    close: Callable[[], None],
    abort: Callable[[], None],
) -> None:
    """Ping a silent peer, and ``abort`` one that does not answer; ``close`` one that has not said
    hello in time. A connection that is closing has a while to read what is left, whatever it sends
    meanwhile.

    *heard_time* is when the last whole frame came, by the event loop's time: a peer that sends a
    byte now and then is dropped, too. Ends by cancellation or when the peer is dropped."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(limits.hello_s)
    if not connection.authenticated:
        connection.fail(ProtocolError(f"no hello in {limits.hello_s:g} s"))
        await asyncio.sleep(LINGER_S)
        close()
    ping_time: float | None = None
    while not connection.is_closing:
        now = loop.time()
        # An answer at the very time of the ping counts: uvloop's clock stands still within one
        # turn of the loop, and the ping is sent before its answer comes.
        if ping_time is not None and heard_time() >= ping_time:
            ping_time = None
        if ping_time is not None and now - ping_time >= limits.keepalive_s:
            break
        if ping_time is None and now - heard_time() >= limits.keepalive_s:
            ping_time = now
            connection.ping()
        await asyncio.sleep(limits.keepalive_s / 2)
    else:
        await asyncio.sleep(LINGER_S)
    abort()


async def serve_peer(
    connection: Connection,
    limits: Limits,
    *work: Coroutine[Any, Any, None],
    finished: asyncio.Event,
    heard_time: Callable[[], float],
    abort: Callable[[], None],
) -> None:
    """Perform *work* and keep the peer alive, until the first of *work* ends or *finished* is set;
    then close *connection*. For the rest see ``keep_alive``."""
    start = asyncio.get_running_loop().create_task
    watching = keep_alive(
        connection, limits, heard_time=heard_time, close=finished.set, abort=abort
    )
    tasks = [start(coroutine) for coroutine in (*work, watching)]
    over = start(finished.wait())
    try:
        await asyncio.wait((tasks[0], over), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, over):
            task.cancel()
        await asyncio.gather(*tasks, over, return_exceptions=True)
        connection.close()
