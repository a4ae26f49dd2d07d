"""The server of JSON lines over Unix domain and TCP sockets."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import os
import socket
import ssl
import stat
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from llmsession.errors import (
    InvalidConfig,
    InvalidInput,
    Overloaded,
    ProtocolError,
    Unauthenticated,
    error_text,
)

from ..wire.addresses import Address, parse_address
from ..wire.errors import to_wire
from ..wire.framing import LineReader, encode, lines_of
from ..wire.progress import PROGRESS_BYTES, Sent
from ..wire.tls import ServerTls
from .access import check_exposed
from .connection import Connection
from .keepalive import LINGER_S, serve_peer
from .limits import GOING_DOWN, RETRY_AFTER_S
from .service import Service

__all__ = ["SocketServer"]

BACKLOG = 1024
"""How many connections may wait to be accepted. The usual 100 is too few if 200 clients connect at
once, for example after a restart."""
ACCEPT_AGAIN_S = 1.0
"""How many seconds to wait after a connection could not be accepted."""
MAX_LOCK_S = 5.0
"""How long a start waits for the lock of the socket's folder, in seconds. Another server holds the
lock for milliseconds."""
LOCK_AGAIN_S = 0.02
REFUSED_S = 1.0
"""How many seconds a client that was refused at once has to read why."""
READ_BYTES = 64 * 1024
WRITE_BYTES = 64 * 1024
"""How many bytes are joined into one write. It is also how many may wait in the transport before
the outbox gives it no more."""


class SocketServer:
    """Serves *service* at *address*, ``unix:PATH`` or ``tcp://HOST:PORT`` (0 is any free port).

    Use it as an async context manager inside that of the service. Leaving it accepts no more
    connections, sends a goodbye on open ones, and drops those that do not read it. Only its owner
    can use the file of a Unix socket. A file that an earlier server left behind is replaced, unless
    a server still listens there.

    An address that other machines can reach needs *tls* and a service with an authenticator, or
    *insecure* if something else protects it. With a ``client_ca`` in *tls*, clients need a
    certificate. A failed handshake is one line in the log.

    Raises InvalidInput if the server cannot listen at the address, and InvalidConfig if the address
    is not protected.
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
        self._address = parsed = parse_address(address)
        if parsed.scheme == "grpc":
            raise InvalidInput(f"{address!r} is for the gRPC server")
        if tls is not None and parsed.scheme == "unix":
            raise InvalidConfig(f"{parsed} takes no TLS: only its owner can connect to it")
        check_exposed(
            parsed,
            has_tls=tls is not None,
            is_guarded=service.admission.is_guarded,
            insecure=insecure,
        )
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: set[_Peer] = set()
        self._server: asyncio.Server | None = None
        self._listeners: tuple[socket.socket, ...] = ()
        """Used instead of ``_server`` with TLS."""
        self._accept_tasks: list[asyncio.Task[None]] = []
        self._file: tuple[int, int] | None = None
        self._stopped = False
        self._writes = _Writes()

    @property
    def address(self) -> str:
        """The address at which it listens, with the actual port."""
        sockets = self._listeners or (self._server.sockets if self._server is not None else ())
        if self._address.scheme == "unix" or not sockets:
            return str(self._address)
        host, port = sockets[0].getsockname()[:2]
        return str(Address("tcp", host=host, port=port))

    async def __aenter__(self) -> SocketServer:
        self._service.check_entered()
        if self._address.scheme == "unix":
            listener, self._file = await asyncio.to_thread(_bind_unix, self._address.path)
            self._server = await asyncio.start_unix_server(
                self._accept, sock=listener, backlog=BACKLOG
            )
        else:
            host, port = self._address.host, self._address.port
            try:
                if self._tls is not None:
                    self._listeners = await _listeners_at(host, port)
                else:
                    self._server = await asyncio.start_server(
                        self._accept, host, port, backlog=BACKLOG
                    )
            except OSError as error:
                raise InvalidInput(f"cannot listen at {self._address}: {error.strerror}") from error
            start = asyncio.get_running_loop().create_task
            self._accept_tasks = [start(self._accept_all(listener)) for listener in self._listeners]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_listening()
        peers = tuple(self._peers)
        for peer in peers:
            peer.leave()
        all_closed = asyncio.gather(*(peer.closed.wait() for peer in peers))
        try:
            async with asyncio.timeout(LINGER_S):
                await asyncio.shield(all_closed)
        except TimeoutError:
            for peer in peers:
                peer.abort()
            await all_closed
        tasks = tuple(self._tasks)
        for task in tasks:  # handshakes that are still running
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop_listening(self) -> None:
        """Accept no more connections. Open ones stay."""
        self._stopped = True
        for task in self._accept_tasks:
            task.cancel()
        await asyncio.gather(*self._accept_tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        if self._server is not None:
            self._server.close()
            if self._file is not None:
                await asyncio.to_thread(_unlink_ours, self._address.path, self._file)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_full or self._stopped:  # asyncio may accept one more while the server stops
            self._service.count_refused()
            writer.transport.abort()
        else:
            self._start(self._serve(reader, writer))

    @property
    def _is_full(self) -> bool:
        return len(self._tasks) >= 2 * self._service.admission.limits.connections

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _Peer(self._service, reader, writer, self._writes)
        if await peer.admitted():
            self._peers.add(peer)
            try:
                await peer.run()
            finally:
                self._peers.discard(peer)

    # With TLS, connections are accepted here, because asyncio's server does not report failed
    # handshakes and cannot renew its certificate.

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, where = await loop.sock_accept(listener)
            except OSError as error:  # the client is gone already, or too many files are open
                self._service.admission.log.warning(
                    "connection.not_accepted", why=error_text(error)
                )
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if self._is_full:
                self._service.count_refused()
                accepted.close()
            else:
                self._start(self._serve_tls(accepted, _peer_name(where)))

    async def _serve_tls(self, accepted: socket.socket, peer: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            pending = self._service.admission.pending_hellos.enter(peer, lambda: _cancel(task))
        except Overloaded as error:
            self._service.admission.log_refusal(peer, error)
            accepted.close()  # an error message could only be sent after the handshake
            return
        try:
            streams = await self._shake_hands(accepted, peer)
        finally:
            pending.leave()
        if streams is not None:
            await self._serve(*streams)

    async def _shake_hands(
        self, accepted: socket.socket, peer: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Do the TLS handshake. Returns the streams, or None if the handshake fails."""
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
            message = f"the TLS handshake failed: {why or error_text(error)}"
            self._service.admission.log_refusal(peer, Unauthenticated(message))
            return None
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _listeners_at(host: str, port: int) -> tuple[socket.socket, ...]:
    """Sockets that listen at all addresses of *host*. Raises OSError."""
    loop = asyncio.get_running_loop()
    status = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(status):
            listener = socket.create_server(where, family=family, backlog=BACKLOG)
            listener.setblocking(False)
            listeners.append(listener)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return tuple(listeners)


class _Writes:
    """Writes to all connections that have frames, once in each pass of the event loop.

    What one connection gets during a pass is written at once, so under load the frames of many
    deltas share a write. A frame waits for the next pass, and no longer.
    """

    def __init__(self) -> None:
        self._peers: list[_Peer] = []
        self._context = contextvars.copy_context()
        """Used for all passes, because each call_soon would copy the context otherwise."""

    def add(self, peer: _Peer) -> None:
        """Flush *peer* in the next pass of the event loop."""
        if not self._peers:
            asyncio.get_running_loop().call_soon(self._flush, context=self._context)
        self._peers.append(peer)

    def _flush(self) -> None:
        peers, self._peers = self._peers, []
        for peer in peers:
            try:
                peer.flush()
            except Exception as error:  # a bug of ours ends this connection, but no other
                peer.crashed(error)


class _Peer:
    """One accepted socket: passes its lines to a Connection, and writes what that wants to send."""

    def __init__(
        self,
        service: Service,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        writes: _Writes,
    ) -> None:
        self._service = service
        self._writes = writes
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        # ``drain`` waits from the size on at which ``flush`` stops. By default TLS takes 512 KiB.
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._lines = LineReader()
        self._connection: Connection
        self._drain_task: asyncio.Task[None] | None = None
        self._heard_time = self._loop.time()
        self._unheard = 0
        """How many bytes of an unfinished frame came since then."""
        self._frame_time = self._heard_time
        """When the last whole frame came, or the peer was told that the next one is coming."""
        self._sent = Sent(self._transport)
        self._finished = asyncio.Event()
        self.closed = asyncio.Event()

    async def admitted(self) -> bool:
        """Whether the service accepts the client. If not, the client is sent the error."""
        try:
            self._connection = self._service.connect(
                _peer_name(self._writer.get_extra_info("peername")), partial(self._writes.add, self)
            )
        except Overloaded as error:
            self._writer.write(lines_of((encode(to_wire(error)),)))
            await self._wait_for_reader()
            await self._close()
            return False
        return True

    async def _wait_for_reader(self) -> None:
        """Wait for a moment until the client has closed its side. It may be sending its hello: if
        the socket were closed meanwhile, the client would get a broken pipe and not the error.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(REFUSED_S):
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                while await self._reader.read(READ_BYTES):
                    pass

    async def run(self) -> None:
        """Serve until either side ends the connection. Raises nothing."""
        try:
            await serve_peer(
                self._connection,
                self._service.admission.limits,
                self._read(),
                finished=self._finished,
                heard_time=lambda: self._heard_time,
                taken=self._sent.taken,
                abort=self.abort,
            )
        finally:
            await self._close()

    def leave(self) -> None:
        """Send a goodbye, and end once it is sent."""
        self._connection.leave(GOING_DOWN, RETRY_AFTER_S)

    def abort(self) -> None:
        """Drop the connection at once."""
        self._writer.transport.abort()
        self._finished.set()

    async def _close(self) -> None:
        if self._drain_task is not None:
            self._drain_task.cancel()
        self._writer.close()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()
        finally:
            self.closed.set()

    async def _read(self) -> None:
        connection, turns = self._connection, self._service.admission.turns
        try:
            while not connection.is_closed:
                received = await self._reader.read(READ_BYTES)
                if not received:
                    break
                since = perf_counter()
                lines = self._lines.feed(received, connection.max_frame_bytes)
                since = turns.spend(since)
                connection.receiving(self._lines.holds)
                if lines:
                    self._heard_time = self._frame_time = self._loop.time()
                    self._unheard = 0
                else:
                    self._note_part(len(received))
                for line in lines:
                    if not connection.has_room:
                        await connection.wait_for_room()
                        self._heard_time, since = self._loop.time(), perf_counter()
                    connection.receive(None if not line or line.isspace() else line)
                    since = turns.spend(since)
                if not connection.has_room:
                    await connection.wait_for_room()
        except ProtocolError as error:
            connection.fail(error)
        except OSError:
            return
        finally:
            self._lines.clear()
        # The peer has closed its sending side, but it may still read what is left for it.
        await connection.end_input(LINGER_S)
        async with asyncio.timeout(LINGER_S):
            await self._finished.wait()

    def _note_part(self, size_bytes: int) -> None:
        """Count *size_bytes* of an unfinished frame. A peer that sends for long is pinged, because
        what it asks meanwhile waits behind its frame, and it has to hear something."""
        self._unheard += size_bytes
        if self._unheard < PROGRESS_BYTES:
            return
        self._heard_time, self._unheard = self._loop.time(), 0
        every_s = self._service.admission.limits.keepalive_s / 2
        if self._connection.authenticated and self._heard_time - self._frame_time >= every_s:
            self._frame_time = self._heard_time
            self._connection.ping()

    # Writing: frames are written in the next pass of the loop. A task exists only while the peer
    # does not keep up: it waits until the peer has read.

    def flush(self) -> None:
        """Write what waits, as much as the transport takes."""
        if self._drain_task is not None or self.closed.is_set():
            return
        transport = self._transport
        if transport.is_closing():  # the peer is gone
            self._finished.set()
            return
        outbox = self._connection.outbox
        while len(outbox):
            if transport.get_write_buffer_size() > WRITE_BYTES:
                self._drain_task = self._loop.create_task(self._drain())
                return
            lines = lines_of(outbox.take_batch(WRITE_BYTES))
            self._sent.written += len(lines)
            transport.write(lines)
        if self._connection.is_closed:
            self._finished.set()

    def crashed(self, error: Exception) -> None:
        """Drop the connection, because of a bug of ours."""
        self._service.admission.log.error("connection.crashed", exc_info=error)
        self.abort()

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError:
            self._finished.set()
            return
        self._drain_task = None
        self._writes.add(self)


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


def _peer_name(peer: object) -> str:
    """A peer's address as the log shows it."""
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"


def _bind_unix(path: str) -> tuple[socket.socket, tuple[int, int]]:
    """A socket bound to *path*. It is its owner's alone before anyone can connect.

    Raises InvalidInput if *path* is another kind of file, if a server listens there, or if the
    folder stays locked.
    """
    folder = Path(path).absolute().parent
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _lock(lock, folder)  # so that of two servers that start at once, one sees the other
            _remove_stale_socket(path)
            listener.bind(path)
            os.chmod(path, 0o600)  # in time: nobody can connect before ``listen``
            listener.listen(BACKLOG)
        finally:
            os.close(lock)
        status = os.stat(path)
    except OSError as error:
        listener.close()
        raise InvalidInput(f"cannot listen at unix:{path}: {error.strerror or error}") from error
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener, (status.st_dev, status.st_ino)


def _lock(descriptor: int, folder: Path) -> None:
    """Lock *folder*. Wait for another server that is starting there, but not for ever, because any
    process may hold the lock. Raises InvalidInput."""
    deadline = time.monotonic() + MAX_LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise InvalidInput(
                    f"cannot listen in {str(folder)!r}: another process holds the lock of this"
                    f" folder for {MAX_LOCK_S:g} s; end it (lsof {folder}), or use another folder"
                ) from None
            time.sleep(LOCK_AGAIN_S)
        else:
            return


def _remove_stale_socket(path: str) -> None:
    """Remove a socket that a server left behind. Raises InvalidInput if a server listens there."""
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
        except OSError as error:  # a server is there, but does not answer
            raise InvalidInput(f"cannot listen at unix:{path}: {error}") from error
    raise InvalidInput(f"cannot listen at unix:{path}: somebody listens there")


def _unlink_ours(path: str, ours: tuple[int, int]) -> None:
    with suppress(FileNotFoundError):
        status = os.stat(path)
        if (status.st_dev, status.st_ino) == ours:
            os.unlink(path)
