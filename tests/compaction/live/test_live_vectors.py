"""Each system's policy in a real session, request by request, against a reference of the system.

``VECTORS`` says what of a system is copied and where a session differs on purpose. The page
docs/explanation/policies.md shows the same sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.compaction.live import references, references_two
from tests.compaction.live.comparing import differences
from tests.compaction.live.conversations import Life, lived
from tests.compaction.live.references import Requests
from tests.virtual_time import virtual_backend

SMALL = {"tokens": 1_000, "window": 40_000, "max_tokens": 4_000}
"""Some 62 requests and 110,000 tokens in a window of 40,000."""

ROOMY = {"tokens": 1_000, "window": 60_000, "max_tokens": 4_000, "turns": 16}
"""Not so long that shorter results are not enough: LibreChat then goes on with another policy."""

LONG = 42
"""Turns: 200 messages, for limits that are counted in messages or are a fixed number of tokens."""

STARTS = "The context begins with a question."
STEP = "The newest question and the open step are never folded."
PAIRS = "A call and its results stay together."
FRAME = "System text and tools count."


class Vector(NamedTuple):
    """One policy, the system that it is from, and how they are compared."""

    system: str
    policy: str
    reference: Callable[[Life], Requests]
    copied: str
    differs: str
    conversation: dict[str, Any] = SMALL
    crossings: int = 3
    """How often the policy acts, at least."""


VECTORS = (
    Vector(
        "LibreChat, classic", "reverse_budget", references.librechat,
        "the newest messages that fit, three tokens for the reply's opening",
        STARTS,
    ),
    Vector(
        "LibreChat, agents", "recency_turn_summary", references.librechat_agents,
        "what does not fit is summarised, but for two turns",
        f"{STEP} Results are not masked before.",
    ),
    Vector(
        "LibreChat, masking", "mask_consumed", references_two.librechat_masking,
        "at four fifths results that were answered in words are cut, the older the shorter",
        "A result is cut once.",
        ROOMY,
    ),
    Vector(
        "LibreChat, fading", "pressure_fading", references_two.librechat_fading,
        "the fuller the context and the older a result, the shorter it is cut",
        "A result is cut once.",
        ROOMY,
    ),
    Vector(
        "Open WebUI", "checkpoint_on_first_kept", references.open_webui,
        "past 80,000 tokens a summary hangs on the first question of the newest fifth",
        "Where the kept messages exceed the threshold themselves, the place moves on by turns.",
        {"tokens": 2_000},
    ),
    Vector(
        "LobeChat, window", "last_n_messages", references.lobechat_window,
        "the newest eight messages",
        f"{STARTS} It is the one before the eighth message. Results of one step are one message.",
        {"tokens": 1_000, "turns": LONG},
    ),
    Vector(
        "LobeChat, compression", "union_preserve_compress", references.lobechat,
        "past three quarters of the window all but a fifth of that is one group",
        FRAME,
    ),
    Vector(
        "Chatbot UI", "reverse_budget", references.chatbot_ui,
        "the newest messages that fit",
        f"{STARTS} The newest one is sent even if it does not fit.",
        {**SMALL, "reply_primer_tokens": 0},
    ),
    Vector(
        "Jan", "append_only_projection", references.jan,
        "at four fifths of the window a summary stands for all but eight messages",
        "The summary is a user's text, not a system message.",
    ),
    Vector(
        "Continue", "keep_last_sequence", references.continue_chat,
        "the oldest messages go, the last question or step stays",
        f"{STARTS} The whole reply is kept free, not at most 1,000 tokens of it.",
    ),
    Vector(
        "Continue, command line", "auto_compact_threshold", references.continue_cli,
        "near the end of the window one summary stands for everything",
        STEP,
    ),
    Vector(
        "Cline, classic", "adaptive_window_truncate", references_two.cline,
        "older reads of a file go, then half or three quarters behind the first pair",
        f"{PAIRS} What came since the last reply counts. The notice stands where the gap is.",
        {"tokens": 1_000, "window": 64_000, "max_tokens": 4_000},
    ),
    Vector(
        "Cline, SDK", "basic_fold", references_two.cline_sdk,
        "questions stay, and the last replies that fit; notices list what was done between them",
        "The budget is the window less the reply. Notices count. A reply that survived once is"
        " folded again where newer ones need the room.",
    ),
    Vector(
        "Cline, SDK with a model", "sidecar_projection", references_two.cline_sidecar,
        "at nine tenths all is summarised but the newest 20,000 tokens and the newest turn",
        "The budget is the window less the reply.",
    ),
    Vector(
        "Cline, SDK, stale reads", "stale_read_batching", references_two.cline_stale_reads,
        "reads of a file that was read again go once 64 KiB of them wait",
        "A read of some lines makes no other read old.",
        {"tokens": 2_400, "window": 1_000_000, "turns": LONG},
        2,
    ),
    Vector(
        "Roo Code, condense", "nondestructive_condense", references_two.roo,
        "a summary stands for everything once the window is nearly full",
        STEP,
    ),
    Vector(
        "Roo Code, truncation", "nondestructive_truncate", references_two.roo_truncation,
        "an even half of what is visible behind the first message is hidden",
        f"{PAIRS} One marker stands for all truncations.",
    ),
    Vector(
        "ChainReview", "clean_and_budget_30k", references_two.chainreview,
        "texts are cleaned in every request, then the newest 30,000 tokens",
        "Calls and results are part of the history. Results are not cleaned.",
        {"tokens": 1_000, "turns": LONG},
    ),
    Vector(
        "CodeBuddy, pruning", "age_count_token", references_two.codebuddy,
        "the newest 50 messages of at most 32,000 tokens",
        f"{STARTS} {FRAME}",
        {"tokens": 1_000, "turns": LONG},
    ),
    Vector(
        "CodeBuddy, with summary", "summary_keep_last_4", references_two.codebuddy_chat,
        "what does not fit is summarised, but for four messages",
        f"{PAIRS} The summary is never dropped.",
    ),
    Vector(
        "MiniSearch", "rolling_summary_75", references_two.minisearch,
        "what fits three quarters of 4,096 tokens, and a running summary of the rest",
        "The summary's 800 tokens are set aside. What is folded stays folded. The stub reply"
        ' "Ok!" is not sent.',
        {"tokens": 120, "window": 128_000, "turns": LONG},
    ),
    Vector(
        "NeuroLink, pointer", "pointer_summary", references_two.neurolink,
        "at four fifths of the limit all is summarised but three tenths of that",
        f"It is looked at before each request, not only after a turn. {FRAME}",
    ),
    Vector(
        "NeuroLink, stages", "four_stage", references_two.neurolink_stages,
        "over the limit old results are cleared, then all but three tenths is summarised",
        "What was cleared stays cleared.",
        {"tokens": 2_000, "window": 100_000},
    ),
)  # fmt: skip


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """One backend is enough: what is sent does not depend on it."""
    return virtual_backend("asyncio")


@pytest.mark.parametrize("vector", VECTORS, ids=[vector.system for vector in VECTORS])
async def test_each_request_is_what_the_system_would_have_sent(
    vector: Vector, anyio_backend: Any
) -> None:
    life = await lived(vector.policy, **vector.conversation)
    wrong = differences(life, vector.reference(life))
    assert not wrong, f"{len(wrong)} requests differ, the first:\n{wrong[0]}"
    # The limit was crossed several times, and nobody had to help out.
    assert len(life.records) >= vector.crossings
    assert {(record.policy, record.trigger) for record in life.records} == {
        (vector.policy, "policy_limit")
    }


def test_the_page_says_of_each_policy_what_is_copied_and_what_differs() -> None:
    page = Path("docs/explanation/policies.md").read_text(encoding="utf-8")
    for vector in VECTORS:
        row = f"| {vector.system} | `{vector.policy}` | {vector.copied} | {vector.differs} |"
        assert row in page
