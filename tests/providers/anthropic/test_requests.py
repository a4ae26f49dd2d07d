"""Bodies of the Messages API: what goes in, and where the cache breakpoints stand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession import Profile, ProviderError, Request, RequestMessage
from llmsession.compaction.rules.check import check_request
from llmsession.providers.anthropic.requests import (
    NEUTRAL_TOKENS,
    CacheTtl,
    closed_by_user,
    count_body,
    messages_body,
)
from llmsession.turns.blocks import encode_blocks
from tests.providers.asked import ask

CONTROL = {"type": "ephemeral"}


def message(role: Any, *blocks: dict[str, Any] | str) -> RequestMessage:
    made = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
    return RequestMessage(role, encode_blocks(made))


def tool(name: str, **fields: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"name": name, "input_schema": {}, **fields}))


def request(*messages: RequestMessage, **fields: Any) -> Request:
    messages = messages or (message("user", "hi"),)
    return Request(model="m", max_tokens=50, messages=messages, **fields)


def body(made: Request, cache: CacheTtl = "5m") -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(messages_body(made, cache=cache)[0])
    return decoded


def breakpoints(made: Any) -> list[str]:
    """Where a body has breakpoints, in the order of the prompt."""
    found = [
        f"tools.{at}" for at, each in enumerate(made.get("tools", ())) if "cache_control" in each
    ]
    if isinstance(made.get("system"), list):
        found += ["system" for each in made["system"] if "cache_control" in each]
    for at, each in enumerate(made["messages"]):
        found += [
            f"{at}.{block}" for block, raw in enumerate(each["content"]) if "cache_control" in raw
        ]
    return found


TALK = (
    message("user", "one"),
    message("assistant", "two"),
    message("user", "three", "more"),
    message("assistant", "four"),
    message("user", "five"),
)


def test_without_caching_the_body_is_the_request_its_options_and_stream() -> None:
    made = request(system="be kind", tools=(tool("f"),), options={"temperature": 0.5})
    assert body(made, None) == {
        "model": "m",
        "max_tokens": 50,
        "system": "be kind",
        "tools": [{"name": "f", "input_schema": {}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "temperature": 0.5,
        "stream": True,
    }


def test_breakpoints_end_the_tools_the_system_prompt_and_the_last_two_messages_of_the_user() -> (
    None
):
    made = body(request(*TALK, system="be kind", tools=(tool("f"), tool("g"))))
    assert breakpoints(made) == ["tools.1", "system", "2.1", "4.0"]
    assert made["system"] == [{"type": "text", "text": "be kind", "cache_control": CONTROL}]


def test_a_step_has_a_breakpoint_where_the_step_before_it_had_its_last() -> None:
    before, after = request(*TALK[:3]), request(*TALK)
    assert breakpoints(body(before))[-1] == breakpoints(body(after))[-2] == "2.1"


def test_an_hour_is_said_and_five_minutes_are_the_default_of_the_api() -> None:
    assert body(request(), "1h")["messages"][0]["content"][0]["cache_control"] == {
        "type": "ephemeral", "ttl": "1h",
    }  # fmt: skip
    assert body(request())["messages"][0]["content"][0]["cache_control"] == CONTROL


def test_a_breakpoint_never_stands_on_thinking() -> None:
    thinking = {"type": "thinking", "thinking": "x", "signature": "s"}
    made = body(request(message("user", "a", thinking)))
    assert breakpoints(made) == ["0.0"]


OWN: dict[str, Request] = {
    "in a message": request(
        message("user", {"type": "text", "text": "a", "cache_control": CONTROL}), *TALK[1:]
    ),
    "inside a result": request(
        message(
            "user",
            {
                "type": "tool_result",
                "tool_use_id": "a",
                "content": [{"type": "text", "text": "a", "cache_control": CONTROL}],
            },
        )
    ),
    "on a tool": request(tools=(tool("f", cache_control=CONTROL),)),
    "automatic": request(options={"cache_control": CONTROL}),
}


@pytest.mark.parametrize("name", OWN)
def test_a_request_with_breakpoints_of_its_own_gets_no_others(name: str) -> None:
    assert breakpoints(body(OWN[name])) == breakpoints(body(OWN[name], None))


def test_a_text_that_only_speaks_of_breakpoints_is_no_breakpoint() -> None:
    used = {"type": "tool_use", "id": "a", "name": "f", "input": {"key": "cache_control"}}
    found = {"type": "tool_result", "tool_use_id": "a", "content": '"cache_control"'}
    made = body(request(message("assistant", used), message("user", found)))
    assert breakpoints(made) == ["1.0"]


def test_server_tools_of_the_options_follow_the_session_s_own() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    made = body(request(tools=(tool("f"),), options={"tools": [search]}, system="s"))
    assert [each["name"] for each in made["tools"]] == ["f", "web_search"]
    assert breakpoints(made) == ["system", "0.0"]  # the system's covers the tools as well


@pytest.mark.parametrize(("given", "expected"), [("a", ("a",)), (["a", "b"], ("a", "b")), ((), ())])
def test_betas_go_into_the_header_and_not_into_the_body(
    given: Any, expected: tuple[str, ...]
) -> None:
    raw, betas = messages_body(request(options={"betas": given}), cache=None)
    assert betas == expected
    assert "betas" not in json.loads(raw)


@pytest.mark.parametrize("name", ["model", "messages", "max_tokens", "system", "stream"])
def test_an_option_that_is_the_session_s_is_refused_by_name(name: str) -> None:
    with pytest.raises(ProviderError, match=name) as raised:
        body(request(options={name: 1}))
    assert raised.value.kind == "fatal"


def test_what_is_counted_is_what_is_sent_without_what_does_not_count() -> None:
    options = {"temperature": 0.5, "thinking": {"type": "adaptive"}, "betas": ["b"]}
    raw, betas = count_body(request(*TALK, system="s", tools=(tool("f"),), options=options))
    made = json.loads(raw)
    assert set(made) == {"model", "system", "tools", "messages", "thinking"}
    assert breakpoints(made) == []
    assert betas == ("b",)


@pytest.mark.parametrize("messages", [TALK, TALK[:1]])
def test_what_the_user_said_last_is_counted_as_it_is(messages: tuple[RequestMessage, ...]) -> None:
    made = request(*messages)
    assert closed_by_user(made) == (made, 0)


def test_a_conversation_at_rest_is_counted_with_a_neutral_message_that_is_taken_off() -> None:
    at_rest = request(*TALK[:4])
    made, added = closed_by_user(at_rest)
    assert made.messages[:4] == at_rest.messages
    assert [each.role for each in made.messages[4:]] == ["user"]
    assert added == NEUTRAL_TOKENS
    nothing_yet = msgspec.structs.replace(at_rest, messages=())
    assert [each.role for each in closed_by_user(nothing_yet)[0].messages] == ["user"]


def test_a_message_that_gets_no_breakpoint_keeps_its_bytes() -> None:
    raw = b'[{"type":"text", "text":"\\u00e9", "n": 1.50}]'
    first = RequestMessage("user", msgspec.Raw(raw))
    made = messages_body(request(first, *TALK[1:]), cache="5m")[0]
    assert raw in made


BLOCKS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3)


@given(
    talk=st.lists(BLOCKS, min_size=1, max_size=6),
    system=st.sampled_from([None, "s"]),
    tools=st.integers(0, 2),
)
def test_every_body_is_valid_equal_for_equal_requests_and_the_request_but_for_breakpoints(
    talk: list[list[str]], system: str | None, tools: int
) -> None:
    roles = ("user", "assistant")
    messages = [message(roles[at % 2], *blocks) for at, blocks in enumerate(talk[: len(talk) | 1])]
    if len(messages) % 2 == 0:
        messages.pop()
    made = request(*messages, system=system, tools=tuple(tool(f"t{at}") for at in range(tools)))
    one, two = (messages_body(made, cache="5m")[0] for _ in range(2))
    assert one == two
    decoded = json.loads(one)
    assert 1 <= len(breakpoints(decoded)) <= 4
    marked = msgspec.structs.replace(
        made,
        messages=tuple(
            RequestMessage(each["role"], msgspec.Raw(json.dumps(each["content"]).encode()))
            for each in decoded["messages"]
        ),
    )
    assert check_request(marked, Profile()) == ()

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: bare(item) for key, item in value.items() if key != "cache_control"}
        return [bare(item) for item in value] if isinstance(value, list) else value

    assert bare(decoded["messages"]) == body(made, None)["messages"]


SIGNED = {"type": "compaction", "content": "said", "signature": "s"}
UNSIGNED = {"type": "compaction", "content": "said"}


@pytest.mark.parametrize(
    ("contents", "options", "betas"),
    [
        (["hi"], {}, ()),
        (
            ["hi"],
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            ("context-management-2025-06-27",),
        ),
        (
            ["hi"],
            {
                "context_management": {
                    "edits": [{"type": "clear_thinking_20251015"}, {"type": "compact_20260112"}]
                }
            },
            ("context-management-2025-06-27", "compact-2026-01-12"),
        ),
        (["hi"], {"compaction": {"type": "summarize"}}, ("compact-2026-09-04",)),
        ([[SIGNED, {"type": "text", "text": "hi"}]], {}, ("compact-2026-09-04",)),
        (["a", [UNSIGNED], "b"], {}, ("compact-2026-01-12",)),
        ([[SIGNED]], {"betas": ["compact-2026-09-04", "x"]}, ("compact-2026-09-04", "x")),
    ],
)
def test_what_a_request_says_of_compaction_names_the_betas_that_it_needs(
    contents: list[Any], options: dict[str, Any], betas: tuple[str, ...]
) -> None:
    request = ask(*contents, model="claude-opus-5-5", **options)
    assert messages_body(request, cache=None)[1] == betas
    assert count_body(request)[1] == betas
