"""Many deadlines, one sleeping task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llmsession.session.tasks.task_host import LoopCalls, Tasks
from llmsession.session.tasks.timers import Timers
from tests.session.probes import task_named


class Fired:
    """What fired, and how many seconds after the test's start."""

    def __init__(self) -> None:
        self.start = anyio.current_time()
        self.log: list[tuple[str, float]] = []

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.log.append((name, round(anyio.current_time() - self.start, 6)))


@asynccontextmanager
async def timing() -> AsyncIterator[tuple[Timers, Fired]]:
    async with anyio.create_task_group() as group, Tasks(group) as tasks:
        yield Timers(tasks, LoopCalls(group)), Fired()


def tasks() -> int:
    return sum(task.name == "llmsession timers" for task in anyio.get_running_tasks())


async def test_deadlines_fire_in_time_order_whatever_order_they_were_set_in() -> None:
    async with timing() as (timers, fired):
        for delay_s in (30.0, 10.0, 20.0, 0.5):
            timers.after(delay_s, fired.note(f"{delay_s:g}"))
    assert fired.log == [("0.5", 0.5), ("10", 10.0), ("20", 20.0), ("30", 30.0)]


async def test_equal_deadlines_fire_in_the_order_they_were_set() -> None:
    async with timing() as (timers, fired):
        for name in "abc":
            timers.after(1, fired.note(name))
    assert fired.log == [("a", 1.0), ("b", 1.0), ("c", 1.0)]


async def test_a_deadline_of_no_time_fires_after_the_caller_went_on() -> None:
    async with timing() as (timers, fired):
        timers.after(0, fired.note("now"))
        assert fired.log == []
    assert fired.log == [("now", 0.0)]


async def test_an_earlier_deadline_that_is_set_later_is_not_slept_over() -> None:
    async with timing() as (timers, fired):
        timers.after(100, fired.note("late"))
        await anyio.sleep(1)
        timers.after(2, fired.note("early"))
    assert fired.log == [("early", 3.0), ("late", 100.0)]


async def test_a_cancelled_deadline_never_fires() -> None:
    async with timing() as (timers, fired):
        first = timers.after(1, fired.note("first"))
        timers.after(2, fired.note("second"))
        third = timers.after(3, fired.note("third"))
        first.cancel()
        await anyio.sleep(2.5)
        third.cancel()
        assert first.is_cancelled
        assert third.is_cancelled
    assert fired.log == [("second", 2.0)]


async def test_a_timer_that_fires_may_cancel_the_next_and_set_another() -> None:
    async with timing() as (timers, fired):

        def fire() -> None:
            doomed.cancel()
            timers.after(0.5, fired.note("another"))

        timers.after(1, fire)
        doomed = timers.after(1, fired.note("doomed"))
    assert fired.log == [("another", 1.5)]


async def test_there_is_one_task_while_there_are_deadlines_and_none_otherwise() -> None:
    async with timing() as (timers, fired):
        await checkpoint()
        assert tasks() == 0
        for at in range(1000):
            timers.after(1 + at / 1000, fired.note("x"))
        await checkpoint()
        assert tasks() == 1
        await anyio.sleep(3)
        assert (tasks(), len(fired.log)) == (0, 1000)
        timers.after(1, fired.note("again"))
        await checkpoint()
        assert tasks() == 1
    assert fired.log[-1] == ("again", 4.0)


async def test_closing_forgets_every_deadline_and_ends_the_task() -> None:
    async with timing() as (timers, fired):
        timers.after(1, fired.note("x"))
        timers.after(50, fired.note("x"))
        await checkpoint()
        timers.close()
        await anyio.sleep(0.01)
        assert tasks() == 0
        await anyio.sleep(100)
    assert fired.log == []


async def test_a_deadline_that_is_set_after_closing_never_fires() -> None:
    async with timing() as (timers, fired):
        timers.after(1, fired.note("x"))
        await checkpoint()
        timers.close()
        timers.after(1, fired.note("the task is still there"))
        await anyio.sleep(5)
        timers.after(1, fired.note("the task has ended"))
        await anyio.sleep(5)
        assert tasks() == 0
    assert fired.log == []


async def test_cancelling_the_group_ends_the_task_without_firing() -> None:
    async with anyio.create_task_group() as group, Tasks(group) as tasks:
        timers, fired = Timers(tasks, LoopCalls(group)), Fired()
        timers.after(1, fired.note("x"))
        await checkpoint()
        group.cancel_scope.cancel()
    await anyio.sleep(5)
    assert fired.log == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_deadlines_stand_if_somebody_cancels_the_task_alone() -> None:
    async with timing() as (timers, fired):
        timers.after(5, fired.note("x"))
        for _ in range(3):
            await anyio.sleep(1)
            task_named("llmsession timers").cancel()
        await anyio.sleep(0.5)
        timers.after(1, fired.note("earlier"))
    assert fired.log == [("earlier", 4.5), ("x", 5.0)]
