"""Does the owner in a session's row still hold the session? All stores decide it here."""

from __future__ import annotations

from collections.abc import Callable

from llmsession.errors import SessionMoved

from . import liveness
from .protocol import Owner

__all__ = ["NOBODY", "IsDead", "check_epoch", "gave_up", "has_given_up", "still_holds"]

IsDead = Callable[[int, str, str], bool | None]
"""A function like ``liveness.owner_is_dead``: pid, start and host of a process; None if unknown."""

NOBODY = Owner("")
"""For who only asks."""

_gone: set[Owner] = set()


def gave_up(owner: Owner) -> None:
    """*owner*, in this process, holds nothing any more, although a store could not be told so."""
    _gone.add(owner)


def has_given_up(owner: Owner) -> bool:
    """Whether ``gave_up`` was called for *owner*."""
    return owner in _gone


def check_epoch(session: str, epoch: int | None, *, now: int) -> None:
    """Raises SessionMoved if *session* has another epoch *now* than its owner's *epoch*. None is
    no owner's, and fits always.
    """
    if epoch not in (None, now):
        raise SessionMoved(f"session {session!r} was taken over by another owner")


def still_holds(
    holder: Owner | None,
    lease_until: float,
    *,
    taker: Owner,
    now: float,
    owner_is_dead: IsDead = liveness.owner_is_dead,
) -> bool:
    """Does *holder*, whose lease runs until *lease_until*, keep the session from *taker*?

    A process that is seen to be alive keeps its sessions even if its lease has run out. That
    happens when a computer sleeps, or when a vacuum takes long. If the process cannot be seen from
    here, the lease decides. Both times are in seconds since the epoch.

    One that has given up keeps nothing, although its process, this one, is alive.
    """
    if holder is None or holder == taker or has_given_up(holder):
        return False
    dead = owner_is_dead(holder.pid, holder.started, holder.host)
    return lease_until > now if dead is None else not dead
