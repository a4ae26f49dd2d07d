"""The HTTP endpoint for those who watch: what it answers, and what it does not put up with."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from llmsession import InvalidInput
from llmsession.transport.hosting.health import (
    MAX_DIRECTORY_AGE_S,
    HealthServer,
    readiness,
)
from llmsession.transport.wire.addresses import Address
from llmsession.transport.wire.messages import ClusterStatistics

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

HERE = Address("grpc", host="127.0.0.1", port=0)


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    pages = {"/livez": lambda: (200, "text/plain", b"alive\n")}
    async with asyncio.timeout(100), HealthServer(HERE, pages) as server:
        assert server.address.startswith("http://127.0.0.1:")
        yield int(server.address.rpartition(":")[2])


async def said(port: int, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        (b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"200", b"alive\n"),
        (b"GET /livez?verbose HTTP/1.1\r\nhost: x\r\n\r\n", b"200", b"alive\n"),
        (b"HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"200", b""),
        (b"POST /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", b"405", b"only GET\n"),
        (b"GET /secret HTTP/1.1\r\nhost: x\r\n\r\n", b"404", b"there are /livez\n"),
        (b"GET /livez\x00 HTTP/1.1\r\n\r\n", b"400", b"bad request\n"),
        (b"\x16\x03\x01 not HTTP at all\r\n\r\n", b"400", b"bad request\n"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000, b"431", b"bad request\n"),
    ],
    ids=["get", "query", "head", "post", "unknown", "nul", "tls", "long"],
)
async def test_each_request_has_one_answer(asked: bytes, status: bytes, body: bytes) -> None:
    async with serving() as port:
        head, _, rest = (await said(port, asked)).partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert b"connection: close" in head
        assert rest == body


async def test_a_request_that_comes_byte_by_byte_is_answered() -> None:
    asked = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serving() as port:
        answer = await said(port, *(bytes([byte]) for byte in asked))
        assert answer.endswith(b"alive\n")


async def test_one_who_says_nothing_holds_nobody_up_and_is_closed_with_it() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await said(port, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")).endswith(b"alive\n")
    assert await reader.read() == b""
    writer.close()


async def test_a_port_that_is_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"health: cannot listen at 127.0.0.1:{port}"):
            async with HealthServer(Address("grpc", host="127.0.0.1", port=port), {}):
                pass


def host(**fields: object) -> ClusterStatistics:
    now = ClusterStatistics(
        cluster="c",
        host="a",
        state="up",
        view=1,
        hosts=(),
        handed_over=0,
        not_handed_over=0,
        lease_valid=True,
        directory_age_s=0.0,
    )
    return msgspec.structs.replace(now, **fields)


def test_a_host_that_serves_is_ready_also_before_it_is_given_its_share() -> None:
    assert readiness(is_late=False, cluster=None) == "ready"
    for state in ("up", "joining"):
        assert readiness(is_late=False, cluster=host(state=state)) == "ready"
    short = host(directory_age_s=MAX_DIRECTORY_AGE_S)
    assert readiness(is_late=False, cluster=short) == "ready"


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (host(state="draining"), "draining"),
        (host(state=None), "not joined"),
        (host(lease_valid=False), "lease lost"),
        (host(directory_age_s=MAX_DIRECTORY_AGE_S + 1), "directory unreachable"),
        (host(lease_valid=False, directory_age_s=1e9, state=None), "lease lost"),
    ],
)
def test_a_host_that_should_be_given_no_clients_says_why(now: ClusterStatistics, why: str) -> None:
    assert readiness(is_late=False, cluster=now) == why
    assert readiness(is_late=True, cluster=now) == "late"
