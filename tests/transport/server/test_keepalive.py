"""A peer that says nothing is asked whether it is there, and dropped if it does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmsession.transport import Limits
from llmsession.transport.server.keepalive import keep_alive

pytestmark = pytest.mark.real_time

LIMITS = Limits(keepalive_s=0.02, hello_s=0.01)


class Peer:
    """Answers each of its first *answers* pings at once."""

    authenticated = True
    is_closing = False

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self.heard_time = self._loop.time()
        self.asked = 0

    def ping(self) -> None:
        self.asked += 1
        if self.asked <= self._answers:
            self.heard_time = self._loop.time()

    async def dropped(self) -> None:
        over = asyncio.Event()
        connection: Any = self
        watching = asyncio.ensure_future(
            keep_alive(
                connection,
                LIMITS,
                heard_time=lambda: self.heard_time,
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
