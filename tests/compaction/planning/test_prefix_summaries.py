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
from tests.compaction.conversations import Talk, a_plan, image, required, talk

PROFILE = Profile()


def budget() -> Budget:
    return Budget(used_tokens=0, limit_tokens=0, profile=PROFILE, committed=0)


def filled(
    messages: list[Message],
    prefix_summary: PrefixSummary | None,
    view: View | None = None,
    *,
    upto: int = 4,
    together: tuple[tuple[int, int], ...] = (),
    fallback: str = "",
    appendix: str = "",
    pinned: Injected | None = None,
    **of_plan: Any,
) -> Plan | None:
    summary_request = SummaryRequest(
        first=0, upto=upto, max_tokens=500, omitted=together, fallback=fallback,
        appendix=appendix, pinned=pinned,
    )  # fmt: skip
    plan = a_plan(summary_request=summary_request, **of_plan)
    return with_summary(plan, prefix_summary, view or View(), messages, budget())


def told(text: str, upto: int = 4) -> PrefixSummary:
    return PrefixSummary(upto, introduced(text), "model")


def test_a_plan_that_wants_none_is_left_as_it_is() -> None:
    plan = a_plan(tokens_before=9, tokens_after=8)
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
    edits: dict[str, Any] = {
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


# Offered beside it: fallbacks, appendices, pins.


def test_a_fallback_stands_where_no_summary_is_any_good() -> None:
    built = talk(3).messages
    stands = PrefixSummary(4, introduced("12 messages"), "extractive")
    for prefix_summary in (None, PrefixSummary(4, ""), told("longer " * 1_000)):
        plan = required(filled(built, prefix_summary, fallback="12 messages"))
        assert plan.prefix_summary == stands
    better = required(filled(built, told("better"), fallback="12 messages"))
    assert better.prefix_summary == told("better")
    assert filled(built, None, fallback="longer " * 1_000) is None


def test_an_appendix_stands_behind_the_summary_whoever_wrote_it() -> None:
    built = talk(3).messages
    for prefix_summary, fallback, text in ((told("it"), "", "it"), (None, "rules", "rules")):
        plan = required(
            filled(built, prefix_summary, fallback=fallback, appendix="## Failures\n- none")
        )
        assert plan.prefix_summary is not None
        assert plan.prefix_summary.text == introduced(text) + "\n\n## Failures\n- none"
    assert filled(built, told("it"), appendix="longer " * 1_000) is None
    assert filled(built, None, appendix="## Failures\n- none") is None


def test_a_providers_own_summary_gets_no_appendix_and_no_pin() -> None:
    plan = required(filled(talk(3).messages, OWN, appendix="more", pinned=Injected(4, "go")))
    assert (plan.prefix_summary, plan.injected) == (OWN, None)


def test_what_goes_together_with_a_summary_stays_without_it() -> None:
    built = talk(3).messages
    assert required(filled(built, told("it"), together=((4, 8),))).omitted == ((4, 8),)
    assert filled(built, None, together=((4, 8),)) is None


# Pins.


def loop() -> list[Message]:
    return Talk().ask("look at it").step("x" * 3_000, times=4).messages


def test_a_pin_is_injected_with_the_summary_or_not_at_all() -> None:
    messages, pin = loop(), Injected(5, "look at it")
    plan = required(filled(messages, told("it", 5), upto=5, pinned=pin))
    assert plan.injected == (pin,)
    assert plan.tokens_after == budget().size(messages, View().applied(plan, len(messages)))
    assert filled(messages, None, upto=5, pinned=pin) is None
    assert required(filled(messages, None, upto=5, pinned=pin, omitted=((5, 7),))).injected is None


def test_a_pin_counts_as_a_part_of_the_summary() -> None:
    long = Injected(5, "look at it " * 2_000)
    assert filled(loop(), told("it", 5), upto=5, pinned=long) is None


def pinned_view(*others: Injected) -> View:
    return View(prefix_summaries=(told("it", 5),), injected=(Injected(-1, "be kind"), *others))


def test_an_earlier_pin_goes_with_the_earlier_summary_and_what_others_injected_stays() -> None:
    messages = loop()
    built = Talk()
    built.messages, built.turn, built.calls = messages, 1, 4
    built.reply().ask("another")
    note = Injected(3, "a notice of another stage")
    view = pinned_view(Injected(5, "look at it"), note)
    plan = required(filled(built.messages, told("both", 10), view, upto=10))
    assert plan.injected == (Injected(-1, "be kind"), note)


def test_what_is_still_the_newest_request_is_said_on_behind_a_further_summary() -> None:
    view = pinned_view(Injected(5, "look at it"))
    plan = required(filled(loop(), told("more of it", 7), view, upto=7))
    assert plan.injected == (Injected(-1, "be kind"), Injected(7, "look at it"))


def test_without_pins_injected_texts_are_left_as_they_are() -> None:
    assert required(filled(loop(), told("more of it", 7), pinned_view(), upto=7)).injected is None
