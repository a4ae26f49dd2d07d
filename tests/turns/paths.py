"""Ways through a turn: each phase as it is really reached, event by event."""

from __future__ import annotations

from llmsession.turns import events as e
from llmsession.turns.machine import Phase, Turn, step
from llmsession.turns.records import PendingCall

CALLS = (PendingCall("c1", "bash", "session"), PendingCall("c2", "read", "caller"))

TO_STREAMING = (e.Started(), e.ContextBuilt())
TO_JOURNALING = (*TO_STREAMING, e.ReplyRequestedTools(calls=CALLS))
TO_TOOLS = (*TO_JOURNALING, e.CallsJournaled())
TO_STEP_2 = (*TO_TOOLS, e.AllCallsAnswered(calls=("c1", "c2")), e.StepJournaled())
DROP = e.DropRequested(reason="user")
KEEP = e.KeepRequested(reason="cancelled")
KEEP_TEXT = e.KeepRequested(reason="cancelled", text=True)
LIMIT = e.LimitReached(stop_reason="max_seconds")

TO: dict[Phase, tuple[e.Event, ...]] = {
    Phase.ACCEPTED: (),
    Phase.BUILDING: (e.Started(),),
    Phase.STREAMING: TO_STREAMING,
    Phase.JOURNALING: TO_JOURNALING,
    Phase.TOOLS: TO_TOOLS,
    Phase.STOPPING: (*TO_TOOLS, DROP),
    Phase.COMMITTING: (*TO_STREAMING, e.ReplyFinished(stop_reason="end_turn")),
    Phase.ABORTING: (DROP,),
    Phase.FAILING: (*TO_STREAMING, e.ReplyRefused(stop_reason="refusal")),
    Phase.COMMITTED: (*TO_STREAMING, e.ReplyFinished(stop_reason="end_turn"), e.Committed()),
    Phase.ABORTED: (DROP, e.Aborted()),
    Phase.FAILED: (*TO_STREAMING, e.ReplyRefused(stop_reason="refusal"), e.Failed()),
    Phase.FENCED: (e.Started(), e.Fenced()),
    Phase.LOST: (e.Started(), e.StoreLost()),
}
BEFORE_THE_DECISION = (
    Phase.BUILDING,
    Phase.STREAMING,
    Phase.JOURNALING,
    Phase.TOOLS,
)
AFTER_THE_DECISION = (Phase.COMMITTING, Phase.ABORTING, Phase.FAILING)
NOT_ENDED = (Phase.ACCEPTED, *BEFORE_THE_DECISION, Phase.STOPPING, *AFTER_THE_DECISION)
AT_AN_END = (Phase.COMMITTED, Phase.ABORTED, Phase.FAILED, Phase.FENCED, Phase.LOST)


def after(*events: e.Event, turn: Turn | None = None) -> Turn:
    """Turn 3 (or *turn*) after *events*."""
    turn = turn or Turn(number=3)
    for event in events:
        turn, _ = step(turn, event)
    return turn


def at(phase: Phase) -> Turn:
    """Turn 3 in *phase*."""
    turn = after(*TO[phase])
    assert turn.phase is phase
    return turn


def orders(turn: Turn, event: e.Event) -> tuple[e.AnyEffect, ...]:
    """What *event* makes the turn order."""
    return step(turn, event)[1]
