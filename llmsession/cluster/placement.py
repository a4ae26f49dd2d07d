"""Which host serves a session: a pure function of the list of hosts and the session's id.

Each host has a score for each session, and the host with the highest score serves it (rendezvous
hashing). A score depends on the host's name and the session's id alone. So a host that joins takes
its share from each of the others, a host that leaves gives up its own sessions only, and the order
of the hosts does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

__all__ = ["EMPTY", "Host", "HostState", "View", "host_of", "moved_away"]

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


def _hash(text: str) -> int:
    """64 bits, the same in every process and every version of Python."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mix(number: int) -> int:
    """Spread *number* over 64 bits: the finalizer of SplitMix64."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


@lru_cache(maxsize=64)
def _seeds(view: View) -> tuple[tuple[int, Host], ...]:
    """The hosts of *view* that are given sessions, each with the seed of its scores."""
    return tuple((_hash(host.name), host) for host in view.hosts if host.state == "up")


@lru_cache(maxsize=MAX_CACHED)
def host_of(view: View, session: str) -> Host | None:
    """The host that serves *session* if nobody holds it; None if no host is ``up``."""
    key = _hash(session)
    # The name settles a draw, so that every process settles it alike.
    placed = max(
        _seeds(view),
        key=lambda pair: (_mix(pair[0] ^ key), pair[1].name),
        default=None,
    )
    return None if placed is None else placed[1]


def moved_away(
    before: View, after: View, host: str, sessions: Iterable[str]
) -> tuple[tuple[str, Host], ...]:
    """Those of *sessions*, which *host* serves, that it has to hand over because the view changed
    from *before* to *after*, each with the host that is to serve it.

    A session that *host* serves although it was never placed there stays, as long as *host* is
    ``up``: it was sent there on purpose.
    """
    own = after.by_name(host)
    is_leaving = own is not None and own.state == "draining"
    moves = []
    for session in sessions:
        placed = host_of(after, session)
        if placed is None or placed.name == host:
            continue
        earlier = host_of(before, session)
        if is_leaving or (earlier is not None and earlier.name == host):
            moves.append((session, placed))
    return tuple(moves)
