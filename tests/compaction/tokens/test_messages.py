from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession.compaction.tokens.characters import FAMILIES, text_tokens
from llmsession.compaction.tokens.content import ContentCost, content_cost
from llmsession.compaction.tokens.messages import (
    MESSAGE_OVERHEAD_TOKENS,
    context_tokens,
    cost_tokens,
    estimate_text_tokens,
    frame_tokens,
    message_tokens,
)
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.request import Frame, Profile
from tests.compaction.conversations import Blocks, Talk, image, message_of, result_block, talk, text
from tests.compaction.conversations import thinking_block as thinking

ONE = Profile(chars_per_token=1.0, image_tokens=500)


def tokens_of(content: Blocks) -> int:
    """The estimate at one character a token, without the message's overhead."""
    return message_tokens(message_of("user", content), ONE) - MESSAGE_OVERHEAD_TOKENS


@pytest.mark.parametrize(("chars", "tokens"), [(0, 0), (1, 1), (27, 10), (28, 11)])
def test_characters_are_divided_and_rounded_up(chars: int, tokens: int) -> None:
    assert estimate_text_tokens(chars, Profile(chars_per_token=2.7)) == tokens


def test_text_counts_by_its_decoded_characters() -> None:
    assert tokens_of('é\n"') == 3


def test_every_message_costs_its_overhead() -> None:
    assert message_tokens(message_of("user", []), ONE) == MESSAGE_OVERHEAD_TOKENS


def test_an_image_is_a_flat_cost_whatever_its_bytes() -> None:
    assert tokens_of([image()]) == 500


def test_an_image_inside_a_tool_result_is_the_same_flat_cost() -> None:
    assert tokens_of([result_block("c1", [text("abc"), image()])]) == 503


def test_a_document_is_flat_unless_it_is_plain_text() -> None:
    pdf = {"type": "document", "source": {"type": "base64", "data": "A" * 9000}}
    plain = {"type": "document", "source": {"type": "text", "data": "hello"}}
    listed = {"type": "document", "source": {"type": "content", "content": [text("four"), image()]}}
    assert tokens_of([pdf]) == 500
    assert tokens_of([plain]) == 5
    assert tokens_of([listed]) == 504
    assert tokens_of([result_block("c1", [pdf, plain])]) == 505


def test_base64_in_an_unknown_block_is_flat() -> None:
    block = {"type": "new", "file": {"type": "base64", "data": "A" * 9000}}
    url = {"type": "new", "file": "data:image/png;base64," + "A" * 9000}
    assert 500 < tokens_of([block]) < 600
    assert 500 < tokens_of([url]) < 600


def test_a_call_counts_its_name_and_input() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "x" * 100}}
    assert 100 + len("bash") + len("command") <= tokens_of([call]) < 130


def test_an_input_that_looks_like_an_image_is_the_text_it_is() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "b", "input": {"type": "image", "n": [1, 2]}}
    assert len("btypeimagen") < tokens_of([call]) < 50


def test_a_deeply_nested_input_is_counted_without_recursion() -> None:
    nested: Any = 1
    for _ in range(300):
        nested = [nested]
    call = {"type": "tool_use", "id": "c1", "name": "b", "input": {"deep": nested}}
    assert tokens_of([call]) > 300


def test_the_signature_of_thinking_costs_nothing() -> None:
    assert tokens_of([thinking("hm")]) == 2
    assert tokens_of([{"type": "redacted_thinking", "data": "A" * 40}]) == 30


def test_texts_that_are_shown_instead_of_results_are_counted() -> None:
    message = message_of("user", [result_block("c1", "x" * 90), result_block("c2", "y" * 10)])
    assert message_tokens(message, ONE, texts={"c1": "abc"}) == 13 + MESSAGE_OVERHEAD_TOKENS


def test_the_context_counts_what_the_view_shows() -> None:
    built = Talk().ask("go").step("x" * 100, thinking="t" * 50).step("y" * 100, thinking="t" * 50)
    plain = context_tokens(built.messages, View(), ONE)
    view = View(
        compacted_before=3, shown_results={"c1": "z" * 10, "c2": "hidden"}, capped={"c2": "w" * 20}
    )
    assert plain - context_tokens(built.messages, view, ONE) == 90 + 80
    thoughtless = msgspec.structs.replace(view, thinking_from=2)
    assert plain - context_tokens(built.messages, thoughtless, ONE) == 90 + 80 + 50


def test_the_context_can_be_counted_from_a_position_on() -> None:
    built = talk(3)
    view = View(compacted_before=5, shown_results={"c1": "one", "c2": "two"})
    whole = context_tokens(built.messages, view, ONE)
    head = context_tokens(built.messages[:4], view, ONE)
    assert context_tokens(built.messages, view, ONE, start=4) == whole - head


def test_the_frame_counts_system_and_tools() -> None:
    frame = Frame(
        model="m", max_tokens=1, system="abc", tools=(msgspec.Raw(b'{"name":"\xc3\xa9"}'),)
    )
    assert frame_tokens(frame, ONE) == 3 + len('{"name":"é"}')
    assert frame_tokens(Frame(model="m", max_tokens=1), ONE) == 0


CLAUDE = Profile(token_family="claude", image_tokens=500)


def test_a_profile_with_a_family_is_estimated_as_that_family_counts() -> None:
    said = "The session keeps its history."
    weights = FAMILIES["claude"]
    message = message_of("user", said)
    assert message_tokens(message, CLAUDE) == text_tokens(said, "claude") + weights.message
    openai = Profile(token_family="o200k")
    assert message_tokens(message, openai) == text_tokens(said, "o200k") + FAMILIES["o200k"].message


def test_calls_results_and_images_have_their_own_costs() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "here"}}
    answer = result_block("c1", [text("seen"), image()])
    message = message_of("user", [call, answer])
    weights = FAMILIES["claude"]
    texts = text_tokens("look\nat\nhere\nseen", "claude")
    fixed = weights.message + weights.call + weights.result + 500
    assert message_tokens(message, CLAUDE) == texts + fixed


def test_signed_thinking_costs_what_its_signature_holds() -> None:
    signed = {"type": "thinking", "thinking": "a summary", "signature": "A" * 4_000}
    counted = message_tokens(message_of("assistant", [signed]), CLAUDE)
    assert counted == FAMILIES["claude"].message + 680
    unsigned = {"type": "thinking", "thinking": "a summary"}
    assert message_tokens(message_of("assistant", [unsigned]), CLAUDE) < 10


def test_texts_may_be_counted_by_somebody_else() -> None:
    cost = content_cost(message_of("user", [text("abc"), text("de")]))
    assert cost_tokens(cost, CLAUDE, count=len) == len("abc\nde") + FAMILIES["claude"].message
    assert cost_tokens(cost, ONE, count=lambda text: 99) == 5 + MESSAGE_OVERHEAD_TOKENS


def test_the_frame_of_a_family_counts_system_and_tools_as_texts() -> None:
    tool = b'{"name":"look"}'
    frame = Frame(model="m", max_tokens=1, system="be brief", tools=(msgspec.Raw(tool),))
    expected = text_tokens("be brief", "claude") + text_tokens(tool.decode(), "claude")
    weights = FAMILIES["claude"]
    assert frame_tokens(frame, CLAUDE) == expected + weights.tools + weights.tool
    assert frame_tokens(Frame(model="m", max_tokens=1), CLAUDE) == 0


def test_what_a_view_shows_is_what_a_family_counts() -> None:
    built = Talk().ask("go").step("x y " * 400)
    shown = View(compacted_before=3, shown_results={"c1": "cut"})
    plain = context_tokens(built.messages, View(), CLAUDE)
    saved = text_tokens("x y " * 400, "claude") - text_tokens("cut", "claude")
    assert plain - context_tokens(built.messages, shown, CLAUDE) == saved


def test_a_context_that_was_counted_is_remembered_for_each_way_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = talk(4)
    view = View(compacted_before=5, shown_results={"c1": "one", "c2": "two"}, thinking_from=3)
    expected = [context_tokens(built.messages, each, CLAUDE) for each in (View(), view)]
    assert expected[0] > expected[1]
    counted: list[Message] = []

    def cost(message: Message, **_shown: Any) -> ContentCost:
        counted.append(message)
        return ContentCost()

    monkeypatch.setattr("llmsession.compaction.tokens.messages.content_cost", cost)
    again = [context_tokens(built.messages, each, CLAUDE) for each in (View(), view)]
    assert (again, counted) == (expected, [])
    context_tokens(built.messages, View(), ONE)
    assert counted == built.messages


def test_what_is_remembered_of_a_message_is_bounded() -> None:
    message = message_of("user", [result_block("c1", "x" * 90)])
    for length in range(200):
        shown = message_tokens(message, ONE, texts={"c1": "y" * length})
        assert shown == length + MESSAGE_OVERHEAD_TOKENS
    assert len(message.__dict__["_remembered_tokens"]) < 20
