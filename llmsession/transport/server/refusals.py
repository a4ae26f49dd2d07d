"""Refusals in the log: some of a peer at once, the others of that second in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import unquote

__all__ = ["RefusalLog", "host_of"]

SECOND_S = 1.0
LINES = 5
"""Of one peer and one kind in a second. What is beyond is one line at its end."""
MAX_PEERS = 1000
"""Whose refusals are counted one by one; further peers of the same second are counted together."""
OTHERS = "others"


def host_of(peer: str) -> str:
    """*peer* without its port, which differs from connection to connection. Of IPv6 the network,
    because one machine has as many addresses as it likes."""
    name = unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:"))
    host, colon, _ = name.rpartition(":")
    if not colon:
        return peer
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv6Address) and not address.is_loopback:
        return str(ip_network((address, 64), strict=False))
    return str(address)


class _Second:
    """What was refused of one kind and peer, since a moment."""

    __slots__ = ("errors", "fields", "lines", "since")

    def __init__(self, since: float, fields: dict[str, Any]) -> None:
        self.since = since
        self.lines = 0
        self.fields = fields
        self.errors: Counter[str] = Counter()
        """What has no line of its own, by the error's name."""


class RefusalLog:
    """Writes warnings to *log*. ``tick`` has to be called some times a second."""

    def __init__(self, log: Any, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._seconds: dict[tuple[str, str, str], _Second] = {}

    def add(self, event: str, peer: str, error: str, **fields: Any) -> None:
        """*event*: *peer* was refused with *error*; one of the *fields* may be a ``command``."""
        host, command = host_of(peer), fields.get("command", "")
        key = (event, host, command)
        if key not in self._seconds and len(self._seconds) >= MAX_PEERS:
            host = OTHERS
            key = (event, host, command)
        second = self._seconds.get(key)
        if second is None:
            shown = {"peer": host, "command": command} if command else {"peer": host}
            second = self._seconds[key] = _Second(self._clock(), shown)
        if second.lines < LINES:
            second.lines += 1
            self._log.warning(event, peer=peer, error=error, **fields)
        else:
            second.errors[error] += 1

    def tick(self, *, is_last: bool = False) -> None:
        """Write what was counted in the seconds that are over; if *is_last*, everything."""
        now = self._clock()
        for key, second in tuple(self._seconds.items()):
            if now - second.since >= SECOND_S or is_last:
                del self._seconds[key]
                for error, count in second.errors.items():
                    self._log.warning(key[0], **second.fields, error=error, more=count)
