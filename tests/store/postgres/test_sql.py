"""The statements in PostgreSQL: how they find what they look for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from llmsession.store import Owner, SessionFilter, Word
from llmsession.store.cipher import PLAIN
from llmsession.store.postgres.connections import SETTLE
from llmsession.store.postgres.schema import OPEN
from llmsession.store.postgres.sql import Page, Statements, label_marks
from llmsession.store.protocol import EVERYTHING
from tests.store.conftest import Database

pytestmark = pytest.mark.real_time

FOUND_BY_INDEX = (
    "create", "just_made", "rows_of", "rarest", "holder", "take", "release", "lease", "read",
    "read_plain", "read_small", "parent", "fork", "settle", "unfinished", "forget_finished",
    "appends",
)  # fmt: skip


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", FOUND_BY_INDEX)
async def test_no_statement_reads_a_whole_table_though_it_is_small_now(
    database: Database, name: str
) -> None:
    """Its plan is made while the tables are empty, and kept while they grow."""
    if database.sql("SELECT current_setting('server_version_num')::int < 160000") == [(True,)]:
        pytest.skip("this server cannot explain a plan without the values")
    async with database.store() as store:
        await store.create("s", Owner("ann"))
        with database.server.session() as session:
            session.run(SETTLE)
            found = getattr(Statements(database.schema), name)
            lines: list[str] = []
            for statement in found.values() if isinstance(found, dict) else [found]:
                count = max(map(int, re.findall(r"\$(\d+)", statement)))
                explain = f"EXPLAIN (GENERIC_PLAN, COSTS OFF) {statement}"
                lines += [line for (line,) in session.ask(explain, *[None] * count)]
    whole = [line for line in lines if re.search("Seq Scan on (?!store)", line)]
    assert whole == [], "\n".join(lines)


TENANT, STARRED = label_marks({"tenant": "7"}, PLAIN), label_marks({"starred": "yes"}, PLAIN)
OLD = SessionFilter(created_after=0.5, touched_before=9.5)
PAGES = {
    "all": Page("s1", 10, EVERYTHING),
    "of a time": Page("s1", 10, OLD),
    "with a label": Page("s1", 10, EVERYTHING, TENANT, (), TENANT[1]),
    "with a label of any value": Page("s1", 10, EVERYTHING, TENANT[:1], (), TENANT[0]),
    "with two labels": Page("s1", 10, EVERYTHING, [*STARRED, *TENANT], (), STARRED[1]),
    "with a label and without one": Page("s1", 10, OLD, TENANT, STARRED, TENANT[1]),
    "with a label and a word": Page("s1", 10, OLD, TENANT, (), TENANT[1], ("'hay'", "'w':*")),
}


async def fill(database: Database, first: int, last: int) -> None:
    """Sessions with these numbers. Each 10th is of the tenant, each 20th is starred."""
    database.sql(
        """
        INSERT INTO @session (id, log, epoch, head, created_at, touched_at, label_marks, unindexed)
        SELECT 's' || lpad((n * 7919 % 99991)::text, 5, '0'), -n, 1, 1, 1, 2,
               CASE WHEN n % 20 = 0 THEN $3::bytea[] || $4::bytea[]
                    WHEN n % 10 = 0 THEN $3::bytea[] END, false
          FROM generate_series($1::int, $2::int) AS n
        """,
        *(first, last, TENANT, STARRED),
    )
    for statement in (
        "INSERT INTO @label SELECT substring(m FOR 8), id FROM @session, unnest(label_marks) m",
        f"INSERT INTO @span SELECT id, 1, {OPEN}, log, id FROM @session",
        f"INSERT INTO @word SELECT -n, 1, 'hay word' FROM generate_series({first}, {last}) n",
        "INSERT INTO @record SELECT log, 1, 1, '' FROM @session",
    ):
        database.sql(f"{statement} ON CONFLICT DO NOTHING")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_page_reads_as_many_rows_of_ten_times_the_sessions_and_sorts_none(
    database: Database,
) -> None:
    async with database.store() as store:
        await store.rows_with([Word("hay")], lambda _: ["hay"])
        visited: dict[str, list[float]] = {name: [] for name in PAGES}
        for first, last, analyzed in ((1, 400, False), (401, 4_000, False), (4_001, 4_000, True)):
            await fill(database, first, last)
            if analyzed:  # by the numbers of rows another plan may seem better
                database.sql("ANALYZE @session")
                database.sql("ANALYZE @label")
            with database.server.session() as session:
                session.run(SETTLE)
                for name, page in PAGES.items():
                    statement, values = Statements(database.schema).page(page)
                    [(plan,)] = session.ask(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
                    nodes = list(nodes_of(json.loads(plan)[0]["Plan"]))
                    kinds = {node["Node Type"] for node in nodes}
                    assert not kinds & {"Sort", "Incremental Sort", "Seq Scan"}, (name, plan)
                    visited[name].append(sum(map(rows_read, nodes)))
        assert await store.check() == []
    for name, counts in visited.items():
        assert max(counts) <= 1.3 * counts[0], (name, counts)


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


def rows_read(node: dict[str, Any]) -> float:
    """The rows that a node returned, and those that it looked at and left out."""
    left_out = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
    return float((node["Actual Rows"] + left_out) * node["Actual Loops"])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_several_labels_the_one_of_the_fewest_sessions_is_read(
    database: Database,
) -> None:
    async with database.store() as store:
        await store.rows_with([Word("hay")], lambda _: ["hay"])
        await fill(database, 1, 200)
        with database.server.session() as session:
            rarest = Statements(database.schema).rarest
            marks = [TENANT[1], STARRED[1], label_marks({"x": "y"}, PLAIN)[1]]
            assert session.ask(rarest, marks, "", 100) == [(marks[2], 0)]
            assert session.ask(rarest, marks[:2], "", 100) == [(marks[1], 10)]
            assert session.ask(rarest, marks[:2], "", 5) == [(marks[0], 5)]
            assert session.ask(rarest, marks[:1], "t", 5) == [(marks[0], 0)]
            for labels in ({"tenant": "7", "starred": None}, {"starred": "yes", "tenant": None}):
                assert len(await store.rows(filter=SessionFilter(labels=labels))) == 10


def test_a_label_is_not_taken_for_another_one_by_its_marks() -> None:
    names = ["a", "b", "ab", "", '"', ",", "\0"]
    marks = {mark for name in names for mark in label_marks({name: None}, PLAIN)}
    assert len(marks) == len(names)
    pairs = {
        label_marks({name: value}, PLAIN)[1] for name in names for value in [*names, '","', "]"]
    }
    assert len(pairs) == len(names) * (len(names) + 2)
    assert not pairs & marks


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_search_does_not_compare_each_record_with_each_fork(database: Database) -> None:
    """The log -1 has a word up to 500 and from 601 on. The other sessions have parts of it."""
    parts = {2: (510, 590), 3: (200, 300), 4: (400, 700)}
    read: list[float] = []
    async with database.store() as store:
        await store.rows_with([Word("hay")], lambda _: ["hay"])
        await fill(database, 1, 1)
        for first, last in ((2, 500), (601, 1_000)):
            database.sql(
                "INSERT INTO @word SELECT -1, n, 'hay' FROM generate_series($1::int, $2::int) n",
                *(first, last),
            )
        for lowest, highest in ((2, 24), (25, 44)):
            await fill(database, lowest, highest)
            for number in range(lowest, highest + 1):
                database.sql("DELETE FROM @word WHERE log = -$1::int", number)
                database.sql(
                    "UPDATE @span SET first = $2::int, last = $3::int, log = -1 WHERE session ="
                    " (SELECT id FROM @session WHERE log = -$1::int)",
                    *(number, *parts.get(number, (1, 900))),
                )
            with database.server.session() as session:
                session.run(SETTLE)
                page = Page("", 1_000, EVERYTHING, queries=("'hay'",))
                statement, values = Statements(database.schema).page(page)
                found = {row[0] for row in session.ask(statement, *values)}
                [(plan,)] = session.ask(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
                read.append(sum(map(rows_read, nodes_of(json.loads(plan)[0]["Plan"]))))
            rows = database.sql("SELECT id, log FROM @session")
            assert {log for name, log in rows if name not in found} == {-2}
    assert 0 < (read[1] - read[0]) / 20 < 50
