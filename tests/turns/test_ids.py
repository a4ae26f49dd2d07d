from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.errors import InvalidInput
from llmsession.turns.ids import Owner, TurnCounter, TurnId, turn_number


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.sampled_from(["u", "a"]), st.integers(1, 10**18 - 1))
def test_what_an_id_prints_parses_to_the_same_id(owner: Owner, number: int) -> None:
    turn = TurnId(owner, number)
    assert str(turn) == f"{owner}{number}"
    assert TurnId.parse(str(turn)) == turn


@pytest.mark.parametrize(
    "printed",
    [
        "", "u", "7", "u0", "u07", "u-1", "u+1", "U7", "x7", "u7 ", " u7", "u7\n", "u 7", "u7.0",
        "uu7", "u7a", "u\u0667", "u\uff17", "u1" + "0" * 18,
    ],
)  # fmt: skip
def test_what_no_id_prints_is_refused_and_shown(printed: str) -> None:
    with pytest.raises(InvalidInput, match="not a turn id"):
        TurnId.parse(printed)


@pytest.mark.parametrize("turn", [7, "u7", "a7", TurnId("u", 7), TurnId("a", 7)])
def test_only_the_number_counts_where_a_turn_is_named(turn: TurnId | str | int) -> None:
    assert turn_number(turn) == 7


@pytest.mark.parametrize("turn", [0, -1, "u0", "seven", TurnId("u", 0), TurnId("a", -3)])
def test_a_name_of_no_turn_is_refused(turn: TurnId | str | int) -> None:
    with pytest.raises(InvalidInput):
        turn_number(turn)


def test_numbers_start_at_1_and_never_come_back() -> None:
    counter = TurnCounter()
    assert [counter.next(), counter.next()] == [1, 2]
    counter.saw(9)
    counter.saw(4)
    assert (counter.next(), counter.last) == (10, 10)


def test_a_counter_goes_on_where_an_earlier_life_stopped() -> None:
    assert TurnCounter(41).next() == 42
