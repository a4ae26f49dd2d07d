from __future__ import annotations

import itertools
from functools import partial
from typing import Literal, TypeAlias

import msgspec
import pytest

from llmsession.errors import ProviderError
from llmsession.turns import events as e
from llmsession.turns.event_choice import (
    OnFailure,
    event_for_answers,
    event_for_budget,
    event_for_interrupt,
    event_for_limit,
    event_for_reply,
    event_for_step,
    event_for_stopped,
    event_for_stream_failure,
    progress,
)
from llmsession.turns.machine import Phase, Turn, TurnLimits
from llmsession.turns.records import InterruptPolicy
from llmsession.turns.reply import Reply
from llmsession.turns.request import StepTag
from llmsession.turns.usage import Usage
from tests.turns.paths import (
    AFTER_THE_DECISION,
    AT_AN_END,
    CALLS,
    DROP,
    KEEP,
    LIMIT,
    NOT_ENDED,
    TO_STEP_2,
    TO_STREAMING,
    TO_TOOLS,
    after,
    at,
)

TAG = StepTag(3, 1, 1)
LIMITS = TurnLimits(max_steps=5, max_tokens=1000, max_retries=2, max_overflows=1, max_pauses=2)
Kind = Literal["retryable", "overflow", "fatal"]


def named(
    stop_reason: str | None, *, calls: bool = False, steers: int = 0, pauses: int = 0
) -> e.Event:
    reply = Reply(blocks=(), stop_reason=stop_reason, usage=Usage())
    turn = msgspec.structs.replace(at(Phase.STREAMING), pauses=pauses)
    pending_calls = CALLS if calls else ()
    return event_for_reply(turn, reply, pending_calls, steers=steers, limits=LIMITS, tag=TAG)


def finished(stop_reason: str) -> e.Event:
    return e.ReplyFinished(tag=TAG, stop_reason=stop_reason)


TOOLS = e.ReplyRequestedTools(tag=TAG, calls=CALLS)
PAUSED = e.ReplyContinued(tag=TAG, paused=True)
STEERED = e.ReplyContinued(tag=TAG, paused=False)
REFUSED = e.ReplyRefused(tag=TAG, stop_reason="refusal")

Meanings: TypeAlias = tuple[e.Event, e.Event, e.Event, e.Event]
"""Of a reply alone, with calls, with a steer, with calls and a steer."""


def cut(stop_reason: str) -> Meanings:
    return (finished(stop_reason), finished(stop_reason), STEERED, STEERED)


MEANINGS: dict[str | None, Meanings] = {
    "end_turn": (finished("end_turn"), TOOLS, STEERED, TOOLS),
    "stop_sequence": (finished("stop_sequence"), TOOLS, STEERED, TOOLS),
    "tool_use": (finished("end_turn"), TOOLS, STEERED, TOOLS),
    "pause_turn": (PAUSED, TOOLS, PAUSED, TOOLS),
    "compaction": (PAUSED, TOOLS, PAUSED, TOOLS),
    "refusal": (REFUSED, REFUSED, REFUSED, REFUSED),
    # A cut or an unknown reply never starts tools.
    "max_tokens": cut("max_tokens"),
    "model_context_window_exceeded": cut("model_context_window_exceeded"),
    "a_word_of_tomorrow": cut("a_word_of_tomorrow"),
    None: cut("unknown"),
}


@pytest.mark.parametrize("stop_reason", MEANINGS)
def test_every_stop_reason_with_and_without_calls_and_steers_has_its_meaning(
    stop_reason: str | None,
) -> None:
    ways = [(False, 0), (True, 0), (False, 1), (True, 1)]
    for meant, (calls, steers) in zip(MEANINGS[stop_reason], ways, strict=True):
        assert named(stop_reason, calls=calls, steers=steers) == meant


@pytest.mark.parametrize("stop_reason", ["pause_turn", "compaction"])
def test_a_turn_is_sent_on_after_a_pause_at_most_so_many_times(stop_reason: str) -> None:
    assert named(stop_reason, pauses=1) == PAUSED
    assert named(stop_reason, pauses=2) == finished(stop_reason)
    assert named(stop_reason, pauses=2, steers=1) == STEERED


@pytest.mark.parametrize("stop_reason", ["pause_turn", "compaction"])
def test_a_pause_behind_which_no_request_may_end_is_the_end_of_the_turn(stop_reason: str) -> None:
    reply, turn = Reply(blocks=(), stop_reason=stop_reason, usage=Usage()), at(Phase.STREAMING)
    named = partial(event_for_reply, turn, reply, limits=LIMITS, tag=TAG, goes_on=False)
    assert named((), steers=0) == finished(stop_reason)
    assert named((), steers=1) == STEERED
    assert named(CALLS, steers=0) == TOOLS


# Failures of the stream


def failed(
    kind: Kind,
    turn: Turn,
    *,
    delay_s: float = 0.0,
    on_failure: Literal["keep_steps", "drop"] = "keep_steps",
) -> e.Event:
    error = ProviderError("no luck", kind=kind, delay_s=delay_s)
    return event_for_stream_failure(turn, error, limits=LIMITS, on_failure=on_failure, tag=TAG)


def streaming(*, kept: bool = False, retries: int = 0, overflows: int = 0) -> Turn:
    turn = after(*TO_STEP_2, e.ContextBuilt()) if kept else at(Phase.STREAMING)
    return msgspec.structs.replace(turn, retries=retries, overflows=overflows)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_retryable_failure_is_retried_up_to_its_bound(retries: int) -> None:
    assert isinstance(failed("retryable", streaming(retries=retries)), e.StreamBroke)
    assert isinstance(failed("retryable", streaming(retries=2)), e.GaveUpDropped)


def test_what_the_provider_has_retried_itself_is_not_retried_on_top() -> None:
    error = ProviderError("no luck", kind="retryable", retried=True)
    for kept, given_up in ((False, e.GaveUpDropped), (True, e.GaveUpKept)):
        turn = streaming(kept=kept)
        event = event_for_stream_failure(
            turn, error, limits=LIMITS, on_failure="keep_steps", tag=TAG
        )
        assert isinstance(event, given_up)


def test_a_budget_that_is_used_up_keeps_the_steps_under_keep_steps_and_drops_them_else() -> None:
    def named(turn: Turn, on_failure: OnFailure) -> e.Event:
        return event_for_budget(turn, "used up", on_failure=on_failure, tag=TAG)

    dropped = e.GaveUpDropped(tag=TAG, cause="budget", error="used up")
    assert named(after(*TO_STEP_2), "keep_steps") == e.GaveUpKept(
        tag=TAG, error="used up", stop_reason="budget"
    )
    assert named(after(*TO_STEP_2), "drop") == dropped
    assert named(at(Phase.BUILDING), "keep_steps") == dropped


def test_the_providers_delay_goes_before_our_own() -> None:
    assert failed("retryable", streaming(), delay_s=7.0) == e.StreamBroke(tag=TAG, delay_s=7.0)


@pytest.mark.parametrize(
    ("retries", "delay_s"),
    [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (60, 8.0), (5_000, 8.0)],
)
def test_our_own_delay_doubles_up_to_eight_seconds(retries: int, delay_s: float) -> None:
    event = event_for_stream_failure(
        streaming(retries=retries),
        ProviderError("", kind="retryable"),
        limits=TurnLimits(max_retries=10_000),
        on_failure="drop",
        tag=TAG,
    )
    assert event == e.StreamBroke(tag=TAG, delay_s=delay_s)


def test_an_overflow_is_built_smaller_up_to_its_bound_whatever_was_retried() -> None:
    assert failed("overflow", streaming(retries=2)) == e.StreamOverflowed(tag=TAG)
    assert failed("overflow", streaming(overflows=1)) == e.GaveUpDropped(
        tag=TAG, cause="overflow", error="no luck"
    )


def test_a_turn_that_overflows_for_good_is_dropped_even_with_completed_steps() -> None:
    assert isinstance(failed("overflow", streaming(kept=True, overflows=1)), e.GaveUpDropped)


@pytest.mark.parametrize(("kind", "retries"), [("fatal", 0), ("retryable", 2)])
def test_a_provider_given_up_keeps_completed_steps_unless_they_are_not_wanted(
    kind: Kind, retries: int
) -> None:
    with_steps = streaming(kept=True, retries=retries)
    dropped = e.GaveUpDropped(tag=TAG, cause=kind, error="no luck")
    assert failed(kind, with_steps) == e.GaveUpKept(tag=TAG, error="no luck")
    assert failed(kind, with_steps, on_failure="drop") == dropped
    assert failed(kind, streaming(retries=retries)) == dropped


# Interrupts


@pytest.mark.parametrize("phase", [*NOT_ENDED, *AT_AN_END])
def test_an_interrupt_finds_a_turn_open_decided_or_ended(phase: Phase) -> None:
    expected = "open"
    if phase in AFTER_THE_DECISION:
        expected = "decided"
    if phase in AT_AN_END:
        expected = "ended"
    assert progress(at(phase)) == expected


def interrupt(turn: Turn, policy: InterruptPolicy, *, has_text: bool = False) -> e.Event:
    return event_for_interrupt(turn, policy, reason="user", has_text=has_text)


@pytest.mark.parametrize("has_text", [False, True])
def test_drop_turn_drops_whatever_there_is(has_text: bool) -> None:
    for turn in (at(Phase.TOOLS), after(*TO_STEP_2, e.ContextBuilt())):
        assert interrupt(turn, "drop_turn", has_text=has_text) == DROP


def test_with_nothing_to_keep_every_policy_is_a_drop() -> None:
    policies: tuple[InterruptPolicy, ...] = ("keep_steps", "keep_text")
    for policy, phase in itertools.product(policies, (Phase.ACCEPTED, Phase.BUILDING)):
        assert interrupt(at(phase), policy) == DROP
        assert interrupt(at(phase), policy, has_text=True) == DROP
    assert interrupt(at(Phase.STREAMING), "keep_text") == DROP
    assert interrupt(at(Phase.STREAMING), "keep_steps", has_text=True) == DROP


def test_keep_steps_keeps_completed_steps_and_no_text() -> None:
    turn = after(*TO_STEP_2, e.ContextBuilt())
    assert interrupt(turn, "keep_steps", has_text=True) == KEEP
    assert interrupt(at(Phase.TOOLS), "keep_steps") == KEEP


def test_keep_text_keeps_the_text_of_a_streaming_step() -> None:
    with_text = e.KeepRequested(reason="cancelled", text=True)
    assert interrupt(at(Phase.STREAMING), "keep_text", has_text=True) == with_text
    stopping = after(*TO_STREAMING, LIMIT)
    assert interrupt(stopping, "keep_text", has_text=True) == with_text


def test_keep_text_outside_of_a_stream_keeps_the_steps() -> None:
    assert interrupt(at(Phase.TOOLS), "keep_text", has_text=True) == KEEP
    assert interrupt(after(*TO_STEP_2), "keep_text", has_text=True) == KEEP


# Answers, steps, stops


def test_the_last_open_calls_are_told_from_the_others() -> None:
    turn = at(Phase.TOOLS)
    assert event_for_answers(turn, ("c1",), TAG) == e.CallsAnswered(tag=TAG, calls=("c1",))
    assert event_for_answers(turn, ("c2", "c1")) == e.AllCallsAnswered(calls=("c2", "c1"))
    one_left = after(*TO_TOOLS, e.CallsAnswered(calls=("c1",)))
    assert event_for_answers(one_left, ("c2",)) == e.AllCallsAnswered(calls=("c2",))


@pytest.mark.parametrize(
    ("steps", "tokens", "expected"),
    [
        (4, 999, e.StepJournaled(tag=TAG)),
        (5, 0, e.LimitReached(tag=TAG, stop_reason="max_steps")),
        (4, 1000, e.LimitReached(tag=TAG, stop_reason="max_turn_tokens")),
        (5, 1000, e.LimitReached(tag=TAG, stop_reason="max_steps")),
    ],
)
def test_after_a_step_comes_the_next_or_a_limit(steps: int, tokens: int, expected: e.Event) -> None:
    turn = msgspec.structs.replace(at(Phase.JOURNALING), step=steps)
    assert event_for_step(turn, tokens=tokens, limits=LIMITS, tag=TAG) == expected


def test_without_limits_a_step_is_always_followed_by_the_next() -> None:
    turn = msgspec.structs.replace(at(Phase.JOURNALING), step=10**6)
    none = TurnLimits(max_steps=None, max_tokens=None)
    assert event_for_step(turn, tokens=10**9, limits=none, tag=TAG) == e.StepJournaled(tag=TAG)


def test_a_limit_is_named_after_its_stop_reason() -> None:
    assert event_for_limit("max_seconds") == LIMIT


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (after(*TO_TOOLS, DROP), e.StoppedToDrop()),
        (after(*TO_TOOLS, KEEP), e.StoppedToKeep()),
        (after(*TO_TOOLS, LIMIT), e.StoppedToKeep()),
        (after(*TO_STREAMING, LIMIT), e.StoppedToFail()),
        (after(*TO_TOOLS, KEEP, DROP), e.StoppedToDrop()),
        (at(Phase.STREAMING), e.StoppedToDrop()),
    ],
    ids=["drop", "keep", "limit", "limit, nothing to keep", "keep, then drop", "not asked"],
)
def test_a_stopped_turn_becomes_what_was_asked_for(turn: Turn, expected: e.Event) -> None:
    assert event_for_stopped(turn) == expected
