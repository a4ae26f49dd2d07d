"""What a rewrite of the prompt's prefix costs and saves, given the provider's prompt cache.

Everything behind an edit is new to the cache and has to be written again. In return, the cleared
tokens need not be read in any later request.

Source: Anthropic's prices relative to a plain input token. Writing a token to the five-minute cache
costs 1.25, and reading it 0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from llmsession.turns.messages import Message
from llmsession.turns.records import Trigger

__all__ = [
    "IDLE_BEFORE_S",
    "CacheState",
    "Decision",
    "Timing",
    "ahead_tokens",
    "decide",
    "expected_requests",
    "is_outgrown",
    "payback_requests",
    "should_apply",
]

WRITE_PERMILLE, READ_PERMILLE = 1250, 100
"""The price of writing a token to the cache, and of reading one, in thousandths of a plain
token.
"""

FORCED_PERCENT = 92
"""From this percentage of the limit on, a plan no longer waits for a better moment: the next reply
or tool result might not fit any more.
"""
MAX_PAYBACK_REQUESTS = 40
"""A rewrite that pays back only after more requests than this is not made for its price, because
few turns are longer.
"""

OUTGROWN_PERCENT = 10
"""A held plan is made anew when the context has grown by this percentage since it was made."""

AHEAD_PERCENT = 10
"""How early a plan is made, so that it is ready when needed: this percentage of the limit below the
policy's threshold.
"""
IDLE_PERCENT = 30
"""How early an idle session compacts, before its cache expires: this percentage of the limit below
the policy's threshold.
"""
IDLE_BEFORE_S = 30.0
"""How long before the cache expires an idle session compacts, in seconds."""
MIN_EXPECTED, MAX_EXPECTED = 5, 40
"""A conversation is expected to make as many further requests as it has made since the last
rewrite, within these bounds.
"""


class CacheState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the provider's cache of the last request."""

    cached_tokens: int = 0
    """How many tokens of the last request are in the cache, by its reported usage; 0 if the
    provider has no cache or does not report it.
    """
    idle_s: float = 0.0
    """How many seconds ago the last request was made."""
    ttl_s: float = 300.0
    """How many seconds the provider keeps an entry that is not used."""
    is_broken: bool = False
    """Was the prefix changed by something else: another model, system text or tools?"""

    @property
    def is_cold(self) -> bool:
        """Does the cache hold nothing that the next request could read?"""
        return self.is_broken or self.cached_tokens == 0 or self.idle_s >= self.ttl_s


def payback_requests(cleared_tokens: int, cached_after_tokens: int) -> int:
    """After how many further requests a rewrite has paid for itself, rounded up.

    The rewrite clears *cleared_tokens* (C) and writes *cached_after_tokens* (S) behind the edit
    once more. By the prices above the result is 11.5 S / C.
    """
    if cleared_tokens <= 0:
        return 1 << 31
    price = (WRITE_PERMILLE - READ_PERMILLE) * cached_after_tokens
    return -(-price // (READ_PERMILLE * cleared_tokens))


Timing: TypeAlias = Literal["step", "turn_end", "idle"]
"""When the question is asked: before a step, after a turn, or shortly before the cache expires."""


def ahead_tokens(limit_tokens: int, timing: Timing) -> int:
    """How many tokens below its threshold a context with the limit *limit_tokens* is planned
    for.
    """
    return limit_tokens * (IDLE_PERCENT if timing == "idle" else AHEAD_PERCENT) // 100


def is_outgrown(planned_tokens: int, used_tokens: int) -> bool:
    """Is a held plan too old, which was made for *planned_tokens*, when *used_tokens* are used now?

    Such a plan clears only what was there when it was made, which is a smaller and smaller part of
    a growing prompt.
    """
    return used_tokens * 100 > planned_tokens * (100 + OUTGROWN_PERCENT)


def expected_requests(since: Sequence[Message]) -> int:
    """How many more requests a conversation is likely to make before its next rewrite. *since*
    are its messages since the last one."""
    requests = sum(message.is_assistant for message in since)
    return max(MIN_EXPECTED, min(requests, MAX_EXPECTED))


class Decision(msgspec.Struct, frozen=True):
    """Whether to rewrite now, why, and by which figures."""

    act: bool
    trigger: Trigger
    figures: dict[str, int]


def decide(
    *,
    used_tokens: int,
    limit_tokens: int,
    cleared_tokens: int,
    kept_before_tokens: int,
    expected_requests: int,
    cache: CacheState,
    timing: Timing = "step",
) -> Decision:
    """Is this the moment for a rewrite that clears *cleared_tokens*?

    *kept_before_tokens* stand before the first edit and stay in the cache. *expected_requests* is
    how many more requests this conversation is likely to make before the next rewrite. If several
    reasons apply, the trigger names the first one in the order of the code.
    """
    # Only what is cached now and stands behind the edit has to be written again.
    again = max(0, min(cache.cached_tokens, used_tokens) - kept_before_tokens - cleared_tokens)
    pays_after = payback_requests(cleared_tokens, again)
    figures = {
        "used_tokens": used_tokens,
        "limit_tokens": limit_tokens,
        "cleared_tokens": cleared_tokens,
        "cached_tokens": cache.cached_tokens,
        "written_again_tokens": again,
        "payback_requests": min(pays_after, 1 << 31),
        "expected_requests": expected_requests,
        "idle_s": int(cache.idle_s),
    }
    trigger: Trigger = "threshold"
    act = True
    # Waiting must end first of all. Then come the moments at which the prefix is written anew in
    # any case, so that a rewrite costs nothing extra. Last comes the price.
    if used_tokens * 100 >= limit_tokens * FORCED_PERCENT:
        trigger = "window"
    elif cache.is_broken:
        trigger = "prefix_broken"
    elif cache.is_cold:
        trigger = "cold_cache"
    elif timing == "idle":
        trigger = "idle"
    elif pays_after <= min(expected_requests, MAX_PAYBACK_REQUESTS):
        trigger = "pays_back"
    else:
        act = False
    return Decision(act, trigger, figures)


def should_apply(decision: Decision, cache: CacheState, *, is_due: bool) -> bool:
    """Is a finished plan applied, by *decision*?

    A plan that was made ahead of its threshold is not due yet. It is applied only if the prefix is
    written anew in any case. A cache that never held anything does not count as such a case.
    """
    free = decision.trigger in ("prefix_broken", "idle") or (
        decision.trigger == "cold_cache" and cache.cached_tokens > 0
    )
    return decision.act and (is_due or free)
