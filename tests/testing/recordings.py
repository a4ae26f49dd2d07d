"""A small recording in which every promise is kept, made by hand, for tests that break it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from llmsession.compaction.recall import RECALL_TOOL
from llmsession.compaction.view.projection import project
from llmsession.session.log.state import SessionState, fold
from llmsession.testing.recording.entries import (
    Begun,
    End,
    Ended,
    Entry,
    HistoryRead,
    Invoked,
    LeftBehind,
    Logged,
    ObservedEvent,
    OutcomeSeen,
    Recording,
    Requested,
    Returned,
    StateRead,
    SubscriptionLog,
)
from llmsession.testing.recording.fingerprints import digest, state_parts
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks, encode_json
from llmsession.turns.request import Frame, Profile
from llmsession.turns.usage import Usage

__all__ = [
    "SESSION",
    "Change",
    "answers",
    "asking",
    "kept_promises",
    "log_of",
    "offers",
    "script",
    "with_log",
]

SESSION = "s0"
PROFILE = Profile(name="made by hand")
LONG = "a long result " * 200
CONFIG = {
    "model": "m",
    "max_tokens": 100,
    "system": None,
    "tools": [{"name": "ask", "description": "asks", "input_schema": {"type": "object"}}],
    "options": {},
    "compaction": {"enabled": True},
}
TOOLS = (
    msgspec.Raw(b'{"name":"ask","description":"asks","input_schema":{"type":"object"}}'),
    RECALL_TOOL,
)
Change = Callable[[list[r.Record]], list[r.Record]]


def said(text: str) -> msgspec.Raw:
    return encode_blocks(text)


def reply(text: str) -> r.AssistantReply:
    return r.AssistantReply(body=said(text), started_at=0.0, stop_reason="end_turn")


def asking(*calls: str) -> r.AssistantReply:
    blocks = [{"type": "tool_use", "id": call, "name": "ask", "input": {}} for call in calls]
    return r.AssistantReply(body=encode_blocks(blocks), started_at=0.0, stop_reason="tool_use")


def offers(*calls: str) -> tuple[r.PendingCall, ...]:
    return tuple(r.PendingCall(call, "ask", "caller") for call in calls)


def answers(*calls: str) -> tuple[r.Answer, ...]:
    content = msgspec.Raw(encode_json(LONG))
    return tuple(r.Answer(call_id=call, content=content) for call in calls)


def script() -> list[r.Record]:
    """Turn 1 uses two tools; a compaction; turn 2 is dropped, turn 3 waited, is committed."""
    return [
        r.SessionCreated(session=SESSION, config=msgspec.Raw(encode_json(CONFIG))),
        r.TurnAccepted(turn=1, body=said("t1: hello"), started=True),
        r.ToolsRequested(turn=1, step=1, reply=asking("a", "b"), calls=offers("a", "b")),
        r.ToolsAnswered(turn=1, step=1, answers=answers("a", "b")),
        r.StepCompleted(turn=1, step=1),
        r.TurnCommitted(turn=1, stop_reason="end_turn", usage=Usage(), reply=reply("done")),
        r.CompactionApplied(
            policy="swap_tool_results", reason="asked",
            compacted_before=3, shown_results={"a": "short"},
            tokens_before=2000, tokens_after=1000,
        ),
        r.TurnAccepted(turn=2, body=said("t2: more"), started=True),
        r.TurnAccepted(turn=3, body=said("t3: and more")),
        r.TurnAborted(turn=2, reason="interrupt", usage=Usage()),
        r.TurnStarted(turn=3),
        r.TurnCommitted(turn=3, stop_reason="end_turn", usage=Usage(), reply=reply("yes")),
    ]  # fmt: skip


def stamped(records: list[r.Record]) -> list[r.Record]:
    return [
        msgspec.structs.replace(record, seq=seq, epoch=1)
        for seq, record in enumerate(records, start=1)
    ]


def log_of(records: list[r.Record]) -> list[Entry]:
    return [
        Logged(session=SESSION, seq=record.seq, body=msgspec.Raw(r.encode_record(record)))
        for record in records
    ]


def state_at(records: list[r.Record], seq: int) -> SessionState:
    return fold(SESSION, records[:seq])


def requested(records: list[r.Record], seq: int, turn: int, step: int, order: int) -> Requested:
    """The request that is the projection of the state after record *seq*."""
    state = state_at(records, seq)
    frame = Frame(model="m", max_tokens=100, tools=TOOLS)
    request = project(state.context_messages(), state.view, PROFILE, frame)
    return Requested(
        session=SESSION, turn=turn, step=step, attempt=1, seq=seq, order=order,
        digest=digest(request.encode()), size=len(request.encode()),
        messages=len(request.messages),
    )  # fmt: skip


def send(call: int, turn: int, order: int, seq: int, mode: str = "queue") -> list[Entry]:
    return [
        Invoked(
            session=SESSION, call=call, command="send", token=f"t{turn}", when_busy=mode,
            order=order, at=float(order),
        ),
        Returned(session=SESSION, call=call, seq=seq, turn=turn, order=order, at=float(order)),
    ]  # fmt: skip


def history(records: list[r.Record], seq: int, number: int, order: int) -> HistoryRead:
    state = state_at(records, seq)
    messages = tuple(range(1, len(state.history) + 1))
    return HistoryRead(
        session=SESSION, seq=seq, generation=1, history=number, messages=messages, order=order
    )


def state_read(records: list[r.Record], seq: int) -> StateRead:
    return StateRead(session=SESSION, seq=seq, parts=state_parts(state_at(records, seq)))


def seen(record: r.Record) -> ObservedEvent:
    return ObservedEvent(record.seq, digest(r.encode_record(record)))


def watched(records: list[r.Record], **fields: Any) -> SubscriptionLog:
    sightings = [seen(record) for record in records]
    # A preview of turn 3 between its start and its end.
    sightings.insert(-1, ObservedEvent(0, "", 3, 1, 1))
    given: dict[str, Any] = {
        "subscriber": 1,
        "after": 0,
        "cursor": len(records),
        "ending": "closed",
    }
    return SubscriptionLog(session=SESSION, seen=tuple(sightings), **(given | fields))


def kept_promises() -> Recording:
    """The whole recording. Two sends before the interrupt, the third after it."""
    records = stamped(script())
    results = tuple((call, digest(encode_json(LONG))) for call in ("a", "b"))
    entries: list[Entry] = [
        Begun(seed=1, profile=PROFILE, grace_s=0.1),
        *send(1, 1, order=1, seq=2),
        requested(records, 2, turn=1, step=1, order=2),
        Invoked(session=SESSION, call=2, command="submit", answers=results, order=3, at=3.0),
        Returned(session=SESSION, call=2, seq=4, order=4, at=4.0),
        requested(records, 5, turn=1, step=2, order=5),
        OutcomeSeen(session=SESSION, turn=1, status="committed", stop_reason="end_turn", order=6),
        history(records, 6, 10, order=7),
        history(records, 7, 10, order=8),
        *send(3, 2, order=9, seq=8),
        requested(records, 8, turn=2, step=1, order=10),
        Invoked(session=SESSION, call=4, command="interrupt", order=11, at=11.0),
        *send(5, 3, order=12, seq=9),
        Returned(
            session=SESSION, call=4, seq=10, turn=2, result="aborted", order=13, at=11.1,
            ended=(End(2, "aborted", "interrupt"),),
        ),
        history(records, 10, 10, order=14),
        requested(records, 11, turn=3, step=1, order=15),
        history(records, 12, 11, order=16),
        state_read(records, 9),
        state_read(records, 12),
        watched(records),
        Ended(
            session=SESSION, still_running=("tool slow x in s0",), running=("tool slow x in s0",)
        ),
        LeftBehind(),
        *log_of(records),
    ]  # fmt: skip
    return Recording(entries)


def with_log(change: Change) -> Recording:
    """The recording with another log, and nothing but what follows from it: the calls."""
    records = stamped(change(script()))
    kept = [
        entry
        for entry in kept_promises().entries
        if isinstance(entry, Begun | Ended | Invoked | Returned)
    ]
    return Recording([*kept, *log_of(records)])
