"""What a session of 4,000 turns costs, beside one of 200: counted work, not time.

Each bytecode of Python counts, and the most memory that is held in between. So a loop over the
history, and a copy of it, are found on any machine. What the benchmark ``growth`` measures up to
100,000 turns fails here first.
"""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from msgspec.structs import replace

from benchmarks.growth import PRICES, TOOL, WAIT, WORDS, Instant, long_log, opened
from llmsession import HistoryLimits, LLMSession, MemoryStore, SessionManager
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.planning.schedule import fill_of, is_due, need_of
from llmsession.compaction.policies.balanced import Balanced
from llmsession.compaction.policies.registry import make_policy, policy_kinds
from llmsession.compaction.view.projector import Projector
from llmsession.compaction.view.view import View
from llmsession.session.actor.history_commands import HistoryWeight, state_excess
from llmsession.session.handles.session import live_state
from llmsession.session.log.state import SessionState, fold
from llmsession.session.snapshots.format import encoder_of, unpacked
from llmsession.session.snapshots.stored_log import LogBytes
from llmsession.session.values.tables import Table
from llmsession.turns import records as r
from llmsession.turns.messages import count_turns
from llmsession.turns.records import Injected, PrefixSummary
from llmsession.turns.reply import rename_calls
from llmsession.turns.request import Profile
from llmsession.turns.usage import Usage
from tests.compaction.conversations import FRAME, Talk
from tests.session.probes import encode_plain

FEW, MANY, TIMES = 200, 4_000, 4
MOST_TIMES, SPARE_STEPS = 1.2, 12_000
"""A turn costs some 30,000 bytecodes and a read 3,000, more with more messages in the context. A
loop over the 8,800 messages costs at least 26,000.
"""
SPARE_BYTES = 30_000
"""A tuple of the 8,800 messages has 70,000 bytes."""


class Counted:
    """How many bytecodes ran."""

    steps = 0


@contextmanager
def bytecodes() -> Iterator[Counted]:
    """Counts the bytecodes of Python that run in this thread."""
    counted, before = Counted(), sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted.steps += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        yield counted
    finally:
        sys.settrace(before)


@asynccontextmanager
async def long_session(turns: int) -> AsyncIterator[tuple[LLMSession, Instant]]:
    provider, store = Instant(), MemoryStore()
    async with SessionManager(provider=provider, store=store, prices=PRICES) as manager:
        yield await opened(manager, store, turns), provider


async def a_turn(session: LLMSession, _: Instant) -> None:
    await (await session.send(WORDS)).outcome()


async def a_turn_with_a_step(session: LLMSession, _: Instant) -> None:
    await (await session.send(TOOL + WORDS)).outcome()


async def an_interrupted_turn(session: LLMSession, provider: Instant) -> None:
    provider.streaming = anyio.Event()
    turn = await session.send(WAIT + WORDS)
    await provider.streaming.wait()
    await session.interrupt()
    await turn.outcome()


async def a_status(session: LLMSession, _: Instant) -> None:
    session.reference.actor.core.builder._size = None  # it is found once while nothing happens
    session.status()


async def a_usage(session: LLMSession, _: Instant) -> None:
    session.usage()


async def a_compaction_check(session: LLMSession, _: Instant) -> None:
    session.reference.actor.core.builder._size = None
    session.will_compact()


WORKS = (
    a_turn, a_turn_with_a_step, an_interrupted_turn, a_status, a_usage, a_compaction_check,
)  # fmt: skip
COMMITS = (a_turn, a_turn_with_a_step)


async def cost_of(turns: int) -> dict[str, tuple[int, int]]:
    """The bytecodes of each work, and the most bytes that it held: the fewest of some times,
    because some turns hold a compaction.
    """
    costs = {}
    async with long_session(turns) as (session, provider):
        for work in WORKS:
            steps, held = [], []
            for _ in range(TIMES):
                with bytecodes() as counted:
                    await work(session, provider)
                steps.append(counted.steps)
                tracemalloc.start(1)
                await work(session, provider)
                held.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            # A commit copies the tuple of the history.
            copied = sys.getsizeof(session.conversation()) if work in COMMITS else 0
            costs[work.__name__] = (min(steps), min(held) - copied)
    return costs


async def test_a_long_session_runs_no_more_bytecodes_and_holds_no_more_bytes_than_a_short_one() -> (
    None
):
    short, long = await cost_of(FEW), await cost_of(MANY)
    for work, (steps, held) in short.items():
        assert long[work][0] <= steps * MOST_TIMES + SPARE_STEPS, (work, short[work], long[work])
        assert long[work][1] <= held + SPARE_BYTES, (work, short[work], long[work])


async def cost_of_forgetting(turns: int) -> int:
    """The bytecodes of a turn at whose end another one is forgotten: the fewest of some times."""
    async with long_session(turns) as (session, provider):
        await session.configure(retention=HistoryLimits(max_messages=20, max_tokens=20_000))
        await a_turn(session, provider)  # the first time, the whole log is looked through
        await until_idle(session)
        steps = []
        for _ in range(2 * TIMES):
            before = live_state(session).generation
            with bytecodes() as counted:
                await a_turn(session, provider)
                await until_idle(session)
            if live_state(session).generation > before:  # a turn with a tool makes room for two
                steps.append(counted.steps)
        return min(steps)


async def until_idle(session: LLMSession) -> None:
    while session.status().phase != "idle" or session.status().jobs:
        await anyio.lowlevel.checkpoint()


async def test_a_turn_that_forgets_another_one_costs_the_same_in_a_long_session() -> None:
    short, long = await cost_of_forgetting(FEW), await cost_of_forgetting(MANY)
    assert long <= short * MOST_TIMES + SPARE_STEPS, (short, long)


def folded(turns: int) -> SessionState:
    """The state after a log of *turns* turns."""
    created = r.SessionCreated(session="s", config=msgspec.Raw(b"{}"))
    records = enumerate((created, *long_log(turns)), 1)
    return fold("s", (replace(record, seq=seq, epoch=1, at=1.0) for seq, record in records))


def test_a_snapshot_is_made_and_opened_without_a_loop_over_the_turns() -> None:
    made, found = [], []
    for turns in (FEW, MANY):
        state, log = folded(turns), LogBytes()
        log.add([b"{}"] * state.head)
        encoder_of(state)  # the first one splits the tables
        with bytecodes() as counted:
            encode = encoder_of(state)
        made.append(counted.steps)
        raw = encode()
        with bytecodes() as counted:
            unpacked(raw).state(log)
        found.append(counted.steps)
    for few, many in (made, found):
        assert many <= few + SPARE_STEPS, (made, found)


def test_a_plan_looks_at_what_is_shown_whatever_stands_before_it() -> None:
    steps = []
    for turns in (FEW, MANY):
        state = folded(turns)
        budget = Budget(
            used_tokens=2_000, limit_tokens=1_200, profile=Profile(), committed=len(state.history)
        )
        with bytecodes() as counted:
            plan = Balanced(keep_recent_turns=1).plan(state.view, state.history, budget)
        assert plan is not None
        assert plan.summary_request is not None
        steps.append(counted.steps)
    assert steps[1] <= steps[0] * MOST_TIMES


def test_a_request_behind_a_summary_costs_the_same_whatever_is_before_it_in_its_turn() -> None:
    made = []
    for steps in (FEW, MANY):
        built = Talk().ask().step("x", times=steps)
        upto = len(built.messages) - 20
        view = View(
            prefix_summaries=(PrefixSummary(upto, "before"),), injected=(Injected(upto, "go on"),)
        )
        projector = Projector()
        projector.project(built.messages, view, Profile(), FRAME)
        built.step("x")
        with bytecodes() as counted:
            projector.project(built.messages, view, Profile(), FRAME)
        made.append(counted.steps)
    assert made[1] <= made[0] + 100, made


LOOK_AT_ALL = {
    "focus_chain",  # for the newest task list, up to the message that has one
    # These do so only when they are due.
    "adaptive_window_truncate", "basic_fold", "budget_projection", "file_read_dedupe",
    "hybrid_60_80_90", "middleware_pipeline", "pipeline", "position_clear", "pressure_fading",
    "recency_turn_summary", "sidecar_projection", "stale_read_batching",
}  # fmt: skip
"""The policies whose plans look at messages that are not shown."""


def test_that_a_policy_is_due_is_seen_without_a_walk_and_most_plans_look_at_what_is_shown() -> None:
    asked, planned = dict[str, list[int]](), dict[str, list[int]]()
    for turns in (FEW, MANY):
        state = folded(turns)
        view, count = state.view, len(state.history)
        for kind, used in itertools.product(policy_kinds(), (2_000, 6_900)):
            if not kind.__module__.startswith("llmsession."):
                continue  # of another test
            policy, name = make_policy(kind.name), kind.name
            with bytecodes() as counted:
                fill = fill_of(view, count, used_tokens=used, limit_tokens=7_000)
                need_of(policy, None, fill)
                is_due(policy, fill)
            asked.setdefault(name, []).append(counted.steps)
            if name in LOOK_AT_ALL:
                continue
            budget = Budget(
                used_tokens=used, limit_tokens=7_000, profile=Profile(), committed=count
            )
            with bytecodes() as counted:
                policy.plan(view, state.history, budget)
            planned.setdefault(name, []).append(counted.steps)
    for few_idle, few_full, many_idle, many_full in (*asked.values(), *planned.values()):
        assert many_idle <= few_idle * MOST_TIMES
        assert many_full <= few_full * MOST_TIMES
    assert asked.keys() - planned.keys() == LOOK_AT_ALL


def test_to_forget_the_oldest_turn_looks_at_no_other_one_and_at_few_records() -> None:
    made = []
    for turns in (FEW, MANY):
        state, weight = folded(turns), HistoryWeight()
        forget(state, 2)  # the first time, the whole log is looked through
        limits = HistoryLimits(max_messages=state.message_count - 1, max_tokens=10**9)
        state_excess(state, limits, 50.0, weight)  # each message is counted once
        with bytecodes() as counted:
            excess = state_excess(state, limits, 50.0, weight)
            ranges = forget(state, 3)
        made.append(counted.steps)
        assert excess is not None
        assert excess.before == 3
        accepted, forgotten = state.accepted_at[2], state.head - 1
        assert ranges == ((accepted, accepted + 1), (forgotten - 2, forgotten - 1))
    assert made[1] <= made[0] + SPARE_STEPS // 10, made


def forget(state: SessionState, before: int) -> tuple[tuple[int, int], ...]:
    """Forget what is before the turn *before*. Returns the ranges of records that are searched."""
    edge, seq = state.accepted_at[before], state.head + 1
    record = r.ConversationForgotten(
        before=before, edge=edge, generation=state.generation + 1, seq=seq, epoch=1
    )
    state.apply(record)
    assert state.pending_redaction is not None
    ranges = state.pending_redaction.ranges
    state.apply(r.RecordsRedacted(seq=seq + 1, epoch=1))
    return ranges


def test_a_dropped_turn_costs_the_same_however_many_were_dropped_before_it() -> None:
    made, sizes = [], []
    for turns in (FEW, MANY):
        records = [*dropped(turns + 1)]
        state = fold("s", records[:-2])
        with bytecodes() as counted:
            for record in records[-2:]:
                state.apply(record)
        made.append(counted.steps)
        state.split_tables()
        raw = encode_plain([state.receipts_by_turn, state.dropped_calls, state.traces])
        sizes.append(len(raw) / turns)
    assert made[1] <= made[0] + 100, made
    assert sizes[1] <= sizes[0] * MOST_TIMES, sizes


def dropped(turns: int) -> Iterator[r.Record]:
    """The log of *turns* turns, all of them dropped after a tool ran."""
    records: list[r.Record] = [r.SessionCreated(session="s", config=msgspec.Raw(b"{}"))]
    for turn in range(1, turns + 1):
        body, receipt = msgspec.Raw(b'[{"type":"text","text":"go on"}]'), "note" * (turn > 1)
        calls = (r.CallReceipt(f"c{turn}", "t", "finished"),)
        records += (
            r.TurnAccepted(turn=turn, body=body, started=True, receipt=receipt or None),
            r.TurnAborted(turn=turn, reason="interrupt", usage=Usage(), calls=calls),
        )
    return (replace(record, seq=seq, epoch=1, at=1.0) for seq, record in enumerate(records, 1))


def test_the_messages_of_a_call_are_found_without_a_walk() -> None:
    made = []
    for turns in (FEW, MANY):
        state = folded(turns)
        calls = [*state.call_turns]
        with bytecodes() as counted:
            assert len(state.messages_of_call(calls[len(calls) // 2])) == 4
            assert state.messages_of_call("nobody") == ()
        made.append(counted.steps)
    assert made[1] <= made[0] + SPARE_STEPS // 10, made


def test_limits_of_retention_that_hold_are_seen_to_hold_without_a_walk() -> None:
    limits = HistoryLimits(max_messages=10_000, max_tokens=10_000_000, max_age_s=100.0)
    state, weight = folded(MANY), HistoryWeight()
    assert state_excess(state, limits, 50.0, weight) is None  # each message is counted once
    with bytecodes() as counted:
        assert state_excess(state, limits, 50.0, weight) is None
    assert counted.steps < 500
    assert state_excess(state, limits, 101.5, weight) is not None


def test_an_id_that_each_call_has_is_made_unique_with_few_look_ups() -> None:
    used = {"c", *(f"c_{number}" for number in range(2, 100_000))}
    block = b'{"type":"tool_use","id":"c","name":"look_up","input":{}}'
    with bytecodes() as counted:
        renamed = rename_calls((block, block), used)
    assert [msgspec.json.decode(raw)["id"] for raw in renamed] == ["c_100000", "c_100001"]
    assert counted.steps < 10_000


def test_a_random_id_that_is_new_is_looked_for_in_no_part_of_a_table() -> None:
    made = []
    for parts in (20, 100):
        table = Table.of({f"{number * 7919 % 100_000:05}": number for number in range(parts * 512)})
        assert "00000 of nobody" not in table  # the first time, the keys are put into one set
        with bytecodes() as counted:
            assert "00000 of nobody" not in table
            table["00001 of a new one"] = 1
        made.append(counted.steps)
    assert made[0] == made[1] < 500


async def test_the_fold_counts_the_turns_of_the_history_through_rewinds_and_clears() -> None:
    async with long_session(30) as (session, _):
        state = live_state(session)
        for change in (session.rewind(20), session.forget(5), session.clear()):
            assert state.turn_count == count_turns(state.history) > 0
            await change
        assert state.turn_count == 0


async def test_usage_lists_the_newest_turns_and_sums_up_all() -> None:
    async with long_session(30) as (session, provider):
        whole = session.usage(turns=10_000)
        assert list(whole.turns) == list(range(1, max(whole.turns) + 1))
        assert session.usage() == whole  # fewer than a hundred
        few = session.usage(turns=3)
        assert list(few.turns) == list(few.turn_costs_nano_usd) == list(whole.turns)[-3:]
        assert (few.total, few.models, few.cost_usd) == (whole.total, whole.models, whole.cost_usd)
        await session.send(WAIT + WORDS)
        await provider.streaming.wait()
        last = max(whole.turns)
        assert list(session.usage(turns=2).turns) == [last, last + 1]
        await session.interrupt()
        after = session.usage(turns=10_000)
        assert sum(after.turns.values(), Usage()) == after.total
