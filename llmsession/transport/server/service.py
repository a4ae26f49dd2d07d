"""The service: sessions of one manager for clients that come and go, over any transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from llmsession.errors import InvalidInput, Overloaded
from llmsession.session import SessionManager
from llmsession.session.manager import runtime_of
from llmsession.session.stats import count_live, live_stats

from ..wire.messages import ServiceSnapshot, ServiceStatistics
from . import tenancy
from .access import Authenticator
from .admission import Admission, Observer
from .connection import Connection
from .intake import PendingHello
from .limits import GOING_DOWN, RETRY_AFTER_S, Limits

__all__ = ["Service"]

DETACH_IDLE_S = 60.0
"""How long a connection holds a session that it does not use."""
LEAVE_S = 5.0
"""How long a connection may take to read what is left for it, when the service closes."""
MAX_SNAPSHOT_SESSIONS = 1000


class Service:
    """Answers what clients ask of the sessions of *manager*, which has to be entered.

    Use it as an async context manager, in asyncio. Transports ``connect`` their clients to it.
    Leaving it says goodbye to every client; no session is touched by that. *default_model* is sent
    to clients, for those whose users name none.
    """

    def __init__(
        self,
        manager: SessionManager,
        *,
        authenticator: Authenticator | None = None,
        limits: Limits | None = None,
        observer: Observer | None = None,
        logger: Any | None = None,
        default_model: str | None = None,
    ) -> None:
        self.manager = manager
        self.admission = Admission(
            manager,
            authenticator=authenticator,
            limits=limits or Limits(),
            observer=observer,
            logger=logger,
            default_model=default_model,
        )
        self._connections: dict[Connection, PendingHello] = {}
        self._welcomed: set[Connection] = set()
        self._all_gone = asyncio.Event()
        self._swept_time = 0.0
        self._entered = False
        self._connected = self._refused = self._previews_lost = 0

    async def __aenter__(self) -> Service:
        self.admission.begin(self._sweep)
        self._entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # For transports.

    def check_entered(self) -> None:
        """Raises InvalidInput before it is entered: it would answer nobody."""
        if not self._entered:
            raise InvalidInput("enter the Service first: async with Service(...) as service")

    def connect(self, peer: str, wake: Callable[[], None], token: str | None = None) -> Connection:
        """A new client, which has yet to say hello; *token* counts where its hello has none.
        Raises Overloaded past a limit: of connections, or of those of *peer* without a hello; and
        InvalidInput before the service is entered."""
        self.check_entered()
        connection = Connection(
            self.admission,
            peer,
            wake,
            token,
            on_welcome=self._on_welcome,
            on_closed=self._on_closed,
            snapshot=self.snapshot,
        )
        try:
            self._check_room()
            pending = self.admission.pending_hellos.enter(peer, lambda: self._drop(connection))
        except Overloaded:
            self._refused += 1
            raise
        self._connections[connection] = pending
        self._connected += 1
        self._all_gone.clear()
        return connection

    def count_refused(self) -> None:
        """A transport has closed a connection without a word: there are too many that end."""
        self._refused += 1

    def _check_room(self) -> None:
        """Raises Overloaded where no further client may be welcomed."""
        if len(self._welcomed) >= self.admission.limits.connections:
            raise Overloaded("too many connections", retry_after_s=RETRY_AFTER_S)

    def _on_welcome(self, connection: Connection) -> None:
        try:
            self._check_room()
        except Overloaded:
            self._refused += 1
            raise
        self._welcomed.add(connection)
        self._connections[connection].leave()

    def _drop(self, connection: Connection) -> None:
        self._refused += 1
        why = "another connection of this peer takes the place of one without a hello"
        connection.fail(Overloaded(why, retry_after_s=RETRY_AFTER_S))

    def _on_closed(self, connection: Connection) -> None:
        self._welcomed.discard(connection)
        pending = self._connections.pop(connection, None)
        if pending is not None:
            pending.leave()
        self._previews_lost += connection.outbox.previews_lost
        if not self._connections:
            self._all_gone.set()

    def _sweep(self) -> None:
        now = self.admission.now()
        if now - self._swept_time < DETACH_IDLE_S / 4:
            return
        self._swept_time = now
        for connection in tuple(self._connections):
            connection.detach_idle(now - DETACH_IDLE_S)
        self.admission.drop_rates({connection.rate_key for connection in self._connections})

    # For whoever runs it.

    def revalidate_clients(self) -> int:
        """Authenticate every client again, after tokens have changed. Clients whose token was
        revoked, or now belongs to another tenant, are disconnected with ``Unauthenticated``; their
        turns go on. Returns how many were disconnected."""
        return sum(not connection.still_authorized() for connection in tuple(self._connections))

    async def drain(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """Take no new turns and sessions, and wait until the open turns have ended, at most
        *timeout_s*. Returns the sessions that still have one. Clients stay connected: they see
        their turns end. Commands that are refused are ``Overloaded``."""
        self.admission.draining = True
        return await self.manager.drain(timeout_s)

    async def close(self, reason: str = GOING_DOWN) -> None:
        """Say goodbye to every client, give them a moment to read what is left, and detach them.
        Commands that were accepted go on in the manager."""
        self.admission.draining = True
        self.admission.lag.stop()
        for connection in tuple(self._connections):
            connection.leave(reason, RETRY_AFTER_S)
        if self._connections:
            try:
                async with asyncio.timeout(LEAVE_S):
                    await self._all_gone.wait()
            except TimeoutError:
                for connection in tuple(self._connections):
                    connection.close()
        await self.admission.close()

    def statistics(self) -> ServiceStatistics:
        """Costs a walk over the connections and the live sessions."""
        connections, admission = tuple(self._connections), self.admission
        return ServiceStatistics(
            connections=len(connections),
            sessions=sum(connection.sessions for connection in connections),
            subscriptions=sum(connection.subscriptions for connection in connections),
            open_requests=sum(connection.open_requests for connection in connections),
            open_turns=self.manager.open_turns,
            incoming_bytes=admission.incoming.bytes,
            outgoing_bytes=sum(connection.outbox.bytes for connection in connections),
            loop_lag_s=admission.lag.lag_s,
            connected=self._connected,
            refused_connections=self._refused,
            protocol_errors=admission.protocol_errors,
            commands=admission.commands,
            overloaded=admission.overloaded,
            lagged=admission.lagged,
            previews_lost=self._previews_lost
            + sum(connection.outbox.previews_lost for connection in connections),
        )

    def snapshot(self, tenant: str | None, limit: int = 100) -> ServiceSnapshot:
        """What the service does now, as far as *tenant* may see it, with at most *limit* live
        sessions, 1,000 at most. Costs ``statistics``, and for each of these sessions a projection
        of its context."""

        def is_visible(session: str) -> bool:
            return tenancy.is_visible(tenant, session)

        actors = runtime_of(self.manager).actors
        live, running = count_live(actors, is_visible)
        limit = max(0, min(limit, MAX_SNAPSHOT_SESSIONS))
        return ServiceSnapshot(
            service=self.statistics() if tenant is None else None,
            live=live,
            running=running,
            sessions=tuple(live_stats(actors, limit, is_visible)),
        )
