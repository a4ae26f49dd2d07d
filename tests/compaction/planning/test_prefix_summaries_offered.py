from __future__ import annotations

from typing import Any

import msgspec

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.planning.prefix_summaries import with_summary
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, PrefixSummary
from llmsession.turns.request import Profile
from tests.compaction.conversations import Talk, required, talk

PROFILE = Profile()


def budget(**fields: Any) -> Budget:
    return Budget(used_tokens=0, limit_tokens=0, profile=PROFILE, committed=0, **fields)


def filled(
    messages: list[Message],
    prefix_summary: PrefixSummary | None,
    view: View | None = None,
    **fields: Any,
) -> Plan | None:
    of_plan = {name: fields.pop(name) for name in ("omitted", "injected") if name in fields}
    fields["omitted"] = fields.pop("together", ())
    summary_request = SummaryRequest(first=0, upto=fields.pop("upto", 4), max_tokens=500, **fields)
    plan = Plan(
        policy="p",
        compacted_before=0,
        reason="",
        tokens_before=0,
        tokens_after=0,
        summary_request=summary_request,
        **of_plan,
    )
    return with_summary(plan, prefix_summary, view or View(), messages, budget())


def told(text: str, upto: int = 4) -> PrefixSummary:
    return PrefixSummary(upto, introduced(text), "model")


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
    own = PrefixSummary(4, "text", "provider", msgspec.Raw(b'{"type":"compaction"}'))
    plan = required(filled(talk(3).messages, own, appendix="more", pinned=Injected(4, "go")))
    assert (plan.prefix_summary, plan.injected) == (own, None)


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
