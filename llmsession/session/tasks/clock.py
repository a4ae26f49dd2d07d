"""The time of day as the sessions of a manager read it, whoever tells it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from llmsession.errors import contained

__all__ = ["Clock", "checked_clock"]

MIN_S = datetime.min.replace(tzinfo=UTC).timestamp() + 86_400
MAX_S = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400
"""The years 1 to 9999, without the days at which a time zone would leave them: what a log holds is
shown as a date."""


class Clock:
    """Reads *clock*, which may be anybody's: seconds since the epoch, as a float.

    What it returns that is no such moment, and what it raises, is not written into a log: the
    system's clock is read instead. *failed* is called with the reason, once.
    """

    __slots__ = ("_clock", "_failed")

    def __init__(self, clock: Callable[[], float], failed: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._failed: Callable[[Exception], None] | None = failed

    def __call__(self) -> float:
        """Now, in seconds since the epoch. Raises nothing."""
        try:
            now = self._clock()
            if now.__class__ is float and MIN_S < now < MAX_S:
                return now
            if isinstance(now, int | float) and not isinstance(now, bool) and MIN_S < now < MAX_S:
                return float.__float__(now) if isinstance(now, float) else float(int.__index__(now))
            error: Exception = ValueError(f"the clock says {type(now).__name__}, no moment")
        except BaseException as raised:
            error = contained(raised)
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(error)
        return time.time()


def checked_clock(
    clock: Callable[[], float], failed: Callable[[Exception], None]
) -> Callable[[], float]:
    """*clock* as sessions read it: the system's own as it is, any other one through ``Clock``."""
    return clock if clock is time.time else Clock(clock, failed)
