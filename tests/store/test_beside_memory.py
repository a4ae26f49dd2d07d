"""Stores that keep rows, beside the store in memory: whatever is done, both say the same."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.errors import SessionError
from llmsession.store import (
    Appended,
    Batch,
    Lease,
    MemoryStore,
    SessionRow,
    Store,
    UnfinishedIndex,
)
from llmsession.testing.store_contract.actions import Answer
from tests.store.conftest import Database
from tests.store.postgres.server import PostgresServer
from tests.store.sqlite.stage import ANN, BOB, count, opened

pytestmark = pytest.mark.real_time

Act: TypeAlias = tuple[Any, ...]
Kept: TypeAlias = tuple[Store, Callable[[], int]]
"""A store, and how many rows there are in its tables, but for those that every store has."""
Keeping: TypeAlias = Callable[[bytes | None], AbstractAsyncContextManager[Kept]]
"""A new store with a key, or with none; closed at the end."""

BIG = b'{"image":"' + base64.b64encode(Random(9).randbytes(90_000)) + b'"}'
names = st.sampled_from("abcd")
bodies = st.lists(
    st.sampled_from([b"", b"1", b"22", BIG, b"[" + BIG + b"]"]), min_size=1, max_size=4
)
marks = st.none() | st.booleans()
labels = st.none() | st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"))
acts = st.one_of(
    st.tuples(st.just("create"), names),
    st.tuples(st.just("append"), names, bodies, labels, marks),
    st.tuples(st.just("append"), names, bodies, labels, marks),
    st.tuples(st.just("fork"), names, st.integers(0, 6), names),
    st.tuples(st.just("fork"), names, st.integers(0, 6), names),
    st.tuples(st.just("rewrite"), names, st.dictionaries(st.integers(1, 7), bodies.map(b"".join))),
    st.tuples(st.just("acquire"), names, st.sampled_from([ANN, BOB]), st.booleans()),
    st.tuples(st.just("release"), names),
    st.tuples(st.just("settle"), names),
    st.tuples(st.just("delete"), names),
)
KEYS = pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["plain", "encrypted"])


class Pair:
    """*store* and a store in memory, which are told the same."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.model = MemoryStore()
        self.leases: dict[str, Lease] = {}

    async def perform(self, act: Act) -> None:
        """Do *act* in both. They answer it alike."""
        expected = await self._outcome(self.model, act)
        assert await self._outcome(self.store, act) == expected
        if isinstance(expected, Lease):
            self.leases[expected.session] = expected

    async def _outcome(self, store: Store, act: Act) -> object:
        try:
            return await self._do(store, act)
        except SessionError as error:
            return f"{type(error).__name__}: {error}"

    async def _do(self, store: Store, act: Act) -> object:
        lease = self.leases.get(act[1], Lease(act[1], 1, 0))
        match act:
            case "create", name:
                return await store.create(name, ANN)
            case "fork", parent, upto, name:
                return await store.fork(parent, upto, name, BOB)
            case "acquire", name, owner, takeover:
                return await store.acquire(name, owner, takeover=takeover)
            case "append", name, new, said, mark:
                answer = Answer()
                at = float(len(new))
                batch = Batch(name, lease.epoch, lease.head, tuple(new), at, said, unfinished=mark)
                store.append(batch, answer.done)
                result = await answer.wait()
                if isinstance(result, Appended):
                    return Lease(name, lease.epoch, result.head)
                return result
            case "rewrite", _, changes:
                await store.rewrite(lease, changes)
            case "settle", name:
                assert isinstance(store, UnfinishedIndex)
                await store.settle(SessionRow(name, lease.epoch, lease.head))
            case "release", _:
                await store.release(lease)
            case "delete", name:
                await store.delete(name)
            case _:
                raise AssertionError(act)
        return None

    async def check(self) -> None:
        """What is in both is the same."""
        rows = await self.model.rows()
        assert await self.store.rows() == rows
        assert isinstance(self.store, UnfinishedIndex)
        assert await self.store.unfinished() == await self.model.unfinished()
        for row in rows:
            for window in ({}, {"after": 2, "limit": 3}):
                expected = await self.model.read(row.session, **window)
                assert await self.store.read(row.session, **window) == expected
        assert await self.store.check() == []

    async def empty(self) -> None:
        for row in await self.model.rows():
            await self.perform(("delete", row.session))


def live(keeping: Keeping, program: Sequence[Act], key: bytes | None) -> None:
    """A parent and a fork of it, to begin with; then what *program* says."""

    async def act() -> None:
        async with keeping(key) as (store, count_rows):
            pair = Pair(store)
            image = ("append", "a", [b"1", BIG, b"3"], {"x": "1"}, True)
            for step in (("create", "a"), image, ("fork", "a", 2, "b"), *program):
                await pair.perform(step)
            await pair.check()
            await pair.empty()
            assert count_rows() == 0

    anyio.run(act)


@asynccontextmanager
async def in_sqlite(key: bytes | None) -> AsyncIterator[Kept]:
    tables = ("session", "label", "segment", "record", "large", "large_body")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.db")
        async with opened(path, key=key) as store:
            yield store, lambda: sum(count(path, table) for table in tables)


@KEYS
@given(program=st.lists(acts, max_size=30))
@settings(max_examples=15)
def test_whatever_is_done_sqlite_says_what_the_store_in_memory_says(
    program: list[Act], key: bytes | None
) -> None:
    live(in_sqlite, program, key)


@pytest.mark.long
@pytest.mark.timeout(3600)
@KEYS
@given(program=st.lists(acts, min_size=20, max_size=120))
@settings(max_examples=3000)
def test_whatever_is_done_for_long_sqlite_says_the_same(
    program: list[Act], key: bytes | None
) -> None:
    live(in_sqlite, program, key)


@pytest.fixture(scope="module")
def in_postgres(postgres_server: PostgresServer) -> Keeping:
    @asynccontextmanager
    async def keeping(key: bytes | None) -> AsyncIterator[Kept]:
        database = Database(postgres_server)
        tables = " UNION ALL ".join(
            f"SELECT count(*) AS n FROM @{table}"
            for table in ("record", "span", "session", "blob", "unfinished")
        )
        async with database.store(key=key) as store:
            yield store, lambda: int(database.sql(f"SELECT sum(n) FROM ({tables}) t")[0][0])

    return keeping


@KEYS
@given(program=st.lists(acts, max_size=30))
@settings(max_examples=8)
def test_whatever_is_done_postgres_says_what_the_store_in_memory_says(
    in_postgres: Keeping, program: list[Act], key: bytes | None
) -> None:
    live(in_postgres, program, key)


@pytest.mark.long
@pytest.mark.timeout(3600)
@KEYS
@given(program=st.lists(acts, min_size=20, max_size=120))
@settings(max_examples=300)
def test_whatever_is_done_for_long_postgres_says_the_same(
    in_postgres: Keeping, program: list[Act], key: bytes | None
) -> None:
    live(in_postgres, program, key)
