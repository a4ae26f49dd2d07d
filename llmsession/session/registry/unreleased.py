"""The sessions that a manager has given up, and that its store has not taken back yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from llmsession.errors import contained_in_task, contained_in_work
from llmsession.store.checked import CheckedStore

__all__ = ["Unreleased"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""The pause before the store is asked again. It doubles each time."""


class Unreleased:
    """Gives back the leases that *store* has not taken back, as soon as it takes one: of sessions
    that an error has ended, and of those whose release failed.

    Without that nobody else gets these sessions as long as the process lives: nobody here may ever
    open them again, and the lease of an owner is renewed for all its sessions. *run_work* runs a
    work under a name.
    """

    def __init__(
        self, store: CheckedStore, run_work: Callable[[str, Callable[[], Awaitable[None]]], None]
    ) -> None:
        self._store = store
        self._run_work = run_work
        self._is_running = False

    def begin(self) -> None:
        """There is another one."""
        if not self._is_running:
            self._is_running = True
            self._run_work("release of sessions", self._run)

    async def _run(self) -> None:
        try:
            pause_s = FIRST_PAUSE_S
            while self._store.unreleased:
                try:
                    await self._release_all()
                except BaseException as error:
                    contained_in_work(error)
                    await anyio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._is_running = False

    async def _release_all(self) -> None:
        for lease in tuple(self._store.unreleased.values()):
            await self._store.release(lease)  # has no effect if somebody has a newer one

    async def end(self) -> None:
        """Try it once more, because the manager is left: its works have been stopped."""
        try:
            await self._release_all()
        except BaseException as error:
            contained_in_task(error)
