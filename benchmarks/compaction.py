"""Compaction of a conversation of 2,000 messages: what a step costs, how long the event loop stands
still, and what moving the frontier costs.

A step: is a compaction due, the next request projected, sized, checked and encoded; beside
encoding the same bytes once. A stall: the longest gap between two ticks of a task that only
sleeps while a session compacts, beside its longest gap while nothing happens for as long. With
PEER_PYTHON set to a Python that has langchain and strands-agents, theirs are measured too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anthropic
import anyio
import msgspec

from benchmarks.recorded import Replays, recorded_message
from benchmarks.report import Row
from benchmarks.steps import conversation
from llmsession import CompactionConfig, MemoryStore, SessionConfig, SessionManager, Tool
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import ContextBuilder
from llmsession.store import Batch, this_process
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.records import encode_record
from llmsession.turns.request import Profile
from llmsession.turns.usage import Usage

__all__ = ["run"]

PEER = Path(__file__).with_name("peer_compaction.py")
MESSAGES = 2_000
ROUNDS = 7
STEPS = 50
TICK_S = 0.0005
MAX_STEP, MAX_STALL, MAX_FRONTIER = 3.0, 5.0, 3.0
RESULT = "a line of a tool's result, number 12345, in src/some/file.py:17\n" * 60


def _step_row() -> Row:
    pairs, shares = [], []
    for _ in range(ROUNDS):
        ours, bare, sdk = _steps()
        pairs.append((ours, bare))
        shares.append(sdk / bare)
    ours, bare = sorted(pairs, key=lambda pair: pair[0] / pair[1])[ROUNDS // 2]
    return Row(
        name=f"planning, projecting, checking and encoding at {MESSAGES:,} messages",
        ours=ours * 1e6,
        bare=bare * 1e6,
        unit="us",
        ratios=tuple(a / b for a, b in pairs),
        bound=MAX_STEP,
        note=f"the SDK's own making of that request: {statistics.median(shares):.1f} times bare",
    )


def _steps() -> tuple[float, float, float]:
    """CPU seconds of ours, of encoding alone, and of what the SDK adds, for one step."""
    messages = conversation(MESSAGES + 2 * STEPS)
    config = SessionConfig(model="m", tools=(Tool(name="read"),)).checked()
    builder, view = ContextBuilder(Profile(), config.frame()), View()
    policy = config.compaction.make_policy()
    builder.build(tuple(messages[: MESSAGES + 1]), view)
    client = anthropic.AsyncAnthropic(api_key="none")
    ours = bare = sdk = 0.0
    for step in range(1, STEPS + 1):
        said = tuple(messages[: MESSAGES + 1 + 2 * step])
        started = time.process_time()
        built = builder.build(said, view)
        assert not policy.due(built.tokens, 10_000_000)
        encoded = built.request.encode()
        ours += time.process_time() - started
        started = time.process_time()
        again = msgspec.json.encode(built.request)
        bare += time.process_time() - started
        assert again == encoded
    body = msgspec.json.decode(encoded)
    started = time.process_time()
    client._build_request(
        anthropic._models.FinalRequestOptions.construct(
            method="post", url="/v1/messages", json_data=body
        )
    )
    sdk = time.process_time() - started
    return ours / STEPS, bare / STEPS, sdk


async def _written(manager: SessionManager, store: MemoryStore) -> None:
    """A session "long" of MESSAGES messages: turns of a question, a call, its result, an answer."""
    tools = (Tool(name="read"),)
    compaction = CompactionConfig(threshold=0.99, schedule="at_once")
    config = SessionConfig(model="m", tools=tools, window_tokens=2_000_000, compaction=compaction)
    session = await manager.create(config, session_id="long")
    await session.close()
    del session
    lease = await store.acquire("long", this_process("benchmark"))
    records: list[r.Record] = []
    for turn in range(1, MESSAGES // 4 + 1):
        call = {"type": "tool_use", "id": f"c{turn}", "name": "read", "input": {"path": f"/{turn}"}}
        asked = r.AssistantReply(body=encode_blocks([call]), started_at=0.0)
        said = r.AssistantReply(body=encode_blocks(f"it says {turn}"), started_at=0.0)
        answer = r.Answer(call_id=f"c{turn}", content=msgspec.Raw(msgspec.json.encode(RESULT)))
        offer = r.PendingCall(f"c{turn}", "read", "caller")
        records += [
            r.TurnAccepted(turn=turn, body=encode_blocks("what does it say?"), started=True),
            r.ToolsRequested(turn=turn, step=1, reply=asked, calls=(offer,)),
            r.ToolsAnswered(turn=turn, step=1, answers=(answer,)),
            r.StepCompleted(turn=turn, step=1),
            r.TurnCommitted(turn=turn, stop_reason="end_turn", usage=Usage(), reply=said),
        ]
    stamped = [
        msgspec.structs.replace(record, seq=lease.head + at, epoch=lease.epoch, at=1.0)
        for at, record in enumerate(records, 1)
    ]
    written = anyio.Event()
    bodies = tuple(encode_record(record) for record in stamped)
    store.append(Batch("long", lease.epoch, lease.head, bodies, 1.0), lambda _: written.set())
    await written.wait()
    await store.release(lease)


async def _longest_gap(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Seconds: the longest gap between two ticks while *work* is done, and how long it took."""
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await anyio.sleep(TICK_S)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await anyio.sleep(0.01)
        gaps.clear()
        started = time.perf_counter()
        await work()
        took = time.perf_counter() - started
        await anyio.sleep(2 * TICK_S)
        group.cancel_scope.cancel()
    return max(gaps), took


async def _stall() -> tuple[float, float]:
    store = MemoryStore()
    provider = Replays((recorded_message(1, "assistant", "a short answer"),))
    async with SessionManager(provider=provider, store=store) as manager:
        await _written(manager, store)
        session = await manager.open("long")
        assert len(session.conversation()) == MESSAGES
        session.status()

        async def compact() -> None:
            outcome = await session.compact()
            assert outcome.applied, outcome
            await (await session.send("and now?")).outcome()

        busy, took = await _longest_gap(compact)
        idle, _ = await _longest_gap(lambda: anyio.sleep(max(took, 0.2)))
        return busy, idle


def _stall_row() -> Row:
    pairs = [anyio.run(_stall) for _ in range(ROUNDS)]
    busy, idle = sorted(pairs, key=lambda pair: pair[0] / pair[1])[ROUNDS // 2]
    return Row(
        name=f"the event loop's longest stall while {MESSAGES:,} messages are compacted",
        ours=busy * 1e3,
        bare=idle * 1e3,
        unit="ms",
        ratios=tuple(a / b for a, b in pairs),
        bound=MAX_STALL,
        note=_peers(),
    )


def _peers() -> str:
    python = os.environ.get("PEER_PYTHON")
    if not python:
        return "peers: n/a; PEER_PYTHON names no Python that has langchain and strands-agents"
    found = subprocess.run(
        [python, "-P", PEER], capture_output=True, text=True, timeout=120, check=False
    )
    if found.returncode:
        return f"peers: n/a; {found.stderr.strip().splitlines()[-1:]}"
    return f"peers: {found.stdout.strip()}"


def _frontier_row() -> Row:
    """Applying a plan that passes 1,000 summaries, beside making the tuple of messages anew."""
    messages = tuple(conversation(MESSAGES))
    shown_results = {f"c{at}": f"the result of call {at}, in short" for at in range(1, 1_001)}
    plan = Plan(
        policy="p",
        compacted_before=MESSAGES,
        shown_results=shown_results,
        reason="",
        tokens_before=2,
        tokens_after=1,
    )
    ratios, figures = [], []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(200):
            View().applied(plan, len(messages))
        ours = (time.process_time() - started) / 200
        started = time.process_time()
        for _ in range(200):
            (*messages[:-1], messages[-1])
        bare = (time.process_time() - started) / 200
        ratios.append(ours / bare)
        figures.append((ours, bare))
    ours, bare = figures[ROUNDS // 2]
    return Row(
        name="moving the frontier over 1,000 precomputed summaries",
        ours=ours * 1e6,
        bare=bare * 1e6,
        unit="us",
        ratios=tuple(ratios),
        bound=MAX_FRONTIER,
    )


def run() -> list[Row]:
    return [_step_row(), _stall_row(), _frontier_row()]
