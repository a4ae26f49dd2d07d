"""One connection of the strict server: a plain socket, HTTP/1.1 by h11, nothing decided.

Plain sockets, because a reset has to be one: anyio's streams say goodbye before they close.
"""

from __future__ import annotations

import socket
import struct

import anyio
import anyio.lowlevel
import h11

from .model.faults import Head
from .replies.received import HttpRequest

__all__ = ["ClientGone", "Wire", "listening"]

READ_BYTES = 65_536
BACKLOG = 4096
"""Connections that may wait to be accepted: a burst of a thousand clients is one test."""


class ClientGone(Exception):
    """The client closed or reset the connection. It never leaves the server."""


def listening(port: int = 0) -> socket.socket:
    """A socket that listens on the loopback interface; port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


class Wire:
    """Reads requests from *accepted* and writes what it is told to. It owns the socket."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = accepted
        self._http = h11.Connection(h11.SERVER)
        self._head_only = False

    async def read_request(self) -> HttpRequest | None:
        """The next request, whole; None when the client has closed. Cancellable.

        Raises h11.RemoteProtocolError for what is not HTTP.
        """
        head: h11.Request | None = None
        body = bytearray()
        while True:
            match self._http.next_event():
                case h11.Request() as head:
                    if self._http.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=100, headers=[])
                        await self._write(self._http.send(go_on))
                case h11.Data(data=piece):
                    body += piece
                case h11.EndOfMessage() if head is not None:
                    self._head_only = head.method == b"HEAD"
                    return _request(head, bytes(body))
                case h11.ConnectionClosed():
                    return None
                case _:  # NEED_DATA
                    self._http.receive_data(await self._read())

    async def send_head(self, head: Head) -> None:
        """The status and the headers. The body is sent in chunks unless its length is said."""
        await self._write(
            self._http.send(h11.Response(status_code=head.status, headers=list(head.headers)))
        )

    async def send_body(self, piece: bytes) -> None:
        """A piece of the body, at once."""
        if not self._head_only:
            await self._write(self._http.send(h11.Data(data=piece)))

    async def end(self) -> bool:
        """The answer is whole. May another request follow on this connection?"""
        await self._write(self._http.send(h11.EndOfMessage()))
        try:
            self._http.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        return True

    async def refuse_garbage(self) -> None:
        """400 for what is no HTTP; the connection cannot be used after it."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            await self.send_head(Head(400, (("content-length", "0"), ("connection", "close"))))
            await self.end()

    async def wait_closed_by_client(self) -> None:
        """Until the client closes or resets. Waits for ever if it sends something instead."""
        while True:
            try:
                if not self._socket.recv(1, socket.MSG_PEEK):
                    return
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError:
                return
            else:  # the next request already: no more can be seen before it is read
                await anyio.sleep_forever()

    def close(self, *, reset: bool = False) -> None:
        """Close the socket; with *reset* the client's next read or write fails."""
        if reset:
            no_goodbye = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_goodbye)
        self._socket.close()

    async def _read(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                return self._socket.recv(READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError:
                return b""

    async def _write(self, sent: bytes | None) -> None:
        await anyio.lowlevel.checkpoint()
        left = memoryview(sent or b"")
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise ClientGone from error


def _request(head: h11.Request, body: bytes) -> HttpRequest:
    return HttpRequest(
        method=head.method.decode("ascii"),
        path=head.target.decode("ascii").partition("?")[0],
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers},
        body=body,
    )
