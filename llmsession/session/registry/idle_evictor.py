"""When to look for sessions that nobody holds."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping

from ..actor.actor import Actor
from ..tasks.timers import Timers
from ..tasks.works import Works

__all__ = ["IdleEvictor"]


class IdleEvictor:
    """Calls *evict* some *idle_s* after a session of *live* was let go, and again while there are
    any. Nothing happens before ``begin`` and after ``stop``."""

    def __init__(
        self, live: Mapping[str, Actor], idle_s: float, evict: Callable[[], Awaitable[int]]
    ) -> None:
        self._live = live
        self._idle_s = idle_s
        self._evict = evict
        self._set = False
        self._unheld = False
        """A handle was collected where no timer can be set: who comes next sets it."""
        self._stopped = True

    def begin(self, timers: Timers, works: Works) -> None:
        """Use these, in this thread."""
        self._timers, self._works = timers, works
        self._thread = threading.get_ident()
        self._stopped = False

    def stop(self) -> None:
        """Look no more: all sessions are closed anyway."""
        self._stopped = True

    def unpin(self, actor: Actor) -> None:
        """A handle is gone. Called by the garbage collector: only counts, and sets a timer."""
        actor.pins -= 1
        if threading.get_ident() != self._thread:
            self._unheld = True  # timers are the loop's
        elif actor.pins == 0 and actor.status == "live":
            try:
                self.later()
            except RuntimeError:  # in a callback of the loop, between its tasks
                self._unheld = True

    def came(self) -> None:
        """A session came to life."""
        if self._unheld:
            self.later()

    def later(self) -> None:
        """Look for sessions to evict, in a while."""
        if not self._stopped and not self._set:
            self._timers.after(self._idle_s, self._look)
            self._set, self._unheld = True, False

    def _some_unheld(self) -> bool:
        return any(actor.pins == 0 for actor in self._live.values())

    def _look(self) -> None:
        self._set = False
        if not self._stopped and self._some_unheld():
            self._works.start("eviction", self._sweep)

    async def _sweep(self) -> None:
        await self._evict()
        if self._some_unheld():
            self.later()
