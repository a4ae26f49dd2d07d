"""Several policies on one file: a golden table, prices, sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.policies import Balanced, FullHistory, make_policy, policy_names
from llmsession.errors import InvalidInput
from llmsession.lab.comparing import compare, ready, summed
from llmsession.transcripts import detect, read
from llmsession.turns.spending.prices import Price, PriceTable
from tests.lab.recorded import Recorded, call, result
from tests.lab.talks import long_talk

POLICIES = (Balanced(), FullHistory())


def test_the_rows_of_a_small_conversation() -> None:
    """Golden: what these rows say is worked out beside them."""
    talk = Recorded("claude-opus-4-6").ask("hello").reply([call("c1")], None)
    talk.answer(result("c1", "row_of_result")).reply("row_of_result", None)
    (subject,) = ready([talk.done()])
    (found,) = compare("f", [subject], [FullHistory()], [200_000])
    first, second = (step.tokens for step in found.curve.steps) if found.curve else (0, 0)
    row = found.row
    assert (row.file, row.policy, row.window, row.unit) == (
        "f",
        "full_history",
        200_000,
        "input_tokens",
    )
    assert (row.requests, row.tokens_sent) == (2, first + second)
    assert (row.cache_read, row.cache_write) == (first, second)
    assert row.cost == round(first * 0.1 + second * 1.25)
    assert (row.retained, row.recallable, row.peak_context) == (1.0, None, second)


def test_a_row_a_window_and_policy_in_their_order() -> None:
    subjects = ready([long_talk().done()])
    rows = [each.row for each in compare("f", subjects, POLICIES, [16_000, 200_000])]
    assert [(row.window, row.policy) for row in rows] == [
        (16_000, "balanced"), (16_000, "full_history"),
        (200_000, "balanced"), (200_000, "full_history"),
    ]  # fmt: skip
    # With room for everything they do the same.
    assert rows[2].cost == rows[3].cost
    assert rows[2].retained == rows[3].retained == 1.0


def test_conversations_without_a_request_and_small_ones_are_left_out() -> None:
    talks = [Recorded().ask().done(), long_talk(3).done(), long_talk().done()]
    assert len(ready(talks)) == 2
    assert len(ready(talks, min_tokens=10_000)) == 1


def test_costs_in_dollars_are_by_the_models_price() -> None:
    subjects = ready([long_talk(3, model="my-model").done()])
    price = Price.usd("2", "10", cache_read="0.2", cache_write_5m="2.5")
    table = PriceTable({"my-model": price})
    (dollars,) = compare("f", subjects, [FullHistory()], [200_000], prices=table)
    (relative,) = compare("f", subjects, [FullHistory()], [200_000])
    assert dollars.row.unit == "usd"
    assert dollars.row.cost == pytest.approx(relative.row.cost * 2e-6, rel=1e-4)


def test_a_model_without_a_price_is_named() -> None:
    subjects = ready([long_talk(3, model="my-model").done()])
    with pytest.raises(InvalidInput, match="no price for model 'my-model'"):
        list(compare("f", subjects, [FullHistory()], [200_000], prices=PriceTable({})))


def test_sums_are_of_what_was_counted() -> None:
    small, large = ready([long_talk(12).done()]), ready([long_talk(30).done()])
    rows = [
        *compare("small", small, POLICIES, [16_000]),
        *compare("large", large, POLICIES, [16_000]),
    ]
    both = list(compare("both", [*small, *large], POLICIES, [16_000]))
    assert [each.row for each in summed("both", rows)] == [each.row for each in both]


@pytest.mark.parametrize(
    ("window", "steps"),
    [(16_000, 24), (32_000, 48), pytest.param(16_000, 120, marks=pytest.mark.long)],
)
def test_every_policy_sends_valid_requests_on_a_written_conversation(
    window: int, steps: int
) -> None:
    subjects = ready([long_talk(steps, lines=30).ask("and more?").reply("no", None).done()])
    policies = [make_policy(name) for name in policy_names()]
    for each in compare("f", subjects, policies, [window]):
        assert each.row.invalid_requests == 0, (each.row.policy, each.faults)


def one_by_one(steps: int) -> Recorded:
    """Two calls a step, each in a reply of its own, and each result in a message of its own, as
    some systems record them."""
    talk = Recorded("claude-opus-4-6").ask("go")
    for step in range(steps):
        for part in "ab":
            talk.reply([{"type": "text", "text": "a word " * 20}, call(f"{part}{step}")], None)
        for part in "ab":
            talk.answer(result(f"{part}{step}", f"row_of_{step}_{part} is here\n" * 40))
    return talk.reply("done", None)


@pytest.mark.parametrize(
    ("window", "steps"),
    [(6_000, 16), (16_000, 32), pytest.param(6_000, 80, marks=pytest.mark.long)],
)
def test_every_policy_keeps_calls_with_results_that_were_recorded_one_by_one(
    window: int, steps: int
) -> None:
    subjects = ready([one_by_one(steps).done()])
    policies = [make_policy(name) for name in policy_names()]
    for each in compare("f", subjects, policies, [window]):
        assert each.row.invalid_requests == 0, (each.row.policy, each.faults)


@pytest.mark.parametrize("most", [400_000, pytest.param(3_000_000, marks=pytest.mark.long)])
def test_recorded_conversations_are_replayed_without_an_invalid_request(
    shared_data: Path, most: int
) -> None:
    """A sample: a recording of at most so many bytes of each source that has one."""
    compared = 0
    policies: list[Policy] = [Balanced(), FullHistory(), make_policy("swap_tool_results")]
    for source in sorted(each for each in shared_data.iterdir() if each.is_dir()):
        files = sorted((f for f in source.rglob("*") if f.is_file()), key=_size)
        small = (f.read_bytes() for f in files if 5_000 < _size(f) < most)
        known = next((raw for raw in small if detect(raw) is not None), None)
        if known is None:
            continue
        for each in compare(source.name, ready(read(known)), policies, [16_000]):
            assert each.row.invalid_requests == 0, each.faults
            compared += each.row.requests
    assert compared > 0


def _size(file: Path) -> int:
    return file.stat().st_size
