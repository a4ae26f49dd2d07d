"""The sessions that a manager has given up, and that its store has not taken back yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from llmsession.errors import contained_in_task, contained_in_work
from llmsession.store.checked import CheckedStore

__all__ = ["Unreleased"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""The pause before the store is asked again for one session. It doubles each time."""
LAST_S = 10.0
"""How long a manager that is left waits for its last attempts. A store waits as long for its
server."""


class Unreleased:
    """Gives back the leases that *store* has not taken back, as soon as it takes them: of sessions
    that an error has ended, and of those whose release failed.

    Without that nobody else gets these sessions as long as the process lives: nobody here may ever
    open them again, and the lease of an owner is renewed for all its sessions. *run_work* runs a
    work under a name. Each session has its own, so that none waits for another one.
    """

    def __init__(
        self, store: CheckedStore, run_work: Callable[[str, Callable[[], Awaitable[None]]], None]
    ) -> None:
        self._store = store
        self._run_work = run_work
        self._running: set[str] = set()

    def begin(self, session: str) -> None:
        """*session* is another one."""
        if session not in self._running:
            self._running.add(session)
            self._run_work(f"release of {session}", partial(self._run, session))

    async def _run(self, session: str) -> None:
        try:
            pause_s = FIRST_PAUSE_S
            while (lease := self._store.unreleased.get(session)) is not None:
                try:
                    await self._store.release(lease)  # no effect if somebody has a newer one
                except BaseException as error:
                    contained_in_work(error)
                    await anyio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._running.discard(session)

    async def end(self) -> None:
        """Try each once more, because the manager is left: its works have been stopped."""
        with anyio.move_on_after(LAST_S):
            async with anyio.create_task_group() as group:
                for session in tuple(self._store.unreleased):
                    group.start_soon(self._last, session)

    async def _last(self, session: str) -> None:
        try:
            await self._store.release(self._store.unreleased[session])
        except BaseException as error:
            contained_in_task(error)
