"""The service: sessions of one manager for clients that come and go, over any transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from llmsession.errors import (
    KeyReused,
    Overloaded,
    SessionClosed,
    SessionError,
    SessionNotFound,
    StoreError,
)
from llmsession.session import LLMSession, SessionManager
from llmsession.session.core.session_log import default_logger
from llmsession.session.stats import SessionStats
from llmsession.session.values.config import load_config
from llmsession.store import SessionRow
from llmsession.transcripts import Conversation

from ..wire import messages as w
from . import tenancy
from .connection import Connection
from .limits import Limits, LoopLag, RateLimit
from .subscription import ServerSubscription

__all__ = [
    "Authenticator",
    "Credentials",
    "Observer",
    "Service",
    "ServiceFigures",
    "ServiceStatistics",
]

DETACH_IDLE_S = 60.0
"""How long a connection holds a session that it does not use."""
RETRY_AFTER_S = 1.0
"""The hint where nothing better is known: reaching a limit of what is open."""
LEAVE_S = 5.0
"""How long a connection may take to read what is left for it, when the service closes."""
LOGGED_CHARS = 200
"""Of what was wrong with a frame: it may quote the frame."""
_SUSPECT = (KeyReused, SessionNotFound)
"""What somebody meets who repeats others' commands, or asks for others' sessions."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Who somebody says to be: the token of the hello, and where the connection comes from."""

    token: str | None
    peer: str


class Authenticator(Protocol):
    """Decides who may connect. Called in the event loop: it must not block."""

    def authenticate(self, credentials: Credentials) -> str | None:
        """The tenant, which sees its own sessions only, or None for one that sees all.

        Raises Unauthenticated, with a text that tells nothing.
        """
        ...


class Observer(Protocol):
    """Is told of what was done, for metrics. Called in the event loop: it must not block."""

    def answered(self, kind: str, error: str | None) -> None:
        """A command of *kind* was answered, with the error's name if it failed."""
        ...


class ServiceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is now, and how often things happened so far."""

    connections: int
    sessions: int
    """In use by connections; one that two use counts twice."""
    subscriptions: int
    open_requests: int
    open_turns: int
    outgoing_bytes: int
    """What waits to be sent to clients."""
    loop_lag_s: float
    connected: int
    refused_connections: int
    protocol_errors: int
    commands: int
    overloaded: int
    lagged: int
    previews_lost: int


class ServiceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a service does now. ``service`` is None for a tenant, which sees its own sessions only:
    how many are ``live``, how many of them are ``running`` a turn, and figures of some."""

    service: ServiceStatistics | None
    live: int
    running: int
    sessions: tuple[SessionStats, ...]


class Service:
    """Answers what clients ask of the sessions of *manager*, which has to be entered.

    Use it as an async context manager, in asyncio. Transports ``connect`` their clients to it.
    Leaving it says goodbye to every client; no session is touched by that. *default_model* is
    told to clients, for those whose users name none.
    """

    name = "llmsession"

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
        self.default_model = default_model
        self.limits = limits or Limits()
        self.log = logger if logger is not None else default_logger()
        self._authenticator = authenticator
        self._observer = observer
        self._connections: set[Connection] = set()
        self._rates: dict[object, RateLimit] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lag = LoopLag(self._tick)
        self._open_turns = 0
        self._draining = False
        self._nobody = asyncio.Event()
        self._exporting = asyncio.Lock()
        self._swept_at = 0.0
        self._connected = self._refused = self._protocol_errors = 0
        self._commands = self._overloaded = self._lagged = self._previews_lost = 0

    async def __aenter__(self) -> Service:
        self._loop = asyncio.get_running_loop()
        self._lag.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # For transports.

    @property
    def is_guarded(self) -> bool:
        """Does it ask who somebody is?"""
        return self._authenticator is not None

    def connect(self, peer: str, wake: Callable[[], None], token: str | None = None) -> Connection:
        """A new client, which has yet to say hello; *token* counts where its hello has none.
        Raises Overloaded past the limit."""
        if len(self._connections) >= self.limits.connections:
            self._refused += 1
            raise Overloaded("too many connections", retry_after_s=RETRY_AFTER_S)
        connection = Connection(self, peer, wake, token)
        self._connections.add(connection)
        self._connected += 1
        self._nobody.clear()
        return connection

    # For whoever runs it.

    def revalidate_clients(self) -> int:
        """Those who may connect have changed: end the connections of who would not be let in any
        more, or only as another tenant, with ``Unauthenticated``. Their turns go on. Returns how
        many."""
        return sum(not connection.still_authorized() for connection in tuple(self._connections))

    async def drain(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """Take no new turns and sessions, and wait until the open turns have ended, at most
        *timeout_s*. Returns the sessions that still have one. Clients stay connected: they see
        their turns end. Commands that are refused are ``Overloaded``."""
        self._draining = True
        return await self.manager.drain(timeout_s)

    async def close(self, reason: str = "the service goes down") -> None:
        """Say goodbye to every client, let them read what is left for a moment, and detach them.
        What they asked goes on in the manager."""
        self._draining = True
        self._lag.stop()
        for connection in tuple(self._connections):
            connection.leave(reason, RETRY_AFTER_S)
        if self._connections:
            try:
                async with asyncio.timeout(LEAVE_S):
                    await self._nobody.wait()
            except TimeoutError:
                for connection in tuple(self._connections):
                    connection.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def statistics(self) -> ServiceStatistics:
        """Costs a walk over the connections and the live sessions."""
        connections = tuple(self._connections)
        return ServiceStatistics(
            connections=len(connections),
            sessions=sum(connection.sessions for connection in connections),
            subscriptions=sum(connection.subscriptions for connection in connections),
            open_requests=sum(connection.open_requests for connection in connections),
            open_turns=self.manager.open_turns,
            outgoing_bytes=sum(connection.outbox.bytes for connection in connections),
            loop_lag_s=self._lag.lag_s,
            connected=self._connected,
            refused_connections=self._refused,
            protocol_errors=self._protocol_errors,
            commands=self._commands,
            overloaded=self._overloaded,
            lagged=self._lagged,
            previews_lost=self._previews_lost
            + sum(connection.outbox.previews_lost for connection in connections),
        )

    def figures(self, tenant: str | None, limit: int = 100) -> ServiceFigures:
        """What *tenant* may see of what is done now, with at most *limit* live sessions, 1,000 at
        most. Costs ``statistics``, and a projection of the context of each of these."""

        def seen(session: str) -> bool:
            return tenancy.is_seen(tenant, session)

        live, running = self.manager.count_live(seen)
        shown = self.manager.live_stats(max(0, min(limit, 1000)), seen)
        return ServiceFigures(
            service=self.statistics() if tenant is None else None,
            live=live,
            running=running,
            sessions=tuple(shown),
        )

    # For connections.

    def now(self) -> float:
        """The event loop's time, in seconds."""
        return self._loop.time()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work*, which outlives the connection that it is for."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def authenticate(self, peer: str, token: str | None) -> str | None:
        """The tenant of a new client. Raises Unauthenticated."""
        if self._authenticator is None:
            return None
        return self._authenticator.authenticate(Credentials(token=token, peer=peer))

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self._connections.discard(connection)
        self._previews_lost += connection.outbox.previews_lost
        if not self._connections:
            self._nobody.set()

    def refused(self, connection: Connection, error: SessionError) -> None:
        """The connection ends because of *error*: one line in the log."""
        self._protocol_errors += 1
        self.log_refusal(connection.peer, error)

    def log_refusal(self, peer: str, error: SessionError) -> None:
        """One line in the log: *peer* was not let in, or was sent away."""
        name, why = type(error).__name__, str(error)[:LOGGED_CHARS]
        self.log.warning("connection.refused", peer=peer, error=name, why=why)

    def feed_ended(self, connection: Connection, feed: ServerSubscription) -> None:
        """A subscription is over."""
        self._lagged += feed.lagged

    def check(self, connection: Connection, command: w.Command) -> None:
        """Raises Overloaded where a limit is reached."""
        rate = self._rates.get(connection.client)
        if rate is None:
            rate = RateLimit(self.limits.commands_per_s, self._loop.time)
            self._rates[connection.client] = rate
        wait_s = rate.take()
        if wait_s is not None:
            raise Overloaded("too many commands a second", retry_after_s=wait_s)
        limit = self.limits.open_requests_per_connection
        if connection.open_requests > limit:
            told = f"{limit} commands wait for their answers"
            raise Overloaded(told, retry_after_s=RETRY_AFTER_S)
        if isinstance(command, w.Send | w.Create | w.Fork):
            self._check_admission(isinstance(command, w.Send))

    def _check_admission(self, is_turn: bool) -> None:
        if self._draining:
            raise Overloaded("the service goes down", retry_after_s=RETRY_AFTER_S)
        if self._lag.lag_s > self.limits.max_lag_s:
            late_s = self._lag.lag_s
            raise Overloaded(f"the service runs {late_s:.1f} s late", retry_after_s=2 * late_s)
        limit = self.limits.open_turns
        if is_turn and limit is not None:
            if self._open_turns >= limit:
                raise Overloaded(f"{limit} turns are open", retry_after_s=RETRY_AFTER_S)
            self._open_turns += 1

    def began(self, command: w.Command) -> None:
        """A command was read."""
        self._commands += 1

    def answered(
        self, connection: Connection, command: w.Command, error: SessionError | None
    ) -> None:
        """A command was answered."""
        self._overloaded += isinstance(error, Overloaded)
        if isinstance(error, _SUSPECT) and (connection.tenant or isinstance(error, KeyReused)):
            self._log_command("command.refused", connection, command, error)
        if self._observer is not None:
            kind = str(command.__struct_config__.tag)
            self._observer.answered(kind, type(error).__name__ if error else None)

    def told(self, error: Exception) -> SessionError:
        """*error* as a client is told: what is not one of ours is logged, and not told."""
        if isinstance(error, SessionError):
            return error
        self.log.error("command.crashed", exc_info=error)
        return SessionError("the service failed to perform the command; its log says why")

    def shown(
        self, connection: Connection, command: w.Command, error: SessionError
    ) -> SessionError:
        """*error* as the client is told of it; what its tenant must not see is in the log."""
        told = tenancy.told(connection.tenant, command, error)
        if told is not error and isinstance(error, StoreError):
            self._log_command("command.failed", connection, command, error, why=str(error))
        return told

    def _log_command(
        self,
        event: str,
        connection: Connection,
        command: w.Command,
        error: SessionError,
        **more: str,
    ) -> None:
        self.log.warning(
            event,
            peer=connection.peer,
            tenant=connection.tenant,
            command=str(command.__struct_config__.tag),
            error=type(error).__name__,
            **more,
        )

    def _tick(self) -> None:
        # Counted now and then: between, every send counts and no turn ends.
        self._open_turns = self.manager.open_turns
        now = self._loop.time()
        if now - self._swept_at >= DETACH_IDLE_S / 4:
            self._swept_at = now
            for connection in tuple(self._connections):
                connection.let_idle_go(now - DETACH_IDLE_S)
            clients = {connection.client for connection in self._connections}
            self._rates = {key: rate for key, rate in self._rates.items() if key in clients}

    # Commands about whole sessions.

    async def open(self, tenant: str | None, command: w.Open) -> LLMSession:
        """The handle of a session of *tenant*. Raises as ``SessionManager.open``."""
        await tenancy.check_tenant(self.manager, command.session, tenant)
        try:
            return await self.manager.open(
                command.session, takeover=command.takeover, recovery=command.recovery
            )
        except SessionClosed as error:
            if self._draining:
                raise Overloaded("the service goes down", retry_after_s=RETRY_AFTER_S) from error
            raise

    async def create(self, tenant: str | None, command: w.Create) -> LLMSession:
        """A new session of *tenant*. Raises as ``SessionManager.create``."""
        return await self.manager.create(
            load_config(command.config),
            session_id=command.session,
            labels=command.labels,
            seed=command.seed,
            tenant=tenant,
            command_id=command.command_id,
        )

    async def list(self, tenant: str | None, command: w.ListSessions) -> Sequence[SessionRow]:
        """The sessions that *tenant* may see. Raises as ``SessionManager.list``."""
        limit = max(1, min(command.limit, 1000))
        rows = await self.manager.list(after=command.after, limit=limit, search=command.search)
        return tenancy.listed(tenant, rows)

    async def row(self, tenant: str | None, session: str) -> SessionRow:
        """The row of a session of *tenant*. Raises as ``SessionManager.row``."""
        await tenancy.check_tenant(self.manager, session, tenant)
        return tenancy.seen(tenant, await self.manager.row(session))

    async def export(self, tenant: str | None, session: str) -> Conversation:
        """What the log of a session of *tenant* knows beside its messages. It reads it all, so
        they wait for each other. Raises as ``SessionManager.export_conversation``."""
        await tenancy.check_tenant(self.manager, session, tenant)
        async with self._exporting:
            whole = await self.manager.export_conversation(session)
        return msgspec.structs.replace(whole, messages=())

    async def delete(self, tenant: str | None, session: str) -> None:
        """Delete a session of *tenant*. Raises as ``SessionManager.delete``."""
        await tenancy.check_tenant(self.manager, session, tenant)
        await self.manager.delete(session)
