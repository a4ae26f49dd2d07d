"""How sessions are found in a SQLite store: a page reads no more than what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmsession.store import Batch, SessionFilter, SqliteStore
from llmsession.store.sqlite.rows import UNFINISHED, filter_sql
from tests.store.sqlite.stage import ANN, opened, raw

pytestmark = pytest.mark.real_time


def plan(path: Path, query: str, bound: list[object]) -> str:
    """How SQLite runs *query*, without the look-ups of owners."""
    with raw(path) as db:
        lines = [
            str(row[-1]) for row in db.execute(f"EXPLAIN QUERY PLAN {query}", bound).fetchall()
        ]
    return "; ".join(line for line in lines if not line.startswith("SEARCH o "))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    async with opened(tmp_path / "s.db") as store:
        await store.rows()
    return tmp_path / "s.db"


@pytest.mark.parametrize(
    ("filter", "begins"),
    [
        (SessionFilter(), "SEARCH s USING PRIMARY KEY (id>?)"),
        (
            SessionFilter(labels={"a": "1", "b": "2"}),
            "SEARCH l USING PRIMARY KEY (name=? AND value=? AND session>?)"
            "; SEARCH s USING PRIMARY KEY (id=?)",
        ),
        (SessionFilter(without=("a",)), "SEARCH s USING PRIMARY KEY (id>?)"),
    ],
)
async def test_a_page_begins_at_its_place_and_is_not_sorted(
    path: Path, filter: SessionFilter, begins: str
) -> None:
    found = plan(path, *filter_sql("x", 10, filter))
    assert found.startswith(begins)
    assert "TEMP B-TREE" not in found
    assert "LIST SUBQUERY" not in found


async def test_unfinished_sessions_are_found_by_their_index(path: Path) -> None:
    assert "USING INDEX session_unfinished" in plan(path, UNFINISHED, ["x"])


NAMES = ("a", 'a"b', "a\\b", "\n", "é", "\u2028", "a\0b", "$.a", "")


async def test_sessions_without_a_label_are_found_whatever_its_name_is(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        for at, name in enumerate(NAMES):
            await labelled(store, str(at), {name: "1", "all": "2"})
        for at, name in enumerate(NAMES):
            found = await store.rows(filter=SessionFilter(labels={"all": "2"}, without=(name,)))
            assert [row.session for row in found] == [
                str(other) for other in range(len(NAMES)) if other != at
            ]
        assert not await store.rows(filter=SessionFilter(without=("all",)))


async def labelled(store: SqliteStore, session: str, labels: dict[str, str]) -> None:
    lease = await store.create(session, ANN)
    store.append(Batch(session, lease.epoch, 0, (b"x",), 1.0, labels), lambda _: None)
    await store.release(lease)  # after the append
