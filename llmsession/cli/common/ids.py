"""Session ids as users type them: the whole id or its first characters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from llmsession.errors import InvalidInput, SessionNotFound
from llmsession.session.log.read_state import begun_rows
from llmsession.store import SessionRow, Store
from llmsession.transport.interface import ManagerInterface

from .terminal import neutral_line

__all__ = ["full_id", "id_at_service", "id_in_store"]

MAX_NAMED = 5
"""How many ids are named if a prefix is ambiguous."""
LAST = "\U0010ffff"

ReadRow: TypeAlias = Callable[[str], Awaitable[SessionRow]]
ReadPage: TypeAlias = Callable[..., Awaitable[Sequence[SessionRow]]]


async def id_in_store(store: Store, typed: str) -> str:
    """The id in *store* that *typed* stands for. Raises StoreError and the errors of
    ``full_id``."""
    return await full_id(typed, store.row, partial(begun_rows, store))


async def id_at_service(sessions: ManagerInterface, typed: str) -> str:
    """The id at a service that *typed* stands for. Raises the errors of the service and of
    ``full_id``."""
    return await full_id(typed, sessions.row, partial(sessions.list, archived=None))


async def full_id(typed: str, read_row: ReadRow, read_page: ReadPage) -> str:
    """The id that *typed* stands for: the id itself, or the only id that begins with *typed*. A
    tenant may leave out its name and the slash that all of its ids begin with.

    Raises SessionNotFound if no id begins with *typed*, and InvalidInput, which lists the ids, if
    several do.
    """
    try:
        return (await read_row(typed)).session
    except SessionNotFound:
        if not typed:
            raise
        found = await _beginning_with(typed, read_page)
        if not found and (namespace := await _namespace(read_page)):
            found = await _beginning_with(namespace + typed, read_page)
        if not found:
            raise
    if len(found) > 1:
        more = ", ..." if len(found) > MAX_NAMED else ""
        names = ", ".join(map(neutral_line, found[:MAX_NAMED]))
        raise InvalidInput(f"{typed!r} is the beginning of several ids: {names}{more}")
    return found[0]


async def _beginning_with(prefix: str, read_page: ReadPage) -> list[str]:
    # Ids are sorted by their characters, so those with the prefix follow right after the prefix.
    rows = await read_page(after=prefix, limit=MAX_NAMED + 1)
    return [row.session for row in rows if row.session.startswith(prefix)]


async def _namespace(read_page: ReadPage) -> str:
    """The common beginning of all ids, up to and with the slash; "" if they have none."""
    rows = await read_page(limit=1)
    name, slash, _ = rows[0].session.partition("/") if rows else ("", "", "")
    if not slash or await read_page(after=f"{name}/{LAST}", limit=1):
        return ""
    return name + slash
