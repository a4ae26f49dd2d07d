"""What cannot be used gets one typed error, changes nothing, and the session goes on."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession import (
    CompactionConfig,
    DuplicateToolResult,
    InvalidConfig,
    InvalidInput,
    InvalidMessage,
    MemoryStore,
    SessionConfig,
    Tool,
    ToolResult,
    UnknownToolCall,
)
from llmsession.testing.scripted import block, call, say
from llmsession.turns.blocks import OpaqueBlock
from tests.session.actors import Quick, offering, stage
from tests.session.odd_values import Text

UNUSABLE: dict[str, Any] = {
    "no text": "",
    "white space": " \n\t",
    "no blocks": [],
    "an empty text block": [{"type": "text", "text": ""}],
    "an empty text beside an image": [
        {"type": "image", "source": {}},
        {"type": "text", "text": ""},
    ],
    "a tool result": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}],
    "a tool call": [{"type": "tool_use", "id": "c", "name": "t", "input": {}}],
    "thinking": [{"type": "thinking", "thinking": "hm", "signature": "s"}],
    "redacted thinking": [{"type": "redacted_thinking", "data": "x"}],
    "a block without a type": [{"text": "x"}],
    "a block whose type is a number": [{"type": 5}],
    "bytes": b"hello",
    "None": None,
    "a number": 5,
    "a list of strings": ["hello"],
    "what is no JSON": [{"type": "text", "text": "x", "extra": object()}],
    "50 MB": "x" * 50_000_000,
    "50 MB in blocks": [{"type": "text", "text": "x" * 10_000_000}] * 5,
}


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


UNUSABLE["nested too deep"] = [{"type": "custom", "x": nested(600)}]


@pytest.mark.parametrize("content", UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_a_message_that_cannot_be_sent_is_refused_and_the_session_goes_on(
    content: Any,
) -> None:
    async with stage(["hi"]) as on:
        head = on.session.status().seq
        with pytest.raises(InvalidMessage):
            await on.session.send(content)
        assert on.session.status().seq == head
        assert await on.say("hello") == "hi"
        assert str(on.session.conversation()[0].turn_id) == "u1"


@pytest.mark.parametrize(("text", "kept"), [("a \ud83d b", "a � b"), ("\ud83d\ude42", "🙂")])
async def test_surrogates_are_joined_or_replaced_at_the_edge(text: str, kept: str) -> None:
    async with stage(["hi"]) as on:
        assert await on.say(text) == "hi"
        assert on.session.conversation()[0].text == kept
        assert on.provider.requests[0].encode().decode()


async def test_a_lone_surrogate_from_the_model_is_replaced() -> None:
    async with stage([say("a \ud83d b")]) as on:
        assert await on.say("hello") == "a � b"


async def test_a_lone_surrogate_in_a_result_or_in_its_summary_is_replaced() -> None:
    async with offering("c") as (on, turn):
        result = ToolResult("c", "a \ud83d b", compact_summary="\ud83d")
        await on.session.submit_tool_results([result])
        assert await turn.text() == "ok"
        assert on.session.conversation()[2].tool_results[0].text == "a � b"
        await on.session.store_compact_summaries({"c": "a \ud83d b"})
        assert on.session.reference.actor.state.summaries["c"] == "a � b"


@pytest.mark.parametrize("command_id", [None, "k"])
async def test_a_lone_surrogate_in_a_call_id_is_an_unknown_call(command_id: str | None) -> None:
    async with offering("c") as (on, _):
        with pytest.raises(UnknownToolCall):
            await on.session.submit_tool_results([ToolResult("\ud83d", "x")], command_id=command_id)


async def test_unknown_blocks_and_unknown_fields_are_kept_byte_for_byte() -> None:
    content: list[Any] = [
        {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}},
        {"type": "container_upload", "file_id": "f", "n": 1.50},
        OpaqueBlock("raw", b'{"type":"raw","spaced" : [1,  2]}'),
    ]
    async with stage(["hi"]) as on:
        turn = await on.session.send(content)
        assert await turn.text() == "hi"
        body = bytes(on.session.conversation()[0].body)
        assert b'"cache_control":{"type":"ephemeral"}' in body
        assert b'{"type":"raw","spaced" : [1,  2]}' in body
        assert bytes(on.provider.requests[0].messages[0].body) == body


@pytest.mark.real_time
async def test_a_callable_that_returns_50_mb_is_an_error_result() -> None:
    async def huge() -> str:
        return "x" * 50_000_000

    async with stage([call("t", id="c"), "ok"], tool=huge) as on:
        assert await on.say("go") == "ok"
        assert on.session.conversation()[2].tool_results[0].is_error


NO_RESULTS: dict[str, tuple[Any, type[InvalidInput]]] = {
    "none at all": ([], InvalidInput),
    "an id that is a list": ([ToolResult([], "x")], InvalidInput),  # type: ignore[arg-type]  # the point
    "an id that is None": ([ToolResult(None, "x")], InvalidInput),  # type: ignore[arg-type]  # the point
    "an id that is unknown": ([ToolResult("c", "1"), ToolResult("nobody", "2")], UnknownToolCall),
    "an id that comes twice": ([ToolResult("c", "1"), ToolResult("c", "2")], DuplicateToolResult),
    "text": (["c"], InvalidInput),
    "a dict": ([{"call_id": "c", "content": "x"}], InvalidInput),
    "content that is None": ([ToolResult("c", None)], InvalidMessage),  # type: ignore[arg-type]  # the point
    "content that is a number": ([ToolResult("c", 5)], InvalidMessage),  # type: ignore[arg-type]  # the point
    "a block without a type": ([ToolResult("c", [{"no": "type"}])], InvalidMessage),
    "a block that is a number": ([ToolResult("c", [3])], InvalidMessage),  # type: ignore[list-item]  # the point
    "a summary that is a number": ([ToolResult("c", "x", compact_summary=5)], InvalidInput),  # type: ignore[arg-type]  # the point
    "an error flag that is text": ([ToolResult("c", "x", is_error="yes")], InvalidInput),  # type: ignore[arg-type]  # the point
    "50 MB": ([ToolResult("c", "x" * 50_000_000)], InvalidMessage),
}


@pytest.mark.real_time
@pytest.mark.parametrize(("results", "error"), NO_RESULTS.values(), ids=NO_RESULTS.keys())
async def test_what_is_no_result_is_refused_and_the_call_stays_open(
    results: Any, error: type[InvalidInput]
) -> None:
    async with offering("c") as (on, turn):
        with pytest.raises(error):
            await on.session.submit_tool_results(results)
        await on.submit(c="x")
        assert await turn.text() == "ok"


@pytest.mark.parametrize("summaries", [{"c": 5}, {5: "x"}, {"nobody": "x"}, [], None])
async def test_summaries_that_cannot_be_used_are_refused(summaries: Any) -> None:
    async with offering("c") as (on, _):
        with pytest.raises(InvalidInput):
            await on.session.store_compact_summaries(summaries)


@pytest.mark.parametrize("command_id", [5, "", "\ud83d", "x" * 10_000, b"x", []])
async def test_a_command_id_that_cannot_be_logged_is_refused(command_id: Any) -> None:
    async with stage(["hi"]) as on:
        for ask in (
            lambda: on.session.send("hello", command_id=command_id),
            lambda: on.session.interrupt(command_id=command_id),
            lambda: on.session.clear(command_id=command_id),
        ):
            with pytest.raises(InvalidInput):
                await ask()
        assert await on.say("hello") == "hi"


async def test_a_command_id_of_a_subclass_of_str_is_a_plain_one() -> None:
    async with stage(["hi"]) as on:
        first = await on.session.send("hello", command_id=Text("k"))
        await first.outcome()
        assert (await on.session.send("hello", command_id="k")).id == first.id
        assert [type(answer.id) for record in await on.log() for answer in record.commands] == [str]


@pytest.mark.parametrize("timeout_s", ["soon", True, float("nan"), [], 2**70])
async def test_a_time_to_drain_that_is_none_is_refused_and_sessions_are_still_made(
    timeout_s: Any,
) -> None:
    async with stage(["hi"]) as on:
        with pytest.raises(InvalidInput, match="timeout_s is"):
            await on.manager.drain(timeout_s)
        await on.manager.create(SessionConfig(model="m"))


@pytest.mark.parametrize("head", ["x", -1, 1.5, [], object()])
async def test_an_expected_head_that_is_no_turn_is_refused(head: Any) -> None:
    async with stage(["hi"]) as on:
        with pytest.raises(InvalidInput):
            await on.session.send("hello", expected_head=head)
        assert await on.say("hello") == "hi"


WRONG_CONFIGS: dict[str, dict[str, Any]] = {
    "a model that is empty": {"model": ""},
    "a model that is a number": {"model": 5},
    "a system that is a list": {"system": [1]},
    "tools that are None": {"tools": None},
    "a tool name that is a number": {"tools": [Tool(name=5)]},  # type: ignore[arg-type]  # the point
    "a tool deadline that is text": {"tools": [Tool(name="t", deadline_s="soon")]},  # type: ignore[arg-type]  # the point
    "a window that is text": {"window_tokens": "large"},
    "no room for messages": {"window_tokens": 1000, "max_tokens": 1000},
    "a negative grace": {"grace_s": -1},
    "a limit of no steps": {"limits": {"max_steps": 0}},
    "a limit that is unknown": {"limits": 5},
    "options that are no JSON": {"options": {"x": object()}},
    "options that are a list": {"options": [1]},
    "a threshold over 1": {"compaction": {"threshold": 1.5}},
    "a compaction that is on by a word": {"compaction": CompactionConfig(enabled="off")},  # type: ignore[arg-type]  # the point
    "settings of a policy in a list": {"compaction": CompactionConfig(options=[1])},  # type: ignore[arg-type]  # the point
    "a gain that cannot be": {"compaction": CompactionConfig(min_gain=2.0)},
    "a gain below nothing": {"compaction": CompactionConfig(min_gain=-0.1)},
    "a policy that is unknown": {"interrupt_policy": "keep_all"},
    "a failure mode that is unknown": {"on_failure": "panic"},
    "a deadline of nothing": {"tool_deadline_s": 0},
    "a name that is unknown": {"modell": "m"},
}


@pytest.mark.parametrize("changes", WRONG_CONFIGS.values(), ids=WRONG_CONFIGS.keys())
async def test_a_configuration_that_cannot_work_is_refused_and_nothing_changes(
    changes: dict[str, Any],
) -> None:
    async with stage(["hi"]) as on:
        before = on.session.config
        with pytest.raises(InvalidConfig):
            await on.session.configure(**changes)
        assert on.session.config == before
        if "modell" not in changes:
            with pytest.raises(InvalidConfig):
                await on.manager.create(SessionConfig(**{"model": "m", **changes}))
        assert await on.say("hello") == "hi"


async def test_a_configuration_is_the_same_when_the_session_is_opened_again() -> None:
    store = MemoryStore()
    async with stage(
        ["hi"], store=store, system="a \ud83d b", options={"temperature": 1, "stop": ("x",)},
        tools=[Tool(name="t", input_schema={"type": "object", "b": 1, "a": 2})],
    ) as on:  # fmt: skip
        await on.say("hello")
        before = on.session.config
        request = on.session.context().encode()
    async with stage(store=store, reopen=True) as on:
        assert on.session.config == before
        assert on.session.context().encode() == request


@pytest.mark.parametrize("session_id", ["", "x" * 201, "a\nb", "\ud83d"])
async def test_a_session_id_that_cannot_be_stored_is_refused(session_id: str) -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput):
            await on.manager.create(SessionConfig(model="m"), session_id=session_id)


@pytest.mark.parametrize("after", [-1, 1000, "x", 1.5])
async def test_a_cursor_that_is_not_in_the_log_is_refused(after: Any) -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput):
            on.session.subscribe(after=after)


async def test_a_turn_and_a_call_that_never_were_are_refused_by_name() -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput):
            on.session.turn("u1")
        with pytest.raises(UnknownToolCall):
            await on.submit(c="x")


MALFORMED_BLOCKS: dict[str, Any] = {
    "a call without an id": {"type": "tool_use", "name": "t", "input": {}},
    "a call whose id is a number": {"type": "tool_use", "id": 5, "name": "t", "input": {}},
    "a call without a name": {"type": "tool_use", "id": "c", "input": {}},
}


@pytest.mark.parametrize("fields", MALFORMED_BLOCKS.values(), ids=MALFORMED_BLOCKS.keys())
async def test_a_malformed_call_of_the_model_is_a_broken_stream(fields: Any) -> None:
    async with stage([block(fields), "whole"], tools=[Tool(name="t")]) as on:
        assert await on.say("hello") == "whole"


async def test_a_request_that_breaks_a_rule_is_not_sent_and_its_turn_fails_by_name() -> None:
    cached = {"type": "thinking", "thinking": "hm", "signature": "s", "cache_control": {}}
    script = [block(cached) + call("t", id="c"), "next"]
    async with stage(script, tool=Quick()) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason) == ("failed", "invalid_request")
        assert "messages[1].content[0].cache_control" in (outcome.error or "")
        assert len(on.provider.requests) == 1
        assert on.session.conversation() == ()
        assert await on.say("again") == "next"


@pytest.mark.parametrize("block", [{"type": "text"}, {"type": "text", "text": 5}])
async def test_a_block_that_is_not_as_its_type_says_is_refused(block: dict[str, Any]) -> None:
    async with stage(["fine"]) as on:
        with pytest.raises(InvalidMessage, match="block 0 is not a valid text block"):
            await on.session.send([block])
        assert await on.say("hello") == "fine"


async def test_a_session_is_made_of_a_config_and_a_textual_id() -> None:
    async with stage(["fine"]) as on:
        with pytest.raises(InvalidConfig, match="needs a SessionConfig, not NoneType"):
            await on.manager.create(None)  # type: ignore[arg-type]  # what is under test
        with pytest.raises(InvalidInput, match="session id 5 is not a text"):
            await on.manager.create(on.session.config, session_id=5)  # type: ignore[arg-type]  # so
        assert await on.say("hello") == "fine"
