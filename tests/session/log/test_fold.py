"""Folding the log gives the state in memory; a log cut anywhere is recovered the same way."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
import pytest

from llmsession.session.actor.recovery import recovery_records
from llmsession.session.log.state import SessionState, fold
from llmsession.session.manager import SessionManager
from llmsession.session.values.outcome import SessionStatus
from llmsession.testing.scripted import ScriptedProvider, say
from llmsession.turns import records as r
from llmsession.turns.usage import Usage
from tests.session.probes import (
    after_a_crash,
    assert_request_is_sound,
    differences,
    live_state,
    log_of,
    request_pairs,
    run_virtually,
    said,
    unpaired,
)
from tests.session.random_lives import Life
from tests.virtual_time import BACKENDS

LIVES, LONG_LIVES = 24, 240


async def _same_when_folded(life: Life) -> None:
    """The fold is the state in memory, field by field; opening the log anew changes nothing."""
    live = live_state(life.session)
    log = await log_of(life.store, "s")
    assert differences(live, fold("s", log)) == []
    shown = len(live.context_messages())
    assert max(live.view.compacted_before, live.view.thinking_from) <= shown
    life.seen["compactions"] += sum(isinstance(record, r.CompactionApplied) for record in log)
    life.seen["receipts pending"] += bool(live.receipts)
    life.seen["capped"] += bool(live.view.capped)
    status, context = life.session.status(), life.session.context().encode()
    copy = await after_a_crash(life.store)
    async with SessionManager(provider=life.provider, store=copy) as manager:
        session = await manager.open("s", unbound="caller")
        assert session.context().encode() == context
        assert _settled(session.status()) == _settled(status)
        assert session.conversation() == life.session.conversation()
        assert differences(live, live_state(session)) == []


NOT_KEPT = {
    "epoch", "late_reports", "jobs", "still_running", "counted_tokens", "counted_at",
    "context_tokens",  # what usage has taught about a model's tokens begins anew
}  # fmt: skip


def _settled(status: SessionStatus) -> dict[str, Any]:
    """What of a status has to survive: all but this owner's own counts."""
    fields = {name: getattr(status, name) for name in status.__struct_fields__}
    return {name: value for name, value in fields.items() if name not in NOT_KEPT}


@pytest.mark.parametrize("lives", [LIVES, pytest.param(LONG_LIVES, marks=pytest.mark.long)])
def test_the_fold_of_the_log_is_the_state_in_memory_wherever_a_life_comes_to_rest(
    lives: int,
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(lives):
        life = Life(seed, turns=4, quiet=_same_when_folded)
        seen.update(run_virtually(BACKENDS[seed % 2], life))
    print(dict(seen))
    often = ("compactions", "receipts pending", "capped", "kept", "aborted", "cleared", "rewound")
    for state in (*often, "forked", "forgotten"):
        assert seen[state] >= 5, state
    # Turns of lives are short: tests/compaction/policies/test_balanced_properties.py goes deeper.
    for state in ("prefix_summaries", "compacted window"):
        assert seen[state] >= 1, state


class _Cuts:
    """Cuts the log of a random life after every record, and recovers it."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def __call__(self, life: Life) -> None:
        log = await log_of(life.store, "s")
        # What was taken out of a log was never missing from a shorter one.
        first = max((each.seq for each in log if _takes_out(each)), default=1)
        for cut in range(first, len(log) + 1):
            await self._recovered(life, log[:cut])

    async def _recovered(self, life: Life, log: list[r.Record]) -> None:
        before = fold("s", log)
        provider = ScriptedProvider([say("back again")])
        store = await after_a_crash(life.store, len(log))
        async with SessionManager(provider=provider, store=store) as manager:
            session = await manager.open("s", unbound="caller")
            written = (await log_of(store, "s"))[len(log) :]
            paid = [each for each in written if isinstance(each, r.RecordsRedacted)]
            assert len(paid) == (before.pending_redaction is not None)
            before.pending_redaction = None
            self.seen["pending_redaction"] += len(paid)
            ends = [each for each in written if each not in paid]
            self._assert_ends(before, ends, _settled_calls(log))
            after = live_state(session)
            assert after.open == {}
            assert after.history == before.history
            assert unpaired(said(after.history)) == []
            self._assert_only_ends(before, after)
            context = session.context().encode()
            await session.close()
            again = await manager.open("s", unbound="caller")
            assert (await log_of(store, "s"))[len(log) + len(written) :] == []
            assert again.context().encode() == context
            await self._assert_goes_on(provider, again, after)

    def _assert_ends(
        self, before: SessionState, written: list[r.Record], settled: set[str]
    ) -> None:
        """Each open turn ends once, as a crash, with what the log knows of its calls."""
        assert [type(record) for record in written] == [r.TurnAborted] * len(before.open)
        for record, turn in zip(written, before.open.values(), strict=True):
            assert isinstance(record, r.TurnAborted)
            assert (record.turn, record.reason) == (turn.number, "crash")
            assert record.usage == turn.usage
            asked, answered = _calls_of(said(turn.staged))
            answered |= {
                answer.call_id: "failed" if answer.is_error else "finished"
                for answer in turn.answers.values()
            }
            answered |= dict.fromkeys(settled, "unknown")
            expected = [(call, answered.get(call, "unknown")) for call in asked]
            assert [(call.id, call.status) for call in record.calls] == expected
            self.seen["open turns"] += 1
            self.seen.update(status for _, status in expected)

    @staticmethod
    def _assert_only_ends(before: SessionState, after: SessionState) -> None:
        """Nothing but the ends of the open turns is different."""
        touched = {"open", "ended", "head", "epoch", "receipts", "dropped_calls"}
        touched |= {"turn_usage", "usage", "requests", "charged"}
        touched |= {"summaries", "view", "reported"}  # what an open turn computed goes with it
        touched |= {"traces", "redacted_before"}
        changed = {text.split(":")[0] for text in differences(before, after)}
        assert changed <= touched
        if not before.open:
            assert changed <= {"head", "epoch", "redacted_before"}
        assert after.receipts[: len(before.receipts)] == before.receipts
        assert after.view.compacted_before <= len(after.history)

    @staticmethod
    async def _assert_goes_on(
        provider: ScriptedProvider, session: Any, after: SessionState
    ) -> None:
        pending = [call.id for receipt in after.receipts for call in receipt.calls]
        outcome = await (await session.send("hello again")).outcome()
        assert outcome.status == "committed"
        assert_request_is_sound(provider.requests[-1], provider.profile("m"))
        note = request_pairs(provider.requests[-1])[-1][1][-1]["text"]
        named = [call for ids in re.findall(r"\(([\w, ]+)", note) for call in ids.split(", ")]
        assert sorted(named) == sorted(pending)


def _takes_out(record: r.Record) -> bool:
    if isinstance(record, r.ConversationCleared):
        return record.purge
    return isinstance(record, r.ConversationForgotten)


def _settled_calls(log: list[r.Record]) -> set[str]:
    """The calls that the session answered itself: what became of them is not known."""
    return {
        answer.call_id
        for record in log
        if isinstance(record, r.ToolsAnswered)
        for answer in record.answers
        if answer.settled is not None
    }


def _calls_of(pairs: list[tuple[str, list[dict[str, Any]]]]) -> tuple[list[str], dict[str, str]]:
    """The calls in *pairs* in order, and how those that were answered ended."""
    blocks = [block for _, content in pairs for block in content]
    asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
    answered = {
        block["tool_use_id"]: "failed" if block.get("is_error") else "finished"
        for block in blocks
        if block["type"] == "tool_result"
    }
    return asked, answered


def test_a_log_cut_after_any_record_is_recovered_by_ending_its_open_turns_and_no_more() -> None:
    cuts = _Cuts()
    for seed in range(100, 112):
        run_virtually(BACKENDS[seed % 2], Life(seed, turns=3, quiet=_at_the_end(cuts)))
    print(dict(cuts.seen))
    for state in ("open turns", "finished", "failed", "unknown"):
        assert cuts.seen[state] >= 10, state
    assert cuts.seen["pending_redaction"] >= 2


def _at_the_end(cuts: _Cuts) -> Any:
    rests = Counter[str]()

    async def quiet(life: Life) -> None:
        rests["rests"] += 1
        if rests["rests"] == life.turns:
            await cuts(life)

    return quiet


def test_recovery_records_are_a_function_of_the_log() -> None:
    async def records() -> tuple[SessionState, SessionState]:
        life = Life(7)
        await life()
        log = await log_of(life.store, "s")
        opened = next(at for at, each in enumerate(log) if isinstance(each, r.ToolsRequested))
        return fold("s", log[: opened + 1]), fold("s", log[: opened + 1])

    one, other = run_virtually("asyncio", records)
    assert one.open
    assert recovery_records(one) == recovery_records(other)
    assert differences(one, other) == []  # and asking for them changes nothing


EMPTY = msgspec.Raw(b"[]")


def _log(*records: r.Record) -> list[r.Record]:
    """*records* behind a session's first one, numbered, all of epoch 1."""
    created = r.SessionCreated(session="s", config=msgspec.Raw(b"{}"))
    return [
        msgspec.structs.replace(record, seq=seq, epoch=1)
        for seq, record in enumerate([created, *records], start=1)
    ]


def _accepted(turn: int, *, receipt: str | None = None) -> r.TurnAccepted:
    return r.TurnAccepted(turn=turn, body=EMPTY, started=True, receipt=receipt)


def _committed(turn: int) -> r.TurnCommitted:
    return r.TurnCommitted(turn=turn, stop_reason="end_turn", usage=Usage())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"seq": 4}, "record 4 cannot follow record 2"),
        ({"seq": 2}, "record 2 cannot follow record 2"),
        ({"epoch": 0}, "epoch 0 after 1"),
    ],
    ids=["a gap", "a repeat", "an older epoch"],
)
def test_a_record_that_cannot_follow_the_one_before_it_is_refused(
    wrong: dict[str, int], told: str
) -> None:
    log = _log(_accepted(1), _committed(1))
    with pytest.raises(ValueError, match=told):
        fold("s", [*log[:2], msgspec.structs.replace(log[2], **wrong)])
    assert fold("s", log).head == 3


def test_a_commit_clears_only_the_receipts_that_its_turn_carried() -> None:
    ran = r.CallReceipt("c", "t", "finished")
    dropped = r.TurnAborted(turn=1, reason="interrupt", usage=Usage(), calls=(ran,))
    log = _log(_accepted(1), dropped, _accepted(2), _committed(2))
    assert [pending.turn for pending in fold("s", log).receipts] == [1]
    log = _log(_accepted(1), dropped, _accepted(2, receipt="Note"), _committed(2))
    assert fold("s", log).receipts == ()


def test_a_step_reads_the_steers_that_its_record_counts_and_leaves_the_others() -> None:
    steers = [
        r.SteerAccepted(turn=1, body=msgspec.Raw(b'[{"type":"text","text":"%d"}]' % n))
        for n in range(3)
    ]
    state = fold("s", _log(_accepted(1), *steers, r.StepCompleted(turn=1, step=1, steers=2)))
    assert [block["text"] for block in said(state.open[1].staged)[-1][1]] == ["0", "1"]
    assert state.open[1].steers == (steers[2].body,)
