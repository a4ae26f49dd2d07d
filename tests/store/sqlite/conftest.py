"""A store on a new file, for the tests that need no more of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmsession.store import SqliteStore
from tests.store.sqlite.stage import opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store's file is, once there is one."""
    return tmp_path / "s.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """A store on *path*, closed at the end."""
    async with opened(path) as store:
        yield store
