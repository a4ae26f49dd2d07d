"""Sizes of requests that a provider edits before the model reads them."""

from __future__ import annotations

from typing import Any

from llmsession import Profile, Usage
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import ContextBuilder, Size
from llmsession.session.log.reported_usage import Reported
from llmsession.turns.request import Frame
from tests.compaction.conversations import Talk

PROFILE = Profile(chars_per_token=1.0)


USAGE = Usage(input_tokens=1_500, output_tokens=100)


def size_after(cleared_tokens: int, *edits: dict[str, Any]) -> Size:
    """The size of ten steps of 1,000 tokens each, by a report that says what was cleared."""
    options = {"context_management": {"edits": list(edits)}} if edits else {}
    built = Talk()
    built.ask()
    for _ in range(10):
        built.step("x" * 1_000)
    builder = ContextBuilder(PROFILE, Frame(model="m", max_tokens=10, options=options))
    whole = builder.build(built.messages, View()).request
    report = Reported(len(built.messages) - 1, USAGE, 0.0, cleared_tokens=cleared_tokens)
    return builder.size(whole, built.messages, View(), report)


def test_a_report_after_an_edit_is_believed_however_much_was_cleared() -> None:
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 4_000},
        "keep": {"type": "tool_uses", "value": 1},
    }
    size = size_after(8_300, edit)
    assert size.method == "usage"
    assert 1_500 < size.tokens < 2_200
    assert size_after(0, edit).method == "estimate"


def test_what_was_cleared_is_sent_again_when_the_provider_is_not_asked_to_clear_any_more() -> None:
    size = size_after(8_300)
    assert size.method == "usage"
    assert 10_500 < size.tokens < 11_000
