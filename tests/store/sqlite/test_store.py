"""The SQLite store keeps the contract of every store, in real files, new ones and older ones."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from llmsession.store import Store
from llmsession.store.sqlite.schema import migrate
from llmsession.store.sqlite.store import SqliteStore
from llmsession.testing import CountingContract, StoreContract
from tests.store.sqlite.stage import raw

pytestmark = pytest.mark.real_time


class TestSqliteStore(StoreContract, CountingContract):
    key: bytes | str | None = None

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.files = (tmp_path / f"{number}.db" for number in itertools.count())

    async def make_store(self) -> Store:
        return SqliteStore(next(self.files), key=self.key)


class TestEncryptedSqliteStore(TestSqliteStore):
    key = bytes(range(32))


class TestOlderSqliteFile(TestSqliteStore):
    """In files that were made before records lay in the order in which they arrive."""

    async def make_store(self) -> Store:
        path = next(self.files)
        with raw(path) as db:
            db.pragma("journal_mode", "wal")
            with db:
                migrate(db)
        return SqliteStore(path)
