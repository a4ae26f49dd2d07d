"""Times as other systems write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from llmsession.turns.blocks import is_number

__all__ = ["iso_time", "milliseconds", "seconds_of"]

_FIRST_MS = 100_000_000_000
"""As seconds this is after the year 5000; as milliseconds it is in 1973."""
_LATEST_S = 253_402_300_799
"""The last second that can be written in ISO 8601."""


def seconds_of(value: Any) -> float:
    """A time in ISO 8601, in seconds or in milliseconds, as seconds since the epoch; 0 if *value*
    is not a time. A text without a time zone is in UTC.
    """
    if isinstance(value, str):
        if value.isascii() and value.isdigit():
            return seconds_of(int(value[:18]))
        try:
            time = datetime.fromisoformat(value)
            return max(0.0, (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
        except (ValueError, OverflowError):
            return 0.0
    if not is_number(value) or not value > 0:
        return 0.0
    if value > _LATEST_S * 1000:  # also integers that no float can hold
        return 0.0
    seconds = value / 1000 if value >= _FIRST_MS else float(value)
    return seconds if seconds <= _LATEST_S else 0.0


def milliseconds(seconds: float) -> int:
    """*seconds* in whole milliseconds."""
    return round(seconds * 1000)


def iso_time(seconds: float) -> str:
    """*seconds* since the epoch as ISO 8601 in UTC with milliseconds, in JavaScript's form. A time
    that it cannot write becomes the nearest one that it can.
    """
    seconds = min(max(0.0, seconds), _LATEST_S)
    time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds(seconds))
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
