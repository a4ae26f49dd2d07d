"""What the store contract does with a store, in a few words."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from llmsession.errors import SessionError
from llmsession.store.protocol import (
    Appended,
    AppendResult,
    Batch,
    Lease,
    Lost,
    Store,
    this_process,
)

__all__ = ["Answer", "StoreStage", "append", "bodies_of", "raised", "written"]

E = TypeVar("E", bound=SessionError)


class Answer:
    """What one append's ``done`` was called with, and where."""

    def __init__(self) -> None:
        self.results: list[AppendResult] = []
        self.threads: list[int] = []
        self._came = anyio.Event()

    def done(self, result: AppendResult) -> None:
        self.results.append(result)
        self.threads.append(threading.get_ident())
        if len(self.results) == 1:
            self._came.set()

    async def wait(self) -> AppendResult:
        await self._came.wait()
        return self.results[0]

    async def lost(self) -> Lost:
        """The result, which must be Lost."""
        result = await self.wait()
        assert isinstance(result, Lost), result
        return result


def append(store: Store, lease: Lease, *bodies: bytes, head: int | None = None) -> Answer:
    """Hand *bodies* over under *lease*, at its head or at *head*."""
    answer = Answer()
    expected_head = lease.head if head is None else head
    store.append(Batch(lease.session, lease.epoch, expected_head, bodies), answer.done)
    return answer


async def written(store: Store, lease: Lease, *bodies: bytes, head: int | None = None) -> Lease:
    """Append *bodies*, which must succeed. The hold at its new head."""
    result = await append(store, lease, *bodies, head=head).wait()
    new_head = (lease.head if head is None else head) + len(bodies)
    assert result == Appended(new_head), result
    return Lease(lease.session, lease.epoch, new_head)


async def raised(kind: type[E], ask: Callable[[], object]) -> E:
    """The error of *kind* that awaiting *ask()* raises."""
    try:
        await ask()  # type: ignore[misc]  # a coroutine function of the store
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def bodies_of(store: Store, session: str) -> list[bytes]:
    """The whole log of *session*, record by record."""
    return [record.body for record in await store.read(session)]


class StoreStage:
    """``make_store`` gives a new, empty store each time it is called. *patience_s* bounds each
    test."""

    patience_s = 30.0
    ann = this_process("ann")
    bob = this_process("bob")

    async def make_store(self) -> Store:
        raise NotImplementedError("say how your store is made")

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """A new store, closed at the end; the test has *patience_s* with it."""
        with anyio.fail_after(self.patience_s):
            store = await self.make_store()
            try:
                yield store
            finally:
                await store.aclose()
