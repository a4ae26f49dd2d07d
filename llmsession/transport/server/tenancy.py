"""Limits each tenant to its own sessions. For it, the sessions of other tenants do not exist.

The ids of a tenant's sessions begin with its name and a slash. A command may omit this prefix.
Answers always have it. The service looks only for ids with the prefix of the client's tenant. Two
tenants can therefore use the same id, and neither can find out what sessions the other has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

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
from llmsession.session.operations.search import SearchPage
from llmsession.session.values.labels import TENANT_LABEL, namespace_of, new_session_id, tenant_of
from llmsession.store import Owner, SessionRow

from ..wire import messages as w

__all__ = [
    "check_tenant",
    "in_namespace",
    "is_visible",
    "visible_error",
    "visible_page",
    "visible_row",
    "visible_rows",
]

ANOTHER_OWNER = "another owner"
"""What a tenant sees instead of the name of a process, its machine and its manager."""

C = TypeVar("C", bound=w.Command[Any])


def in_namespace(tenant: str | None, command: C) -> C:
    """*command* with its ids in the namespace of *tenant*."""
    if tenant is None or isinstance(command, w.Unsubscribe | w.Statistics):
        return command
    space = namespace_of(tenant)
    if isinstance(command, w.ListSessions | w.SearchSessions):
        labels = {**command.filter.labels, TENANT_LABEL: tenant}
        filter = msgspec.structs.replace(command.filter, labels=labels)
        return msgspec.structs.replace(command, after=max(command.after, space), filter=filter)
    if isinstance(command, w.Fork) and command.fork is not None:
        command = msgspec.structs.replace(command, fork=_in(space, command.fork))
    assert isinstance(command, w.Create | w.SessionCommand)
    session: str | None = command.session
    session = new_session_id(tenant) if session is None else _in(space, session)
    return msgspec.structs.replace(command, session=session)


def _in(space: str, session: str) -> str:
    # An empty id stays empty, so that it is rejected for a tenant, too.
    return session if session.startswith(space) or not session else space + session


def visible_rows(tenant: str | None, rows: Sequence[SessionRow]) -> Sequence[SessionRow]:
    """Those of *rows* that *tenant* may see. They are the result of a ``list`` command that
    ``in_namespace`` has changed."""
    if tenant is None:
        return rows
    space = namespace_of(tenant)
    return [visible_row(tenant, row) for row in rows if row.session.startswith(space)]


def visible_page(tenant: str | None, page: SearchPage) -> SearchPage:
    """The part of *page* that *tenant* may see. It is the result of a ``search`` command that
    ``in_namespace`` has changed."""
    if tenant is None:
        return page
    space = namespace_of(tenant)
    return msgspec.structs.replace(
        page,
        hits=tuple(hit for hit in page.hits if hit.session.startswith(space)),
        skipped={name: why for name, why in page.skipped.items() if name.startswith(space)},
    )


def visible_row(tenant: str | None, row: SessionRow) -> SessionRow:
    """*row* as *tenant* may see it, without the names of processes and machines."""
    if tenant is None or row.owner is None:
        return row
    return msgspec.structs.replace(row, owner=Owner(ANOTHER_OWNER))


def is_visible(tenant: str | None, session: str) -> bool:
    """Whether *tenant* may see a live session with this id."""
    return tenant is None or session.startswith(namespace_of(tenant))


async def check_tenant(manager: SessionManager, session: str, tenant: str | None) -> None:
    """Raises SessionNotFound if the session belongs to another tenant or does not exist. Without a
    tenant every session is visible. The session is not acquired."""
    if tenant is not None and tenant_of((await manager.row(session)).labels) != tenant:
        raise SessionNotFound(session)


def visible_error(tenant: str | None, command: w.Command[Any], error: SessionError) -> SessionError:
    """*error* as *tenant* may see it, without the names of processes, machines and files."""
    if tenant is None:
        return error
    match error:
        case SessionInUse():
            session = str(getattr(command, "session", ""))
            # The address is kept: the tenant's client has to connect there.
            return SessionInUse(session, ANOTHER_OWNER, address=error.address, view=error.view)
        case RecordDamaged():
            return error
        case StoreDamaged():
            return StoreDamaged("the store of the service is damaged; see the service's log")
        case StoreError():
            message = "the store of the service failed; see the service's log"
            return StoreError(message, committed=error.committed)
    return error
