"""Where the contract is tried: embedded, and at a service over each transport.

``PLACES`` names them; a transport that is added is added there, and the whole suite runs on it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llmsession import (
    Event,
    Provider,
    SessionConfig,
    SessionManager,
    Store,
    connect,
)
from llmsession.store import MemoryStore
from llmsession.testing.scripted import Script, ScriptedProvider
from llmsession.transport import (
    GrpcServer,
    Limits,
    ManagerInterface,
    Service,
    SessionInterface,
    SocketServer,
)

PATIENCE_S = 100.0
T = TypeVar("T")
CONFIG = SessionConfig(model="m")


class Place:
    """A manager that is used through *sessions*, which is itself or a client of its service."""

    def __init__(
        self, manager: SessionManager, provider: ScriptedProvider, sessions: ManagerInterface
    ) -> None:
        self.manager = manager
        self.provider = provider
        self.sessions = sessions
        self.service: Service
        """That of a place that has one."""
        self.connect: Callable[[], AbstractAsyncContextManager[ManagerInterface]]
        """Another client of the same sessions."""

    async def session(self, **config: Any) -> SessionInterface:
        config.setdefault("model", "m")
        return await self.sessions.create(SessionConfig(**config), session_id="s")


class Served(msgspec.Struct):
    """A manager, its service, and the server that listens at *address*."""

    manager: SessionManager
    service: Service
    server: Any
    address: str


def server_at(service: Service, address: str, tls: Any = None) -> Any:
    """The server for *address*: of gRPC or of sockets."""
    server: Any = GrpcServer if address.startswith("grpc:") else SocketServer
    return server(service, address, tls=tls)


def address_of(kind: str, folder: Path | str) -> str:
    """Where a server of *kind* is to listen: at a socket in *folder*, or at any free port."""
    return f"unix:{folder}/s.sock" if kind == "unix" else f"{kind}://127.0.0.1:0"


@asynccontextmanager
async def serving(
    address: str,
    script: Script = (),
    *,
    provider: Provider | None = None,
    store: Store | None = None,
    tls: Any = None,
    **service: Any,
) -> AsyncIterator[Served]:
    """A service at *address* whose provider plays *script*; *service* are its options. Everything
    is closed at the end."""
    async with (
        asyncio.timeout(150),
        SessionManager(
            provider=provider or ScriptedProvider(script), store=store or MemoryStore()
        ) as manager,
        Service(manager, **service) as served,
        server_at(served, address, tls) as server,
    ):
        yield Served(manager, served, server, server.address)


@asynccontextmanager
async def unserved() -> AsyncIterator[Service]:
    """A service that nothing listens for yet."""
    async with (
        SessionManager(provider=ScriptedProvider([])) as manager,
        Service(manager) as service,
    ):
        yield service


@asynccontextmanager
async def _itself(manager: SessionManager) -> AsyncIterator[ManagerInterface]:
    yield manager


@asynccontextmanager
async def _offered(
    kind: str, manager: SessionManager, limits: Limits, overloaded_s: float
) -> AsyncIterator[tuple[Any, Callable[[], AbstractAsyncContextManager[ManagerInterface]]]]:
    """The service of *manager* on a transport of *kind*, and how to connect to it."""
    if kind == "embedded":
        yield None, lambda: _itself(manager)
        return
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Service(manager, limits=limits) as service,
            server_at(service, address_of(kind, folder)) as server,
        ):
            yield (
                service,
                lambda: connect(server.address, patience_s=PATIENCE_S, overloaded_s=overloaded_s),
            )


PLACES = ("embedded", "unix", "tcp", "grpc")


@asynccontextmanager
async def place_at(
    kind: str,
    script: Script = (),
    *,
    store: Store | None = None,
    limits: Limits | None = None,
    overloaded_s: float = PATIENCE_S,
    **manager: Any,
) -> AsyncIterator[Place]:
    """A place of *kind* whose provider plays *script*. Everything is closed at the end. Where
    *overloaded_s* is 0 its clients raise Overloaded at once."""
    provider = ScriptedProvider(script)
    kept: Store = store if store is not None else MemoryStore()
    async with (
        asyncio.timeout(PATIENCE_S),
        SessionManager(provider=provider, store=kept, **manager) as held,
        _offered(kind, held, limits or Limits(), overloaded_s) as (service, connecting),
        connecting() as sessions,
    ):
        place = Place(held, provider, sessions)
        place.service = service
        place.connect = connecting
        yield place
    assert provider.open_streams == 0


async def first(events: AsyncIterable[Event], kind: type[T]) -> T:
    """The next event of *kind*; the iteration ends there."""
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"the events ended without a {kind.__name__}")


async def until(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds; a real event loop is asked again and again."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.002)
