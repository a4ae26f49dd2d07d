"""The task that all sessions of a manager run in, and their orderly end."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

__all__ = ["TaskHost"]


class TaskHost:
    """A task group in a task of its own. Shielded: a cancellation from outside reaches the body
    of the manager's ``async with``, and the sessions are then ended in order instead of being
    torn.

    *start* gets the task group when it is open. When the host is left, *close* ends what runs in
    the group, and *last* is called when nothing runs.
    """

    def __init__(
        self,
        start: Callable[[TaskGroup], None],
        close: Callable[[], Awaitable[None]],
        last: Callable[[], Awaitable[None]],
    ) -> None:
        self._start = start
        self._close = close
        self._last = last

    async def enter(self) -> None:
        """Open the task group. Once, in the task that will leave it."""
        self._leave, self._left = anyio.Event(), anyio.Event()
        self._host = anyio.create_task_group()
        await self._host.__aenter__()
        try:
            ready = anyio.Event()
            self._host.start_soon(self._run, ready)
            # Shielded: it takes no time, and after a cancellation ``leave`` would not be called.
            with anyio.CancelScope(shield=True):
                await ready.wait()
        except BaseException:  # the task itself was cancelled, which asyncio lets pass a shield
            self._leave.set()
            await self._host.__aexit__(*sys.exc_info())
            raise

    async def leave(self) -> None:
        """End what runs in the group and wait for it, even if the wait is cancelled."""
        self._leave.set()
        try:
            with anyio.CancelScope(shield=True):
                await self._left.wait()
        finally:
            # Nothing runs any more. An error of the body is raised as it is, not in a group.
            # Where asyncio cancelled the task in its wait, the waiting is done here.
            await self._host.__aexit__(None, None, None)

    async def _run(self, ready: anyio.Event) -> None:
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as group:
                    self._start(group)
                    ready.set()
                    await self._leave.wait()
                    await self._close()
            finally:
                await self._last()
                self._left.set()
