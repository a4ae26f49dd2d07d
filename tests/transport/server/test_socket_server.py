"""How the socket server writes: to all connections together, once in each pass of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

from llmsession.transport.server.socket_server import _Writes


class Peer:
    """A connection that counts its flushes. With *error*, a flush raises it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.flushes = 0
        self.error = error
        self.crashes: list[Exception] = []

    def flush(self) -> None:
        self.flushes += 1
        if self.error is not None:
            raise self.error

    def crashed(self, error: Exception) -> None:
        self.crashes.append(error)


async def test_what_waits_is_written_in_the_next_pass_of_the_loop() -> None:
    writes: Any = _Writes()
    first, second = Peer(), Peer()
    writes.add(first)
    writes.add(second)
    assert (first.flushes, second.flushes) == (0, 0)
    await asyncio.sleep(0)
    assert (first.flushes, second.flushes) == (1, 1)
    writes.add(second)
    await asyncio.sleep(0)
    assert (first.flushes, second.flushes) == (1, 2)


async def test_a_bug_in_one_connection_stops_no_other() -> None:
    writes: Any = _Writes()
    broken, whole = Peer(ValueError("a bug")), Peer()
    writes.add(broken)
    writes.add(whole)
    await asyncio.sleep(0)
    assert [str(error) for error in broken.crashes] == ["a bug"]
    assert (whole.flushes, whole.crashes) == (1, [])
