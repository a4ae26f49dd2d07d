"""What a rewrite of the prompt's prefix costs and saves, given the provider's prompt cache.

Source: the prices of Anthropic's prompt cache relative to a plain input token: a write into the
five-minute cache costs 1.25, a read 0.1. An edit makes everything behind it new: it has to be
written again. What was cleared need not be read any more, in every later request.
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
"""The price of a token written to the cache, and read from it, in thousandths of a plain one."""

FORCED_PERCENT = 92
"""From this share of the limit on, waiting for a better moment ends: the next reply or result
may not fit any more."""
MAX_PAYBACK_REQUESTS = 40
"""A rewrite that pays back later than this is not made for its price: few turns are longer."""

OUTGROWN_PERCENT = 10
"""A plan that is held is made again once the context has grown by this share since."""

AHEAD_PERCENT = 10
"""So much of the limit before its mark a plan is made, to be there when it is wanted."""
IDLE_PERCENT = 30
"""So much of the limit before its mark an idle session compacts, before its cache is cold."""
IDLE_BEFORE_S = 30.0
"""How long before the cache expires an idle session compacts, in seconds."""
MIN_EXPECTED, MAX_EXPECTED = 5, 40
"""A conversation is taken to make as many more requests as it has made, within these bounds."""


class CacheState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the provider's cache of the last request."""

    cached_tokens: int = 0
    """How much of the last request is in the cache, by its reported usage; 0 where the provider
    has none, or does not say."""
    idle_s: float = 0.0
    """Since when nothing was asked, in seconds."""
    ttl_s: float = 300.0
    """How long it keeps what nobody asks for."""
    is_broken: bool = False
    """Was the prefix changed by something else: another model, system text, tools?"""

    @property
    def is_cold(self) -> bool:
        """Is there nothing in it that the next request could read?"""
        return self.is_broken or self.cached_tokens == 0 or self.idle_s >= self.ttl_s


def payback_requests(cleared_tokens: int, cached_after_tokens: int) -> int:
    """After how many further requests clearing *cleared_tokens* has paid for writing
    *cached_after_tokens* behind the edit once more; rounded up. 11.5 S / C by the prices above.
    """
    if cleared_tokens <= 0:
        return 1 << 31
    price = (WRITE_PERMILLE - READ_PERMILLE) * cached_after_tokens
    return -(-price // (READ_PERMILLE * cleared_tokens))


Timing: TypeAlias = Literal["step", "turn_end", "idle"]
"""When the question is asked: before a step, after a turn, or shortly before the cache expires."""


def ahead_tokens(limit_tokens: int, timing: Timing) -> int:
    """How far before its mark, in tokens, a context of at most *limit_tokens* is planned for."""
    return limit_tokens * (IDLE_PERCENT if timing == "idle" else AHEAD_PERCENT) // 100


def is_outgrown(planned_tokens: int, used_tokens: int) -> bool:
    """Is a plan that is held, made for *planned_tokens*, too old for a context of *used_tokens*? It
    clears what was there then, and pays back less and less of a prompt that grows."""
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

    *kept_before_tokens* stand before the first edit and stay in the cache. *expected_requests*
    is how many more requests this conversation is likely to make before the next rewrite. The
    first reason that holds is the one that is told.
    """
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
    """Is a plan that is ready applied, by *decision*? One that was made ahead of its mark, which is
    not due yet, only goes where the prefix is written anew anyway. A provider that never had
    anything in its cache is no such place."""
    free = decision.trigger in ("prefix_broken", "idle") or (
        decision.trigger == "cold_cache" and cache.cached_tokens > 0
    )
    return decision.act and (is_due or free)
