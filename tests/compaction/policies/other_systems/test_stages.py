from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.policies import (
    FourStage,
    MiddlewarePipeline,
    Stage,
    register,
    registry,
)
from llmsession.compaction.policies.composing import shows_pairs
from llmsession.compaction.policies.other_systems.stages import (
    READ_BELOW,
    RESULT_CLEARED,
    TRUNCATED,
    window_fractions,
)
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig, InvalidRequest
from llmsession.turns.messages import Message
from tests.compaction.conversations import Talk, a_plan, required, talk
from tests.compaction.policies.plans import budget_for, filled, plan_of, texts_sent, visible

# four_stage.

SMALL = FourStage(protected_tokens=1_000)


def reading(*reads: tuple[str, str, str]) -> Talk:
    """A turn with a step for each tool, path and output."""
    built = Talk().ask()
    for name, path, output in reads:
        built.call(name, output, path=path)
    return built


def test_the_first_stage_clears_results_before_the_newest_tokens_of_them() -> None:
    built = reading(*[("bash", "a", "x" * 900)] * 4)
    plan = required(plan_of(SMALL, built.messages, 3_500))
    assert plan.shown_results == dict.fromkeys(("c1", "c2", "c3"), RESULT_CLEARED)
    assert plan.figures == {"results_cleared": 3}
    assert plan.summary_request is None
    assert plan.omitted == ()


def test_the_newest_40000_tokens_of_results_are_protected() -> None:
    built = reading(*[("bash", "a", "x" * 20_000)] * 3)
    assert set(required(plan_of(FourStage(), built.messages, 50_000)).shown_results) == {"c1"}


def test_a_skill_is_never_cleared() -> None:
    built = reading(("skill", "a", "x" * 900), ("bash", "a", "x" * 900), ("bash", "a", "y" * 900))
    assert set(required(plan_of(SMALL, built.messages, 2_500)).shown_results) == {"c2"}


def test_clearing_that_saves_under_500_tokens_is_not_done() -> None:
    policy = replace(SMALL, protected_tokens=300)
    built = reading(*[("bash", "a", "x" * 240)] * 3)  # 480 beside what is protected
    plan = plan_of(policy, built.messages, 600)
    assert plan is None or RESULT_CLEARED not in plan.shown_results.values()
    plan = required(plan_of(replace(policy, min_saved_tokens=400), built.messages, 600))
    assert RESULT_CLEARED in plan.shown_results.values()


def test_the_second_stage_drops_files_that_were_read_again_if_that_saves_30_percent() -> None:
    policy = replace(SMALL, protected_tokens=100_000)
    built = reading(
        ("read", "a.py", "x" * 900), ("bash", "b", "z" * 900), ("read", "a.py", "y" * 900)
    )
    plan = required(plan_of(policy, built.messages, 2_400))
    assert plan.shown_results == {"c1": READ_BELOW.replace("{path}", "a.py")}
    assert plan.shown_results["c1"] == "[File a.py - refer to latest read below]"
    others = [("bash", "b", "z" * 900)] * 3
    less = reading(("read", "a.py", "x" * 900), *others, ("read", "a.py", "y" * 900))
    assert "characters_deduplicated" not in required(plan_of(policy, less.messages, 4_200)).figures


def chatting(turns: int, size: int = 1_000) -> list[Message]:
    built = Talk()
    for number in range(turns):
        built.ask(f"{number} " + "q" * size).reply(f"{number} " + "a" * size)
    return built.messages


def test_the_third_stage_wants_a_summary_and_keeps_30_percent_of_the_target() -> None:
    messages = chatting(10)
    plan = required(plan_of(FourStage(), messages, 15_000))
    assert plan.summary_request is not None
    # 4,500 tokens are four messages.
    assert (plan.summary_request.first, plan.summary_request.upto) == (0, 16)
    assert plan.figures == {"messages_summarised": 16}
    view = filled(plan, messages)
    assert [at for at in range(20) if view.shows(at)] == [16, 17, 18, 19]


def test_four_messages_are_not_summarised() -> None:
    assert required(plan_of(FourStage(), chatting(2), 3_000)).summary_request is None


def test_the_fourth_stage_keeps_the_first_two_messages_a_marker_and_a_tail() -> None:
    # Nothing may be summarised behind the only request, and no result is old.
    built = Talk().ask("do it")
    for number in range(20):
        built.step(f"{number} " + "x" * 300)
    policy = FourStage()
    plan = required(plan_of(policy, built.messages, 4_000))
    assert plan.summary_request is None
    assert plan.shown_results == {}
    ((first, end),) = plan.omitted
    assert first == 3  # the first call keeps its result
    assert [(each.at, each.text) for each in required(plan.injected)] == [(end, TRUNCATED)]
    view = filled(plan, built.messages)
    assert budget_for(built.messages, 1, view).used_tokens <= 4_000
    assert any(TRUNCATED in each for each in texts_sent(built.messages, view))
    assert plan_of(policy, built.messages, 4_000, view) is None


@pytest.mark.parametrize(
    ("over", "current", "first"), [(0, 100, 15), (10, 100, 25), (90, 100, 90), (1, 10_000, 16)]
)
def test_the_share_that_is_left_out_begins_with_what_is_over_and_15_percent(
    over: int, current: int, first: int
) -> None:
    assert window_fractions(over, current)[0] == first


def test_the_share_grows_by_ten_in_six_tries_and_ends_at_95() -> None:
    assert window_fractions(0, 100) == (15, 25, 35, 45, 55, 65)
    assert window_fractions(60, 100) == (75, 85, 95)
    assert window_fractions(90, 100) == (90, 95)


def test_what_is_over_in_the_end_is_cut_the_longest_first() -> None:
    built = Talk().ask("do it").step("x" * 90_000, "y" * 3_000)
    plan = required(plan_of(FourStage(), built.messages, 10_000))
    assert set(plan.shown_results) == {"c1"}
    assert 'recall(id="c1"' in plan.shown_results["c1"]
    assert plan.tokens_after <= 10_000


def test_what_the_user_said_last_is_never_cut() -> None:
    built = Talk().ask("q" * 9_000).step("x" * 9_000)
    assert required(plan_of(FourStage(), built.messages, 1_000)).texts == {}


def test_the_stages_are_told_in_the_order_they_ran() -> None:
    built = reading(*[("bash", "a", "x" * 3_000)] * 20)
    plan = required(plan_of(SMALL, built.messages, 2_000))
    assert list(plan.figures) == ["results_cleared", "messages_left_out", "texts_cut"]
    assert "stages used: results cleared, messages left out, texts cut" in plan.reason


# middleware_pipeline.


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """Writes down that it was asked, and does what it is told to."""

    name: ClassVar[str] = "noted"
    seen: ClassVar[list[tuple[str, int]]] = []

    label: str = ""
    raises: bool = False
    omits: tuple[tuple[int, int], ...] = ()
    is_due: bool = True

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return self.is_due

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        self.seen.append((self.label, budget.used_tokens))
        if self.raises:
            raise LookupError("a secret of the conversation")
        if not self.omits:
            return None
        return a_plan(policy=self.name, omitted=self.omits)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    register(Noted)
    Noted.seen.clear()
    return Noted.seen


def stage(label: str, *, required: bool = False, **options: Any) -> Stage:
    return Stage(policy="noted", options={"label": label, **options}, required=required)


def test_the_stages_run_in_the_order_given_on_what_the_ones_before_left(
    noted: list[tuple[str, int]],
) -> None:
    messages = chatting(4)
    pipeline = MiddlewarePipeline(stages=(stage("b", omits=[[0, 2]]), stage("c"), stage("a")))
    plan = plan_of(pipeline, messages, 1_000)
    whole = budget_for(messages, 1).used_tokens
    assert [label for label, _ in noted] == ["b", "c", "a"]
    assert [used for _, used in noted] == [whole, whole * 3 // 4, whole * 3 // 4]
    assert visible(plan, messages) == [2, 3, 4, 5, 6, 7]


def test_an_optional_stage_that_fails_is_as_if_it_were_not_there_and_is_named(
    noted: list[tuple[str, int]],
) -> None:
    messages = chatting(4)
    pipeline = MiddlewarePipeline(stages=(stage("a", raises=True), stage("b", omits=[[0, 2]])))
    plan = required(plan_of(pipeline, messages, 1_000))
    assert plan.omitted == ((0, 2),)
    assert "noted failed (LookupError)" in plan.reason
    assert "secret" not in plan.reason


def test_what_a_required_stage_raises_is_raised(noted: list[tuple[str, int]]) -> None:
    pipeline = MiddlewarePipeline(stages=(stage("a", raises=True, required=True),))
    with pytest.raises(LookupError):
        plan_of(pipeline, chatting(4), 1_000)


def test_a_stage_that_parts_a_call_from_its_result_has_failed(noted: list[tuple[str, int]]) -> None:
    messages = talk(3).messages
    optional = MiddlewarePipeline(stages=(stage("a", omits=[[2, 3]]),))
    assert plan_of(optional, messages, 1_000) is None
    required = MiddlewarePipeline(stages=(stage("a", omits=[[2, 3]], required=True),))
    with pytest.raises(InvalidRequest, match="noted"):
        plan_of(required, messages, 1_000)


def test_a_stage_that_is_not_due_is_not_asked_unless_a_plan_was_asked_for(
    noted: list[tuple[str, int]],
) -> None:
    pipeline = MiddlewarePipeline(stages=(stage("a", is_due=False),))
    plan_of(pipeline, chatting(2), 1_000)
    assert noted == []
    plan_of(pipeline, chatting(2), 1_000, trigger="asked")
    assert len(noted) == 1
    assert not pipeline.due(10**9, 1)


def test_what_injects_stands_before_what_compacts() -> None:
    with pytest.raises(InvalidConfig, match="memory_injection"):
        MiddlewarePipeline(stages=(Stage(policy="basic_fold"), Stage(policy="memory_injection")))


def test_an_unknown_stage_or_option_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="nothing"):
        MiddlewarePipeline(stages=(Stage(policy="nothing"),))
    with pytest.raises(InvalidConfig, match="depth"):
        MiddlewarePipeline(stages=(Stage(policy="basic_fold", options={"depth": 1}),))


def test_a_stage_that_wants_a_summary_is_the_last(noted: list[tuple[str, int]]) -> None:
    pipeline = MiddlewarePipeline(stages=(Stage(policy="four_stage"), stage("after")))
    assert required(plan_of(pipeline, chatting(10), 15_000)).summary_request is not None
    assert noted == []


def test_by_default_memories_are_told_first_and_the_fold_counts_them() -> None:
    stages = MiddlewarePipeline().stages
    assert [each.policy for each in stages] == [
        "memory_injection", "file_read_dedupe", "mask_consumed", "basic_fold",
    ]  # fmt: skip
    first = replace(stages[0], options={"memories": ["m" * 900]})
    messages = chatting(4)  # about 8,000 tokens
    plan = required(plan_of(MiddlewarePipeline(stages=(first, *stages[1:])), messages, 9_500))
    assert required(plan.injected)[0].at == -1
    assert plan.omitted != ()
    # Without the memory the fold is not due.
    assert plan_of(MiddlewarePipeline(), messages, 9_500) is None


def test_pairs_are_seen_on_both_sides_and_at_the_start() -> None:
    messages = talk(3).messages  # a request, a call, its result, an answer, three times
    assert shows_pairs(View(), messages)
    assert shows_pairs(View(omitted=((1, 3),)), messages)
    assert not shows_pairs(View(omitted=((1, 2),)), messages)
    assert not shows_pairs(View(omitted=((2, 3),)), messages)
    assert not shows_pairs(View(omitted=((0, 1),)), messages)
