"""How much of its history a session keeps: the limits, and their checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from llmsession.errors import InvalidConfig

__all__ = ["NOTHING_FORGOTTEN", "UNLIMITED", "Forgotten", "HistoryLimits", "strictest"]

MAX_COUNT = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""
MAX_AGE_S = 1000 * 365.25 * 24 * 3600


class HistoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of its history a session keeps. What exceeds a limit is forgotten for good, as by
    ``LLMSession.forget``, oldest turns first and always whole turns.

    ``max_messages`` counts messages, and ``max_tokens`` their estimated tokens, at 2.7 characters
    each whatever the model is. Both keep the newest turn, even where it is too large by itself.
    ``max_age_s`` is how long ago a turn may have been accepted, in seconds; it takes the newest
    turn, too. None is no limit. They are applied when the session is opened, when a turn has ended
    and no other is open or queued, and by the manager's schedule.
    """

    max_messages: int | None = None
    max_tokens: int | None = None
    max_age_s: float | None = None

    def checked(self) -> HistoryLimits:
        """These limits. Raises InvalidConfig, which names the one that cannot be."""
        for name in ("max_messages", "max_tokens"):
            count: Any = getattr(self, name)
            if count is not None and (type(count) is not int or not 0 < count <= MAX_COUNT):
                raise InvalidConfig(
                    f"retention.{name} is {count!r}; it is a whole number above 0, and at"
                    f" most {MAX_COUNT:,}"
                )
        age: Any = self.max_age_s
        is_number = isinstance(age, int | float) and not isinstance(age, bool)
        if age is not None and not (is_number and 0 < age <= MAX_AGE_S):
            raise InvalidConfig(
                f"retention.max_age_s is {age!r}; it is seconds, above 0, and at most"
                f" {MAX_AGE_S:,.0f} (1,000 years); None keeps turns of any age"
            )
        return self

    @property
    def is_unlimited(self) -> bool:
        """Is there no limit at all?"""
        return self.max_messages is self.max_tokens is self.max_age_s is None


UNLIMITED = HistoryLimits()


class Forgotten(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a session has forgotten so far: how many ``turns``, with how many ``messages`` of its
    history, the last time at ``at`` (seconds since the epoch). ``limits`` says how many of the
    turns exceeded which limit of retention (``age``, ``messages``, ``tokens``); a caller asked for
    the others."""

    turns: int = 0
    messages: int = 0
    at: float = 0.0
    limits: dict[str, int] = {}

    def and_then(self, turns: int, messages: int, at: float, limits: dict[str, int]) -> Forgotten:
        """This, and what was forgotten at *at*."""
        names = sorted({*self.limits, *limits})
        return Forgotten(
            self.turns + turns,
            self.messages + messages,
            at,
            {name: self.limits.get(name, 0) + limits.get(name, 0) for name in names},
        )


NOTHING_FORGOTTEN = Forgotten()


def strictest(limits: Iterable[HistoryLimits | None]) -> HistoryLimits:
    """Of each limit the smallest of *limits*."""
    found = [limit for limit in limits if limit is not None]
    if len(found) <= 1:
        return found[0] if found else UNLIMITED
    smallest = {}
    for name in HistoryLimits.__struct_fields__:
        values = [getattr(limits, name) for limits in found]
        smallest[name] = min((value for value in values if value is not None), default=None)
    return HistoryLimits(**smallest)
