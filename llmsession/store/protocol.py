"""What every store promises. One contract suite runs against all of them.

A session is a row (epoch, head, owner) and a log of records with seq 1, 2, 3, ... Taking a
session raises its epoch; an append names the epoch and the head it was made for, and is written
only if both still hold. Leases shorten an overlap of two owners; this fence is what is correct.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from .liveness import our_start, this_host

__all__ = [
    "EVERYTHING",
    "UNREADABLE",
    "AppendResult",
    "Appended",
    "Batch",
    "Conflict",
    "Lease",
    "Lost",
    "Owner",
    "SessionFilter",
    "SessionRow",
    "Store",
    "StoredRecord",
    "Word",
    "WordIndex",
    "checked_result",
    "this_process",
]


class Owner(msgspec.Struct, frozen=True):
    """Who holds a session: a manager in a process. ``name`` is unique to the manager.

    ``started`` and ``host`` distinguish the process from another one with its ``pid``: see
    ``liveness``. Both are "" where the system does not say. Then only the owner's lease counts.
    """

    name: str
    pid: int = 0
    started: str = ""
    host: str = ""


def this_process(name: str) -> Owner:
    """The owner *name* in this process."""
    return Owner(name, os.getpid(), our_start(), this_host())


class Lease(msgspec.Struct, frozen=True):
    """A session that was taken: appends carry ``epoch`` and continue at ``head``."""

    session: str
    epoch: int
    head: int


class SessionRow(msgspec.Struct, frozen=True):
    """A session as the store lists it. ``owner`` is None while nobody holds it.

    Times are those of the first and of the last record, in seconds since the epoch, by the
    writer's clock; 0.0 before the first record. ``labels`` are those of the last batch that had
    some. ``parent`` is the session that it was forked from.
    """

    session: str
    epoch: int
    head: int
    owner: Owner | None = None
    created_at: float = 0.0
    touched_at: float = 0.0
    labels: dict[str, str] = {}
    parent: str | None = None
    title: str = ""
    """Where it was asked for, as in ``SessionManager.list``: stores know no titles."""


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to find: those that have all of ``labels`` (None as a value matches any
    value) and no label named in ``without``, with times at or after ``..._after`` and before
    ``..._before``. None is no limit."""

    labels: dict[str, str | None] = {}
    without: tuple[str, ...] = ()
    created_after: float | None = None
    created_before: float | None = None
    touched_after: float | None = None
    touched_before: float | None = None

    def finds(self, row: SessionRow) -> bool:
        """Does *row* match?"""
        return (
            all(
                name in row.labels and value in (None, row.labels[name])
                for name, value in self.labels.items()
            )
            and not any(name in row.labels for name in self.without)
            and _between(row.created_at, self.created_after, self.created_before)
            and _between(row.touched_at, self.touched_after, self.touched_before)
        )


def _between(time: float, after: float | None, before: float | None) -> bool:
    return (after is None or after <= time) and (before is None or time < before)


UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""Stands in an index of words for those of a record that could not be read, and is no word."""


class Word(msgspec.Struct, frozen=True):
    """A word that a record must have, or with ``is_prefix`` the beginning of one: letters, digits
    and underscores, as a store is given them for its index."""

    text: str
    is_prefix: bool = False


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """One record as it was appended, byte for byte, and the epoch that wrote it."""

    seq: int
    epoch: int
    body: bytes


class Batch(msgspec.Struct, frozen=True):
    """Records to append, whole or not at all. The first gets seq ``head + 1``.

    ``at`` is the time of the last one, in seconds since the epoch. ``labels``, where given, are
    the session's from now on; they are written with the records.
    """

    session: str
    epoch: int
    head: int
    bodies: tuple[bytes, ...]
    at: float = 0.0
    labels: dict[str, str] | None = None


class Appended(msgspec.Struct, frozen=True):
    """The batch is durable; the log's head is ``head`` now."""

    head: int


class Conflict(msgspec.Struct, frozen=True):
    """Nothing was written: epoch or head differ, or (``row`` None) there is no such session."""

    row: SessionRow | None


class Lost(msgspec.Struct, frozen=True):
    """The write failed. ``committed`` is False if certainly nothing was written, None if that is
    unknown."""

    error: str
    committed: Literal[False] | None = None


AppendResult: TypeAlias = Appended | Conflict | Lost
"""What became of an append."""


def checked_result(result: Any, batch: Batch) -> AppendResult:
    """*result* of an append of *batch* to a store, which may be anybody's. What is no answer to it
    is ``Lost``."""
    if result.__class__ is Appended and result.head == batch.head + len(batch.bodies):
        return result
    match result:
        case Conflict(row=None) | Conflict(row=SessionRow(epoch=int())):
            return result
        case Lost(error=str(), committed=None | False):
            return result
        case _:
            return Lost(f"the store's answer is {type(result).__name__}, and wrong")


EVERYTHING = SessionFilter()
"""Finds every session."""


class Store(Protocol):
    """A fenced log per session. All but ``append`` may wait and may raise StoreError."""

    async def create(self, session: str, owner: Owner) -> Lease:
        """A new session, held by *owner*, with head 0. Raises SessionExists.

        Its epoch is 1, or greater than that of any deleted session with its id: an owner from
        before the deletion stays fenced.
        """

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        """Take the session: its epoch grows by one, and every earlier holder is fenced.

        A dead owner holds nothing. An owner is dead if its process has ended, or, where that
        cannot be seen from here, if its lease has run out. Raises SessionNotFound, and SessionInUse
        while another live owner holds it, unless *takeover*.
        """

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        """A new session, held by *owner*, whose log begins with the records 1 to *upto* of
        *parent*'s; its own follow. Nothing is copied, and *parent* is not acquired.

        The records that they share stay until neither has them any more, whatever becomes of
        *parent*. The fork's epoch is greater than *parent*'s and than that of any deleted
        session with its id; its row has *parent*, and the time of *parent*'s last record until
        it gets one of its own. Raises SessionNotFound (no *parent*), SessionExists, and
        InvalidInput for an *upto* that *parent*'s log has not reached.
        """

    async def release(self, lease: Lease) -> None:
        """Give the session back. Without effect if the epoch is no longer the lease's."""

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        """Append *batch*, and call *done* once with what became of it.

        Returns at once and raises nothing. *done* is called in the event loop's thread, perhaps
        before this returns. Because nobody waits in here, no cancellation can interrupt a write,
        and a store may commit the batches of many sessions together.
        """

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        """Records with seq > *after*, oldest first, at most *limit*. Acquires nothing.

        A record that the store cannot give as it was appended ends what is returned; if it is
        the first, RecordDamaged is raised. Raises SessionNotFound.
        """

    async def row(self, session: str) -> SessionRow:
        """The session's row. Acquires nothing. Raises SessionNotFound."""

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        """The sessions that match *filter*, ordered by id, with ids greater than *after*; at most
        *limit*."""

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        """Put *bodies*, by seq, in place of what the session's records say: all or none.

        Every other record, the head and the epochs stay. A fork that shares the records keeps
        them as they were. Raises SessionMoved if the epoch is no longer the lease's,
        SessionNotFound, and InvalidInput for a seq that is not in the log; nothing is changed.
        """

    async def delete(self, session: str) -> None:
        """Delete the session and its log; records that a fork shares stay the fork's.

        Raises SessionNotFound.
        """

    async def vacuum(self) -> int:
        """Free the space of deleted and rewritten records. Returns how many bytes came free.

        Afterwards none of those records can be found in the store's file or tables. May take long,
        and writes wait for it.
        """

    async def check(self) -> Sequence[str]:
        """The faults of the store as a whole, a line each; () if there are none. Reads much.

        It does not check that every record can be read: ``read`` does.
        """

    async def aclose(self) -> None:
        """Release what the store holds. Appends that were accepted are finished first."""


@runtime_checkable
class WordIndex(Protocol):
    """What a store may have beside ``Store``: it knows which sessions have which words. Of a store
    that has it not, a search reads every session."""

    async def rows_with(
        self,
        words: Sequence[Word],
        words_of: Callable[[bytes], Iterable[str]],
        *,
        after: str = "",
        limit: int = 1000,
        filter: SessionFilter = EVERYTHING,
    ) -> Sequence[SessionRow]:
        """As ``Store.rows``, without sessions that surely lack one of *words*.

        *words_of* gives the words of a record, or UNREADABLE: a session with such a record is
        not left out. It is called in any thread, once for each record
        that is new to the index. A word that is rewritten or deleted leaves the index with its
        record. An encrypted store has no index, and leaves out nothing: words would lie in it in
        the open. Raises StoreError.
        """
