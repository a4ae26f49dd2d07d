"""``connect`` makes a client of a service."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmsession.errors import InvalidConfig, InvalidInput

from .client.channel import Channel, Dial
from .client.link import Link
from .client.sessions import RemoteManager
from .server.access import check_token_is_safe
from .wire.addresses import Address, parse_address
from .wire.tls import ClientTls

__all__ = ["connect"]

PATIENCE_S = 60.0
OVERLOADED_S = 30.0


@asynccontextmanager
async def connect(
    address: str,
    *,
    token: str | None = None,
    tls: ClientTls | ssl.SSLContext | None = None,
    insecure: bool = False,
    patience_s: float = PATIENCE_S,
    overloaded_s: float = OVERLOADED_S,
) -> AsyncIterator[RemoteManager]:
    """Connect to the service at *address*, and yield its sessions.

    - *address* is ``unix:PATH``, ``tcp://HOST:PORT`` or ``grpc://HOST:PORT``. gRPC needs
      ``pip install 'llmsession[grpc]'``.
    - *token* authenticates the client. It is not sent to another machine without *tls*, unless
      *insecure* says that something else protects the connection.
    - *tls* protects TCP and gRPC. gRPC takes only a ClientTls.
    - *patience_s* is how many seconds the service may be unreachable, for example during a restart,
      before waiting calls fail with Unreachable.
    - *overloaded_s* is how many seconds a command is sent again that the busy service refuses with
      a hint. Then it fails with Overloaded. 0 turns this off. A limit of a session has no hint, so
      it fails at once. Commands of one session keep their order.

    Works on asyncio only. Leaving the context ends no session and no turn.

    Raises InvalidInput for an invalid address. Raises InvalidConfig if the extra is missing, if the
    token would be sent unprotected, or on trio. Raises Unreachable, Unauthenticated, ProtocolError
    (another version) or Overloaded if the first connection cannot be made.
    """
    check_on_asyncio("connect")
    where = parse_address(address)
    check_token_is_safe(
        where, has_tls=tls is not None, has_token=token is not None, insecure=insecure
    )
    link = Link(
        dial_of(where, tls, token),
        token=token,
        patience_s=patience_s,
        overloaded_s=overloaded_s,
        client="python",
    )
    await link.begin()
    try:
        yield RemoteManager(link)
    finally:
        await link.aclose()


def check_on_asyncio(what: str) -> None:
    """Raises InvalidConfig if *what* is called where no event loop of asyncio runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidConfig(f"{what} works on asyncio only, and this is another loop") from None


def dial_of(
    address: Address, tls: ClientTls | ssl.SSLContext | None, token: str | None = None
) -> Dial:
    """A function that connects to *address*. Raises InvalidInput and InvalidConfig."""
    if tls is not None and not isinstance(tls, ClientTls | ssl.SSLContext):
        raise InvalidInput(f"tls is a ClientTls, such as ClientTls(ca=FILE), not {tls!r}")
    if address.scheme == "grpc":
        from .grpc.client import grpc_dial

        if isinstance(tls, ssl.SSLContext):
            raise InvalidInput("gRPC takes no SSLContext; give it a ClientTls")
        return grpc_dial(address, tls, token)
    if tls is not None and address.scheme == "unix":
        raise InvalidInput("a Unix socket takes no TLS")
    from .client.socket_client import dial_socket

    context = tls.context if isinstance(tls, ClientTls) else tls

    async def dial() -> Channel:
        return await dial_socket(address, context)

    return dial
