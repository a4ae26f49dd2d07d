"""connect: the door to a service."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmsession.errors import InvalidInput

from .addresses import Address, parse_address
from .channel import Channel, Dial
from .link import Link
from .remote import RemoteManager

__all__ = ["connect"]

PATIENCE_S = 60.0


@asynccontextmanager
async def connect(
    address: str,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[RemoteManager]:
    """The sessions of the service at *address*: ``unix:PATH``, ``tcp://HOST:PORT`` or
    ``grpc://HOST:PORT``. In asyncio only.

    *patience_s* is how long the service may be away, for a restart, before what waits for it
    fails with Unreachable. Leaving the context ends no session and no turn. Raises InvalidInput
    for an address that is none, and Unreachable, Unauthenticated, ProtocolError (another
    version) or Overloaded where the first connection cannot be made.
    """
    link = Link(
        dial_of(parse_address(address), tls), token=token, patience_s=patience_s, client="python"
    )
    await link.begin()
    try:
        yield RemoteManager(link)
    finally:
        await link.aclose()


def dial_of(address: Address, tls: ssl.SSLContext | None) -> Dial:
    """How to connect to *address*, once and again. Raises InvalidInput."""
    if address.scheme == "grpc":
        raise InvalidInput(f"{address}: gRPC is not there yet; use unix:PATH or tcp://HOST:PORT")
    if tls is not None and address.scheme == "unix":
        raise InvalidInput("a Unix socket takes no TLS")
    from .socket_client import dial_socket

    async def dial() -> Channel:
        return await dial_socket(address, tls)

    return dial
