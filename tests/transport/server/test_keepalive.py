"""A peer that says nothing is asked whether it is there, and dropped if it does not answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from llmsession.transport import Limits
from llmsession.transport.server.keepalive import keep_alive

pytestmark = pytest.mark.real_time

LIMITS = Limits(keepalive_s=0.02, hello_s=0.01)


class Peer:
    """Answers each of its first *answers* pings at once."""

    is_closing = False

    def __init__(self, answers: int, reads: int = 0) -> None:
        self.authenticated = True
        self.refused: Exception | None = None
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self.heard_time = self._loop.time()
        self.asked = 0
        self.looked = 0
        self._reads = reads

    def ping(self) -> None:
        self.asked += 1
        if self.asked <= self._answers:
            self.heard_time = self._loop.time()

    def taken(self) -> int:
        """Grows for the first *reads* times."""
        self.looked += 1
        return min(self.looked, self._reads)

    def fail(self, error: Exception) -> None:
        self.refused = error

    async def dropped(self, limits: Limits = LIMITS) -> None:
        over = asyncio.Event()
        connection: Any = self
        watching = asyncio.ensure_future(
            keep_alive(
                connection,
                limits,
                heard_time=lambda: self.heard_time,
                taken=self.taken,
                close=over.set,
                abort=over.set,
            )
        )
        async with asyncio.timeout(100):
            await over.wait()
            await watching


@pytest.mark.parametrize(
    "anyio_backend",
    [("asyncio", {}), ("asyncio", {"use_uvloop": True})],
    ids=["asyncio", "uvloop"],
)
async def test_an_answer_in_the_same_moment_as_the_question_is_one() -> None:
    peer = Peer(answers=5)
    await peer.dropped()
    assert peer.asked == 6


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
async def test_a_peer_that_reads_a_large_frame_is_waited_for_until_it_reads_no_more() -> None:
    peer = Peer(answers=0, reads=20)
    await peer.dropped()
    assert peer.asked == 1  # the ping waits behind the frame
    assert 20 < peer.looked <= 24


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
async def test_a_service_that_stood_still_reads_what_came_before_it_misses_a_hello() -> None:
    peer = Peer(answers=0)
    peer.authenticated = False
    async with asyncio.TaskGroup() as group:
        group.create_task(peer.dropped(Limits(keepalive_s=0.02, hello_s=0.1)))
        for _ in range(3):  # it waits
            await asyncio.sleep(0)
        time.sleep(0.2)  # noqa: ASYNC251  # the whole process stands still
        for _ in range(5):  # it reads, and decodes
            await asyncio.sleep(0)
        peer.authenticated = True
    assert peer.refused is None
