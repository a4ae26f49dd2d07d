from __future__ import annotations

from itertools import pairwise

from llmsession.compaction.policies import (
    AppendOnlyProjection,
    AutoCompactThreshold,
    CheckpointOnFirstKept,
)
from llmsession.compaction.policies.other_systems.anchors import (
    OMISSION_NOTE,
    keep_recent_messages,
    tail_start,
)
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.testing.checker.requests import extends
from llmsession.turns.records import Injected, PrefixSummary
from tests.compaction.conversations import FRAME, Talk, required, sent
from tests.compaction.policies.summaries import (
    PROFILE,
    applied,
    budget_for,
    chat,
    left_without_summary,
    loop,
    planned,
)

# checkpoint_on_first_kept.


def test_four_messages_are_enough_for_a_checkpoint() -> None:
    policy = CheckpointOnFirstKept(threshold_tokens=1_000)
    assert planned(policy, chat(1_000, 1_000, 1_000, 9).messages, 10_000) is not None


def test_what_a_checkpoint_leaves_is_not_due_again() -> None:
    built = chat(*[1_000] * 24)
    after = applied(CheckpointOnFirstKept(retain_percent=50), built.messages, 5_000)
    assert after.summary_request.max_tokens == 1_000
    used = budget_for(built.messages, 0, view=after.view).used_tokens
    assert not CheckpointOnFirstKept().due(used, 5_000)


def test_a_branch_without_the_place_shows_everything_and_so_does_taking_it_away() -> None:
    built = chat(*[1_000] * 20)
    view = applied(CheckpointOnFirstKept(), built.messages, 15_000).view
    whole = project(built.messages[:14], View(), PROFILE, FRAME)
    assert project(built.messages[:14], view.clamped(14), PROFILE, FRAME) == whole
    assert view.clamped(18).start == 16


# auto_compact_threshold.


def test_in_a_long_turn_the_newest_step_stays_and_the_request_is_said_once_more() -> None:
    built = loop(9)
    after = applied(AutoCompactThreshold(), built.messages, 10_000)
    assert after.summary_request.upto == 17
    assert after.view.injected == (Injected(17, "look at all of it"),)
    assert planned(AutoCompactThreshold(), built.messages, 10_000, after.view) is None


# append_only_projection.


def steps(*kinds: str) -> Talk:
    """Messages by their kind: u(ser), c(all), r(esult), a(nswer)."""
    built = Talk()
    for kind in kinds:
        if kind == "u":
            built.ask()
        elif kind == "c":
            built.step("said")
        elif kind == "a":
            built.reply()
    return built


def test_a_tail_begins_behind_results_or_with_the_calls_they_answer() -> None:
    built = steps("u", "c", "c", "a")  # u c r c r a
    assert [tail_start(built.messages, at) for at in range(-1, 8)] == [
        0, 0, 1, 3, 3, 5, 5, 6, 6,
    ]  # fmt: skip
    open_turn = steps("u", "c", "c")  # u c r c r
    assert tail_start(open_turn.messages, 4) == 3


def test_eight_messages_are_kept_and_less_than_two_are_not_worth_it() -> None:
    built = steps(*"uauauauaua")
    assert keep_recent_messages(built.messages) == 2
    assert keep_recent_messages(built.messages, 2) == 8
    assert keep_recent_messages(built.messages[:9]) is None
    assert keep_recent_messages(built.messages[:8]) is None
    assert keep_recent_messages(built.messages, 8, start=1) is None
    assert keep_recent_messages((), 0) is None


def test_the_request_of_a_long_turn_is_covered_and_said_once_more() -> None:
    built = loop(9)
    after = applied(AppendOnlyProjection(), built.messages, 10_000)
    assert after.summary_request.upto == 11
    shown = sent(project(built.messages, after.view, PROFILE, FRAME))
    assert shown[0][1]["text"] == "look at all of it"


def test_the_projection_is_the_same_bytes_until_the_next_compaction() -> None:
    built = chat(*[1_000] * 13)
    view = applied(AppendOnlyProjection(), built.messages, 14_000).view
    requests = [project(built.messages, view, PROFILE, FRAME)]
    for _ in range(3):
        built.reply("an answer").ask("a word").step("a result")
        requests.append(project(built.messages, view, PROFILE, FRAME))
    assert all(extends(before, now) for before, now in pairwise(requests))
    again = applied(AppendOnlyProjection(), built.messages, 14_000, view).view
    assert not extends(requests[-1], project(built.messages, again, PROFILE, FRAME))


def test_a_failure_leaves_a_note_only_where_that_is_wanted() -> None:
    built = chat(*[1_000] * 20)
    assert left_without_summary(AppendOnlyProjection(), built.messages, 20_000) is None
    noting = AppendOnlyProjection(notes_omission=True)
    left = required(left_without_summary(noting, built.messages, 20_000))
    assert left.prefix_summary == PrefixSummary(12, introduced(OMISSION_NOTE))
