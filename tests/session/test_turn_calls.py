"""What a turn costs, counted: CPU time is too unsteady for a test, and these are the same in every
run. A turn makes hardly more calls of Python functions than before values of other people's code
were checked. It starts one task for each stream and tool, and neither it nor an interrupt waits for
more passes of the event loop than it needs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import llmsession
from benchmarks.growth import CONFIG, TOOL, WAIT, Instant
from llmsession import MemoryStore, SessionConfig, SessionManager, Tool
from llmsession.testing import ScriptedProvider, call, say
from llmsession.testing.scripted import Scripted
from llmsession.turns.request import Request, StepTag
from tests.virtual_time import loop_turns

FOLDER = str(Path(llmsession.__file__).parent)
TURNS = 20
MAX_MORE = 1.05
"""The most that a turn may be dearer than before the checks."""


class Calls:
    """Counts calls of the package's functions, those of its testing tools left out."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._saw)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    def _saw(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(FOLDER) and "testing" not in file:
            self.count += 1


async def _read(path: str = "") -> str:
    return "a short result"


@pytest.mark.parametrize(("tool_calls", "before"), [(0, 727), (4, 3920)])
async def test_a_turn_makes_hardly_more_calls_than_before_its_values_were_checked(
    tool_calls: int, before: int
) -> None:
    def script(_: Request, tag: StepTag) -> Scripted:
        if tag.step <= tool_calls:
            return call("read", {"path": "a.txt"}, id=f"c{tag.turn}_{tag.step}")
        return say("a short answer")

    config = SessionConfig(model="m", tools=(Tool(name="read", run=_read),))
    async with SessionManager(provider=ScriptedProvider(script), store=MemoryStore()) as manager:
        session = await manager.create(config)
        await (await session.send("a short question")).outcome()
        with Calls() as calls:
            for _ in range(TURNS):
                outcome = await (await session.send("a short question")).outcome()
    assert outcome.status == "committed"
    assert calls.count / TURNS <= before * MAX_MORE


@contextmanager
def started_tasks() -> Iterator[list[str]]:
    """The names of the tasks that asyncio's loop starts in the body."""
    loop, names = asyncio.get_running_loop(), list[str]()
    create_task = loop.create_task

    def counting(*args: Any, **options: Any) -> Any:
        names.append(options.get("name") or "")
        return create_task(*args, **options)

    loop.create_task = counting  # type: ignore[method-assign]
    try:
        yield names
    finally:
        del loop.create_task


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize(("sent", "works"), [("a question", 1), (f"{TOOL} a question", 3)])
async def test_a_turn_has_one_task_and_one_pass_of_the_loop_for_each_stream_and_tool(
    anyio_backend: tuple[str, dict[str, Any]], sent: str, works: int
) -> None:
    async with SessionManager(provider=Instant(), store=MemoryStore()) as manager:
        session = await manager.create(CONFIG)
        await (await session.send("a question")).outcome()
        before = loop_turns(anyio_backend)
        with started_tasks() as names:
            outcome = await (await session.send(sent)).outcome()
        passes = loop_turns(anyio_backend) - before
    assert outcome.status == "committed"
    assert len(names) == works, names
    # The send is read in one, and the caller gets the outcome in another one.
    assert passes == works + 2


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_an_interrupt_is_answered_in_the_pass_after_the_end_of_the_stream(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    provider = Instant()
    async with SessionManager(provider=provider, store=MemoryStore()) as manager:
        session = await manager.create(CONFIG)
        await session.send(WAIT)
        await provider.streaming.wait()
        before = loop_turns(anyio_backend)
        with started_tasks() as names:
            outcome = await session.interrupt()
        passes = loop_turns(anyio_backend) - before
    assert (outcome.result, passes, names) == ("aborted", 2, [])
