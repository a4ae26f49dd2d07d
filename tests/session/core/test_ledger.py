"""The usage ledger: what was spent, by turn and by model, and what it cost. It is a fold of the
log: opened again it says the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from llmsession import (
    CompactionConfig,
    InterruptPolicy,
    LLMSession,
    MemoryStore,
    Price,
    ProviderError,
    SessionConfig,
    SessionManager,
    SessionUsage,
    Store,
    Tool,
    Usage,
)
from llmsession.session.handles.session import live_state
from llmsession.session.log.state import fold
from llmsession.testing.scripted import ScriptedProvider, call, never, say
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import StreamEvent
from tests.session.actors import Quick, Waiting, settled, stage

PRICES = {"m": Price.usd(1, 10, cache_read="0.1"), "n": Price.usd(100, 1000)}
COST = Usage(input_tokens=7, output_tokens=3)
COST_NANO = 7_000 + 30_000


@asynccontextmanager
async def priced(
    script: object = (),
    store: Store | None = None,
    prices: dict[str, Price] | None = None,
    **config: Any,
) -> AsyncIterator[LLMSession]:
    """The session ``s`` of a manager that knows *prices*."""
    prices = PRICES if prices is None else prices
    async with stage(script, store=store, prices=prices, **config) as on:  # type: ignore[arg-type]  # any script
        yield on.session


async def said(session: LLMSession, *texts: str) -> None:
    for text in texts or ("go",):
        await (await session.send(text)).outcome()


async def reopened_usage(store: Store) -> SessionUsage:
    """What a manager of another day says of the session ``s``."""
    async with SessionManager(provider=ScriptedProvider([]), store=store, prices=PRICES) as manager:
        return (await manager.open("s", unbound="caller")).usage()


async def test_the_cost_is_told_in_all_by_turn_and_by_model() -> None:
    script = [call("t", id="c").costing(COST), say("ok").costing(COST), say("hi").costing(COST)]
    async with priced(script, tools=[Tool(name="t", run=Quick())]) as session:
        await said(session, "one", "two")
        usage = session.usage()
        assert usage.cost_nano_usd == usage.priced_nano_usd == 3 * COST_NANO
        assert usage.cost_usd == 3 * COST_NANO / 10**9
        assert usage.turn_costs_nano_usd == {1: 2 * COST_NANO, 2: COST_NANO}
        assert usage.turns == {1: COST + COST, 2: COST}
        assert list(usage.models) == ["m"]
        spent = usage.models["m"]
        assert (spent.requests, spent.cost_nano_usd) == (3, 3 * COST_NANO)
        assert spent.usage == usage.total == COST + COST + COST
        assert usage.unpriced == ()


async def test_without_a_price_the_cost_is_unknown_and_not_nothing() -> None:
    async with priced([say("hi").costing(COST)], prices={}) as session:
        await said(session)
        usage = session.usage()
        assert (usage.cost_nano_usd, usage.cost_usd) == (None, None)
        assert usage.turn_costs_nano_usd == {1: None}
        assert usage.models["m"].cost_nano_usd is None
        assert usage.unpriced == ("m",)
        assert usage.priced_nano_usd == 0


async def test_before_anything_was_spent_the_cost_is_nothing() -> None:
    async with priced(prices={}) as session:
        usage = session.usage()
        assert (usage.cost_nano_usd, usage.charged_tokens, usage.models) == (0, 0, {})


async def test_after_a_change_of_model_each_reply_is_costed_by_its_own() -> None:
    store = MemoryStore()
    async with priced([say("a").costing(COST), say("b").costing(COST)], store) as session:
        await said(session)
        await session.configure(model="n")
        await said(session)
        usage = session.usage()
        assert usage.turn_costs_nano_usd == {1: COST_NANO, 2: 100 * COST_NANO}
        assert {name: m.cost_nano_usd for name, m in usage.models.items()} == {
            "m": COST_NANO, "n": 100 * COST_NANO,
        }  # fmt: skip
    assert await reopened_usage(store) == usage


async def test_the_model_that_answered_is_costed_and_not_the_one_that_was_asked() -> None:
    reply = say("hi").costing(COST)
    routed = type(reply)(blocks=reply.blocks, usage=COST, model="n-2026-01-01")
    async with priced([routed]) as session:
        await said(session)
        assert session.usage().models["n-2026-01-01"].cost_nano_usd == 100 * COST_NANO


async def test_a_request_is_costed_by_itself_where_a_long_prompt_has_its_own_price() -> None:
    long_prompt = Price.usd(1, 1, long_prompt_tokens=10, long_prompt=Price.usd(9, 9))
    each = Usage(input_tokens=6)
    script = [say("a").costing(each), say("b").costing(each)]
    async with priced(script, prices={"m": long_prompt}) as session:
        await said(session, "one", "two")
        assert session.usage().cost_nano_usd == 12_000  # together they would be 108,000


@pytest.mark.parametrize("policy", ["drop_turn", "keep_steps", "keep_text"])
async def test_an_interrupted_stream_is_charged_once_with_its_model_and_survives_reopening(
    policy: str,
) -> None:
    store = MemoryStore()
    streams = say("streams").costing(COST).hanging(at=3)
    script = [call("t", id="c").costing(COST), streams, say("x").costing(COST)]
    tools = [Tool(name="t", run=Quick())]
    async with priced(script, store, tools=tools, interrupt_policy=policy) as session:
        turn = await session.send("go")
        await settled()
        while_open = session.usage()
        assert while_open.cost_nano_usd == 2 * COST_NANO
        await session.interrupt()
        usage = session.usage()
        assert usage == while_open
        assert (await turn.outcome()).usage == usage.total == COST + COST
        assert usage.models["m"].requests == 2
        await said(session)
        usage = session.usage()
        assert usage.cost_nano_usd == 3 * COST_NANO
    assert await reopened_usage(store) == usage


class EndsAllTheSame(ScriptedProvider):
    """A provider whose reply comes to its end when it is cancelled."""

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        for at, event in enumerate(say("a word").costing(COST).events("m")):
            if at == 3:
                with suppress(anyio.get_cancelled_exc_class()):
                    await anyio.sleep_forever()
            yield event


@pytest.mark.parametrize("policy", ["drop_turn", "keep_text"])
async def test_a_stream_that_ends_within_its_grace_after_an_interrupt_is_charged_once(
    policy: InterruptPolicy,
) -> None:
    store = MemoryStore()
    async with SessionManager(provider=EndsAllTheSame([]), store=store, prices=PRICES) as manager:
        config = SessionConfig(model="m", interrupt_policy=policy)
        session = await manager.create(config, session_id="s")
        await session.send("go")
        await settled()
        await session.interrupt()
        usage = session.usage()
        assert usage.total == COST
        assert usage.models["m"].requests == 1
    assert await reopened_usage(store) == usage


async def test_attempts_that_broke_are_charged_in_their_order() -> None:
    store = MemoryStore()
    broken = (
        say("half")
        .costing(Usage(input_tokens=100, output_tokens=1))
        .raising(ProviderError("gone", kind="retryable"), at=2)
    )
    whole = say("whole").costing(Usage(input_tokens=100, output_tokens=5))
    more = say("more").costing(Usage(input_tokens=110, output_tokens=5))
    async with priced([broken, whole, more], store) as session:
        await said(session, "one", "two")
        usage = session.usage()
        assert usage.models["m"].requests == 3
        assert usage.charged_tokens == 101 + 5 + 15
        log = [r.decode_record(stored.body) for stored in await store.read("s")]
        (told,) = [record.unrecorded_usage for record in log if r.is_terminal(record)][:1]
        assert [(each.at, each.model, each.usage.output_tokens) for each in told] == [(0, "m", 1)]
    assert await reopened_usage(store) == usage


async def test_a_failed_turn_a_refused_one_and_one_that_says_nothing_are_charged() -> None:
    store = MemoryStore()
    fatal = say("x").costing(COST).raising(ProviderError("no", kind="fatal"), at=2)
    refused = say("no").costing(COST).stopping("refusal")
    async with priced([fatal, refused, say("  ").costing(COST)], store) as session:
        await said(session, "one", "two", "three")
        usage = session.usage()
        assert usage.turn_costs_nano_usd == dict.fromkeys((1, 2, 3), COST_NANO)
    assert await reopened_usage(store) == usage


async def test_a_compaction_neither_refunds_nor_charges_again() -> None:
    """The charge is that of the requests as they came; the prompt after it is shorter."""
    sizes = [(1000, 5), (2000, 5), (2100, 5), (900, 5), (950, 5)]
    replies = [Usage(input_tokens=prompt, output_tokens=out) for prompt, out in sizes]
    tool = Tool(name="t", run=Quick("a line of text\n" * 500))
    script = [
        call("t", id="c").costing(replies[0]),
        *(say("ok").costing(usage) for usage in replies[1:]),
    ]
    compaction = CompactionConfig(keep_recent_turns=1, keep_recent_steps=1)
    async with priced(script, tools=[tool], compaction=compaction) as session:
        for _ in range(2):
            await said(session)
        before = session.usage()
        await session.compact()
        assert session.usage() == before
        await said(session)
        assert session.usage().charged_tokens == before.charged_tokens + 5 == 2100 + 4 * 5
        await said(session)
        assert session.usage().charged_tokens == 2100 + 50 + 5 * 5


async def test_a_crash_leaves_what_is_in_the_log_and_the_owner_goes_on_counting() -> None:
    """Calls that wait when the process dies: the step before them is charged, live and after."""
    store = MemoryStore()
    script = [call("t", id="c").costing(COST)]
    async with priced(script, store, tools=[Tool(name="t")]) as session:
        await session.send("go")
        await settled()
        live = session.usage()
        provider = ScriptedProvider([say("done").costing(COST)])
        async with SessionManager(provider=provider, store=store, prices=PRICES) as second:
            again = await second.open("s", takeover=True, recovery="resume")
            assert again.usage() == live
            assert again.usage().cost_nano_usd == COST_NANO
            await again.interrupt()
            assert again.usage().cost_nano_usd == COST_NANO
    assert (await reopened_usage(store)).cost_nano_usd == COST_NANO


async def test_a_fork_counts_its_own_spending_and_is_not_charged_its_parents_prompt() -> None:
    first = say("a").costing(Usage(input_tokens=1000, output_tokens=5))
    second = say("b").costing(Usage(input_tokens=1030, output_tokens=5))
    async with priced([first, second]) as parent:
        await said(parent)
        fork = await parent.fork()
        assert fork.usage().charged_tokens == 0
        assert fork.usage().cost_nano_usd == 0
        await said(fork)
        assert fork.usage().charged_tokens == 35
        assert fork.usage().cost_nano_usd == 1_030_000 + 50_000
        assert parent.usage().charged_tokens == 1005


async def test_what_is_forgotten_rewound_or_cleared_was_spent_all_the_same() -> None:
    store = MemoryStore()
    streams = say("streams").costing(COST).hanging(at=3)
    script = [streams, say("a").costing(COST), say("b").costing(COST)]
    async with priced(script, store) as session:
        await session.send("go")
        await settled()
        await session.interrupt()
        await said(session, "one", "two")
        usage = session.usage()
        await session.rewind(to=2)
        await session.forget(before=2)
        await session.clear(purge=True)
        assert session.usage() == usage
    assert await reopened_usage(store) == usage


def test_an_old_log_says_how_much_and_not_by_which_model() -> None:
    """A log from before requests were told: an interrupted turn's usage has no model."""
    log: list[r.Record] = [
        r.SessionCreated(seq=1, session="s", config=b"{}"),  # type: ignore[arg-type]  # raw JSON
        r.TurnAccepted(seq=2, turn=1, body=b"[]", started=True),  # type: ignore[arg-type]
        r.TurnAborted(seq=3, turn=1, reason="interrupt", usage=COST),
    ]
    state = fold("s", log)
    assert state.requests == {1: (r.ModelRequest(None, COST),)}
    assert state.charged.tokens == 10


async def test_the_ledger_in_memory_is_the_fold_of_the_log_after_all_of_this() -> None:
    script = [
        call("t", id="c").costing(COST),
        say("half").costing(COST).raising(ProviderError("gone", kind="retryable"), at=2),
        say("ok").costing(COST),
        never(),
    ]
    tool = Waiting()
    async with stage(script, tool=tool) as on:
        await on.started(tool, "one")
        tool.go.set()
        await anyio.sleep(30)
        await on.begin("two")
        assert on.session.status().turn_phase == "streaming"
        await on.session.interrupt()
        log = await on.log()
        folded, live = fold("s", log), live_state(on.session)
        assert (folded.requests, folded.charged) == (live.requests, live.charged)
