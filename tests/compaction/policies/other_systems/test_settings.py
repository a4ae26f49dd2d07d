"""What the policies of other systems refuse for a setting."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession.compaction.policies import SidecarProjection, make_policy
from llmsession.errors import InvalidConfig


@pytest.mark.parametrize(
    ("policy", "setting", "value"),
    [
        ("adaptive_window_truncate", "window_tokens", 0),
        ("adaptive_window_truncate", "min_saving", 1.5),
        ("nondestructive_truncate", "fraction", 1.0),
        ("nondestructive_truncate", "max_tokens", 0),
        ("nondestructive_condense", "fraction", 0),
        ("nondestructive_condense", "percent", 0),
        ("nondestructive_condense", "profile_percent", 4),
        ("nondestructive_condense", "profile_percent", 101),
        ("reverse_budget", "reply_primer_tokens", -1),
        ("reverse_budget", "reserve_out_tokens", -1),
        ("last_n_messages", "n", 1.5),
        ("age_count_token", "max_age_h", "long"),
        ("keep_last_sequence", "max_tokens", 0),
        ("clean_and_budget_30k", "budget_tokens", 0),
        ("four_stage", "target", 1.1),
        ("four_stage", "target", 0),
        ("four_stage", "protected_tokens", -1),
        ("four_stage", "recent_share", 1.0),
        ("middleware_pipeline", "stages", []),
        ("recency_turn_summary", "keep_turns", -1),
        ("union_preserve_compress", "keep_ratio", 1.0),
        ("union_preserve_compress", "keep_cap", 0),
        ("summary_keep_last_4", "keep_messages", 0),
        ("rolling_summary_75", "ratio", 0.0),
        ("pointer_summary", "message_cap", 1.5),
        ("pointer_summary", "max_iterations", 0),
        ("checkpoint_on_first_kept", "threshold_tokens", 0),
        ("auto_compact_threshold", "summary_tokens", 0),
        ("append_only_projection", "keep_messages", -1),
        ("sidecar_projection", "preserve_tokens", True),
        ("llm_summary", "threshold", 1.0),
        ("llm_summary", "keep_recent_turns", 0),
        ("file_read_dedupe", "min_saving", 0),
        ("file_read_dedupe", "threshold", 2.0),
        ("stale_read_batching", "batch_bytes", 0),
        ("hybrid_60_80_90", "truncate_at", 0.85),
        ("hybrid_60_80_90", "keep_turns", 0),
        ("hybrid_60_80_90", "keep_share", 1.0),
        ("hybrid_70_60", "condense_at", 0),
        ("hybrid_70_60", "fold_share", 1.0),
        ("memory_injection", "section_chars", 249),
        ("memory_injection", "top", -1),
        ("focus_chain", "every", 0),
        ("context_providers", "item_chars", 99),
        (
            "context_providers",
            "items",
            [{"turn": 1, "provider": "file", "id": "", "name": "a", "content": ""}],
        ),
        ("mask_consumed", "threshold", 1.0),
        ("mask_consumed", "reserve", 0),
        ("mask_consumed", "min_chars", 0),
        ("pressure_fading", "reserve", 1),
        ("position_clear", "trim_age", 0.6),
        ("position_clear", "keep_turns", 0),
        ("position_clear", "threshold", True),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(
    policy: str, setting: str, value: Any
) -> None:
    with pytest.raises(InvalidConfig, match=setting):
        make_policy(policy, {setting: value})


@pytest.mark.parametrize("value", [True, 1.0, "1"])
def test_a_policy_that_is_made_as_a_value_refuses_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(InvalidConfig, match="preserve_tokens"):
        SidecarProjection(preserve_tokens=value)
