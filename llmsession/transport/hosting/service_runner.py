"""A complete service, as ``llmsession serve`` runs it, from its configuration to its shutdown.

On SIGTERM or SIGINT it accepts no new turns, and open turns have ``grace_s`` seconds to end. Then
every client is sent a goodbye. A turn that is still open stays in the log, and the next service
recovers it. A second signal ends the program at once, without losing a durable record.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from llmsession.errors import InvalidConfig, SessionError, need_package
from llmsession.session import Closed, SessionManager, SessionObserver, load_prices
from llmsession.session.core.session_log import default_logger
from llmsession.session.unfinished import keep_recovering
from llmsession.store import Store, open_store
from llmsession.store.caller import tell_asyncio

from ..server.access import TokenFile
from ..server.service import Service
from ..server.socket_server import SocketServer
from ..wire.tls import ServerTls
from .config import ServerConfig, host_and_port
from .health import Answer, HealthServer, readiness
from .providers import default_model, make_providers
from .systemd import notify

if TYPE_CHECKING:
    from ..grpc.server import GrpcServer
    from .metrics import Metrics

__all__ = ["HostOfCluster", "JoinCluster", "ServiceRunner", "run_service"]

CLUSTER_READERS = 3
"""Connections for reading of a host of a cluster: the directory has one, and a host 7 in all."""

NO_METRICS = b"no metrics: pip install 'llmsession[metrics]'\n"


class HostOfCluster(Protocol):
    """The service as a host of a cluster."""

    async def recover(self, at_once: int) -> None:
        """Recover the open turns that hosts leave which are gone, now and from now on; *at_once*
        sessions at a time."""

    async def hand_over_all(self, timeout_s: float) -> None:
        """Hand the live sessions over to other hosts."""


JoinCluster: TypeAlias = Callable[
    [SessionManager, Service, Sequence[str]], AbstractAsyncContextManager[HostOfCluster]
]
"""Joins a cluster, with the addresses that the service listens at, until it is left."""


class ServiceRunner:
    """The service that *config* describes. The constructor reads files, so call it outside of event
    loops. *join_cluster* joins the cluster that *config* names.

    *environ* contains the providers' keys. *store_key* is the key of an encrypted store. Raises
    InvalidConfig for a configuration that cannot work, before anything is opened.
    """

    def __init__(
        self,
        config: ServerConfig,
        environ: Mapping[str, str],
        *,
        store_key: bytes | str | None = None,
        logger: Any | None = None,
        join_cluster: JoinCluster | None = None,
    ) -> None:
        self._join_cluster = join_cluster
        self._config = config
        self._environ = environ
        self._log = logger if logger is not None else default_logger()
        tls = config.tls
        self._tls: ServerTls | None = None
        if tls is not None:
            self._tls = ServerTls(tls.certificate, tls.key, client_ca=tls.client_ca)
        self._tokens = TokenFile(config.tokens) if config.tokens is not None else None
        self._metrics = _metrics() if config.health is not None else None
        observers: list[SessionObserver] = [self._metrics] if self._metrics else []
        if config.tracing:
            need_package("opentelemetry", "tracing", "llmsession[tracing]")
            from .tracing import Tracing

            observers.append(Tracing())
        provider, summariser = make_providers(config, environ, self._log)
        self._manager = SessionManager(
            provider=provider,
            summariser=summariser,
            store=_store_of(config, store_key),
            idle_s=config.idle_s,
            logger=logger,
            prices=load_prices(config.prices) if config.prices is not None else None,
            tenant_budgets=config.tenants,
            environ=environ,
            observers=observers,
            retention=config.retention.rules(),
            retention_every_s=config.retention.every_s,
        )
        self._service = Service(
            self._manager,
            authenticator=self._tokens,
            limits=config.limits,
            observer=self._metrics,
            logger=logger,
            default_model=default_model(config, environ),
        )
        self._grpc: GrpcServer | None = None
        self._state = "starting"

    async def run(self, stop: asyncio.Event, ready: Callable[[Sequence[str]], None]) -> None:
        """Serve until *stop* is set, then drain. *ready* is called with the addresses, which have
        the actual ports. Raises InvalidInput, InvalidConfig or StoreError if it cannot start."""
        released: tuple[Closed, ...] | None = None
        try:
            async with self._manager:
                # Read the store before clients can connect, so that a broken one fails the start.
                await self._manager.list(limit=1)
                try:
                    await self._serve(stop, ready)
                    # Every client has been sent a goodbye, so subscribers reconnect later. Without
                    # the goodbye they would see their sessions end.
                finally:
                    released = await self._manager.release()
        finally:
            # Logged after the manager has ended, so that errors of its end are logged before.
            if released is not None:
                self._log.info("service.stopped", sessions=len(released))

    async def _serve(self, stop: asyncio.Event, ready: Callable[[Sequence[str]], None]) -> None:
        async with (
            self._service,
            self._listening() as addresses,
            self._joined(addresses) as host,
        ):
            self._state = "ready"
            self._log.info("service.started", addresses=list(addresses))
            ready(addresses)
            recovering = asyncio.create_task(self._recover(host))
            try:
                await stop.wait()
            finally:
                recovering.cancel()
                await asyncio.gather(recovering, return_exceptions=True)
            if host is not None:
                self._state = "draining"
                await host.hand_over_all(self._config.grace_s)
            await self._drain()

    @asynccontextmanager
    async def _joined(self, addresses: Sequence[str]) -> AsyncIterator[HostOfCluster | None]:
        if self._join_cluster is None:
            yield None
            return
        async with self._join_cluster(self._manager, self._service, addresses) as host:
            yield host

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[tuple[str, ...]]:
        config, insecure = self._config, self._config.insecure
        async with AsyncExitStack() as stack:
            addresses: list[str] = []
            for address in config.listens_at():
                tls = None if address.startswith("unix:") else self._tls
                socket = SocketServer(self._service, address, tls=tls, insecure=insecure)
                addresses.append((await stack.enter_async_context(socket)).address)
            if config.grpc is not None:
                from ..grpc.server import GrpcServer

                where = str(host_and_port("grpc", config.grpc))
                grpc = GrpcServer(self._service, where, tls=self._tls, insecure=insecure)
                self._grpc = await stack.enter_async_context(grpc)
                addresses.append(self._grpc.address)
            if config.health is not None:
                health = self._health(config.health)
                addresses.append((await stack.enter_async_context(health)).address)
            yield tuple(addresses)

    def _health(self, place: str) -> HealthServer:
        address = host_and_port("health", place)
        if not self._config.insecure and not address.is_local:
            raise InvalidConfig(
                f"health: other machines can reach {place}, which needs no token; set insecure if"
                " something else protects it"
            )
        if self._metrics is not None:
            self._metrics.watch(
                self._service.statistics,
                lambda: len(self._manager.live),
                lambda: self._service.cluster,
            )
        return HealthServer(
            address, {"/livez": self._live, "/readyz": self._ready, "/metrics": self._measured}
        )

    def _live(self) -> Answer:
        return 200, "text/plain", b"alive\n"

    def _ready(self) -> Answer:
        state, cluster = self._state, self._service.cluster
        if state == "ready":
            is_late = self._service.statistics().loop_lag_s > self._config.limits.max_lag_s
            state = readiness(is_late=is_late, cluster=cluster)
        status = 200 if state == "ready" else 503
        line = state if cluster is None else f"{state}: host {cluster.host}"
        return status, "text/plain", f"{line}\n".encode()

    def _measured(self) -> Answer:
        if self._metrics is None:
            return 404, "text/plain", NO_METRICS
        if self._join_cluster is not None and self._service.cluster is None:
            # Without the host's name these would be other time series than those that follow.
            return 503, "text/plain", b"starting\n"
        return self._metrics.page()

    async def _recover(self, host: HostOfCluster | None) -> None:
        """Recover the turns that an earlier service left open: those that *host* is to serve.
        Clients may wait for their outcomes. Later those, too, that an outage of the store left."""
        at_once = self._config.recover_at_once
        if not at_once:
            return
        if host is not None:
            await host.recover(at_once)
        else:
            await keep_recovering(self._manager, at_once=at_once, log=self._log)

    async def _drain(self) -> None:
        self._state = "draining"
        grace_s = self._config.grace_s
        self._log.info("service.draining", open_turns=self._manager.open_turns, grace_s=grace_s)
        if self._grpc is not None:
            await self._grpc.tell_draining()
        left = await self._service.drain(grace_s)
        if left:
            self._log.warning("service.left_open", sessions=len(left))

    async def reload(self) -> None:
        """Read the tokens and the certificates again. Invalid files change nothing. Clients whose
        token was revoked are disconnected."""
        if self._tokens is not None:
            try:
                count = await asyncio.to_thread(self._tokens.reload)
            except SessionError as error:
                self._log.error("tokens.not_reloaded", error=str(error))
            else:
                disconnected = self._service.revalidate_clients()
                self._log.info("tokens.reloaded", tokens=count, disconnected=disconnected)
        if self._tls is not None:
            try:
                await asyncio.to_thread(self._tls.reload)
            except SessionError as error:
                self._log.error("tls.not_reloaded", error=str(error))
            else:
                self._log.info("tls.reloaded")


def _store_of(config: ServerConfig, key: bytes | str | None) -> Store:
    if config.cluster is None:
        return open_store(config.store, key=key)
    from llmsession.store.postgres.store import PostgresStore

    return PostgresStore(config.store, key=key, readers=CLUSTER_READERS)


def _metrics() -> Metrics | None:
    try:
        from .metrics import Metrics
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        return None
    return Metrics()


def run_service(
    service_runner: ServiceRunner,
    environ: Mapping[str, str],
    ready: Callable[[Sequence[str]], None],
) -> None:
    """Run *service_runner* in a new event loop, in the main thread, until a signal ends it. The
    loop is uvloop's if uvloop is installed. Raises the errors of ``ServiceRunner.run``."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run_until_signal(service_runner, environ, ready))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


async def _run_until_signal(
    service_runner: ServiceRunner,
    environ: Mapping[str, str],
    ready: Callable[[Sequence[str]], None],
) -> None:
    tell_asyncio()  # all tasks of the service run in copies of this context
    loop = asyncio.get_running_loop()
    stop, stale = asyncio.Event(), asyncio.Event()
    endings = (signal.SIGTERM, signal.SIGINT)

    def end() -> None:
        notify(environ, "STOPPING=1")
        for signal_number in endings:  # a second signal kills the program
            loop.remove_signal_handler(signal_number)
            signal.signal(signal_number, signal.SIG_DFL)
        stop.set()

    async def reload() -> None:
        # Reloads run one after the other. If two overlapped, the older one could finish last and
        # bring revoked tokens back. A signal during a reload triggers one more reload.
        while True:
            await stale.wait()
            stale.clear()
            notify(environ, "RELOADING=1")
            await asyncio.wait({loop.create_task(service_runner.reload())})
            notify(environ, "READY=1")

    for signal_number in endings:
        loop.add_signal_handler(signal_number, end)
    loop.add_signal_handler(signal.SIGHUP, stale.set)

    def started(addresses: Sequence[str]) -> None:
        notify(environ, "READY=1")
        ready(addresses)

    reloading = loop.create_task(reload())
    try:
        await service_runner.run(stop, started)
    finally:
        reloading.cancel()
