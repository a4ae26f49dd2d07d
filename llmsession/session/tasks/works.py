"""Work outside the actor: provider streams, tools, jobs. Each runs in a scope of its own.

The actor waits for the messages of its works, never for their tasks. Were they children of the
actor, one that swallows cancellation would hold the actor with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

__all__ = ["Work", "Works"]


class Work:
    """One running piece of work, and the two scopes that it is stopped by."""

    __slots__ = ("_inner", "_outer", "_stopping", "is_done", "name")

    def __init__(self, name: str, stopping: set[Work]) -> None:
        self.name = name
        self.is_done = False
        self._stopping = stopping
        self._outer = anyio.CancelScope()
        self._inner = anyio.CancelScope()

    def cancel(self) -> None:
        """Ask it to stop. It may refuse."""
        if not self.is_done:
            self._stopping.add(self)
        self._outer.cancel()

    def abandon(self) -> None:
        """Stop asking. Without this, cancellation is delivered again on every turn of the event
        loop to work that ignores it, which costs a whole core."""
        self._inner.shield = True

    async def run(self, body: Callable[[], Awaitable[None]], ended: Callable[[Work], None]) -> None:
        """Run *body* in the two scopes, then call *ended*, however it went."""
        try:
            with self._outer, self._inner:
                await body()
        finally:
            self.is_done = True
            self._stopping.discard(self)
            ended(self)


class Works:
    """All work of a manager, in the manager's task group."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._running: set[Work] = set()
        self._stopping: set[Work] = set()
        """Of these, those that were asked to stop."""
        self._emptied: anyio.Event | None = None

    def start(
        self,
        name: str,
        body: Callable[[], Awaitable[None]],
        ended: Callable[[Work], None] | None = None,
    ) -> Work:
        """Run *body* as a task; call *ended* when it is over, however it ended.

        *body* must report its own errors: what it raises ends the manager.
        """
        work = Work(name, self._stopping)
        self._running.add(work)

        def over(work: Work) -> None:
            self._running.discard(work)
            if self._emptied is not None and not self._running:
                self._emptied.set()
            if ended is not None:
                ended(work)

        self._group.start_soon(work.run, body, over, name=f"llmsession {name}")
        return work

    @property
    def running(self) -> tuple[str, ...]:
        """The names of what runs now, sorted."""
        return tuple(sorted(work.name for work in self._running))

    def stopping_in(self, session: str) -> tuple[str, ...]:
        """The names of what was asked to stop in *session* and still runs."""
        end = f" in {session}"
        return tuple(work.name for work in self._stopping if work.name.endswith(end))

    async def stop_all(self, grace_s: float) -> None:
        """Cancel everything, give it *grace_s* to stop, and stop asking what still runs then."""
        for work in tuple(self._running):
            work.cancel()
        try:
            if self._running:
                self._emptied = anyio.Event()
                with anyio.move_on_after(grace_s):
                    await self._emptied.wait()
        finally:  # also where the caller is cancelled meanwhile
            for work in tuple(self._running):
                work.abandon()
