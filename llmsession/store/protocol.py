"""What every store promises. One contract suite runs against all of them.

A session is a row (epoch, head, owner) and a log of records with seq 1, 2, 3, ... Taking a
session raises its epoch; an append names the epoch and the head it was made for, and is written
only if both still hold. Leases shorten an overlap of two owners; this fence is what is correct.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

__all__ = [
    "AppendResult",
    "Appended",
    "Batch",
    "Conflict",
    "Hold",
    "Lost",
    "Owner",
    "SessionRow",
    "Store",
    "StoredRecord",
    "this_process",
]


class Owner(msgspec.Struct, frozen=True):
    """Who holds a session: a manager in a process. ``name`` is unique to the manager."""

    name: str
    pid: int = 0


def this_process(name: str) -> Owner:
    """The owner *name* in this process."""
    return Owner(name, os.getpid())


class Hold(msgspec.Struct, frozen=True):
    """A session that was taken: appends carry ``epoch`` and continue at ``head``."""

    session: str
    epoch: int
    head: int


class SessionRow(msgspec.Struct, frozen=True):
    """A session as the store lists it. ``owner`` is None while nobody holds it."""

    session: str
    epoch: int
    head: int
    owner: Owner | None = None


class StoredRecord(msgspec.Struct, frozen=True):
    """One record as it was appended, byte for byte, and the epoch that wrote it."""

    seq: int
    epoch: int
    body: bytes


class Batch(msgspec.Struct, frozen=True):
    """Records to append, whole or not at all. The first gets seq ``head + 1``."""

    session: str
    epoch: int
    head: int
    bodies: tuple[bytes, ...]


class Appended(msgspec.Struct, frozen=True):
    """The batch is durable; the log's head is ``head`` now."""

    head: int


class Conflict(msgspec.Struct, frozen=True):
    """Nothing was written: epoch or head differ, or (``row`` None) there is no such session."""

    row: SessionRow | None


class Lost(msgspec.Struct, frozen=True):
    """The write failed. ``committed`` is False if surely nothing was written, else None."""

    error: str
    committed: Literal[False] | None = None


AppendResult: TypeAlias = Appended | Conflict | Lost


class Store(Protocol):
    """A fenced log per session. All but ``append`` may wait and may raise StoreError."""

    async def create(self, session: str, owner: Owner) -> Hold:
        """A new session, held by *owner*, with head 0. Raises SessionExists.

        Its epoch is 1, or greater than that of any deleted session with its id: an owner from
        before the deletion stays fenced.
        """
        ...

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Hold:
        """Take the session: its epoch grows by one, and every earlier holder is fenced.

        Raises SessionNotFound, and SessionInUse while another live owner holds it, unless
        *takeover*.
        """
        ...

    async def release(self, hold: Hold) -> None:
        """Give the session back. Without effect if the epoch is no longer the hold's."""
        ...

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        """Append *batch*, and call *done* once with what became of it.

        Returns at once and raises nothing. *done* is called in the event loop's thread, perhaps
        before this returns. Nobody waits in here, so nobody's cancellation can tear a write,
        and a store may commit the batches of many sessions together.
        """
        ...

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        """Records with seq > *after*, oldest first, at most *limit*. Acquires nothing.

        Raises SessionNotFound.
        """
        ...

    async def row(self, session: str) -> SessionRow:
        """The session's row. Acquires nothing. Raises SessionNotFound."""
        ...

    async def rows(self, *, after: str = "", limit: int = 1000) -> Sequence[SessionRow]:
        """Sessions by id, those greater than *after*, at most *limit*."""
        ...

    async def delete(self, session: str) -> None:
        """Delete the session and its log for good. Raises SessionNotFound."""
        ...

    async def aclose(self) -> None:
        """Release what the store holds. Appends that were accepted are finished first."""
        ...
