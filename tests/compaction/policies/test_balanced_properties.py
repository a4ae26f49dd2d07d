"""``balanced`` over random lives: every provider profile, windows of 8,000 to 1,000,000 tokens.

Each life checks, at every request: valid by the checker, equal inputs make equal bytes, nothing
before the end changes unless a plan or the session's own record said so, what is frozen stays.
"""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from llmsession.providers.models import ANTHROPIC, CLAUDE, COMPATIBLE, OPENAI
from llmsession.turns.request import Profile
from tests.compaction.lives import ContextLife

WINDOWS = (8_000, 32_000, 128_000, 200_000, 1_000_000)


def _kinds() -> dict[str, Profile]:
    """The profiles of our providers that differ in more than their sizes, and two that nobody
    has: one whose roles are not merged, one that may edit only between turns."""
    kinds: dict[Profile, str] = {}
    known = {"claude": ANTHROPIC, "compatible": COMPATIBLE, **CLAUDE, **OPENAI}
    for name, profile in known.items():
        kinds.setdefault(replace(profile, window_tokens=1, max_output_tokens=1), name)
    named = {name: replace(profile, max_output_tokens=8_000) for profile, name in kinds.items()}
    named["apart"] = replace(COMPATIBLE, merges_roles=False)
    named["opens and binds"] = Profile(thinking_opens_tool_loop=True)
    return named


KINDS = _kinds()


def lives(kind: str, window_tokens: int, *, examples: int, events: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(examples):
        seen.update(ContextLife(seed, KINDS[kind], window_tokens).live(events))
    return seen


def check_depth(kind: str, seen: Counter[str]) -> None:
    told = dict(seen)
    assert seen["plans"], told
    assert seen["results swapped"], told
    # What was compacted is left alone until something changed.
    assert not seen["found more than 5 %"], told
    if kind != "opens and binds":
        # Nothing bricks a conversation, not even a message three times as long as the window.
        assert not seen["too large"], told


def test_there_are_profiles_of_each_provider_and_of_each_need() -> None:
    assert len(KINDS) >= 7
    for need in ("binds_thinking", "thinking_opens_tool_loop", "merges_roles", "prefill"):
        assert {getattr(profile, need) for profile in KINDS.values()} == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_small_window_every_request_is_valid_and_fits(kind: str) -> None:
    seen = lives(kind, 8_000, examples=4, events=60)
    seen += lives(kind, 32_000, examples=2, events=60)
    check_depth(kind, seen)
    assert seen["prefix_summaries"] > 5, dict(seen)
    assert seen["second summaries"] > 1, dict(seen)
    if kind != "opens and binds":
        assert seen["inputs shortened"] > 3, dict(seen)


@pytest.mark.parametrize("window_tokens", WINDOWS[2:])
@pytest.mark.parametrize("kind", ["claude-fable-5-1", "gpt-6", "apart"])
def test_in_a_large_window_every_request_is_valid_and_fits(kind: str, window_tokens: int) -> None:
    seen = lives(kind, window_tokens, examples=1, events=50 if window_tokens < 10**6 else 40)
    check_depth(kind, seen)


@pytest.mark.long
@pytest.mark.parametrize("window_tokens", WINDOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_many_long_lives_in_every_window(kind: str, window_tokens: int) -> None:
    is_small = window_tokens < 100_000
    seen = lives(kind, window_tokens, examples=60 if is_small else 18, events=150)
    check_depth(kind, seen)
    assert seen["texts cut"] > 2, dict(seen)
    assert seen["prefix_summaries"] > 10, dict(seen)
    assert seen["third summaries"] > 2, dict(seen)
    assert seen["rewound"] > 2, dict(seen)
    if is_small:
        assert seen["rewound into a prefix summary"], dict(seen)
        assert seen["forgot a prefix summary"], dict(seen)
