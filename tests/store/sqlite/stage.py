"""What the tests of the SQLite store share: a store that is closed at the end, its writer held
back, and a look into its file with other eyes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import apsw

from llmsession.store import SqliteStore, this_process

__all__ = ["ANN", "BOB", "count", "held_back", "opened", "raw", "standing_still", "steps_of"]

ANN = this_process("ann")
BOB = this_process("bob")


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    """A store on *path*, which need not be there."""
    store = SqliteStore(path, **options)
    try:
        with anyio.fail_after(120):
            yield store
    finally:
        await store.aclose()


def held_back(store: SqliteStore) -> AbstractAsyncContextManager[None]:
    """While this is open the writer stands still: what is asked of it waits, and is then done
    together."""
    return standing_still(store._writer.run)


@asynccontextmanager
async def standing_still(run: Callable[..., Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """While this is open, a call that *run* runs stands still."""
    stands, gate = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        stands.set()
        assert gate.wait(120)

    async with anyio.create_task_group() as group:
        group.start_soon(run, wait)
        await anyio.to_thread.run_sync(stands.wait)
        try:
            yield
        finally:
            gate.set()


@contextmanager
def raw(path: Path) -> Iterator[apsw.Connection]:
    """The file as SQLite sees it, to look into and to damage."""
    db = apsw.Connection(str(path))
    try:
        db.set_busy_timeout(5000)
        yield db
    finally:
        db.close()


def count(path: Path, table: str) -> int:
    """How many rows *table* has."""
    with raw(path) as db:
        rows: int = db.execute(f"SELECT count(*) FROM {table}").get
        return rows


def steps_of(path: Path, query: str, bound: list[object]) -> tuple[int, int]:
    """How many instructions of SQLite's machine *query* takes, and how many rows it finds."""
    taken = 0

    def step() -> bool:
        nonlocal taken
        taken += 1
        return False

    with raw(path) as db:
        db.set_progress_handler(step, 1)
        rows = len(db.execute(query, bound).fetchall())
    return taken, rows
