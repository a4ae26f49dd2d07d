"""A turn costs little more than before values of other people's code were checked. CPU time is too
unsteady for a test, so it counts calls of Python functions, which are the same in every run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import llmsession
from llmsession import MemoryStore, SessionConfig, SessionManager, Tool
from llmsession.testing import ScriptedProvider, call, say
from llmsession.testing.scripted import Scripted
from llmsession.turns.request import Request, StepTag

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
