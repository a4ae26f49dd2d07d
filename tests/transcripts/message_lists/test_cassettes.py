from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import left_out, read, read_exchanges
from llmsession.turns.usage import Usage

from ..agents.sources import cassette, text, tool_use


def interaction(url: str, request: Any, response: Any, status: int = 200) -> dict[str, Any]:
    body = (
        {"body": {"string": response}} if isinstance(response, str) else {"parsed_body": response}
    )
    return {
        "request": {"method": "POST", "uri": f"https://host.test{url}", "parsed_body": request},
        "response": {"status": {"code": status, "message": "OK"}} | body,
    }


def recorded(*interactions: dict[str, Any]) -> bytes:
    rows = b"".join(b"- " + json.dumps(each).encode() + b"\n" for each in interactions)
    return b"interactions:\n" + rows + b"version: 1\n"


def anthropic(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | more


def test_a_request_and_what_the_provider_counted_for_it() -> None:
    (exchange,) = read_exchanges(cassette(), strict=True)
    assert (exchange.api, exchange.status, exchange.streamed) == ("anthropic-messages", 200, False)
    assert (exchange.model, exchange.usage) == ("claude-x", Usage(12, 3))
    assert json.loads(bytes(exchange.request))["max_tokens"] == 10


def test_the_messages_of_the_request_and_the_reply_are_a_conversation() -> None:
    (conversation,) = read(cassette(), strict=True)
    assert conversation.system == "Be short."
    last = conversation.messages[-1]
    assert (last.id, last.text, last.usage) == ("msg_1", "Welcome again.", Usage(12, 3))
    assert b'"max_tokens":10' in bytes(conversation.extra["request"])
    assert b'"messages"' not in bytes(conversation.extra["request"])


def test_a_count_of_tokens_is_a_prompt_without_a_reply() -> None:
    raw = recorded(
        interaction("/v1/messages/count_tokens?beta=1", anthropic(), {"input_tokens": 9})
    )
    (exchange,) = read_exchanges(raw)
    assert (exchange.api, exchange.usage) == ("anthropic-count-tokens", Usage(9))
    (conversation,) = read(raw, strict=True)
    assert [message.role for message in conversation.messages] == ["user"]


def test_a_chat_reply_has_its_usage_without_the_cached_tokens() -> None:
    usage = {
        "prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4},
    }  # fmt: skip
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {
        "id": "chatcmpl-1", "model": "gpt-x", "created": 1767225600, "usage": usage,
        "choices": [{"message": message, "finish_reason": "tool_calls"}],
    }  # fmt: skip
    raw = recorded(interaction("/v1/chat/completions", anthropic(), answer))
    (conversation,) = read(raw, strict=True)
    last = conversation.messages[-1]
    assert (last.id, last.usage, last.stop_reason) == ("chatcmpl-1", Usage(6, 2, 4), "tool_use")
    assert (last.created_at, conversation.unanswered) == (1767225600.0, ("c1",))


def test_items_of_the_responses_interface_are_messages() -> None:
    request = {
        "model": "gpt-x", "instructions": "Be short.", "previous_response_id": "resp_0",
        "input": [{"role": "user", "content": "hi"}, {"role": "developer", "content": "Be kind."}],
    }  # fmt: skip
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "zzz"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "yo"}],
        },
    ]
    usage = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
    answer = {"id": "resp_1", "model": "gpt-x", "output": output, "usage": usage}
    (conversation,) = read(recorded(interaction("/v1/responses", request, answer)), strict=True)
    assert conversation.system == "Be short."
    last = conversation.messages[-1]
    assert (last.id, last.text, last.usage) == ("resp_1", "yo", Usage(6, 2, 4))
    assert b"zzz" in bytes(last.extra or b"")
    lost = [note.what for note in conversation.notes if note.visible]
    assert lost == ["held_by_provider", "system", "foreign_item"]


def test_an_input_that_is_a_text_is_the_users() -> None:
    answer = {"id": "resp_1", "output": [{"type": "message", "role": "assistant", "content": "yo"}]}
    raw = recorded(interaction("/v1/responses", {"input": "hi"}, answer))
    assert [message.text for message in read(raw, strict=True)[0].messages] == ["hi", "yo"]


def stream(*events: dict[str, Any]) -> str:
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)


def test_a_streamed_reply_is_put_together() -> None:
    asked = tool_use("c1") | {"input": {}}
    told = stream(
        {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "model": "m",
                                              "usage": {"input_tokens": 7, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yo"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": asked},
        {"type": "content_block_delta", "index": 1,
         "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"},
         "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    )  # fmt: skip
    raw = recorded(interaction("/v1/messages", anthropic(stream=True), told))
    (exchange,) = read_exchanges(raw, strict=True)
    assert (exchange.streamed, exchange.usage) == (True, Usage(7, 5))
    assert json.loads(bytes(exchange.response)) == told
    last = read(raw, strict=True)[0].messages[-1]
    assert (last.text, last.tool_calls[0].input, last.stop_reason) == ("yo", {"a": 1}, "tool_use")


def test_a_refused_request_is_a_conversation_without_a_reply() -> None:
    error = {"type": "error", "error": {"type": "not_found_error", "message": "no"}}
    raw = recorded(interaction("/v1/messages", anthropic(), error, status=404))
    (conversation,) = read(raw, strict=True)
    assert len(conversation.messages) == 1
    assert conversation.count_notes() == {"refused_request": 1}
    assert read_exchanges(raw)[0].status == 404


def test_requests_that_are_no_conversation_are_noted() -> None:
    other = interaction("/v1/files", {"purpose": "x"}, {"id": "file_1"})
    raw = recorded(other, interaction("/v1/messages", anthropic(), {"input_tokens": 9}))
    (conversation,) = read(raw, strict=True)
    assert conversation.count_notes() == {"other_request": 1}
    assert [exchange.api for exchange in read_exchanges(raw)] == ["other", "anthropic-messages"]
    with pytest.raises(TranscriptError, match="no recorded request in it has messages"):
        read(recorded(other))


def test_each_request_is_a_conversation_of_its_own() -> None:
    answer = {"id": "msg_1", "role": "assistant", "content": [text("yo")]}
    both = [interaction("/v1/messages", anthropic(), answer)] * 2
    assert [found.id for found in read(recorded(*both), strict=True)] == [
        "exchange-1",
        "exchange-2",
    ]


@pytest.mark.parametrize("odd", [7, {"request": {}}, {"request": {"uri": "x"}, "response": {}}])
def test_an_interaction_that_is_none_is_noted_or_refused_by_its_number(odd: Any) -> None:
    raw = recorded(interaction("/v1/messages", anthropic(), {}), odd)
    assert read(raw)[0].count_notes()["bad_record"] == 1
    with pytest.raises(TranscriptError, match=r"^interaction 2: "):
        read_exchanges(raw, strict=True)


def test_bodies_are_read_as_text_too_and_dates_in_them_stay_text() -> None:
    raw = b"""version: 1
interactions:
- request:
    uri: https://host.test/v1/messages
    body: '{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
  response:
    status: 200
    parsed_body: {id: msg_1, role: assistant, content: [{type: text, text: 2026-01-01T00:00:00Z}]}
"""
    (conversation,) = read(raw, strict=True)
    assert [message.text for message in conversation.messages] == ["hi", "2026-01-01T00:00:00Z"]


def test_without_pyyaml_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(TranscriptError, match=r"install llmsession\[cassettes\]"):
        read(cassette())


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"interactions:\n- a: [1,\n- b\n", "line"),
        (b"interactions: \xff", "line 1: not valid UTF-8"),
        (b"interactions: 3", "no list of interactions"),
        (b"interactions: !!python/object/apply:os.getcwd []", "not YAML"),
        (b"interactions: " + b"[" * 100_000, "too deep"),
        (b"interactions:\n" + b"- " * 100_000, "too deep"),
        (b"interactions: &a [*a]", "aliases"),
        (
            b"a: &a [x,x,x,x,x,x,x,x,x]\n"
            + b"".join(b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9))
                       for n in range(ord("b"), ord("j")))
            + b"interactions: [*i]",
            "aliases",
        ),
    ],
)  # fmt: skip
def test_hostile_yaml_is_one_error(raw: bytes, says: str) -> None:
    with pytest.raises(TranscriptError, match=says) as caught:
        read(raw, "cassette")
    assert "\n" not in str(caught.value)


def test_numbers_and_keys_that_json_has_none_of_become_what_it_has() -> None:
    raw = recorded(interaction("/v1/messages", anthropic(), {"role": "assistant", "content": []}))
    odd = raw.replace(b'"hi"', b'"hi", "x": [.inf, 123456789012345678901234567890, !!binary aGk=]')
    assert bytes(read_exchanges(odd, strict=True)[0].request).endswith(
        b'"x":[null,"123456789012345678901234567890","hi"]}]}'
    )


def test_a_call_of_a_tool_of_the_providers_is_counted_as_left_out() -> None:
    request = {"model": "gpt-x", "input": [{"role": "user", "content": "hi"}]}
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "zzz"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "yo"}],
        },
    ]
    answer = {"id": "resp_1", "model": "gpt-x", "output": output}
    conversations = read(recorded(interaction("/v1/responses", request, answer)), strict=True)
    assert left_out(conversations).reasons == {"foreign_item": 1}
