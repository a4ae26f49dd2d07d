from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

RAW = msgspec.Raw(b'[{"type":"text", "text":"\xc3\xa9","new":1.0}]')
USAGE = Usage(1, 2, 3, 4)
SPOKEN = r.AssistantReply(
    body=RAW, started_at=1.5, model="m", provider="p", usage=USAGE, stop_reason="tool_use"
)
ANSWER = r.Answer(
    call_id="c1", content=RAW, is_error=True, summary="s", capped="c", settled="deadline"
)
RECEIPTS = (r.CallReceipt("c1", "bash", "unknown", "ls"),)
UNSPOKEN = (r.UnrecordedUsage(1, USAGE, "m"),)
OVERRUN = r.ExceededBudget(
    whose="tenant", name="acme", unit="nano_usd", limit=5, spent=3, unpriced=("m",)
)
SOURCE = r.Source(
    format="f",
    id="i",
    title="t",
    summary="s",
    system="be brief",
    origin="a file",
    parent="p",
    shared_turns=2,
    interrupted=(1,),
    extra={"x": RAW},
    records=(RAW,),
    repairs=("line 3",),
)

# What the fields are set to that records of several kinds have: all to something else than their
# default.
VALUES: dict[str, Any] = {
    "seq": 7, "epoch": 2, "at": 12.25, "commands": (r.CommandAnswer("id", "digest", RAW),),
    "session": "s", "parent": "p", "config": RAW, "labels": {"user": "7"}, "source": SOURCE,
    "voids_thinking": True, "turn": 3, "step": 1, "body": RAW, "started": True, "receipt": "note",
    "seed": "we met", "reply": SPOKEN, "stop_reason": "cancelled", "settle": "cancelled",
    "reason": "user", "error": "e", "usage": USAGE, "unrecorded_usage": UNSPOKEN,
    "failure": r.ProviderFailure(kind="fatal", message="no such model", status=404),
    "exceeded": OVERRUN, "calls": RECEIPTS, "to": 2, "before": 2, "generation": 2,
}  # fmt: skip


def record(kind: type[r.RecordBase], **fields: Any) -> Any:
    """A record of *kind* with *fields*, and with VALUES for the others."""
    others = {name: VALUES[name] for name in kind.__struct_fields__ if name not in fields}
    return kind(**others, **fields)


# Every field is set, and to something else than its default.
RECORDS: dict[str, r.Record] = {
    "session.created": record(r.SessionCreated, seed=r.Seed("we met", "other")),
    "session.forked": record(r.SessionForked, turn_kept=3),
    "session.labelled": record(r.SessionLabelled),
    "session.configured": record(r.SessionConfigured),
    "turn.accepted": record(r.TurnAccepted),
    "turn.started": record(r.TurnStarted),
    "steer.accepted": record(r.SteerAccepted),
    "tools.requested": record(
        r.ToolsRequested, calls=(r.PendingCall("c1", "bash", "caller", "ls"),)
    ),
    "tools.answered": record(r.ToolsAnswered, answers=(ANSWER,)),
    "step.completed": record(r.StepCompleted, steers=2),
    "turn.committed": record(r.TurnCommitted),
    "turn.aborted": record(r.TurnAborted),
    "turn.failed": record(r.TurnFailed, cause="fatal"),
    "turn.resumed": record(r.TurnResumed),
    "turn.imported": record(
        r.TurnImported,
        messages=(Message(id="m", session="s", turn=3, role="user", body=RAW),),
        calls=("c1",),
    ),
    "summaries.stored": record(
        r.SummariesStored,
        summaries={"c1": "short"},
        requests=(r.ModelRequest("m", Usage(3, 4)),),
    ),
    "compaction.applied": record(
        r.CompactionApplied,
        policy="swap",
        compacted_before=4,
        shown_results={"c1": "short"},
        tokens_before=9,
        tokens_after=5,
        results_summarised=1,
        results_redacted=2,
        turns_compacted=3,
        voids_thinking=False,
        inputs={"c2": RAW},
        texts={"m#0": "cut"},
        prefix_summary=r.PrefixSummary(2, "so far", "model"),
        omitted=((1, 2),),
        injected=(r.Injected(3, "note"),),
        sets_injected=True,
        drops_thinking=True,
        trigger="window",
        figures={"cached_tokens": 9},
    ),
    "context.warning": record(
        r.ContextWarned, tokens=90, budget_tokens=100, suggests_new_session=True
    ),
    "conversation.cleared": record(r.ConversationCleared, purge=True),
    "conversation.rewound": record(r.ConversationRewound),
    "conversation.forgotten": record(
        r.ConversationForgotten, edge=9, turns=2, messages=5, limits={"age": 2}
    ),
    "records.redacted": record(r.RecordsRedacted),
    "session.handed_over": record(r.SessionHandedOver, waiting=(3, 2)),
    "command.answered": record(r.CommandAnswered),
}
KINDS = list(RECORDS)


def test_every_kind_of_record_is_tried_here() -> None:
    assert {type(record) for record in RECORDS.values()} == set(get_args(r.Record))


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_is_left_at_its_default_here(kind: str) -> None:
    record = RECORDS[kind]
    for field in msgspec.structs.fields(record):
        assert getattr(record, field.name) != field.default, field.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_comes_back_from_its_bytes(kind: str) -> None:
    record = RECORDS[kind]
    written = r.encode_record(record)
    read = r.decode_record(written)
    assert type(read) is type(record)
    assert read == record
    assert r.encode_record(read) == written


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_says_its_kind_first(kind: str) -> None:
    assert r.encode_record(RECORDS[kind]).startswith(f'{{"kind":"{kind}",'.encode())


def test_content_is_in_a_record_byte_for_byte() -> None:
    assert bytes(RAW) in r.encode_record(RECORDS["turn.accepted"])
    read = r.decode_record(r.encode_record(RECORDS["tools.answered"]))
    assert isinstance(read, r.ToolsAnswered)
    assert bytes(read.answers[0].content) == bytes(RAW)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    read = r.decode_record(b'{"kind":"turn.started","turn":3,"seq":1,"invented":[1]}')
    assert read == r.TurnStarted(turn=3, seq=1)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"kind":"turn.exploded","turn":3}',
        b'{"turn":3}',
        b'{"kind":"turn.started"}',
        b'{"kind":"turn.started","turn":"3"}',
        b"[]",
    ],
)
def test_an_unknown_kind_or_shape_raises(raw: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        r.decode_record(raw)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'{"kind":"turn.exploded","seq":4,"turn":3}', "turn.exploded"),
        (b'{"seq":4,"kind":"Turn.Started"}', "Turn.Started"),
        (b'{"kind":"turn.started","seq":4,"turn":"3"}', None),
        (b'{"kind":"turn.exploded"}', None),
        (b'{"kind":7,"seq":4}', None),
        (b'{"kind":"turn.exploded","seq":4', None),
        (b"[]", None),
        (b"\xff", None),
    ],
)
def test_a_kind_that_is_not_known_is_told_from_what_is_no_record(
    raw: bytes, kind: str | None
) -> None:
    assert r.unknown_kind(raw) == kind


def test_a_torn_record_raises() -> None:
    written = r.encode_record(RECORDS["turn.committed"])
    for length in range(len(written)):
        with pytest.raises(msgspec.DecodeError):
            r.decode_record(written[:length])


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_three_ends_of_a_turn_are_terminal(kind: str) -> None:
    ends = ("turn.committed", "turn.aborted", "turn.failed")
    assert r.is_terminal(RECORDS[kind]) == (kind in ends)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_names_its_turn_or_none(kind: str) -> None:
    is_about_the_session = kind.startswith(
        ("session.", "summaries.", "compaction.", "conversation.", "command.", "records.")
    )
    assert r.turn_of(RECORDS[kind]) == (None if is_about_the_session else 3)
