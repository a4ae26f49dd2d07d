"""The leases of the owners in this process: how long each may rely on its own, and what its
listener is told. No I/O: a store renews the leases, and reports here what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial

from llmsession.errors import InvalidConfig
from llmsession.turns.blocks import is_number

from .liveness import lease_clock
from .protocol import OwnerListener

__all__ = ["VALID_SHARE", "HeldLeases", "check_lease_and_wait"]

VALID_SHARE = 0.9
"""The share of a lease's time for which its owner relies on it, because clocks differ a little."""
LONGEST_S = 1e9
"""The longest lease or wait, 31 years. The clock of a database must be able to add it to a time."""


class HeldLeases:
    """The leases of *lease_s* seconds that owners in this process hold, by *clock*.

    The store may renew them in a thread of its own. Listeners are called in their own event loops.
    """

    def __init__(self, lease_s: float, *, clock: Callable[[], float] = lease_clock) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._until: dict[str, float] = {}
        """By owner: the time by *clock* until which its lease is valid."""
        self._listeners: dict[str, tuple[OwnerListener, Callable[[Callable[[], None]], None]]] = {}

    @property
    def owners(self) -> Set[str]:
        """The names of the owners that have a lease."""
        return self._until.keys()

    def now(self) -> float:
        """The time. A lease counts from a time before it was asked for."""
        return self._clock()

    def watch(
        self, owner: str, listener: OwnerListener, call: Callable[[Callable[[], None]], None]
    ) -> None:
        """Tell *listener* what happens to *owner*. *call* calls a function in its event loop."""
        self._listeners[owner] = (listener, call)

    def is_valid(self, owner: str) -> bool:
        """See ``LeasingStore.is_lease_valid``."""
        until = self._until.get(owner)
        return until is None or self.now() < until

    def begun(self, owner: str, asked_at: float) -> None:
        """The store has written a first lease of *owner*, which was asked for at *asked_at*."""
        self._until.setdefault(owner, asked_at + VALID_SHARE * self._lease_s)

    def renewed(self, owners: Sequence[str], asked_at: float, *, cut_off: Set[str]) -> None:
        """The store has renewed the leases of *owners*, as was asked for at *asked_at*. Those in
        *cut_off* were not notified for a while."""
        until = asked_at + VALID_SHARE * self._lease_s
        for owner in owners:
            missed = owner in cut_off or self._until[owner] < self.now()
            listener, call = self._listeners.get(owner, (None, None))
            if listener is None or call is None or not missed:
                self._until[owner] = until
            else:
                # In the owner's loop: nothing runs there between the renewal and the news.
                call(partial(self._renewed_late, owner, until, listener))

    def _renewed_late(self, owner: str, until: float, listener: OwnerListener) -> None:
        self._until[owner] = until
        listener.missed()

    def ended(self, owner: str) -> None:
        """The store was notified that somebody ended the lease of *owner*."""
        self._until[owner] = 0.0

    def taken(self, owner: str, session: str, epoch: int) -> None:
        """The store was notified that somebody took *session* from *owner*."""
        if owner in self._listeners:
            listener, call = self._listeners[owner]
            call(partial(listener.taken, session, epoch))


def check_lease_and_wait(lease_s: object, **wait_s: object) -> None:
    """Raises InvalidConfig unless *lease_s*, which is greater than 0, and the waits by their names
    are numbers of seconds.
    """
    for name, value in {"lease_s": lease_s, **wait_s}.items():
        if (
            not is_number(value)
            or not 0 <= value <= LONGEST_S  # NaN fails the comparison
            or (value == 0 and name == "lease_s")
        ):
            least = "greater than 0" if name == "lease_s" else "0 or more"
            raise InvalidConfig(f"{name} is {value!r}; it must be a number of seconds, {least}")
