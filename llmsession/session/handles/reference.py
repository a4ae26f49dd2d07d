"""ActorReference: what a handle holds of its session."""

from __future__ import annotations

import weakref

from ..actor.actor import Actor
from ..registry.runtime import Runtime
from ..values.config import tools_with_callables

__all__ = ["ActorReference"]


class ActorReference:
    """Keeps a session live as long as it is held itself, and reactivates one that went cold.

    An eviction, a close or a failure of the store may end the actor while the handle lives on:
    ``actor`` is the newest one that this handle has met.
    """

    __slots__ = ("__weakref__", "_queue", "_unpin", "actor", "runtime")

    def __init__(self, runtime: Runtime, actor: Actor) -> None:
        self.runtime = runtime
        # Held here, so that all handles of the session share it: the runtime has it weakly.
        self._queue = runtime.reactivation_queue(actor.session)
        self._pin(actor)

    def _pin(self, actor: Actor) -> None:
        self.actor = actor
        actor.pins += 1
        self._unpin = weakref.finalize(self, self.runtime.evictor.unpin, actor)
        self._unpin.atexit = False

    async def activated(self) -> Actor:
        """The actor. If the session is cold it is loaded first; then callers go on in the order in
        which they came, so that commands are numbered as they were called."""
        if self.actor.status != "cold" and not self._queue.callers:
            return self.actor
        async with self._queue.in_turn():
            # A loop: the session may be evicted again before this task runs.
            while self.actor.status == "cold":
                tools = tools_with_callables(self.actor.core.config)
                actor = await self.runtime.activate(self.actor.session, tools=tools)
                self._unpin()
                self._pin(actor)
            return self.actor
