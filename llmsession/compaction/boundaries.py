"""Where a conversation may be cut: the documented import path for authors of policies."""

from .planning.boundaries import (
    has_own_words,
    is_safe_cut,
    is_turn_start,
    must_wait,
    newest_request,
    newest_that_fit,
    recent_from,
    safe_cuts,
    shows_open_thinking,
    steps_from,
    turns_from,
)

__all__ = [
    "has_own_words",
    "is_safe_cut",
    "is_turn_start",
    "must_wait",
    "newest_request",
    "newest_that_fit",
    "recent_from",
    "safe_cuts",
    "shows_open_thinking",
    "steps_from",
    "turns_from",
]
