from __future__ import annotations

from typing import Any

import msgspec

from llmsession.compaction.tokens.content import ContentCost, content_cost
from tests.compaction.conversations import image, message_of, result_block, text
from tests.compaction.conversations import thinking_block as thinking

Blocks = str | list[dict[str, Any]]


def tally_of(content: Blocks) -> ContentCost:
    return content_cost(message_of("user", content))


def test_texts_calls_results_and_flat_costs_are_told_apart() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "here", "n": [1, 2]}}
    found = tally_of([text("one"), call, result_block("c0", [text("two"), image()])])
    assert sorted(found.texts) == sorted(["one", "look", "at", "n", "here", "1", "2", "two"])
    assert (found.calls, found.results, found.flats) == (1, 1, 1)
    assert found.mark_chars == 4 + 4 + 2


def test_signed_thinking_is_known_by_its_signature_and_its_text() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": "A" * 300}
    found = tally_of([signed, {"type": "redacted_thinking", "data": "B" * 40}])
    assert found.signed == [(300, "hm"), (40, "")]
    assert found.chars == 2 + 30


def test_thinking_can_be_left_out() -> None:
    message = message_of("assistant", [thinking("hm"), text("ok")])
    assert content_cost(message, thinking=False).signed == []
    assert content_cost(message).signed != []


def test_what_is_shown_instead_is_what_counts() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x" * 900}}
    message = message_of("user", [call, result_block("c0", "y" * 900), text("z" * 900)])
    shown = content_cost(
        message,
        texts={"c0": "short"},
        inputs={"c1": msgspec.Raw(b'{"at":"cut"}')},
        shortened={2: "brief"},
    )
    assert sorted(shown.texts) == sorted(["look", "at", "cut", "short", "brief"])
    assert (shown.calls, shown.results) == (1, 1)


def test_two_tallies_share_nothing() -> None:
    first = tally_of("one")
    assert tally_of("two").texts == ["two"]
    assert first.texts == ["one"]
