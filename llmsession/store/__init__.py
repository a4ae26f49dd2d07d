"""One append-only, fenced log per session.

In: records as bytes, with the writer's epoch and the head it expects. Out: the same bytes.
Absent: turns in flight, and any idea of what a record means.
"""

from .address import open_store
from .memory import MemoryStore
from .protocol import (
    Appended,
    AppendResult,
    Batch,
    Conflict,
    Hold,
    Lost,
    Owner,
    Search,
    SessionRow,
    Store,
    StoredRecord,
    this_process,
)

__all__ = [
    "AppendResult",
    "Appended",
    "Batch",
    "Conflict",
    "Hold",
    "Lost",
    "MemoryStore",
    "Owner",
    "Search",
    "SessionRow",
    "Store",
    "StoredRecord",
    "open_store",
    "this_process",
]
