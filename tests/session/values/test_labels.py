"""Labels: what a session is found by."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from llmsession import InvalidInput, MemoryStore, SessionConfig, SessionFilter
from llmsession.turns import records as r
from tests.session.actors import stage

CONFIG = SessionConfig(model="m")


async def test_a_session_is_made_with_labels_and_found_by_them() -> None:
    async with stage() as on:
        one = await on.manager.create(CONFIG, session_id="one", labels={"user": "7", "kind": "a"})
        await on.manager.create(CONFIG, session_id="two", labels={"user": "8"})
        assert one.labels == {"user": "7", "kind": "a"}

        async def found(**labels: str | None) -> list[str]:
            return [
                row.session for row in await on.manager.list(filter=SessionFilter(labels=labels))
            ]

        assert await found(user="7") == ["one"]
        assert await found(user=None) == ["one", "two"]
        assert await found(user="7", kind="b") == []
        assert await found() == ["one", "s", "two"]


async def test_new_labels_are_in_place_of_the_old_ones_also_while_a_turn_is_open() -> None:
    async with stage(["one"]) as on:
        await on.session.label({"user": "7"})
        turn = await on.session.send("hello")
        await on.session.label({"state": "asked"})
        assert on.session.labels == {"state": "asked"}
        await turn.text()
        assert (await on.store.row("s")).labels == {"state": "asked"}
        await on.session.label({})
        assert on.session.labels == {}
        assert (await on.store.row("s")).labels == {}


async def test_what_is_read_is_a_copy() -> None:
    async with stage() as on:
        labels = {"user": "7"}
        await on.session.label(labels)
        labels["user"] = "8"
        on.session.labels["user"] = "9"
        assert on.session.labels == {"user": "7"}


async def test_labels_survive_a_restart_and_are_in_the_log() -> None:
    store = MemoryStore()
    async with stage(store=store) as on:
        await on.session.label({"user": "é"}, command_id="k")
        await on.session.label({"user": "é"}, command_id="k")
        records = await on.log()
        assert [record.labels for record in records if isinstance(record, r.SessionLabelled)] == [
            {"user": "é"}
        ]
    async with stage(store=store, reopen=True) as on:
        assert on.session.labels == {"user": "é"}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["user"], "texts by name"),
        ({"user": 7}, "'user' is not a valid text"),
        ({7: "user"}, "label name 7"),
        ({"": "x"}, "0 characters"),
        ({"a\nb": "x"}, "printable"),
        ({"k" * 65: "x"}, "65 characters"),
        ({"k": "x" * 257}, "257 characters"),
        ({"k": "\ud800"}, "'k' is not a valid text"),
        ({str(n): "" for n in range(65)}, "at most 64"),
    ],
)
async def test_what_is_no_label_is_refused_by_name_and_changes_nothing(
    labels: Any, message: str
) -> None:
    async with stage() as on:
        await on.session.label({"user": "7"})
        with pytest.raises(InvalidInput, match=message):
            await on.session.label(labels)
        with pytest.raises(InvalidInput, match=message):
            await on.manager.create(CONFIG, session_id="other", labels=labels)
        assert on.session.labels == {"user": "7"}
        assert await on.names() == ["s"]


async def test_labels_of_the_largest_size_are_taken() -> None:
    labels = {f"{n:064}": "é" * 256 for n in range(64)}
    async with stage() as on:
        await on.session.label(labels)
        assert on.session.labels == labels


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"touched_after": datetime(2026, 1, 5, tzinfo=UTC)}, r"touched_after.*timestamp\(\)"),
        ({"labels": {"user": 7}}, "labels"),
        ({"created_before": "monday"}, "created_before"),
        ({"labels": {f"l{number}": "x" for number in range(65)}}, "65 labels.*at most 64"),
    ],
)
async def test_a_search_by_what_is_no_time_or_label_is_refused_by_name(
    fields: Any, message: str
) -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput, match=message):
            await on.manager.list(filter=SessionFilter(**fields))
