"""Committing a turn onto 10,000 messages, beside building the tuple alone."""

from __future__ import annotations

import timeit

from benchmarks.recorded import recorded_message
from benchmarks.report import Row
from llmsession.session.log.state import SessionState
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.usage import Usage

__all__ = ["run"]

MESSAGES = 10_000
ROUNDS = 7
COMMITS = 200


def _state() -> SessionState:
    state = SessionState("b")
    state.history = tuple(recorded_message(at, "user", "x") for at in range(1, MESSAGES + 1))
    state.counter.saw(MESSAGES)
    return state


def _ours(state: SessionState) -> float:
    """Seconds of folding one ``turn.committed`` with a user message and a reply."""
    body = encode_blocks("hello")
    base, total = state.history, 0.0
    for _ in range(COMMITS):
        state.history = base
        number = state.counter.next()
        state.apply(r.TurnAccepted(seq=state.head + 1, turn=number, body=body, started=True))
        reply = r.AssistantReply(body=body, started_at=0.0)
        record = r.TurnCommitted(
            seq=state.head + 1, turn=number, stop_reason="end_turn", usage=Usage(), reply=reply
        )
        started = timeit.default_timer()
        state.apply(record)
        total += timeit.default_timer() - started
    return total / COMMITS


def _bare(history: tuple[object, ...]) -> float:
    """Seconds of building a tuple of 10,002 from one of 10,000."""
    new = (object(), object())
    return min(timeit.repeat(lambda: history + new, number=COMMITS, repeat=3)) / COMMITS


def run() -> list[Row]:
    state = _state()
    history = state.history
    pairs = [(_ours(state), _bare(history)) for _ in range(ROUNDS)]
    state.history = history
    assert state.history is history, "a snapshot is a reference"
    ours, bare = sorted(pairs)[len(pairs) // 2]
    return [
        Row(
            name=f"commit onto {MESSAGES:,} messages",
            ours=ours * 1e6,
            bare=bare * 1e6,
            unit="us",
            ratios=tuple(a / b for a, b in pairs),
            bound=3.0,
        )
    ]
