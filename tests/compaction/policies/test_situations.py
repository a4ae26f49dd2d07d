"""What a policy does in one situation: nothing, a summary of all before a message, or a window."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.policies import (
    AdaptiveWindowTruncate,
    AgeCountToken,
    AppendOnlyProjection,
    AutoCompactThreshold,
    CheckpointOnFirstKept,
    CleanAndBudget30k,
    ContextProviders,
    FocusChain,
    FourStage,
    KeepLastSequence,
    LastNMessages,
    LlmSummary,
    MaskConsumed,
    MemoryInjection,
    NondestructiveCondense,
    PointerSummary,
    PositionClear,
    RecencyTurnSummary,
    ReverseBudget,
    RollingSummary75,
    SidecarProjection,
    SummaryKeepLast4,
    UnionPreserveCompress,
    make_policy,
)
from tests.compaction.conversations import Talk, image, talk, text
from tests.compaction.policies.plans import plain, plan_of, second_turn, visible
from tests.compaction.policies.summaries import (
    PROFILE,
    applied,
    budget_for,
    chat,
    loop,
    planned,
    said,
)

FIVE = plain(50, 40, 30, 20, 10)
NINE = plain(*[10] * 9)
AGED = plain(*[404] * 9)  # 100 tokens each, of four characters
ANY = 10**6
TIMED = plain(*[10] * 80)
TIMED.messages = [
    replace(message, created_at=180_000.0 * number)
    for number, message in enumerate(TIMED.messages, 1)
]
SOME = Talk().ask().step("a" * 20_000, times=3)
SEEN = Talk().ask().step([text("a" * 20_000), image()]).reply()
PICTURE = {"turn": 9, "provider": "file", "id": "a", "name": "a", "content": "a"}
TURNS = talk(5, said(1_000))


def recency(**settings: Any) -> RecencyTurnSummary:
    return RecencyTurnSummary(**settings)


def checkpoint(**settings: Any) -> CheckpointOnFirstKept:
    return CheckpointOnFirstKept(**settings)


# fmt: off
NOTHING: dict[str, tuple[Policy, Talk, int, dict[str, Any]]] = {
    # A token a character.
    "four messages": (AdaptiveWindowTruncate(), plain(*[100] * 4), 1_000, {"used": 1_600}),
    "one message": (AdaptiveWindowTruncate(), plain(100), 1_000, {"used": 1_600}),
    "no message": (AdaptiveWindowTruncate(), Talk(), 1_000, {"used": 1_600}),
    "nothing to fold": (NondestructiveCondense(), plain(1_000), 100_000, {"used": 10}),
    "under the target": (FourStage(protected_tokens=1_000), SOME, 100_000, {}),
    "all fit": (ReverseBudget(), FIVE, 153, {}),
    "only the newest request, too large as it is": (ReverseBudget(), plain(500), 100, {}),
    "no more than n": (LastNMessages(n=9), NINE, 1_000, {}),
    "all fit beside a reply": (KeepLastSequence(max_tokens=100), plain(*[500] * 5), 2_700, {}),
    "no limit applies": (
        AgeCountToken(max_age_h=0, max_messages=-1, max_tokens=0), TIMED, ANY, {}),
    "a request of which nothing would be left": (
        CleanAndBudget30k(), Talk().ask("<thinking>only this</thinking>"), ANY, {}),
    "results that calls follow and no words": (MaskConsumed(), SOME, 2_000, {}),
    "a result with an image": (MaskConsumed(), SEEN, 2_000, {}),
    "results under 50,000 characters": (
        PositionClear(), Talk().turns(10, "x" * 49_999), 100_000, {}),
    "three turns, however old": (PositionClear(), Talk().turns(3, "x" * 50_000), 100_000, {}),
    "no memories": (MemoryInjection(), talk(9), 1_000, {}),
    "no list": (FocusChain(), talk(9), 1_000, {}),
    "no items": (ContextProviders(), talk(9), 1_000, {}),
    "an item of a turn that is not there": (
        make_policy("context_providers", {"items": [PICTURE]}), talk(2), 1_000, {}),
    # Four characters a token.
    "five turns": (LlmSummary(), talk(5, "x" * 6_000), 5_000, {"profile": PROFILE}),
    "no user's turn to begin at": (checkpoint(), loop(20), 10_000, {"profile": PROFILE}),
    "three messages": (
        checkpoint(threshold_tokens=1_000), chat(*[1_000] * 3), 10_000, {"profile": PROFILE}),
    "at the limit": (SummaryKeepLast4(), chat(*[500] * 6), 3_000, {"profile": PROFILE}),
    "what fits": (RollingSummary75(), chat(*[500] * 6), 100_000, {"profile": PROFILE}),
    "a turn that does not fit": (RollingSummary75(), loop(9), 100_000, {"profile": PROFILE}),
    "a turn that is open": (PointerSummary(), loop(9), 10_000, {"profile": PROFILE}),
    "the latest typed turn": (SidecarProjection(), loop(30), 20_000, {"profile": PROFILE}),
}

# The policy, the conversation, the limit, what else the budget says, and where the summary ends.
SUMMARISED: dict[str, tuple[Policy, Talk, int, dict[str, Any], int]] = {
    "two turns stay": (recency(), TURNS, 5_000, {}, 12),
    "two turns stay under a cap": (recency(max_recent_tokens=2_500), TURNS, 5_000, {}, 12),
    "one turn stays under a cap": (recency(max_recent_tokens=1_500), TURNS, 5_000, {}, 16),
    "the latest turn stays whatever the cap": (recency(max_recent_tokens=10), TURNS, 5_000, {}, 16),
    "the latest turn stays where none is kept": (recency(keep_turns=0), TURNS, 5_000, {}, 16),
    "a fifth of the threshold stays": (
        UnionPreserveCompress(), chat(3_000, 3_000, 600, 600, 600, 300), 10_000, {}, 3),
    "the first message goes at least": (
        UnionPreserveCompress(keep_ratio=0.99), chat(9_000, 100, 100), 10_000, {}, 1),
    "four messages stay": (
        SummaryKeepLast4(), chat(2_000, 2_000, 200, 200, 200, 200, 200), 4_000, {}, 3),
    "a fifth of the messages stays": (checkpoint(), chat(*[1_000] * 20), 15_000, {}, 16),
    "0 % keep a turn": (
        checkpoint(retain_percent=0), chat(*[1_000] * 20), 15_000, {}, 18),
    "10 % keep a turn": (
        checkpoint(retain_percent=10), chat(*[1_000] * 20), 15_000, {}, 18),
    "half of the messages stays": (
        checkpoint(retain_percent=50), chat(*[1_000] * 20), 15_000, {}, 10),
    "no more than half of the messages stays": (
        checkpoint(retain_percent=99), chat(*[1_000] * 20), 15_000, {}, 10),
    # 20 messages, 4 of them kept: the turn before has 16 as its end; of 6 kept, 14 is inside it.
    "a place inside a tool turn moves to its beginning": (
        checkpoint(retain_percent=30), TURNS, 4_500, {}, 12),
    # By count 12 messages would stay; 5,000 less the summary's 1,000 take 4.
    "a place that does not suffice moves on by whole turns": (
        checkpoint(retain_percent=50), chat(*[1_000] * 24), 5_000, {}, 20),
    "who asks for a checkpoint keeps the last turn": (
        checkpoint(), chat(*[1_000] * 24), 90_000, {"trigger": "asked"}, 22),
    "the last turn stays where nothing suffices": (
        checkpoint(retain_percent=50), chat(*[1_000] * 23, 9_000), 5_000, {}, 22),
    "the newest words stay": (AutoCompactThreshold(), chat(*[1_000] * 9), 10_000, {}, 8),
    "eight messages stay": (AppendOnlyProjection(), chat(*[1_000] * 20), 20_000, {}, 12),
    "who asks for a projection keeps two": (
        AppendOnlyProjection(), chat(*[1_000] * 20), 20_000, {"trigger": "asked"}, 18),
    "a newest message that is large stays": (
        PointerSummary(), chat(1_000, 1_000, 5_000), 8_000, {}, 2),
    "a user's message stays where nothing fits": (
        RollingSummary75(), chat(500, 500, 500, 500, 5_000), 100_000, {}, 4),
    "twenty thousand tokens stay": (SidecarProjection(), chat(*[1_000] * 61), 60_000, {}, 41),
    "the target stays if that is less": (SidecarProjection(), chat(*[1_000] * 61), 10_000, {}, 56),
}

# The policy, the conversation, the limit, what else the budget says, and what is shown.
SHOWN: dict[str, tuple[Policy, Talk, int, dict[str, Any], list[int]]] = {
    # Four would fit, but a context does not begin with an answer.
    "the newest that fit from a request on": (ReverseBudget(), FIVE, 152, {}, [2, 3, 4]),
    "three that just fit": (ReverseBudget(), FIVE, 63, {}, [2, 3, 4]),
    "one where three do not fit": (ReverseBudget(), FIVE, 62, {}, [4]),
    # 150 of messages, 15 of something else.
    "what else is used is charged": (ReverseBudget(), FIVE, 78, {"used": 165}, [2, 3, 4]),
    "what else is used leaves one": (ReverseBudget(), FIVE, 77, {"used": 165}, [4]),
    "a newest request that alone is too large": (
        ReverseBudget(), plain(10, 10, 500), 100, {}, [2]),
    "the last three": (LastNMessages(n=3), NINE, 1_000, {}, [6, 7, 8]),
    "the last four, back to their request": (LastNMessages(n=4), NINE, 1_000, {}, [4, 5, 6, 7, 8]),
    "n is 0": (LastNMessages(n=0), NINE, 1_000, {}, [8]),
    "n is negative": (LastNMessages(n=-5), NINE, 1_000, {}, [8]),
    "n is 0 in a tool loop": (LastNMessages(n=0), second_turn(3), 1_000, {}, [2, 7, 8]),
    "n is negative in a tool loop": (LastNMessages(n=-5), second_turn(3), 1_000, {}, [2, 7, 8]),
    "one with its call": (LastNMessages(n=1), second_turn(3), 1_000, {}, [2, 7, 8]),
    "two with their calls": (LastNMessages(n=3), second_turn(3), 1_000, {}, [2, 5, 6, 7, 8]),
    "at most four messages": (AgeCountToken(max_messages=4), AGED, ANY, {}, [6, 7, 8]),
    "at most 300 tokens": (AgeCountToken(max_tokens=300), AGED, ANY, {}, [6, 7, 8]),
    "at most 300 tokens with the frame": (
        AgeCountToken(max_tokens=300), AGED, ANY, {"frame_tokens": 1}, [8]),
    "the newest whatever the limits": (
        AgeCountToken(max_age_h=1, max_messages=1, max_tokens=1), plain(*[404] * 3), ANY, {}, [2]),
    "the last sequence though it does not fit": (
        KeepLastSequence(), second_turn(3, 5_000), 3_000, {}, [2, 7, 8]),
}
# fmt: on


@pytest.mark.parametrize(("policy", "built", "limit", "fields"), NOTHING.values(), ids=NOTHING)
def test_nothing_is_changed(
    policy: Policy, built: Talk, limit: int, fields: dict[str, Any]
) -> None:
    assert plan_of(policy, built.messages, limit, **fields) is None


@pytest.mark.parametrize(
    ("policy", "built", "limit", "fields", "upto"), SUMMARISED.values(), ids=SUMMARISED
)
def test_a_summary_stands_for_all_before_a_message_and_no_second_is_asked_for(
    policy: Policy, built: Talk, limit: int, fields: dict[str, Any], upto: int
) -> None:
    after = applied(policy, built.messages, limit, **fields)
    assert (after.summary_request.first, after.summary_request.upto) == (0, upto)
    assert (after.summary_request.omitted, after.summary_request.pinned) == ((), None)
    assert visible(None, built.messages, after.view) == list(range(upto, len(built.messages)))
    used = budget_for(built.messages, limit, view=after.view).used_tokens
    # A checkpoint that is not due would go on if it were planned.
    goes_on = isinstance(policy, CheckpointOnFirstKept) and not policy.due(used, limit)
    if not goes_on or fields:
        assert planned(policy, built.messages, limit, after.view, **fields) is None


@pytest.mark.parametrize(
    ("policy", "built", "limit", "fields", "positions"), SHOWN.values(), ids=SHOWN
)
def test_only_the_newest_messages_are_shown(
    policy: Policy, built: Talk, limit: int, fields: dict[str, Any], positions: list[int]
) -> None:
    assert visible(plan_of(policy, built.messages, limit, **fields), built.messages) == positions
