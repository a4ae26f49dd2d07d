"""Model names: what is one model, and what is another."""

from __future__ import annotations

import pytest

from llmsession.turns.spending.model_names import begins, family_of, is_dated


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("gpt-5", True),
        ("gpt-5-2025-08-07", True),
        ("gpt-5-20250807", True),
        ("gpt-5-0613", True),
        ("gpt-5-latest", True),
        ("gpt-5-mini", False),
        ("gpt-5-mini-2025-08-07", False),
        ("gpt-5.1", False),
        ("gpt-51", False),
        ("gpt-5-5", False),
        ("gpt", False),
    ],
)
def test_a_dated_version_is_the_model_and_a_variant_is_not(name: str, is_one: bool) -> None:
    assert is_dated(name, "gpt-5") is is_one


def test_a_beginning_ends_where_a_part_of_the_name_does_and_no_newer_version_follows() -> None:
    assert begins("gpt-5-mini", "gpt-5")
    assert not begins("gpt-5.1", "gpt-5")
    assert not begins("gpt-55", "gpt-5")
    assert begins("claude-opus-4-20250514", "claude-opus-4")
    assert not begins("claude-opus-4-5", "claude-opus-4")


@pytest.mark.parametrize(
    ("family", "models"),
    [
        ("claude", ["claude-opus-4-5", "anthropic/claude-opus-4.5", "claude-next"]),
        ("o200k", ["gpt-4o-mini", "chatgpt-4o-latest", "gpt-4.1", "gpt-5.4", "gpt-6", "o1", "o3"]),
        ("other", ["gpt-4", "gpt-4-turbo", "gpt-3.5-turbo", "gemini-2.5-pro", "qwen3", "", "o"]),
    ],
)
def test_whose_tokenizer_a_model_has_is_told_by_its_name(family: str, models: list[str]) -> None:
    assert {family_of(model) for model in models} == {family}
