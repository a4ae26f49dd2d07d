"""The clock that the sessions of a manager read, with protection from an invalid one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from llmsession.errors import InvalidInput, contained
from llmsession.turns.blocks import is_number

__all__ = ["Clock", "checked_clock"]

MIN_S = datetime.min.replace(tzinfo=UTC).timestamp() + 86_400
MAX_S = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400
"""The years 1 to 9999 without their first and last day, at which a time zone would leave that
range. Times in a log are shown as dates.
"""


class Clock:
    """Reads *clock*, which may be foreign code and returns seconds since the epoch as a float.

    If it raises or returns something else, that does not get into a log: the system's clock is read
    instead. *failed* is called once, with the reason.
    """

    __slots__ = ("_clock", "_failed")

    def __init__(self, clock: Callable[[], float], failed: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._failed: Callable[[Exception], None] | None = failed

    def __call__(self) -> float:
        """The time now, in seconds since the epoch. Raises nothing."""
        try:
            now = self._clock()
            if now.__class__ is float and MIN_S < now < MAX_S:
                return now
            if is_number(now) and MIN_S < now < MAX_S:
                return float.__float__(now) if isinstance(now, float) else float(int.__index__(now))
            error: Exception = ValueError(
                f"the clock returned an invalid {type(now).__name__} instead of seconds since the"
                " epoch"
            )
        except BaseException as raised:
            error = contained(raised)
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(error)
        return time.time()


def checked_clock(
    clock: Callable[[], float], failed: Callable[[Exception], None]
) -> Callable[[], float]:
    """*clock* as sessions read it: the system's clock directly, any other one through ``Clock``.

    Raises InvalidInput if it cannot be called.
    """
    if not callable(clock):
        raise InvalidInput(f"clock is {clock!r}; it must be a function, such as time.time")
    return clock if clock is time.time else Clock(clock, failed)
