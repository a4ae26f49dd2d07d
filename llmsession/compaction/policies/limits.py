"""Checks that the policies share for their settings, and arithmetic with shares of a limit."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from llmsession.errors import InvalidConfig
from llmsession.turns.blocks import is_number

__all__ = [
    "Amount",
    "Count",
    "Fraction",
    "Whole",
    "check_fraction",
    "check_whole",
    "portion",
    "reached",
]

_MILLION = 1_000_000


def check_whole(name: str, value: Any, least: int | None = None) -> None:
    """Raises InvalidConfig unless *value*, the setting *name*, is a whole number of at least
    *least*.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least):
        bound = "" if least is None else f" from {least}"
        raise InvalidConfig(f"{name} must be a whole number{bound}, got {value!r}")


def check_fraction(name: str, value: Any) -> None:
    """Raises InvalidConfig unless *value*, the setting *name*, is a number between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise InvalidConfig(f"{name} must be between 0 and 1, got {value!r}")


# The types of settings. ``CheckedPolicy`` calls the check that each of them holds.
Fraction = Annotated[float, check_fraction]
Whole = Annotated[int, check_whole]
Amount = Annotated[int, partial(check_whole, least=0)]
Count = Annotated[int, partial(check_whole, least=1)]


def portion(whole: int, fraction: float) -> int:
    """*fraction* of *whole*, rounded down. Computed in whole numbers, so the result is the same on
    every machine.
    """
    return whole * round(fraction * _MILLION) // _MILLION


def reached(used: int, limit: int, fraction: float) -> bool:
    """Is *used* at least *fraction* of *limit*? Always False without a limit. Computed in whole
    numbers.
    """
    return limit > 0 and used * _MILLION >= limit * round(fraction * _MILLION)
