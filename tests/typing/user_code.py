"""Code as a user writes it. Nothing runs it: the strict type checker reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import assert_type

from llmsession import (
    Block,
    CompactionConfig,
    CompactionOutcome,
    Event,
    InterruptOutcome,
    InterruptPolicy,
    InterruptResult,
    Lagged,
    LLMSession,
    MemoryStore,
    Message,
    Profile,
    Provider,
    Recovery,
    ReplayProvider,
    Request,
    Retention,
    RetentionReport,
    Seed,
    SessionConfig,
    SessionFilter,
    SessionManager,
    SessionRow,
    SessionStatus,
    StepTag,
    TextBlock,
    TextDelta,
    Tool,
    ToolOutput,
    ToolResult,
    ToolUse,
    ToolUseBlock,
    Turn,
    TurnAborted,
    TurnId,
    TurnLimits,
    TurnOutcome,
    Usage,
    WhenBusy,
    connect,
    count_turns,
    records,
)
from llmsession.testing import ScriptedProvider, StressPlan, StressReport, run_stress, say
from llmsession.transcripts import Conversation
from llmsession.transport import ManagerInterface, RemoteManager, RemoteSession
from llmsession.turns import ReplyEnded, ReplyStarted, StreamEvent


class Echo:
    """A provider of the user's own."""

    name = "echo"

    def profile(self, model: str) -> Profile:
        return Profile(name=model)

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        yield ReplyStarted(request.model)
        yield ReplyEnded("end_turn", Usage(input_tokens=tag.step))


def look_up(word: str) -> ToolOutput:
    return ToolOutput(content=word * 100, compact_summary=word)


def told(event: Event) -> str:
    """One line for each event that a user interface shows."""
    match event:
        case TextDelta(text=text):
            return text
        case ToolUse(name=name):
            return f"calls {name}"
        case records.ToolsRequested(calls=calls):
            return f"{len(calls)} calls"
        case records.CompactionApplied(tokens_before=before, tokens_after=after):
            return f"{before} -> {after} tokens"
        case records.TurnCommitted(usage=usage):
            return f"{usage.prompt_tokens} tokens"
        case records.TurnAborted(reason=reason):
            return f"aborted: {reason}"
        case records.TurnFailed(error=error):
            return f"failed: {error}"
        case Lagged(cursor=cursor):
            return f"subscribe again after {cursor}"
        case _:
            return ""


def shown(block: Block) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ToolUseBlock(name=name):
            return name
        case _:
            return ""


async def say_and_stop(
    session: LLMSession, mode: WhenBusy, policy: InterruptPolicy
) -> TurnOutcome | None:
    turn = await session.send("hello", when_busy=mode)
    await session.interrupt(turn.id, policy=policy)
    try:
        print(await turn.text())
    except TurnAborted as error:
        outcome: TurnOutcome = error.outcome
        return outcome
    return None


async def stressed() -> StressReport:
    ScriptedProvider([say("hello"), "in short"])
    return await run_stress(StressPlan(sessions=2, seconds=0.5, seed=1))


async def resumed(manager: SessionManager, recovery: Recovery) -> None:
    """After a crash: what waits is answered again."""
    session = await manager.open("s", recovery=recovery)
    assert_type(session.open_calls(), tuple[ToolUse, ...])
    results = [ToolResult(use.id, "so be it") for use in session.open_calls()]
    await session.submit_tool_results(results)


async def agent(messages: tuple[Message, ...]) -> None:
    provider: Provider = Echo()
    provider = ReplayProvider(messages, delta_chars=8)
    config = SessionConfig(
        model="m",
        system="be brief",
        tools=[Tool(name="look_up", run=look_up), {"name": "ask", "input_schema": {}}],
        limits=TurnLimits(max_steps=50, max_seconds=600),
        compaction=CompactionConfig(threshold=0.7, keep_recent_steps=10),
    )
    async with SessionManager(provider=provider, store=MemoryStore()) as manager:
        session = await manager.create(config)
        assert_type(session, LLMSession)
        turn = await session.send("hello", when_busy="steer", expected_head=TurnId("a", 3))
        assert_type(turn, Turn)
        async for event in turn:
            if isinstance(event, TextDelta):
                print(event.text)
            elif isinstance(event, ToolUse):
                await session.submit_tool_results(
                    [ToolResult(event.id, [{"type": "text", "text": "x"}])]
                )
        assert_type(await turn.outcome(), TurnOutcome)
        assert_type(await turn.text(), str)
        stopped = await session.interrupt(turn.id, policy="keep_steps", command_id="c-1")
        assert_type(stopped, InterruptOutcome)
        assert_type(stopped.result, InterruptResult)
        assert_type(session.conversation(include_open=True), tuple[Message, ...])
        assert_type(await session.read_conversation(), tuple[Message, ...])
        assert_type(session.context(), Request)
        assert_type(session.status(), SessionStatus)
        assert_type(session.usage().total, Usage)
        assert_type(count_turns(session.conversation()), int)
        assert_type(await session.compact(), CompactionOutcome)
        await session.configure(model="other")
        await session.clear()
        async for event in session.subscribe(after=0):
            print(event)
        again = await manager.open(session.id, tools=[Tool(name="look_up", run=look_up)])
        await again.close()
        await history(manager, session)


async def anywhere(sessions: ManagerInterface) -> str:
    """Runs on embedded and remote sessions alike."""
    session = await sessions.create(SessionConfig(model="m"))
    turn = await session.send("hello")
    async for event in turn:
        print(told(event))
    assert_type(await session.read_conversation(), tuple[Message, ...])
    return await turn.text()


async def remote(manager: SessionManager) -> None:
    async with connect("unix:/run/llmsession.sock", token="t") as sessions:
        assert_type(sessions, RemoteManager)
        await anywhere(sessions)
        fork = await (await sessions.open("s")).fork(at="a3")
        assert_type(fork, RemoteSession)
    await anywhere(manager)


async def history(manager: SessionManager, session: LLMSession) -> None:
    fork = await session.fork(at="a3", labels={"try": "2"}, when_busy="interrupt")
    assert_type(fork, LLMSession)
    await fork.rewind(TurnId("u", 2))
    await fork.forget(datetime.now(UTC), when_busy="interrupt")
    await fork.clear(purge=True, command_id="c-2")
    await fork.label({**fork.labels, "done": "yes"})
    seeded = await manager.create(
        session.config, labels={"of": session.id}, seed=Seed(session.summary(), session.id)
    )
    conversation = await manager.export_conversation(seeded.id)
    assert_type(conversation, Conversation)
    again = await manager.import_conversation(conversation, session.config, session_id="again")
    assert_type(again, LLMSession)
    names = await manager.import_conversations([conversation], lambda each: session.config)
    assert_type(names, tuple[str, ...])
    rows = await manager.list(filter=SessionFilter(labels={"of": None}, touched_before=0.0))
    assert_type(rows, Sequence[SessionRow])
    rules = [Retention(labels={"of": None}, forget_after_s=86_400.0), Retention(delete_idle_s=1e7)]
    assert_type(await manager.apply_retention(rules, dry_run=True), RetentionReport)
