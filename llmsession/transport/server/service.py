"""The service: makes the sessions of one manager available to clients over any transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from llmsession.errors import InvalidInput, Overloaded
from llmsession.session import SessionManager
from llmsession.session.manager import runtime_of
from llmsession.session.stats import count_live, live_stats

from ..wire.messages import ClusterStatistics, ServiceSnapshot, ServiceStatistics
from . import tenancy
from .access import Authenticator
from .admission import Admission, Observer
from .connection import Connection
from .intake import PendingHello
from .limits import GOING_DOWN, RETRY_AFTER_S, Limits

__all__ = ["Service"]

DETACH_IDLE_S = 60.0
"""After how many seconds a connection stops using a session that it does not use."""
LEAVE_S = 5.0
"""How many seconds clients have to read what is left when the service closes."""
MAX_SNAPSHOT_SESSIONS = 1000


class Service:
    """Serves the sessions of *manager*, which must be entered.

    Use it as an async context manager, on asyncio. Transports ``connect`` their clients to it.
    Leaving the context sends every client a goodbye; it closes no session. *default_model* is sent
    to clients for users who name no model. *limits* default to ``Limits()``. Without an
    *authenticator* every client may use all sessions.
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
        self._room_makers: list[Callable[[], None]] = []
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
        """Raises InvalidInput if the service is not entered, because it could not answer."""
        if not self._entered:
            raise InvalidInput("enter the Service first: async with Service(...) as service")

    def connect(self, peer: str, wake: Callable[[], None], token: str | None = None) -> Connection:
        """Add a client, which has not sent its hello yet. *token* is used if the hello has none.

        Raises Overloaded if the limit of connections is reached, or the limit of connections of
        *peer* without a hello. Raises InvalidInput if the service is not entered."""
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

    def when_full(self, make_room: Callable[[], None]) -> None:
        """Call *make_room* before a client is refused because the limit of connections is reached.
        It closes connections that nobody uses."""
        self._room_makers.append(make_room)

    def count_refused(self) -> None:
        """Count a connection that a transport closed at once, because too many are still ending."""
        self._refused += 1

    def _check_room(self) -> None:
        """Raises Overloaded if no further client can be admitted."""
        limit = self.admission.limits.connections
        if len(self._welcomed) >= limit:
            for make_room in self._room_makers:
                make_room()
        if len(self._welcomed) >= limit:
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

    # Called by the owner of the service.

    def revalidate_clients(self) -> int:
        """Authenticate every client again, after tokens have changed. Clients whose token was
        revoked, or now belongs to another tenant, are disconnected with ``Unauthenticated``. Their
        turns continue. Returns how many clients were disconnected."""
        return sum(not connection.still_authorized() for connection in tuple(self._connections))

    async def drain(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """Refuse new turns and sessions, and wait at most *timeout_s* seconds until the open turns
        have ended. Returns the ids of sessions that still have an open turn. Clients stay connected
        and see their turns end. Refused commands are answered ``Overloaded``."""
        self.admission.draining = True
        return await self.manager.drain(timeout_s)

    async def close(self, reason: str = GOING_DOWN) -> None:
        """Send every client a goodbye, give it ``LEAVE_S`` seconds to read what is left, and detach
        it. Commands that were already accepted are still carried out by the manager."""
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
        """Counters of the service. Takes time in proportion to the connections and sessions in
        memory."""
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
        """What the service does now, as far as *tenant* may see it, with at most *limit* sessions
        in memory (at most 1,000). Costs as much as ``statistics``, and a projection of the context
        of each of these sessions."""

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
            cluster=self.cluster if tenant is None else None,
        )

    @property
    def cluster(self) -> ClusterStatistics | None:
        """What this service knows of the cluster that it is a host of. None: it is of none."""
        router = self.admission.router
        return None if router is None else router.statistics()
