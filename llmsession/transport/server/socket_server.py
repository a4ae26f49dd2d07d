"""JSON lines over Unix domain and TCP sockets: the server's side."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import os
import socket
import ssl
import stat
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmsession.errors import (
    InvalidConfig,
    InvalidInput,
    Overloaded,
    ProtocolError,
    Unauthenticated,
    error_text,
)

from ..wire import messages as w
from ..wire.addresses import Address, parse_address
from ..wire.errors import to_wire
from ..wire.framing import LineReader, line_of
from ..wire.tls import ServerTls
from .access import check_exposed
from .admission import GOING_DOWN, RETRY_AFTER_S
from .connection import Connection
from .keepalive import LINGER_S, keep_alive
from .service import Service

__all__ = ["SocketServer"]

BACKLOG = 1024
"""Two hundred clients that connect at once are too many for the usual 100."""
ACCEPT_AGAIN_S = 1.0
"""After a connection could not be accepted."""
READ_BYTES = 64 * 1024
WRITE_BYTES = 64 * 1024
"""How much is joined into one write, and how much may wait in the transport before no more is
given to it."""


class SocketServer:
    """Serves *service* at *address*, ``unix:PATH`` or ``tcp://HOST:PORT`` (0 is any free port).

    Use it as an async context manager inside that of the service. Leaving it takes no more
    connections, says goodbye on those that there are, and drops those that do not take it. The
    file of a Unix socket is its owner's alone; one that was left behind is replaced, one that
    somebody listens at is not.

    An address that other machines reach needs *tls* and a service with an authenticator, or
    *insecure*, where something else protects it. With a ``client_ca`` in *tls* only clients with
    a certificate are let in. A client whose handshake fails is one line in the log.

    Raises InvalidInput for an address that cannot be listened at, InvalidConfig for one that is
    not protected.
    """

    def __init__(
        self,
        service: Service,
        address: str,
        *,
        tls: ServerTls | ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        self._service = service
        self._asked = asked = parse_address(address)
        if asked.scheme == "grpc":
            raise InvalidInput(f"{address!r} is for the gRPC server")
        if tls is not None and asked.scheme == "unix":
            raise InvalidConfig(f"{asked} takes no TLS: only its owner can connect to it")
        check_exposed(
            asked,
            has_tls=tls is not None,
            is_guarded=service.admission.is_guarded,
            insecure=insecure,
        )
        self._tls = tls
        self._serving: set[asyncio.Task[None]] = set()
        self._peers: set[_Peer] = set()
        self._server: asyncio.Server | None = None
        self._listeners: tuple[socket.socket, ...] = ()
        """With TLS, in place of the server."""
        self._accepting: list[asyncio.Task[None]] = []
        self._file: tuple[int, int] | None = None
        self._stopped = False

    @property
    def address(self) -> str:
        """Where it listens, with the port that it got."""
        sockets = self._listeners or (self._server.sockets if self._server is not None else ())
        if self._asked.scheme == "unix" or not sockets:
            return str(self._asked)
        host, port = sockets[0].getsockname()[:2]
        return str(Address("tcp", host=host, port=port))

    async def __aenter__(self) -> SocketServer:
        if self._asked.scheme == "unix":
            bound, self._file = await asyncio.to_thread(_bind_unix, self._asked.path)
            self._server = await asyncio.start_unix_server(
                self._accept, sock=bound, backlog=BACKLOG
            )
        else:
            host, port = self._asked.host, self._asked.port
            try:
                if self._tls is not None:
                    self._listeners = await _bound(host, port)
                else:
                    self._server = await asyncio.start_server(
                        self._accept, host, port, backlog=BACKLOG
                    )
            except OSError as error:
                raise InvalidInput(f"cannot listen at {self._asked}: {error.strerror}") from error
            start = asyncio.get_running_loop().create_task
            self._accepting = [start(self._accept_all(each)) for each in self._listeners]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_listening()
        peers = tuple(self._peers)
        for peer in peers:
            peer.leave()
        all_gone = asyncio.gather(*(peer.gone.wait() for peer in peers))
        try:
            async with asyncio.timeout(LINGER_S):
                await asyncio.shield(all_gone)
        except TimeoutError:
            for peer in peers:
                peer.abort()
            await all_gone
        serving = tuple(self._serving)
        for task in serving:  # those that still shake hands
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def stop_listening(self) -> None:
        """Take no more connections. Those that there are stay."""
        self._stopped = True
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        if self._server is not None:
            self._server.close()
            if self._file is not None:
                await asyncio.to_thread(_unlink_ours, self._asked.path, self._file)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_full or self._stopped:  # accepted in the moment that the server stopped
            writer.transport.abort()
        else:
            self._start(self._serve(reader, writer))

    @property
    def _is_full(self) -> bool:
        return len(self._serving) >= 2 * self._service.admission.limits.connections

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _Peer(self._service, reader, writer)
        if await peer.admitted():
            self._peers.add(peer)
            try:
                await peer.run()
            finally:
                self._peers.discard(peer)

    # With TLS connections are accepted here: a server of asyncio's says nothing of those who fail
    # in the handshake, and has one certificate for its life.

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, where = await loop.sock_accept(listener)
            except OSError as error:  # it is gone already, or there are too many files open
                self._service.admission.log.warning(
                    "connection.not_accepted", why=error_text(error)
                )
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if self._is_full:
                accepted.close()
            else:
                self._start(self._serve_tls(accepted, _name(where)))

    async def _serve_tls(self, accepted: socket.socket, peer: str) -> None:
        tls, limit_s = self._tls, self._service.admission.limits.hello_s
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=tls.identity.context if isinstance(tls, ServerTls) else tls,
                ssl_handshake_timeout=limit_s,
            )
        except (OSError, TimeoutError) as error:
            why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
            told = f"the TLS handshake failed: {why or error_text(error)}"
            self._service.admission.log_refusal(peer, Unauthenticated(told))
        else:
            await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def _bound(host: str, port: int) -> tuple[socket.socket, ...]:
    """Sockets that listen at every address of *host*. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            listener = socket.create_server(where, family=family, backlog=BACKLOG)
            listener.setblocking(False)
            listeners.append(listener)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return tuple(listeners)


class _Peer:
    """One accepted socket: reads lines into a Connection, writes what it gives."""

    def __init__(
        self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._service = service
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._context = contextvars.copy_context()
        """Of all flushes; else each would have a copy of its own."""
        self._loop = asyncio.get_running_loop()
        self._lines = LineReader()
        self._connection: Connection
        self._draining: asyncio.Task[None] | None = None
        self._heard_time = self._loop.time()
        self._over = asyncio.Event()
        self.gone = asyncio.Event()

    async def admitted(self) -> bool:
        """Does the service take one more client? If not, it is told so."""
        try:
            self._connection = self._service.connect(
                _name(self._writer.get_extra_info("peername")), self._wake
            )
        except Overloaded as error:
            self._writer.write(line_of(w.encode(to_wire(error))))
            await self._close()
            return False
        return True

    async def run(self) -> None:
        """Serve until either side ends. Raises nothing."""
        watching = self._loop.create_task(
            keep_alive(
                self._connection,
                self._service.admission.limits,
                heard_time=lambda: self._heard_time,
                close=self._over.set,
                abort=self.abort,
            )
        )
        reading = self._loop.create_task(self._read())
        over = self._loop.create_task(self._over.wait())
        try:
            await asyncio.wait((reading, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watching, reading, over):
                task.cancel()
            await asyncio.gather(watching, reading, over, return_exceptions=True)
            self._connection.close()
            await self._close()

    def leave(self) -> None:
        """Say goodbye, and end once that is sent."""
        self._connection.leave(GOING_DOWN, RETRY_AFTER_S)

    def abort(self) -> None:
        """Drop the socket as it is."""
        self._writer.transport.abort()
        self._over.set()

    async def _close(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
        self._writer.close()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()
        finally:
            self.gone.set()

    async def _read(self) -> None:
        connection = self._connection
        try:
            while not connection.is_closed:
                received = await self._reader.read(READ_BYTES)
                if not received:
                    break
                for line in self._lines.feed(received, connection.max_frame_bytes):
                    self._heard_time = self._loop.time()
                    connection.receive(line)
                    if not connection.has_room:
                        await connection.wait_for_room()
        except ProtocolError as error:
            connection.fail(error)
        except OSError:
            return
        # A peer that has said all it has to say may still read what is left for it.
        connection.leave("end of input")
        async with asyncio.timeout(LINGER_S):
            await self._over.wait()

    # Writing: what is there goes out at once, in this turn of the loop; only where the peer does
    # not keep up is there a task that waits for it.

    def _wake(self) -> None:
        self._loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        if self._draining is not None or self.gone.is_set():
            return
        transport = self._transport
        if transport.is_closing():  # nobody is there to read it
            self._over.set()
            return
        outbox = self._connection.outbox
        while len(outbox) and transport.get_write_buffer_size() <= WRITE_BYTES:
            transport.write(self._next_lines())
        if len(outbox):
            self._draining = self._loop.create_task(self._drain())
        elif self._connection.is_closed:
            self._over.set()

    def _next_lines(self) -> bytes:
        """What is written at once, of what there is."""
        take = self._connection.take
        first = take()
        assert first is not None  # it was asked whether there is one
        if not len(self._connection.outbox):  # most often
            return line_of(first)
        lines, size = [line_of(first)], len(first)
        while size <= WRITE_BYTES and (frame := take()) is not None:
            lines.append(line_of(frame))
            size += len(frame)
        return b"".join(lines)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError:
            self._over.set()
            return
        self._draining = None
        self._flush()


def _name(peer: object) -> str:
    """A peer's address, as it stands in the log."""
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"


def _bind_unix(path: str) -> tuple[socket.socket, tuple[int, int]]:
    """A socket bound to *path*, for its owner alone before anybody can connect to it.

    Raises InvalidInput where there is another kind of file, or somebody listens.
    """
    folder = Path(path).absolute().parent
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of two that start at once, one finds the other
            _make_way(path)
            bound.bind(path)
            os.chmod(path, 0o600)  # nobody can connect yet: it does not listen
            bound.listen(BACKLOG)
        finally:
            os.close(lock)
        found = os.stat(path)
    except OSError as error:
        bound.close()
        raise InvalidInput(f"cannot listen at unix:{path}: {error.strerror or error}") from error
    except BaseException:
        bound.close()
        raise
    bound.setblocking(False)
    return bound, (found.st_dev, found.st_ino)


def _make_way(path: str) -> None:
    """Remove the file of a service that is gone."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidInput(f"cannot listen at unix:{path}: there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError as error:  # somebody is there, and does not answer
            raise InvalidInput(f"cannot listen at unix:{path}: {error}") from error
    raise InvalidInput(f"cannot listen at unix:{path}: somebody listens there")


def _unlink_ours(path: str, ours: tuple[int, int]) -> None:
    with suppress(FileNotFoundError):
        found = os.stat(path)
        if (found.st_dev, found.st_ino) == ours:
            os.unlink(path)
