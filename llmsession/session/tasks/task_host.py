"""Where everything runs that is not the caller's, and where it is ended in order."""

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

    *furnish* is given the group once it is there. When the house is left, *close* ends what runs
    in it, and *last* is called when nothing runs any more.
    """

    def __init__(
        self,
        furnish: Callable[[TaskGroup], None],
        close: Callable[[], Awaitable[None]],
        last: Callable[[], Awaitable[None]],
    ) -> None:
        self._furnish = furnish
        self._close = close
        self._last = last

    async def enter(self) -> None:
        """Open it, once, in the task that will leave it."""
        self._leave, self._left = anyio.Event(), anyio.Event()
        self._host = anyio.create_task_group()
        await self._host.__aenter__()
        try:
            ready = anyio.Event()
            self._host.start_soon(self._home, ready)
            # It takes no time, and ``leave`` would not be called.
            with anyio.CancelScope(shield=True):
                await ready.wait()
        except BaseException:  # the task itself was cancelled, which asyncio lets pass a shield
            self._leave.set()
            await self._host.__aexit__(*sys.exc_info())
            raise

    async def leave(self) -> None:
        """End what runs in it, and wait for that, whoever cancels the wait."""
        self._leave.set()
        try:
            with anyio.CancelScope(shield=True):
                await self._left.wait()
        finally:
            # Nothing runs in it any more; what the body raised goes on as it is, not in a group.
            # Where asyncio cancelled the task in its wait, the waiting is done here.
            await self._host.__aexit__(None, None, None)

    async def _home(self, ready: anyio.Event) -> None:
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as group:
                    self._furnish(group)
                    ready.set()
                    await self._leave.wait()
                    await self._close()
            finally:
                await self._last()
                self._left.set()
