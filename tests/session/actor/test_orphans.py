"""No orphan call after random interrupts: not in the history, not in any request."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.session.probes import assert_request_is_sound, run_virtually, said, unpaired
from tests.session.random_lives import Life
from tests.virtual_time import BACKENDS


async def _check(life: Life) -> None:
    for request in life.provider.requests:
        assert_request_is_sound(request, life.provider.profile("m"))
    life.provider.requests.clear()
    assert unpaired(said(life.session.conversation())) == []


def interrupted_lives(interrupts: int, seed: int) -> Counter[str]:
    """Random lives until there were as many interrupts; what they came through."""
    seen: Counter[str] = Counter()
    while sum(seen[result] for result in ("aborted", "kept")) < interrupts:
        seen.update(run_virtually(BACKENDS[seed % 2], Life(seed, turns=6, quiet=_check)))
        seed += 1
    return seen


def assert_it_went_deep(seen: Counter[str], interrupts: int) -> None:
    print(dict(seen))
    assert seen["aborted"] > interrupts * 0.4
    assert seen["kept"] > interrupts * 0.06
    assert seen["dropped with calls"] > interrupts * 0.1
    assert seen["left running"] > interrupts * 0.01


def test_no_call_is_left_without_its_result_after_100_random_interrupts() -> None:
    assert_it_went_deep(interrupted_lives(100, seed=100), 100)


@pytest.mark.long
def test_no_call_is_left_without_its_result_after_10_000_random_interrupts() -> None:
    assert_it_went_deep(interrupted_lives(10_000, seed=100_000), 10_000)


def test_the_pairing_check_sees_what_a_careless_cut_leaves_behind() -> None:
    use, result = {"type": "tool_use", "id": "c"}, {"type": "tool_result", "tool_use_id": "c"}
    assert unpaired([("assistant", [use]), ("user", [result])]) == []
    assert unpaired([("assistant", [use])])
    assert unpaired([("user", [result])])
    assert unpaired([("assistant", [use]), ("user", []), ("user", [result])])
    assert unpaired([("assistant", [use]), ("user", [result, result])])
    assert unpaired([("user", [use]), ("user", [result])])
