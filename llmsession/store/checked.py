"""A store whose answers were checked: a store may be anybody's code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from llmsession.errors import SessionError, StoreError, contained_in_task, error_text, foreign

from .protocol import (
    EVERYTHING,
    AppendResult,
    Batch,
    Lease,
    Owner,
    SessionFilter,
    SessionRow,
    Store,
    StoredRecord,
)

__all__ = ["CheckedStore"]

T = TypeVar("T")


class CheckedStore(Store):
    """*store*, as the sessions of a manager use it. What its methods raise beside the errors that a
    store may raise is a StoreError, and so is an answer of another type than it has to be. The
    answer to an append is checked by the journal."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, session: str, owner: Owner) -> Lease:
        """See ``Store``."""
        return await _answer(lambda: self._store.create(session, owner), _is_lease)

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        """See ``Store``."""
        return await _answer(
            lambda: self._store.acquire(session, owner, takeover=takeover), _is_lease
        )

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        """See ``Store``."""
        return await _answer(lambda: self._store.fork(parent, upto, session, owner), _is_lease)

    async def release(self, lease: Lease) -> None:
        """See ``Store``."""
        await _answer(lambda: self._store.release(lease))

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
            lambda: self._store.rows(after=after, limit=limit, filter=filter), _are_rows
        )

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        """See ``Store``."""
        await _answer(lambda: self._store.rewrite(lease, bodies))

    async def delete(self, session: str) -> None:
        """See ``Store``."""
        await _answer(lambda: self._store.delete(session))

    async def vacuum(self) -> int:
        """See ``Store``."""
        return await self._store.vacuum()

    async def check(self) -> Sequence[str]:
        """See ``Store``."""
        return await self._store.check()

    async def aclose(self) -> None:
        """See ``Store``. Raises what the store raises."""
        await self._store.aclose()


async def _answer(
    call: Callable[[], Awaitable[T]], is_right: Callable[[object], bool] | None = None
) -> T:
    try:
        answer = await foreign(call())
        right = is_right is None or is_right(answer)
    except SessionError:
        raise
    except BaseException as raised:
        error = contained_in_task(raised)
        raise StoreError(f"the store failed: {error_text(error)}", committed=None) from error
    if not right:
        message = f"the store answered with {type(answer).__name__}, which is no answer"
        raise StoreError(message, committed=None)
    return answer


def _is_lease(answer: object) -> bool:
    return isinstance(answer, Lease) and _is_number(answer.epoch) and _is_number(answer.head)


def _is_row(answer: object) -> bool:
    return isinstance(answer, SessionRow) and _is_number(answer.epoch) and _is_number(answer.head)


def _are_rows(answer: object) -> bool:
    return isinstance(answer, list | tuple) and all(map(_is_row, answer))


def _are_records(answer: object) -> bool:
    return isinstance(answer, list | tuple) and all(
        isinstance(record, StoredRecord) and record.body.__class__ is bytes for record in answer
    )


def _is_number(value: object) -> bool:
    return value.__class__ is int
