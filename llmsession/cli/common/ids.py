"""Ids of sessions as users type them: whole, or the first characters of one."""

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
"""Of the ids that a prefix may stand for."""
LAST = "\U0010ffff"

ReadRow: TypeAlias = Callable[[str], Awaitable[SessionRow]]
ReadPage: TypeAlias = Callable[..., Awaitable[Sequence[SessionRow]]]


async def id_in_store(store: Store, typed: str) -> str:
    """The id in *store* that *typed* stands for. Raises as ``full_id``, and StoreError."""
    return await full_id(typed, store.row, partial(begun_rows, store))


async def id_at_service(sessions: ManagerInterface, typed: str) -> str:
    """The same at a service. Raises as ``full_id``, and what the service raises."""
    return await full_id(typed, sessions.row, partial(sessions.list, archived=None))


async def full_id(typed: str, read_row: ReadRow, read_page: ReadPage) -> str:
    """The id that *typed* stands for: that of a session, or the beginning of exactly one id. A
    tenant may leave out the name that all of its ids begin with.

    Raises SessionNotFound where no id begins so, and InvalidInput, which names them, where several
    do.
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
    # Ids are in the order of their characters: those with the prefix come right after it.
    rows = await read_page(after=prefix, limit=MAX_NAMED + 1)
    return [row.session for row in rows if row.session.startswith(prefix)]


async def _namespace(read_page: ReadPage) -> str:
    """What all ids begin with, up to a slash; "" where they do not."""
    rows = await read_page(limit=1)
    name, slash, _ = rows[0].session.partition("/") if rows else ("", "", "")
    if not slash or await read_page(after=f"{name}/{LAST}", limit=1):
        return ""
    return name + slash
