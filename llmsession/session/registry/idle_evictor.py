"""IdleEvictor: decides when to look for sessions that no handle refers to."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping

from ..actor.actor import Actor
from ..tasks.timers import Timers
from ..tasks.works import Works

__all__ = ["IdleEvictor"]


class IdleEvictor:
    """Calls *evict* about *idle_s* seconds after the last handle of a session in *actors* is gone.

    It repeats the call as long as there are such sessions. Does nothing before ``start`` and after
    ``stop``.
    """

    def __init__(
        self, actors: Mapping[str, Actor], idle_s: float, evict: Callable[[], Awaitable[int]]
    ) -> None:
        self._actors = actors
        self._idle_s = idle_s
        self._evict = evict
        self._timer_is_set = False
        self._missed_unpin = False
        """A handle was collected where no timer can be set. The next activation sets it."""
        self._stopped = True

    def start(self, timers: Timers, works: Works) -> None:
        """Use *timers* and *works*, in this thread."""
        self._timers, self._works = timers, works
        self._thread = threading.get_ident()
        self._stopped = False

    def stop(self) -> None:
        """Stop looking, because all sessions are closed anyway."""
        self._stopped = True

    def unpin(self, actor: Actor) -> None:
        """A handle of *actor* is gone.

        The garbage collector calls this in any thread and at any moment, so it only counts and sets
        a timer.
        """
        actor.pins -= 1
        if threading.get_ident() != self._thread:
            self._missed_unpin = True  # timers belong to the event loop's thread
        elif actor.pins == 0 and actor.status == "live":
            try:
                self.schedule()
            except RuntimeError:  # called between two tasks of the loop, where no timer can be set
                self._missed_unpin = True

    def activated(self) -> None:
        """A session was activated in the event loop's thread, so a missed timer can be set now."""
        if self._missed_unpin:
            self.schedule()

    def schedule(self) -> None:
        """Look for sessions to evict after *idle_s* seconds."""
        if not self._stopped and not self._timer_is_set:
            self._timers.after(self._idle_s, self._look)
            self._timer_is_set, self._missed_unpin = True, False

    def _has_unpinned(self) -> bool:
        return any(actor.pins == 0 for actor in self._actors.values())

    def _look(self) -> None:
        self._timer_is_set = False
        if not self._stopped and self._has_unpinned():
            self._works.start("eviction", self._sweep)

    async def _sweep(self) -> None:
        await self._evict()
        if self._has_unpinned():
            self.schedule()
