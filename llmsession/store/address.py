"""Stores by their address, as the command line and configuration files name them."""

from __future__ import annotations

from llmsession.errors import InvalidInput

from .memory import MemoryStore
from .protocol import Store

__all__ = ["open_store"]


def open_store(address: str, *, key: bytes | str | None = None) -> Store:
    """The store at *address*: ``sqlite:PATH``, ``postgresql://...`` or ``memory:``.

    *key* is that of an encrypted store. Nothing is opened yet: what is wrong with the place is
    said at first use, as StoreError. Raises InvalidInput for an address of another kind.
    """
    scheme, colon, rest = address.partition(":")
    if colon and scheme == "sqlite":
        if not rest or rest.startswith("//"):
            raise InvalidInput(f"{address!r} names no file; write sqlite:PATH")
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
