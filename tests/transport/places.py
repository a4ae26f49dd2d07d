"""Where the contract is tried: embedded, and at a service over each transport.

``PLACES`` names them; a transport that is added is added there, and the whole suite runs on it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from llmsession import (
    Event,
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
        self.service: Service | None = None
        self.connect: Callable[[], AbstractAsyncContextManager[ManagerInterface]]
        """Another client of the same sessions."""

    async def session(self, **config: Any) -> SessionInterface:
        config.setdefault("model", "m")
        return await self.sessions.create(SessionConfig(**config), session_id="s")


@asynccontextmanager
async def _itself(manager: SessionManager) -> AsyncIterator[ManagerInterface]:
    yield manager


@asynccontextmanager
async def embedded(
    manager: SessionManager, limits: Limits, overloaded_s: float
) -> AsyncIterator[Any]:
    yield None, lambda: _itself(manager)


@asynccontextmanager
async def unix(manager: SessionManager, limits: Limits, overloaded_s: float) -> AsyncIterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/s.sock"
        async with Service(manager, limits=limits) as service, SocketServer(service, address):
            yield (
                service,
                lambda: connect(address, patience_s=PATIENCE_S, overloaded_s=overloaded_s),
            )


@asynccontextmanager
async def tcp(manager: SessionManager, limits: Limits, overloaded_s: float) -> AsyncIterator[Any]:
    async with (
        Service(manager, limits=limits) as service,
        SocketServer(service, "tcp://127.0.0.1:0") as server,
    ):
        yield (
            service,
            lambda: connect(server.address, patience_s=PATIENCE_S, overloaded_s=overloaded_s),
        )


@asynccontextmanager
async def grpc(manager: SessionManager, limits: Limits, overloaded_s: float) -> AsyncIterator[Any]:
    async with (
        Service(manager, limits=limits) as service,
        GrpcServer(service, "grpc://127.0.0.1:0") as server,
    ):
        yield (
            service,
            lambda: connect(server.address, patience_s=PATIENCE_S, overloaded_s=overloaded_s),
        )


PLACES: dict[str, Callable[[SessionManager, Limits, float], AbstractAsyncContextManager[Any]]] = {
    "embedded": embedded,
    "unix": unix,
    "tcp": tcp,
    "grpc": grpc,
}


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
        PLACES[kind](held, limits or Limits(), overloaded_s) as (service, connecting),
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
    while not condition():  # noqa: ASYNC110  # what is waited for tells nobody
        await asyncio.sleep(0.002)
