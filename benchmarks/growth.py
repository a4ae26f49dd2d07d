"""What grows with the length of a session: the CPU of a turn, a step, a read and an interrupt in
sessions of 100 to 100,000 turns.

The log of a long session is written straight to the store, with the records that live turns leave:
every tenth turn calls a tool, and every twentieth is followed by a compaction. The session is then
opened and continued. Its context stays below 6,000 tokens, and rules write its summaries at once.
So what a request costs need not depend on the length of the history.

A row is a growth law: the exponent of the cost over the number of turns, fitted by least squares to
the logarithms of both. 0 is a constant, 1 is linear. Two things grow by design and are left out,
each with a row of its own: the commit's copy of the tuple of the history, measured where it is
made, and the passes of Python's garbage collector, which visits that tuple while it is young.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from benchmarks.report import Row
from llmsession import (
    CompactionConfig,
    HistoryLimits,
    MemoryStore,
    Price,
    SessionConfig,
    SessionManager,
    SqliteStore,
    Tool,
)
from llmsession.session.actor.snapshot_writer import MIN_RECORDS
from llmsession.session.handles.session import LLMSession, live_state
from llmsession.session.log import joined, state
from llmsession.session.log.read_state import PAGE
from llmsession.store import Batch, Lease, Store, this_process
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import BlockDelta, BlockStarted, BlockStopped, ReplyEnded, StreamEvent
from llmsession.turns.usage import Usage

__all__ = ["exponent", "long_log", "run"]

SIZES = (100, 1_000, 10_000, 100_000)
MAX_EXPONENT = 0.1
MAX_OPENING_EXPONENT, MAX_OPENING_RATIO, MIN_OPENING_TURNS = 1.1, 1.5, 1_000
MAX_STALL_MS = 10.0
TURNS_BETWEEN_TOOLS, TURNS_BETWEEN_COMPACTIONS = 10, 20
WARM_UP, ROUNDS, TURNS, READS = 40, 5, 20, 100
"""Turns before the first measurement, measurements of each work, and how often a measurement does
it: as many turns as there are between two compactions, so that each holds one.
"""
WORDS = "a question of some length that a customer might send to somebody, " * 3
SAID = "an answer of some length that somebody might give to a customer, " * 3
TOOL, WAIT = "look it up: ", "wait: "
RESULT = "a line of what was looked up\n" * 8
USAGE = Usage(input_tokens=2_000, output_tokens=60)
CALL_FIELDS = {"type": "tool_use", "id": "c", "name": "look_up", "input": {"what": "it"}}

Work: TypeAlias = Callable[[LLMSession, "Meter"], Awaitable[float]]
"""Does one thing some times. Returns the CPU seconds of one."""


class Instant:
    """Answers at once; calls the tool if it is asked to, and waits for ever if it is asked to."""

    name = "instant"
    _profile = Profile()

    def __init__(self) -> None:
        self.streaming = anyio.Event()

    def profile(self, model: str) -> Profile:
        return self._profile

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        last = bytes(request.messages[-1].body)
        sent = sum(len(message.body) for message in request.messages)
        usage = Usage(input_tokens=sent // 3, output_tokens=len(SAID) // 3)
        if tag.step == 1 and TOOL.encode() in last:
            # Each call has the same id, as of some servers: the session has to rename it.
            yield BlockStarted(0, msgspec.Raw(msgspec.json.encode({**CALL_FIELDS, "input": {}})))
            yield BlockDelta(0, "input", '{"what":"it"}')
            yield BlockStopped(0)
            yield ReplyEnded("tool_use", usage)
            return
        yield BlockStarted(0, msgspec.Raw(b'{"type":"text","text":""}'))
        yield BlockDelta(0, "text", SAID)
        if WAIT.encode() in last:
            self.streaming.set()
            await anyio.sleep_forever()
        yield BlockStopped(0)
        yield ReplyEnded("end_turn", usage)


async def _look_up(what: str = "") -> str:
    return RESULT


TOOLS = (Tool(name="look_up", run=_look_up),)
CONFIG = SessionConfig(
    model="m",
    max_tokens=1_000,
    window_tokens=7_000,
    tools=TOOLS,
    compaction=CompactionConfig(schedule="at_once"),
)
PRICES = {"m": Price.usd(3, 15)}


def long_log(turns: int) -> Iterator[r.Record]:
    """The records after the first one of a session of *turns* turns."""
    reply = r.AssistantReply(body=encode_blocks(SAID), started_at=1.0, model="m", usage=USAGE)
    messages = calls = 0
    for turn in range(1, turns + 1):
        has_tool = turn % TURNS_BETWEEN_TOOLS == 0
        said = f"{TOOL if has_tool else ''}{turn} {WORDS}"
        yield r.TurnAccepted(turn=turn, body=encode_blocks(said), started=True)
        if has_tool:
            calls += 1
            yield from _step(turn, "c" if calls == 1 else f"c_{calls}", reply)
        usage = USAGE + USAGE if has_tool else USAGE
        yield r.TurnCommitted(turn=turn, stop_reason="end_turn", usage=usage, reply=reply)
        messages += 4 if has_tool else 2
        if turn % TURNS_BETWEEN_COMPACTIONS == 0:
            summary = r.PrefixSummary(messages - 12, f"Of {turn} turns: {SAID}")
            yield r.CompactionApplied(
                policy="balanced",
                reason="",
                compacted_before=0,
                shown_results={},
                tokens_before=5_000,
                tokens_after=2_000,
                prefix_summary=summary,
            )


def _step(turn: int, call: str, reply: r.AssistantReply) -> Iterator[r.Record]:
    """The records of a step with one call."""
    called = msgspec.structs.replace(reply, body=encode_blocks([{**CALL_FIELDS, "id": call}]))
    pending = (r.PendingCall(call, "look_up", "session"),)
    yield r.ToolsRequested(turn=turn, step=1, reply=called, calls=pending)
    answer = r.Answer(call_id=call, content=msgspec.Raw(msgspec.json.encode(RESULT)))
    yield r.ToolsAnswered(turn=turn, step=1, answers=(answer,))
    yield r.StepCompleted(turn=turn, step=1)


async def write_log(store: Store, session: str, records: Iterator[r.Record]) -> None:
    """Append *records* to *session*, which has its first record and no owner."""
    lease = await store.acquire(session, this_process("growth"))
    head, bodies = lease.head, list[bytes]()
    for seq, record in enumerate(records, head + 1):
        stamped = msgspec.structs.replace(record, seq=seq, epoch=lease.epoch, at=1.0)
        bodies.append(r.encode_record(stamped))
        if len(bodies) == 5_000:
            await _append(store, Batch(session, lease.epoch, head, tuple(bodies), 1.0))
            head, bodies = seq, []
    if bodies:
        await _append(store, Batch(session, lease.epoch, head, tuple(bodies), 1.0))
    await store.release(lease)


async def _append(store: Store, batch: Batch) -> None:
    durable = anyio.Event()
    store.append(batch, lambda _: durable.set())
    await durable.wait()


# The works.


class Meter:
    """The CPU seconds of this process, without the two things that grow by design.

    A copy touches each message, so it empties the processor's caches for what follows: 1 ms of a
    turn at 100,000 turns. So that this is the same at all sizes, each copy is followed by one of
    *rest*, which is left out as well.
    """

    def __init__(self, rest: tuple[object, ...] = ()) -> None:
        self.copying = self.collecting = 0.0
        self._beside = self._began = 0.0
        self._rest = rest
        self._left: object = None

    def now(self) -> float:
        """The CPU seconds so far, without ``copying`` and ``collecting``."""
        return time.process_time() - self.copying - self.collecting - self._beside

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.collecting += time.thread_time() - self._began

    def _append(
        self, history: tuple[Message, ...], messages: tuple[Message, ...]
    ) -> tuple[Message, ...]:
        collected, began = self.collecting, time.thread_time()
        self._left = None  # a copy also costs that an earlier tuple is freed
        longer = joined.appended(history, messages)
        self._left = history
        copied = time.thread_time()
        self.copying += copied - began - (self.collecting - collected)
        longer_rest = (*self._rest, None)
        del longer_rest
        self._beside += time.thread_time() - copied
        return longer

    def __enter__(self) -> Meter:
        gc.callbacks.append(self._collect)
        state.appended = self._append  # type: ignore[attr-defined]  # measured in its place
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._collect)
        state.appended = joined.appended  # type: ignore[attr-defined]  # see __enter__


async def _turns(session: LLMSession, meter: Meter, words: str = WORDS) -> float:
    started = meter.now()
    for _ in range(TURNS):
        outcome = await (await session.send(words)).outcome()
        assert outcome.status == "committed", outcome
    return (meter.now() - started) / TURNS


async def _interrupts(session: LLMSession, meter: Meter, provider: Instant) -> float:
    spent = 0.0
    for _ in range(TURNS):
        provider.streaming = anyio.Event()
        turn = await session.send(WAIT + WORDS)
        await provider.streaming.wait()
        started = meter.now()
        await session.interrupt()
        spent += meter.now() - started
        assert (await turn.outcome()).status == "aborted"
    return spent / TURNS


async def _reads(session: LLMSession, meter: Meter, read: Callable[[LLMSession], object]) -> float:
    builder = session.reference.actor.core.builder
    started = meter.now()
    for _ in range(READS):
        builder._size = None  # a session finds it once while nothing happens
        read(session)
    return (meter.now() - started) / READS


OPENING, OPENING_EMPTY, READING = "opening a session", "opening an empty session", "reading its log"
USAGE_AGAIN = "the first usage() after an opening"
COPY, COLLECTED = "a commit's copy of the history", "the collector's passes in a turn"
TURN, TOOL_TURN = "a trivial turn", "a turn with a tool step"
FORGETTING = "a turn at whose end retention forgets another one"
IN_SQLITE = (TURN, TOOL_TURN, FORGETTING)
KEPT = HistoryLimits(max_messages=100)


def works(provider: Instant) -> Mapping[str, Work]:
    """What is measured, by name, in the order in which it is done."""
    return {
        TURN: _turns,
        TOOL_TURN: partial(_turns, words=TOOL + WORDS),
        "an interrupt": partial(_interrupts, provider=provider),
        "status()": partial(_reads, read=LLMSession.status),
        "usage()": partial(_reads, read=LLMSession.usage),
        "a compaction check": partial(_reads, read=LLMSession.will_compact),
    }


async def opened(manager: SessionManager, store: Store, turns: int) -> LLMSession:
    """A session of *turns* turns and a few live ones, with its context in the builder's cache."""
    session = await manager.create(CONFIG)
    await session.close()
    await write_log(store, session.id, long_log(turns))
    session = await manager.open(session.id, tools=TOOLS)
    for at in range(WARM_UP):
        await (await session.send((TOOL if at % 10 == 0 else "") + WORDS)).outcome()
    return session


async def _measure(store: Store, turns: int, most: int) -> dict[str, float]:
    """The CPU seconds of each work in a session of *turns* turns: of its cheapest round, because
    what others do to the machine only adds. The collector's passes are the mean of all rounds. The
    longest session that is compared with this one has *most* turns.
    """
    provider, least = Instant(), dict[str, float]()
    by_design = {COPY: math.inf, COLLECTED: 0.0}
    async with SessionManager(provider=provider, store=store, prices=PRICES) as manager:
        session = await opened(manager, store, turns)
        in_a_turn = len(session.conversation()) / (turns + WARM_UP)
        rest = tuple(bytes(64) for _ in range(int(in_a_turn * (most - turns))))
        for _ in range(ROUNDS):
            for name, work in works(provider).items():
                with Meter(rest) as meter:
                    cost = await work(session, meter)
                least[name] = min(cost, least.get(name, cost))
                if name == TURN:
                    by_design[COPY] = min(by_design[COPY], meter.copying / TURNS)
                    by_design[COLLECTED] += meter.collecting / TURNS / ROUNDS
        assert session.status().context_tokens < 6_000
        least[FORGETTING] = await _measure_forgetting(session)
    return by_design | least


async def _measure_forgetting(session: LLMSession) -> float:
    """The CPU seconds of a turn at whose end another one is forgotten and erased from the log. The
    first time the whole log is looked through, and that is not measured.
    """
    await session.configure(retention=KEPT)
    await (await session.send(WORDS)).outcome()
    costs = []
    for _ in range(ROUNDS):
        with Meter() as meter:
            costs.append(await _turns(session, meter))
    with anyio.fail_after(10):  # the next turn does not wait until a store has erased
        while len(session.conversation()) > 100:  # noqa: ASYNC110  # a rare look, at the end
            await anyio.sleep(0.01)
    return min(costs)


class _Watched(SqliteStore):
    """A store that says when it has a snapshot."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.saved = anyio.Event()

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        await super().save_snapshot(lease, seq, body)
        self.saved.set()


async def _write_with_snapshot(path: Path, turns: int) -> tuple[str, int]:
    """Write a session of *turns* turns with its snapshot. Returns its id and its head."""
    store = _Watched(path)
    async with SessionManager(provider=Instant(), store=store) as manager:
        session = await manager.create(CONFIG)
        await session.close()
        await write_log(manager.store, session.id, long_log(turns))
        session = await manager.open(session.id, tools=TOOLS)
        head = session.status().seq
        if head >= MIN_RECORDS:
            await store.saved.wait()
        return session.id, head


async def _measure_opening(turns: int) -> tuple[dict[str, float], list[float]]:
    """The CPU seconds of reading the log of a session of *turns* turns into memory, of opening it
    from its snapshot, of ``usage`` after that, and of opening an empty session; of the cheapest
    round, without the collector's passes. And how many times the reading an opening took, in each
    round.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, provider, least = Path(folder) / "opening.db", Instant(), dict[str, float]()
        session_id, head = await _write_with_snapshot(path, turns)
        ratios: list[float] = []
        for _ in range(2 * ROUNDS):
            store = SqliteStore(path)
            async with SessionManager(provider=provider, store=store, tools=TOOLS) as manager:
                assert (await store.row(session_id)).head == head  # opens the file, too
                empty = await manager.create(CONFIG)
                await empty.close()
                bodies: list[bytes] = []
                with Meter() as meter:
                    started = meter.now()
                    while len(bodies) < head:
                        page = await store.read(session_id, after=len(bodies), limit=PAGE)
                        bodies += [record.body for record in page]
                    read = meter.now() - started
                del bodies, page
                with Meter() as meter:
                    started = meter.now()
                    again = await manager.open(session_id)
                    opening = meter.now() - started
                with Meter() as meter:
                    started = meter.now()
                    again.usage()
                    usage = meter.now() - started
                with Meter() as meter:
                    started = meter.now()
                    await manager.open(empty.id)
                    opening_empty = meter.now() - started
            costs = {
                READING: read, OPENING: opening, USAGE_AGAIN: usage, OPENING_EMPTY: opening_empty
            }  # fmt: skip
            least = {name: min(cost, least.get(name, cost)) for name, cost in costs.items()}
            ratios.append(opening / read)
    return least, ratios


def _opening_rows(sizes: Sequence[int]) -> list[Row]:
    """Opening a session from its snapshot, beside reading its log into memory, page by page, by
    the same store. On top of that come the parts of the snapshot that are decoded, and what each
    opening costs, however short the log is.
    """
    measured = [anyio.run(_measure_opening, size) for size in sizes]
    tables = [table for table, _ in measured]
    beyond = [max(0.0, table[OPENING] - table[READING]) for table in tables]
    law = _law("in SQLite", f"{OPENING}, without reading the bytes", sizes, beyond)
    # It decodes one part of two tables. A shorter session does not fill one.
    full = [at for at, size in enumerate(sizes) if size >= MIN_OPENING_TURNS]
    costs = [tables[at][USAGE_AGAIN] for at in full]
    usage = _law("in SQLite", USAGE_AGAIN, [sizes[at] for at in full], costs)
    rows = [msgspec.structs.replace(law, bound=MAX_OPENING_EXPONENT)]
    for size, (table, ratios) in zip(sizes, measured, strict=True):
        if size < MIN_OPENING_TURNS:
            continue
        rows.append(
            Row(
                name=f"{OPENING} of {size:,} turns, in SQLite, beside reading the bytes of its log",
                ours=table[OPENING] * 1e6,
                bare=table[READING] * 1e6,
                unit="us",
                ratios=tuple(ratios),
                bound=MAX_OPENING_RATIO if size > MIN_OPENING_TURNS else None,
                note=f"opening an empty session: {table[OPENING_EMPTY] * 1e6:.4g} us",
            )
        )
    return [*rows, usage]


FORGET = "forget half of the turns"
WHOLE: Mapping[str, Callable[[SessionManager, LLMSession], Awaitable[object]]] = {
    "fork": lambda _, session: session.fork(),
    "rewind by half of the turns": lambda _, session: session.rewind(_half(session)),
    FORGET: lambda _, session: session.forget(_half(session)),
    "subscribe(after=0), to the last record": lambda _, session: _all_events(session),
    "export": lambda manager, session: manager.export_conversation(session.id),
}
"""What works on a whole history. Each begins with a session that was opened from its snapshot."""
MOST_STALLS = {FORGET: 3.0}
"""How many times the bound of other works the longest stall may be. What is forgotten leaves the
tables of all turns in one step, because a state is never half changed.
"""


def _half(session: LLMSession) -> int:
    return live_state(session).turn_count // 2


async def _all_events(session: LLMSession) -> None:
    head = session.status().seq
    async for event in session.subscribe(after=0):
        if getattr(event, "seq", 0) == head:
            return


async def _cpu_of(work: Awaitable[object]) -> float:
    started = time.process_time()
    await work
    return time.process_time() - started


async def _longest_stall(work: Awaitable[object]) -> float:
    """The longest time that another task waits for the event loop during *work*, in CPU seconds of
    its thread.
    """
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await anyio.lowlevel.checkpoint()
            stalls.append(time.thread_time() - before)

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await anyio.lowlevel.checkpoint()
        made = await work
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    del made  # to free 220,000 messages takes long, and whoever asked for them does it
    return max(stalls)


async def _measure_whole(turns: int) -> dict[str, list[float]]:
    """For each of ``WHOLE``, its CPU seconds and its longest stall, without the collector."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.db"
        session_id, _ = await _write_with_snapshot(path, turns)
        for name, work in WHOLE.items():
            found[name] = []
            for measure in (_cpu_of, _longest_stall):
                with tempfile.TemporaryDirectory() as other:
                    store = SqliteStore(shutil.copy(path, other))
                    manager = SessionManager(provider=Instant(), store=store, tools=TOOLS)
                    async with manager:
                        session = await manager.open(session_id)
                        gc.collect()
                        gc.disable()
                        try:
                            found[name].append(await measure(work(manager, session)))
                        finally:
                            gc.enable()
    return found


def _whole_rows(sizes: Sequence[int]) -> list[Row]:
    """The CPU of what works on a whole history may grow with it."""
    tables = [anyio.run(_measure_whole, size) for size in sizes]
    rows = []
    for name in WHOLE:
        law = _law("in SQLite", name, sizes, [table[name][0] for table in tables])
        stalls = [table[name][1] * 1e3 for table in tables]
        by_size = ", ".join(f"{ms:.3g} at {n:,}" for n, ms in zip(sizes, stalls, strict=True))
        stall = Row(
            name=f"{name}, in SQLite: the longest stall of the event loop at {sizes[-1]:,} turns",
            ours=stalls[-1],
            bare=MAX_STALL_MS,
            unit="ms",
            ratios=(stalls[-1] / MAX_STALL_MS,),
            bound=MOST_STALLS.get(name, 1.0),
            note=f"bare here: {MAX_STALL_MS:g} ms; ms of CPU: {by_size}",
        )
        rows += [msgspec.structs.replace(law, bound=MAX_OPENING_EXPONENT), stall]
    return rows


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent of *costs* over *sizes*, by least squares over the logarithms of both."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return slope / sum((a - x) ** 2 for a in xs)


def _law(store: str, name: str, sizes: Sequence[int], costs: Sequence[float]) -> Row:
    grows = name in (COPY, COLLECTED)
    by_size = ", ".join(
        f"{cost * 1e6:.4g} at {size:,}" for size, cost in zip(sizes, costs, strict=True)
    )
    return Row(
        name=f"{name}, {store}: growth from {sizes[0]:,} to {sizes[-1]:,} turns",
        ours=costs[-1] * 1e6,
        bare=costs[0] * 1e6,
        unit="us",
        ratios=(exponent(sizes, [max(cost, 1e-8) for cost in costs]),),
        bound=None if grows else MAX_EXPONENT,
        note=f"the ratio is the exponent; us: {by_size}",
    )


async def _in_memory(turns: int, most: int) -> dict[str, float]:
    return await _measure(MemoryStore(), turns, most)


async def _in_sqlite(turns: int, most: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "growth.db")
        try:
            return await _measure(store, turns, most)
        finally:
            await store.aclose()


def run(sizes: Sequence[int] = SIZES) -> list[Row]:
    rows: list[Row] = []
    stores: Mapping[str, Any] = {"in memory": _in_memory, "in SQLite": _in_sqlite}
    for store, measure in stores.items():
        tables = [anyio.run(measure, size, max(sizes)) for size in sizes]
        names = [name for name in tables[0] if store == "in memory" or name in IN_SQLITE]
        rows += [_law(store, name, sizes, [table[name] for table in tables]) for name in names]
    rows += _opening_rows(sizes)
    rows += _whole_rows(sizes)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return [*rows[:-1], msgspec.structs.replace(rows[-1], note=f"{rows[-1].note}; load {load:.1f}")]
