"""Sessions whose results fill a small window, and what the tests of compactions do with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from llmsession import Tool
from llmsession.session.values.outcome import CompactionOutcome
from llmsession.testing.scripted import Scripted, call
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag
from tests.session.actors import Quick, Stage, settled

LINE = "a line of output that says something\n"
OUTPUT = LINE * 200  # about 2,700 tokens


def one_call_a_turn(request: Request, tag: StepTag) -> Scripted:
    return call("t", id=f"c{tag.turn}") if tag.step == 1 else f"done {tag.turn}"


def tools(output: Any = OUTPUT) -> list[Tool]:
    return [Tool(name="t", run=Quick(output))]


async def turns(on: Stage, count: int) -> None:
    for number in range(count):
        await on.say(f"message {number}")
        await settled()


async def applied(on: Stage) -> list[r.CompactionApplied]:
    return [record for record in await on.log() if isinstance(record, r.CompactionApplied)]


@asynccontextmanager
async def compacting(on: Stage, callers: int = 1) -> AsyncIterator[list[CompactionOutcome]]:
    """So many callers of ``compact`` beside the body; their outcomes are complete after it."""
    outcomes: list[CompactionOutcome] = []

    async def compact() -> None:
        outcomes.append(await on.session.compact())

    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(compact)
        yield outcomes
