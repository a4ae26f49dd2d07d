"""The check of requests that does not rely on the session's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llmsession.testing.replay.gated_provider import MAX_NAMED, RequestWatch, orphan_calls
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.request import Profile, Request, RequestMessage
from tests.testing.conversations import call, recording, result, text

Blocks = Sequence[dict[str, Any]]


def request(*messages: Blocks) -> Request:
    roles = ("user", "assistant")
    return Request(
        model="m",
        max_tokens=10,
        tools=(encode_tool("look"),),
        messages=tuple(
            RequestMessage(roles[at % 2], encode_blocks(list(blocks)))  # type: ignore[arg-type]  # one of the two roles
            for at, blocks in enumerate(messages)
        ),
    )


def encode_tool(name: str) -> Any:
    body = encode_blocks([{"type": "x", "name": name, "input_schema": {"type": "object"}}])
    return type(body)(bytes(body)[1:-1])


GOOD = request([text("a")], [call("c1")], [result("c1")])


def test_valid_requests_are_counted_and_nothing_else() -> None:
    watch = RequestWatch(Profile())
    watch.saw(GOOD)
    watch.saw(GOOD)
    assert (watch.requests, watch.invalid, watch.orphans, watch.faults) == (2, 0, 0, [])


@pytest.mark.parametrize(
    "broken",
    [
        request([text("a")], [call("c1")], [text("b")]),
        request([text("a")], [call("c1"), call("c2")], [result("c2")]),
        request([text("a")], [call("c1")], [text("b")], [text("c")], [result("c1")]),
    ],
    ids=["no result", "one of two", "too late"],
)
def test_a_call_without_its_result_in_the_next_message_is_an_orphan(broken: Request) -> None:
    watch = RequestWatch(Profile())
    watch.saw(GOOD)
    watch.saw(broken)
    assert (watch.requests, watch.invalid, watch.orphans) == (2, 1, 1)
    assert "request 2: call c1 has no result" in watch.faults


def test_a_broken_rule_is_told_with_its_place() -> None:
    watch = RequestWatch(Profile())
    watch.saw(request([text("a")], [text("b")]))
    assert (watch.invalid, watch.orphans) == (1, 0)
    assert watch.faults[0].startswith("request 1: V")


def test_only_the_first_faults_are_told() -> None:
    watch = RequestWatch(Profile())
    for _ in range(2 * MAX_NAMED):
        watch.saw(request([text("a")], [text("b")]))
    assert (watch.invalid, len(watch.faults)) == (2 * MAX_NAMED, MAX_NAMED)


def test_orphans_of_a_history_are_found_at_its_end_too() -> None:
    whole = recording([[text("a")], [call("c1")], [result("c1")], [call("c2")]])
    assert orphan_calls(whole.messages) == ["c2"]
    assert orphan_calls(whole.messages[:3]) == []
