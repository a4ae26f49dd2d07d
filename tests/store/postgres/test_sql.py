"""The statements in PostgreSQL: how they find what they look for."""

from __future__ import annotations

import re

import pytest

from llmsession.store import Owner
from llmsession.store.cipher import PLAIN
from llmsession.store.postgres.connections import SETTLE
from llmsession.store.postgres.sql import Statements, label_marks
from tests.store.conftest import Database

pytestmark = pytest.mark.real_time

FOUND_BY_INDEX = (
    "create", "just_made", "rows_of", "rows", "holder", "take", "release", "lease", "read",
    "parent", "fork", "settle", "unfinished", "forget_finished", "appends",
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


def test_a_label_is_not_taken_for_another_one_by_its_marks() -> None:
    names = ["a", "b", "ab", "", '"', ",", "\0"]
    marks = {mark for name in names for mark in label_marks({name: None}, PLAIN)}
    assert len(marks) == len(names)
    pairs = {
        label_marks({name: value}, PLAIN)[1] for name in names for value in [*names, '","', "]"]
    }
    assert len(pairs) == len(names) * (len(names) + 2)
    assert not pairs & marks
