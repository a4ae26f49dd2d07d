"""Does the owner that a session's row names still hold it? Decided here, for every store that
other processes use, too."""

from __future__ import annotations

from collections.abc import Callable

from . import liveness
from .protocol import Owner

__all__ = ["IsDead", "still_holds"]

IsDead = Callable[[int, str, str], bool | None]
"""As ``liveness.owner_is_dead``: pid, start and host of a process; None if it cannot be told."""


def still_holds(
    holder: Owner | None,
    lease_until: float,
    *,
    taker: Owner,
    now: float,
    owner_is_dead: IsDead = liveness.owner_is_dead,
) -> bool:
    """Is the session kept from *taker* by *holder*, whose lease runs until *lease_until*?

    A process that is seen to live holds what it has, also when it is late with its lease: a
    computer that slept, a long vacuum. Where nobody can see it, the lease tells. Both times are
    in seconds since the epoch.
    """
    if holder is None or holder == taker:
        return False
    dead = owner_is_dead(holder.pid, holder.started, holder.host)
    return lease_until > now if dead is None else not dead
