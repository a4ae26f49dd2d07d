"""A store whose answers are checked, because a store may be foreign code."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

from llmsession.errors import SessionError, StoreError, contained_in_task, error_text
from llmsession.turns.spending.spending import Spending

from .counting import Amounts, CountingStore, Grant, Uncounted
from .protocol import (
    EVERYTHING,
    AppendResult,
    Batch,
    Lease,
    Owner,
    SessionFilter,
    SessionRow,
    SnapshotStore,
    Store,
    StoredRecord,
    UnfinishedIndex,
    Word,
    WordIndex,
)

__all__ = ["CheckedStore", "checked_counting", "checked_store"]

T = TypeVar("T")


def checked_store(store: Store) -> CheckedStore:
    """*store* with checked answers. The result is a ``WordIndex`` if *store* is one."""
    return _CheckedWordIndex(store) if isinstance(store, WordIndex) else CheckedStore(store)


class CheckedStore(Store):
    """A store as the sessions of a manager use it.

    If a method raises an error that a store may not raise, or returns a value of the wrong type,
    that becomes a StoreError. The answer to an append is checked by the journal. Rows must come as
    they were asked for: by id, after the named id, and no more than the limit. Otherwise a caller
    that reads page by page might read one page for ever.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.keeps_snapshots = isinstance(store, SnapshotStore)
        """Is the store a ``SnapshotStore``?"""
        self.unreleased: dict[str, Lease] = {}
        """By session: the leases that were given up, and that the store has not taken back."""
        self.doubtful: dict[str, int] = {}
        """The sessions that a call may have taken whose answer was lost, and which doubt it is: the
        answer to an earlier one does not settle it."""
        self._doubts = count(1)
        self.on_unreleased: Callable[[str], None] = lambda session: None
        """Called with the session when there is another one, in either of these."""

    async def create(self, session: str, owner: Owner) -> Lease:
        """See ``Store``."""
        with self._taking(session):
            return await _answer(lambda: self._store.create(session, owner), _is_lease)

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        """See ``Store``."""
        with self._taking(session):
            return await _answer(
                lambda: self._store.acquire(session, owner, takeover=takeover), _is_lease
            )

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        """See ``Store``."""
        with self._taking(session):
            return await _answer(lambda: self._store.fork(parent, upto, session, owner), _is_lease)

    async def release(self, lease: Lease) -> None:
        """See ``Store``."""
        try:
            await _answer(lambda: self._store.release(lease))
        except StoreError:
            self.release_later(lease)
            raise
        except SessionError:  # it is certain that there is nothing to release
            self._released(lease)
            raise
        self._released(lease)

    def _released(self, lease: Lease) -> None:
        left = self.unreleased.get(lease.session)
        if left is not None and left.epoch <= lease.epoch:
            del self.unreleased[lease.session]

    def release_later(self, lease: Lease) -> None:
        """*lease* is given up, and the store may not be able to take it back now."""
        left = self.unreleased.get(lease.session, lease)
        self.unreleased[lease.session] = max(left, lease, key=lambda lease: lease.epoch)
        self.on_unreleased(lease.session)

    @property
    def may_hold(self) -> bool:
        """May the store hold a session for its owner that the owner has not, or has given back?"""
        return bool(self.doubtful or self.unreleased)

    @contextmanager
    def _taking(self, session: str) -> Iterator[None]:
        try:
            yield
        except SessionError as error:
            if isinstance(error, StoreError) and error.committed is None:
                self._doubt(session)
            raise
        except BaseException:  # cancelled, because the manager is left
            self._doubt(session)
            raise
        self.doubtful.pop(session, None)  # whatever was taken before, this lease is newer

    def _doubt(self, session: str) -> None:
        self.doubtful[session] = next(self._doubts)
        self.on_unreleased(session)

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        """See ``Store``."""
        self._store.append(batch, done)

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        """See ``Store``."""
        return await _answer(
            lambda: self._store.read(session, after=after, limit=limit), _are_records
        )

    async def row(self, session: str) -> SessionRow:
        """See ``Store``."""
        return await _answer(lambda: self._store.row(session), _is_row)

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        """See ``Store``."""
        return await _answer(
            lambda: self._store.rows(after=after, limit=limit, filter=filter),
            lambda rows: _are_rows(rows, after, limit),
        )

    async def unfinished(self, *, after: str, limit: int) -> Sequence[SessionRow] | None:
        """See ``UnfinishedIndex``. None if the store is none."""
        index = self._store
        if not isinstance(index, UnfinishedIndex):
            return None
        return await _answer(
            lambda: index.unfinished(after=after, limit=limit),
            lambda rows: _are_rows(rows, after, limit),
        )

    async def settle(self, row: SessionRow) -> None:
        """See ``UnfinishedIndex``. Has no effect if the store is none."""
        index = self._store
        if isinstance(index, UnfinishedIndex):
            await _answer(lambda: index.settle(row))

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        """See ``SnapshotStore``. Has no effect if the store is none."""
        store = self._store
        if isinstance(store, SnapshotStore):
            await _answer(lambda: store.save_snapshot(lease, seq, body))

    async def snapshot(self, session: str) -> bytes | None:
        """See ``SnapshotStore``. None if the store is none."""
        store = self._store
        if not isinstance(store, SnapshotStore):
            return None
        return await _answer(
            lambda: store.snapshot(session), lambda body: body is None or body.__class__ is bytes
        )

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        """See ``Store``."""
        await _answer(lambda: self._store.rewrite(lease, bodies))

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        """See ``Store``."""
        await _answer(lambda: self._store.delete(session, epoch=epoch))

    async def vacuum(self) -> int:
        """See ``Store``."""
        return await _answer(self._store.vacuum, _is_number)

    async def check(self) -> Sequence[str]:
        """See ``Store``."""
        return await _answer(self._store.check, _are_texts)

    async def aclose(self) -> None:
        """See ``Store``. Raises whatever the store raises."""
        await self._store.aclose()


class _CheckedWordIndex(CheckedStore):
    """A store that has a word index as well."""

    _store: Any  # a Store and a WordIndex

    async def rows_with(
        self,
        words: Sequence[Word],
        words_of: Callable[[bytes], Iterable[str]],
        *,
        after: str = "",
        limit: int = 1000,
        filter: SessionFilter = EVERYTHING,
    ) -> Sequence[SessionRow]:
        """See ``WordIndex``."""
        return await _answer(
            lambda: self._store.rows_with(words, words_of, after=after, limit=limit, filter=filter),
            lambda rows: _are_rows(rows, after, limit),
        )


def checked_counting(store: object) -> CountingStore | None:
    """*store* as a ``CountingStore`` with checked answers; None if it counts nothing."""
    return _CheckedCounting(store) if isinstance(store, CountingStore) else None


class _CheckedCounting(CountingStore):
    """What a store counts, as a manager uses it."""

    def __init__(self, store: CountingStore) -> None:
        self._store = store

    async def begin_count(
        self, account: str, labels: Mapping[str, str], *, limit: int
    ) -> Sequence[Uncounted]:
        """See ``CountingStore``."""
        return await _answer(
            lambda: self._store.begin_count(account, labels, limit=limit), _are_uncounted
        )

    async def add_counted(self, account: str, spent: Mapping[str, Spending]) -> None:
        """See ``CountingStore``."""
        await _answer(lambda: self._store.add_counted(account, spent))

    async def spent_by(self, account: str) -> Spending:
        """See ``CountingStore``."""
        return await _answer(lambda: self._store.spent_by(account), _is_spending)

    async def reserve(
        self,
        account: str,
        owner: str,
        limit: Amounts,
        asked: Amounts,
        *,
        pending: Spending,
        hold_s: float,
    ) -> Grant:
        """See ``CountingStore``."""
        return await _answer(
            lambda: self._store.reserve(
                account, owner, limit, asked, pending=pending, hold_s=hold_s
            ),
            lambda grant: _is_grant(grant, limit),
        )

    async def give_back(self, owner: str) -> None:
        """See ``CountingStore``."""
        await _answer(lambda: self._store.give_back(owner))


async def _answer(
    call: Callable[[], Awaitable[T]], is_right: Callable[[object], bool] | None = None
) -> T:
    try:
        answer = await call()
        right = is_right is None or is_right(answer)
    except SessionError:
        raise
    except BaseException as raised:
        error = contained_in_task(raised)
        raise StoreError(f"the store failed: {error_text(error)}", committed=None) from error
    if not right:
        message = f"the store returned an invalid answer: {type(answer).__name__}"
        raise StoreError(message, committed=None)
    return answer


def _is_lease(answer: object) -> bool:
    return isinstance(answer, Lease) and _is_number(answer.epoch) and _is_number(answer.head)


def _is_row(answer: object) -> bool:
    return (
        isinstance(answer, SessionRow)
        and _is_text(answer.session)
        and _is_number(answer.epoch)
        and _is_number(answer.head)
        and (answer.owner is None or _is_owner(answer.owner))
        and _is_time(answer.created_at)
        and _is_time(answer.touched_at)
        and isinstance(answer.labels, dict)
        and _are_texts([*answer.labels, *answer.labels.values()])
        and (answer.parent is None or _is_text(answer.parent))
    )


def _is_owner(value: object) -> bool:
    return (
        isinstance(value, Owner)
        and _is_number(value.pid)
        and _are_texts([value.name, value.started, value.host])
    )


def _are_rows(answer: object, after: str, limit: int) -> bool:
    if not isinstance(answer, list | tuple) or len(answer) > limit:
        return False
    for row in answer:
        if not _is_row(row) or row.session <= after:
            return False
        after = row.session
    return True


def _are_records(answer: object) -> bool:
    # A page has thousands of records, and few types.
    return (
        isinstance(answer, list | tuple)
        and all(issubclass(kind, StoredRecord) for kind in {*map(type, answer)})
        and {type(record.body) for record in answer} <= {bytes}
    )


def _are_uncounted(answer: object) -> bool:
    return isinstance(answer, list | tuple) and all(
        isinstance(each, Uncounted) and _is_text(each.session) and _is_number(each.upto)
        for each in answer
    )


def _is_spending(answer: object) -> bool:
    return (
        isinstance(answer, Spending)
        and _is_number(answer.tokens)
        and _is_number(answer.cost_nano_usd)
        and isinstance(answer.unpriced, frozenset)
        and _are_texts(tuple(answer.unpriced))
    )


def _is_grant(answer: object, limit: Amounts) -> bool:
    return (
        isinstance(answer, Grant)
        and _is_spending(answer.spent)
        and isinstance(answer.part, Amounts)
        and (_is_number(answer.part.tokens) or limit.tokens is None)
        and (_is_number(answer.part.nano_usd) or limit.nano_usd is None)
        and _is_time(answer.retry_s)
    )


def _is_number(value: object) -> bool:
    return value.__class__ is int


def _is_text(value: object) -> bool:
    return value.__class__ is str


def _are_texts(values: object) -> bool:
    return isinstance(values, list | tuple) and all(map(_is_text, values))


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
