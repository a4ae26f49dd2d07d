"""Notifications to systemd, for services of ``Type=notify``."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["notify"]


def notify(environ: Mapping[str, str], state: str) -> None:
    """Send *state* (``READY=1``, ``STOPPING=1`` or ``RELOADING=1``) to the socket that
    ``NOTIFY_SOCKET`` in *environ* names, if any. Does not block, and raises no error."""
    where = environ.get("NOTIFY_SOCKET", "")
    if where[:1] not in ("/", "@"):
        return
    if state == "RELOADING=1":  # systemd needs the time to tell reloads apart
        state += f"\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.sendto(state.encode(), where.replace("@", "\0", 1) if where[0] == "@" else where)
