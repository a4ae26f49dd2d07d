"""Works: tasks outside the actor (provider streams, tools, jobs), each in its own cancel scope.

The actor waits for the reports of its works, never for their tasks. If a work were a child task of
the actor, a work that swallows its cancellation would hold up the actor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from llmsession.errors import contained_in_work, starting_scope

from .task_host import LoopCalls, Tasks

__all__ = ["Work", "Works"]

FIRST_TURNS = 4
"""For so many turns of the event loop a cancellation is delivered on each of them. Nearly every
work ends on the first one. On trio it may take three: the work begins on the first one, and its
first wait may be a checkpoint, which looks twice, and which a shield in between lets go on.
"""
AGAIN_S = 0.01
"""The interval in seconds at which it is delivered afterwards, until the work is abandoned."""


class Work:
    """One running work, and the two scopes that stop it.

    anyio delivers the cancellation of a scope on every turn of asyncio's loop until its task has
    left the scope. For a work that ignores it, that costs a whole core during the grace. So the
    inner scope is shielded between two deliveries. A part of the work that is shielded itself is
    never interrupted.
    """

    __slots__ = (
        "_has_met_it", "_inner", "_is_abandoned", "_loop_calls", "_outer", "_stopping", "_tasks",
        "is_done", "name", "result",
    )  # fmt: skip

    def __init__(self, name: str, stopping: set[Work], loop_calls: LoopCalls, tasks: Tasks) -> None:
        self.name = name
        self.is_done = False
        self.result: object = None
        """What its body returned; None until then, and if it returned nothing or was stopped."""
        self._stopping = stopping
        self._loop_calls = loop_calls
        self._tasks = tasks
        self._is_abandoned = False
        self._has_met_it = False
        """Has the loop turned often enough since it was cancelled?"""
        self._outer = loop_calls.new_scope()
        self._inner = loop_calls.new_scope()

    @property
    def is_cancelled(self) -> bool:
        """Was it cancelled? True also after it was abandoned."""
        return self._outer.cancel_called

    def cancel(self) -> None:
        """Cancel it. It may swallow the cancellation, and gets it again until it is abandoned."""
        if self.is_done or self.is_cancelled:
            return
        self._stopping.add(self)
        self._outer.cancel()
        self._loop_calls.call_soon(partial(self._turned, FIRST_TURNS))

    def _turned(self, turns: int) -> None:
        """The loop has turned since the work was cancelled. After so many turns of it the task has
        met the cancellation.
        """
        if self.is_done:
            return
        if turns > 1:
            self._loop_calls.call_soon(partial(self._turned, turns - 1))
            return
        self._has_met_it = True
        if self._is_abandoned:
            self._inner.shield = True
        elif self._loop_calls.delivers_on_every_turn:
            self._pause()

    def _pause(self) -> None:
        """Deliver the cancellation no more, for a while."""
        self._inner.shield = True
        self._loop_calls.call_later(AGAIN_S, self._deliver_again)

    def _deliver_again(self) -> None:
        if not (self.is_done or self._is_abandoned):
            self._inner.shield = False  # this delivers it
            self._pause()

    def abandon(self) -> None:
        """Stop cancelling it, and let it run on. If it was cancelled just now, and something has
        held up the loop since then for all of the grace, it still meets the cancellation.
        """
        self._is_abandoned = True
        if self._has_met_it or not self.is_cancelled:
            self._inner.shield = True

    async def run(
        self,
        body: Callable[[], Awaitable[object]],
        ended: Callable[[Work], None],
        failed: Callable[[str, Exception], None],
        last: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """Run *body* in the two scopes. Then call *ended* and *last*, whatever happened."""
        starting_scope.set(self._outer)
        self._tasks.adopt()
        try:
            with self._outer, self._inner:
                self.result = await body()
        except BaseException as error:  # must not end the works of other sessions
            failed(self.name, contained_in_work(error))
        finally:
            self.is_done = True
            self._stopping.discard(self)
            ended(self)
            if last is not None:
                await last()


class Works:
    """All works of a manager, in its *tasks*.

    *failed* is called with the name of a work that raised, and with the error.
    """

    def __init__(
        self, tasks: Tasks, loop_calls: LoopCalls, failed: Callable[[str, Exception], None]
    ) -> None:
        self._tasks = tasks
        self._loop_calls = loop_calls
        self._failed = failed
        self._running: set[Work] = set()
        self._stopping: set[Work] = set()
        """Those of ``_running`` that were cancelled."""
        self._emptied: anyio.Event | None = None

    def start(
        self,
        name: str,
        body: Callable[[], Awaitable[object]],
        ended: Callable[[Work], None] | None = None,
        last: Callable[[], Awaitable[None]] | None = None,
    ) -> Work:
        """Run *body* as a task. Call *ended* when it is over, however it ended, and then *last*,
        for which nobody waits but the end of the manager. It must raise nothing, and be short.

        *body* must report its own errors: what it raises is only logged.
        """
        work = Work(name, self._stopping, self._loop_calls, self._tasks)
        self._running.add(work)

        def over(work: Work) -> None:
            self._running.discard(work)
            if self._emptied is not None and not self._running:
                self._emptied.set()
            if ended is not None:
                ended(work)

        self._tasks.start(
            work.run, body, over, self._failed, last,
            cancel=work.cancel, is_over=lambda: work.is_done, name=f"llmsession {name}",
        )  # fmt: skip
        return work

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the running works, sorted."""
        return tuple(sorted(work.name for work in self._running))

    def stopping_in(self, session: str) -> tuple[str, ...]:
        """The names of the cancelled works of *session* that still run."""
        end = f" in {session}"
        return tuple(work.name for work in self._stopping if work.name.endswith(end))

    async def stop_all(self, grace_s: float) -> None:
        """Cancel all works, wait at most *grace_s* seconds, then abandon those that still run."""
        for work in tuple(self._running):
            work.cancel()
        try:
            if self._running:
                self._emptied = anyio.Event()
                with anyio.move_on_after(grace_s):
                    await self._emptied.wait()
        finally:  # also if the caller is cancelled while it waits
            for work in tuple(self._running):
                work.abandon()
