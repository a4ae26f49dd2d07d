"""The clients of one session on a simulated cluster: they know where it was, ask there or at any
host, and go where they are sent."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import anyio

from llmsession.errors import (
    SessionClosed,
    SessionError,
    SessionInUse,
    SessionMoved,
    SessionNotFound,
    StoreError,
)
from llmsession.session.values.config import SessionConfig

from .clients import RETRY_S, SimClient, SimConnection
from .hosts import SimulatedHost
from .network import host_name

__all__ = ["ClusterClient"]

MAX_TRIES = 2000
"""So often a client looks for a host: for much longer than any fault lasts."""


class ClusterClient(SimClient):
    """One session as its clients know it; ``home`` is the host that they ask next."""

    _hosts: list[SimulatedHost]
    _is_sent_there = False
    _newest: SimConnection | None = None
    _looking = 0

    async def create(self, config: SessionConfig) -> None:
        for host in self._hosts:  # so that each is in the directory
            await host.incarnation()
        await super().create(config)

    async def reach(self, *, takeover: bool = False) -> SimConnection | None:
        self._looking += 1
        try:
            return await self._found(is_last=False)
        finally:
            self._looking -= 1

    async def _reach_last(self) -> SimConnection | None:
        # Who opened it after it was closed would have more records written.
        self.is_over = True
        while self._looking:  # noqa: ASYNC110  # in virtual time
            await anyio.sleep(RETRY_S)
        return await self._found(is_last=True)

    async def _found(self, *, is_last: bool) -> SimConnection | None:
        for _ in range(MAX_TRIES):
            if self.is_over and not is_last:
                return None
            host = self._hosts[self.home]
            if not host.reached_by_clients():
                self._ask_another()
                await anyio.sleep(RETRY_S)
                continue
            life = await host.incarnation()
            admitted = partial(life.admitted, self.name, is_sent_here=self._is_sent_there)
            try:
                handle = await life.within(admitted)
            except (SessionInUse, SessionMoved) as error:
                if error.address is not None and not self._goes_to(error.address):
                    continue  # at once
            except SessionNotFound:
                return None
            except (StoreError, SessionClosed):
                pass
            else:
                if handle is not None and not life.owner_is_dead:
                    self._is_sent_there = False
                    return self._connected(SimConnection(self, life, handle))
                self._ask_another()  # the connection broke
            await anyio.sleep(RETRY_S)
        return None

    def _connected(self, connection: SimConnection) -> SimConnection:
        if self._newest is not None and self._newest.incarnation is not connection.incarnation:
            self._last_owner = self._newest
        self._newest = connection
        return connection

    def _ask_another(self) -> None:
        self.home = (self.home + 1) % len(self._hosts)
        self._is_sent_there = False

    def _goes_to(self, address: str) -> bool:
        """Go to the host at *address*. Returns whether that is the one that was asked."""
        before, self._is_sent_there = self.home, True
        names = [host_name(host.number) for host in self._hosts]
        self.home = names.index(address)
        return self.home == before

    async def move(self, how: str) -> None:
        """Take the session over at another host, while it is in use."""
        self._ask_another()
        host = self._hosts[self.home]
        if host.reached_by_clients():
            life = await host.incarnation()
            with suppress(SessionError):
                await life.within(partial(life.opened, self.name, takeover=True))

    async def _find_home(self) -> None:
        """``reach`` goes where it is sent."""

    async def evict(self) -> None:
        connection = await self.reach()
        if connection is not None:
            connection.incarnation.handles.pop(self.name, None)
        await super().evict()
