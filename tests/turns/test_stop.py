from __future__ import annotations

import pytest

from llmsession.turns.stop import STOP_RULES, TURN_STOP_REASONS, Follow, stop_rule

# The stop reasons of the Messages API as of anthropic 2.10.0, compaction being a beta.
FOLLOWS = {
    "end_turn": Follow.COMMIT,
    "max_tokens": Follow.COMMIT_CUT,
    "stop_sequence": Follow.COMMIT,
    "tool_use": Follow.RUN_TOOLS,
    "pause_turn": Follow.CONTINUE,
    "refusal": Follow.DROP,
    "model_context_window_exceeded": Follow.COMMIT_CUT,
    "compaction": Follow.CONTINUE,
}


def test_v17_the_table_has_every_stop_reason_of_the_provider_and_no_other() -> None:
    assert {reason: stop_rule(reason).follow for reason in STOP_RULES} == FOLLOWS


@pytest.mark.parametrize("stop_reason", [None, "", "unknown", "END_TURN", "a_word_of_tomorrow"])
def test_v17_an_unknown_stop_reason_stops_and_runs_nothing(stop_reason: str | None) -> None:
    assert stop_rule(stop_reason).follow is Follow.COMMIT_CUT


def test_every_rule_gives_its_reason() -> None:
    assert all(rule.reason for rule in STOP_RULES.values())
    assert all(TURN_STOP_REASONS.values())


def test_the_sessions_own_stop_reasons_are_not_the_providers() -> None:
    assert set(TURN_STOP_REASONS) == {
        "budget", "cancelled", "error", "max_steps", "max_seconds", "max_turn_tokens",
    }  # fmt: skip
    assert not set(TURN_STOP_REASONS) & set(STOP_RULES)
