"""Work in scopes of its own: asked to stop, and left alone when it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from llmsession.errors import error_text
from llmsession.session.tasks.task_host import LoopCalls, Tasks
from llmsession.session.tasks.works import Work, Works
from tests.session.actors import SwallowingCancellation
from tests.session.probes import task_named
from tests.virtual_time import loop_turns

GRACE_S = 0.1


def unheard(name: str, error: Exception) -> None:
    """The error of a work that these tests do not look at."""


class Ended:
    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, work: Work) -> None:
        assert work.is_done
        self.names.append(work.name)


@asynccontextmanager
async def works_beside(
    group: TaskGroup, failed: Callable[[str, Exception], None] = unheard
) -> AsyncIterator[Works]:
    """Works that have ended when it is left."""
    async with Tasks(group) as tasks:
        yield Works(tasks, LoopCalls(group), failed)


@asynccontextmanager
async def works_in(
    failed: Callable[[str, Exception], None] = unheard,
) -> AsyncIterator[Works]:
    """Works beside a group of their own."""
    async with anyio.create_task_group() as group, works_beside(group, failed) as works:
        yield works


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Works, Ended]]:
    """Works beside the body, which is left when all have ended."""
    async with works_in() as works:
        yield works, Ended()


async def test_work_runs_beside_the_caller_and_says_once_that_it_has_ended() -> None:
    async with running() as (works, ended):

        async def body() -> None:
            await anyio.sleep(1)

        work = works.start("w", body, ended)
        assert (work.is_done, works.running, ended.names) == (False, ("w",), [])
    assert (work.is_done, works.running, ended.names) == (True, (), ["w"])


async def test_what_comes_last_runs_after_the_end_was_reported_and_the_group_waits_for_it() -> None:
    order: list[str] = []

    async def last() -> None:
        await anyio.sleep(1)
        order.append("last")

    async with works_in() as works:
        work = works.start("w", anyio.sleep_forever, lambda _: order.append("ended"), last)
        await checkpoint()
        work.cancel()
        await anyio.sleep(0.5)
        assert (work.is_done, works.running, order) == (True, (), ["ended"])
    assert order == ["ended", "last"]


async def test_running_names_what_runs_sorted() -> None:
    async with running() as (works, ended):
        for seconds, name in ((1, "b"), (3, "a"), (2, "c")):
            works.start(name, partial(anyio.sleep, seconds), ended)
        assert list(works.running) == ["a", "b", "c"]
        await anyio.sleep(1.5)
        assert list(works.running) == ["a", "c"]
    assert ended.names == ["b", "c", "a"]


async def test_cancelling_stops_that_work_and_no_other() -> None:
    async with running() as (works, ended):
        stopped = works.start("stopped", anyio.sleep_forever, ended)
        works.start("goes on", lambda: anyio.sleep(5), ended)
        await checkpoint()
        stopped.cancel()
        await anyio.sleep(1)
        assert (ended.names, works.running) == (["stopped"], ("goes on",))
    assert ended.names == ["stopped", "goes on"]


async def test_a_work_that_is_cancelled_and_abandoned_before_it_begins_ends() -> None:
    async def body() -> None:
        await checkpoint()  # trio's looks twice, with a turn between
        await anyio.sleep(3)

    async with running() as (works, ended):
        for number in range(100):  # trio runs what is ready in a random order
            work = works.start(f"{number}", body, ended)
            work.cancel()
            work.abandon()
        await anyio.sleep(1)
        assert works.running == ()


async def test_a_cancellation_that_was_abandoned_before_the_loop_turned_reaches_the_work() -> None:
    """Something may hold up the loop for the whole grace while the work has just been woken up."""
    async with running() as (works, ended):
        news = anyio.Event()

        async def body() -> None:
            await news.wait()
            await anyio.sleep(3)

        work = works.start("w", body, ended)
        await anyio.wait_all_tasks_blocked()
        news.set()
        work.cancel()
        work.abandon()
        await anyio.sleep(1)
        assert ended.names == ["w"]


async def test_work_that_is_cancelled_before_it_began_ends_at_its_first_wait() -> None:
    ended, reached = Ended(), []
    async with works_in() as works:

        async def body() -> None:
            reached.append("start")
            await checkpoint()
            reached.append("went on")

        works.start("w", body, ended).cancel()
    assert ended.names == ["w"]
    assert "went on" not in reached


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_work_whose_task_somebody_cancels_before_its_first_step_is_done_all_the_same() -> (
    None
):
    done: list[str] = []

    async def body() -> None:
        await anyio.sleep(1)
        done.append("w")

    async with running() as (works, ended):
        works.start("w", body, ended)
        task_named("llmsession w").cancel()
    assert (done, ended.names, works.running) == (["w"], ["w"], ())


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_work_that_is_stopped_and_cancelled_by_others_before_it_began_ends_too() -> None:
    ended, reached = Ended(), []

    async def body() -> None:
        await anyio.sleep(1)
        reached.append("went on")

    async with works_in() as works:
        work = works.start("w", body, ended)
        task_named("llmsession w").cancel()
        work.cancel()
    assert (ended.names, reached) == (["w"], [])


async def test_cancelling_the_group_also_ends_work_and_says_so() -> None:
    ended = Ended()
    async with anyio.create_task_group() as group, works_beside(group) as works:
        works.start("begun", anyio.sleep_forever, ended)
        await checkpoint()
        works.start("not begun", anyio.sleep_forever, ended)
        group.cancel_scope.cancel()
    assert sorted(ended.names) == ["begun", "not begun"]


async def test_stopping_all_returns_as_soon_as_the_last_work_has_stopped() -> None:
    async with running() as (works, ended):
        for name in "abc":
            works.start(name, anyio.sleep_forever, ended)
        await checkpoint()
        await works.stop_all(100)
        assert sorted(ended.names) == ["a", "b", "c"]
        assert anyio.current_time() == 0
        await works.stop_all(100)  # nothing runs: nothing to wait for
        assert anyio.current_time() == 0


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("a bug"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()]
)
async def test_what_a_work_raises_is_reported_by_name_and_ends_no_other_work(
    error: BaseException,
) -> None:
    heard: list[tuple[str, str]] = []
    ended = Ended()

    async def body() -> None:
        raise error

    async with works_in(lambda name, error: heard.append((name, error_text(error)))) as works:
        works.start("beside", partial(anyio.sleep, 1), ended)
        works.start("w", body, ended)
    assert ended.names == ["w", "beside"]
    assert [name for name, _ in heard] == ["w"]
    assert type(error).__name__ in heard[0][1]


async def test_abandoned_work_that_swallows_cancellation_costs_no_turns_of_the_loop(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    async with running() as (works, ended):
        tool = SwallowingCancellation(1)
        work = works.start("w", tool, ended)
        await checkpoint()
        work.cancel()
        await anyio.sleep(GRACE_S)
        assert tool.swallowed > 5, "it did not swallow its cancellation: this test shows nothing"
        work.abandon()
        await checkpoint()
        before, swallowed = loop_turns(anyio_backend), tool.swallowed
        await anyio.sleep(0.5)
        assert loop_turns(anyio_backend) - before < 20
        assert (ended.names, tool.swallowed) == ([], swallowed)
    assert ended.names == ["w"]
    assert anyio.current_time() == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_work_that_ignores_its_cancellation_leaves_the_loop_at_rest_in_its_grace_too(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    async with running() as (works, ended):
        work = works.start("w", SwallowingCancellation(1), ended)
        await checkpoint()
        before = loop_turns(anyio_backend)
        work.cancel()
        await anyio.sleep(GRACE_S)
        assert loop_turns(anyio_backend) - before < 50
        work.abandon()


async def test_a_cancellation_during_a_shield_reaches_the_work_behind_it() -> None:
    reached = []

    async def body() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(GRACE_S / 2)
            reached.append("the end of the shield")
        await anyio.sleep(10)
        reached.append("the end")

    async with running() as (works, ended):
        work = works.start("w", body, ended)
        await checkpoint()
        work.cancel()
        await anyio.sleep(GRACE_S)
        assert (reached, ended.names) == (["the end of the shield"], ["w"])


async def test_stopping_all_waits_for_the_grace_and_then_lets_the_loop_rest(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    async with running() as (works, ended):
        for name in "abc":
            works.start(name, SwallowingCancellation(10), ended)
        works.start("obeys", anyio.sleep_forever, ended)
        await checkpoint()
        with anyio.fail_after(GRACE_S + 0.05):
            await works.stop_all(GRACE_S)
        assert anyio.current_time() >= GRACE_S
        await checkpoint()
        before = loop_turns(anyio_backend)
        await anyio.sleep(5)
        assert loop_turns(anyio_backend) - before < 20
        assert (works.running, ended.names) == (("a", "b", "c"), ["obeys"])
    assert sorted(ended.names) == ["a", "b", "c", "obeys"]


async def test_a_stop_that_is_cancelled_in_its_grace_lets_the_loop_rest_too(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    async with running() as (works, ended):
        works.start("w", SwallowingCancellation(10), ended)
        await checkpoint()
        with anyio.move_on_after(GRACE_S):
            await works.stop_all(100)
        before = loop_turns(anyio_backend)
        await anyio.sleep(5)
        assert loop_turns(anyio_backend) - before < 20
    assert ended.names == ["w"]


async def test_abandoning_work_that_was_not_cancelled_lets_it_end_by_itself() -> None:
    async with running() as (works, ended):
        work = works.start("w", lambda: anyio.sleep(3), ended)
        work.abandon()
        work.cancel()
        await anyio.sleep(2)
        assert ended.names == []
    assert ended.names == ["w"]


async def test_swallowed_cancellation_does_not_hold_the_one_who_asked() -> None:
    async with running() as (works, ended):
        work = works.start("w", SwallowingCancellation(10), ended)
        await checkpoint()
        start = anyio.current_time()
        work.cancel()
        await checkpoint()
        assert anyio.current_time() == start
        work.abandon()
    assert ended.names == ["w"]
