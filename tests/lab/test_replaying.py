"""A policy, driven over a conversation: what is sent, when it is rewritten, what is recalled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import pytest

from llmsession.compaction.planning.policy import Budget, measured
from llmsession.compaction.policies import Balanced, FullHistory
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.view import View
from llmsession.lab.recording import window_of
from llmsession.lab.replaying import Replayed, replay
from llmsession.turns.messages import Message
from tests.compaction.conversations import a_plan
from tests.lab.recorded import Recorded, call, result
from tests.lab.talks import long_talk, needs_of, with_times

AT_ONCE = {"kept_before_tokens": 1 << 30}
"""A rewrite that costs nothing: the scheduler never waits with it."""


class Cuts(msgspec.Struct, frozen=True):
    """Swaps all results but the newest for a note, once more than a share of the limit is used."""

    name: ClassVar[str] = "cuts"
    percent: int = 50
    note: str = 'gone; recall(id="{}")'
    figures: dict[str, int] = {}

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return used_tokens * 100 > limit_tokens * self.percent

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        old = messages[:-2]
        shown_results = {
            each.tool_use_id: self.note.format(each.tool_use_id)
            for message in old
            for each in message.tool_results
            if each.tool_use_id not in view.shown_results
        }
        if not shown_results:
            return None
        plan = a_plan(
            policy="cuts", compacted_before=len(old), shown_results=shown_results,
            figures=self.figures,
        )  # fmt: skip
        return measured(plan, view, messages, budget)

    def harder(self) -> tuple[Cuts, ...]:
        return ()


class Sums(msgspec.Struct, frozen=True):
    """Wants a summary of all but the newest step, past half of the limit."""

    name: ClassVar[str] = "sums"

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return used_tokens * 2 > limit_tokens

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        upto = len(messages) - 2
        if upto <= view.start:
            return None
        summary_request = SummaryRequest(first=view.start, upto=upto, max_tokens=500)
        before = view.compacted_before
        plan = a_plan(policy="sums", compacted_before=before, summary_request=summary_request)
        return measured(plan, view, messages, budget)


def lived(talk: Recorded, policy: object, window: int, **options: object) -> Replayed:
    recording, needs = needs_of(talk.done())
    return replay(recording, window_of(recording, window), policy, needs, **options)  # type: ignore[arg-type]


def test_without_a_rewrite_each_request_reads_the_one_before_and_writes_what_is_new() -> None:
    talk = Recorded("claude-opus-4-6").ask("hello").reply([call("c1")], None)
    talk.answer(result("c1", "some words " * 50)).reply("done", None)
    found = lived(talk, FullHistory(), 200_000)
    first, second = (step.tokens for step in found.steps)
    assert found.requests == 2
    assert first < second
    # The frame and the first message are read again; all else is written once.
    assert found.spent.read_tokens == first
    assert found.spent.written_tokens == second
    assert found.spent.cost == first * 100 + second * 1_250
    assert found.peak_context == second
    assert (found.rewrites, found.invalid_requests, found.too_large) == (0, 0, 0)


def test_a_cache_that_went_cold_between_two_requests_is_written_again() -> None:
    talk = Recorded("claude-opus-4-6").ask().reply([call("c1")], None)
    talk.answer(result("c1")).reply("done", None)
    for gap_s, read in ((299.0, True), (300.0, False)):
        recording, needs = needs_of(with_times(talk, 0.5, 1.0, 1.0 + gap_s, 2.0 + gap_s))
        found = replay(recording, window_of(recording, 200_000), FullHistory(), needs)
        assert bool(found.spent.read_tokens) is read


def test_the_context_stays_in_the_budget_and_every_request_is_valid() -> None:
    found = lived(long_talk(), Balanced(), 16_000)
    assert found.requests == 41
    assert found.rewrites > 0
    assert found.peak_context <= 12_000
    assert (found.invalid_requests, found.too_large) == (0, 0)
    assert sum(step.rewritten for step in found.steps) <= found.rewrites


def test_a_request_that_cannot_be_made_to_fit_is_not_sent_costs_nothing_and_holds_nothing() -> None:
    found = lived(long_talk(), FullHistory(), 16_000)
    sent = [step for step in found.steps if not step.too_large]
    assert 0 < found.too_large == found.requests - len(sent)
    assert found.spent.read_tokens + found.spent.written_tokens == sum(s.tokens for s in sent)
    whole = lived(long_talk(), FullHistory(), 200_000)
    assert found.needs == whole.needs
    assert found.retained < whole.retained == whole.needs


def test_where_a_policy_frees_too_little_a_session_lets_balanced_help_and_that_is_counted() -> None:
    class Lazy(Cuts, frozen=True):
        name: ClassVar[str] = "lazy"

        def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
            return None

        harder = None  # type: ignore[assignment]

    found = lived(long_talk(), Lazy(), 16_000)
    assert found.too_large == 0
    assert 0 < found.rescues == found.rewrites


def test_what_a_policy_raises_where_a_request_does_not_fit_is_raised_though_balanced_helped() -> (
    None
):
    class Faulty(Cuts, frozen=True):
        name: ClassVar[str] = "faulty"

        def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
            if budget.trigger == "window":
                raise ValueError("not like this")
            return None

        harder = None  # type: ignore[assignment]

    with pytest.raises(ValueError, match="not like this"):
        lived(long_talk(), Faulty(), 16_000)


def test_a_plan_is_made_while_a_request_is_answered_and_applied_before_a_later_one() -> None:
    found = lived(long_talk(), Cuts(percent=50), 16_000)
    first = next(at for at, step in enumerate(found.steps) if step.rewritten)
    over = next(at for at, step in enumerate(found.steps) if step.tokens > 6_000)
    assert first > over


def swapped_and_needed(note: str) -> Replayed:
    """The third reply takes a string from a result that was swapped for *note* by then."""
    talk = Recorded("claude-opus-4-6").ask("go").reply([call("c1")], None)
    talk.answer(result("c1", "row_of_result\n" + "some words\n" * 400)).reply([call("c2")], None)
    talk.answer(result("c2", "other words\n" * 400)).reply([call("c3")], None)
    talk.answer(result("c3", "other words\n" * 400)).reply("row_of_result", None)
    recording, needs = needs_of(talk.done())
    assert sum(map(len, needs.by_ask)) == 1
    return replay(
        recording, window_of(recording, 8_000), Cuts(percent=20, note=note, figures=AT_ONCE), needs
    )


def test_what_was_swapped_is_recalled_by_a_request_that_is_charged() -> None:
    found = swapped_and_needed('gone; recall(id="{}")')
    assert (found.needs, found.retained, found.recallable, found.recalls) == (1, 0, 1, 1)
    silent = swapped_and_needed("gone, and that is all; it cannot be got back")
    assert (silent.retained, silent.recallable, silent.recalls, silent.recall_cost) == (0, 0, 0, 0)
    assert found.recall_cost > 0
    difference = found.spent.cost - silent.spent.cost - found.recall_cost
    assert abs(difference) < found.recall_cost // 4  # the notes differ by some words


def test_what_does_not_fit_beside_the_context_cannot_be_recalled() -> None:
    talk = Recorded("claude-opus-4-6").ask("go").reply([call("c1")], None)
    long = "some words\n" * 450 + "row_of_result\n" + "some words\n" * 750  # on the third page
    talk.answer(result("c1", long)).reply([call("c2")], None)
    talk.answer(result("c2", "other words\n" * 500)).reply([call("c3")], None)
    talk.answer(result("c3", "other words\n" * 500)).reply("row_of_result", None)
    recording, needs = needs_of(talk.done())
    found = replay(recording, window_of(recording, 4_500), Cuts(percent=20, figures=AT_ONCE), needs)
    assert (found.retained, found.recallable, found.recalls) == (0, 0, 0)
    assert found.peak_context <= window_of(recording, 4_500).sizes.budget_tokens


def test_what_was_recalled_is_held_until_the_next_rewrite() -> None:
    class Twice(Cuts, frozen=True):
        name: ClassVar[str] = "twice"

        def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
            return Cuts.plan(self, view, messages, budget) if len(messages) in (5, 11) else None

    talk = Recorded("claude-opus-4-6").ask("go").reply([call("c1")], None)
    talk.answer(result("c1", "row_of_it col_of_it key_of_it\n" + "some words\n" * 400))
    for step, said in enumerate(["-", "-", "row_of_it", "col_of_it", "-"], 2):
        talk.reply([{"type": "text", "text": said}, call(f"c{step}")], None)
        talk.answer(result(f"c{step}", "other words\n" * 400))
    found = lived(talk.reply("key_of_it", None), Twice(percent=1, figures=AT_ONCE), 40_000)
    assert [step.rewritten for step in found.steps] == [at in (3, 6) for at in range(7)]
    # Recalled for the row, still there for the column, gone for the key behind the next rewrite.
    assert (found.needs, found.retained, found.recallable) == (3, 1, 2)
    assert found.recalls == 2


def test_a_summary_that_a_model_would_write_is_written_by_rules() -> None:
    found = lived(long_talk(), Sums(), 16_000)
    assert found.summaries > 0
    assert found.invalid_requests == 0


def test_a_rest_before_the_cache_goes_cold_is_used_to_compact() -> None:
    talk = long_talk(20).ask("and now?").reply("done", None)
    quick = [float(at) for at in range(len(talk.messages))]
    rested = [*quick[:-2], quick[-3] + 290.0, quick[-3] + 295.0]
    rewritten = []
    for times in (quick, rested):
        recording, needs = needs_of(with_times(talk, *times))
        tokens = recording.tokens
        window = window_of(recording, tokens * 2)
        found = replay(recording, window, Cuts(percent=75), needs)
        rewritten.append(found.steps[-1].rewritten)
    assert rewritten == [False, True]


def test_equal_inputs_give_equal_replays() -> None:
    def once() -> bytes:
        return msgspec.json.encode(lived(long_talk(), Balanced(), 16_000))

    assert once() == once()


def test_progress_is_told_in_messages() -> None:
    told: list[int] = []
    talk = long_talk(5)
    lived(talk, Balanced(), 200_000, advanced=told.append)
    assert sum(told) == len(talk.messages)


def test_the_turns_that_a_branch_shares_are_passed_and_not_counted() -> None:
    talk = Recorded("claude-opus-4-6").ask("one").reply("a", None).ask("two").reply("b", None)
    counted = []
    for conversation in (talk.done(), talk.done(parent="other", shared_turns=1)):
        recording, needs = needs_of(conversation)
        found = replay(recording, window_of(recording, 200_000), FullHistory(), needs)
        counted.append((found.requests, found.spent.read_tokens > 0, found.spent.written_tokens))
    (all_requests, _, all_written), (requests, reads, written) = counted
    assert (all_requests, requests) == (2, 1)
    assert reads
    assert written < all_written


def test_an_invalid_request_is_counted_and_its_rule_is_named() -> None:
    class Tears(Cuts, frozen=True):
        name: ClassVar[str] = "tears"

        def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
            # A result without its call: what no policy may do.
            plan = a_plan(
                policy="tears", omitted=((1, 2),), tokens_before=9, tokens_after=1, figures=AT_ONCE
            )
            return None if view.omitted else plan

    found = lived(long_talk(5), Tears(percent=0), 200_000)
    assert (found.requests, found.invalid_requests) == (6, 5)
    assert found.faults[0].startswith("before message 3: V")
    assert len(found.faults) == 3


class Rolls(Cuts, frozen=True):
    """Keeps the newest result alone, before each request; it waits for nothing."""

    waits_for_cache: ClassVar[bool] = False


def test_a_policy_that_keeps_a_limit_of_its_own_does_so_before_each_request() -> None:
    recording, needs = needs_of(long_talk(20).done())
    window = window_of(recording, 200_000)
    own = replay(recording, window, Rolls(percent=0), needs)
    cached = replay(recording, window, Rolls(percent=0), needs, schedule="cache")
    # Each request but the first two has an older result to swap, and none that is older waits.
    assert own.rewrites == own.requests - 2
    assert own.peak_context < cached.peak_context
    assert cached.rewrites < own.rewrites // 2
