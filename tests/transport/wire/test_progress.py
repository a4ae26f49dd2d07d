"""How far a peer has read: what the system buffers for a peer that does not read is no progress."""

from __future__ import annotations

import asyncio
import socket

import pytest

from llmsession.transport.wire.progress import Sent

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


async def test_what_a_peer_takes_is_progress_and_what_only_waits_for_it_is_not() -> None:
    near, far = socket.socketpair()
    with far:
        _, writer = await asyncio.open_connection(sock=near)
        sent = Sent(writer.transport)
        far.setblocking(False)
        loop = asyncio.get_running_loop()
        for _ in range(20):
            writer.write(bytes(100_000))
            sent.written += 100_000
            await asyncio.sleep(0)
        before = sent.taken()
        assert before <= 0
        writer.write(bytes(100_000))
        sent.written += 100_000
        assert sent.taken() == before
        for least in (500_000, 1_000_000):
            left = 500_000
            while left:
                left -= len(await loop.sock_recv(far, left))
            assert least - 300_000 < sent.taken() <= least
        left = 1_100_000
        while left:
            left -= len(await loop.sock_recv(far, left))
        assert sent.taken() < sent.written  # nothing waits, so nothing has to be known
        writer.close()
        await writer.wait_closed()
