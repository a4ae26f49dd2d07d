"""Connecting to a service that may be down at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmsession import connect
from llmsession.errors import Overloaded, TransportError
from llmsession.transport import RemoteManager

__all__ = ["joined"]

AGAIN_S = 0.1


@asynccontextmanager
async def joined(address: str, patience_s: float) -> AsyncIterator[RemoteManager]:
    """As ``connect``; a first connection that cannot be made is tried again for *patience_s*."""
    until = asyncio.get_running_loop().time() + patience_s
    while True:
        entered = connect(address, patience_s=patience_s)
        try:
            sessions = await entered.__aenter__()
        except (TransportError, Overloaded):
            if asyncio.get_running_loop().time() > until:
                raise
            await asyncio.sleep(AGAIN_S)
        else:
            break
    try:
        yield sessions
    finally:
        await entered.__aexit__(None, None, None)
