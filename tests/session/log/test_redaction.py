"""A redacted log says nothing of what was forgotten, and folds to the same state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from llmsession.session.handles.session import live_state
from llmsession.session.log.redaction import NOTHING_SAID, Redaction, redact_answer
from llmsession.session.log.state import SessionState, fold
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage
from tests.session.probes import differences, log_of, run_virtually
from tests.session.random_lives import Life
from tests.turns.test_records import RECORDS
from tests.virtual_time import BACKENDS

LIVES, LONG_LIVES = 20, 200
SECRET = msgspec.Raw(b'[{"type":"text","text":"marker"}]')


def redaction(*turns: int, calls: tuple[str, ...] = (), **fields: Any) -> Redaction:
    given: dict[str, Any] = {"receipts": {}, "seq": 100, "seed": False, **fields}
    return Redaction(frozenset(turns), frozenset(calls), **given)


# Each record of a turn with a marker wherever something can be said.
SPOKEN = r.AssistantReply(body=SECRET, started_at=1.0, model="m")
RECEIPT = r.CallReceipt("marker", "marker", "failed", "marker")
TOLD: list[r.Record] = [
    r.TurnAccepted(turn=3, body=SECRET, started=True, receipt="marker", seed="marker"),
    r.TurnStarted(turn=3, receipt="marker", seed="marker"),
    r.SteerAccepted(turn=3, body=SECRET),
    r.ToolsRequested(
        turn=3, step=1, reply=SPOKEN, calls=(r.PendingCall("marker", "marker", "caller", "marker"),)
    ),
    r.ToolsAnswered(
        turn=3, step=1,
        answers=(r.Answer(call_id="marker", content=SECRET, summary="marker", capped="marker"),),
    ),
    r.StepCompleted(turn=3, step=1, reply=SPOKEN),
    r.TurnCommitted(turn=3, stop_reason="x", usage=Usage(), reply=SPOKEN, error="marker"),
    r.TurnAborted(turn=3, reason="interrupt", usage=Usage(), calls=(RECEIPT,)),
    r.TurnFailed(turn=3, cause="fatal", error="marker", usage=Usage(), calls=(RECEIPT,)),
    r.TurnImported(
        turn=3,
        messages=(
            Message(
                id="marker", session="s", turn=3, role="assistant", body=SECRET, error="marker",
                extra=msgspec.Raw(b'{"x":"marker"}'), synthetic=(0,),
            ),
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize("record", TOLD, ids=lambda each: type(each).__name__)
def test_a_record_of_a_forgotten_turn_keeps_its_kind_and_place_and_says_nothing(
    record: r.Record,
) -> None:
    record = msgspec.structs.replace(record, seq=7, epoch=2, at=3.0)
    kept = redaction(3).apply(record)
    if isinstance(kept, r.ToolsRequested):
        assert kept.calls == (r.PendingCall("marker", "", "caller"),)  # an id says nothing
        kept_bytes = r.encode_record(msgspec.structs.replace(kept, calls=()))
    else:
        kept_bytes = r.encode_record(kept)
    assert b"marker" not in kept_bytes
    assert type(kept) is type(record)
    assert (kept.seq, kept.epoch, kept.at, r.turn_of(kept)) == (7, 2, 3.0, 3)
    assert r.decode_record(r.encode_record(kept)) == kept
    # Again changes nothing, and neither does what is about other turns.
    assert redaction(3).apply(kept) == kept
    assert redaction(4).apply(record) is record
    assert redaction(3, seq=7).apply(record) is record


def test_every_kind_of_record_that_a_turn_has_is_looked_at() -> None:
    of_turns = {type(each) for each in RECORDS.values() if r.turn_of(each) is not None}
    assert of_turns - {type(each) for each in TOLD} == {r.TurnResumed, r.ContextWarned}


def test_what_came_of_forgotten_calls_goes_and_of_others_stays() -> None:
    cut = redaction(3, calls=("a",))
    stored = r.SummariesStored(seq=5, summaries={"a": "marker", "b": "stays"})
    assert cut.apply(stored) == msgspec.structs.replace(stored, summaries={"b": "stays"})
    applied = r.CompactionApplied(
        seq=6,
        policy="p",
        reason="r",
        compacted_before=4,
        shown_results={"a": "marker", "b": "stays"},
        tokens_before=9,
        tokens_after=8,
    )
    assert cut.apply(applied) == msgspec.structs.replace(
        applied, reason="", shown_results={"b": "stays"}
    )
    assert redaction(3).apply(stored) is stored


def test_what_an_import_knew_goes_with_anything_forgotten_and_a_seed_when_it_is() -> None:
    source = r.Source(format="f", id="i", title="marker", repairs=("marker",))
    created = r.SessionCreated(
        seq=1, session="s", config=msgspec.Raw(b"{}"), seed=r.Seed("seed", "x"), source=source
    )
    kept = redaction(3).apply(created)
    assert isinstance(kept, r.SessionCreated)
    assert (kept.seed, kept.source) == (r.Seed("seed", "x"), r.Source(format="f", id="i"))
    unseeded = redaction(3, seed=True).apply(created)
    assert isinstance(unseeded, r.SessionCreated)
    assert unseeded.seed == r.Seed("")
    assert redaction(3, seed=True).apply(unseeded) is unseeded
    forked = r.SessionForked(
        seq=2, session="s", parent="p", turn_kept=1, config=msgspec.Raw(b"{}"), source=source
    )
    assert b"marker" not in r.encode_record(redaction(3).apply(forked))


def test_a_receipt_of_another_turn_keeps_what_is_left_of_it() -> None:
    accepted = r.TurnAccepted(turn=4, seq=5, body=SECRET, started=True, receipt="a and b")
    cut = redaction(3, receipts={4: "b"})
    assert cut.apply(accepted) == msgspec.structs.replace(accepted, receipt="b")
    bare = msgspec.structs.replace(accepted, receipt=None)
    assert cut.apply(bare) is bare


def test_an_interrupts_answer_keeps_who_ended_how_and_not_what_was_said() -> None:
    outcome = {
        "turn": {"owner": "u", "number": 3}, "status": "aborted", "stop_reason": "interrupt",
        "usage": {}, "messages": ["marker"], "user_body": ["marker"], "unread_steers": ["marker"],
        "calls": ["marker"], "error": "marker", "still_running": [],
    }  # fmt: skip
    other = {**outcome, "turn": {"owner": "u", "number": 4}}
    raw = msgspec.Raw(msgspec.json.encode({"result": "aborted", "turns": [outcome, other]}))
    answer = r.CommandAnswer("k", "digest", raw)
    kept = msgspec.json.decode(redact_answer(answer, {3}, {}).answer)
    assert b"marker" not in msgspec.json.encode(kept["turns"][0])
    assert kept["turns"][0]["status"] == "aborted"
    assert kept["turns"][1] == other
    assert redact_answer(answer, {5}, {}) is answer
    for plain in (b"null", b"7", b'{"session":"f","upto":3}'):
        simple = r.CommandAnswer("k", "digest", msgspec.Raw(plain))
        assert redact_answer(simple, {3}, {}) is simple


def test_two_that_are_owed_are_paid_as_one() -> None:
    early = redaction(1, calls=("a",), receipts={3: "x"}, seq=5, seed=True)
    late = redaction(2, calls=("b",), receipts={4: "y"}, seq=9)
    both = late.joined(early)
    assert both == redaction(1, 2, calls=("a", "b"), receipts={3: "x", 4: "y"}, seq=9, seed=True)
    assert late.joined(None) is late


# What repeats a turn.


def accepted(turn: int, receipt: str | None = None) -> r.TurnAccepted:
    return r.TurnAccepted(turn=turn, body=SECRET, started=True, receipt=receipt)


def committed(turn: int) -> r.TurnCommitted:
    return r.TurnCommitted(turn=turn, stop_reason="end_turn", usage=Usage(), reply=SPOKEN)


def with_a_call(end: r.Record) -> list[r.Record]:
    pending = (r.PendingCall("a", "look_up", "caller"),)
    answer = r.Answer(call_id="a", content=SECRET)
    return [
        accepted(2),
        r.ToolsRequested(turn=2, step=1, reply=SPOKEN, calls=pending),
        r.ToolsAnswered(turn=2, step=1, answers=(answer,)),
        r.StepCompleted(turn=2, step=1),
        end,
    ]


OUTCOME = {
    "turn": {"owner": "u", "number": 2}, "status": "aborted", "stop_reason": "interrupt",
    "usage": {}, "messages": ["marker"], "calls": [], "error": None,
}  # fmt: skip
ANSWER = msgspec.Raw(msgspec.json.encode({"result": "aborted", "turns": [OUTCOME]}))
ABORTED = r.TurnAborted(turn=2, reason="interrupt", usage=Usage(), calls=(RECEIPT,))
COMPACTED = r.CompactionApplied(
    policy="p", reason="", compacted_before=6, shown_results={}, tokens_before=9, tokens_after=1
)
REPEATING: list[tuple[r.Record, r.Record]] = [
    (committed(2), msgspec.structs.replace(COMPACTED, shown_results={"a": "marker"})),
    (committed(2), msgspec.structs.replace(COMPACTED, inputs={"a": msgspec.Raw(b'"marker"')})),
    (committed(2), r.SummariesStored(summaries={"a": "marker"})),
    (ABORTED, r.CommandAnswered(commands=(r.CommandAnswer("k", "digest", ANSWER),))),
    (ABORTED, accepted(3, receipt="marker")),
]
"""How turn 2 ends, and a later record that repeats something of it."""


@pytest.mark.parametrize(("end", "repeating"), REPEATING)
def test_a_record_that_repeats_a_turn_is_found_when_that_turn_is_forgotten_later_than_others(
    end: r.Record, repeating: r.Record
) -> None:
    others = [accepted(3)] if not isinstance(repeating, r.TurnAccepted) else []
    records = [
        r.SessionCreated(session="s", config=msgspec.Raw(b"{}")),
        accepted(1), committed(1), *with_a_call(end), repeating, *others, committed(3),
        r.ConversationForgotten(before=3 if end is ABORTED else 2, generation=2, edge=4),
        r.RecordsRedacted(),
    ]  # fmt: skip
    log = [
        msgspec.structs.replace(record, seq=seq, epoch=1) for seq, record in enumerate(records, 1)
    ]
    state, place = fold("s", log), records.index(repeating) + 1
    edge = state.accepted_at[3]
    state.apply(
        r.ConversationForgotten(seq=len(log) + 1, epoch=1, before=3, generation=3, edge=edge)
    )
    redaction = state.pending_redaction
    assert redaction is not None
    assert redaction.turns == {2}
    assert any(first <= place <= last for first, last in redaction.ranges)
    assert all(first > 3 for first, _ in redaction.ranges)  # the first turn is gone already
    # What the third turn says itself stays.
    said = r.encode_record(redaction.apply(log[place - 1])).replace(bytes(SECRET), b"")
    assert b"marker" not in said


# Whole lives.


class _Forgetting:
    """At the end of a random life: purge, or forget before each turn of its history."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def __call__(self, life: Life) -> None:
        log = await log_of(life.store, "s")
        state = live_state(life.session)
        places = list(dict.fromkeys(message.turn for message in state.history))
        for before in (*places, 0):
            record: r.Record = r.ConversationForgotten(
                before=before,
                generation=state.generation + 1,
                edge=state.accepted_at[before] if before else state.head + 1,
            )
            self._compare(log, record)
        self._compare(log, r.ConversationCleared(generation=state.generation + 1, purge=True))
        self._one_after_the_other(log, (*places[1:], 0))

    def _one_after_the_other(self, log: list[r.Record], places: Sequence[int]) -> None:
        """Forget before each of *places* in turn. All that changes is where it is looked for."""
        paid: list[Redaction] = []
        for before in places:
            told = fold("s", log)
            record = r.ConversationForgotten(
                seq=len(log) + 1,
                epoch=log[-1].epoch,
                before=before,
                generation=told.generation + 1,
                edge=told.accepted_at[before] if before else told.head + 1,
            )
            told.apply(record)
            redaction = told.pending_redaction
            assert redaction is not None
            redacted = [redaction.apply(each) for each in log]
            changed = {old.seq for old, new in zip(log, redacted, strict=True) if old != new}
            searched = {seq for first, last in redaction.ranges for seq in range(first, last + 1)}
            assert changed <= searched
            paid.append(redaction)
            assert all(earlier.apply(each) == each for earlier in paid for each in redacted)
            done = r.RecordsRedacted(seq=len(log) + 2, epoch=record.epoch)
            told.apply(done)
            self.seen["not searched"] += len(log) - len(searched)
            log = [*redacted, record, done]
            assert differences(told, fold("s", log)) == []

    def _compare(self, log: list[r.Record], record: r.Record) -> None:
        record = msgspec.structs.replace(record, seq=len(log) + 1, epoch=log[-1].epoch, at=1.0)
        told = fold("s", [*log, record])
        pending_redaction = told.pending_redaction
        assert pending_redaction is not None
        redacted = [r.decode_record(r.encode_record(pending_redaction.apply(each))) for each in log]
        done = r.RecordsRedacted(seq=len(log) + 2, epoch=record.epoch)
        told.apply(done)
        assert differences(told, fold("s", [*redacted, record, done])) == []
        self._nothing_is_left(pending_redaction, redacted, told)
        self.seen["compared"] += 1
        self.seen["forgotten turns"] += len(pending_redaction.turns)
        self.seen["receipts rewritten"] += bool(pending_redaction.receipts)
        self.seen["frozen kept"] += bool(told.view.shown_results)

    @staticmethod
    def _nothing_is_left(
        pending_redaction: Redaction, redacted: list[r.Record], told: SessionState
    ) -> None:
        for each in redacted:
            if r.turn_of(each) not in pending_redaction.turns:
                continue
            assert not isinstance(each, r.TurnImported)
            for name in ("body", "reply", "answers", "receipt", "seed", "calls"):
                value = getattr(each, name, None)
                value = getattr(value, "body", value)
                if name == "calls" and value:
                    assert all(not offer.name and not offer.brief for offer in value)
                else:
                    assert value in (None, (), "", NOTHING_SAID) or value == msgspec.Raw(
                        b'[{"type":"text","text":""}]'
                    )
        assert not {message.turn for message in told.history} & pending_redaction.turns


@pytest.mark.parametrize("lives", [LIVES, pytest.param(LONG_LIVES, marks=pytest.mark.long)])
def test_a_random_life_folds_to_the_same_state_whatever_is_taken_out_of_it(lives: int) -> None:
    forgetting = _Forgetting()
    for seed in range(200, 200 + lives):

        async def quiet(life: Life) -> None:
            if life.session.status().phase == "idle":
                await forgetting(life)

        run_virtually(BACKENDS[seed % 2], Life(seed, turns=5, changes=0.1, quiet=quiet))
    print(dict(forgetting.seen))
    assert forgetting.seen["compared"] >= 60
    assert forgetting.seen["receipts rewritten"] >= 4
    assert forgetting.seen["frozen kept"] >= 1
    assert forgetting.seen["not searched"] >= 100
