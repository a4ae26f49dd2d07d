"""A table behaves as a dictionary does, and its copies stay as they were."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from llmsession.session.values import tables
from llmsession.session.values.tables import Part, Table, last_values, remove

STEPS = 4_000


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PART_ENTRIES", 8)


def turn(rng: random.Random, at: int) -> int:
    """A turn that is about the newest, or any."""
    return max(0, at // 8 - rng.randrange(6)) if rng.random() < 0.8 else rng.randrange(at // 8 + 2)


def call(rng: random.Random, at: int) -> str:
    return f"call {rng.randrange(at // 4 + 1)}"


def check(table: Table[Any, Any], entries: dict[Any, Any]) -> None:
    assert [*table.items()] == [*entries.items()]
    assert [*table] == [*entries]
    assert [*table.values()] == [*entries.values()]
    assert [*reversed(table)] == [*reversed(entries)]
    assert len(table) == len(entries)
    assert table == entries
    for count in (0, 1, 7, 9, 30, len(entries) + 1, -1):
        assert last_values(table, count) == last_values(entries, count)


@pytest.mark.parametrize("key", [turn, call])
@pytest.mark.parametrize("seed", range(4))
def test_a_table_does_what_a_dictionary_does(
    seed: int, key: Callable[[random.Random, int], Any]
) -> None:
    rng = random.Random(seed)
    table, entries = Table[Any, Any](), dict[Any, Any]()
    copies: list[tuple[Table[Any, Any], dict[Any, Any]]] = []
    for at in range(STEPS):
        name = key(rng, at)
        assert table.get(name) == entries.get(name)
        assert (name in table) == (name in entries)
        match rng.randrange(16):
            case 0 | 1:
                assert table.pop(name, None) == entries.pop(name, None)
            case 2 if at % 7 == 0:
                names = {key(rng, at) for _ in range(rng.randrange(12))}
                remove(table, names)
                remove(entries, names)
            case 3 if at % 11 == 0:
                copies.append((table.copy(), entries.copy()))
            case _:
                table[name] = entries[name] = at
    check(table, entries)
    assert len(copies) > 10
    for copied, before in copies:
        check(copied, before)


def test_a_missing_key_is_a_key_error() -> None:
    table = Table.of({turn: turn for turn in range(20)})
    for missing in (20, -1):
        with pytest.raises(KeyError):
            table[missing]
        with pytest.raises(KeyError):
            del table[missing]


def test_a_part_is_unpacked_when_a_key_between_its_keys_is_looked_for_and_only_once() -> None:
    unpacked: list[bytes] = []

    def unpack(packed: bytes) -> dict[int, str]:
        unpacked.append(packed)
        return {10 * int(packed) + at: packed.decode() for at in range(10)}

    parts = [
        Part[int, str](10, 10 * at, 10 * at + 9, packed=b"%d" % at, unpack=unpack)
        for at in range(5)
    ]
    table = Table(parts)
    table[50] = "new"
    assert len(table) == 51
    assert table.copy()[50] == "new"
    assert table.get(51) is None
    assert last_values(table, 1) == ["new"]
    assert unpacked == []
    assert (table[23], table[27]) == ("2", "2")
    remove(table, {31, 44})
    assert last_values(table.copy(), 3) == ["4", "4", "new"]
    assert unpacked == [b"2", b"4", b"3"]
    # What was not changed is not packed again.
    assert [part.packed for part in table.parts()] == [b"0", b"1", b"2", None, None, None]
