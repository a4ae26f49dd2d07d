"""A user's own parts in a simulation: what is wrong with them is one clear error."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import anyio
import anyio.to_thread
import pytest

from llmsession.errors import InvalidConfig, InvalidInput
from llmsession.session.values.config import SessionConfig, Tool
from llmsession.testing import SimulationPlan, UserParts, simulate
from llmsession.testing.simulation.search import SimulationReport

CALLS = {"look": lambda random: {"path": "a.txt"}}


def played(run: Any, seeds: int = 3) -> SimulationReport:
    tools = (Tool(name="look", run=run),)
    return simulate(SimulationPlan(seeds=seeds), UserParts(tools=tools, calls=CALLS))


async def quick(path: str) -> str:
    await anyio.sleep(0.01)
    return path


async def in_a_thread(path: str) -> str:
    return await anyio.to_thread.run_sync(lambda: path)


@pytest.mark.parametrize("run", [in_a_thread, lambda path: path], ids=["asked for", "not async"])
def test_a_tool_that_needs_a_thread_is_refused(run: Any) -> None:
    with pytest.raises(InvalidInput, match="asked for a thread"):
        played(run)


def test_what_a_tool_raises_is_counted() -> None:
    async def failing(path: str) -> str:
        raise LookupError(path)

    assert played(failing).reached["tool look: LookupError"] > 0


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (UserParts(config=lambda random: None), "NoneType"),  # type: ignore[arg-type, return-value]
        (UserParts(config=SessionConfig(model="m")), "a function that returns"),  # type: ignore[arg-type]
        (UserParts(calls={"nowhere": lambda random: {}}), "unknown tool 'nowhere'"),
        (UserParts(calls={"quick": lambda random: 5}), "calls\\['quick'\\]"),  # type: ignore[dict-item, return-value]
        (UserParts(calls={}), "no tool"),
        (UserParts(tools=(quick,)), "not function"),  # type: ignore[arg-type]
        (UserParts(tools=(Tool(name="look", run=quick),)), "also needs calls"),
    ],
    ids=[
        "no config",
        "no function",
        "no tool",
        "no arguments",
        "no calls",
        "a function that returns",
        "idle",
    ],
)
def test_parts_that_cannot_be_used_are_refused_before_anything_runs(
    parts: UserParts, named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        simulate(SimulationPlan(seeds=1), parts)


def test_a_configuration_that_cannot_be_used_is_no_group_of_errors() -> None:
    def config(random: Random) -> SessionConfig:
        return SessionConfig(model="m", window_tokens=-4)

    with pytest.raises(InvalidConfig, match="window_tokens"):
        simulate(SimulationPlan(seeds=1), UserParts(config=config))


async def test_a_simulation_within_a_loop_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a function that is not async"):
        simulate(SimulationPlan(seeds=1))


def test_without_trio_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(InvalidInput, match=r"llmsession\[testing\]"):
        simulate(SimulationPlan(seeds=1))
