"""Every point at which this process writes for its store, found by standing in the way.

SQLite lets its system calls be replaced, and asyncpg writes through a transport of asyncio. So the
points are counted as they come, and at the n-th one the process is killed before the write, or in
the middle of it, or the system says no. Only for a process that is made to be killed.
"""

from __future__ import annotations

import asyncio.selector_events
import ctypes
import errno
import os
import signal
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import apsw

__all__ = ["How", "WritePoints"]

How: TypeAlias = Literal["count", "kill", "tear", "full", "broken", "cut", "unanswered"]
"""At the point: nothing; SIGKILL before it; half of it and SIGKILL; ENOSPC or EIO, from it on; for
sockets: the connection is lost before it; or after it, before any answer."""

_ERRNO = {"full": errno.ENOSPC, "broken": errno.EIO}


class WritePoints:
    """Counts the write points, and does *how* at the *at*-th."""

    def __init__(self, at: int, how: How) -> None:
        self.at = at
        self.how = how
        self.count = 0
        self._kept: list[Any] = []  # ctypes frees a callback that nobody holds

    def watch_sqlite(self) -> None:
        """Stand in the way of SQLite's own system calls, in all its connections."""
        # What changes a file: its bytes, its length, its being there.
        self._replace("pwrite64", ctypes.c_ssize_t, ctypes.c_size_t, ctypes.c_int64)
        self._replace("write", ctypes.c_ssize_t, ctypes.c_size_t)
        self._replace("ftruncate", ctypes.c_int, None, ctypes.c_int64)
        self._replace("unlink", ctypes.c_int, None, path=True)

    def _replace(
        self, name: str, result: Any, size: Any, offset: Any = None, *, path: bool = False
    ) -> None:
        vfs = apsw.VFS(f"watched {name}", base="unix")
        address = vfs.xGetSystemCall(name)
        assert address, f"this SQLite has no system call {name}"
        first = ctypes.c_char_p if path else ctypes.c_int
        buffer = [ctypes.c_void_p, size] if size is not None else []
        kind = ctypes.CFUNCTYPE(
            result, first, *buffer, *([offset] if offset else []), use_errno=True
        )
        original = kind(address)

        def watched(*arguments: Any) -> int:
            torn: Callable[[], object] | None = None
            if size is not None:
                half = (*arguments[:2], arguments[2] // 2, *arguments[3:])
                torn = lambda: original(*half)  # noqa: E731  # it is one thing to do
            number = self.reached(torn)
            if number is not None:
                ctypes.set_errno(number)
                return -1
            return int(original(*arguments))

        replacement = kind(watched)
        self._kept += [vfs, original, replacement]
        pointer = ctypes.cast(replacement, ctypes.c_void_p).value
        assert pointer is not None
        assert vfs.xSetSystemCall(name, pointer)

    def watch_sockets(self) -> None:
        """Stand in the way of everything that asyncio's transports send."""
        transport: Any = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]  # not public
        original = transport.write

        def watched(sender: Any, sent: bytes) -> None:
            half = bytes(sent)[: len(sent) // 2]
            socket = sender.get_extra_info("socket")
            self.reached(lambda: os.write(socket.fileno(), half) if half else None)
            lost = self.count == self.at
            if not lost or self.how != "cut":
                original(sender, sent)
            if lost and self.how in ("cut", "unanswered"):
                sender.abort()

        transport.write = watched

    def reached(self, tear: Callable[[], object] | None) -> int | None:
        """One more point. Returns the errno that the write is to fail with, None for none."""
        self.count += 1
        if self.how in _ERRNO:
            return _ERRNO[self.how] if self.count >= self.at else None
        if self.how not in ("kill", "tear") or self.count != self.at:
            return None
        if self.how == "tear" and tear is not None:
            tear()
        os.kill(os.getpid(), signal.SIGKILL)
        return None
