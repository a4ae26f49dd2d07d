from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.records import Injected, PrefixSummary
from tests.compaction.conversations import a_plan


def plan(compacted_before: int, shown_results: dict[str, str], **fields: Any) -> Plan:
    return a_plan(compacted_before=compacted_before, shown_results=shown_results, **fields)


def test_a_plan_raises_version_and_compacted_before_and_adds_its_texts() -> None:
    view = View(version=3, compacted_before=2, shown_results={"a": "A"}).applied(
        plan(5, {"b": "B"}), 9
    )
    assert view == View(
        version=4, compacted_before=5, shown_results={"a": "A", "b": "B"}, thinking_from=9
    )


def test_a_shown_result_never_changes() -> None:
    view = View(shown_results={"a": "old"}).applied(plan(5, {"a": "new"}), 9)
    assert view.shown_results == {"a": "old"}


def test_compacted_before_never_goes_back() -> None:
    assert View(compacted_before=7).applied(plan(5, {}), 9).compacted_before == 7


def test_an_edit_leaves_out_all_thinking_made_before_it() -> None:
    assert View(thinking_from=4).applied(plan(5, {"a": "A"}), 9).thinking_from == 9


def test_thinking_that_was_left_out_does_not_come_back() -> None:
    assert View(thinking_from=12).applied(plan(5, {"a": "A"}), 9).thinking_from == 12


def test_a_plan_that_edits_nothing_keeps_the_thinking() -> None:
    view = View(thinking_from=4, shown_results={"a": "A"})
    assert view.applied(plan(5, {}), 9).thinking_from == 4
    assert view.applied(plan(5, {"a": "again"}), 9).thinking_from == 4


def test_an_edit_keeps_thinking_that_is_not_bound() -> None:
    assert View().applied(plan(5, {"a": "A"}, voids_thinking=False), 9).thinking_from == 0


def test_applying_changes_neither_the_view_nor_the_plan() -> None:
    view = View(shown_results={"a": "A"})
    applied = plan(5, {"b": "B"})
    view.applied(applied, 9)
    assert view.shown_results == {"a": "A"}
    assert applied.shown_results == {"b": "B"}


def prefix_summary(upto: int, text: str, by: Any = "extractive") -> Plan:
    return a_plan(prefix_summary=PrefixSummary(upto, text, by))


def test_a_prefix_summary_is_only_followed_by_a_longer_one() -> None:
    view = View().applied(prefix_summary(4, "one"), 8)
    for other in (
        prefix_summary(3, "shorter"),
        prefix_summary(4, "as long"),
        prefix_summary(3, "told", "caller"),
    ):
        assert view.applied(other, 8).prefix_summaries == view.prefix_summaries
    assert [each.text for each in view.applied(prefix_summary(6, "two"), 8).prefix_summaries] == [
        "one",
        "two",
    ]


def test_the_callers_summary_takes_the_place_of_one_of_the_same_length() -> None:
    view = View().applied(prefix_summary(2, "zero"), 8).applied(prefix_summary(4, "one"), 8)
    told = view.applied(prefix_summary(4, "told", "caller"), 8)
    assert [each.text for each in told.prefix_summaries] == ["zero", "told"]


def test_a_cap_is_added_beside_the_others_and_leaves_the_version() -> None:
    view = View(version=2, capped={"a": "A"})
    assert view.with_cap("b", "B") == View(version=2, capped={"a": "A", "b": "B"})
    assert view.capped == {"a": "A"}


def test_the_first_cap_of_a_call_stays() -> None:
    view = View(capped={"a": "A"})
    assert view.with_cap("a", "other") is view


def test_a_view_is_clamped_to_the_messages_that_are_left() -> None:
    view = View(version=1, compacted_before=8, thinking_from=10, shown_results={"a": "A"}).clamped(
        6
    )
    assert view == View(version=2, compacted_before=6, thinking_from=6, shown_results={"a": "A"})


def test_clamping_to_a_longer_history_changes_nothing() -> None:
    view = View(compacted_before=8, thinking_from=10)
    assert view.clamped(10) is view


def test_a_new_model_voids_all_thinking_so_far() -> None:
    view = View(version=1, compacted_before=3, thinking_from=2).voided(9)
    assert view == View(version=2, compacted_before=3, thinking_from=9)
    assert view.voided(9) is view


def test_a_compact_text_shows_before_compacted_before_and_the_cap_after_it() -> None:
    view = View(
        compacted_before=4,
        shown_results={"a": "shown_results"},
        capped={"a": "capped", "b": "only capped"},
    )
    assert view.text_for("a", 3) == "shown_results"
    assert view.text_for("a", 4) == "capped"
    assert view.text_for("b", 3) == "only capped"
    assert view.text_for("c", 3) is None


_plans = st.lists(
    st.builds(
        plan,
        st.integers(0, 20),
        st.dictionaries(st.sampled_from("abcd"), st.text(max_size=2), max_size=3),
    ),
    max_size=6,
)


@settings(derandomize=True, max_examples=60)
@given(_plans)
def test_whatever_plans_come_a_view_only_grows(plans: list[Plan]) -> None:
    view = View()
    for at, coming in enumerate(plans):
        after = view.applied(coming, 20 + at)
        assert after.compacted_before >= view.compacted_before
        assert after.thinking_from >= view.thinking_from
        assert {
            call: after.shown_results[call] for call in view.shown_results
        } == view.shown_results
        assert set(after.shown_results) == set(view.shown_results) | set(coming.shown_results)
        view = after


# Prefix summaries, ranges, inputs and texts


FIRST, SECOND = PrefixSummary(4, "the first four"), PrefixSummary(8, "the first eight")


def test_a_rewind_into_a_prefix_summary_shows_the_one_before_it() -> None:
    view = View(prefix_summaries=(FIRST, SECOND), thinking_from=10)
    cut = view.clamped(7)
    assert cut.prefix_summary == FIRST
    assert (cut.start, cut.thinking_from, cut.version) == (4, 7, 1)
    assert cut.clamped(3).prefix_summary is None
    assert view.clamped(8).prefix_summary == SECOND


def test_forgetting_drops_every_prefix_summary_and_what_belonged_to_its_calls() -> None:
    view = View(
        version=3,
        compacted_before=9,
        shown_results={"a": "A", "b": "B"},
        capped={"a": "A"},
        inputs={"a": msgspec.Raw(b"1"), "b": msgspec.Raw(b"2")},
        texts={"s/u1.0#0": "t"},
        prefix_summaries=(FIRST, SECOND),
        omitted=((1, 3), (3, 9)),
    )
    left = view.without_head(5, 7, {"a"})
    assert left == View(
        version=4,
        compacted_before=4,
        shown_results={"b": "B"},
        inputs={"b": msgspec.Raw(b"2")},
        omitted=((0, 4),),
        thinking_from=7,
    )


def test_ranges_are_joined_where_they_touch_or_overlap() -> None:
    view = View(omitted=((2, 4), (10, 12)))
    after = view.applied(a_plan(omitted=((4, 6), (11, 15), (20, 20))), 30)
    assert after.omitted == ((2, 6), (10, 15))
    assert [at for at in range(18) if not after.shows(at)] == [*range(2, 6), *range(10, 15)]
    assert after.clamped(16).omitted == ((2, 6), (10, 15))
    assert after.clamped(15).omitted == after.clamped(12).omitted == ((2, 6),)
    assert after.clamped(10).omitted == ((2, 6),)


def test_shortened_inputs_and_texts_never_change() -> None:
    view = View(inputs={"a": msgspec.Raw(b"1")}, texts={"x#0": "old"})
    coming = a_plan(inputs={"a": msgspec.Raw(b"2"), "b": msgspec.Raw(b"3")}, texts={"x#0": "new"})
    after = view.applied(coming, 9)
    assert after.inputs == {"a": msgspec.Raw(b"1"), "b": msgspec.Raw(b"3")}
    assert after.texts == {"x#0": "old"}


def test_every_kind_of_edit_leaves_out_the_thinking_that_was_bound_to_it() -> None:
    edits: list[dict[str, Any]] = [
        {"inputs": {"a": msgspec.Raw(b"1")}},
        {"texts": {"x#0": "t"}},
        {"prefix_summary": FIRST},
        {"omitted": ((1, 2),)},
        {"injected": (Injected(3, "note"),)},
    ]
    for edit in edits:
        assert View().applied(a_plan(**edit), 9).thinking_from == 9
        free = a_plan(**edit, voids_thinking=False)
        assert View().applied(free, 9).thinking_from == 0
    assert View().applied(a_plan(drops_thinking=True, voids_thinking=False), 9).thinking_from == 9


def test_what_is_injected_is_replaced_as_a_whole() -> None:
    view = View(injected=(Injected(3, "old"),))
    assert view.applied(a_plan(), 9).injected == (Injected(3, "old"),)
    assert view.applied(a_plan(injected=()), 9).injected == ()
    assert view.clamped(2).injected == ()
