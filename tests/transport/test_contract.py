"""The contract of sessions, embedded and at a service: the same tests on every place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest

from llmsession import (
    CompactionConfig,
    Event,
    HeadMoved,
    InterruptResult,
    InvalidConfig,
    InvalidInput,
    InvalidMessage,
    KeyReused,
    MemoryStore,
    OpaqueBlock,
    ProviderError,
    Seed,
    SessionBusy,
    SessionClosed,
    SessionConfig,
    SessionExists,
    SessionFilter,
    SessionNotFound,
    StepRestarted,
    TextDelta,
    Tool,
    ToolResult,
    ToolUse,
    TurnAborted,
    TurnFailed,
    TurnId,
    TurnLimits,
    UnknownToolCall,
    records,
)
from llmsession.compaction.policies import ContextItem, ContextProviders, pipeline
from llmsession.session.manager import runtime_of
from llmsession.testing.scripted import call, never, say
from llmsession.transport import SessionInterface
from llmsession.transport.server import command_table
from tests.transport.places import CONFIG, PLACES, Place, first, place_at

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


class At:
    """A place of one kind: ``async with at(script) as place``."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, *args: Any, **options: Any) -> AbstractAsyncContextManager[Place]:
        return place_at(self._kind, *args, **options)

    @asynccontextmanager
    async def session(self, script: Any = (), **config: Any) -> AsyncIterator[SessionInterface]:
        """A session at such a place, and nothing more of it."""
        async with self(script) as place:
            yield await place.session(**config)


@pytest.fixture(params=PLACES)
def at(request: pytest.FixtureRequest) -> At:
    return At(request.param)


async def read(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def shown(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


LS = {"name": "ls", "description": "lists", "input_schema": {"type": "object"}}


# Turns and their events.


async def test_a_turn_is_sent_streamed_and_committed(at: At) -> None:
    async with at([say("hello, and how are you?").slow(0.01)]) as place:
        session = await place.session()
        turn = await session.send("hi")
        assert turn.id == TurnId("u", 1)
        events = await read(aiter(turn))
        assert isinstance(events[0], records.TurnAccepted)
        assert isinstance(events[-1], records.TurnCommitted)
        assert shown(events) == "hello, and how are you?"
        outcome = await turn.outcome()
        assert (outcome.status, outcome.stop_reason) == ("committed", "end_turn")
        assert await turn.text() == "hello, and how are you?"
        embedded = await place.manager.open("s")
        assert await session.read_conversation() == embedded.conversation()


async def test_the_events_of_a_turn_that_has_ended_come_from_the_log(at: At) -> None:
    async with at.session(["one", "two"]) as session:
        await (await session.send("hi")).text()
        await (await session.send("ho")).text()
        events = await read(aiter(session.turn("u1")))
        kinds = [type(event) for event in events]
        assert kinds == [records.TurnAccepted, records.TurnCommitted]
        assert {event.turn for event in events} == {1}  # type: ignore[union-attr]  # of a turn


async def test_records_are_on_the_wire_as_they_are_in_the_log(at: At) -> None:
    async with at(["one"]) as place:
        session = await place.session()
        await (await session.send("hi")).text()
        log = [records.decode_record(row.body) for row in await place.manager.store.read("s")]
        subscription = session.subscribe(after=0)
        seen = [await anext(subscription) for _ in log]
        assert seen == log
        assert subscription.cursor == log[-1].seq
        subscription.close()


@pytest.mark.parametrize("has_cursor", [True, False], ids=["with a cursor", "without one"])
async def test_a_subscriber_begins_after_its_cursor_or_now(at: At, has_cursor: bool) -> None:
    async with at.session(["one", "two"]) as session:
        await (await session.send("hi")).text()
        cursor = (await session.read_status()).seq
        subscription = session.subscribe(after=cursor if has_cursor else None)
        turn = await session.send("ho")
        event = await anext(subscription)
        assert isinstance(event, records.TurnAccepted)
        assert (event.seq, event.turn) == (cursor + 1, 2)
        await turn.text()
        subscription.close()


async def test_who_joins_in_mid_stream_first_gets_the_text_so_far(at: At) -> None:
    reply = say("a" * 40).slow(0.005, delta_chars=1).hanging(at=30)
    async with at.session([reply]) as session:
        turn = await session.send("hi")
        early = session.subscribe(after=0)
        text = ""
        async for event in early:
            if isinstance(event, TextDelta):
                text += event.text
            if len(text) >= 20:
                break
        late = session.subscribe()
        joined = await first(late, TextDelta)
        assert len(joined.text) >= 20
        for subscription in (early, late):
            subscription.close()
        await session.interrupt(turn.id)


async def test_a_subscription_ends_when_its_session_is_closed(at: At) -> None:
    async with at.session() as session:
        subscription = session.subscribe(after=0)
        assert isinstance(await anext(subscription), records.SessionCreated)
        await session.close()
        assert await read(aiter(subscription)) == []


async def test_a_cursor_that_the_log_has_not_reached_is_refused(at: At) -> None:
    async with at.session() as session:
        with pytest.raises(InvalidInput, match="99"):
            await anext(session.subscribe(after=99))


async def test_a_long_log_is_read_by_a_slow_subscriber_without_a_gap(at: At) -> None:
    async with at.session() as session:
        for number in range(1400):
            await session.label({"n": str(number)})
        subscription = session.subscribe(after=0)
        await asyncio.sleep(0.05)  # what is sent meanwhile waits, or is left in the log
        seen = [await anext(subscription) for _ in range(1401)]
        assert [event.seq for event in seen] == list(range(1, 1402))  # type: ignore[union-attr]
        await session.label({"n": "last"})
        last = await anext(subscription)
        assert isinstance(last, records.SessionLabelled)
        assert last.labels == {"n": "last"}
        subscription.close()


# Tools.


async def test_calls_are_offered_and_answered(at: At) -> None:
    script = [say("I look") + call("ls", {"path": "."}, id="c1"), "done"]
    async with at.session(script, tools=[LS]) as session:
        turn = await session.send("look")
        use = await first(aiter(turn), ToolUse)
        assert (use.id, use.name, use.input, use.runner) == ("c1", "ls", {"path": "."}, "caller")
        assert await session.read_open_calls() == (use,)
        assert (await session.read_status()).open_calls == ("c1",)
        await session.submit_tool_results([ToolResult("c1", "a\nb", compact_summary="2 files")])
        assert await turn.text() == "done"
        assert await session.read_open_calls() == ()


async def test_callables_of_the_manager_are_run_from_the_first_turn_on(at: At) -> None:
    calls = [call("add", {"a": 2, "b": 3}, id="c1"), "five"]
    async with at(calls, tools=[Tool(name="add", run=lambda a, b: str(a + b))]) as place:
        session = await place.session(tools=[{"name": "add"}])
        assert await (await session.send("add them")).text() == "five"
        results = [m.tool_results[0] for m in await session.read_conversation() if m.tool_results]
        assert [result.text for result in results] == ["5"]


async def test_results_may_be_blocks_and_large(at: At) -> None:
    script = [call("ls", id="c1") + call("ls", id="c2"), "done"]
    async with at.session(script, tools=[LS]) as session:
        turn = await session.send("look")
        await first(aiter(turn), ToolUse)
        large = "x" * 300_000
        blocks = [{"type": "text", "text": "y", "cache_control": {"type": "ephemeral"}}]
        await session.submit_tool_results([ToolResult("c1", large), ToolResult("c2", blocks)])
        await turn.text()
        results = (await session.read_conversation())[2].tool_results
        assert results[0].content == large
        assert results[1].content == blocks


async def test_results_for_calls_that_nobody_made_are_refused(at: At) -> None:
    async with at.session(tools=[LS]) as session:
        with pytest.raises(UnknownToolCall) as caught:
            await session.submit_tool_results([ToolResult("c9", "x")])
        assert caught.value.call_id == "c9"
        with pytest.raises(InvalidInput):
            await session.submit_tool_results([])


# Interrupts, and order.


async def test_an_interrupt_drops_the_turn_and_gives_back_what_the_user_said(at: At) -> None:
    async with at.session(["one", never(), "three"]) as session:
        await (await session.send("hi")).text()
        before = await session.read_conversation()
        turn = await session.send("stop me")
        stopped = await session.interrupt()
        assert stopped.result is InterruptResult.ABORTED
        assert [block.text for block in stopped.dropped[0].user_content] == ["stop me"]  # type: ignore[union-attr]
        assert await session.read_conversation() == before
        with pytest.raises(TurnAborted) as caught:
            await turn.text()
        assert caught.value.turn == 2
        assert caught.value.outcome == await turn.outcome()


async def test_an_interrupt_of_what_is_not_there_says_so(at: At) -> None:
    async with at.session(["one"]) as session:
        assert (await session.interrupt()).result is InterruptResult.NOT_RUNNING
        assert (await session.interrupt("u7")).result is InterruptResult.UNKNOWN_TURN
        turn = await session.send("hi")
        await turn.text()
        assert (await session.interrupt(turn.id)).result is InterruptResult.NOT_RUNNING


@pytest.mark.parametrize("cold", [False, True])
async def test_an_interrupt_never_covers_a_send_that_comes_after_it(at: At, cold: bool) -> None:
    store = MemoryStore()
    async with at(lambda request, tag: say("here I am"), store=store) as place:
        session = await place.session()
        for _ in range(20):
            if cold:
                await runtime_of(place.manager).evict_idle()
            sends = [asyncio.ensure_future(session.send(f"before {n}")) for n in range(3)]
            stop = asyncio.ensure_future(session.interrupt())
            later = asyncio.ensure_future(session.send("after"))
            numbers = [(await sent).id.number for sent in [*sends, later]]
            assert numbers == sorted(numbers)
            await stop
            assert await (await later).text() == "here I am"


async def test_sends_are_accepted_in_the_order_in_which_they_were_called(at: At) -> None:
    async with at.session(lambda request, tag: "ok") as session:
        sent = [asyncio.ensure_future(session.send(f"{number}")) for number in range(60)]
        turns = await asyncio.gather(*sent)
        assert [turn.id.number for turn in turns] == list(range(1, 61))
        for turn in turns:
            await turn.text()
        said = [message.text for message in await session.read_conversation() if message.is_user]
        assert said == [f"{number}" for number in range(60)]


async def test_a_send_while_a_turn_is_open_does_as_it_is_told(at: At) -> None:
    async with at.session([never(), "two", "three"]) as session:
        running = await session.send("first")
        with pytest.raises(SessionBusy):
            await session.send("no", when_busy="reject")
        waiting = await session.send("wait")
        jumped = await session.send("now", when_busy="interrupt")
        assert (await running.outcome()).stop_reason == "replaced"
        assert await jumped.text() == "two"
        assert await waiting.text() == "three"
        with pytest.raises(InvalidInput):
            await session.send("x", when_busy="whenever")  # type: ignore[arg-type]


# Repeats.


async def test_a_repeated_command_id_gets_the_same_answer(at: At) -> None:
    async with at.session(["one"]) as session:
        one = await session.send("hi", command_id="c-1")
        again = await session.send("hi", command_id="c-1")
        assert again.id == one.id
        assert await again.text() == "one"
        with pytest.raises(KeyReused) as caught:
            await session.send("something else", command_id="c-1")
        assert caught.value.command_id == "c-1"
        await session.clear(command_id="c-2")
        generation = (await session.read_status()).generation
        await session.clear(command_id="c-2")
        assert (await session.read_status()).generation == generation


async def test_a_session_is_created_once_for_one_command_id(at: At) -> None:
    async with at() as place:
        labels = {"a": "b"}
        one = await place.sessions.create(CONFIG, session_id="x", labels=labels, command_id="c")
        two = await place.sessions.create(CONFIG, session_id="x", labels=labels, command_id="c")
        assert one.id == two.id
        for command_id in ("d", None):
            with pytest.raises(SessionExists):
                await place.sessions.create(
                    CONFIG, session_id="x", labels=labels, command_id=command_id
                )
        with pytest.raises(SessionExists):
            await place.sessions.create(CONFIG, session_id="x", command_id="c")


async def test_a_repeatable_creation_without_an_id_of_the_session_is_refused(at: At) -> None:
    async with at() as place:
        with pytest.raises(InvalidInput, match="command_id needs a session_id"):
            await place.sessions.create(CONFIG, command_id="c")
        assert not await place.sessions.list()


async def test_a_repeated_fork_is_the_same_session(at: At) -> None:
    async with at.session() as session:
        one = await session.fork(command_id="f")
        two = await session.fork(command_id="f")
        assert one.id == two.id != session.id


# The whole history.


async def test_a_history_is_cleared_rewound_and_forgotten(at: At) -> None:
    async with at.session(["one", "two", "three"]) as session:
        for said in ("a", "b", "c"):
            await (await session.send(said)).text()
        await session.rewind("a2")
        assert [message.turn for message in await session.read_conversation()] == [1, 1, 2, 2]
        await session.forget(2)
        assert [message.turn for message in await session.read_conversation()] == [2, 2]
        with pytest.raises(InvalidInput):
            await session.rewind(3)
        await session.clear(purge=True)
        assert await session.read_conversation() == ()


async def test_what_was_said_before_a_moment_is_forgotten(at: At) -> None:
    async with at(["one", "two"], clock=lambda: 100.0) as place:
        session = await place.session()
        await (await session.send("a")).text()
        await session.forget(50.0)
        assert len(await session.read_conversation()) == 2
        await session.forget(150.0)
        assert await session.read_conversation() == ()
        with pytest.raises(InvalidInput):
            await session.forget(float("nan"))


async def test_a_fork_goes_on_from_a_turn_and_leaves_its_parent_alone(at: At) -> None:
    async with at.session(lambda request, tag: f"reply {tag.turn}") as session:
        for said in ("a", "b"):
            await (await session.send(said)).text()
        fork = await session.fork(at=1, session_id="f", labels={"try": "2"})
        assert fork.id == "f"
        assert await (await fork.send("c")).text() == "reply 2"
        assert [message.turn for message in await fork.read_conversation()] == [1, 1, 2, 2]
        assert [message.turn for message in await session.read_conversation()] == [1, 1, 2, 2]


async def test_a_history_of_many_pages_is_read_whole(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_table, "PAGE_BYTES", 20_000)
    async with at(lambda request, tag: "r" * 8_000) as place:
        session = await place.session()
        for number in range(20):
            await (await session.send(f"{number}")).outcome()
        embedded = await place.manager.open("s")
        assert await session.read_conversation() == embedded.conversation()


async def test_the_open_turn_is_shown_where_it_is_asked_for(at: At) -> None:
    async with at.session([call("ls", id="c1"), never()], tools=[LS]) as session:
        turn = await session.send("look")
        await first(aiter(turn), ToolUse)
        assert await session.read_conversation() == ()
        staged = await session.read_conversation(include_open=True)
        assert [message.role for message in staged] == ["user", "assistant"]
        await session.interrupt()


async def test_what_is_read_is_what_the_session_says_embedded(at: At) -> None:
    async with at(["the reply"]) as place:
        session = await place.session(system="be brief", tools=[LS])
        await (await session.send("hello")).text()
        embedded = await place.manager.open("s")
        assert await session.read_context() == embedded.context()
        assert await session.read_status() == embedded.status()
        assert await session.read_usage() == embedded.usage()
        assert await session.read_summary(max_chars=200) == embedded.summary(max_chars=200)


# Configuration, labels, compaction.


async def test_a_configuration_is_changed_and_checked(at: At) -> None:
    async with at() as place:
        session = await place.session()
        await session.configure(model="other", limits=TurnLimits(max_steps=3), tools=[LS])
        config = (await place.manager.open("s")).config
        assert (config.model, config.limits.max_steps) == ("other", 3)
        assert list(config.bound_tools) == ["ls"]
        for wrong in ({"modle": "x"}, {"model": ""}, {"limits": 7}, {"command": 1}):
            with pytest.raises(InvalidConfig):
                await session.configure(**wrong)


async def test_a_policy_made_of_policies_is_configured_and_injects(at: At) -> None:
    providers = ContextProviders()
    memories = {"policy": "memory_injection", "options": {"memories": ["likes tea"]}}

    def compaction(providers: ContextProviders) -> CompactionConfig:
        stages = [memories, *msgspec.to_builtins(pipeline(providers, "balanced").stages)]
        return CompactionConfig(policy="pipeline", options={"stages": stages})

    async with at(lambda request, tag: say("fine")) as place:
        session = await place.session(compaction=compaction(providers))
        status = await session.read_status()
        assert status.next_turn == TurnId("u", 1)
        a_file = ContextItem(provider="file", id="a.py", name="a.py", content="x = 1")
        attached = providers.attached(status, a_file)
        await session.configure(compaction=compaction(attached))
        await (await session.send("hello")).text()
        context = await session.read_context()
        assert "- likes tea" in (context.system or "")
        assert "a.py\\nx = 1" in bytes(context.messages[0].body).decode()
        assert (await session.read_status()).next_turn == TurnId("u", 2)
        wrong = CompactionConfig(policy="pipeline", options={"stages": [{"policy": "no_such"}]})
        with pytest.raises(InvalidConfig, match="there is no policy 'no_such'"):
            await session.configure(compaction=wrong)


async def test_a_session_that_cannot_work_is_not_made(at: At) -> None:
    async with at() as place:
        with pytest.raises(InvalidConfig, match="model is empty"):
            await place.sessions.create(SessionConfig(model=""))
        with pytest.raises(InvalidInput):
            await place.sessions.create(CONFIG, session_id="\n")
        assert await place.sessions.list() == ()


async def test_sessions_are_found_by_what_they_say(at: At) -> None:
    async with at(lambda request, tag: say("fine, thanks")) as place:
        for name in ("a", "b", "c"):
            session = await place.sessions.create(CONFIG, session_id=name, labels={"user": name})
            await (await session.send(f"how are you, {name.upper()}1?")).text()
        page = await place.sessions.search("thanks", limit=2)
        assert [hit.session for hit in page.hits] == ["a", "b"]
        page = await place.sessions.search("thanks", after=page.next or "")
        assert ([hit.session for hit in page.hits], page.next) == (["c"], None)
        filter = SessionFilter(labels={"user": "b"})
        [hit] = (await place.sessions.search('"are you" b1', filter=filter)).hits
        assert (hit.turn, hit.role, hit.excerpt) == (1, "user", "how are you, B1?")
        with pytest.raises(InvalidInput, match="no word"):
            await place.sessions.search("?")


async def test_compact_summaries_can_be_read_back_and_a_compaction_foreseen(at: At) -> None:
    window = CompactionConfig(policy="last_n_messages", options={"n": 2})
    script = [call("mine", id="c1"), "done", "two"]
    async with at(script) as place:
        config = SessionConfig(model="m", tools=({"name": "mine"},), compaction=window)
        session = await place.sessions.create(config, session_id="a")
        turn = await session.send("go")
        async for event in turn:
            if isinstance(event, ToolUse):
                assert await session.read_compact_summaries() == {}
                result = ToolResult("c1", "long", compact_summary="short")
                await session.submit_tool_results([result])
        assert await session.read_compact_summaries() == {"c1": "short"}
        await session.store_compact_summaries({"c1": "shorter"})
        assert await session.read_compact_summaries() == {"c1": "shorter"}
        assert not await session.read_will_compact()
        await (await session.send("more")).text()
        assert await session.read_will_compact()
        await session.clear()
        assert await session.read_compact_summaries() == {}
        assert not await session.read_will_compact()


async def test_lists_have_titles_and_leave_out_the_archive_unless_it_is_asked_for(at: At) -> None:
    async with at(["a"]) as place:
        session = await place.sessions.create(CONFIG, session_id="a")
        other = await place.sessions.create(CONFIG, session_id="b")
        await (await session.send("what is it?")).outcome()
        await other.label(title="mine")
        rows = await place.sessions.list(titles=True)
        assert [row.title for row in rows] == ["what is it?", "mine"]
        assert [row.title for row in await place.sessions.list()] == ["", ""]
        await other.label({"user": "7"}, archived=True)
        assert [row.session for row in await place.sessions.list()] == ["a"]
        (row,) = await place.sessions.list(archived=True, titles=True)
        assert (row.session, row.title, row.labels["user"]) == ("b", "mine", "7")
        assert len(await place.sessions.list(archived=None)) == 2
        with pytest.raises(InvalidInput):
            await other.label()


async def test_sessions_are_listed_by_labels_and_deleted(at: At) -> None:
    async with at() as place:
        for name in ("a", "b", "c"):
            await place.sessions.create(CONFIG, session_id=name, labels={"user": name})
        session = await place.sessions.open("c")
        await session.label({"user": "a"})
        filter = SessionFilter(labels={"user": "a"})
        assert [row.session for row in await place.sessions.list(filter=filter)] == ["a", "c"]
        assert [row.session for row in await place.sessions.list(after="a", limit=1)] == ["b"]
        await place.sessions.delete("a")
        assert [row.session for row in await place.sessions.list()] == ["b", "c"]
        with pytest.raises(SessionNotFound):
            await place.sessions.delete("a")
        with pytest.raises(SessionNotFound):
            await place.sessions.open("a")
        with pytest.raises(InvalidInput):
            await session.label({"": "x"})


async def test_a_session_is_described_and_exported_as_it_is_in_the_store(at: At) -> None:
    async with at(["hello", never()]) as place:
        config = SessionConfig(model="m", system="be brief")
        session = await place.sessions.create(config, session_id="s", labels={"a": "1"})
        await (await session.send("hi")).text()
        fork = await session.fork(session_id="f")
        turn = await session.send("more")
        await session.interrupt(turn.id, policy="keep_text")
        for name in ("s", "f"):
            row = await place.sessions.row(name)
            assert row == await place.manager.store.row(name)
            told = await place.sessions.export_conversation(name)
            assert told == await place.manager.export_conversation(name)
            assert (told.system, told.labels) == ("be brief", {"a": "1"})
        assert row.parent == told.parent == "s"
        assert told.shared_turns == 1
        for ask in (place.sessions.row, place.sessions.export_conversation):
            with pytest.raises(SessionNotFound):
                await ask("none")
        await fork.close()
        assert (await place.sessions.row("f")).owner is None  # nobody took it to look


async def test_what_a_configuration_leaves_open_is_filled_where_the_session_runs(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMSESSION_THRESHOLD", "0.6")
    monkeypatch.setenv("LLMSESSION_POLICY", "swap_tool_results")
    async with at() as place:
        await place.sessions.create(CONFIG, session_id="s")
        ran = (await place.manager.open("s")).config.compaction
        assert (ran.policy, ran.threshold) == ("swap_tool_results", 0.6)
        said = CompactionConfig(policy="balanced", threshold=0.7)
        config = msgspec.structs.replace(CONFIG, compaction=said)
        await place.sessions.create(config, session_id="t")
        ran = (await place.manager.open("t")).config.compaction
        assert (ran.policy, ran.threshold) == ("balanced", 0.7)
        ignored = CompactionConfig(policy="last_n_messages")
        with pytest.raises(InvalidConfig, match=r"LLMSESSION_THRESHOLD is .*settings are: n"):
            await place.sessions.create(msgspec.structs.replace(CONFIG, compaction=ignored))


async def test_a_seed_begins_the_conversation(at: At) -> None:
    async with at(["one"]) as place:
        session = await place.sessions.create(CONFIG, session_id="s", seed=Seed("earlier", "e"))
        await (await session.send("hi")).text()
        assert "earlier" in str((await session.read_conversation())[0].content)


async def test_a_compaction_is_asked_for_and_summaries_are_given(at: At) -> None:
    script = [call("ls", id="c1"), "done"] + ["more"] * 6
    compaction = CompactionConfig(keep_recent_turns=1)
    async with at.session(script, tools=[LS], compaction=compaction) as session:
        turn = await session.send("look")
        await first(aiter(turn), ToolUse)
        await session.submit_tool_results([ToolResult("c1", "long " * 4000)])
        await turn.text()
        await session.store_compact_summaries({"c1": "it was long"})
        for _ in range(6):
            await (await session.send("go on")).text()
        outcome = await session.compact()
        assert outcome.applied
        assert outcome.tokens_after < outcome.tokens_before
        assert b"it was long" in (await session.read_context()).encode()
        with pytest.raises(UnknownToolCall):
            await session.store_compact_summaries({"c7": "x"})


async def test_the_callers_summary_stands_for_the_beginning(at: At) -> None:
    async with at.session(["one", "two"]) as session:
        for text in ("hello", "and on"):
            await (await session.send(text)).text()
        await session.set_summary("they said hello", upto="u1")
        shown = (await session.read_context()).encode()
        assert b"they said hello" in shown
        assert b"one" not in shown
        await session.set_summary("all of it", upto=2)
        assert await session.read_summary() == "all of it"
        for text, upto in (("late", 3), ("early", 1), ("", 2)):
            with pytest.raises(InvalidInput):
                await session.set_summary(text, upto=upto)


# Errors.


async def test_what_a_user_cannot_say_is_refused(at: At) -> None:
    async with at.session(["one"]) as session:
        wrong: list[Any] = ["", "  ", [], [{"type": "tool_result", "tool_use_id": "x"}], [{"a": 1}]]
        for content in wrong:
            with pytest.raises(InvalidMessage):
                await session.send(content)
        with pytest.raises(InvalidMessage, match=r"unknown type 'txt'.* document, .* text"):
            await session.send([{"type": "txt", "text": "hello"}])
        assert (await session.read_status()).seq == 1


async def test_a_head_that_has_moved_is_named(at: At) -> None:
    async with at.session(["one", "two"]) as session:
        await (await session.send("a")).text()
        await (await session.send("b", expected_head="a1")).text()
        with pytest.raises(HeadMoved) as caught:
            await session.send("c", expected_head="a1")
        assert (caught.value.expected, caught.value.actual) == ("a1", "a2")


async def test_a_turn_that_fails_says_why(at: At) -> None:
    error = ProviderError("no such model", kind="fatal", status=404, delay_s=1.5)
    async with at.session([say("x").raising(error)], on_failure="drop") as session:
        turn = await session.send("a")
        with pytest.raises(TurnFailed, match="no such model") as caught:
            await turn.text()
        failed = caught.value
        assert (failed.kind, failed.cause_kind, failed.status) == ("fatal", "fatal", 404)
        assert (failed.provider_message, failed.retry_after_s) == ("no such model", 1.5)
        assert failed.outcome.status == "failed"
        assert failed.outcome.user_text == "a"


async def test_a_session_is_opened_or_created_whichever_it_needs(at: At) -> None:
    async with at(["hi"]) as place:
        sessions = place.sessions
        opened = await asyncio.gather(
            *(sessions.open_or_create("a", CONFIG, labels={"n": str(n)}) for n in range(5))
        )
        assert {session.id for session in opened} == {"a"}
        await (await opened[0].send("hello")).text()
        other = msgspec.structs.replace(CONFIG, model="another")
        again = await sessions.open_or_create("a", other)
        assert len(await again.read_conversation()) == 2
        assert (await again.read_context()).model == CONFIG.model  # it keeps its own
        with pytest.raises(InvalidConfig):
            await sessions.open_or_create("b", SessionConfig(model=""))
        assert [row.session for row in await sessions.list()] == ["a"]


async def test_a_compaction_is_an_event_of_the_session_and_of_no_turn(at: At) -> None:
    compaction = CompactionConfig(keep_recent_turns=1)
    script = [call("ls", id="c1"), "done"] + ["more"] * 6
    async with at.session(script, tools=[LS], compaction=compaction) as session:
        turns = [await session.send("look")]
        await first(aiter(turns[0]), ToolUse)
        await session.submit_tool_results([ToolResult("c1", "long " * 4000)])
        for _ in range(6):
            turns.append(await session.send("go on"))
            await turns[-1].text()
        assert (await session.compact()).applied
        events = session.subscribe(after=0)
        compacted = await first(events, records.CompactionApplied)
        assert records.turn_of(compacted) is None
        of_turns = [event for turn in turns for event in await read(aiter(turn))]
        assert not [one for one in of_turns if isinstance(one, records.CompactionApplied)]


async def test_a_turn_that_never_was_has_no_outcome(at: At) -> None:
    async with at.session() as session:
        with pytest.raises(InvalidInput, match="no turn 4"):
            await session.turn("u4").outcome()


async def test_a_closed_session_takes_no_commands_and_can_be_opened_again(at: At) -> None:
    async with at([never(), "two"]) as place:
        session = await place.session()
        turn = await session.send("hi")
        closed = await session.close()
        assert closed.session == "s"
        assert (await turn.outcome()).stop_reason == "closed"
        with pytest.raises(SessionClosed):
            await session.send("more")
        again = await place.sessions.open("s")
        assert await (await again.send("hello")).text() == "two"


async def test_text_and_blocks_arrive_as_they_were_sent(at: At) -> None:
    async with at.session(["one", "two", "three"]) as session:
        texts = ["line\nend \u2028 \x00 ü \U0001f600", "lone \ud83d surrogate"]
        for text in texts:
            await (await session.send(text)).text()
        raw = b'{"type": "text",\n "text": "pretty",  "more": 1.50}'
        await (await session.send([OpaqueBlock("text", raw)])).text()
        said = [message for message in await session.read_conversation() if message.is_user]
        assert said[0].text == texts[0]
        assert said[1].text == "lone \ufffd surrogate"
        assert b'"text": "pretty",  "more": 1.50}' in bytes(said[2].body)


async def test_a_large_message_is_taken_and_one_that_is_too_large_is_not(at: At) -> None:
    async with at.session(["one"]) as session:
        text = "ü" * 1_000_000
        await (await session.send(text)).text()
        assert (await session.read_conversation())[0].text == text
        with pytest.raises(InvalidMessage):
            await session.send("x" * (33 * 1024 * 1024))


# Text.


async def test_the_text_of_a_fast_reply_comes_whole_whenever_it_is_read(at: At) -> None:
    async with at(lambda request, tag: f"reply {tag.turn} of some length") as place:
        session = await place.session()
        for number in range(1, 21):
            turn = await session.send("go")
            if number % 2:
                await turn.outcome()
            pieces = [str(piece) async for piece in turn.stream_text()]
            assert "".join(pieces) == f"reply {number} of some length"


async def test_a_step_that_is_tried_again_says_so_before_its_text_comes_anew(at: At) -> None:
    error = ProviderError("the stream broke", kind="retryable", delay_s=0.001)
    broken = say("The quick brown fox").slow(0.01, delta_chars=5).raising(error, at=4)
    async with at([broken, say("The slow brown fox")]) as place:
        turn = await (await place.session()).send("go")
        pieces = [piece async for piece in turn.stream_text()]
        position = pieces.index(StepRestarted(turn=1, step=1, attempt=2))
        assert "The quick brown fox".startswith("".join(map(str, pieces[:position])))
        assert "".join(map(str, pieces[position + 1 :])) == "The slow brown fox"


# Many at once.


async def test_many_sessions_do_not_mix(at: At) -> None:
    def reply(request: Any, tag: Any) -> Any:
        return say(request.system * 20).slow(0.01, delta_chars=9)

    async with at(reply) as place:

        async def live(number: int) -> None:
            config = SessionConfig(model="m", system=f"<{number}>")
            session = await place.sessions.create(config, session_id=f"s{number}")
            for _ in range(3):
                turn = await session.send("hi")
                events = await read(aiter(turn))
                assert shown(events) == f"<{number}>" * 20
                assert await turn.text() == f"<{number}>" * 20

        await asyncio.gather(*(live(number) for number in range(40)))


async def test_two_clients_of_one_session_see_the_same(at: At) -> None:
    async with at(["one"]) as place, place.connect() as other:
        session = await place.session()
        there = await other.open("s")
        watching = there.subscribe(after=0)
        await (await session.send("hi")).text()
        committed = await first(watching, records.TurnCommitted)
        assert committed.turn == 1
        assert await there.read_conversation() == await session.read_conversation()
        watching.close()


async def test_who_cancels_a_wait_has_not_taken_the_command_back(at: At) -> None:
    async with at.session(["one", "two"]) as session:
        sending = asyncio.ensure_future(session.send("a", command_id="c-1"))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        turn = await session.send("b")
        assert turn.id.number == 2
        await turn.text()
        assert await session.turn(1).text() == "one"
