"""What an operator does to a cluster: look at its hosts, and move a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmsession.errors import InvalidInput, SessionInUse, SessionMoved, Unreachable
from llmsession.store import Store
from llmsession.transport.client.link import Link
from llmsession.transport.wire import messages as w

from .placement import Host

if TYPE_CHECKING:
    from .directory import Directory

__all__ = ["move_session"]

RETRY_S = 0.05


async def move_session(
    directory: Directory,
    store: Store,
    session: str,
    target: str,
    make: Callable[[str], Link],
    *,
    timeout_s: float = 60.0,
) -> Host:
    """Let the host *target* serve *session*. Its present host hands it over at the end of its step,
    and sends its clients there. Returns the target's entry in the view. *make* makes the link to a
    host: see ``link_maker``.

    Raises InvalidInput if there is no such host or it does not take sessions, SessionNotFound,
    SessionInUse if the present owner has not handed the session over in *timeout_s*, TransportError
    if the target cannot be reached, and StoreError.
    """
    host = directory.view.by_name(target)
    if host is None:
        known = ", ".join(host.name for host in directory.view.hosts) or "no host"
        raise InvalidInput(f"cluster {directory.name!r} has no host {target!r}; it has {known}")
    if host.state == "draining":
        raise InvalidInput(f"host {target!r} is draining: it takes no sessions")
    owner = (await store.row(session)).owner
    source = None if owner is None else directory.view.by_incarnation(owner.name)
    if source is not None and source.name == target:
        return host
    if source is not None:
        await directory.ask_to_move(session, source, target)
    link = make(host.address)
    await link.begin()
    try:
        await _opened_there(link, session, timeout_s)
    finally:
        await link.aclose()
    return host


async def _opened_there(link: Link, session: str, timeout_s: float) -> None:
    until = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            await link.ask(w.Open(id=link.new_id(), session=session, here=True)).answer
        except (SessionInUse, SessionMoved, Unreachable) as error:
            is_over = asyncio.get_running_loop().time() >= until
            if isinstance(error, Unreachable) or is_over:
                raise
        else:
            return
        await asyncio.sleep(RETRY_S)
