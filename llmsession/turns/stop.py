"""Why a reply or a turn stopped, and what follows, in one complete table."""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = ["STOP_RULES", "TURN_STOP_REASONS", "Follow", "StopRule", "stop_rule"]


class Follow(StrEnum):
    """What a turn does after a reply."""

    COMMIT = "commit"
    """The reply is complete: the turn ends and keeps it."""
    RUN_TOOLS = "run_tools"
    """Its calls are run and answered, and the turn continues."""
    CONTINUE = "continue"
    """The reply is kept unchanged, and the next request continues it."""
    COMMIT_CUT = "commit_cut"
    """The reply was cut off. Its complete blocks are kept; its calls are removed and never run."""
    DROP = "drop"
    """Nothing of the turn is kept, and the turn fails."""


class StopRule(msgspec.Struct, frozen=True):
    """What follows a stop reason, and why."""

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
    # The provider's advice is to remove a refused turn: later requests with it are refused, too.
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
"""Stop reasons that the session gives a turn, in addition to those of the provider."""


def stop_rule(stop_reason: str | None) -> StopRule:
    """The rule for a provider's stop reason. An unknown one ends the turn and runs nothing."""
    return STOP_RULES.get(stop_reason or "", UNKNOWN)
