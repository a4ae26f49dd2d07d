"""How much of its history a session keeps: the limits and their checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from llmsession.errors import InvalidConfig
from llmsession.turns.blocks import is_number

__all__ = ["NOTHING_FORGOTTEN", "UNLIMITED", "Forgotten", "HistoryLimits", "strictest"]

MAX_COUNT = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""
MAX_AGE_S = 1000 * 365.25 * 24 * 3600


class HistoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of its history a session keeps. None means no limit.

    What exceeds a limit is forgotten for good, as by ``LLMSession.forget``: always whole turns,
    oldest first. The limits are applied when the session is opened, when a turn has ended and no
    other is open or queued, and by the manager's schedule.
    """

    max_messages: int | None = None
    """Messages in the history. The newest turn is kept even if it has more."""
    max_tokens: int | None = None
    """Estimated tokens of the history, at 2.7 characters per token for every model. The newest turn
    is kept even if it has more.
    """
    max_age_s: float | None = None
    """Seconds since a turn was accepted. The newest turn is forgotten, too, when it is too old."""

    def checked(self) -> HistoryLimits:
        """These limits. Raises InvalidConfig, naming the first invalid one."""
        for name in ("max_messages", "max_tokens"):
            count: Any = getattr(self, name)
            if count is not None and (type(count) is not int or not 0 < count <= MAX_COUNT):
                raise InvalidConfig(
                    f"retention.{name} is {count!r}; it must be a whole number above 0,"
                    f" and at most {MAX_COUNT:,}"
                )
        age: Any = self.max_age_s
        if age is not None and not (is_number(age) and 0 < age <= MAX_AGE_S):
            raise InvalidConfig(
                f"retention.max_age_s is {age!r}; it must be a number of seconds above 0,"
                f" and at most {MAX_AGE_S:,.0f} (1,000 years); None keeps turns of any age"
            )
        return self

    @property
    def is_unlimited(self) -> bool:
        """Is there no limit at all?"""
        return self.max_messages is self.max_tokens is self.max_age_s is None


UNLIMITED = HistoryLimits()


class Forgotten(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a session has forgotten so far."""

    turns: int = 0
    """The number of forgotten turns."""
    messages: int = 0
    """How many messages of the history these turns had."""
    at: float = 0.0
    """When something was last forgotten, in seconds since the epoch; 0.0 if nothing was."""
    limits: dict[str, int] = {}
    """How many of the turns exceeded which limit of retention: ``age``, ``messages`` or ``tokens``.
    A caller asked to forget the other turns.
    """

    def and_then(self, turns: int, messages: int, at: float, limits: dict[str, int]) -> Forgotten:
        """The sum of this and of what was forgotten at *at*."""
        names = sorted({*self.limits, *limits})
        return Forgotten(
            self.turns + turns,
            self.messages + messages,
            at,
            {name: self.limits.get(name, 0) + limits.get(name, 0) for name in names},
        )


NOTHING_FORGOTTEN = Forgotten()


def strictest(limits: Iterable[HistoryLimits | None]) -> HistoryLimits:
    """The smallest value of each limit in *limits*."""
    found = [limit for limit in limits if limit is not None]
    if len(found) <= 1:
        return found[0] if found else UNLIMITED
    smallest = {}
    for name in HistoryLimits.__struct_fields__:
        values = [getattr(limits, name) for limits in found]
        smallest[name] = min((value for value in values if value is not None), default=None)
    return HistoryLimits(**smallest)
