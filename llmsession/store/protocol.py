"""What every store promises. One contract suite runs against all of them.

A session is a row (epoch, head, owner) and a log of records with seq 1, 2, 3, ... Taking a session
increases its epoch. An append names the epoch and the head that it was made for, and it is written
only if both still hold. Leases shorten the time in which two owners believe that they have the
session; this fence makes it correct.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from .counting import Charge
from .liveness import our_start, this_host

__all__ = [
    "EVERYTHING",
    "UNREADABLE",
    "AppendResult",
    "Appended",
    "Batch",
    "Conflict",
    "Lease",
    "LeasingStore",
    "Lost",
    "Owner",
    "OwnerListener",
    "SessionFilter",
    "SessionRow",
    "SnapshotStore",
    "Store",
    "StoredRecord",
    "UnfinishedIndex",
    "Word",
    "WordIndex",
    "checked_result",
    "this_process",
]


class Owner(msgspec.Struct, frozen=True):
    """Who holds a session: a manager in a process.

    ``name`` is unique to the manager. ``started`` and ``host`` distinguish the process from another
    one with the same ``pid``: see ``liveness``. Both are "" if the system does not say; then only
    the owner's lease counts.
    """

    name: str
    pid: int = 0
    started: str = ""
    host: str = ""


def this_process(name: str) -> Owner:
    """The owner *name* in this process."""
    return Owner(name, os.getpid(), our_start(), this_host())


class Lease(msgspec.Struct, frozen=True):
    """A session that was taken. Appends carry its ``epoch`` and continue at its ``head``."""

    session: str
    epoch: int
    head: int


class SessionRow(msgspec.Struct, frozen=True):
    """A session as the store lists it."""

    session: str
    epoch: int
    head: int
    owner: Owner | None = None
    """The owner that holds it; None if nobody does."""
    created_at: float = 0.0
    """The time of the first record by the writer's clock, in seconds since the epoch; 0.0 before
    it.
    """
    touched_at: float = 0.0
    """The time of the last record, likewise."""
    labels: dict[str, str] = {}
    """The labels of the last batch that set any."""
    parent: str | None = None
    """The session that it was forked from."""
    title: str = ""
    """Set only if it was asked for, as in ``SessionManager.list``. Stores know no titles."""


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to find. None means no limit.

    ``..._after`` includes the time itself, ``..._before`` does not. Times are in seconds since the
    epoch.
    """

    labels: dict[str, str | None] = {}
    """Labels that the session must have. None as a value matches any value."""
    without: tuple[str, ...] = ()
    """Names of labels that the session must not have."""
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
"""Stands in a word index for the words of a record that cannot be read. It is not a word."""


class Word(msgspec.Struct, frozen=True):
    """A word that a record must have or, with ``is_prefix``, the beginning of one.

    It consists of letters, digits and underscores, in the form in which words are indexed.
    """

    text: str
    is_prefix: bool = False


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """One record as it was appended, byte for byte, and the epoch that wrote it."""

    seq: int
    epoch: int
    body: bytes


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Records to append, all or none. The first one gets seq ``head + 1``."""

    session: str
    epoch: int
    head: int
    bodies: tuple[bytes, ...]
    at: float = 0.0
    """The time of the last record, in seconds since the epoch."""
    labels: dict[str, str] | None = None
    """The session's labels from now on, if not None. They are written together with the records."""
    charge: Charge | None = None
    """What the records spent. A ``CountingStore`` counts it together with the records."""
    unfinished: bool | None = None
    """Has the session unfinished work from now on? None changes nothing. Written likewise, by a
    store that is an ``UnfinishedIndex``."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The batch is durable. The log's head is now ``head``."""

    head: int


class Conflict(msgspec.Struct, frozen=True):
    """Nothing was written, because epoch or head differ or, if ``row`` is None, there is no such
    session.
    """

    row: SessionRow | None


class Lost(msgspec.Struct, frozen=True):
    """The write failed.

    ``committed`` is False if certainly nothing was written, and None if that is not known.
    """

    error: str
    committed: Literal[False] | None = None


AppendResult: TypeAlias = Appended | Conflict | Lost
"""What became of an append."""


def checked_result(result: Any, batch: Batch) -> AppendResult:
    """*result* of appending *batch*, checked, because a store may be foreign code.

    An invalid answer becomes ``Lost``.
    """
    if result.__class__ is Appended and result.head == batch.head + len(batch.bodies):
        return result
    match result:
        case Conflict(row=None) | Conflict(row=SessionRow(epoch=int())):
            return result
        case Lost(error=str(), committed=None | False):
            return result
        case _:
            return Lost(f"the store returned an invalid answer: {type(result).__name__}")


EVERYTHING = SessionFilter()
"""The filter that finds every session."""


class Store(Protocol):
    """A fenced log per session. Every method except ``append`` may wait and may raise
    StoreError.
    """

    async def create(self, session: str, owner: Owner) -> Lease:
        """Create a session with head 0, held by *owner*. Raises SessionExists.

        Its epoch is 1, or greater than that of any deleted session with its id, so that an owner
        from before the deletion stays fenced.
        """

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        """Take the session. Its epoch grows by one, and every earlier holder is fenced.

        A dead owner holds nothing. An owner is dead if its process has ended or, if that cannot be
        seen from here, if its lease has run out. One of this process is dead if it
        ``has_given_up``. Raises SessionNotFound, and SessionInUse while
        another live owner holds it, unless *takeover* is True.
        """

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        """Create a session, held by *owner*, whose log begins with the records 1 to *upto* of
        *parent*'s log.

        Its own records follow. Nothing is copied, and *parent* is not acquired. The shared records
        stay until neither session has them any more, whatever happens to *parent*. The fork's epoch
        is greater than *parent*'s and than that of any deleted session with its id. Its row names
        *parent*, and has the time of *parent*'s last record until it gets a record of its own.
        Raises SessionNotFound (no *parent*), SessionExists, and InvalidInput if *parent*'s log has
        not reached *upto*.
        """

    async def release(self, lease: Lease) -> None:
        """Give the session back. Has no effect if its epoch is no longer the lease's."""

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        """Append *batch*, and call *done* once with the result.

        Returns at once and raises nothing. *done* is called in the event loop's thread, perhaps
        before this returns. Nobody waits in this method, so no cancellation can interrupt a write,
        and a store may commit the batches of many sessions together.
        """

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        """Records with seq > *after*, oldest first, at most *limit*. Acquires no lease.

        The result ends before a record that the store cannot return as it was appended. If that is
        the first one, RecordDamaged is raised. Raises SessionNotFound.
        """

    async def row(self, session: str) -> SessionRow:
        """The session's row. Acquires no lease. Raises SessionNotFound."""

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        """The sessions that match *filter* and have an id greater than *after*, by id; at most
        *limit*.
        """

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        """Replace the records with the seqs of *bodies*, all or none.

        Every other record, the head and the epochs stay. A fork that shares the records keeps them
        unchanged. Raises SessionMoved if the session's epoch is no longer the lease's,
        SessionNotFound, and InvalidInput for a seq that is not in the log. Then nothing is changed.
        """

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        """Delete the session and its log. Records that a fork shares stay the fork's.

        An owner passes the *epoch* of its lease, and deletes nothing if another owner has taken the
        session. Without an epoch it is deleted whoever holds it. Raises SessionNotFound, and
        SessionMoved if the session's epoch is not *epoch*. Then nothing is changed.
        """

    async def vacuum(self) -> int:
        """Free the space of deleted and rewritten records. Returns how many bytes were freed.

        Afterwards none of those records can be found in the store's file or tables. It may take
        long, and writes wait for it.
        """

    async def check(self) -> Sequence[str]:
        """The faults of the store as a whole, one line each; () if there are none. Reads much.

        It does not check that every record can be read; ``read`` does.
        """

    async def aclose(self) -> None:
        """Release what the store holds. Appends that were accepted are finished first."""


@runtime_checkable
class WordIndex(Protocol):
    """What a store may have in addition to ``Store``: it knows which sessions have which words.

    For a store without it, a search reads every session.
    """

    async def rows_with(
        self,
        words: Sequence[Word],
        words_of: Callable[[bytes], Iterable[str]],
        *,
        after: str = "",
        limit: int = 1000,
        filter: SessionFilter = EVERYTHING,
    ) -> Sequence[SessionRow]:
        """``Store.rows`` without the sessions that certainly lack one of *words*.

        *words_of* returns the words of a record, or UNREADABLE; a session with such a record is not
        left out. It is called in any thread, once for each record that is new to the index. A word
        that is rewritten or deleted leaves the index together with its record. An encrypted store
        has no index and leaves out nothing, because an index would hold the words in plain text.
        Raises StoreError.
        """


@runtime_checkable
class UnfinishedIndex(Protocol):
    """What a store may have in addition to ``Store``: it finds the sessions with unfinished work,
    whose batches say so, without looking at the others.

    A session that a store cannot say it of (it was made by an earlier version) counts as
    unfinished. For a store without this index, whoever looks for them reads every session.
    """

    async def unfinished(self, *, after: str = "", limit: int = 1000) -> Sequence[SessionRow]:
        """``Store.rows`` of the unfinished sessions that no living owner holds, as ``acquire``
        decides it. Raises StoreError."""

    async def settle(self, row: SessionRow) -> None:
        """The session of *row* has no unfinished work: not found again until a batch says so. Has
        no effect if its epoch or its head is no longer that of *row*. Raises StoreError."""


@runtime_checkable
class SnapshotStore(Protocol):
    """What a store may have in addition to ``Store``: it keeps one snapshot of each session, from
    which a long session is opened without decoding its whole log.

    A snapshot holds content, as records do: it is encrypted as they are, and ``Store.rewrite`` and
    ``Store.delete`` remove it together with what they change. Losing one is harmless. A store
    without this protocol opens every session by its whole log.
    """

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        """Keep *body*, which covers the records up to *seq*, as the only snapshot of the session.

        Has no effect if the session's epoch is no longer the lease's, if there is no such session,
        or if *body* is too old: the present snapshot covers more records, or the session had as
        many records when it was last rewritten, so that *body* may hold what was erased. Raises
        StoreError.
        """

    async def snapshot(self, session: str) -> bytes | None:
        """The snapshot of the session as it was saved; None if there is none, or no such session.

        A fork does not have that of its parent. Acquires no lease. Raises StoreError, also for a
        snapshot that cannot be read.
        """


class OwnerListener(Protocol):
    """What a ``LeasingStore`` calls, in the event loop that ``watch_owner`` was called in."""

    def taken(self, session: str, epoch: int) -> None:
        """Another owner has taken *session*, which has *epoch* now."""

    def missed(self) -> None:
        """The store was cut off for a while, and works again. Calls of ``taken`` may be missing."""


@runtime_checkable
class LeasingStore(Protocol):
    """What a store has beside ``Store`` if its owners hold their sessions by a lease that runs out.

    An owner whose lease ran out may have lost its sessions and not know it: for that time it
    starts no request and no tool, and publishes no preview. Without this protocol an owner finds
    out at its next append that a session was taken from it.
    """

    def watch_owner(self, owner: Owner, listener: OwnerListener) -> None:
        """Call *listener* from now on, as long as the store is open. Returns at once."""

    def is_lease_valid(self, owner: Owner) -> bool:
        """Is the lease of *owner* valid for certain? True before it has one. Returns at once, and
        may be called in any thread."""

    async def epochs(self, sessions: Sequence[str]) -> Mapping[str, int]:
        """The epochs of *sessions*; those that do not exist are left out. Raises StoreError."""
