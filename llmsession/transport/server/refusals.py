"""Logs refusals without flooding the log: the first of a peer one by one, the rest as a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import unquote

__all__ = ["RefusalLog", "host_of"]

SECOND_S = 1.0
LINES = 5
"""Lines for one peer and one kind of event in a second. The rest is one line at the end of it."""
MAX_PEERS = 1000
"""How many peers are counted separately. Further peers of the same second are counted together."""
OTHERS = "others"


def host_of(peer: str) -> str:
    """*peer* without its port, which is different for each connection. For IPv6 it is the network,
    because one machine can use any number of addresses in it."""
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
    """The refusals of one kind and one peer since a moment."""

    __slots__ = ("errors", "fields", "lines", "since")

    def __init__(self, since: float, fields: dict[str, Any]) -> None:
        self.since = since
        self.lines = 0
        self.fields = fields
        self.errors: Counter[str] = Counter()
        """How many refusals have no line of their own, by the name of the error."""


class RefusalLog:
    """Writes warnings to *log*. ``tick`` must be called several times a second."""

    def __init__(self, log: Any, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._seconds: dict[tuple[str, str, str], _Second] = {}

    def add(self, event: str, peer: str, error: str, **fields: Any) -> None:
        """Log that *peer* was refused with *error*. *event* is the log event's name. *fields* are
        added to the line; ``command`` may be one of them."""
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
        """Write the counts of the seconds that have ended, or all counts if *is_last*."""
        now = self._clock()
        for key, second in tuple(self._seconds.items()):
            if now - second.since >= SECOND_S or is_last:
                del self._seconds[key]
                for error, count in second.errors.items():
                    self._log.warning(key[0], **second.fields, error=error, more=count)
