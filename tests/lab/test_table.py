"""Rows, sums over conversations, and the Pareto frontier of cost against retained facts."""

from __future__ import annotations

from typing import Any

from llmsession.lab.cache import Charged
from llmsession.lab.replaying import Figures, Replayed
from llmsession.lab.table import Row, frontier, row_of

COLUMNS = [
    "file", "policy", "window", "requests", "tokens_sent", "cache_write", "cache_read", "cost",
    "peak_context", "rewrites", "summaries", "retained", "recallable", "recalls", "recall_cost",
    "invalid_requests", "too_large", "rescues", "unit", "schedule",
]  # fmt: skip


def replayed(**fields: Any) -> Replayed:
    found = Replayed(**{"requests": 3, "needs": 10, "retained": 8, "recallable": 1, **fields})
    found.spent.add(Charged(1_000, 500, 725_000))
    return found


def row(policy: str, cost: float, retained: float | None, **fields: Any) -> Row:
    figures = Figures(requests=1, needs=1)
    made = row_of("f", policy, 1_000, figures, "input_tokens")
    return type(made)(
        **{**{n: getattr(made, n) for n in COLUMNS}, "cost": cost, "retained": retained, **fields}
    )


def test_a_row_has_the_columns_in_their_order() -> None:
    assert list(Row.__struct_fields__) == COLUMNS


def test_shares_are_of_all_needs_not_of_shares() -> None:
    figures = Figures()
    figures.add(replayed(peak_context=700))
    figures.add(replayed(needs=90, retained=0, recallable=90, peak_context=900))
    made = row_of("f", "p", 1_000, figures, "input_tokens")
    assert (made.retained, made.recallable) == (0.08, round(91 / 92, 4))
    assert (made.requests, made.peak_context) == (6, 900)
    assert (made.tokens_sent, made.cache_read, made.cache_write) == (3_000, 2_000, 1_000)
    assert made.cost == 1_450


def test_where_nothing_is_needed_nothing_is_said_to_be_held() -> None:
    figures = Figures()
    figures.add(replayed(needs=0, retained=0, recallable=0))
    made = row_of("f", "p", 1_000, figures, "usd")
    assert (made.retained, made.recallable) == (None, None)
    assert made.cost == 0.000725
    whole = Figures()
    whole.add(replayed(needs=2, retained=2, recallable=0))
    made = row_of("f", "p", 1_000, whole, "usd")
    assert (made.retained, made.recallable) == (1.0, None)


def test_sums_of_sums_are_sums() -> None:
    one, two, both = Figures(), Figures(), Figures()
    one.add(replayed(peak_context=5))
    two.add(replayed(peak_context=7, rewrites=2))
    for each in (replayed(peak_context=5), replayed(peak_context=7, rewrites=2)):
        both.add(each)
    one.add(two)
    assert one == both


def test_the_frontier_is_what_nobody_beats_on_both() -> None:
    rows = [
        row("dear", 9, 0.9), row("best", 5, 0.9), row("cheap", 1, 0.2),
        row("worse", 6, 0.5), row("middle", 3, 0.6), row("beaten", 3, 0.5),
    ]  # fmt: skip
    assert [each.policy for each in frontier(rows)] == ["cheap", "middle", "best"]


def test_equals_are_on_the_frontier_together() -> None:
    rows = [row("one", 5, 0.9), row("two", 5, 0.9), row("less", 5, 0.8)]
    assert [each.policy for each in frontier(rows)] == ["one", "two"]


def test_a_policy_that_could_not_send_a_request_is_not_on_the_frontier() -> None:
    rows = [row("gave up", 1, 0.9, too_large=1), row("did it", 5, 0.8), row("nothing", 0, None)]
    assert [each.policy for each in frontier(rows)] == ["did it"]
