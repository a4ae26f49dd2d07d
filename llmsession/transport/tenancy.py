"""What a tenant may see: its own sessions only. Those of others are as if they were not there."""

from __future__ import annotations

import msgspec

from llmsession.errors import SessionNotFound
from llmsession.session import SessionManager
from llmsession.session.labels import TENANT_LABEL, tenant_of
from llmsession.store import Search

__all__ = ["check_tenant", "searched_by"]


def searched_by(tenant: str | None, search: Search) -> Search:
    """*search* among the sessions that *tenant* may see."""
    if tenant is None:
        return search
    return msgspec.structs.replace(search, labels={**search.labels, TENANT_LABEL: tenant})


async def check_tenant(manager: SessionManager, session: str, tenant: str | None) -> None:
    """Raises SessionNotFound for a session that is not *tenant*'s, as for one that is not there.
    Without a tenant every session may be seen. Acquires nothing."""
    if tenant is not None and tenant_of((await manager.store.row(session)).labels) != tenant:
        raise SessionNotFound(session)
