"""Faults of other systems, each as a test that names its origin, where the mechanism exists here.

What belongs to another room is tested there: ``ELSEWHERE`` says where, and its tests are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import anyio
import msgspec
import pytest

from llmsession import CompactionConfig, Tool
from llmsession.compaction.planning.boundaries import safe_cuts
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.planning.prefix_summaries import (
    SUMMARY_TITLE,
    extracted_summary,
    with_summary,
)
from llmsession.compaction.policies import Balanced, registry
from llmsession.compaction.rules.check import check_request
from llmsession.compaction.tokens.messages import message_tokens
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import ContextBuilder
from llmsession.session.handles.session import live_state
from llmsession.session.log.reported_usage import Reported
from llmsession.testing.scripted import Scripted, call, never, say
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary, Trigger
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.usage import Usage
from tests.compaction.conversations import (
    FRAME,
    Talk,
    call_block,
    image,
    required,
    result_block,
    sent,
    text,
)
from tests.compaction.policies.plans import budget_for
from tests.session.actors import Quick, Stage, settled, stage

PROFILE = Profile()
OUTPUT = "a line of output\n" * 300

ELSEWHERE: dict[int, tuple[str, str]] = {
    # 7, turnstone PR 219, mastra PR 16201: parallel calls, interrupted, left calls without results.
    7: (
        "session/actor/test_resume.py",
        "test_results_stand_in_call_order_whoever_gave_them_and_when",
    ),
    # 8, Roo #10465: two results of one id.
    8: ("compaction/rules/test_repair.py", "test_r2_of_two_results_the_first_wins"),
    # 11, Cline #12996: an importer forgot the truncation.
    11: ("transcripts/agents/test_cline_classic.py", "the truncation is not forgotten"),
    # 16, NeuroLink: parallel calls without ids.
    16: (
        "transcripts/chats/test_neurolink.py",
        "parallel calls are paired in their order and nothing is put in",
    ),
    # 18, CodeBuddy: times as text, so that all was too old.
    18: (
        "compaction/policies/other_systems/test_windows.py",
        "test_a_message_without_a_time_is_not_old_and_one_with_a_text_is_an_error",
    ),
    # 21, Jan #8019, #1057: torn and glued lines.
    21: (
        "transcripts/chats/test_jan.py",
        "torn glued and broken lines cost no more than themselves",
    ),
    # 22, Jan #8357: replies without a parent after a branch switch.
    22: (
        "transcripts/chats/test_jan.py",
        "replies that a branch switch left without a parent are put back",
    ),
    # 25, Jan #8646: a refusal for size that was not recognised.
    25: ("providers/test_classify.py", "test_an_overflow_is_known_with_the_figures_that_it_names"),
    # 26, LibreChat #1507, #1509, #1548: an abort, and a send right after it.
    26: (
        "session/actor/test_interrupts.py",
        "test_an_interrupt_never_cancels_a_send_enqueued_after_it_while_a_tool_is_stopped",
    ),
    # 27, LibreChat: a late end overwrote a stop.
    27: ("turns/test_machine.py", "test_a_late_report_changes_nothing_in_any_phase"),
    # 30, Cline #12975: a resume ran completed commands again.
    30: (
        "session/actor/test_resume.py",
        "test_a_callable_that_may_have_started_is_not_run_again_and_the_model_is_told",
    ),
    # 32, NeuroLink: what was appended while a summary was made was lost.
    32: (
        "session/compacting/test_compaction.py",
        "test_a_compaction_survives_what_is_appended_meanwhile",
    ),
    # 35, ChainReview: of several copies the oldest was kept, and cut later.
    35: (
        "compaction/policies/other_systems/test_reads.py",
        "test_all_but_the_last_read_of_a_file_are_replaced_by_the_notice",
    ),
}
"""Fault -> the file under ``tests/`` and the test, or the row of a table, that has it."""


def plan_of(
    messages: list[Message], limit: int, view: View | None = None, trigger: Trigger = "threshold"
) -> Plan | None:
    """What ``balanced`` does about *messages*, with the summary that it wants extracted."""
    view = view or View()
    budget = budget_for(messages, limit, view, profile=PROFILE, trigger=trigger)
    plan = Balanced(keep_recent_turns=2).plan(view, messages, budget)
    if plan is None or plan.summary_request is None:
        return plan
    prefix_summary = extracted_summary(plan.summary_request, messages, PROFILE)
    return with_summary(plan, prefix_summary, view, messages, budget)


def compacted(messages: list[Message], limit: int, view: View | None = None) -> View:
    return (view or View()).applied(required(plan_of(messages, limit, view)), len(messages))


def talking(turns: int) -> Talk:
    built = Talk()
    for number in range(turns):
        built.ask(f"question {number} " + "word " * 300).step(OUTPUT[:500]).reply("answer " * 300)
    return built


def shown(messages: list[Message], view: View) -> Request:
    """The next request, which is valid; the user speaks, if it is the user's turn."""
    if messages[-1].is_assistant and not messages[-1].tool_calls:
        asking = Talk()
        asking.turn = messages[-1].turn + 1
        messages = [*messages, *asking.add("user", "and then?").messages]
    request = project(messages, view, PROFILE, FRAME)
    tools = (msgspec.Raw(b'{"name":"bash","input_schema":{"type":"object"}}'),)
    request = msgspec.structs.replace(request, tools=tools)
    assert check_request(request, PROFILE) == ()
    return request


async def applied(on: Stage) -> list[r.CompactionApplied]:
    return [record for record in await on.log() if isinstance(record, r.CompactionApplied)]


@pytest.mark.parametrize("written", [None, PrefixSummary(20, ""), PrefixSummary(20, " \n")])
def test_01_an_empty_summary_keeps_the_history(written: PrefixSummary | None) -> None:
    """LobeHub #12986, LibreChat #15294: an empty summary replaced what it stood for."""
    messages = talking(12).messages
    budget = Budget(used_tokens=20_000, limit_tokens=10_000, profile=PROFILE, committed=60)
    plan = required(Balanced(keep_recent_turns=2).plan(View(), messages, budget))
    assert plan.summary_request is not None
    left = with_summary(plan, written, View(), messages, budget)
    view = View() if left is None else View().applied(left, len(messages))
    assert view.prefix_summaries == ()
    assert len(shown(messages, view).messages) == len(shown(messages, View()).messages)


async def test_02_a_compaction_that_cannot_reach_its_mark_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """open-webui #30035: it ran on every turn. 29, LibreChat, zeph #1708, Continue: for ever."""
    planned: list[int] = []

    class Spied(Balanced, frozen=True, kw_only=True):
        name: ClassVar[str] = "spied"

        def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
            planned.append(len(messages))
            return super().plan(view, messages, budget)

    monkeypatch.setattr(registry, "_POLICIES", {**registry._POLICIES, "spied": Spied})
    compaction = CompactionConfig(policy="spied", threshold=0.3, low=0.1, schedule="at_once")
    system = "a system text that fills it " * 300
    sizes: dict[str, Any] = {"window_tokens": 6_000, "max_tokens": 1_000}
    async with stage(
        lambda request, tag: "short", system=system, compaction=compaction, **sizes
    ) as on:
        for number in range(12):
            await on.say(f"m{number}")
            await settled()
        assert on.session.status().context_tokens > 0.3 * 5_000
        assert 1 <= len(planned) <= 2
        assert await applied(on) == []


def test_03_a_boundary_inside_a_tool_turn_is_moved() -> None:
    """open-webui #27035: the cut fell between a call and its result."""
    built = Talk().ask().step(*["out " * 40] * 3, times=40)
    for limit in range(1_000, 6_000, 250):
        plan = plan_of(built.messages, limit)
        if plan is not None and plan.prefix_summary is not None:
            assert plan.prefix_summary.upto in set(
                safe_cuts(built.messages, 0, len(built.messages))
            )
            shown(built.messages, View().applied(plan, len(built.messages)))


def test_04_the_system_text_survives() -> None:
    """open-webui #26710, CodeBuddy: it was the first element of the list, and was trimmed."""
    messages = talking(12).messages
    view = compacted(messages, 8_000)
    assert view.prefix_summaries
    assert shown(messages, view).system == FRAME.system


def test_05_cached_tokens_are_counted_once_and_summed_usage_not_at_all() -> None:
    """open-webui #28590, #27031: cached tokens twice, or the usage of a whole tool loop."""
    messages = talking(6).messages
    builder = ContextBuilder(PROFILE, FRAME)
    plain = builder.build(messages, View()).tokens
    usage = Usage(100, 0, plain - 200, 100)
    assert builder.build(messages, View(), Reported(24, usage, 0.0)).tokens < 1.2 * plain
    summed = Usage(plain * 20, 0)
    built = builder.build(messages, View(), Reported(24, summed, 0.0))
    assert (built.tokens, built.size.method) == (plain, "estimate")


def test_06_an_image_is_a_flat_cost() -> None:
    """open-webui #29761, Jan: three images counted as 560,000 tokens of base64."""
    built = Talk().ask().step([text("see"), image()])
    built.step([{"type": "text", "text": "x"}, {"url": "data:image/png;base64," + "A" * 90_000}])
    for message in built.messages:
        assert message_tokens(message, PROFILE) < 2 * PROFILE.image_tokens


def test_09_and_12_no_result_is_left_without_its_call() -> None:
    """Roo #10379, #10669, #10927: an orphan after condensing. LobeChat #4470: of the last n."""
    messages = talking(20).messages
    for length in range(10, len(messages), 2):
        part = messages[:length] if messages[length - 1].is_user else messages[: length - 1]
        plan = plan_of(part, 6_000)
        if plan is not None:
            view = View().applied(plan, len(part))
            calls = [b["id"] for m in sent(shown(part, view)) for b in m if b["type"] == "tool_use"]
            results = [
                b["tool_use_id"]
                for m in sent(shown(part, view))
                for b in m
                if b["type"] == "tool_result"
            ]
            assert calls == results


def test_10_a_summary_that_is_merged_with_its_neighbour_is_still_known_as_one() -> None:
    """Roo #11487: merged with the next user message it lost its flag, and was summarised again."""
    messages = talking(14).messages
    first = compacted(messages, 12_000)
    assert first.prefix_summary is not None
    head = sent(shown(messages, first))[0]
    assert head[0]["text"] == first.prefix_summary.text
    second = required(plan_of(messages, 7_000, first))
    assert required(second.prefix_summary).upto > first.prefix_summary.upto


def test_13_an_earlier_summary_stands_in_the_next_one_once() -> None:
    """LobeHub PR #17209: each compression kept all summaries before it."""
    built = talking(14)
    view = compacted(built.messages, 12_000)
    for _ in range(4):
        for number in range(8):
            built.ask(f"later question {number} " + "word " * 300).reply("answer " * 300)
        view = compacted(built.messages, 12_000, view)
    assert len(view.prefix_summaries) >= 3
    body = bytes(shown(built.messages, view).messages[0].body).decode()
    assert body.count(SUMMARY_TITLE) == 1
    assert len(view.prefix_summaries[-1].text) < 2 * len(view.prefix_summaries[0].text)


def test_14_a_summary_never_points_at_what_is_not_there() -> None:
    """NeuroLink: the pointer named a message that had been deleted."""
    messages = talking(14).messages
    view = compacted(messages, 8_000)
    cut = view.clamped(required(view.prefix_summary).upto - 1)
    assert cut.prefix_summaries == ()
    end = cut.compacted_before or 5
    end -= messages[end - 1].is_assistant  # a request ends with the user
    assert len(shown(messages[:end], cut).messages) >= 5
    gone = view.without_head(5, len(messages) - 5, {"c1"})
    assert gone.prefix_summaries == ()
    assert "c1" not in gone.shown_results


def test_15_and_19_the_newest_message_is_always_shown() -> None:
    """NeuroLink: split == len left nothing recent. MiniSearch, Chatbot UI: with no budget left
    the current message itself was dropped."""
    messages = talking(10).messages
    built = Talk()
    built.messages, built.turn, built.calls = messages, 10, 10
    built.ask("THE NEWEST QUESTION " + "word " * 3_000)
    for limit in (1, 100, 500, 1_000, 4_000):
        for trigger in ("threshold", "window"):
            plan = plan_of(built.messages, limit, trigger=trigger)
            view = View() if plan is None else View().applied(plan, len(built.messages))
            assert b"THE NEWEST QUESTION" in bytes(shown(built.messages, view).messages[-1].body)


def test_17_a_fresh_summary_is_not_evicted_by_the_next_plan() -> None:
    """CodeBuddy: dropping a pair took the new summary along; another became "undefined"."""
    messages = talking(14).messages
    view = compacted(messages, 8_000)
    for limit in (7_000, 6_000, 5_000):
        plan = plan_of(messages, limit, view)
        if plan is not None:
            view = view.applied(plan, len(messages))
        body = bytes(shown(messages, view).messages[0].body).decode()
        assert SUMMARY_TITLE in body
        assert "undefined" not in body
        assert "None" not in body


def test_20_a_prefix_is_folded_once() -> None:
    """MiniSearch: it was folded again every turn."""
    built = talking(14)
    view = compacted(built.messages, 12_000)
    assert plan_of(built.messages, 12_000, view) is None
    built.ask("one more").reply("short")
    assert plan_of(built.messages, 12_000, view) is None


def test_23_two_messages_of_the_user_in_a_row_lose_no_word() -> None:
    """Jan #3002: consecutive user roles wedged the conversation, or lost one."""
    built = talking(14)
    built.ask("first of two").ask("second of two")
    view = compacted(built.messages, 8_000)
    last = bytes(shown(built.messages, view).messages[-1].body)
    assert last.index(b"first of two") < last.index(b"second of two")


@pytest.mark.real_time
async def test_24_a_result_of_hundreds_of_thousands_of_tokens_bricks_nothing() -> None:
    """Jan #8237 (702,568 tokens), Cline #1275, #5251, Roo #6069."""

    def script(request: Request, tag: StepTag) -> Scripted:
        return call("t", id=f"c{tag.turn}") if tag.step == 1 else "done"

    tool = Tool(name="t", run=Quick("7f3a" * 250_000))
    compaction = CompactionConfig(cap_chars=10_000_000)
    async with stage(
        script, tools=[tool], window_tokens=16_000, max_tokens=2_000, compaction=compaction
    ) as on:
        assert await on.say("read it") == "done"
        assert await on.say("again") == "done"
        assert on.session.status().context_tokens < 14_000


def test_28_calls_that_are_open_when_it_is_compacted_are_not_cut_off() -> None:
    """Continue #6958: compaction failed on, or cut, a dangling call."""
    built = talking(10)
    built.ask().add("assistant", [call_block("open")])
    plan = required(plan_of(built.messages, 3_000, trigger="window"))
    view = View().applied(plan, len(built.messages))
    assert view.shows(len(built.messages) - 1)
    built.add("user", [result_block("open", "at last")])
    assert b"at last" in bytes(shown(built.messages, view).messages[-1].body)


async def test_31_a_summary_made_in_a_turn_that_is_dropped_goes_with_it() -> None:
    """MiniSearch: what was rolled into the summary during an interrupted turn stayed in it."""

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn == 1:
            return "hello"
        if tag.turn == 2:
            words = say("SECRET thought " * 60)
            return words + call("t", id=f"c{tag.step}") if tag.step < 14 else never()
        return "next"

    compaction = CompactionConfig(threshold=0.4, low=0.2, keep_recent_steps=2, schedule="at_once")
    async with stage(
        script, tools=[Tool(name="t", run=Quick("SECRET of the turn\n" * 60))],
        window_tokens=7_000, max_tokens=1_000, compaction=compaction,
    ) as on:  # fmt: skip
        await on.say("hi")
        await on.session.send("SECRET work")
        await anyio.sleep(5)
        assert any(each.prefix_summary for each in await applied(on))
        await on.session.interrupt()
        assert live_state(on.session).view.prefix_summaries == ()
        assert await on.say("go on") == "next"
        request = on.provider.requests[-1].encode()
        assert b"SECRET" not in request.replace(b"SECRET work", b"")
        assert b"[Summary of the conversation" not in request


async def test_33_no_sentinel_of_an_interrupt_is_in_the_next_prompt() -> None:
    """NeuroLink SI-069: models repeat "[Interrupted by user]" when they read it."""
    async with stage([say("a long reply " * 20).hanging(at=3), "fine"]) as on:
        await on.session.send("first")
        await settled()
        await on.session.interrupt(policy="keep_text")
        await on.say("second")
        request = on.provider.requests[-1].encode().lower()
        for sentinel in (b"interrupt", b"cancelled", b"stopped by"):
            assert sentinel not in request


def test_34_usage_from_before_a_compaction_says_nothing_after_it() -> None:
    """coder/xum #886: the reported size of the last request triggered the next compaction."""
    messages = talking(14).messages
    builder = ContextBuilder(PROFILE, FRAME)
    before = builder.build(messages, View()).tokens
    view = compacted(messages, 8_000)
    after = builder.build(messages, view).tokens
    assert after < before / 2


def test_each_of_the_35_has_its_test_here_or_elsewhere() -> None:
    told = Path(__file__).read_text(encoding="utf-8")
    # One that is the same as another is named where that one is tested.
    here = {int(number) for name in _names(told) for number in re.findall(r"_(\d\d)(?=_)", name)}
    here |= {int(number) for number in re.findall(r'"""[^"]*?\. (\d\d), ', told)}
    assert sorted(here | ELSEWHERE.keys()) == list(range(1, 36))


@pytest.mark.parametrize("fault", ELSEWHERE)
def test_what_is_tested_elsewhere_is_there(fault: int) -> None:
    file, test = ELSEWHERE[fault]
    root = Path(__file__).resolve().parents[2]
    assert test in _names((root / file).read_text(encoding="utf-8"))


def _names(source: str) -> list[str]:
    """The tests in *source*, and the rows of its tables."""
    found = re.findall(r'^(?:async )?def (test_\w+)\(|^    "([^"]+)": ', source, re.MULTILINE)
    return [test or row for test, row in found]
