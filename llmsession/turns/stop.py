"""Why a reply or a turn stopped, and what follows: one table, exhaustive."""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = ["STOP_RULES", "TURN_STOP_REASONS", "Follow", "StopRule", "stop_rule"]


class Follow(StrEnum):
    """What a turn does after a reply."""

    COMMIT = "commit"
    """The reply is whole: the turn ends and keeps it."""
    RUN_TOOLS = "run_tools"
    """Its calls are run and answered, and the turn continues."""
    CONTINUE = "continue"
    """The reply is kept as it is, and the next request continues it."""
    COMMIT_CUT = "commit_cut"
    """The reply was cut: what is complete is kept, its calls are left out and never run."""
    DROP = "drop"
    """Nothing of the turn is kept; the turn fails."""


class StopRule(msgspec.Struct, frozen=True):
    """What follows one stop reason, and why."""

    follow: Follow
    reason: str


STOP_RULES: dict[str, StopRule] = {
    "end_turn": StopRule(Follow.COMMIT, "the model is done"),
    "stop_sequence": StopRule(Follow.COMMIT, "a stop sequence of the request was met"),
    "tool_use": StopRule(Follow.RUN_TOOLS, "the model waits for results"),
    "pause_turn": StopRule(Follow.CONTINUE, "the provider paused its own tools (``can_go_on``)"),
    "compaction": StopRule(Follow.CONTINUE, "the provider paused after compacting"),
    "max_tokens": StopRule(Follow.COMMIT_CUT, "a cut call may have lost half of its input"),
    "model_context_window_exceeded": StopRule(Follow.COMMIT_CUT, "cut by the window"),
    # The provider says to remove a refused turn: with it, later requests are refused again.
    "refusal": StopRule(Follow.DROP, "the provider refused; the same context is refused again"),
}

UNKNOWN = StopRule(Follow.COMMIT_CUT, "not known to us: stop, and run nothing")

TURN_STOP_REASONS: dict[str, str] = {
    "cancelled": "interrupted under keep_steps or keep_text",
    "error": "the provider was given up; completed steps are kept",
    "max_steps": "the turn's limit of model requests",
    "max_seconds": "the turn's limit of time",
    "max_turn_tokens": "the turn's limit of tokens",
    "budget": "the session or its tenant has spent its budget; completed steps are kept",
}
"""Stop reasons that the session gives a turn, beside those of the provider."""


def stop_rule(stop_reason: str | None) -> StopRule:
    """The rule for a provider's stop reason; an unknown one stops and runs nothing."""
    return STOP_RULES.get(stop_reason or "", UNKNOWN)
