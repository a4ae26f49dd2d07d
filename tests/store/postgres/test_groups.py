"""Which batches go into one commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.store import Batch
from llmsession.store.cipher import PLAIN
from llmsession.store.counting import Charge
from llmsession.store.large_batches import LargeBatches
from llmsession.store.postgres.groups import Entry, arguments, form_group
from llmsession.store.postgres.sql import Shape, account_mark
from llmsession.turns.spending.spending import Spending

NOBODY: Any = None


def entry(session: str, head: int, *bodies: bytes, epoch: int = 1, alone: bool = False) -> Entry:
    made = Entry(Batch(session, epoch, head, bodies or (b"x",)), NOBODY, NOBODY)
    made.alone = alone
    return made


def formed(
    waiting: deque[Entry], large: LargeBatches | None = None, **options: Any
) -> list[list[Entry]]:
    return [unit.entries for unit in form_group(waiting, large or LargeBatches(), **options)]


def test_batches_that_follow_each_other_are_one_unit() -> None:
    chain = [entry("s", 0, b"1", b"2"), entry("s", 2), entry("s", 3)]
    assert formed(deque(chain)) == [chain]


def test_a_batch_that_does_not_follow_waits_and_so_do_all_of_its_session_after_it() -> None:
    first, astray, third = entry("s", 0), entry("s", 5), entry("s", 1)
    other = entry("t", 0)
    waiting = deque([first, astray, third, other])
    assert formed(waiting) == [[first], [other]]
    assert list(waiting) == [astray, third]


def test_what_failed_in_a_group_is_tried_alone() -> None:
    entries = [entry("a", 0), entry("b", 0, alone=True), entry("b", 1, alone=True), entry("c", 0)]
    waiting = deque(entries)
    groups = []
    while waiting:
        groups.append(formed(waiting))
    assert groups == [[[one]] for one in entries]


def test_a_group_ends_with_the_batch_that_makes_it_large_enough() -> None:
    entries = [entry(f"s{at}", 0, b"x" * 10) for at in range(5)]
    assert len(formed(deque(entries), max_bytes=25)) == 3
    assert len(formed(deque(entries), max_batches=2)) == 2
    assert len(formed(deque([entry("s", 0, b"x" * 100)]), max_bytes=1)) == 1


def test_small_batches_overtake_the_large_ones_that_a_group_has_no_room_for() -> None:
    hot = [entry(f"hot {at}", 0, bytes(700_000)) for at in range(3)]
    quiet = [entry(f"quiet {at}", 0) for at in range(3)]
    waiting = deque([hot[0], quiet[0], hot[1], quiet[1], hot[2], quiet[2]])
    assert formed(waiting) == [[hot[0]], [quiet[0]], [quiet[1]], [quiet[2]]]
    assert list(waiting) == [hot[1], hot[2]]
    assert [formed(waiting), formed(waiting)] == [[[hot[1]]], [[hot[2]]]]


def test_while_small_batches_wait_every_second_group_has_none_but_small_ones() -> None:
    hot = [entry(f"hot {at}", 0, bytes(2_000_000)) for at in range(3)]
    waiting, large = deque(hot), LargeBatches()
    for at in range(3):
        one, two = entry(f"quiet {at}", 0), entry(f"quiet {at}", 1)
        waiting.append(one)
        assert formed(waiting, large) == [[hot[at]], [one]]
        assert formed(deque(), large) == []  # nobody waits for this one
        waiting.append(two)
        assert formed(waiting, large) == [[two]]
    assert not waiting


def test_units_are_in_the_order_of_their_sessions() -> None:
    waiting = deque([entry(name, 0) for name in "cab"])
    assert [unit.first.session for unit in form_group(waiting, LargeBatches())] == ["a", "b", "c"]


def test_a_groups_rows_are_told_in_columns() -> None:
    waiting = deque([entry("a", 4, b"one"), entry("b", 0, b"", b"two", b"three"), entry("b", 3)])
    waiting.append(Entry(Batch("c", 1, 7, ()), NOBODY, NOBODY))
    shape, columns = arguments(form_group(waiting, LargeBatches()), PLAIN)
    columns = cast(Sequence[Sequence[object]], columns)
    assert shape == Shape(
        lone=False, single=False, marked=False, plain=True, labelled=False, charged=False
    )
    assert [list(column) for column in columns] == [
        ["a", "b", "c"],
        [1, 1, 1],
        [4, 0, 7],
        [0.0, 0.0, 0.0],
        [b"one", b"twothreex", b""],
        [None, "{1,1,4,9}", "{}"],
        [None, "{0,3,5,1}", "{}"],
    ]


def test_what_a_units_batches_spent_is_one_charge_and_two_accounts_are_two_units() -> None:
    def charged(head: int, account: str | None, tokens: int) -> Entry:
        charge = None if account is None else Charge(account, Spending(tokens, 1, frozenset("m")))
        return Entry(Batch("s", 1, head, (b"x",), charge=charge), NOBODY, NOBODY)

    waiting = deque([charged(0, "a", 2), charged(1, None, 0), charged(2, "a", 3)])
    waiting.append(charged(3, "b", 5))
    units = form_group(waiting, LargeBatches())
    assert [unit.charge for unit in units] == [Charge("a", Spending(5, 2, frozenset("m")))]
    shape, columns = arguments(units, PLAIN)
    assert shape == Shape(
        lone=True, single=False, marked=False, plain=True, labelled=False, charged=True
    )
    account = account_mark("a", PLAIN)
    assert list(columns[7:]) == [account, "5", "2", '{"\\\\x6d"}']
    assert [unit.charge for unit in form_group(waiting, LargeBatches())] == [
        Charge("b", Spending(5, 1, frozenset("m")))
    ]


def test_the_last_mark_of_a_unit_counts() -> None:
    waiting = deque(
        Entry(Batch("s", 1, head, (b"x",), unfinished=mark), NOBODY, NOBODY)
        for head, mark in enumerate((True, False, None))
    )
    [unit] = form_group(waiting, LargeBatches())
    assert unit.unfinished is False


batches = st.builds(
    lambda session, epoch, head, count, alone: entry(
        session, head, *[b"x"] * count, epoch=epoch, alone=alone
    ),
    st.sampled_from("abc"),
    st.integers(1, 2),
    st.integers(0, 4),
    st.integers(1, 2),
    st.booleans(),
)


@settings(max_examples=300)
@given(st.lists(batches, max_size=20), st.sets(st.sampled_from("abc"), max_size=2))
def test_every_batch_is_taken_once_and_each_session_in_its_order(
    entries: list[Entry], busy: set[str]
) -> None:
    waiting = deque(entries)
    taken: list[Entry] = []
    large = LargeBatches()
    while units := form_group(waiting, large, busy):
        for unit in units:
            heads = [unit.first.head]
            for one in unit.entries:
                assert one.batch.session not in busy
                assert (one.batch.epoch, one.batch.head) == (unit.first.epoch, heads[-1])
                heads.append(heads[-1] + len(one.batch.bodies))
            assert unit.head == heads[-1]
            taken += unit.entries
        if any(one.alone for unit in units for one in unit.entries):
            assert [len(unit.entries) for unit in units] == [1]
    for session in "abc":
        asked = [one for one in entries if one.batch.session == session]
        got = [one for one in taken if one.batch.session == session]
        left = [one for one in waiting if one.batch.session == session]
        assert (got, left) == (([], asked) if session in busy else (asked, []))
