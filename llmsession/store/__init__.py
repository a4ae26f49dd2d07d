"""One append-only, fenced log per session.

In: records as bytes, with the writer's epoch and the head it expects. Out: the same bytes.
Absent: turns in flight, and any idea of what a record means.
"""

from typing import TYPE_CHECKING

from .address import open_store
from .memory import MemoryStore
from .protocol import (
    Appended,
    AppendResult,
    Batch,
    Conflict,
    Lease,
    Lost,
    Owner,
    Search,
    SessionRow,
    Store,
    StoredRecord,
    this_process,
)
from .sqlite.store import SqliteStore

if TYPE_CHECKING:
    from .postgres.store import PostgresStore
else:

    def __getattr__(name: str) -> object:
        # Its driver is imported by those who use it.
        if name == "PostgresStore":
            from .postgres.store import PostgresStore

            return PostgresStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AppendResult",
    "Appended",
    "Batch",
    "Conflict",
    "Lease",
    "Lost",
    "MemoryStore",
    "Owner",
    "PostgresStore",
    "Search",
    "SessionRow",
    "SqliteStore",
    "Store",
    "StoredRecord",
    "open_store",
    "this_process",
]
