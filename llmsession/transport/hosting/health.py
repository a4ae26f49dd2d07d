"""A small HTTP endpoint for monitoring: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import h11

from llmsession.errors import InvalidInput

from ..wire.addresses import Address
from ..wire.messages import ClusterStatistics

__all__ = ["Answer", "HealthServer", "readiness"]

REQUEST_S = 5.0
"""The timeout for reading a request and sending its answer."""
MAX_DIRECTORY_AGE_S = 15.0
"""As long as a host's lease in the directory: after that others do not know the host any more."""
MAX_OPEN = 64
READ_BYTES = 16 * 1024

Answer: TypeAlias = tuple[int, str, bytes]
"""HTTP status, media type and body."""


def readiness(*, is_late: bool, cluster: ClusterStatistics | None) -> str:
    """``ready``, or why a service that has started should be given no clients now.

    A host that is ``joining`` is ready: it answers every client, and is only given no share of the
    sessions yet. One that cannot reach the directory is ready for a while, since the sessions that
    it has do not need it.
    """
    if is_late:
        return "late"
    if cluster is None:
        return "ready"
    if not cluster.lease_valid:
        return "lease lost"
    if cluster.directory_age_s > MAX_DIRECTORY_AGE_S:
        return "directory unreachable"
    if cluster.state is None:
        return "not joined"
    return "draining" if cluster.state == "draining" else "ready"


class HealthServer:
    """Serves *pages* at *address*. *pages* maps a path to the function that returns its answer. It
    accepts GET and HEAD, and one request for each connection. Use it as an async context manager,
    on asyncio.

    Raises InvalidInput if it cannot listen at the address.
    """

    def __init__(self, address: Address, pages: dict[str, Callable[[], Answer]]) -> None:
        self._address = address
        self._pages = pages
        self._server: asyncio.Server
        self._open: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """``http://HOST:PORT``, with the actual port."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(Address("tcp", host=host, port=port)).replace("tcp://", "http://")

    async def __aenter__(self) -> HealthServer:
        host, port = self._address.host, self._address.port
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            where = str(self._address).removeprefix("grpc://")
            raise InvalidInput(f"health: cannot listen at {where}: {error.strerror}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        tasks = tuple(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_OPEN:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                with suppress(OSError, h11.ProtocolError):
                    await self._exchange(reader, writer)
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        while True:
            try:
                event = http.next_event()
            except h11.RemoteProtocolError as error:
                if http.our_state is h11.SEND_RESPONSE or http.our_state is h11.IDLE:
                    _write(http, writer, (error.error_status_hint, "text/plain", b"bad request\n"))
                return
            if isinstance(event, h11.Request):
                _write(http, writer, self._answer(event))
                return
            if event is not h11.NEED_DATA:
                return
            http.receive_data(await reader.read(READ_BYTES))

    def _answer(self, request: h11.Request) -> Answer:
        page = self._pages.get(request.target.decode("ascii", "replace").partition("?")[0])
        if page is None:
            return 404, "text/plain", f"there are {', '.join(self._pages)}\n".encode()
        if request.method not in (b"GET", b"HEAD"):
            return 405, "text/plain", b"only GET\n"
        return page()


def _write(http: h11.Connection, writer: asyncio.StreamWriter, answer: Answer) -> None:
    status, media, body = answer
    headers = [
        ("content-type", media),
        ("content-length", str(len(body))),
        ("cache-control", "no-store"),
        ("connection", "close"),
    ]
    for event in (
        h11.Response(status_code=status, headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    ):
        writer.write(http.send(event) or b"")
