"""Recorded conversations become sessions that go on, and come back as conversations."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from benchmarks.growth import Instant, opened
from llmsession import (
    CompactionConfig,
    InvalidConfig,
    InvalidInput,
    InvalidMessage,
    LLMSession,
    MemoryStore,
    SessionConfig,
    SessionExists,
    SessionManager,
    SessionNotFound,
    StoreError,
    Tool,
)
from llmsession.session.handles.session import live_state
from llmsession.session.operations import export
from llmsession.session.operations.export import conversation_of
from llmsession.session.operations.import_records import OPENING
from llmsession.testing.scripted import call, never, say, think
from llmsession.transcripts import (
    RECORDED_IDS,
    Conversation,
    Note,
    clean_call_id,
    read_own,
    write_own,
)
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from tests.session.actors import (
    Quick,
    Stage,
    faulty_stage,
    same_as_its_log,
    stage,
    texts_of,
)  # fmt: skip

CONFIG = SessionConfig(model="m", tools=[Tool(name="t", run=Quick())])


def message(turn: int, role: Any, *blocks: Any, **fields: Any) -> Message:
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    number = fields.pop("n", 0)
    defaults = {"id": f"x/{'u' if role == 'user' else 'a'}{turn}.{number}", "session": "x"}
    return Message(turn=turn, role=role, body=encode_blocks(content), **{**defaults, **fields})


def use(call_id: str = "c") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "t", "input": {}}


def result(call_id: str = "c", text: str = "fine") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}


def calling(turn: int, call_id: str = "c", text: str = "fine") -> tuple[Message, ...]:
    """A turn with one call."""
    return (
        message(turn, "user", "go"), message(turn, "assistant", use(call_id)),
        message(turn, "user", result(call_id, text), n=1), message(turn, "assistant", "ok", n=1),
    )  # fmt: skip


def talk(*messages: Message, **fields: Any) -> Conversation:
    return Conversation(id="old", format="own", messages=messages, **fields)


SAID = (
    message(1, "user", "hello", created_at=10.0),
    message(1, "assistant", use()),
    message(1, "user", result(), n=1),
    message(1, "assistant", "done", n=1, stop_reason="end_turn", model="other"),
    message(4, "user", "again", created_at=20.0),
    message(4, "assistant", "yes"),
)


@asynccontextmanager
async def imported(
    *messages: Message, script: Sequence[Any] = (), **fields: Any
) -> AsyncIterator[tuple[Stage, LLMSession]]:
    """A stage, and the session that a conversation of *messages* has become: ``SAID`` without
    any."""
    async with stage(script) as on:
        conversation = talk(*(messages or SAID), **fields)
        yield on, await on.manager.import_conversation(conversation, CONFIG)


async def test_a_conversation_becomes_a_session_that_goes_on() -> None:
    async with imported(script=["as I said"]) as (on, session):
        assert session.id == "old"
        assert session.conversation() == SAID
        assert all(a is b for a, b in zip(session.conversation(), SAID, strict=True))
        turn = await session.send("and now?")
        assert turn.id.number == 5
        assert await turn.text() == "as I said"
        sent = texts_of(on.provider.requests[-1])
        assert len(sent) == 7
        await same_as_its_log(on, session)


async def test_imported_turns_have_outcomes_events_and_commits_like_any_other() -> None:
    async with imported() as (_, session):
        outcome = await session.turn(1).outcome()
        assert (outcome.status, outcome.stop_reason, outcome.text) == (
            "committed", "end_turn", "done",
        )  # fmt: skip
        assert (await session.turn(4).outcome()).stop_reason == "imported"
        assert [type(event) async for event in session.events_of(4)] == [r.TurnImported]
        fork = await session.fork(at=1)
        assert fork.conversation() == SAID[:4]
        await session.rewind(1)
        assert session.conversation() == SAID[:4]
        await session.send("go", expected_head=1)
        await session.interrupt()


@pytest.mark.parametrize("forget", [False, True])
async def test_the_id_of_an_imported_call_is_not_given_to_another(forget: bool) -> None:
    async with imported(script=[call("t", id="c"), "ok"]) as (on, session):
        if forget:
            await session.clear(purge=True)
        await (await session.send("use it")).text()
        assert session.conversation()[-3].tool_calls[0].id == "c_2"
        await same_as_its_log(on, session)


async def test_what_the_file_holds_beside_messages_is_kept_in_the_log() -> None:
    conversation = talk(
        *SAID,
        title="T", labels={"user": "7", "": "bad"}, source="a file", summary="sum", system="sys",
        parent="p", shared_turns=1, interrupted=(4,),
        extra={"x": msgspec.Raw(b'{"y": 1.0}')}, records=(msgspec.Raw(b'{"z":2}'),),
        notes=(Note(3, "torn_line", "half"),),
    )  # fmt: skip
    async with stage() as on:
        session = await on.manager.import_conversation(conversation, CONFIG, session_id="new")
        assert session.labels == {"user": "7"}
        created = (await on.log("new"))[0]
        assert isinstance(created, r.SessionCreated)
        assert created.source is not None
        assert created.source.repairs == (
            "line 3: torn_line, half",
            "label left out: label name '' has 0 characters; it must have 1 to 64",
        )
        exported = await on.manager.export_conversation("new")
        assert exported == msgspec.structs.replace(
            conversation, id="new", labels={"user": "7"}, notes=()
        )


async def test_labels_that_are_given_are_in_place_of_the_conversations() -> None:
    async with stage() as on:
        conversation = talk(*SAID, labels={"user": "7"})
        session = await on.manager.import_conversation(conversation, CONFIG, labels={"a": "b"})
        assert session.labels == {"a": "b"}
        labels: Any = {"a": 7}
        with pytest.raises(InvalidInput, match="label"):
            await on.manager.import_conversation(
                conversation, CONFIG, session_id="x", labels=labels
            )


async def test_a_call_id_that_no_provider_accepts_is_replaced_and_kept() -> None:
    said = (*calling(1, "f.t:0|x"), *calling(2, "f_t_0_x"), *calling(3, "z" * 200))
    async with stage() as on:
        session = await on.manager.import_conversation(talk(*said), CONFIG)
        history = session.conversation()
        calls = [call.id for message in history for call in message.tool_calls]
        answered = [result.tool_use_id for message in history for result in message.tool_results]
        assert calls == answered == ["f_t_0_x_2", "f_t_0_x", clean_call_id("z" * 200)]
        (renamed,) = [message for message in history if message.tool_calls][:1]
        kept = msgspec.json.decode(renamed.extra or b"{}")[RECORDED_IDS]
        assert kept == {"f_t_0_x_2": "f.t:0|x"}


async def test_nothing_is_imported_twice() -> None:
    async with stage() as on:
        await on.manager.import_conversation(talk(*SAID), CONFIG)
        with pytest.raises(SessionExists):
            await on.manager.import_conversation(talk(*SAID), CONFIG)
        nameless = msgspec.structs.replace(talk(*SAID), id="")
        first = await on.manager.import_conversation(nameless, CONFIG)
        second = await on.manager.import_conversation(nameless, CONFIG)
        assert first.id != second.id


async def test_histories_without_ids_do_not_stand_in_each_others_way() -> None:
    """A reader calls one that has no id by its format."""
    one, other = (
        Conversation(id="openai-chat", format="openai-chat", messages=(message(1, "user", text),))
        for text in ("hello", "good morning")
    )
    async with stage() as on:
        first, second = await on.manager.import_conversations([one, other], CONFIG)
        assert first != second
        assert {first.rpartition("-")[0], second.rpartition("-")[0]} == {"openai-chat"}
        with pytest.raises(SessionExists):  # the same one is still imported once
            await on.manager.import_conversations([one], CONFIG)
        with pytest.raises(InvalidInput, match="conversations must be a list"):
            await on.manager.import_conversations(None, CONFIG)  # type: ignore[arg-type]
        ours = msgspec.structs.replace(one, id="own", format="own")  # that is its id
        assert await on.manager.import_conversations([ours], CONFIG) == ("own",)


async def test_what_is_imported_for_a_tenant_is_the_tenants() -> None:
    branch = Conversation(id="b", format="own", parent="old", shared_turns=1, messages=SAID[:4])
    async with stage() as on:
        names = await on.manager.import_conversations([branch, talk(*SAID)], CONFIG, tenant="acme")
        assert names == ("acme/b", "acme/old")
        for name in names:
            assert (await on.store.row(name)).labels == {"llmsession.tenant": "acme"}
        assert (await on.store.row("acme/b")).parent == "acme/old"
        named = await on.manager.import_conversation(
            talk(*SAID), CONFIG, session_id="here", tenant="acme", labels={"a": "b"}
        )
        assert (await on.store.row(named.id)).labels == {"a": "b", "llmsession.tenant": "acme"}
        nameless = msgspec.structs.replace(talk(*SAID), id="")
        session = await on.manager.import_conversation(nameless, CONFIG, tenant="acme")
        assert session.id.startswith("acme/")
        with pytest.raises(InvalidInput, match="tenant"):
            await on.manager.import_conversation(talk(*SAID), CONFIG, tenant="\n")
        with pytest.raises(InvalidInput, match="tenant"):
            await on.manager.import_conversations([talk(*SAID)], CONFIG, tenant="")


# Repairs.


async def repaired(*messages: Message) -> tuple[Any, tuple[str, ...]]:
    """The history of what *messages* become, once it has gone on, and the repairs."""
    async with imported(*messages, script=["on it goes"]) as (on, session):
        source = live_state(session).source
        assert source is not None
        assert await (await session.send("go on")).text() == "on it goes"
        await same_as_its_log(on, session)
        return session.conversation()[:-2], source.repairs


async def test_a_call_without_its_result_gets_one_in_its_own_turn() -> None:
    history, repairs = await repaired(
        message(1, "user", "go"), message(1, "assistant", use()), message(2, "user", "stop"),
        message(2, "assistant", "ok"),
    )  # fmt: skip
    assert [m.turn for m in history] == [1, 1, 1, 2, 2]
    assert history[2].tool_results[0].is_error
    assert history[2].synthetic == (0,)
    assert len(repairs) == 1
    assert "turn 1, message x/a1.0, call c: R3" in repairs[0]


async def test_call_ids_that_come_again_are_renamed_with_their_results() -> None:
    history, repairs = await repaired(*calling(1), *calling(2))
    assert history[5].tool_calls[0].id == "c_2"
    assert history[6].tool_results[0].tool_use_id == "c_2"
    assert any("R5" in repair for repair in repairs)


@pytest.mark.parametrize(
    "first",
    [
        (),
        (message(1, "user", "  "),),
        (message(1, "user"),),
        (message(1, "user", result("never called")),),
    ],
    ids=["no message", "a blank one", "an empty one", "a result of no call"],
)
async def test_a_turn_without_a_word_of_the_user_gets_one(first: tuple[Message, ...]) -> None:
    history, repairs = await repaired(*first, message(1, "assistant", "hello", n=0))
    assert history[0].is_user
    assert history[0].content[0].text == OPENING
    assert history[0].synthetic == (0,)
    assert any("added in front" in repair for repair in repairs)


async def test_messages_that_hold_nothing_are_left_out_and_named() -> None:
    history, repairs = await repaired(
        *SAID, message(5, "user"), message(6, "user", "x"), message(6, "assistant")
    )
    assert [m.turn for m in history] == [1, 1, 1, 1, 4, 4, 6]
    assert len(repairs) == 2


async def test_numbers_and_ids_that_are_there_twice_are_given_anew() -> None:
    history, repairs = await repaired(
        message(1, "user", "a"), message(1, "assistant", "b"),
        message(2, "user", "c", id="x/u1.0"), message(1, "user", "d", id=""),
    )  # fmt: skip
    assert [m.turn for m in history] == [1, 1, 2, 3]
    assert [m.id for m in history] == ["x/u1.0", "x/a1.0", "old/u2.0", "old/u3.0"]
    assert len(repairs) == 2


async def test_thinking_of_an_import_is_kept_and_not_sent() -> None:
    thought = {"type": "thinking", "thinking": "hmm", "signature": "s"}
    messages = [message(1, "user", "a"), message(1, "assistant", thought, "b")]
    script = [think("mine", "m") + say("one"), "two"]
    async with imported(*messages, script=script) as (on, session):
        assert b"hmm" in bytes(session.conversation()[1].body)
        await (await session.send("go on")).text()
        await (await session.send("and on")).text()
        assert all(b"hmm" not in request.encode() for request in on.provider.requests)
        assert b"mine" in on.provider.requests[-1].encode()


async def test_what_no_repair_makes_valid_is_refused_by_its_rule() -> None:
    messages = [message(1, "user", "a"), message(1, "assistant", {"type": "tool_use", "id": 7})]
    async with stage() as on:
        with pytest.raises(InvalidInput, match="cannot be continued: V"):
            await on.manager.import_conversation(talk(*messages), CONFIG)
        torn = msgspec.structs.replace(SAID[0], body=msgspec.Raw(b'{"no":"list"}'))
        with pytest.raises(InvalidMessage):
            await on.manager.import_conversation(talk(torn), CONFIG)
        assert await on.names() == ["s"]


async def test_a_conversation_with_calls_needs_tools() -> None:
    async with stage() as on:
        with pytest.raises(InvalidConfig, match="no tools"):
            await on.manager.import_conversation(talk(*SAID), SessionConfig(model="m"))
        with pytest.raises(InvalidConfig):
            await on.manager.import_conversation(talk(*SAID), "m")  # type: ignore[arg-type]  # no configuration
        with pytest.raises(InvalidInput, match="Conversation"):
            await on.manager.import_conversation("talk", CONFIG)  # type: ignore[arg-type]  # no conversation


async def test_long_results_of_an_import_can_be_compacted_at_once() -> None:
    long = "a line of output\n" * 800
    turns = [said for n in range(1, 5) for said in calling(n, f"c{n}", long)]
    async with stage() as on:
        compaction = CompactionConfig(keep_recent_turns=1, keep_recent_steps=1)
        config = msgspec.structs.replace(CONFIG, compaction=compaction)
        session = await on.manager.import_conversation(talk(*turns), config)
        outcome = await session.compact()
        assert outcome.applied
        assert outcome.tokens_after < outcome.tokens_before / 3
        assert session.conversation() == tuple(turns)


async def test_an_import_that_the_store_refuses_is_not_there() -> None:
    async with faulty_stage() as (on, store):
        store.fail_next()
        with pytest.raises(StoreError):
            await on.manager.import_conversation(talk(*SAID), CONFIG)
        assert await on.names() == ["s"]
        await on.manager.import_conversation(talk(*SAID), CONFIG)


async def test_what_is_forgotten_of_an_import_goes_with_all_that_its_file_held() -> None:
    extra = {"x": msgspec.Raw(b'"marker"')}
    async with imported(title="marker", summary="marker", extra=extra) as (on, session):
        await session.forget(15.0)  # by when it was said, not by when it came here
        assert {m.turn for m in session.conversation()} == {4}
        bodies = b"".join(record.body for record in await on.store.read("old"))
        assert b"marker" not in bodies
        assert b"hello" not in bodies
        await same_as_its_log(on, session)


# Export.


async def lived(on: Stage) -> None:
    """A life with everything that an export has to tell apart."""
    await on.say("first")
    await on.interrupted("dropped")
    running = await on.begin("kept in part")
    queued = await on.session.send("waits")
    await on.session.interrupt(running.id, policy="keep_steps")
    await queued.text()


SCRIPT = ["one", call("t", id="a"), never(), call("t", id="b"), never(), "four"]


async def test_an_own_export_is_imported_again_by_identity() -> None:
    config: dict[str, Any] = {"tools": [Tool(name="t", run=Quick())], "system": "be kind"}
    async with stage(SCRIPT, **config) as on:
        await on.session.label({"user": "7"})
        await lived(on)
        exported = await on.manager.export_conversation("s")
        assert exported.messages == on.session.conversation()
        assert exported.interrupted == (3,)
        assert (exported.system, exported.labels) == ("be kind", {"user": "7"})
    written = write_own(exported)
    read = read_own(written, strict=True)
    assert read == exported
    async with stage() as on:
        await on.manager.delete("s")
        del on.session
        session = await on.manager.import_conversation(read, SessionConfig(model="m", **config))
        again = await on.manager.export_conversation(session.id)
        assert again == exported
        assert write_own(again) == written


async def test_a_history_in_another_order_than_its_numbers_comes_back_in_it() -> None:
    async with stage([never(), "jumped", "waited"]) as on:
        await on.session.send("dropped")
        queued = await on.begin("waits")
        jumping = await on.session.send("jumps", when_busy="interrupt")
        await queued.text()
        assert (queued.id.number, jumping.id.number) == (2, 3)
        exported = await on.manager.export_conversation("s")
        assert [m.turn for m in exported.messages] == [3, 3, 2, 2]
        read = read_own(write_own(exported), strict=True)
        session = await on.manager.import_conversation(read, CONFIG, session_id="t")
        assert session.conversation() == exported.messages


async def test_an_export_takes_nothing_from_a_live_owner_and_leaves_open_turns_out() -> None:
    async with stage(["one", never()]) as on:
        await on.say("first")
        await on.begin("running")
        exported = await conversation_of(on.store, "s")
        assert [m.text for m in exported.messages] == ["first", "one"]
        assert on.session.status().phase == "running"
        with pytest.raises(SessionNotFound):
            await conversation_of(on.store, "nobody")


# Branches.


async def test_a_fork_is_exported_as_a_branch_and_imported_as_a_fork() -> None:
    async with stage(["one", "two", "three", "in the fork"]) as on:
        await on.say("first", "second", "third")
        fork = await on.session.fork(at=2, session_id="f")
        await (await fork.send("otherwise")).text()
        exported = [await on.manager.export_conversation(name) for name in ("f", "s")]
        assert (exported[0].parent, exported[0].shared_turns) == ("s", 2)
    read = [read_own(write_own(conversation)) for conversation in exported]
    assert read == exported
    async with stage(["goes on"]) as on:
        await on.manager.delete("s")
        del on.session
        config = SessionConfig(model="m")
        assert await on.manager.import_conversations(read, config) == ("f", "s")
        assert on.manager.live == ()
        assert (await on.store.row("f")).parent == "s"
        ours, theirs = await on.store.read("f"), await on.store.read("s")
        assert all(a.body is b.body for a, b in zip(ours[:3], theirs, strict=False))
        again = [await on.manager.export_conversation(name) for name in ("f", "s")]
        assert again == exported
        branch = await on.manager.open("f")
        assert await (await branch.send("on")).text() == "goes on"
        await same_as_its_log(on, branch)


async def test_a_fork_shares_with_its_parent_what_both_have_left() -> None:
    async with stage(["one", "two", "three"]) as on:
        await on.say("first", "second", "third")
        await on.session.forget(2)
        fork = await on.session.fork(at=2, session_id="f")
        assert (await on.manager.export_conversation("f")).shared_turns == 1
        await fork.forget(1e12)  # now its beginning is its own
        exported = await on.manager.export_conversation("f")
        assert (exported.parent, exported.shared_turns) == ("s", 0)


async def test_each_conversation_gets_its_own_configuration() -> None:
    base = talk(*SAID, title="the base")
    branch = Conversation(
        id="b", format="own", title="the branch", parent="old", shared_turns=1,
        messages=(*SAID[:4], message(2, "user", "other"), message(2, "assistant", use("c"))),
    )  # fmt: skip

    def config_for(conversation: Conversation) -> SessionConfig:
        return msgspec.structs.replace(CONFIG, system=conversation.title)

    async with stage(["x"]) as on:
        await on.manager.import_conversations([branch, base], config_for)
        one, other = await on.manager.open("b"), await on.manager.open("old")
        assert (one.config.system, other.config.system) == ("the branch", "the base")
        assert one.conversation()[5].tool_calls[0].id == "c_2"  # c is the base's
        assert (await on.manager.export_conversation("b")).title == "the branch"
        await (await one.send("go on")).text()


@pytest.mark.parametrize(
    "change",
    [{"messages": SAID[4:]}, {"shared_turns": 9}, {"parent": "nobody"}],
    ids=["another beginning", "too many turns", "an unknown parent"],
)
async def test_a_branch_that_does_not_fit_its_parent_stands_alone(change: dict[str, Any]) -> None:
    fields = {"parent": "old", "shared_turns": 1, "messages": SAID, **change}
    branch = Conversation(id="b", format="own", **fields)
    async with stage() as on:
        await on.manager.import_conversations([talk(*SAID), branch], CONFIG)
        assert (await on.store.row("b")).parent is None
        assert (await on.manager.open("b")).conversation() == branch.messages


async def test_conversations_that_name_each_other_as_parents_do_no_harm() -> None:
    one = Conversation(id="a", format="own", parent="b", shared_turns=1, messages=SAID)
    other = Conversation(id="b", format="own", parent="a", shared_turns=2, messages=SAID)
    async with stage() as on:
        assert await on.manager.import_conversations([one, other], CONFIG) == ("a", "b")
        for name in ("a", "b"):
            assert (await on.manager.open(name)).conversation() == SAID


async def test_of_conversations_that_cannot_all_be_imported_none_is() -> None:
    async with stage() as on:
        bad = msgspec.structs.replace(talk(*SAID), id="s")  # there is one already
        good = msgspec.structs.replace(talk(*SAID), id="g")
        with pytest.raises(SessionExists):
            await on.manager.import_conversations([good, bad], CONFIG)
        assert await on.names() == ["s"]
        with anyio.fail_after(10):
            assert await on.manager.import_conversations([good], CONFIG) == ("g",)
        assert await on.manager.import_conversations([], CONFIG) == ()


@pytest.mark.real_time
async def test_the_export_of_a_long_session_is_put_together_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    def noting(**fields: Any) -> Conversation:
        threads.append(threading.get_ident())
        return Conversation(**fields)

    monkeypatch.setattr(export, "Conversation", noting)
    async with SessionManager(provider=Instant(), store=MemoryStore()) as manager:
        for turns in (10, 600):
            session = await opened(manager, manager.store, turns)
            exported = await manager.export_conversation(session.id)
            assert exported.messages == session.conversation()
    short, long = threads
    assert short == threading.get_ident() != long
