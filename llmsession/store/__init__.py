"""One append-only, fenced log per session.

In: records as bytes, with the writer's epoch and the head that it expects. Out: the same bytes.
Absent: turns in flight, and any knowledge of what a record means.
"""

from typing import TYPE_CHECKING

from llmsession.errors import InvalidInput

from .counting import Amounts, Charge, CountingStore, Grant, Uncounted
from .memory import MemoryStore
from .protocol import (
    Appended,
    AppendResult,
    Batch,
    Conflict,
    Lease,
    LeasingStore,
    Lost,
    Owner,
    OwnerListener,
    SessionFilter,
    SessionRow,
    SnapshotStore,
    Store,
    StoredRecord,
    UnfinishedIndex,
    Word,
    WordIndex,
    this_process,
)

if TYPE_CHECKING:
    from .postgres.store import PostgresStore
    from .sqlite.store import SqliteStore
else:

    def __getattr__(name: str) -> object:
        # The database's library, of some megabytes, is imported by those who use it.
        if name == "PostgresStore":
            from .postgres.store import PostgresStore

            return PostgresStore
        if name == "SqliteStore":
            from .sqlite.store import SqliteStore

            return SqliteStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Amounts",
    "AppendResult",
    "Appended",
    "Batch",
    "Charge",
    "Conflict",
    "CountingStore",
    "Grant",
    "Lease",
    "LeasingStore",
    "Lost",
    "MemoryStore",
    "Owner",
    "OwnerListener",
    "PostgresStore",
    "SessionFilter",
    "SessionRow",
    "SnapshotStore",
    "SqliteStore",
    "Store",
    "StoredRecord",
    "Uncounted",
    "UnfinishedIndex",
    "Word",
    "WordIndex",
    "open_store",
    "this_process",
]


def open_store(address: str, *, key: bytes | str | None = None) -> Store:
    """The store at *address*: ``sqlite:PATH``, ``postgresql://...`` or ``memory:``.

    *key* is the key of an encrypted store. Nothing is opened yet; if the place cannot be used, the
    first use raises StoreError. Raises InvalidInput for any other address.
    """
    scheme, colon, rest = address.partition(":")
    if colon and scheme == "sqlite":
        if not rest or rest.startswith("//"):
            raise InvalidInput(f"{address!r} has no file path; write sqlite:PATH")
        from .sqlite.store import SqliteStore

        return SqliteStore(rest, key=key)
    if colon and scheme in ("postgresql", "postgres"):
        from .postgres.store import PostgresStore

        return PostgresStore(address, key=key)
    if address == "memory:" and key is None:
        return MemoryStore()
    if address == "memory:":
        raise InvalidInput("memory: keeps nothing that a key could protect")
    raise InvalidInput(
        f"no store is at {address!r}; write sqlite:PATH, postgresql://... or memory:"
    )
