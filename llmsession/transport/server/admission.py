"""What all connections of a service share: authentication, limits, the log, and the commands on
whole sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from llmsession.errors import (
    KeyReused,
    Overloaded,
    SessionClosed,
    SessionError,
    SessionInUse,
    SessionMoved,
    SessionNotFound,
    StoreError,
)
from llmsession.session import LLMSession, SessionManager
from llmsession.session.core.session_log import default_logger
from llmsession.session.operations.search import SearchPage
from llmsession.session.values.config import load_config
from llmsession.session.values.labels import namespace_of
from llmsession.store import SessionRow
from llmsession.transcripts import Conversation

from ..wire import messages as w
from ..wire.errors import to_wire
from ..wire.framing import command_in, encode
from . import tenancy
from .access import Authenticator, Credentials
from .intake import IncomingBytes, PendingHellos, ReadingTurns
from .limits import (
    GOING_DOWN,
    RETRY_AFTER_S,
    Limits,
    LoopLag,
    RateLimit,
    check_limit,
    late_hint_s,
    rate_of_host,
)
from .refusals import RefusalLog

__all__ = ["Admission", "Client", "Observer", "Router"]

MAX_LOGGED_CHARS = 200
"""How much of an error's text is logged. The text may quote the client's frame."""
TOO_MANY = "too many commands a second"
_SUSPECT = (KeyReused, SessionNotFound)
"""Errors that hint at a client that replays commands of others or probes for their sessions."""


class Observer(Protocol):
    """Counts commands, for metrics. It is called in the event loop and must not block."""

    def answered(self, kind: str, error: str | None) -> None:
        """A command of *kind* was answered. *error* is the error's name if it failed."""


class Router(Protocol):
    """Says which host of a cluster serves a session: see ``cluster.routing``."""

    async def check(self, session: str, *, is_sent_here: bool) -> None:
        """Raises SessionInUse or SessionMoved, with the address of the host that serves *session*,
        if that is another one. *is_sent_here*: another host sent the client here. Raises as
        ``Store.row``, too."""

    async def located(self, session: str, error: SessionError) -> SessionError:
        """*error*, a SessionInUse or SessionMoved without an address, with the address of the host
        that serves *session*, if that is known."""

    @property
    def hosts_up(self) -> int:
        """How many hosts are given sessions now."""

    def statistics(self) -> w.ClusterStatistics:
        """What this host knows of the cluster now."""


class Client(Protocol):
    """The part of a connection that admission needs."""

    peer: str
    tenant: str | None
    open_requests: int

    @property
    def rate_key(self) -> object:
        """The key that rates and incoming bytes are counted by."""

    def slow_down(self, pause_s: float) -> None:
        """Read no frame for the next *pause_s* seconds."""


class Admission:
    """Admits or refuses clients and commands. It does not know the connections: they call it, and
    the service owns both.

    The methods for commands on whole sessions take the tenant and the command. They raise the
    errors of the manager's method of the same name, and SessionNotFound for a session of another
    tenant.
    """

    server_name = "llmsession"

    def __init__(
        self,
        manager: SessionManager,
        *,
        authenticator: Authenticator | None,
        limits: Limits,
        observer: Observer | None,
        logger: Any | None,
        default_model: str | None,
    ) -> None:
        self.manager = manager
        self.limits = limits
        self.default_model = default_model
        self.log = logger if logger is not None else default_logger()
        self.lag = LoopLag(self._tick)
        self.draining = False
        """Whether new turns and sessions are refused because the service is shutting down."""
        self.protocol_errors = self.commands = self.overloaded = self.lagged = 0
        self.authenticator = authenticator
        self.router: Router | None = None
        """Where sessions are served by several hosts."""
        self._observer = observer
        self._on_tick: Callable[[], None]
        self._loop: asyncio.AbstractEventLoop
        self._rates: dict[object, RateLimit] = {}
        self._hosts = 1
        """How many hosts share the rates of tenants."""
        error = to_wire(Overloaded(TOO_MANY, retry_after_s=1 / (limits.commands_per_s or 1)), id=0)
        self._too_many = encode(error).split(b'"id":0', 1)
        """The encoded refusal of a command beyond the rate, split at its id. It is encoded once, so
        that refusing a flood of commands is cheap."""
        self._too_many[0] += b'"id":'
        self.incoming = IncomingBytes(limits.incoming_bytes, limits.incoming_bytes_per_client)
        self.turns = ReadingTurns()
        self.pending_hellos = PendingHellos(
            limits.connections, limits.connections_before_hello, time.monotonic
        )
        self._refusals = RefusalLog(self.log, time.monotonic)
        self._tasks: set[asyncio.Task[None]] = set()
        self._open_turns = 0
        """Those that were open at the last tick, and all that were sent since: which of these have
        begun or ended is not known yet, so the limit may be reached early."""
        self._exporting = asyncio.Lock()

    def begin(self, on_tick: Callable[[], None]) -> None:
        """Begin to measure the running event loop. *on_tick* is called several times a second."""
        self._loop = asyncio.get_running_loop()
        self._on_tick = on_tick
        self.lag.start()

    async def close(self) -> None:
        """Cancel the tasks that are still running."""
        self._refusals.tick(is_last=True)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work* in a task that outlives the connection that it is for."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def now(self) -> float:
        """The event loop's time, in seconds."""
        return self._loop.time()

    def _tick(self) -> None:
        self._open_turns = self.manager.open_turns
        self._refusals.tick()
        self._share_rates()
        self._on_tick()

    def _share_rates(self) -> None:
        hosts = 1 if self.router is None else max(1, self.router.hosts_up)
        if hosts != self._hosts:
            self._hosts = hosts
            for key, rate in self._rates.items():
                rate.set_rate(self._rate_of(key))

    def _rate_of(self, key: object) -> float | None:
        """The rate of a tenant, which several hosts share, or of a connection."""
        return rate_of_host(self.limits.commands_per_s, self._hosts if isinstance(key, str) else 1)

    # Authentication.

    @property
    def is_guarded(self) -> bool:
        """Whether clients have to authenticate."""
        return self.authenticator is not None

    def authenticate(self, peer: str, token: str | None) -> str | None:
        """The tenant of a client, or None if it may see all sessions. Raises Unauthenticated."""
        if self.authenticator is None:
            return None
        return self.authenticator.authenticate(Credentials(token=token, peer=peer))

    def refused(self, peer: str, error: SessionError) -> None:
        """Count and log a connection that ends because of *error*."""
        self.protocol_errors += 1
        self.log_refusal(peer, error)

    def log_refusal(self, peer: str, error: SessionError) -> None:
        """Log that *peer* was refused or disconnected. Many refusals of one peer in a second are
        counted in one line."""
        name, why = type(error).__name__, str(error)[:MAX_LOGGED_CHARS]
        self._refusals.add("connection.refused", peer, name, why=why)

    # Limits.

    def count_frame(self, client: Client) -> float | None:
        """Count a frame of *client*. Returns None if it is within the rate. Else the client is
        slowed down, and the seconds until the rate allows one more frame are returned."""
        key = client.rate_key
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = RateLimit(self._rate_of(key), self._loop.time)
        wait_s = rate.take()
        if wait_s is not None:
            client.slow_down(rate.exceed())
        return wait_s

    def refuse(self, client: Client, frame: bytes) -> bytes | None:
        """The refusal of the command in *frame* if *client* is beyond its rate; None if the frame
        must be decoded. Only the command's type and id are read, so that refusing is cheaper than
        carrying out."""
        rate = self._rates.get(client.rate_key)
        command = command_in(frame) if rate is not None and rate.is_dry else None
        if rate is None or command is None:
            return None
        kind, id = command
        client.slow_down(rate.exceed())
        self.commands += 1
        self.overloaded += 1
        if self._observer is not None:
            self._observer.answered(kind, Overloaded.__name__)
        before, after = self._too_many
        return b"%b%d%b" % (before, id, after)

    def check(self, client: Client, command: w.Command[Any]) -> None:
        """Raises Overloaded if a limit is reached."""
        wait_s = self.count_frame(client)
        if wait_s is not None:
            raise Overloaded(TOO_MANY, retry_after_s=wait_s)
        limit = self.limits.open_requests_per_connection
        # The command itself is counted already.
        check_limit(client.open_requests - 1, limit, "commands wait for their answers")
        if isinstance(command, w.Send | w.Create | w.Fork):
            self._check_new_work(is_turn=isinstance(command, w.Send))

    def _check_new_work(self, *, is_turn: bool) -> None:
        if self.draining:
            raise Overloaded(GOING_DOWN, retry_after_s=RETRY_AFTER_S)
        lag_s = self.lag.lag_s
        if lag_s > self.limits.max_lag_s:
            raise Overloaded(
                f"the service runs {lag_s:.1f} s late", retry_after_s=late_hint_s(lag_s)
            )
        limit = self.limits.open_turns
        if is_turn and limit is not None:
            if self._open_turns >= limit:
                raise Overloaded(f"{limit} turns are open", retry_after_s=RETRY_AFTER_S)
            self._open_turns += 1

    def drop_rates(self, connected: Collection[object]) -> None:
        """Forget the rates of clients that are not connected. *connected* are rate keys."""
        self._rates = {key: rate for key, rate in self._rates.items() if key in connected}

    # Answers.

    def answered(self, client: Client, command: w.Command[Any], error: SessionError | None) -> None:
        """Count and, if it is suspicious, log an answered command."""
        self.overloaded += isinstance(error, Overloaded)
        if isinstance(error, _SUSPECT) and (client.tenant or isinstance(error, KeyReused)):
            self._log_command("command.refused", client, command, error)
        if self._observer is not None:
            kind = w.tag_of(type(command))
            self._observer.answered(kind, type(error).__name__ if error else None)

    def public_error(self, error: Exception) -> SessionError:
        """*error* as any client may see it. An error that is not a SessionError is logged, and
        replaced by one that does not quote it.

        It has no traceback, because the frames of one hold the session's handle, and mostly this
        error, too: that cycle would keep the session in memory until the next garbage collection.
        """
        if isinstance(error, SessionError):
            return error.with_traceback(None)
        self.log.error("command.crashed", exc_info=error)
        return SessionError("the service failed to perform the command; its log says why")

    def visible_error(
        self, client: Client, command: w.Command[Any], error: SessionError
    ) -> SessionError:
        """*error* as *client* may see it. What is hidden from a tenant is written to the log."""
        visible = tenancy.visible_error(client.tenant, command, error)
        if visible is not error and isinstance(error, StoreError):
            self._log_command("command.failed", client, command, error, why=str(error))
        return visible

    async def located(self, command: w.Command[Any], error: SessionError) -> SessionError:
        """*error* with the address of the host that serves the session of *command*, if there is a
        cluster and the error is about that."""
        if (
            self.router is None
            or not isinstance(error, SessionInUse | SessionMoved)
            or error.address is not None
        ):
            return error
        session = getattr(command, "session", None)
        return error if session is None else await self.router.located(session, error)

    def _log_command(
        self,
        event: str,
        client: Client,
        command: w.Command[Any],
        error: SessionError,
        **fields: str,
    ) -> None:
        self._refusals.add(
            event,
            client.peer,
            type(error).__name__,
            tenant=client.tenant,
            command=w.tag_of(type(command)),
            **fields,
        )

    def hosts_for(self, tenant: str | None) -> w.ClusterHosts | None:
        """The hosts of the cluster, for a client of *tenant*. None without a cluster."""
        if self.router is None:
            return None
        now = self.router.statistics()
        namespace = "" if tenant is None else namespace_of(tenant)
        return w.ClusterHosts(view=now.view, hosts=now.hosts, namespace=namespace)

    # Commands on whole sessions.

    async def open(self, tenant: str | None, command: w.Open) -> LLMSession:
        """Open a session and return its handle."""
        await tenancy.check_tenant(self.manager, command.session, tenant)
        if self.router is not None:
            is_sent_here = command.here or command.takeover
            await self.router.check(command.session, is_sent_here=is_sent_here)
        try:
            return await self.manager.open(
                command.session,
                takeover=command.takeover,
                recovery=command.recovery,
                unbound="warn",
            )
        except SessionClosed as error:
            if self.draining:
                raise Overloaded(GOING_DOWN, retry_after_s=RETRY_AFTER_S) from error
            raise

    async def create(self, tenant: str | None, command: w.Create) -> LLMSession:
        """Create a session."""
        return await self.manager.create(
            load_config(command.config),
            session_id=command.session,
            labels=command.labels,
            seed=command.seed,
            tenant=tenant,
            command_id=command.command_id,
        )

    async def list(self, tenant: str | None, command: w.ListSessions) -> Sequence[SessionRow]:
        """List the sessions that the tenant may see."""
        rows = await self.manager.list(
            after=command.after,
            limit=command.limit,
            filter=command.filter,
            archived=command.archived,
            titles=command.titles,
        )
        return tenancy.visible_rows(tenant, rows)

    async def search(self, tenant: str | None, command: w.SearchSessions) -> SearchPage:
        """Search the sessions that the tenant may see. A search may read whole logs, so only one
        search or export runs at a time."""
        async with self._exporting:
            page = await self.manager.search(
                command.query, after=command.after, limit=command.limit, filter=command.filter
            )
        return tenancy.visible_page(tenant, page)

    async def row(self, tenant: str | None, command: w.Row) -> SessionRow:
        """The row of a session."""
        await tenancy.check_tenant(self.manager, command.session, tenant)
        row = await self.manager.row(command.session, titles=command.titles)
        return tenancy.visible_row(tenant, row)

    async def export(self, tenant: str | None, command: w.Export) -> Conversation:
        """Export a session without its messages. An export reads the whole log, so only one search
        or export runs at a time."""
        await tenancy.check_tenant(self.manager, command.session, tenant)
        async with self._exporting:
            conversation = await self.manager.export_conversation(command.session)
        return msgspec.structs.replace(conversation, messages=())

    async def delete(self, tenant: str | None, command: w.Delete) -> None:
        """Delete a session."""
        await tenancy.check_tenant(self.manager, command.session, tenant)
        await self.manager.delete(command.session)
