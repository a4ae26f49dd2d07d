"""What a provider's failures do: again, smaller, given up; never half a message in history."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import pytest

from llmsession import (
    CompactionConfig,
    InvalidConfig,
    ProviderError,
    SessionError,
    TextDelta,
    Tool,
    TurnFailed,
    TurnLimits,
)
from llmsession.session.manager import runtime_of
from llmsession.testing.scripted import Scripted, call, never, say, think
from llmsession.turns.request import Request, StepTag
from tests.session.actors import Quick, lasting, stage
from tests.session.compacting.conversations import applied


def busy(delay_s: float = 0.0) -> ProviderError:
    return ProviderError("overloaded", kind="retryable", delay_s=delay_s, status=529)


async def test_a_retryable_failure_starts_the_step_again_from_its_beginning() -> None:
    async with stage([say("half of the text").raising(busy(), at=3), "whole"]) as on:
        assert await on.say("hello") == "whole"
        assert [m.text for m in on.session.conversation()] == ["hello", "whole"]
        assert on.provider.requests[0].encode() == on.provider.requests[1].encode()
        assert [tag.attempt for tag in on.provider.tags] == [1, 2]


async def test_previews_of_a_new_attempt_carry_a_new_attempt_number() -> None:
    broken = say("half of the text").slow(0.01, delta_chars=4).raising(busy(), at=5)
    async with stage([broken, "whole"]) as on:
        seen: dict[int, str] = {}
        async for event in await on.session.send("hello"):
            if isinstance(event, TextDelta):
                seen[event.attempt] = seen.get(event.attempt, "") + event.text
        assert seen[2] == "whole"
        assert "half of the text".startswith(seen[1])


async def test_the_delay_that_the_server_names_is_kept() -> None:
    async with stage([say("x").raising(busy(delay_s=77)), "hi"]) as on:
        with lasting(77, abs=0.1):
            await on.say("hello")


async def test_without_a_named_delay_the_waits_double() -> None:
    opened: list[float] = []

    def script(request: Request, tag: StepTag) -> Scripted:
        opened.append(anyio.current_time())
        return say("x").raising(busy()) if tag.attempt < 5 else "hi"

    async with stage(script) as on:
        await on.say("hello")
        waits = [round(b - a, 3) for a, b in pairwise(opened)]
        assert waits == [0.5, 1.0, 2.0, 4.0]


async def test_retries_are_bounded_and_then_the_turn_fails_with_its_cause() -> None:
    async with stage(lambda request, tag: say("x").raising(busy())) as on:
        turn = await on.session.send("hello")
        with pytest.raises(TurnFailed) as raised:
            await turn.text()
        assert raised.value.cause_kind == "retryable"
        assert "overloaded" in str(raised.value)
        assert len(on.provider.requests) == 5
        assert on.session.conversation() == ()


async def test_each_step_has_its_retries_anew() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.attempt == 1:
            return say("x").raising(busy())
        return call("t", id=f"c{tag.step}") if tag.step < 6 else "done"

    async with stage(script, tool=Quick(), limits=TurnLimits(max_retries=1)) as on:
        assert await on.say("hello") == "done"


@pytest.mark.parametrize(
    ("on_failure", "status", "stop_reason", "roles"),
    [
        ("keep_steps", "committed", "error", ["user", "assistant", "user"]),
        ("drop", "failed", "fatal", []),
    ],
)
async def test_given_up_the_complete_steps_are_kept_with_the_stop_reason_error(
    on_failure: Any, status: str, stop_reason: str, roles: list[str]
) -> None:
    broken = say("half").raising(ProviderError("gone", kind="fatal", status=401), at=2)
    script = [call("t", id="c"), broken, "next"]
    async with stage(script, tool=Quick(), on_failure=on_failure) as on:
        outcome = await on.outcome("work")
        assert (outcome.status, outcome.stop_reason, outcome.error) == (status, stop_reason, "gone")
        assert len(on.provider.requests) == 2  # what is fatal is not tried again
        assert [m.role for m in on.session.conversation()] == roles
        assert (b"work" in bytes(outcome.user_body)) == (on_failure == "drop")
        assert await on.say("go on") == "next"


FAILURES: dict[str, BaseException] = {
    "retryable": ProviderError("busy", kind="retryable"),
    "fatal": ProviderError("bad", kind="fatal"),
    "overflow": ProviderError("too large", kind="overflow"),
    "a bug in the provider": ZeroDivisionError("oops"),
}
LONG = think("let me think") + say("some text") + call("t", {"path": "a"}, id="c")
EVENTS = len(LONG.events("m"))


@pytest.mark.parametrize("at", range(EVENTS))
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_provider_may_fail_at_every_event(failure: str, at: int) -> None:
    tool = Quick()
    failed = False

    def script(request: Request, tag: StepTag) -> Scripted:
        nonlocal failed
        if tag.turn == 1:
            return "hi"
        if not failed:
            failed = True
            return LONG.raising(FAILURES[failure], at=at)
        return LONG if tag.turn == 2 and tag.step == 1 else "done"

    async with stage(script, tool=tool) as on:
        await on.say("hello")
        base = on.session.conversation()
        outcome = await on.outcome("work")
        if failure == "retryable":
            assert (outcome.status, outcome.text) == ("committed", "done")
            assert tool.inputs == [{"path": "a"}]
        elif failure == "overflow":
            # Nothing can be made smaller here.
            assert (outcome.status, outcome.stop_reason) == ("failed", "context_too_large")
        else:
            assert (outcome.status, outcome.stop_reason) == ("failed", "fatal")
        if outcome.status == "failed":
            assert on.session.conversation() is base
            assert tool.inputs == []
        assert await on.say("again") == "done"


@pytest.mark.parametrize("at", range(EVENTS))
async def test_a_provider_may_hang_at_every_event_and_is_interrupted(at: int) -> None:
    async with stage(["hi", LONG.hanging(at=at), "done"], tools=[Tool(name="t")]) as on:
        await on.say("hello")
        base = on.session.conversation()
        await on.interrupted("work", after_s=1)
        assert on.session.conversation() is base
        assert await on.say("again") == "done"


async def test_a_stream_out_of_order_is_a_retryable_failure() -> None:
    async with stage([say("x").out_of_order(), "whole"]) as on:
        assert await on.say("hello") == "whole"
        assert len(on.provider.requests) == 2


async def test_the_tokens_of_a_failed_attempt_stay_counted() -> None:
    async with stage([say("x").raising(busy(), at=3), "whole"]) as on:
        await on.say("hello")
        assert on.session.usage().total.input_tokens == 20


async def test_an_overflow_compacts_harder_and_sends_the_step_again() -> None:
    tool = Quick("a line of output\n" * 1000)

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn < 8:
            return call("t", id=f"c{tag.turn}") if tag.step == 1 else "ok"
        too_large = ProviderError("prompt is too long", kind="overflow", status=400)
        return say("x").raising(too_large) if tag.attempt == 1 else "fits now"

    async with stage(script, tool=tool) as on:
        for n in range(7):
            await on.say(f"step {n}")
        assert await on.say("the large one") == "fits now"
        large, small = on.provider.requests[-2:]
        assert len(small.encode()) < len(large.encode())
        assert [record.trigger for record in await applied(on)] == ["overflow"]


async def test_a_request_over_the_budget_that_cannot_shrink_is_context_too_large() -> None:
    off = CompactionConfig(enabled=False)
    async with stage(["unused"], window_tokens=2000, max_tokens=1000, compaction=off) as on:
        outcome = await on.outcome("word " * 5000)
        assert (outcome.status, outcome.stop_reason) == ("failed", "context_too_large")
        assert (on.provider.requests, await applied(on)) == ([], [])
        assert await on.say("short") == "unused"


async def test_a_broken_provider_object_fails_the_turn_and_not_the_session() -> None:
    def script(request: Request, tag: StepTag) -> Any:
        if tag.turn == 1:
            raise KeyError("a bug before the first event")
        return "hi"

    async with stage(script) as on:
        with pytest.raises(SessionError, match="KeyError"):
            await on.say("hello")
        assert await on.say("hello") == "hi"


async def test_an_interrupt_during_the_wait_before_a_retry_sends_no_further_request() -> None:
    async with stage([say("x").raising(busy(delay_s=100)), never()]) as on:
        await on.interrupted("hello", after_s=1)
        await anyio.sleep(1000)
        assert len(on.provider.requests) == 1


# A stream that says nothing.


async def test_a_silent_stream_is_taken_for_broken_and_the_step_is_tried_again() -> None:
    async with stage([say("half of the text").hanging(at=3), "whole"]) as on:
        with lasting(300.5, abs=75.0):
            assert await on.say("hello") == "whole"
        assert [tag.attempt for tag in on.provider.tags] == [1, 2]


async def test_a_provider_that_never_answers_is_given_up_after_its_retries() -> None:
    limits = TurnLimits(silence_s=4.0, max_retries=2)
    async with stage(lambda request, tag: never(), limits=limits) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason) == ("failed", "retryable")
        assert "4 s (limits.silence_s)" in str(outcome.error)
        assert len(on.provider.requests) == 3


async def test_a_slow_stream_is_not_silent() -> None:
    slow = say("one piece every fourth minute").slow(240.0, delta_chars=10)
    async with stage([slow]) as on:
        assert await on.say("hello") == "one piece every fourth minute"
        assert len(on.provider.requests) == 1


async def test_without_a_bound_a_silent_stream_is_waited_for() -> None:
    async with stage([never()], limits=TurnLimits(silence_s=None)) as on:
        turn = await on.begin("hello")
        await anyio.sleep(50_000)
        assert on.session.status().phase == "running"
        await on.session.interrupt()
        assert (await turn.outcome()).status == "aborted"


async def test_a_silent_stream_that_ignores_its_cancellation_holds_no_turn() -> None:
    deaf = say("half of the text").ignoring_cancellation(1_000.0, at=3)
    async with stage([deaf, "whole", "next"]) as on:
        with lasting(300.5, abs=75.0):
            assert await on.say("hello") == "whole"
        assert await on.say("and now?") == "next"
        assert [m.text for m in on.session.conversation()][1::2] == ["whole", "next"]
        assert runtime_of(on.manager).running_works == ("stream of turn 1 in s",)
        await anyio.sleep(1_000)


async def test_the_silence_of_a_stream_is_at_least_a_moment() -> None:
    with pytest.raises(InvalidConfig, match="silence_s"):
        async with stage([], limits=TurnLimits(silence_s=0.0)):
            pass
