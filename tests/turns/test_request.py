from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.turns.blocks import encode_blocks
from llmsession.turns.request import (
    Profile,
    Request,
    RequestMessage,
    Sizes,
    StepTag,
    sizes_for,
)

TOOL = b'{"name":"bash","zeta":1, "input_schema":{"type":"object","properties":{}}}'
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6)
OPTIONS = st.dictionaries(
    st.text(max_size=6), SCALARS | st.dictionaries(st.text(max_size=4), SCALARS), max_size=5
)


def request(options: dict[str, Any] | None = None, text: str = "hi") -> Request:
    return Request(
        model="m",
        max_tokens=100,
        system="be brief",
        tools=(msgspec.Raw(TOOL),),
        messages=(RequestMessage("user", encode_blocks(text)),),
        options=options or {},
    )


@settings(derandomize=True, max_examples=60, deadline=None)
@given(OPTIONS, st.text(max_size=10))
def test_v18_equal_inputs_are_encoded_byte_identically(options: dict[str, Any], text: str) -> None:
    first = request(options, text)
    again = request(json.loads(json.dumps(options)), text)
    assert first == again
    assert first.encode() == again.encode() == first.encode()


def test_v18_keys_stand_in_one_order_and_options_in_the_callers() -> None:
    sent = json.loads(request({"zeta": 1, "alpha": {"y": 1, "x": 2}}).encode())
    assert list(sent) == ["model", "max_tokens", "system", "tools", "messages", "options"]
    assert list(sent["options"]) == ["zeta", "alpha"]
    assert list(sent["options"]["alpha"]) == ["y", "x"]


def test_v18_tools_and_messages_are_sent_as_the_bytes_they_were_given_as() -> None:
    body = b'[{"type":"text", "text":"\\u00e9","b":1.0}]'
    sent = Request(
        model="m",
        max_tokens=1,
        tools=(msgspec.Raw(TOOL),),
        messages=(RequestMessage("user", msgspec.Raw(body)),),
    ).encode()
    assert b'"tools":[' + TOOL + b"]" in sent
    assert b'"messages":[{"role":"user","content":' + body + b"}]" in sent


def test_what_is_not_set_is_not_sent() -> None:
    sent = Request(model="m", max_tokens=1, messages=()).encode()
    assert sent == b'{"model":"m","max_tokens":1,"messages":[]}'


def test_requests_do_not_share_their_options() -> None:
    one = Request(model="m", max_tokens=1, messages=())
    one.options["k"] = 1
    assert Request(model="m", max_tokens=1, messages=()).options == {}


def test_a_request_comes_back_from_its_bytes() -> None:
    sent = request({"temperature": 0.5})
    assert msgspec.json.decode(sent.encode(), type=Request) == sent


def test_tags_are_ordered_by_turn_step_and_attempt() -> None:
    tags = [StepTag(2, 1, 1), StepTag(1, 2, 1), StepTag(1, 1, 2), StepTag(1, 1, 1)]
    assert sorted(tags) == tags[::-1]


@pytest.mark.parametrize(
    ("window", "reply", "expected"),
    [
        (None, None, Sizes(200_000, 8_192)),
        (8_000, None, Sizes(8_000, 2_000)),
        (2, None, Sizes(2, 1)),
        (None, 100_000, Sizes(200_000, 100_000)),
        (500, 900, Sizes(500, 900)),
    ],
)
def test_sizes_are_those_given_and_for_the_rest_the_model_s(
    window: int | None, reply: int | None, expected: Sizes
) -> None:
    assert sizes_for(window, reply, Profile()) == expected
    assert expected.budget_tokens >= 1


def test_a_reply_gets_no_more_than_a_quarter_of_the_window_and_32_000_tokens_by_itself() -> None:
    large = Profile(window_tokens=1_000_000, max_output_tokens=128_000)
    assert sizes_for(None, None, large) == Sizes(1_000_000, 32_000)
    assert sizes_for(100_000, None, large) == Sizes(100_000, 25_000)
