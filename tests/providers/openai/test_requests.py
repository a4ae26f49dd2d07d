"""Our requests as chat completions: roles, calls and results, images, limits on names and ids."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession import ProviderError, Request, RequestMessage
from llmsession.providers.openai.requests import CallIds, ChatDialect, ToolNames, chat_body
from llmsession.turns.blocks import encode_blocks

PLAIN = ChatDialect()


def user(*blocks: dict[str, Any] | str) -> RequestMessage:
    return RequestMessage("user", encode_blocks([_block(each) for each in blocks]))


def assistant(*blocks: dict[str, Any] | str) -> RequestMessage:
    return RequestMessage("assistant", encode_blocks([_block(each) for each in blocks]))


def _block(block: dict[str, Any] | str) -> dict[str, Any]:
    return {"type": "text", "text": block} if isinstance(block, str) else block


def use(call_id: str, name: str = "f", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "ok", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def tool(name: str, **fields: Any) -> msgspec.Raw:
    definition = {"name": name, "description": "", "input_schema": {"type": "object"}, **fields}
    return msgspec.Raw(msgspec.json.encode(definition))


def body(*messages: RequestMessage, dialect: ChatDialect = PLAIN, **fields: Any) -> dict[str, Any]:
    request = Request(model="m", max_tokens=50, messages=messages, **fields)
    decoded: dict[str, Any] = json.loads(chat_body(request, dialect)[0])
    return decoded


def sent(*messages: RequestMessage, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(*messages, **fields)["messages"]
    return found


def test_a_plain_request_has_model_messages_limit_and_stream() -> None:
    assert body(user("hi"), system="be kind") == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi"},
        ],
        "max_tokens": 50,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_dialect_changes_the_role_the_limit_s_name_and_the_usage() -> None:
    dialect = ChatDialect(
        system_role="developer", max_tokens_field="max_completion_tokens", usage=False
    )
    made = body(user("hi"), system="be kind", dialect=dialect)
    assert made["messages"][0]["role"] == "developer"
    assert made["max_completion_tokens"] == 50
    assert "max_tokens" not in made
    assert "stream_options" not in made


def test_calls_become_tool_calls_and_results_messages_of_their_own_in_order() -> None:
    found = sent(
        user("go"),
        assistant("I look.", use("a", n=1), use("b", "g")),
        user(result("a", "one"), result("b", "two"), "and then?"),
    )
    assert found == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"n":1}'}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": "two"},
        {"role": "user", "content": "and then?"},
    ]


def test_a_call_without_words_has_no_content() -> None:
    assert sent(assistant(use("a")))[0]["content"] is None


@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        ("boom", {"is_error": True}, "Error: boom"),
        ("Error: boom", {"is_error": True}, "Error: boom"),
        ("fine", {"is_error": False}, "fine"),
        ("", {}, "(no output)"),
        ([], {}, "(no output)"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], {}, "a\nb"),
        ("", {"is_error": True}, "Error: (no output)"),
    ],
)
def test_a_result_is_text_that_says_when_it_is_an_error(
    content: Any, fields: dict[str, Any], expected: str
) -> None:
    assert sent(user(result("a", content, **fields)))[0]["content"] == expected


def test_an_image_in_a_result_follows_the_results_and_says_whose_it_is() -> None:
    found = sent(
        user(result("a", [{"type": "text", "text": "see"}, IMAGE]), result("b"), "what is it?")
    )
    assert [each["role"] for each in found] == ["tool", "tool", "user"]
    assert found[0]["content"] == "see"
    said, image, asked = found[2]["content"]
    assert "a" in said["text"]
    assert image == IMAGE_PART
    assert asked == {"type": "text", "text": "what is it?"}


def test_images_and_documents_of_a_user_are_parts() -> None:
    url = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    pdf = {
        "type": "document",
        "title": "a.pdf",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
    }
    plain = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "t"},
    }
    parts = sent(user("look", IMAGE, url, pdf, plain))[0]["content"]
    assert parts == [
        {"type": "text", "text": "look"},
        IMAGE_PART,
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
        },
        {"type": "text", "text": "t"},
    ]


def test_what_has_no_words_here_is_left_out() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig=="}
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    assert sent(assistant(thinking, server, "a")) == [{"role": "assistant", "content": "a"}]
    assert sent(user("q"), assistant(thinking)) == [{"role": "user", "content": "q"}]
    assert sent(user({"type": "search_result", "source": "x"}))[0]["role"] == "user"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_kept_reasoning_goes_back_in_the_field_that_it_came_in(field: str) -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": field}
    found = sent(assistant(thinking, use("a")))
    assert found[0][field] == "hm"


def test_several_texts_are_one_plain_text() -> None:
    assert sent(user("a", "b"))[0]["content"] == "a\n\nb"
    assert sent(assistant("a", " ", "b"))[0]["content"] == "a\n\nb"


def test_tools_are_functions() -> None:
    made = body(user("x"), tools=(tool("f", description="does f"), tool("g")))
    assert made["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "does f",
                "parameters": {"type": "object"},
            },
        },
        {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}},
    ]


CHOICES = {
    "auto": ({"type": "auto"}, "auto"),
    "any": ({"type": "any"}, "required"),
    "none": ({"type": "none"}, "none"),
    "tool": ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    "theirs": ("required", "required"),
    "theirs too": (
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "f"}},
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_tool_choice_is_said_in_their_words(name: str) -> None:
    given, expected = CHOICES[name]
    assert body(user("x"), options={"tool_choice": given})["tool_choice"] == expected


def test_options_are_passed_on_and_ours_are_translated() -> None:
    options = {
        "temperature": 0.5,
        "stop_sequences": ["END"],
        "cache_control": {"type": "ephemeral"},
        "betas": ["x"],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "stream_options": {"include_usage": False},
        "tools": [{"type": "web_search"}],
    }
    made = body(user("x"), tools=(tool("f"),), options=options)
    assert made["temperature"] == 0.5
    assert made["stop"] == ["END"]
    assert made["parallel_tool_calls"] is False
    assert made["stream_options"] == {"include_usage": False}
    assert [each["type"] for each in made["tools"]] == ["function", "web_search"]
    assert not {"stop_sequences", "cache_control", "betas"} & set(made)


@pytest.mark.parametrize("name", ["model", "messages", "system", "stream"])
def test_an_option_that_is_the_session_s_is_refused_by_name(name: str) -> None:
    with pytest.raises(ProviderError, match=name) as raised:
        body(user("x"), options={name: 1})
    assert raised.value.kind == "fatal"


LONG = "x" * 100


def test_long_names_are_short_on_their_way_and_long_again_on_the_way_back() -> None:
    request = Request(
        model="m",
        max_tokens=1,
        tools=(tool(LONG), tool(LONG + "y"), tool("short")),
        messages=(user("a"), assistant(use("c", LONG)), user(result("c"))),
        options={"tool_choice": {"type": "tool", "name": LONG}},
    )
    raw, names = chat_body(request, PLAIN)
    made = json.loads(raw)
    sent_names = [each["function"]["name"] for each in made["tools"]]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in sent_names)
    assert len(set(sent_names)) == 3
    assert [names.back(each) for each in sent_names] == [LONG, LONG + "y", "short"]
    assert made["messages"][1]["tool_calls"][0]["function"]["name"] == sent_names[0]
    assert made["tool_choice"]["function"]["name"] == sent_names[0]
    assert names.back("unknown") == "unknown"


@given(name=st.text("abcXYZ019_-", min_size=1, max_size=128))
def test_every_name_of_ours_comes_back_as_it_went(name: str) -> None:
    names = ToolNames([name], 64)
    assert len(names.out(name)) <= 64
    assert names.back(names.out(name)) == name


@pytest.mark.parametrize(
    ("style", "allowed"), [("short", r"[\w-]{1,40}"), ("nine", r"[a-zA-Z0-9]{9}"), ("any", r".*")]
)
@given(ids=st.lists(st.text("abc019_-", min_size=1, max_size=64), unique=True, max_size=5))
def test_ids_fit_the_server_stay_apart_and_match_in_call_and_result(
    style: CallIds, allowed: str, ids: list[str]
) -> None:
    dialect = ChatDialect(call_ids=style)
    calls = [use(each) for each in ids]
    results = [result(each) for each in ids]
    found = sent(assistant("a", *calls), user("b", *results), dialect=dialect)
    out = [each["id"] for each in found[0].get("tool_calls", ())]
    assert [each["tool_call_id"] for each in found if each["role"] == "tool"] == out
    assert len(set(out)) == len(ids)
    assert all(re.fullmatch(allowed, each) for each in out)


def test_an_id_that_fits_is_left_alone() -> None:
    styles: dict[CallIds, str] = {"short": "call_1", "nine": "a1B2c3D4e"}
    for style, call_id in styles.items():
        dialect = ChatDialect(call_ids=style)
        assert sent(assistant(use(call_id)), dialect=dialect)[0]["tool_calls"][0]["id"] == call_id


def test_equal_requests_give_equal_bytes_and_an_input_keeps_its_own() -> None:
    raw = b'[{"type":"tool_use","id":"a","name":"f","input":{"z": 1.50, "a":"\\u00e9"}}]'
    request = Request(
        model="m", max_tokens=1, messages=(RequestMessage("assistant", msgspec.Raw(raw)),)
    )
    one, two = (chat_body(request, PLAIN)[0] for _ in range(2))
    assert one == two
    arguments = json.loads(one)["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"z": 1.50, "a":"\\u00e9"}'
