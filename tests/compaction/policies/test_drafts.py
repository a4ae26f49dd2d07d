from __future__ import annotations

from msgspec.structs import replace

from llmsession.compaction.policies.drafts import (
    Draft,
    cut_ranges,
    follows_results,
    live_tail,
    never_left_out,
    summary_cut,
)
from llmsession.compaction.tokens.messages import context_tokens
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected
from tests.compaction.conversations import a_plan, required, result_block, talk
from tests.compaction.policies.plans import PLAIN, budget_for

OPENS = replace(PLAIN, thinking_opens_tool_loop=True)


def drafted(messages: list[Message], view: View | None = None, **fields: object) -> Draft:
    view = view or View()
    return Draft(view, messages, budget_for(messages, 10_000, view, **fields))


def test_a_draft_without_changes_is_no_plan() -> None:
    assert drafted(talk(3).messages).plan("mine", "nothing") is None


def test_what_is_used_is_what_the_plan_comes_to() -> None:
    messages = talk(4).messages
    draft = drafted(messages, used=9_000)
    rest = 9_000 - context_tokens(messages, View(), PLAIN)
    (result,) = messages[2].tool_results
    assert draft.show_result(2, result, "short")
    draft.omit([(4, 8)])
    draft.inject([Injected(8, "a note")], instead_of="a note")
    plan = required(draft.plan("mine", "this and that", one=1, none=0))
    view = View().applied(plan, len(messages))
    assert plan.tokens_after == context_tokens(messages, view, PLAIN)
    # A note is estimated as a message of its own.
    assert draft.used == rest + plan.tokens_after + 4
    assert plan.figures == {"one": 1}
    assert plan.compacted_before == 3
    assert plan.reason == "9,000 of 10,000 tokens used; this and that"
    assert plan.turns_compacted == 2


def test_nothing_grows_and_what_was_decided_stays() -> None:
    messages = talk(2).messages
    (first,), (second,) = messages[2].tool_results, messages[6].tool_results
    draft = drafted(messages, View(compacted_before=3, shown_results={"c1": "decided"}))
    assert not draft.show_result(2, first, "x")
    assert not draft.show_result(6, second, "x" * 1_000)
    assert draft.show_result(6, second, "x" * 900)
    assert draft.show_result(6, second, "x" * 100)
    assert not draft.show_result(6, second, "x" * 500)
    assert not draft.shorten(0, 0, "go on and on")


def test_a_fork_changes_nothing_of_what_it_was_made_from() -> None:
    messages = talk(2).messages
    draft = drafted(messages)
    other = draft.fork()
    (result,) = messages[2].tool_results
    other.show_result(2, result, "x")
    other.omit([(4, 8)])
    assert draft.plan("mine", "nothing") is None
    assert draft.used == drafted(messages).used


def test_the_plan_of_another_policy_is_taken_over() -> None:
    messages = talk(3).messages
    draft = drafted(messages)
    other = a_plan(
        policy="other", compacted_before=3, shown_results={"c1": "short"}, omitted=((4, 8),),
        injected=(Injected(-1, "known"),),
    )  # fmt: skip
    draft.absorb(other)
    plan = required(draft.plan("mine", "both"))
    assert (plan.policy, plan.shown_results, plan.omitted) == (
        "mine",
        other.shown_results,
        other.omitted,
    )
    assert plan.injected == other.injected
    assert draft.used == context_tokens(messages, View().applied(plan, 12), PLAIN)


def test_what_is_injected_takes_the_place_of_its_own_kind_only() -> None:
    messages = talk(1).messages
    view = View(injected=(Injected(-1, "mine: a"), Injected(0, "other")))
    draft = drafted(messages, view)
    draft.inject([Injected(2, "mine: b")], instead_of="mine:")
    assert draft.shown.injected == (Injected(0, "other"), Injected(2, "mine: b"))
    draft.inject([Injected(-1, "mine: a")], instead_of="mine:")
    assert draft.plan("mine", "as before") is None


def test_the_live_tail_is_the_last_message_and_the_calls_that_it_answers() -> None:
    built = talk(2)
    assert live_tail(built.messages) == 7
    built.ask()
    assert live_tail(built.messages) == 8
    built.step("x")
    assert live_tail(built.messages) == 9
    # Recorded results may stand one by one.
    built.add("user", [result_block("c3", "x")])
    assert live_tail(built.messages) == 9
    assert live_tail([]) == 0


def test_the_newest_request_and_a_word_among_results_with_its_calls_are_never_left_out() -> None:
    built = talk(2).ask().step("x", word="wait").step("x").step("x")
    assert never_left_out(built.messages) == {8, 9, 10, 13, 14}


def test_ranges_split_no_call_from_its_results_and_go_around_what_is_kept() -> None:
    built = talk(4)  # four messages a turn: a request, a call, its result, an answer
    draft = drafted(built.messages)
    assert cut_ranges(draft, 0, 12, {4}) == ((0, 4), (5, 12))
    assert cut_ranges(draft, 2, 10, ()) == ((3, 9),)
    assert cut_ranges(draft, 2, 3, ()) == ()


def test_where_thinking_opens_a_tool_loop_nothing_follows_on_results() -> None:
    draft = drafted(talk(4).messages, profile=OPENS)
    assert cut_ranges(draft, 3, 8, ()) == ((4, 8),)
    # Nor where another request stands between them: a turn that ended with its results.
    built = talk(1).ask().step("x").ask().reply().ask()
    kept = {5, 6, 7, 9}
    assert cut_ranges(drafted(built.messages), 0, 10, kept) == ((0, 5), (8, 9))
    opens = drafted(built.messages, profile=OPENS)
    assert cut_ranges(opens, 0, 10, kept) == ((0, 5),)
    assert cut_ranges(opens, 0, 10, {7, 9}) == ((0, 7), (8, 9))  # the results are left out, too
    assert follows_results(opens.shown_before(8))
    assert not follows_results(opens.shown_before(8, {5, 6}))


def test_a_summary_ends_before_the_newest_request_and_there_with_an_answer() -> None:
    built = talk(3).ask()
    assert summary_cut(drafted(built.messages), 7) == 7
    assert summary_cut(drafted(built.messages), 6) == 5
    assert summary_cut(drafted(built.messages), 99) == 12
    assert summary_cut(drafted(built.messages, profile=OPENS, committed=12), 7) == 4


def test_a_summary_is_wanted_of_half_of_what_it_stands_for_where_that_is_enough() -> None:
    messages = talk(2).messages
    for limit, room in ((10_000, None), (300, 300)):
        draft = drafted(messages)
        source = sum(draft.sizes[:4])
        before = draft.used
        assert draft.condense(4, limit)
        assert draft.summary_request is not None
        assert draft.summary_request.max_tokens == (source // 2 if room is None else room)
        assert draft.used == before - source + draft.summary_request.max_tokens
        assert draft.start == 4
    assert not draft.condense(4, 10_000)  # nothing stands before it any more
    assert not drafted(messages).condense(2, 10_000)  # two short messages


def test_what_is_said_once_more_behind_a_summary_is_counted() -> None:
    messages = talk(2).messages
    without, draft = drafted(messages), drafted(messages)
    without.want(4, 300)
    draft.want(4, 300, pinned=Injected(4, "go on"))
    assert required(draft.summary_request).pinned == Injected(4, "go on")
    assert draft.used == without.used + len("go on")
