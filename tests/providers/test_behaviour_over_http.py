"""What a session promises, kept through the real SDKs over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest

from llmsession import (
    CompactionConfig,
    InterruptResult,
    Profile,
    Provider,
    ProviderError,
    Request,
    RequestMessage,
    SessionManager,
    StepTag,
    TextDelta,
    ThinkingBlock,
    Tool,
    ToolResult,
    ToolUse,
    TurnFailed,
    Usage,
    records,
)
from llmsession.session.actor import turn_runner
from llmsession.testing import (
    ScriptedReply,
    StrictServer,
    WireFault,
    block,
    call,
    never,
    say,
    think,
)
from llmsession.testing.strict_server.model.models import ModelRules
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.stream import BlockDelta, ReplyEnded, StreamEvent
from tests.providers.over_http import (
    APIS,
    MODELS,
    NO_RETRIES,
    PATIENCE_S,
    Api,
    greeting,
    make_provider,
    on_line,
    read_reply,
)
from tests.session.actors import Quick, Waiting, first, stage
from tests.session.probes import after_a_crash

pytestmark = pytest.mark.real_time
over_both = pytest.mark.parametrize("api", APIS)


@over_both
async def test_a_reply_comes_back_with_its_text_its_usage_and_its_previews(api: Api) -> None:
    async with on_line(api, [say("Hällo 😀, wörld")], system="be kind") as line:
        turn = await line.session.send("hi")
        seen = "".join([event.text async for event in turn if isinstance(event, TextDelta)])
        outcome = await turn.outcome()
        assert (seen, await turn.text()) == ("Hällo 😀, wörld",) * 2
        assert outcome.stop_reason == "end_turn"
        assert outcome.usage.prompt_tokens > 0
        assert outcome.usage.output_tokens > 0
        last = line.session.conversation()[-1]
        assert (last.provider, last.model) == (api, MODELS[api])


@over_both
async def test_a_waiting_task_is_not_woken_for_the_deltas_of_a_connection_of_aiohttp(
    api: Api, anyio_backend: tuple[str, dict[str, Any]]
) -> None:
    pushed: list[StreamEvent] = []
    events: list[StreamEvent] = []

    def accept(event: StreamEvent) -> bool:
        if isinstance(event, BlockDelta):
            events.append(event)
            pushed.append(event)
        return isinstance(event, BlockDelta)

    reply = (think("hm " * 20) if api == "anthropic" else say("")) + say("word " * 20)
    script = [reply.slow(0.005)] * 2
    async with StrictServer(script) as server, make_provider(api, server) as provider:
        with anyio.fail_after(PATIENCE_S):
            alone = await read_reply(provider, greeting(api))
            stream = provider.stream(greeting(api), StepTag(7, 2, 2))
            stream.push_to(accept)
            async for event in stream:
                events.append(event)
    assert [type(event) for event in events] == [type(event) for event in alone]
    assert [event for event in events if isinstance(event, BlockDelta)] == [
        event for event in alone if isinstance(event, BlockDelta)
    ]
    assert bool(pushed) == (anyio_backend[0] == "asyncio")


@over_both
async def test_whoever_stands_between_a_session_and_our_provider_sees_every_event(
    api: Api,
) -> None:
    class Shouting:
        def __init__(self, provider: Provider) -> None:
            self._provider = provider
            self.name = provider.name
            self.profile = provider.profile

        async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
            async with aclosing(self._provider.stream(request, tag)) as events:
                async for event in events:
                    if isinstance(event, BlockDelta):
                        event = BlockDelta(event.index, event.kind, event.text.upper())
                    yield event

    async with on_line(api, [say("hello wörld").slow(0.005)], wrap=Shouting) as line:
        assert await line.say("hi") == "HELLO WÖRLD"


@over_both
async def test_steps_of_one_session_share_a_connection(api: Api) -> None:
    tool = Tool(name="t", run=Quick())
    async with on_line(api, [call("t", id="c1"), call("t", id="c2"), "done"], tools=[tool]) as line:
        assert await line.say("go") == "done"
        assert len(line.server.requests) == 3
        assert line.server.accepted_connections == 1


@over_both
async def test_parallel_calls_are_run_and_answered_in_one_request(api: Api) -> None:
    tool = Quick()
    script = [say("two") + call("t", {"n": 1}, id="a") + call("t", {"n": 2}, id="b"), "done"]
    async with on_line(api, script, tools=[Tool(name="t", run=tool)]) as line:
        assert await line.say("go") == "done"
        assert sorted(each["n"] for each in tool.inputs) == [1, 2]


@over_both
async def test_a_call_of_the_caller_is_answered_by_the_caller_also_as_an_error(api: Api) -> None:
    async with on_line(api, [call("t", {"a": 1}, id="c"), "done"], tools=[Tool(name="t")]) as line:
        turn = await line.session.send("go")
        use = await first(turn, ToolUse)
        assert (use.name, use.input) == ("t", {"a": 1})
        await line.session.submit_tool_results([ToolResult(use.id, "no such file", is_error=True)])
        assert await turn.text() == "done"
        sent = str(line.server.requests[-1].body["messages"])
        assert "no such file" in sent


@over_both
async def test_an_interrupt_closes_the_connection_at_once_and_the_next_turn_is_clean(
    api: Api,
) -> None:
    script = [say("word " * 500).slow(0.02), "next"]
    async with on_line(api, script) as line:
        turn = await line.session.send("go")
        await first(turn, TextDelta)
        assert line.server.open_replies == 1
        outcome = await line.session.interrupt()
        assert outcome.result is InterruptResult.ABORTED
        await line.server.wait_for(lambda server: server.open_replies == 0)
        assert line.server.closed_by_client == 1
        assert line.session.conversation() == ()
        assert await line.say("again") == "next"


@over_both
async def test_an_interrupt_before_the_first_event_closes_the_connection_too(api: Api) -> None:
    async with on_line(api, [never(), "next"], faults=[WireFault.stall(), None]) as line:
        await line.session.send("go")
        await line.server.wait_for(lambda server: server.open_replies == 1)
        assert (await line.session.interrupt()).result is InterruptResult.ABORTED
        await line.server.wait_for(lambda server: server.open_replies == 0)
        assert line.server.closed_by_client == 1


@over_both
async def test_keep_text_keeps_what_was_streamed_and_the_server_takes_it_back(api: Api) -> None:
    script = [say("word " * 500).slow(0.01), "next"]
    async with on_line(api, script) as line:
        turn = await line.session.send("go")
        await first(turn, TextDelta)
        outcome = await line.session.interrupt(policy="keep_text")
        assert outcome.result is InterruptResult.KEPT
        assert line.session.conversation()[-1].text.startswith("word")
        assert await line.say("again") == "next"


@over_both
async def test_a_steer_joins_the_turn_at_its_next_step(api: Api) -> None:
    tool = Waiting()
    async with on_line(api, [call("t", id="c"), "done"], tools=[Tool(name="t", run=tool)]) as line:
        turn = await line.session.send("go")
        await tool.started.wait()
        steered = await line.session.send("and be quick", when_busy="steer")
        assert steered.id == turn.id
        tool.go.set()
        assert await turn.text() == "done"
        assert "and be quick" in str(line.server.requests[-1].body["messages"])


@over_both
async def test_the_sdk_retries_before_the_first_event_and_nobody_does_on_top(api: Api) -> None:
    faults = lambda _received: WireFault.overloaded()  # noqa: E731  # a fault for every request
    options = {"max_retries": 1}
    async with on_line(api, ["never said"], faults=faults, provider_options=options) as line:
        turn = await line.session.send("go")
        with pytest.raises(TurnFailed) as failed:
            await turn.text()
        assert failed.value.cause_kind == "retryable"
        assert len(line.server.requests) == 2


@over_both
async def test_what_the_sdk_may_not_retry_the_session_retries_after_the_delay_asked_for(
    api: Api,
) -> None:
    faults = [WireFault.rate_limited(0.02), None]
    async with on_line(api, ["hello"], faults=faults) as line:
        assert await line.say("go") == "hello"
        assert len(line.server.requests) == 2


@over_both
@pytest.mark.usefixtures("sessions_retry_at_once")
@pytest.mark.parametrize(
    "fault", [WireFault.error_event(after_events=3), WireFault.cut(400), WireFault.reset(400)]
)
async def test_a_stream_that_breaks_after_its_first_event_is_asked_for_again(
    api: Api, fault: WireFault
) -> None:
    async with on_line(api, [say("hello world, once more")], faults=[fault, None]) as line:
        turn = await line.session.send("go")
        assert await turn.text() == "hello world, once more"
        assert len(line.server.requests) == 2
        assert (await turn.outcome()).usage.output_tokens > 0


@over_both
async def test_usage_of_a_broken_attempt_is_kept_as_far_as_it_is_known(api: Api) -> None:
    fault = WireFault.cut(900)
    async with on_line(api, ["word " * 50], faults=[fault], limits=NO_RETRIES) as line:
        outcome = await (await line.session.send("go")).outcome()
        assert outcome.status == "failed"
        # Chat completions report usage at their end only; Messages at their start, too.
        expected = 1 if api == "anthropic" else 0
        assert min(outcome.usage.prompt_tokens, 1) == expected


@pytest.mark.parametrize("model", ["claude-haiku-4-5", "claude-sonnet-5", "claude-opus-5-5"])
async def test_signed_thinking_survives_tool_loops_compaction_and_a_change_of_model(
    model: str,
) -> None:
    def reply(received: Any) -> ScriptedReply:
        number = received.number
        if number % 5 == 4:
            return think(f"thought {number}") + say(f"answer {number}")
        return think(f"thought {number}") + call("t", {"n": number}, id=f"c{number}")

    options = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    if model != "claude-haiku-4-5":
        options = {"thinking": {"type": "adaptive"}}
    compaction = CompactionConfig(threshold=0.3, keep_recent_steps=1, keep_recent_turns=1)
    tool = Tool(name="t", run=Quick("line of output\n" * 700))
    async with on_line(
        "anthropic",
        reply,
        tools=[tool],
        model=model,
        options=options,
        window_tokens=40_000,
        max_tokens=2_000,
        compaction=compaction,
    ) as line:
        for turn in range(4):
            assert "answer" in await line.say(f"turn {turn}")
        log = await line.log()
        assert any(isinstance(record, records.CompactionApplied) for record in log)
        thoughts = [
            each
            for message in line.session.conversation()
            for each in message.content
            if isinstance(each, ThinkingBlock)
        ]
        assert thoughts
        assert all(each.signature for each in thoughts)
        await line.session.configure(model="claude-opus-4-6", options={})
        assert "answer" in await line.say("another model")
        await line.session.configure(system="another prompt")
        assert "answer" in await line.say("another prompt")


async def test_redacted_thinking_citations_and_server_tools_come_back_as_they_went() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    location = {
        "type": "char_location", "cited_text": "a", "document_index": 0, "document_title": None,
        "start_char_index": 0, "end_char_index": 1,
    }  # fmt: skip
    cited = {"type": "text", "text": "as it says", "citations": [location]}
    said = block(search) + block(found) + block(cited)
    options = {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    async with on_line("anthropic", [said, "next"], options=options) as line:
        assert await line.say("go") == "as it says"
        assert await line.say("more") == "next"
        sent = line.server.requests[-1].messages[1]["content"]
        kept = [{**each} for each in sent]
        for each in kept:
            each.pop("cache_control", None)
        assert kept[2] == cited
        assert [each["type"] for each in kept] == [search["type"], found["type"], "text"]


async def test_a_paused_turn_is_sent_on_as_it_is() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    paused = (say("let me see") + block(search) + block(found)).stopping("pause_turn")
    options = {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    async with on_line("anthropic", [paused, "done"], options=options) as line:
        turn = await line.session.send("go")
        assert (await turn.outcome()).stop_reason == "end_turn"
        assert line.server.requests[1].messages[-1]["role"] == "assistant"


async def test_a_pause_without_a_server_tool_is_not_sent_as_a_prefill() -> None:
    async with on_line("anthropic", [say("so far").stopping("pause_turn"), "next"]) as line:
        outcome = await (await line.session.send("go")).outcome()
        assert (outcome.status, outcome.stop_reason) == ("committed", "pause_turn")
        assert await line.say("more") == "next"
        assert [each.messages[-1]["role"] for each in line.server.requests] == ["user", "user"]


async def test_a_pause_without_a_server_tool_in_the_log_is_resumed_with_a_valid_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Where a turn goes on behind such a pause, as nothing but an older log can say.
    monkeypatch.setattr(turn_runner, "can_go_on", lambda replies: True)
    script = [say("so far").stopping("pause_turn"), never()]
    async with stage(script, model=MODELS["anthropic"], recovery="resume") as on:
        await on.begin("go")
        assert (await on.kinds())[:3] == ["session.created", "turn.accepted", "step.completed"]
        store = await after_a_crash(on.store, 3)
    monkeypatch.undo()
    async with (
        StrictServer(["next"]) as server,
        make_provider("anthropic", server) as provider,
        SessionManager(provider=provider, store=store) as manager,
    ):
        session = await manager.open("s")
        outcome = await session.turn(1).outcome()
        assert (outcome.status, outcome.stop_reason) == ("committed", "pause_turn")
        assert outcome.text == "so far"
        assert list(server.requests) == []
        assert await (await session.send("more")).text() == "next"
        assert [request.refusal for request in server.requests] == [None]


STOPS = ["end_turn", "stop_sequence", "max_tokens", "refusal", "model_context_window_exceeded"]


@pytest.mark.parametrize("reason", STOPS)
async def test_every_stop_reason_arrives_in_its_own_word(reason: str) -> None:
    async with on_line("anthropic", [say("so far").stopping(reason), "next"]) as line:
        outcome = await (await line.session.send("go")).outcome()
        if reason == "refusal":
            assert outcome.status == "failed"
        else:
            assert (outcome.status, outcome.stop_reason) == ("committed", reason)
        assert await line.say("more") == "next"


async def test_a_prompt_that_was_sent_is_read_from_the_cache_by_the_next_step() -> None:
    text = "A long prompt. " * 2000
    async with on_line("anthropic", ["one", "two"], system=text) as line:
        await line.say("go")
        await line.say("on")
        one, two = line.session.usage().turns.values()
        assert one.cache_write_tokens > 0
        assert two.cache_read_tokens >= one.cache_write_tokens


async def test_the_provider_counts_a_request() -> None:
    async with on_line("anthropic", ["hello"], system="be kind") as line:
        turn = await line.session.send("go")
        await turn.outcome()
        body = RequestMessage("user", encode_blocks("go"))
        request = msgspec.structs.replace(line.session.context(), messages=(body,))
        provider: Any = line.provider
        counted = await provider.count_tokens(request)
        assert counted == (await turn.outcome()).usage.prompt_tokens


SMALL = ModelRules(context_tokens=15_000, max_output_tokens=8_000, adaptive_thinking=True)


@over_both
async def test_a_request_that_the_server_finds_too_large_is_compacted_and_sent_again(
    api: Api,
) -> None:
    def reply(received: Any) -> ScriptedReply:
        if "done with it" in str(received.messages[-1]):
            return say("done")
        return call("t", {"n": received.number}, id=f"c{received.number}")

    results = iter(["line of output\n" * 3000, "line of output\n" * 3000, "done with it"])

    async def tool(**_arguments: Any) -> str:
        return next(results)

    # The session thinks that the window is larger than it is.
    async with on_line(
        api,
        reply,
        server_options={"models": {MODELS[api]: SMALL}},
        tools=[Tool(name="t", run=tool)],
        compaction=CompactionConfig(keep_recent_steps=1, keep_recent_turns=1),
        window_tokens=200_000,
        max_tokens=1_000,
        may_refuse=True,
    ) as line:
        assert await line.say("go") == "done"
        log = await line.log()
        assert any(isinstance(record, records.CompactionApplied) for record in log)
        assert len(line.refusals()) == 1


class Holding:
    """A provider that stops reading after so many events and holds the stream open."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self.after = 0
        self.held = anyio.Event()
        self.ended = False

    @property
    def name(self) -> str:
        return self._inner.name

    def profile(self, model: str) -> Profile:
        return self._inner.profile(model)

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        stream = self._inner.stream(request, tag)
        try:
            seen = 0
            async for event in stream:
                if seen == self.after:
                    self.held.set()
                    await anyio.sleep_forever()
                seen += 1
                self.ended = isinstance(event, ReplyEnded)
                if self.ended:
                    self.held.set()
                yield event
        finally:
            await stream.aclose()


STOPPED = 6
"""After so many events at most the server stops; the reply has more than ten."""


@over_both
@pytest.mark.parametrize("policy", ["drop_turn", "keep_text"])
async def test_an_interrupt_at_every_event_leaves_one_end_no_orphan_and_no_connection(
    api: Api, policy: Any
) -> None:
    said = think("hm") + say("Hällo 😀, wörld") + call("t", {"path": "."}, id="c")
    whole = said.slow(0.0, delta_chars=5)
    made: list[Holding] = []

    def reply(_received: object) -> Any:
        # At first the server stops, too: it is not at the reply's end before the interrupt comes.
        after = made[0].after
        return whole if after >= STOPPED else whole.hanging(at=after + 3)

    def wrap(provider: Provider) -> Holding:
        made.append(Holding(provider))
        return made[0]

    tools = [Tool(name="t")]
    async with on_line(api, reply, wrap=wrap, tools=tools) as line:
        holding = made[0]
        for after in range(100):
            holding.after, holding.held = after, anyio.Event()
            await line.session.send("go")
            await holding.held.wait()
            if holding.ended:
                await first(line.session.subscribe(after=0), ToolUse)
            result = (await line.session.interrupt(policy=policy)).result
            assert result in (InterruptResult.ABORTED, InterruptResult.KEPT)
            await line.server.wait_for(lambda server: server.open_replies == 0)
            if holding.ended:
                break
        assert after > 10
        assert line.server.closed_by_client >= STOPPED


async def _broken_everywhere(api: Api, make: Any, *, every: int) -> int:
    """Break the answer at each *every*-th byte, and say how many bytes it took to be whole."""
    at = 0
    reply = think("hm") + say("Hällo 😀, wörld") + call("t", {"path": "."}, id="c")
    async with on_line(
        api,
        lambda _received: reply,
        faults=lambda _received: make(at),
        tools=[Tool(name="t")],
        limits=NO_RETRIES,
        patience_s=PATIENCE_S if every > 1 else 250.0,
    ) as line:
        known = Usage()
        while True:
            turn = await line.session.send("go")
            whole = False
            async for event in turn:
                if isinstance(event, ToolUse):
                    whole = True
                    await line.session.interrupt()
            outcome = await turn.outcome()
            assert outcome.usage.prompt_tokens >= known.prompt_tokens  # never less than before
            known = outcome.usage
            if whole:
                assert outcome.status == "aborted"
                assert known.output_tokens > 0
                return at
            assert outcome.status == "failed"
            assert outcome.error is not None
            assert line.session.conversation() == ()
            assert line.server.open_replies == 0
            at += every


@over_both
async def test_a_stream_cut_at_many_bytes_fails_its_turn_and_nothing_else(api: Api) -> None:
    assert await _broken_everywhere(api, WireFault.cut, every=83) > 500


@over_both
async def test_a_stream_reset_at_many_bytes_fails_its_turn_and_nothing_else(api: Api) -> None:
    assert await _broken_everywhere(api, WireFault.reset, every=83) > 500


@pytest.mark.long
@pytest.mark.timeout(600)
@over_both
@pytest.mark.parametrize("make", [WireFault.cut, WireFault.reset])
async def test_a_stream_broken_at_every_byte_fails_its_turn_and_nothing_else(
    api: Api, make: Any
) -> None:
    assert await _broken_everywhere(api, make, every=1) > 500


@over_both
async def test_a_server_that_stops_sending_is_given_up_after_the_read_timeout(api: Api) -> None:
    faults = [WireFault.stall(after_bytes=300)]
    options = {"read_timeout_s": 0.2}
    async with on_line(
        api, ["hello world"], faults=faults, provider_options=options, limits=NO_RETRIES
    ) as line:
        outcome = await (await line.session.send("go")).outcome()
        assert outcome.status == "failed"
        assert "imeout" in (outcome.error or "")


@over_both
async def test_nobody_at_home_is_a_retryable_failure_that_says_so(api: Api) -> None:
    async with StrictServer(["hello"]) as server:
        gone = make_provider(api, server)
    request = Request(
        model=MODELS[api], max_tokens=9, messages=(RequestMessage("user", encode_blocks("go")),)
    )
    async with gone:
        with pytest.raises(ProviderError, match=r"the connection to .* failed") as raised:
            async for _ in gone.stream(request, StepTag(1, 1, 1)):
                raise AssertionError("an event out of nowhere")
    assert raised.value.kind == "retryable"
