"""The options of a service, and a connection to it. A command uses a service or a store."""

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
from llmsession.transport.wire.addresses import parse_address
from llmsession.transport.wire.secret_files import read_secret

from .options import option
from .stores import STORE_VARIABLE
from .terminal import warn

if TYPE_CHECKING:
    from llmsession.transport import RemoteManager
    from llmsession.transport.client.link import Link

__all__ = [
    "LOCAL_OPTIONS",
    "CaFile",
    "ConnectTo",
    "ServiceAt",
    "StoreOrNone",
    "TokenFile",
    "a_store",
    "host_links",
    "model_at",
    "read_token",
    "service_at",
    "using_service",
]

T = TypeVar("T")

TOKEN_VARIABLE = "LLMSESSION_TOKEN"

_OWN_PROVIDERS = "the service uses its own providers"
_OWN_PACE = "the service sets the pace of its replies"
_NO_INTERRUPTS = "a service cannot replay an interrupted turn again"
LOCAL_OPTIONS = {
    "FILE": _OWN_PROVIDERS,
    "--provider": _OWN_PROVIDERS,
    "--base-url": _OWN_PROVIDERS,
    "--key-file": "the service has the key of its own store",
    "--prices": "the service uses its own prices",
    "--delta-chars": _OWN_PACE,
    "--delay-ms": _OWN_PACE,
    "--interrupt-every": _NO_INTERRUPTS,
    "--interrupt-policy": _NO_INTERRUPTS,
    "--seed": _NO_INTERRUPTS,
}
"""Options that have no meaning at a service, and why. A command that has one of them refuses it
together with --connect. ``stress`` does not: its --seed has a meaning at a service, too."""

StoreOrNone: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help=f"sqlite:PATH or postgresql://...; also read from ${STORE_VARIABLE}.",
    ),
]
ConnectTo: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--connect",
        metavar="ADDRESS",
        help="Use a service: unix:PATH, tcp://HOST:PORT or grpc://HOST:PORT.",
    ),
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"File with the token for --connect; also read from ${TOKEN_VARIABLE}.",
    ),
]
CaFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="For --connect: use TLS, and trust the CAs in this file."
    ),
]


class ServiceAt(msgspec.Struct, frozen=True):
    """The address of a service, and the files that are needed to connect to it."""

    address: str
    token_file: Path | None = None
    ca: Path | None = None

    @asynccontextmanager
    async def sessions(self) -> AsyncGenerator[RemoteManager, None]:
        """Connect, and yield the service's sessions. Works on asyncio only. Raises InvalidInput and
        the errors of ``llmsession.connect``."""
        from llmsession.transport import connect
        from llmsession.transport.wire.tls import ClientTls

        here = f"--connect {self.address}"
        with option(here):
            where = parse_address(self.address)
        token = await anyio.to_thread.run_sync(read_token, self.token_file)
        tls = None
        if token is not None and self.ca is None and not where.is_local:
            raise InvalidInput(
                f"{here}: the token would be sent unencrypted; use TLS with --ca FILE"
            )
        if self.ca is not None:
            with option("--ca"):
                tls = await anyio.to_thread.run_sync(lambda: ClientTls(ca=self.ca))
        async with AsyncExitStack() as stack:
            with option(here):
                link = connect(self.address, token=token, tls=tls)
                sessions = await stack.enter_async_context(link)
            yield sessions


async def host_links(token_file: Path | None, ca: Path | None) -> Callable[[str], Link]:
    """A function that makes the link to the host of a cluster at an address, with the token in
    *token_file* and TLS if there is *ca*. Raises InvalidInput, as the function does."""
    from llmsession.cluster.clients import link_maker
    from llmsession.transport.wire.tls import ClientTls

    token = await anyio.to_thread.run_sync(read_token, token_file)
    tls = None
    if ca is not None:
        with option("--ca"):
            tls = await anyio.to_thread.run_sync(lambda: ClientTls(ca=ca))
    make = link_maker(token=token, tls=tls, client="llmsession")

    def made(address: str) -> Link:
        where = parse_address(address)
        if token is not None and tls is None and not where.is_local:
            raise InvalidInput(
                f"{address}: the token would be sent unencrypted; use TLS with --ca FILE"
            )
        return make(address)

    return made


def read_token(file: Path | None) -> str | None:
    """The token in *file*, or else in the environment; None without one. Raises InvalidInput."""
    # There is no option for the token itself: all users of a machine can read the arguments of a
    # process.
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        with option("--token-file"):
            token = read_secret(file, "token file", warn=warn).decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"--token-file: {str(file)!r} holds no token: it is not text") from error
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
    """The service that *connect* names, or None without it.

    *local* holds the command's options that have no meaning at a service: the option as the user
    types it, and its value, or None if it was not typed.

    Raises InvalidInput if *store* or a local option is combined with *connect*, and if an option
    for a service is used without *connect*.
    """
    if connect is None:
        for option, value in (("--token-file", token_file), ("--ca", ca)):
            if value is not None:
                raise InvalidInput(f"{option} needs --connect")
        return None
    if store is not None:
        raise InvalidInput(
            f"--store and --connect {connect} cannot be combined: a service has its own store"
        )
    for name, named in local.items():
        if named is not None:
            why = LOCAL_OPTIONS[name]
            raise InvalidInput(f"{name} cannot be used with --connect {connect}: {why}")
    return ServiceAt(connect, token_file, ca)


def model_at(sessions: RemoteManager, model: str | None) -> str:
    """*model*, else the service's default model. Raises InvalidInput if there is neither."""
    name = model or sessions.default_model
    if name is None:
        raise InvalidInput("no model is given and the service has no default; use --model NAME")
    return name


def a_store(store: str | None) -> str:
    """The store that the option or the environment names. Raises InvalidInput if neither does."""
    name = store if store is not None else os.environ.get(STORE_VARIABLE) or None
    if name is None:
        raise InvalidInput(
            f"no sessions are named; name a store with --store or ${STORE_VARIABLE}, or a service"
            " with --connect"
        )
    return name


def using_service(service: ServiceAt, work: Callable[[RemoteManager], Awaitable[T]]) -> T:
    """Connect to *service*, run *work* with its sessions, and return its result. Raises the errors
    of *work* and of ``ServiceAt.sessions``."""

    async def use() -> T:
        async with service.sessions() as sessions:
            return await work(sessions)

    return anyio.run(use)
