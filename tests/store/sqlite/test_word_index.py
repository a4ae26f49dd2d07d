"""Which logs a search of a SQLite store looks at: those that have changed since the last one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from llmsession.store import SqliteStore
from llmsession.store.protocol import Word
from llmsession.store.sqlite import word_index
from llmsession.store.sqlite.schema import FIRST_VERSION, STEPS
from llmsession.store.sqlite.word_index import WORDS_FOUND, fts_query
from llmsession.testing.store_contract.actions import written
from tests.store.sqlite.stage import ANN, opened, raw, steps_of

pytestmark = pytest.mark.real_time


class Search:
    """Searches *store*, and notes which records are read for it."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.read: list[str] = []

    def _words_of(self, body: bytes) -> Iterable[str]:
        self.read.append(body.decode())
        return body.decode().split()

    async def find(self, word: str) -> list[str]:
        self.read.clear()
        rows = await self._store.rows_with([Word(word)], self._words_of)
        return [row.session for row in rows]


async def test_a_search_reads_only_what_is_new(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        search = Search(store)
        leases = {
            name: await written(store, await store.create(name, ANN), b"old") for name in "abc"
        }
        assert await search.find("old") == ["a", "b", "c"]
        assert search.read == ["old"] * 3
        await written(store, leases["b"], b"new")
        assert await search.find("new") == ["b"]
        assert search.read == ["new"]
        assert await search.find("new") == ["b"]
        assert not search.read


async def test_more_logs_than_a_page_are_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_index, "PAGE", 2)
    async with opened(tmp_path / "s.db") as store:
        search = Search(store)
        for name in "abcde":
            await written(store, await store.create(name, ANN), b"old")
        assert await search.find("old") == [*"abcde"]


async def test_what_a_fork_and_a_rewriting_leave_is_indexed_though_its_session_is_gone(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "s.db") as store:
        search = Search(store)
        assert not await search.find("x")
        lease = await written(store, await store.create("a", ANN), b"one", b"two")
        fork = await store.fork("a", 2, "f", ANN)
        await store.rewrite(fork, {2: b"three"})
        await store.delete("a")
        assert await search.find("one") == ["f"]
        assert await search.find("three") == ["f"]
        assert not await search.find("two")
        assert lease.head == 2


async def test_the_index_of_an_earlier_version_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with opened(path) as store:
        await written(store, await store.create("a", ANN), b"one")
        assert await Search(store).find("one") == ["a"]
    with raw(path) as db:
        db.execute("DROP TABLE unindexed; DELETE FROM word; DELETE FROM indexed").fetchall()
        db.execute("DROP TABLE snapshot; DROP INDEX label_name").fetchall()  # of later steps
        db.execute("DELETE FROM owner").fetchall()  # who holds a session would have to end first
        db.pragma("user_version", FIRST_VERSION + STEPS.index(word_index_step()) - 1)
    async with opened(path) as store:
        assert await Search(store).find("one") == ["a"]


def word_index_step() -> str:
    return next(step for step in STEPS if "DROP TABLE IF EXISTS indexed" in step)


@pytest.mark.parametrize(("shared", "own"), [(250, 1), (300, 500)])
async def test_all_that_a_fork_says_is_indexed_wherever_its_log_begins(
    tmp_path: Path, shared: int, own: int
) -> None:
    async with opened(tmp_path / "s.db") as store:
        await written(store, await store.create("a", ANN), *[b"old"] * shared)
        fork = await store.fork("a", shared, "f", ANN)
        await written(store, fork, *[b"new"] * (own - 1), b"last")
        assert await Search(store).find("last") == ["f"]


async def test_a_rewritten_record_that_was_shared_is_indexed(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        lease = await written(store, await store.create("a", ANN), *[b"old"] * 300)
        await store.fork("a", 300, "f", ANN)
        await store.rewrite(lease, {280: b"changed"})
        assert await Search(store).find("changed") == ["a"]


async def test_a_check_after_a_search_finds_no_fault_in_an_index_that_has_changed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"
    async with opened(path) as store, opened(path) as other:
        lease = await store.create("a", ANN)
        for _ in range(20):  # so many that SQLite joins parts of the index
            lease = await written(store, lease, b"word")
            assert await Search(other).find("word") == ["a"]
            assert list(await store.check()) == []
            assert await Search(store).find("word") == ["a"]


async def test_a_search_does_not_compare_each_record_with_each_fork(tmp_path: Path) -> None:
    steps: list[int] = []
    query = f"SELECT s.id FROM session AS s WHERE {WORDS_FOUND}"
    words: list[object] = [fts_query(Word("said"))] * 2
    async with opened(tmp_path / "s.db") as store:
        await written(store, await store.create("a", ANN), *[b"said"] * 500)
        for number in range(20):
            await store.fork("a", 500, f"f{number:02}", ANN)
            if number in (4, 19):
                assert len(await Search(store).find("said")) == number + 2
                taken, found = steps_of(tmp_path / "s.db", query, words)
                assert found == number + 2
                steps.append(taken)
    assert 0 < (steps[1] - steps[0]) / 15 < 500
