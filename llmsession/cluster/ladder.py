"""When is a host taken for dead? Pure.

| what is known | then |
| --- | --- |
| its process ended: seen on its machine, or by the keeper that waited for it | dead at once |
| its node was declared dead | dead at once |
| its lease ran out | dead at once |
| it was silent for 2 seconds to two witnesses | dead at once |
| it was silent to one witness, or only did not renew its lease in time | wait for its lease |

A witness is another host that pings it, and the directory, if the host did not renew its lease for
some polls: so a single observer is enough where there are only two hosts. Silence to the directory
alone says little of a host that goes on serving.

None of this has to be right. A host that lives after all enters the directory again, and the fence
keeps each log right. A wrong notice costs the work that is done twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from .placement import Host, View

__all__ = [
    "LATE_POLLS",
    "PROBES",
    "SILENT_S",
    "WATCHED",
    "WINDOW",
    "Evidence",
    "Silence",
    "watched_by",
    "why_dead",
]

SILENT_S = 2.0
"""A host that has answered no ping for so long is silent. A busy event loop may be late by less."""
PROBES = 4
"""So often in that time a host is asked."""
WINDOW = 1.5
"""For so many times ``SILENT_S`` the report of an observer counts; it is repeated meanwhile."""
LATE_POLLS = 2.5
"""After so many polls without a renewal the directory is a witness, too."""
WATCHED = 3
"""So many hosts each host watches, and is watched by: two witnesses may be lost with a host."""
_WITNESSES = 2


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a host that may be dead."""

    process_ended: bool = False
    node_dead: bool = False
    lease_ran_out: bool = False
    silent_to: int = 0
    """The number of hosts that it is silent to."""
    is_renewal_late: bool = False


def why_dead(evidence: Evidence) -> str | None:
    """Why the host is to be declared dead now; None to wait for its lease."""
    if evidence.process_ended:
        return "its process ended"
    if evidence.node_dead:
        return "its node was declared dead"
    if evidence.lease_ran_out:
        return "its lease ran out"
    if evidence.silent_to >= _WITNESSES:
        return "silent to two observers"
    if evidence.silent_to + evidence.is_renewal_late >= _WITNESSES:
        return "silent to an observer and to the directory"
    return None


def watched_by(view: View, host: str, count: int = WATCHED) -> tuple[Host, ...]:
    """The hosts that *host* watches: those that follow it on a ring, in every state.

    Each host is then watched by as many. The ring is in the order of the hashes of the names, so
    that the hosts of one machine, which are lost together, seldom watch each other.
    """
    if view.by_name(host) is None:
        return ()
    others = [each for each in view.hosts if each.name != host]
    own = _place(host)
    # How far behind *host* on the ring: those before it come after all that follow.
    others.sort(key=lambda each: (_place(each.name) <= own, _place(each.name)))
    return tuple(others[:count])


def _place(name: str) -> tuple[bytes, str]:
    return blake2b(name.encode(), digest_size=8).digest(), name


class Silence:
    """Which of the watched hosts are silent? Times are in seconds, by one clock of the caller.

    A host that has never answered since it is watched is not silent: perhaps it cannot be reached
    from here. So a host that was wrongly declared dead, and entered again, is suspected again only
    by those whom it has answered since.
    """

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._answered_at: dict[str, float] = {}
        self._looked_at: float | None = None

    def answered(self, host: str, now: float) -> None:
        """*host* has answered."""
        self._answered_at[host] = now

    def forget(self, host: str) -> None:
        """*host* was declared dead. If it lives and enters again, it has not answered yet."""
        self._answered_at.pop(host, None)

    def has_answered(self, host: str) -> bool:
        """Has *host* ever answered?"""
        return host in self._answered_at

    def look(self, now: float, watched: Iterable[str]) -> Sequence[str]:
        """Those of the *watched* hosts that are silent. Called several times in ``silent_s``.

        If it was not, the caller itself stood still: then nobody is silent yet.
        """
        stood_still = self._looked_at is not None and now - self._looked_at > self._silent_s / 2
        self._looked_at = now
        self._answered_at = {
            host: now if stood_still else self._answered_at[host]
            for host in watched
            if host in self._answered_at
        }
        return [host for host, at in self._answered_at.items() if now - at >= self._silent_s]
