"""What a tenant may see: its own sessions only. Those of others are as if they were not there.

A tenant's sessions have ids that begin with its name and a slash, and it cannot name any others:
what it asks for is looked for there. So two tenants may use the same id, and neither can find out
what the other has. What a command names may leave the beginning away; what is told has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from llmsession.errors import (
    RecordDamaged,
    SessionError,
    SessionInUse,
    SessionNotFound,
    StoreDamaged,
    StoreError,
)
from llmsession.session import SessionManager
from llmsession.session.values.labels import TENANT_LABEL, namespace_of, new_session_id, tenant_of
from llmsession.store import Owner, SessionRow

from ..wire import messages as w

__all__ = ["check_tenant", "is_seen", "listed", "placed", "seen", "told"]

SOMEBODY = "another owner"
"""What a tenant is told instead of a process, its machine and its manager."""

C = TypeVar("C", bound=w.Command)


def placed(tenant: str | None, command: C) -> C:
    """*command* with the ids that *tenant* means: in its own namespace."""
    if tenant is None or isinstance(command, w.Unsubscribe | w.Statistics):
        return command
    space = namespace_of(tenant)
    if isinstance(command, w.ListSessions):
        labels = {**command.search.labels, TENANT_LABEL: tenant}
        search = msgspec.structs.replace(command.search, labels=labels)
        return msgspec.structs.replace(command, after=max(command.after, space), search=search)
    if isinstance(command, w.Fork) and command.fork is not None:
        command = msgspec.structs.replace(command, fork=_in(space, command.fork))
    session = command.session
    session = new_session_id(tenant) if session is None else _in(space, session)
    return msgspec.structs.replace(command, session=session)


def _in(space: str, session: str) -> str:
    # An empty id stays one: it is wrong for everybody.
    return session if session.startswith(space) or not session else space + session


def listed(tenant: str | None, rows: Sequence[SessionRow]) -> Sequence[SessionRow]:
    """Of *rows*, found by a list that was ``placed``, what *tenant* is told."""
    if tenant is None:
        return rows
    space = namespace_of(tenant)
    return [seen(tenant, row) for row in rows if row.session.startswith(space)]


def seen(tenant: str | None, row: SessionRow) -> SessionRow:
    """*row* as *tenant* is told it: without the name of a process and its machine."""
    if tenant is None or row.owner is None:
        return row
    return msgspec.structs.replace(row, owner=Owner(SOMEBODY))


def is_seen(tenant: str | None, session: str) -> bool:
    """May *tenant* see a live session of this id?"""
    return tenant is None or session.startswith(namespace_of(tenant))


async def check_tenant(manager: SessionManager, session: str, tenant: str | None) -> None:
    """Raises SessionNotFound for a session that is not *tenant*'s, as for one that is not there.
    Without a tenant every session may be seen. Acquires nothing."""
    if tenant is not None and tenant_of((await manager.store.row(session)).labels) != tenant:
        raise SessionNotFound(session)


def told(tenant: str | None, command: w.Command, error: SessionError) -> SessionError:
    """*error* as *tenant* is told of it: without names of processes, machines and files."""
    if tenant is None:
        return error
    match error:
        case SessionInUse():
            return SessionInUse(str(getattr(command, "session", "")), SOMEBODY)
        case RecordDamaged():
            return error
        case StoreDamaged():
            return StoreDamaged("the store of the service is damaged; its log says how")
        case StoreError():
            why = "the store of the service failed; its log says how"
            return StoreError(why, committed=error.committed)
    return error
