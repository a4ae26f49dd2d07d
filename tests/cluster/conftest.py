"""A host runs on asyncio, over a real PostgreSQL: the server of the store's tests."""

from __future__ import annotations

from tests.store.conftest import database
from tests.transport.conftest import anyio_backend

__all__ = ["anyio_backend", "database"]
