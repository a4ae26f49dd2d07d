"""A proxy before a PostgreSQL server that cuts a connection where a test wants it cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

__all__ = ["Proxy", "running_proxy"]

When = Literal["before", "within", "after"]
READY = b"Z\x00\x00\x00\x05"
"""How the server ends its answer to a statement; its transaction is over then."""
_TERMINATED = b"SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
GOODBYE = b"E" + (len(_TERMINATED) + 4).to_bytes(4, "big") + _TERMINATED
"""How the server ends a connection of its own accord. Then it closes the socket."""


class Proxy:
    """Passes bytes on, on a port of the loopback. ``cut(mark, when)`` arms it, for one time: of
    the statement that has *mark* among its arguments nothing reaches the server ("before"), or a
    part of it ("within"), or all of it, and its answer does not come back ("after")."""

    def __init__(self, server: Path) -> None:
        self._server = str(server)
        self._mark: bytes | None = None
        self._when: When = "before"
        self._hold_back = False
        self._dismissals = 0
        self.cuts = 0
        self._was_cut = threading.Event()
        self._open_gate = threading.Event()
        self._open_gate.set()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres:open-sesame@127.0.0.1:{self.port}/postgres?sslmode=disable"

    def cut(self, mark: bytes, when: When, *, hold_back: bool = False) -> None:
        """*hold_back*: from then on nothing reaches the server, by new connections or by those that
        are open, until they are let through."""
        self._mark, self._when, self._hold_back = mark, when, hold_back

    async def wait_until_cut(self) -> None:
        """The server has what it was to get, and answered it; its client knows nothing."""
        with anyio.fail_after(120):
            await anyio.to_thread.run_sync(self._was_cut.wait, abandon_on_cancel=True)

    def let_through(self) -> None:
        self._open_gate.set()

    def dismiss(self, connections: int) -> None:
        """Say goodbye to the next *connections* right after the server has greeted them. Their
        sockets stay open, as for a moment after a real goodbye."""
        self._dismissals = connections

    def cut_all(self) -> None:
        """Cut every connection that is open."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Refuse connections from now on, and cut those that are open."""
        self.let_through()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join()
        for one in self._open:
            one.close()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open_gate.wait()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._server)
            except OSError:
                client.close()
                server.close()
                continue
            self._open += [client, server]
            armed = threading.Event()
            self._start(self._to_server, client, server, armed)
            self._start(self._to_client, client, server, armed)

    def _to_server(
        self, client: socket.socket, server: socket.socket, armed: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(1 << 20):
                at = piece.find(self._mark) if self._mark else -1
                if at >= 0:
                    self._mark = None
                    self.cuts += 1
                    if self._when != "after":
                        if self._when == "within":
                            server.sendall(piece[:at])
                        self._note_cut()
                        break
                    armed.set()
                self._open_gate.wait()
                server.sendall(piece)
        self._hang_up(client, server)

    def _to_client(
        self, client: socket.socket, server: socket.socket, armed: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(1 << 20):
                if armed.is_set():
                    while piece and READY not in piece[-6:]:
                        piece = server.recv(1 << 20)
                    self._note_cut()
                    break
                if self._dismissals and READY in piece[-6:]:
                    self._dismissals -= 1
                    piece += GOODBYE
                client.sendall(piece)
        self._hang_up(client, server)

    def _note_cut(self) -> None:
        if self._hold_back:
            self._open_gate.clear()
        self._was_cut.set()

    @staticmethod
    def _hang_up(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def running_proxy(server: Path) -> Iterator[Proxy]:
    """A proxy before the server at the Unix socket *server*."""
    proxy = Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
