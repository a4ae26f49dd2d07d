"""The service that a command works with, in place of a store of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import anyio
import msgspec
import typer

from llmsession.errors import InvalidInput
from llmsession.transport.wire.secret_files import read_secret

from .options import option
from .stores import STORE_VARIABLE
from .terminal import warn

if TYPE_CHECKING:
    from llmsession.transport import RemoteManager

__all__ = [
    "LOCAL_OPTIONS",
    "CaFile",
    "ConnectTo",
    "ServiceAt",
    "StoreOrNone",
    "TokenFile",
    "a_store",
    "model_at",
    "read_token",
    "service_at",
    "using_service",
]

T = TypeVar("T")

TOKEN_VARIABLE = "LLMSESSION_TOKEN"

_OWN_PROVIDERS = "the service has its own providers"
_OWN_PACE = "the service streams its replies as they come"
_NO_INTERRUPTS = "at a service nothing is interrupted: it could not play the turn again"
LOCAL_OPTIONS = {
    "FILE": _OWN_PROVIDERS,
    "--provider": _OWN_PROVIDERS,
    "--base-url": _OWN_PROVIDERS,
    "--key-file": "the service has the key of its store",
    "--prices": "a service has its own prices",
    "--delta-chars": _OWN_PACE,
    "--delay-ms": _OWN_PACE,
    "--interrupt-every": _NO_INTERRUPTS,
    "--interrupt-policy": _NO_INTERRUPTS,
    "--seed": _NO_INTERRUPTS,
}
"""Options that mean nothing at a service, and why. A command with --connect refuses those of them
that it has; ``stress`` has a --seed that means something."""

StoreOrNone: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help=f"sqlite:PATH or postgresql://...; or give it in ${STORE_VARIABLE}.",
    ),
]
ConnectTo: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--connect",
        metavar="ADDRESS",
        help="A service: unix:PATH, tcp://HOST:PORT or grpc://HOST:PORT.",
    ),
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"The token for --connect; or give it in ${TOKEN_VARIABLE}.",
    ),
]
CaFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="For --connect: use TLS, and believe these certificates."
    ),
]


class ServiceAt(msgspec.Struct, frozen=True):
    """Where a service is, and how to come in."""

    address: str
    token_file: Path | None = None
    ca: Path | None = None

    @asynccontextmanager
    async def sessions(self) -> AsyncGenerator[RemoteManager, None]:
        """Its sessions. In asyncio; raises as ``llmsession.connect``, and InvalidInput."""
        from llmsession.transport import connect
        from llmsession.transport.wire.addresses import parse_address
        from llmsession.transport.wire.tls import ClientTls

        here = f"--connect {self.address}"
        with option(here):
            where = parse_address(self.address)
        token = await anyio.to_thread.run_sync(read_token, self.token_file)
        tls = None
        if token is not None and self.ca is None and not where.is_local:
            raise InvalidInput(
                f"{here}: the token would be sent in the clear: use TLS with --ca FILE"
            )
        if self.ca is not None:
            with option("--ca"):
                tls = await anyio.to_thread.run_sync(lambda: ClientTls(ca=self.ca))
        async with AsyncExitStack() as stack:
            with option(here):
                link = connect(self.address, token=token, tls=tls)
                sessions = await stack.enter_async_context(link)
            yield sessions


def read_token(file: Path | None) -> str | None:
    """The token in *file*, or else in the environment; None without one. Raises InvalidInput."""
    # Never an option of its own: everybody on the machine may read a command's arguments.
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        with option("--token-file"):
            token = read_secret(file, "token file", warn=warn).decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"--token-file: {str(file)!r} holds no token: it is no text") from error
    if not token:
        raise InvalidInput(f"--token-file: {str(file)!r} holds no token: it is empty")
    return token


def service_at(
    connect: str | None,
    token_file: Path | None,
    ca: Path | None,
    *,
    store: str | None = None,
    local: Mapping[str, object] = MappingProxyType({}),
) -> ServiceAt | None:
    """The service that was named, None for none. *local* are the values of the command's options
    that mean nothing at a service, by the options as they are typed; None where one was not.

    Raises InvalidInput where a *store* or one of these was named beside it, or what is for a
    service without one.
    """
    if connect is None:
        for option, value in (("--token-file", token_file), ("--ca", ca)):
            if value is not None:
                raise InvalidInput(f"{option} is for a service; name it with --connect")
        return None
    if store is not None:
        raise InvalidInput(
            f"--store and --connect {connect} are two places: a service has a store of its own"
        )
    for name, named in local.items():
        if named is not None:
            why = LOCAL_OPTIONS[name]
            raise InvalidInput(f"{name} cannot be used with --connect {connect}: {why}")
    return ServiceAt(connect, token_file, ca)


def model_at(sessions: RemoteManager, model: str | None) -> str:
    """The *model* that was named, else the one that the service has for that. Raises InvalidInput
    where it has none."""
    name = model or sessions.default_model
    if name is None:
        raise InvalidInput("which model? the service has none by default; name one with --model")
    return name


def a_store(store: str | None) -> str:
    """The store that was named, by an option or in the environment. Raises InvalidInput."""
    name = store if store is not None else os.environ.get(STORE_VARIABLE) or None
    if name is None:
        raise InvalidInput(
            f"which sessions? name a store with --store or ${STORE_VARIABLE}, or a service with"
            " --connect"
        )
    return name


def using_service(service: ServiceAt, work: Callable[[RemoteManager], Awaitable[T]]) -> T:
    """What *work* returns, done with the sessions of *service*. Raises what *work* raises, and
    as ``ServiceAt.sessions``."""

    async def use() -> T:
        async with service.sessions() as sessions:
            return await work(sessions)

    return anyio.run(use)
