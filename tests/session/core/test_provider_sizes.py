"""Sizes of requests that a provider edits before the model reads them."""

from __future__ import annotations

from llmsession import Profile, Usage
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import ContextBuilder
from llmsession.session.log.reported_usage import Reported
from llmsession.turns.request import Frame
from tests.compaction.conversations import Talk

PROFILE = Profile(chars_per_token=1.0)


def test_a_report_after_an_edit_is_believed_however_much_was_cleared() -> None:
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 4_000},
        "keep": {"type": "tool_uses", "value": 1},
    }
    frame = Frame(model="m", max_tokens=10, options={"context_management": {"edits": [edit]}})
    built = Talk()
    built.ask()
    for _ in range(10):
        built.step("x" * 1_000)
    count = len(built.messages) - 1
    builder = ContextBuilder(PROFILE, frame)
    whole = builder.build(built.messages, View()).request
    usage = Usage(input_tokens=1_500, output_tokens=100)
    told = Reported(count, usage, 0.0, cleared_tokens=8_300)
    size = builder.size(whole, built.messages, View(), told)
    assert size.method == "usage"
    assert 1_500 < size.tokens < 2_200
    untold = builder.size(whole, built.messages, View(), Reported(count, usage, 0.0))
    assert untold.method == "estimate"


def test_what_was_cleared_is_sent_again_when_the_provider_is_not_asked_to_clear_any_more() -> None:
    built = Talk()
    built.ask()
    for _ in range(10):
        built.step("x" * 1_000)
    count = len(built.messages) - 1
    builder = ContextBuilder(PROFILE, Frame(model="m", max_tokens=10))
    whole = builder.build(built.messages, View()).request
    told = Reported(count, Usage(input_tokens=1_500, output_tokens=100), 0.0, cleared_tokens=8_300)
    size = builder.size(whole, built.messages, View(), told)
    assert size.method == "usage"
    assert 10_500 < size.tokens < 11_000
