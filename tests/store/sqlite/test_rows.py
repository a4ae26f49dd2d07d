"""How sessions are found in a SQLite store: a page reads no more than what is in it."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest

from llmsession.store import Batch, SessionFilter, SqliteStore
from llmsession.store.sqlite.rows import (
    UNFINISHED_HELD,
    UNFINISHED_LEFT,
    count_sql,
    filter_sql,
    labels_text,
)
from tests.store.sqlite.stage import ANN, opened, raw, steps_of

pytestmark = pytest.mark.real_time


def plan(path: Path, query: str, bound: list[object]) -> str:
    """How SQLite runs *query*, without the look-ups of owners."""
    with raw(path) as db:
        lines = [
            str(row[-1]) for row in db.execute(f"EXPLAIN QUERY PLAN {query}", bound).fetchall()
        ]
    return "; ".join(line for line in lines if not line.startswith("SEARCH o "))


async def made(path: Path) -> Path:
    async with opened(path) as store:
        await store.rows()
    return path


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    return await made(tmp_path / "s.db")


ALL = "SEARCH s USING PRIMARY KEY (id>?)"
VALUE = "SEARCH l USING PRIMARY KEY (name=? AND value=? AND session>?)"
NAME = "SEARCH l USING COVERING INDEX label_name (name=? AND session>?)"
OF_IT = "; SEARCH s USING PRIMARY KEY (id=?)"


@pytest.mark.parametrize(
    ("filter", "lead", "begins"),
    [
        (SessionFilter(), None, ALL),
        (SessionFilter(without=("a",), created_after=1.0, touched_before=2.0), None, ALL),
        (SessionFilter(labels={"a": "1"}, without=("b",)), "a", VALUE + OF_IT),
        (SessionFilter(labels={"a": "1", "b": "2"}), "b", VALUE + OF_IT),
        (SessionFilter(labels={"a": None}), "a", NAME + OF_IT),
        (SessionFilter(labels={"a": None, "b": "2"}), "a", NAME + OF_IT),
        (SessionFilter(labels={"a": None, "b": "2"}), "b", VALUE + OF_IT),
    ],
)
@pytest.mark.parametrize("analyzed", [False, True], ids=["small", "analyzed"])
async def test_a_page_begins_at_its_place_and_is_not_sorted(
    path: Path, filter: SessionFilter, lead: str | None, begins: str, analyzed: bool
) -> None:
    if analyzed:  # by the numbers of rows another plan may seem better
        fill(path, 200)
        with raw(path) as db:
            db.execute("ANALYZE").fetchall()
    found = plan(path, *filter_sql("x", 10, filter, lead))
    assert found.startswith(begins)
    assert not re.search("SCAN (?!json_each)|TEMP B-TREE|LIST SUBQUERY", found)


def fill(path: Path, sessions: int) -> None:
    """Each 10th of them has the label a, each 20th b as well."""
    with raw(path) as db:
        for number in range(1, sessions + 1):
            name = f"{number * 7919 % 99991:05d}"
            labels = {"a": "1"} if number % 10 == 0 else {}
            labels |= {"b": "2"} if number % 20 == 0 else {}
            db.execute(
                "INSERT INTO session (id, epoch, head, log, created_at, touched_at, labels)"
                " VALUES (?, 1, 0, ?, 1.0, 2.0, ?)",
                (name, number, labels_text(labels)),
            )
            db.executemany(
                "INSERT INTO label VALUES (?, ?, ?)", [(*pair, name) for pair in labels.items()]
            )


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store of 400 sessions, and one of 4,000."""
    few, many = (tmp_path_factory.mktemp("rows") / f"{name}.db" for name in ("few", "many"))
    for path, sessions in ((few, 400), (many, 4_000)):
        anyio.run(made, path)
        fill(path, sessions)
    return few, many


@pytest.mark.parametrize(
    ("filter", "lead"),
    [
        (SessionFilter(), None),
        (SessionFilter(without=("a",)), None),
        (SessionFilter(created_after=0.5, touched_before=9.0), None),
        (SessionFilter(labels={"a": "1"}), "a"),
        (SessionFilter(labels={"a": None}), "a"),
        (SessionFilter(labels={"a": None, "b": "2"}), "b"),
        (SessionFilter(labels={"a": "1"}, without=("b",)), "a"),
    ],
)
def test_a_page_takes_as_many_steps_among_ten_times_the_sessions(
    few_and_many: tuple[Path, Path], filter: SessionFilter, lead: str | None
) -> None:
    (few, first), (many, second) = (
        steps_of(path, *filter_sql("1", 10, filter, lead)) for path in few_and_many
    )
    assert first == second == 10
    assert many <= 1.2 * few


async def test_of_several_labels_the_one_of_the_fewest_sessions_is_read(path: Path) -> None:
    fill(path, 200)
    with raw(path) as db:
        for name, value, after, upto, sessions in (
            ("a", "1", "", 100, 20),
            ("a", None, "", 100, 20),
            ("b", "2", "", 100, 10),
            ("b", "2", "", 5, 5),
            ("b", None, "99999", 5, 0),
        ):
            assert db.execute(*count_sql(name, value, after, upto)).get == sessions


async def test_unfinished_sessions_are_found_by_their_index(path: Path) -> None:
    assert "USING INDEX session_left_unfinished" in plan(path, UNFINISHED_LEFT, ["x", 1])
    assert "USING INDEX session_owner (owner=? AND id>?)" in plan(
        path, UNFINISHED_HELD, ["ann", "x", 1]
    )


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
