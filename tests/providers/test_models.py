"""Models by name: windows, limits, needs; and that nothing unknown is trusted."""

from __future__ import annotations

import pytest

from llmsession import Profile
from llmsession.providers.models import (
    ANTHROPIC,
    CLAUDE,
    COMPATIBLE,
    OPENAI,
    canonical_name,
    find_profile,
)


def claude(model: str) -> Profile:
    return find_profile(model, CLAUDE, otherwise=ANTHROPIC, own={})


def chat(model: str) -> Profile:
    return find_profile(model, OPENAI, otherwise=COMPATIBLE, own={})


@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-4-5",
        "claude-opus-4-5-20251101",
        "anthropic/claude-opus-4.5",
        "anthropic/claude-opus-4-5",
        "us.anthropic.claude-opus-4-5-20251101-v1:0",
        "anthropic.claude-opus-4-5-v1:0",
        "claude-opus-4-5@20251101",
        "publishers/anthropic/models/claude-opus-4-5@20251101",
        "Claude-Opus-4-5",
    ],
)
def test_one_model_has_one_profile_under_all_its_names(model: str) -> None:
    assert claude(model) is CLAUDE["claude-opus-4-5"]


@pytest.mark.parametrize(
    ("model", "window", "output"),
    [
        ("claude-opus-5-5", 1_000_000, 128_000),
        ("claude-sonnet-4-6", 1_000_000, 128_000),
        ("claude-haiku-4-5-20251001", 200_000, 64_000),
        ("claude-opus-4-1-20250805", 200_000, 32_000),
        ("claude-opus-4-20250514", 200_000, 32_000),
        ("claude-3-5-haiku-20241022", 200_000, 8_192),
        ("claude-3-opus-20240229", 200_000, 4_096),
    ],
)
def test_claude_models_have_their_windows(model: str, window: int, output: int) -> None:
    profile = claude(model)
    assert (profile.window_tokens, profile.max_output_tokens) == (window, output)


@pytest.mark.parametrize(
    ("model", "window", "output"),
    [
        ("gpt-6-sol", 922_000, 128_000),
        ("gpt-6.1-terra", 922_000, 128_000),
        ("gpt-5.4-2026-03-05", 922_000, 128_000),
        ("gpt-5.4-mini-2026-03-17", 272_000, 128_000),
        ("gpt-5-mini", 272_000, 128_000),
        ("gpt-5-chat-latest", 128_000, 16_384),
        ("openai/gpt-4o-mini", 128_000, 16_384),
        ("gpt-4.1-nano", 1_047_576, 32_768),
        ("gpt-4", 8_192, 4_096),
        ("gpt-4-0613", 8_192, 4_096),
        ("o3-mini", 200_000, 100_000),
        ("deepseek-chat", 128_000, 8_192),
    ],
)
def test_chat_models_have_their_windows(model: str, window: int, output: int) -> None:
    profile = chat(model)
    assert (profile.window_tokens, profile.max_output_tokens) == (window, output)


@pytest.mark.parametrize(
    "model",
    ["", "m", "claude", "claude-sonnet-5-6", "claude-opus-6", "claude-mythos-5", "claudette"],
)
def test_an_unknown_claude_model_gets_the_careful_values(model: str) -> None:
    profile = claude(model)
    assert profile is ANTHROPIC
    assert profile.window_tokens == min(each.window_tokens for each in CLAUDE.values())
    assert profile.max_output_tokens <= 8_192
    assert profile.binds_thinking
    assert not profile.prefill


@pytest.mark.parametrize(
    "model", ["qwen3:8b", "llama-3.3-70b", "gpt-oss-20b", "gpt-5.9", "o", "gpt-4omega"]
)
def test_an_unknown_chat_model_gets_a_small_window(model: str) -> None:
    assert chat(model) is COMPATIBLE


def test_models_that_bind_their_thinking_are_those_of_the_last_generation() -> None:
    bound = {name for name, profile in CLAUDE.items() if profile.binds_thinking}
    assert bound == {
        "claude-fable-5-1", "claude-fable-5-2", "claude-opus-5-5", "claude-sonnet-5-5",
        "claude-haiku-5-5",
    }  # fmt: skip


def test_only_models_until_4_5_take_a_prefill_and_need_thinking_first_in_a_tool_loop() -> None:
    for name, profile in CLAUDE.items():
        old = name.startswith("claude-3") or "-4-5" in name or name.split("-")[2] == "4"
        newer = name.endswith(("4-6", "4-7", "4-8"))
        assert profile.prefill is (old and not newer), name
    assert CLAUDE["claude-haiku-4-5"].thinking_opens_tool_loop
    assert not CLAUDE["claude-opus-4-6"].thinking_opens_tool_loop


def test_own_profiles_come_first_by_exact_name_and_by_beginning() -> None:
    mine, other = Profile(name="mine"), Profile(name="other")
    own = {"claude-opus-5-5": mine, "my-model": other, "Weird/Name": mine}
    assert find_profile("claude-opus-5-5", CLAUDE, otherwise=ANTHROPIC, own=own) is mine
    assert find_profile("claude-opus-5-5-20261001", CLAUDE, otherwise=ANTHROPIC, own=own) is mine
    assert find_profile("my-model-large", CLAUDE, otherwise=ANTHROPIC, own=own) is other
    assert find_profile("Weird/Name", CLAUDE, otherwise=ANTHROPIC, own=own) is mine
    assert (
        find_profile("claude-opus-5", CLAUDE, otherwise=ANTHROPIC, own=own)
        is CLAUDE["claude-opus-5"]
    )


def test_names_that_are_no_claude_s_keep_their_dots() -> None:
    assert canonical_name("openai/gpt-4.1") == "gpt-4.1"
