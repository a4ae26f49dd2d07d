"""Which model a name means, and how tokens are counted."""

from __future__ import annotations

import pytest

from llmsession.testing.strict_server.model.models import (
    COMPLETION_MODELS,
    MESSAGE_MODELS,
    family_of,
)
from llmsession.testing.strict_server.model.usage import block_tokens, text_tokens, value_tokens


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("claude-opus-4-5-20251101", "claude-opus-4-5"),
        ("claude-opus-5", "claude-opus-5"),
        ("claude-opus-5-5", "claude-opus-5-5"),
        ("claude-opus-55", None),
        ("claude", None),
        ("gpt-4o", None),
    ],
)
def test_the_longest_name_that_fits_counts(model: str, family: str | None) -> None:
    assert family_of(model, MESSAGE_MODELS) == family


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gpt-4", "gpt-4"),
        ("gpt-4o-mini", "gpt-4o"),
        ("gpt-4.1-mini", "gpt-4.1"),
        ("gpt-5.1", "gpt-5"),
        ("o3-mini", "o3"),
        ("o30", None),
    ],
)
def test_names_of_chat_models_end_where_a_letter_or_digit_would_follow(
    model: str, family: str | None
) -> None:
    assert family_of(model, COMPLETION_MODELS) == family


def test_a_text_is_a_token_for_each_four_bytes_rounded_up() -> None:
    assert [text_tokens(text) for text in ("", "a", "abcd", "abcde", "世界", "\ud800")] == [
        0, 1, 1, 2, 2, 1,
    ]  # fmt: skip
    assert value_tokens({"a": 1}) == 2


def test_a_block_counts_what_the_model_reads_of_it() -> None:
    text = {"type": "text", "text": "abcd"}
    assert block_tokens(text) == 4
    assert block_tokens({**text, "cache_control": {"type": "ephemeral"}, "citations": None}) == 4
    call = {"type": "tool_use", "id": "c1", "name": "list", "input": {"a": 1}}
    assert block_tokens(call) == 3 + 1 + 2
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text], "is_error": False}
    assert block_tokens(result) == 3 + 4
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 9999}}
    assert block_tokens(image) == 1600
    assert block_tokens({**result, "content": [image]}) == 1603
