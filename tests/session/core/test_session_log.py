"""What is logged: session, turn, step and attempt bound, and nothing that was said."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
import structlog
import trio

from llmsession import InterruptResult, ProviderError, Tool
from llmsession.testing.scripted import Script, ScriptedProvider, ScriptedReply, call, say, think
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import BlockStopped, ReplyEnded, StreamEvent
from tests.session.actors import Quick, SwallowingCancellation, in_tool, stage

SECRET = "xyzzy"


def recorder() -> tuple[Any, list[dict[str, Any]]]:
    """A structlog logger, and everything that is logged to it."""
    captured = structlog.testing.LogCapture()
    logger = structlog.wrap_logger(None, processors=[captured])
    return logger, captured.entries  # type: ignore[return-value]  # structlog's type is loose


def story() -> Script:
    broken = say(f"{SECRET} half").raising(ProviderError("busy", kind="retryable"), at=3)
    calls = think(SECRET) + say(SECRET) + call("t", {"secret": SECRET}, id="c")
    return [broken, calls, say(SECRET), ScriptedReply().hanging()]


async def told(**config: Any) -> list[dict[str, Any]]:
    logger, entries = recorder()
    tool = Tool(name="t", run=Quick(f"{SECRET} result"))
    async with stage(story(), tools=[tool], logger=logger, system=SECRET, **config) as on:
        await on.say(f"{SECRET} hello")
        await on.session.send(f"{SECRET} again")
        await on.session.interrupt()
        await on.session.compact()
    return entries


async def test_every_event_of_a_turn_has_session_turn_step_and_attempt_bound() -> None:
    entries = await told()
    of_turns = [entry for entry in entries if entry["event"].startswith(("turn.", "step."))]
    assert len(of_turns) > 10
    for entry in of_turns:
        assert entry["session"] == "s"
        assert {"turn", "step", "attempt"} <= entry.keys()
    assert {entry["turn"] for entry in of_turns} == {1, 2}
    assert max(entry["attempt"] for entry in of_turns) >= 2


async def test_a_reply_that_was_finished_in_one_request_is_logged_as_attempt_1() -> None:
    logger, entries = recorder()
    async with stage(["hi"], logger=logger) as on:
        await on.say("hello")
    moved = [entry for entry in entries if entry["event"] == "turn.moved"]
    assert [entry["attempt"] for entry in moved if entry["step"] == 1] == [1] * 4
    assert moved[-1]["phase"] == "committed"


async def test_all_entries_name_their_session() -> None:
    assert {entry.get("session") for entry in await told()} == {"s"}


async def test_no_content_is_logged_unless_it_is_asked_for() -> None:
    assert SECRET not in str(await told())
    assert SECRET in str(await told(log_content=True))


async def test_content_is_switched_on_and_off_by_configuration() -> None:
    logger, entries = recorder()
    async with stage(["a", "b"], logger=logger) as on:
        await on.session.configure(log_content=True)
        await on.say("reply")
        assert "reply" in str(entries)
        await on.session.configure(log_content=False)
        entries.clear()
        await on.say("unrecorded_usage")
        assert "unrecorded_usage" not in str(entries)


async def test_a_tool_that_ignores_cancellation_is_a_warning_with_its_name() -> None:
    logger, entries = recorder()
    tool = SwallowingCancellation(5)
    async with in_tool(tool, content="go", logger=logger) as (on, _):
        await on.session.interrupt()
    (entry,) = [e for e in entries if e["event"] == "work.ignores_cancellation"]
    assert entry["log_level"] == "warning"
    assert "tool t c" in str(entry["works"])


async def test_a_providers_bug_is_logged_with_its_traceback() -> None:
    logger, entries = recorder()
    async with stage([say("x").raising(ZeroDivisionError("oops"))], logger=logger) as on:
        await on.outcome("go")
    (entry,) = [e for e in entries if e["event"] == "provider.crashed"]
    assert isinstance(entry["exc_info"], ZeroDivisionError)


class Connecting(ScriptedProvider):
    """Its streams wait in a nursery, as trio opens a connection. Both cancellations are raised, as
    a group.
    """

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
        yield ReplyEnded("end_turn")


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_an_interrupt_of_a_provider_that_waits_in_a_nursery_is_no_bug_of_the_provider() -> (
    None
):
    logger, entries = recorder()
    async with stage(provider=Connecting([]), logger=logger) as on:
        await on.session.send("go")
        await anyio.sleep(1)
        assert (await on.session.interrupt()).result is InterruptResult.ABORTED
    assert "provider.crashed" not in [entry["event"] for entry in entries]


class EndingWithTheGrace(ScriptedProvider):
    """Its streams swallow a cancellation and are cancelled again at the moment in which the grace
    period ends."""

    def __init__(self, grace_s: float) -> None:
        super().__init__(())
        self.grace_s = grace_s
        self.started = anyio.Event()

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        self.started.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.grace_s)
        await anyio.sleep(5)
        yield BlockStopped(0)


async def test_a_cancellation_that_comes_with_the_end_of_the_grace_is_no_bug_of_the_provider() -> (
    None
):
    for _ in range(20):  # trio wakes tasks of one moment in a random order
        logger, entries = recorder()
        provider = EndingWithTheGrace(0.5)
        async with stage(provider=provider, logger=logger, grace_s=0.5) as on:
            await on.session.send("go")
            await provider.started.wait()
            await on.session.interrupt()
        assert [e for e in entries if e["log_level"] == "error"] == []


async def test_without_a_logger_entries_go_to_the_standard_librarys_logger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="llmsession")
    async with stage(["hi"]) as on:
        await on.say("hello")
    records = [record for record in caplog.records if record.name == "llmsession"]
    assert {getattr(record, "session", None) for record in records} == {"s"}
    assert [record for record in records if record.getMessage() == "turn.accepted"] != []
    assert "hello" not in caplog.text
