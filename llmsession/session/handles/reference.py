"""ActorReference: the link from a handle to the actor of its session."""

from __future__ import annotations

import weakref

from ..actor.actor import Actor
from ..registry.idle_evictor import IdleEvictor
from ..registry.runtime import Runtime
from ..values.config import tools_with_callables

__all__ = ["ActorReference"]


class ActorReference:
    """Keeps a session in memory while a handle refers to it, and loads it again if it went cold.

    An eviction, a close or a store failure may end the actor while the handle still exists.
    ``actor`` is the newest actor that this handle has used.
    """

    __slots__ = ("__weakref__", "_queue", "_unpin", "actor", "runtime")

    def __init__(self, runtime: Runtime, actor: Actor) -> None:
        self.runtime = runtime
        # The runtime refers to this queue weakly. This reference keeps it alive, so that all
        # handles of the session share one queue.
        self._queue = runtime.reactivation_queue(actor.session)
        self._pin(actor)

    def _pin(self, actor: Actor) -> None:
        self.actor = actor
        actor.pins += 1
        # The finalizer lives as long as this reference, and the tools of the actor's configuration
        # may refer to the handle: what it held would never be freed.
        evictor = weakref.ref(self.runtime.evictor)
        self._unpin = weakref.finalize(self, _unpin, evictor, weakref.ref(actor))
        self._unpin.atexit = False

    async def activated(self) -> Actor:
        """The actor of the session, which is loaded first if it is cold.

        Callers that wait for the load continue in the order in which they called, so that commands
        get their ingress numbers in that order. Raises the errors of ``SessionManager.open``.
        """
        if self.actor.status != "cold" and not self._queue.callers:
            return self.actor
        async with self._queue.in_turn():
            # A loop, because the session may be evicted again before this task gets to run.
            while self.actor.status == "cold":
                tools = tools_with_callables(self.actor.core.config)
                actor = await self.runtime.activate(self.actor.session, tools=tools)
                self._unpin()
                self._pin(actor)
            return self.actor


def _unpin(evictor_ref: weakref.ref[IdleEvictor], actor_ref: weakref.ref[Actor]) -> None:
    evictor, actor = evictor_ref(), actor_ref()
    if evictor is not None and actor is not None:
        evictor.unpin(actor)
