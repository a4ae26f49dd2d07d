"""What the records of a log are charged with, batch by batch: what its fold has spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession import Price, Spending, Usage
from llmsession.session.core.account import Account
from llmsession.session.core.tenants import Tenants
from llmsession.session.log.meter import charge_of
from llmsession.session.log.state import SessionState, fold
from llmsession.session.values.labels import TENANT_LABEL
from llmsession.turns import records as r
from llmsession.turns.spending.prices import PriceTable

PRICES = PriceTable({"m": Price.usd(1, 10), "n": Price.usd(2, 20)})
CONFIG = msgspec.Raw(b"{}")
BODY = msgspec.Raw(b'[{"type":"text","text":"x"}]')

usages = st.builds(
    lambda prompt, output: Usage(input_tokens=prompt, output_tokens=output),
    st.sampled_from((0, 10, 25, 100)),
    st.sampled_from((0, 1, 7)),
)
models = st.sampled_from(("m", "n", "unpriced"))
requests = st.lists(st.builds(r.ModelRequest, models, usages), min_size=1, max_size=2)


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns: the usage of each reply, of requests without one, and how each ended, if it did."""
    return [
        {
            "replies": draw(st.lists(st.tuples(models, st.none() | usages), max_size=3)),
            "others": draw(st.lists(st.tuples(models, usages), max_size=2)),
            "end": draw(st.sampled_from(("committed", "aborted", "failed", "old"))),
            "summaries": draw(st.none() | requests),
        }
        for _ in range(draw(st.integers(1, 4)))
    ]


def records_of(plan: list[dict[str, Any]], *, is_open: bool) -> Iterator[r.Record]:
    labels = {TENANT_LABEL: "acme"}
    yield r.SessionCreated(session="s", config=CONFIG, labels=labels)
    for number, turn in enumerate(plan, 1):
        yield r.TurnAccepted(turn=number, body=BODY, started=True)
        total = Usage()
        for step, (model, usage) in enumerate(turn["replies"], 1):
            reply = r.AssistantReply(
                body=BODY, started_at=0.0, model=model, provider="p", usage=usage, stop_reason="x"
            )
            total += usage or Usage()
            yield r.StepCompleted(turn=number, step=step, reply=reply)
        if turn["summaries"]:
            yield r.SummariesStored(summaries={}, requests=tuple(turn["summaries"]))
        if is_open and number == len(plan):
            return
        others = tuple(
            r.UnrecordedUsage(2 * at, usage, model)
            for at, (model, usage) in enumerate(turn["others"])
        )
        total = sum((other.usage for other in others), total)
        if turn["end"] == "old":  # it did not say yet which requests its usage is of
            others = ()
        more: dict[str, Any] = {"usage": total, "unrecorded_usage": others}
        if turn["end"] == "aborted":
            yield r.TurnAborted(turn=number, reason="interrupt", calls=(), **more)
        elif turn["end"] == "failed":
            yield r.TurnFailed(turn=number, cause="fatal", error="", calls=(), **more)
        else:
            yield r.TurnCommitted(turn=number, stop_reason="end_turn", **more)


def stamped(records: Iterable[r.Record]) -> list[r.Record]:
    return [
        msgspec.structs.replace(record, seq=seq, epoch=1) for seq, record in enumerate(records, 1)
    ]


def spent_by(state: SessionState) -> Spending:
    return Account(state, PRICES, Tenants()).spent()


@settings(max_examples=300, deadline=None)
@given(turns(), st.booleans(), st.data())
def test_the_charges_of_all_batches_are_what_the_log_has_spent(
    plan: list[dict[str, Any]], is_open: bool, data: st.DataObject
) -> None:
    records = stamped(records_of(plan, is_open=is_open))
    begun = data.draw(st.integers(1, len(records)))  # from here on somebody appends
    state = fold("s", records[:begun])
    total, charge = spent_by(state), charge_of(state, PRICES)
    assert charge is not None
    rest = records[begun:]
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        charged = charge(rest[:size])
        if charged is not None:
            assert charged.account == "acme"
            assert min(charged.spent.tokens, charged.spent.cost_nano_usd) >= 0
            total += charged.spent
        rest = rest[size:]
    assert total == spent_by(fold("s", records))


def test_a_fork_is_not_charged_what_its_parent_spent() -> None:
    reply = r.AssistantReply(body=BODY, started_at=0.0, model="m", usage=Usage(input_tokens=7))
    parent: list[r.Record] = [
        r.SessionCreated(session="s", config=CONFIG, labels={TENANT_LABEL: "acme"}),
        r.TurnAccepted(turn=1, body=BODY, started=True),
        r.StepCompleted(turn=1, step=1, reply=reply),
    ]
    forked = r.SessionForked(
        session="f", parent="s", turn_kept=0, config=CONFIG, labels={TENANT_LABEL: "acme"}
    )
    own: list[r.Record] = [
        r.TurnAccepted(turn=2, body=BODY, started=True),
        r.TurnCommitted(turn=2, stop_reason="end_turn", usage=Usage(input_tokens=7), reply=reply),
    ]
    *_, fork, accepted, committed = stamped([*parent, forked, *own])
    charge = charge_of(fold("f", stamped(parent)), PRICES)
    assert charge is not None
    assert charge([fork, accepted]) is None
    charged = charge([committed])
    assert charged is not None
    assert charged.spent == Spending(7, 7_000)


def test_a_session_without_a_tenant_is_charged_to_nobody() -> None:
    [created] = stamped([r.SessionCreated(session="s", config=CONFIG)])
    assert charge_of(fold("s", [created]), PRICES) is None
