"""Which host serves a session: a pure function of the list of hosts and the session's id.

Each host has a score for each session, and the host with the highest score serves it (rendezvous
hashing). A score depends on the host's name and the session's id alone. So a host that joins takes
its share from each of the others, a host that leaves gives up its own sessions only, and the order
of the hosts does not matter.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

__all__ = ["EMPTY", "Change", "Host", "HostState", "View", "hash_of", "host_of", "score"]

HostState: TypeAlias = Literal["joining", "up", "draining"]
"""``joining``: it serves, but is given no sessions until it has settled. ``up``: it is given its
share. ``draining``: it gives up its sessions, and is given none."""

_MASK = 2**64 - 1
MAX_CACHED = 65_536
"""Sessions whose placement is kept, of all views together."""


class Host(msgspec.Struct, frozen=True):
    """A process that serves sessions of the cluster. ``incarnation`` is the name of its manager as
    an owner in the store: it differs each time the host starts."""

    name: str
    address: str
    state: HostState
    incarnation: str


class View(msgspec.Struct, frozen=True, cache_hash=True):
    """The hosts of a cluster, as they were at one moment. A higher ``version`` is newer."""

    version: int
    hosts: tuple[Host, ...]

    def by_name(self, name: str) -> Host | None:
        """The host *name*."""
        return next((host for host in self.hosts if host.name == name), None)

    def by_incarnation(self, incarnation: str) -> Host | None:
        """The host whose manager is the owner *incarnation*."""
        return next((host for host in self.hosts if host.incarnation == incarnation), None)


EMPTY = View(0, ())
"""What is known before the directory was read."""


def hash_of(text: str) -> int:
    """64 bits of a host's name or of a session's id: the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def score(host: int, session: int) -> int:
    """How well a host and a session, both by their ``hash_of``, go together: their difference,
    spread over 64 bits by the finalizer of SplitMix64."""
    number = host ^ session
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


@lru_cache(maxsize=64)
def _takers(view: View) -> tuple[tuple[int, Host], ...]:
    """The hosts of *view* that are given sessions, each with the hash of its name."""
    return tuple((hash_of(host.name), host) for host in view.hosts if host.state == "up")


@lru_cache(maxsize=MAX_CACHED)
def host_of(view: View, session: str) -> Host | None:
    """The host that serves *session* if nobody holds it; None if no host is ``up``."""
    key = hash_of(session)
    # The name settles a draw, so that every process settles it alike.
    placed = max(
        _takers(view),
        key=lambda pair: (score(pair[0], key), pair[1].name),
        default=None,
    )
    return None if placed is None else placed[1]


class Change:
    """What *host* has to hand over because the view changed from *before* to *after*."""

    def __init__(self, before: View, after: View, host: str) -> None:
        self._before = before
        self._after = after
        self._host = host
        self._own = hash_of(host)
        own = after.by_name(host)
        self._is_leaving = own is not None and own.state == "draining"
        self._is_up = own is not None and own.state == "up"
        earlier = {taker.name for _, taker in _takers(before)}
        self._new = tuple(pair for pair in _takers(after) if pair[1].name not in earlier)

    def target(self, session: str) -> Host | None:
        """The host that is to serve *session*, which this one serves; None if it stays.

        A session that the host serves although it was never placed there stays, as long as the host
        is ``up``: it was sent there on purpose.
        """
        if self._is_up and not self._may_be_taken(session):
            return None
        placed = host_of(self._after, session)
        if placed is None or placed.name == self._host:
            return None
        was = host_of(self._before, session)
        return placed if self._is_leaving or (was is not None and was.name == self._host) else None

    def _may_be_taken(self, session: str) -> bool:
        """Does a new host have a higher score? Of most sessions this is all that is looked at: one
        that was placed here can have gone to no other host."""
        key = hash_of(session)
        mark = (score(self._own, key), self._host)
        return any((score(new, key), taker.name) > mark for new, taker in self._new)
