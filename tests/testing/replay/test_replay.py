"""Recorded conversations through real sessions: what comes out is what was recorded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from llmsession.compaction.rules.check import RuleViolation
from llmsession.errors import InvalidInput, ProviderError
from llmsession.providers.replay import ReplayProvider
from llmsession.session.values.config import CompactionConfig
from llmsession.testing.replay import driver
from llmsession.testing.replay.gated_provider import (
    POINTS,
    PlannedInterrupt,
    Point,
    plan_interrupts,
)
from llmsession.testing.replay.recorded_turns import (
    NO_RESULT,
    RecordedTurn,
    read_turns,
    recorded_tools,
)
from llmsession.testing.replay.replay import DriveOptions, DriveReport, drive, replay_conversation
from llmsession.transcripts import Conversation, Note, read
from llmsession.turns.blocks import OpaqueBlock, ToolResultBlock
from llmsession.turns.messages import Message
from llmsession.turns.records import InterruptPolicy
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import StreamEvent
from tests.testing.conversations import call, recording, result, text, tool_loop

POLICIES: tuple[InterruptPolicy, ...] = ("drop_turn", "keep_steps", "keep_text")
SWAP = CompactionConfig(policy="swap_tool_results", schedule="at_once")
"""It cuts no message, so one that is too large is."""


def results_of(history: tuple[Message, ...]) -> list[ToolResultBlock]:
    return [found for message in history for found in message.tool_results]


async def test_a_tool_loop_ends_in_the_history_that_was_recorded() -> None:
    driven = await drive(tool_loop())
    report = driven.report
    assert (report.turns, report.steps, report.messages, report.requests) == (3, 6, 12, 6)
    assert (report.invalid_requests, report.orphans, report.differences) == (0, 0, 0)
    assert (report.interrupts, report.repaired, report.skipped) == (0, 0, 0)
    assert not report.is_broken
    recorded = tool_loop().messages
    assert [message.role for message in driven.history] == [m.role for m in recorded]
    assert [message.text for message in driven.history] == [m.text for m in recorded]


async def test_calls_are_matched_by_order_where_the_session_renames_them() -> None:
    driven = await drive(tool_loop())
    answered = [found.tool_use_id for found in results_of(driven.history)]
    assert answered == ["c1", "c2", "c3", "c1_2"]
    assert results_of(driven.history)[3].text == "a"


async def test_text_beside_results_is_steered_and_stands_after_them() -> None:
    driven = await drive(tool_loop())
    kinds = [type(block).__name__ for block in driven.history[2].content]
    assert kinds == ["ToolResultBlock", "ToolResultBlock", "TextBlock"]
    assert driven.history[2].text == "quickly"


async def test_unknown_fields_and_blocks_of_the_user_are_sent_byte_for_byte() -> None:
    said = recording(
        [
            [text("a") | {"cache_control": {"type": "ephemeral"}}, {"type": "novel", "x": [1.0]}],
            [text("b")],
        ]
    )
    driven = await drive(said)
    assert bytes(driven.history[0].body) == bytes(said.messages[0].body)
    assert driven.report.differences == 0


async def test_a_turn_that_was_cut_short_is_interrupted_after_all_that_was_recorded() -> None:
    said = recording(
        [[text("a")], [call("c1")], [result("c1")]], [[text("b")], [text("c")]], interrupted=[1]
    )
    report = (driven := await drive(said)).report
    assert report.interrupt_results == Counter(kept=1)
    assert report.requests == 3  # the one that was never answered, too
    assert (report.messages, report.differences, report.repaired) == (5, 0, 0)
    assert driven.kept == frozenset()


async def test_a_call_that_was_never_answered_is_settled_by_the_interrupt_and_counted() -> None:
    said = recording([[text("a")], [call("c1"), call("c2")], [result("c2", "two")]])
    driven = await drive(said)
    assert [found.is_error for found in results_of(driven.history)] == [True, None]
    assert driven.history[2].synthetic == (0,)
    assert (driven.report.repaired, driven.report.interrupts) == (1, 1)
    assert driven.report.requests == 1
    assert (driven.report.differences, driven.report.orphans) == (0, 0)


async def test_a_call_without_a_result_in_mid_turn_gets_a_neutral_one_and_is_counted() -> None:
    said = recording([[text("a")], [call("c1")], [text("so be it")]])
    driven = await drive(said)
    assert [found.text for found in results_of(driven.history)] == [NO_RESULT]
    assert (driven.report.repaired, driven.report.interrupts) == (1, 0)
    assert (driven.report.steps, driven.report.differences) == (2, 0)


async def test_text_after_a_reply_without_calls_is_steered_before_it_ends() -> None:
    said = recording([[text("a")], [text("b")], [text("c") | {"by_user": 1}], [text("d")]])
    driven = await drive(said)
    assert [message.text for message in driven.history] == ["a", "b", "c", "d"]
    assert (driven.report.turns, driven.report.differences) == (1, 0)


LOST = recording(
    [[text("a")], [call("c1")], [result("c1")], [call("c2")], [result("c2"), text("quickly")],
     [text("b")]],
)  # fmt: skip
WITHOUT_A_REPLY = tuple(m for m in LOST.messages if "c2" not in str(m.tool_calls))
NOTES = (Note(1, "queue"), Note(2, "orphan_result", visible=True))

REPORTED: dict[str, tuple[Conversation, dict[str, object]]] = {
    "a turn without a single reply is skipped": (
        recording([[text("a")]], [[text("b")], [text("c")]]),
        {"skipped_reasons": Counter(no_reply=1), "turns": 1},
    ),
    "texts without text are left out": (
        recording([[text("a"), text("  ")], [text("b")]]),
        {"skipped_reasons": Counter(blank_text=1)},
    ),
    "a result that no session takes is left out, and its call repaired": (
        recording([[text("a")], [call("c1")], [result("c1", [{"no": "type"}])], [text("b")]]),
        {"skipped_reasons": Counter(refused_result=1), "repaired": 1},
    ),
    "results of a reply that was lost are left out": (
        msgspec.structs.replace(LOST, messages=WITHOUT_A_REPLY),
        {"skipped_reasons": Counter(orphan_result=1), "messages": 4, "repaired": 0},
    ),
    "what comes after a reply that ends the turn is not played": (
        recording([[text("a")], [text("b")], [text("c")]]),
        {"skipped_reasons": Counter(unplayed_reply=1), "messages": 2},
    ),
    "visible notes are skipped content, and bookkeeping is not": (
        msgspec.structs.replace(tool_loop(), notes=NOTES),
        {"skipped_reasons": Counter(orphan_result=1)},
    ),
    "a recall is answered by the session and not compared": (
        recording([[text("a")], [call("c1", "recall", id="x")], [result("c1")], [text("b")]]),
        {"steps": 2},
    ),
}


@pytest.mark.parametrize(("said", "figures"), REPORTED.values(), ids=list(REPORTED))
async def test_what_cannot_be_played_is_counted_and_makes_no_difference(
    said: Conversation, figures: dict[str, object]
) -> None:
    report = (await drive(said)).report
    assert {name: getattr(report, name) for name in figures} == figures
    assert (report.differences, report.is_broken) == (0, False)


@pytest.mark.parametrize("blocks", [[text(" ")], [call("c9")]])
async def test_a_message_that_no_session_takes_is_skipped_with_its_turn(
    blocks: list[dict[str, object]],
) -> None:
    report = (await drive(recording([blocks, [text("b")]], [[text("c")], [text("d")]]))).report
    assert report.skipped_reasons["refused_message"] == 1
    assert (report.turns, report.differences) == (1, 0)
    assert any("recorded turn 1 was not sent" in fault for fault in report.faults)


async def test_of_two_results_for_one_call_the_first_counts() -> None:
    said = recording(
        [[text("a")], [call("c1")], [result("c1", "one"), result("c1", "two")], [text("b")]]
    )
    driven = await drive(said)
    assert [found.text for found in results_of(driven.history)] == ["one"]
    assert driven.report.skipped_reasons == Counter(orphan_result=1)
    assert driven.report.differences == 0


async def test_a_reply_that_was_cut_by_its_limit_loses_its_calls_as_the_session_says() -> None:
    said = recording([[text("a")], [text("b"), call("c1")]])
    cut = msgspec.structs.replace(said.messages[1], stop_reason="max_tokens")
    said = msgspec.structs.replace(said, messages=(said.messages[0], cut))
    driven = await drive(said)
    assert [type(block).__name__ for block in driven.history[1].content] == ["TextBlock"]
    assert (driven.report.differences, driven.report.repaired) == (0, 0)


async def test_a_turn_that_does_not_fit_is_skipped_and_the_next_one_goes_on() -> None:
    said = recording([[text("long " * 9000)], [text("b")]], [[text("c")], [text("d")]])
    options = DriveOptions(window_tokens=8000, interrupt_every=1, compaction=SWAP)
    report = await replay_conversation(said, options)
    assert report.skipped_reasons["context_too_large"] == 1
    assert report.turns == 1
    assert not report.is_broken


async def test_a_turn_that_only_its_receipt_made_too_large_is_skipped_and_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = recording(
        [[text("long " * 9000)], [call("c1")], [result("c1")], [text("b")]],
        [[text("c")], [text("d")]],
    )
    windows = [
        window
        for window in range(22_000, 24_000, 30)
        if (await drive(said, DriveOptions(window_tokens=window, compaction=SWAP))).report.turns
        == 2
    ]
    only(monkeypatch, 1, PlannedInterrupt(point="tools", policy="drop_turn"))
    options = msgspec.structs.replace(ONE, window_tokens=windows[0], compaction=SWAP)
    report = await replay_conversation(said, options)
    assert report.skipped_reasons == Counter(context_too_large=1)
    assert (report.turns, report.history_equal) == (1, True)


async def test_a_turn_larger_than_the_window_is_cut_in_the_context_and_whole_in_the_history() -> (
    None
):
    said = recording([[text("long " * 9000)], [text("b")]], [[text("c")], [text("d")]])
    driven = await drive(said, DriveOptions(window_tokens=8000))
    assert (driven.report.turns, driven.report.skipped) == (2, 0)
    assert driven.report.compactions == 1
    assert driven.history[0].text == "long " * 9000
    assert not driven.report.is_broken


async def test_compactions_are_counted_and_change_no_history() -> None:
    turns = [
        [[text("go")], [call(f"c{n}")], [result(f"c{n}", f"line {n}\n" * 900)], [text("ok")]]
        for n in range(8)
    ]
    options = DriveOptions(
        window_tokens=20_000, compaction=CompactionConfig(keep_recent_turns=1, threshold=0.5)
    )
    report = (await drive(recording(*turns), options)).report
    assert report.compactions > 0
    assert (report.turns, report.differences, report.invalid_requests) == (8, 0, 0)


def test_tools_are_bare_definitions_of_what_was_called() -> None:
    assert [tool.name for tool in recorded_tools(tool_loop())] == ["look", "read"]
    assert [tool.name for tool in recorded_tools(recording([[text("a")]]))] == ["placeholder"]


async def test_a_tool_that_no_provider_would_take_is_answered_without_being_offered() -> None:
    said = recording([[text("a")], [call("c1", "not a name")], [result("c1")], [text("b")]])
    assert [tool.name for tool in recorded_tools(said)] == ["placeholder"]
    assert (await drive(said)).report.differences == 0


async def test_each_recorded_message_is_told_once_as_progress() -> None:
    told: list[int] = []
    await drive(tool_loop(), DriveOptions(interrupt_every=1), advanced=told.append)
    assert sum(told) == len(tool_loop().messages)
    assert len(told) > 3


@pytest.mark.parametrize(
    "options",
    [
        DriveOptions(interrupt_every=0),
        DriveOptions(window_tokens=1),
        DriveOptions(delta_chars=0),
        DriveOptions(delay_s=-1),
        DriveOptions(delay_s=float("inf")),
        DriveOptions(delay_s=float("nan")),
    ],
    ids=repr,
)
async def test_options_that_cannot_work_are_refused(options: DriveOptions) -> None:
    with pytest.raises(InvalidInput):
        await drive(tool_loop(), options)


# With interrupts.


@pytest.mark.parametrize("seed", range(6))
async def test_dropped_and_resent_turns_end_in_the_same_history(seed: int) -> None:
    options = DriveOptions(
        interrupt_every=1, interrupt_policy="drop_turn", seed=seed, delta_chars=4
    )
    report = await replay_conversation(tool_loop(), options)
    assert report.history_equal is True
    assert report.resent > 0
    assert (report.steps, report.messages, report.kept) == (6, 12, 0)
    assert not report.is_broken


@pytest.mark.parametrize("policy", ["keep_steps", "keep_text", "random"])
@pytest.mark.parametrize("seed", range(4))
async def test_kept_turns_are_beginnings_of_the_recorded_ones(policy: str, seed: int) -> None:
    options = DriveOptions(interrupt_every=1, seed=seed, delta_chars=4)
    options = msgspec.structs.replace(options, interrupt_policy=policy)
    report = await replay_conversation(tool_loop(), options)
    assert report.interrupts > 0
    assert report.turns == 3
    assert not report.is_broken, report.faults


def only(monkeypatch: pytest.MonkeyPatch, step: int, cut: PlannedInterrupt) -> None:
    """Let *cut* be the only interrupt, in *step* of the first turn."""

    def plan(turn: RecordedTurn, **options: object) -> dict[int, PlannedInterrupt]:
        return {step: cut} if turn.position == 0 else {}

    monkeypatch.setattr(driver, "plan_interrupts", plan)


ONE = DriveOptions(interrupt_every=1, interrupt_policy="drop_turn", delta_chars=4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("step", [1, 2])
async def test_every_point_of_a_step_can_be_cut_under_every_policy(
    monkeypatch: pytest.MonkeyPatch, point: Point, policy: InterruptPolicy, step: int
) -> None:
    only(
        monkeypatch,
        step,
        PlannedInterrupt(point=point, policy=policy, deltas=2, held=True, share=0.5),
    )
    report = await replay_conversation(tool_loop(), ONE)
    assert not report.is_broken, report.faults
    assert report.interrupts == 1
    assert report.resent + report.kept == 1


SPINS = [pytest.param(n, marks=[pytest.mark.long] if n % 10 else []) for n in range(0, 40, 5)]


@pytest.mark.parametrize("point", ["asked", "streaming", "ending"])
@pytest.mark.parametrize("spins", SPINS)
async def test_wherever_a_racing_interrupt_lands_the_history_is_the_recorded_one(
    monkeypatch: pytest.MonkeyPatch, point: Point, spins: int
) -> None:
    for step in (1, 2, 3):
        only(
            monkeypatch,
            step,
            PlannedInterrupt(point=point, policy="drop_turn", deltas=1, spins=spins),
        )
        report = await replay_conversation(tool_loop(), ONE)
        assert not report.is_broken, report.faults
        assert report.turns == 3


async def test_results_that_came_before_an_interrupt_are_kept_and_the_others_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, 1, PlannedInterrupt(point="tools", policy="keep_steps", share=0.9))
    driven = await drive(tool_loop(), ONE)
    first, second = results_of(driven.history)[:2]
    assert first.text == "a\nb"
    assert second.is_error
    assert (driven.report.repaired, driven.report.kept, driven.kept) == (1, 1, frozenset({0}))


async def test_receipts_of_dropped_turns_are_counted_and_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, 1, PlannedInterrupt(point="tools", policy="drop_turn", share=0.9))
    report = await replay_conversation(tool_loop(), ONE)
    assert (report.receipts, report.resent, report.history_equal) == (1, 1, True)


def test_about_one_step_in_so_many_is_cut_at_all_points_and_under_all_policies() -> None:
    turn = read_turns(tool_loop())[0]
    rng = random.Random(1)
    cuts = [
        cut
        for _ in range(600)
        for cut in plan_interrupts(turn, every=5, policy="random", delta_chars=8, rng=rng).values()
    ]
    assert 280 < len(cuts) < 440  # of 1,800 steps
    assert {cut.point for cut in cuts} == set(POINTS)
    assert {cut.policy for cut in cuts} == set(POLICIES)
    assert {cut.held for cut in cuts} == {True, False}


# What it finds. Each breaks the replay on purpose.


async def test_a_session_that_says_something_else_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = read_turns(recording([[text("a")], [text("B")]]))
    monkeypatch.setattr(driver, "read_turns", lambda conversation: other)
    report = (await drive(recording([[text("a")], [text("b")]]))).report
    assert report.differences == 1
    assert report.is_broken
    assert "its text differs" in report.faults[0]


async def test_a_result_that_was_answered_otherwise_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = recording([[text("a")], [call("c1")], [result("c1", "one")], [text("b")]])
    (turn,) = read_turns(said)
    wrong = msgspec.structs.replace(turn.steps[0].results["c1"], content="two")
    steps = (msgspec.structs.replace(turn.steps[0], results={"c1": wrong}), turn.steps[1])
    turns = (msgspec.structs.replace(turn, steps=steps),)
    monkeypatch.setattr(driver, "read_turns", lambda conversation: turns)
    assert (await drive(said)).report.differences == 1


async def test_histories_that_differ_with_interrupts_break_the_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, turns = tool_loop(), read_turns(tool_loop())
    changed = msgspec.structs.replace(
        turns[1], opening=(OpaqueBlock("text", b'{"type":"text","text":"x"}'),)
    )
    calls = iter([turns, (turns[0], changed, turns[2])])
    monkeypatch.setattr(driver, "read_turns", lambda conversation: next(calls))
    report = await replay_conversation(said, ONE)
    assert report.history_equal is False
    assert any("with interrupts the history differs: recorded turn 2" in f for f in report.faults)


class Failing(ReplayProvider):
    """Fails in its second turn."""

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        if tag.turn == 2:
            raise ProviderError("out of order", kind="fatal")
        async with aclosing(super().stream(request, tag)) as events:
            async for event in events:
                yield event


async def test_a_turn_that_fails_for_no_recorded_reason_breaks_the_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "ReplayProvider", Failing)
    report = (await drive(tool_loop())).report
    assert (report.turns, report.differences, report.is_broken) == (2, 1, True)
    assert "recorded turn 2 failed (fatal)" in report.faults[0]


async def test_a_request_that_the_session_itself_refused_breaks_the_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = RuleViolation("V0", "messages[0]", "made up")
    monkeypatch.setattr(
        "llmsession.session.core.request_builder.Checker.check", lambda *_, **__: (broken,)
    )
    report = (await drive(recording([[text("a")], [text("b")]]))).report
    assert (report.requests, report.invalid_requests, report.is_broken) == (0, 1, True)


async def test_orphans_of_both_replays_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([["c1"], ["c2", "c3"]])
    monkeypatch.setattr(driver, "orphan_calls", lambda history: next(found))
    report = await replay_conversation(tool_loop(), ONE)
    assert (report.orphans, report.is_broken) == (3, True)
    assert "without interrupts: call c1 in the history has no result" in report.faults


def test_reports_of_several_conversations_add_up() -> None:
    total = DriveReport()
    total.add(DriveReport(turns=2, skipped_reasons=Counter(a=1)))
    assert total.history_equal is None
    total.add(DriveReport(turns=3, skipped_reasons=Counter(a=1, b=1), history_equal=True))
    assert (total.turns, total.skipped) == (5, 3)
    assert total.history_equal
    total.add(DriveReport(history_equal=False))
    assert total.history_equal is False


# The real recordings.

FOLDER = "claude-code-entireio-cli"


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> list[Conversation]:
    paths = sorted((shared_data / FOLDER).glob("*.jsonl"))
    assert len(paths) == 8
    return [conversation for path in paths for conversation in read(path.read_bytes())]


# What the files hold, see test_recorded_sessions: 6 turns have no reply, 2 calls no result.
STEPS = 684
ONLY_THINKING = 3
"""Of these replies three are thinking alone, which leaves no message."""
NO_REPLY = 6
NO_RESULTS = 2


async def replay_all(conversations: list[Conversation], options: DriveOptions) -> DriveReport:
    total = DriveReport()
    for conversation in conversations:
        total.add(await replay_conversation(conversation, options))
    return total


@pytest.mark.long  # with interrupts, each is replayed without them first, and as much is asserted
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_every_recorded_conversation_replays_as_it_was_recorded(
    recorded: list[Conversation],
) -> None:
    total = await replay_all(recorded, DriveOptions(delta_chars=2000))
    assert sum(m.is_assistant for c in recorded for m in c.messages) == STEPS
    assert total.steps == STEPS - ONLY_THINKING
    assert total.skipped_reasons["no_reply"] == NO_REPLY
    assert total.repaired == NO_RESULTS == sum(len(c.unanswered) for c in recorded)
    assert total.compactions > 0
    assert not total.is_broken, total.faults


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_recorded_conversation_replays_with_interrupts(
    recorded: list[Conversation],
) -> None:
    options = DriveOptions(
        interrupt_every=60, interrupt_policy="drop_turn", seed=1, delta_chars=2000
    )
    total = await replay_all(recorded, options)
    assert total.resent > 5
    assert (total.history_equal, total.repaired) == (True, NO_RESULTS)
    assert total.repaired == sum(len(c.unanswered) for c in recorded)
    assert sum(m.is_assistant for c in recorded for m in c.messages) == STEPS
    assert total.steps == STEPS - ONLY_THINKING
    assert total.skipped_reasons["no_reply"] == NO_REPLY
    assert total.compactions > 0
    assert not total.is_broken, total.faults


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_recorded_conversations_stay_valid_under_random_policies(
    recorded: list[Conversation],
) -> None:
    total = await replay_all(
        recorded[::2], DriveOptions(interrupt_every=8, seed=1, delta_chars=2000)
    )
    assert total.kept > 10
    assert not total.is_broken, total.faults


@pytest.mark.long
@pytest.mark.real_time
@pytest.mark.timeout(600)
@pytest.mark.parametrize("window_tokens", [200_000, 60_000])
@pytest.mark.parametrize("policy", [*POLICIES, "random"])
@pytest.mark.parametrize(("seed", "anyio_backend"), [(2, "asyncio"), (3, "trio"), (4, "asyncio")])
async def test_every_recorded_conversation_under_many_interrupts(
    recorded: list[Conversation], seed: int, policy: str, window_tokens: int
) -> None:
    options = DriveOptions(
        interrupt_every=2 + seed, seed=seed, delta_chars=100 * seed, window_tokens=window_tokens
    )
    options = msgspec.structs.replace(options, interrupt_policy=policy)
    total = await replay_all(recorded, options)
    assert total.interrupts > 30
    assert not total.is_broken, total.faults
