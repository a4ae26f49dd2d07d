"""What was written to a SQLite file is on the disk."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from llmsession.store.sqlite.sync import sync_file
from tests.store.faulty_vfs import faulty_disk

pytestmark = pytest.mark.real_time


def test_the_file_is_synced_by_the_file_system_that_sqlite_uses(tmp_path: Path) -> None:
    with faulty_disk() as disk:
        disk.on = ".db"
        db = apsw.Connection(str(tmp_path / "s.db"), vfs=disk.vfs)
        db.execute("CREATE TABLE t (x)")
        before = disk.syncs
        assert sync_file(db)
        assert disk.syncs == before + 1
        disk.sync_error = apsw.IOError("no")
        assert not sync_file(db)
        disk.repair()
        db.close()


def test_a_database_without_a_file_has_nothing_to_sync() -> None:
    db = apsw.Connection(":memory:")
    sync_file(db)  # and says so in peace
    db.close()
