"""Keepalive. A silent client is sent a ping, and is disconnected if it does not answer. A client
that does not read its goodbye is disconnected, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from llmsession.errors import ProtocolError

from .connection import Connection
from .limits import Limits

__all__ = ["LINGER_S", "keep_alive", "serve_peer"]

LINGER_S = 5.0
"""How long a peer may take to read what is left when its connection ends, in seconds."""
HELLO_STEPS = 10
"""The time for a hello passes in so many steps. A process that stood still, because its machine
did, then has the steps that are left to read a hello that came meanwhile. Its clients would take
the error for one that does not pass."""


async def keep_alive(
    connection: Connection,
    limits: Limits,
    *,
    heard_time: Callable[[], float],
    taken: Callable[[], int] = lambda: 0,
    close: Callable[[], None],
    abort: Callable[[], None],
) -> None:
    """Watch a connection until its peer has to be disconnected, or until it is cancelled.

    Pings a silent peer, and calls ``abort`` if it does not answer. Calls ``close`` if the peer has
    not sent a hello in time. A closing connection gets ``LINGER_S`` to read what is left, whatever
    it sends meanwhile.

    *heard_time* returns when the last frame or a large part of one came, in the event loop's time.
    *taken* returns a number that grows while the peer reads what waits for it: see ``Sent``. A ping
    is then still on its way."""
    loop = asyncio.get_running_loop()
    for _ in range(HELLO_STEPS):
        await asyncio.sleep(limits.hello_s / HELLO_STEPS)
    if not connection.authenticated:
        connection.fail(ProtocolError(f"no hello in {limits.hello_s:g} s"))
        await asyncio.sleep(LINGER_S)
        close()
    ping_time: float | None = None
    taken_before = 0
    while not connection.is_closing:
        now = loop.time()
        # An answer at exactly the time of the ping counts. uvloop's clock does not advance within
        # one iteration of the loop, and the ping is always sent before its answer arrives.
        if ping_time is not None and heard_time() >= ping_time:
            ping_time = None
        taken_now = taken()
        if ping_time is not None and taken_now > taken_before:
            ping_time = now
        taken_before = taken_now
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
    taken: Callable[[], int] = lambda: 0,
    abort: Callable[[], None],
) -> None:
    """Run *work* and ``keep_alive`` until the first coroutine of *work* ends or *finished* is set,
    then close *connection*. For the other parameters see ``keep_alive``."""
    start = asyncio.get_running_loop().create_task
    watching = keep_alive(
        connection, limits, heard_time=heard_time, taken=taken, close=finished.set, abort=abort
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
