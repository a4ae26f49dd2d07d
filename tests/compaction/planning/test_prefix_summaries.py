from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.planning.prefix_summaries import extracted_summary, with_summary
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, PrefixSummary
from llmsession.turns.request import Profile
from tests.compaction.conversations import Talk, image, required, talk

PROFILE = Profile()


def budget() -> Budget:
    return Budget(used_tokens=0, limit_tokens=0, profile=PROFILE, committed=0)


def filled(
    messages: list[Message], prefix_summary: PrefixSummary | None, **of_plan: Any
) -> Plan | None:
    summary_request = SummaryRequest(first=0, upto=4, max_tokens=500)
    sizes = {"tokens_before": 0, "tokens_after": 0}
    plan = Plan(
        **{
            "policy": "p",
            "compacted_before": 0,
            "reason": "",
            **sizes,
            "summary_request": summary_request,
            **of_plan,
        }
    )
    return with_summary(plan, prefix_summary, View(), messages, budget())


def told(text: str) -> PrefixSummary:
    return PrefixSummary(4, introduced(text), "model")


def test_a_plan_that_wants_none_is_left_as_it_is() -> None:
    plan = Plan(policy="p", compacted_before=0, reason="", tokens_before=9, tokens_after=8)
    assert with_summary(plan, told("what was said"), View(), talk(3).messages, budget()) is plan


def test_a_summary_stands_in_the_plan_and_its_sizes_are_counted() -> None:
    built = talk(3).messages
    plan = required(filled(built, told("what was said")))
    assert (plan.prefix_summary, plan.summary_request) == (told("what was said"), None)
    assert plan.tokens_before == budget().size(built, View())
    assert plan.tokens_after == budget().size(built, View().applied(plan, len(built)))


@pytest.mark.parametrize("prefix_summary", [None, PrefixSummary(4, " \n"), told("longer " * 1_000)])
def test_no_summary_and_one_that_is_no_shorter_change_nothing(
    prefix_summary: PrefixSummary | None,
) -> None:
    assert filled(talk(3).messages, prefix_summary) is None


def test_what_a_plan_leaves_out_besides_is_left_out_without_a_summary_too() -> None:
    plan = required(filled(talk(3).messages, None, omitted=((4, 8),)))
    assert (plan.prefix_summary, plan.summary_request, plan.omitted) == (None, None, ((4, 8),))


OWN = PrefixSummary(4, "text", "provider", msgspec.Raw(b'{"type":"compaction"}'))


def test_behind_a_providers_own_summary_nothing_is_edited() -> None:
    built = talk(3).messages
    edits = {
        "compacted_before": 11, "shown_results": {"c3": "short"}, "omitted": ((8, 9),),
        "injected": (Injected(5, "note"),), "texts": {"s/a2.3#0": "s"},
    }  # fmt: skip
    plan = required(filled(built, OWN, **edits))
    assert (plan.compacted_before, plan.shown_results, plan.texts, plan.omitted) == (4, {}, {}, ())
    assert (plan.prefix_summary, plan.injected) == (OWN, None)
    by_rules = required(filled(built, told("it"), **edits))
    assert (by_rules.compacted_before, by_rules.shown_results) == (11, {"c3": "short"})


def test_thinking_behind_a_providers_own_summary_stays_unless_two_messages_become_one() -> None:
    built = talk(3)
    assert not required(filled(built.messages, OWN)).voids_thinking
    built.messages[4:4] = [built.messages[3]]
    assert required(filled(built.messages, OWN)).voids_thinking


# Extracted by rules.


def test_a_summary_by_rules_has_its_title_and_its_room() -> None:
    built = talk(40)
    summary_request = SummaryRequest(first=0, upto=120, max_tokens=300)
    prefix_summary = required(extracted_summary(summary_request, built.messages, PROFILE))
    assert prefix_summary.text.startswith(introduced("").strip())
    assert budget().size((), View(prefix_summaries=(prefix_summary,))) <= 304
    assert prefix_summary == extracted_summary(summary_request, built.messages, PROFILE)


def test_of_nothing_there_is_no_summary_and_images_alone_are_counted() -> None:
    built = Talk()
    built.turn = 1
    built.add("user", [image()])
    assert (
        extracted_summary(SummaryRequest(first=1, upto=1, max_tokens=9), built.messages, PROFILE)
        is None
    )
    prefix_summary = required(
        extracted_summary(SummaryRequest(first=0, upto=1, max_tokens=99), built.messages, PROFILE)
    )
    assert prefix_summary.text == introduced("1 message without words.")
