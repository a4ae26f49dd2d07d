"""Does this manager still hold its sessions for certain? Asked before each request and each tool.

What is durable needs no such question: an owner that lost a session is fenced at its next append.
But a request costs money, a tool acts, and a preview is read by people. An owner that was stopped,
or is cut off from its store, does none of these until it knows that it holds its sessions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.lowlevel import checkpoint

from llmsession.errors import SessionError, contained, error_text
from llmsession.store.protocol import LeasingStore, Owner

__all__ = ["OwnerLease"]

RETRY_S = 1.0
"""After so long the store is asked again, where it could not say who holds what, or where nobody
said that the lease is valid again."""
PAGE = 1_000
"""About so many sessions the store is asked at once."""


class OwnerLease:
    """The lease of *owner* in a store, which may be anybody's code; always valid where the store
    has no leases.

    *live* gives the ids of the sessions that *owner* believes to hold, and *found* is called for
    each of them that the store gives an epoch of. *run_work* runs a work of the manager.
    *log_trouble* is called with the name and the fields of what an operator should know.
    """

    def __init__(
        self,
        store: object,
        owner: Owner,
        *,
        live: Callable[[], Sequence[str]],
        found: Callable[[str, int], None],
        run_work: Callable[[str, Callable[[], Awaitable[None]]], None],
        log_trouble: Callable[..., None],
    ) -> None:
        self._store = store if isinstance(store, LeasingStore) else None
        self._owner = owner
        self._live = live
        self._found = found
        self._run_work = run_work
        self._log_trouble = log_trouble
        self._is_asking = False
        """Is it not known yet who took what while the store was cut off?"""
        self._is_behind = False
        """Was it cut off again since it was asked last?"""
        self._changed: anyio.Event | None = None
        self._is_lost = False
        self._is_over = False
        if self._store is not None:
            try:
                self._store.watch_owner(owner, self)
            except BaseException as error:
                self._give_up(error)

    @property
    def is_valid(self) -> bool:
        """Does the owner hold, for certain, every session that nobody said was taken?"""
        return self._store is None or (not self._is_asking and self._asked())

    def _asked(self) -> bool:
        assert self._store is not None  # asked by ``is_valid``
        try:
            return self._store.is_lease_valid(self._owner) is not False
        except BaseException as error:
            self._give_up(error)
            return True

    def _give_up(self, error: BaseException) -> None:
        # Nothing durable depends on this: sessions work as with a store that has no leases.
        self._store = None
        self._log_trouble("lease.failed", error=error_text(contained(error)))

    async def wait(self) -> None:
        """Wait until the lease is valid. Cancellable."""
        while not self.is_valid:
            if not self._is_lost:
                self._is_lost = True
                self._log_trouble("lease.lost")
            changed = self._changed = self._changed or anyio.Event()
            with anyio.move_on_after(RETRY_S):
                await changed.wait()
        if self._is_lost:
            self._is_lost = False
            self._log_trouble("lease.renewed")

    def end(self) -> None:
        """Nothing runs here any more: what the store says from now on has no effect."""
        self._is_over = True

    # Called by the store, in our event loop.

    def taken(self, session: str, epoch: int) -> None:
        """See ``OwnerListener``."""
        self._found(session, epoch)

    def missed(self) -> None:
        """See ``OwnerListener``. Until it is known what was taken, the lease is not valid."""
        self._is_behind = True
        if not self._is_asking and not self._is_over:
            self._is_asking = True
            self._run_work("look for sessions that were taken", self._ask)

    async def _ask(self) -> None:
        try:
            while self._is_behind:
                self._is_behind = False
                is_known = await self._ask_all()
                while not is_known:
                    await anyio.sleep(RETRY_S)
                    is_known = await self._ask_all()
                # The actors of sessions that were taken are fenced before anybody here goes on.
                for _ in range(2):
                    await checkpoint()
        finally:
            self._is_asking = False
            if self._changed is not None:
                self._changed.set()
                self._changed = None

    async def _ask_all(self) -> bool:
        """Report the epochs of all live sessions. Returns False if the store could not say."""
        sessions = self._live()
        for start in range(0, len(sessions), PAGE):
            if self._store is None:
                break
            try:
                page = await self._store.epochs(sessions[start : start + PAGE])
                for session, epoch in page.items():
                    self._found(session, epoch)
            except SessionError:
                return False
        return True
