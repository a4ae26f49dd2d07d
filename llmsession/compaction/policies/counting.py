"""How policies count tokens: each message as the view shows it, and the counters of other
systems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.tokens.messages import MESSAGE_OVERHEAD_TOKENS, shown_tokens
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile

__all__ = ["kept_before_tokens", "rest_tokens", "sizes_in_budget", "sizes_in_quarters"]


def sizes_in_budget(view: View, messages: Sequence[Message], budget: Budget) -> list[int]:
    """The tokens of each message as *view* shows it, in the tokens of ``used_tokens``; 0 for a
    message that is not shown.
    """

    def size(index: int) -> int:
        return budget.scaled(shown_tokens(messages[index], index, view, budget.profile))

    return _sizes(view, len(messages), size)


def _sizes(view: View, count: int, size: Callable[[int], int]) -> list[int]:
    """*size* of each of *count* messages; 0 for those that *view* does not show, which are not
    looked at.
    """
    sizes = [0] * count
    for first, end in view.shown_ranges(count):
        sizes[first:end] = map(size, range(first, end))
    return sizes


def rest_tokens(sizes: Sequence[int], budget: Budget) -> int:
    """The tokens of a request beside messages of *sizes*: system text, tools, the prefix summary,
    and injected texts.
    """
    return max(budget.used_tokens - sum(sizes), budget.frame_tokens)


def kept_before_tokens(first: int, view: View, messages: Sequence[Message], budget: Budget) -> int:
    """How many tokens stand before the message at *first* and stay in the provider's cache if it is
    the first one that is changed. It is the figure ``kept_before_tokens`` of a plan.
    """
    return budget.frame_tokens + budget.size(messages[:first], view)


def sizes_in_quarters(view: View, messages: Sequence[Message], profile: Profile) -> list[int]:
    """The tokens of each message as *view* shows it, at four characters a token; 0 for a message
    that is not shown. An image has the profile's flat cost, because base64 is not text.

    Source: CodeBuddy and ChainReview count in this way. It is a third too low for Claude.
    """
    quarters = msgspec.structs.replace(profile, chars_per_token=4.0, token_family=None)

    def size(index: int) -> int:
        return shown_tokens(messages[index], index, view, quarters) - MESSAGE_OVERHEAD_TOKENS

    return _sizes(view, len(messages), size)
