"""Does the owner in a session's row still hold the session? All stores that several processes use
decide it here."""

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

    A process that is seen to live keeps its sessions, even if its lease ran out, as it does when
    a computer sleeps or a vacuum takes long. Where the process cannot be seen, the lease decides.
    Both times are in seconds since the epoch.
    """
    if holder is None or holder == taker:
        return False
    dead = owner_is_dead(holder.pid, holder.started, holder.host)
    return lease_until > now if dead is None else not dead
