"""Tasks beside a group: they are supervised as the group supervises its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from llmsession import SessionClosed
from llmsession.session.tasks.task_host import LoopCalls, TaskHost, Tasks
from llmsession.session.tasks.works import Work, Works
from tests.session.actors import SwallowingCancellation
from tests.session.probes import task_named
from tests.virtual_time import loop_turns

ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


class Heard:
    """What was reported of works: their ends in order, and their errors by name."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.failed: dict[str, Exception] = {}

    def over(self, work: Work) -> None:
        self.ended.append(work.name)


@asynccontextmanager
async def works() -> AsyncIterator[tuple[Works, Heard, anyio.CancelScope]]:
    """Works, what is heard of them, and the scope of the group that they are beside."""
    heard = Heard()
    async with anyio.create_task_group() as group, Tasks(group) as tasks:
        yield (
            Works(tasks, LoopCalls(group), heard.failed.__setitem__), heard, group.cancel_scope,
        )  # fmt: skip


async def raising(error: BaseException) -> None:
    await checkpoint()
    raise error


async def test_they_are_left_only_when_all_have_ended_also_those_that_were_abandoned() -> None:
    async with works() as (running, heard, _):
        for name in ("abandoned", "stubborn"):
            running.start(name, SwallowingCancellation(3), heard.over)
        running.start("long", partial(anyio.sleep, 5), heard.over)
        await checkpoint()
        running.start("late", partial(anyio.sleep, 1), heard.over).abandon()
    assert sorted(heard.ended[1:3]) == ["abandoned", "stubborn"]
    assert (heard.ended[0], heard.ended[3]) == ("late", "long")
    assert anyio.current_time() == pytest.approx(5, abs=0.5)


async def test_an_error_cancels_all_and_is_raised_when_all_have_ended() -> None:
    ended: list[str] = []

    async def tidying(scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            ended.append("tidied up")

    with pytest.raises(BaseExceptionGroup) as raised:
        async with anyio.create_task_group() as group, Tasks(group) as tasks:
            scope = anyio.CancelScope()
            tasks.start(tidying, scope, cancel=scope.cancel, is_over=lambda: True, name="tidying")
            tasks.start(
                raising, error := ZeroDivisionError(),
                cancel=lambda: None, is_over=lambda: True, name="bug",
            )  # fmt: skip
            await anyio.sleep_forever()
    assert raised.value.exceptions == (error,)
    assert ended == ["tidied up"]


async def test_an_error_in_the_group_cancels_the_tasks_beside_it() -> None:
    heard = Heard()
    with pytest.raises(BaseExceptionGroup) as raised:
        async with anyio.create_task_group() as group, Tasks(group) as tasks:
            running = Works(tasks, LoopCalls(group), heard.failed.__setitem__)
            running.start("work", anyio.sleep_forever, heard.over)
            group.start_soon(raising, error := ZeroDivisionError())
    assert raised.value.exceptions == (error,)
    assert heard.ended == ["work"]


async def test_a_task_that_is_started_when_all_were_cancelled_is_cancelled_too() -> None:
    started, went_on = [], []

    async with works() as (running, heard, group):

        async def next_one() -> None:
            started.append("next")
            await anyio.sleep(1)
            went_on.append("next")

        def over(work: Work) -> None:
            heard.over(work)
            running.start("next", next_one, heard.over)

        running.start("first", anyio.sleep_forever, over)
        await checkpoint()
        group.cancel()
    assert heard.ended == ["first", "next"]
    assert went_on == []


async def test_cancelling_the_group_does_not_reach_what_was_abandoned() -> None:
    async with works() as (running, heard, group):
        tool = SwallowingCancellation(2)
        work = running.start("abandoned", tool, heard.over)
        await checkpoint()
        work.abandon()
        group.cancel()
    assert (heard.ended, tool.swallowed) == (["abandoned"], 0)


@ON_ASYNCIO
async def test_a_cancelled_group_leaves_the_loop_at_rest_while_a_task_tidies_up(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    async def tidying() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)

    async with works() as (running, heard, group):
        running.start("work", tidying, heard.over)
        await checkpoint()
        before = loop_turns(anyio_backend)
        group.cancel()
    assert loop_turns(anyio_backend) - before < 1000
    assert heard.ended == ["work"]


@ON_ASYNCIO
async def test_a_caller_that_asyncio_cancels_while_it_waits_is_told_once_all_have_ended() -> None:
    heard = Heard()

    async def host() -> None:
        async with works() as (running, heard_here, _):
            heard_here.ended = heard.ended
            running.start("obeys", anyio.sleep_forever, heard_here.over)
            running.start("tidies", SwallowingCancellation(0.05), heard_here.over)

    task = asyncio.create_task(host())
    await anyio.sleep(0.01)
    for _ in range(3):
        assert task.cancel()
        await checkpoint()
    await asyncio.wait([task])
    assert task.cancelled()
    assert sorted(heard.ended) == ["obeys", "tidies"]


def test_an_interrupt_by_the_keyboard_in_a_task_ends_the_program_and_its_other_tasks() -> None:
    for backend in ("asyncio", "trio"):
        heard = Heard()

        async def program(heard: Heard = heard) -> None:
            async with works() as (running, heard_here, _):
                heard_here.ended = heard.ended
                running.start("other", anyio.sleep_forever, heard_here.over)
                running.start("work", partial(raising, KeyboardInterrupt()), heard_here.over)
                await anyio.sleep_forever()

        with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)) as raised:
            anyio.run(program, backend=backend)
        error = raised.value
        assert isinstance(error, KeyboardInterrupt) or (
            isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt)
        )
        assert sorted(heard.ended) == ["other", "work"], backend


def test_an_event_loop_that_ends_first_ends_the_tasks_too() -> None:
    heard = Heard()

    async def host() -> None:
        async with works() as (running, heard_here, _):
            heard_here.ended = heard.ended
            running.start("work", anyio.sleep_forever, heard_here.over)
            await anyio.sleep_forever()

    async def program() -> None:
        program.host = asyncio.create_task(host())  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)

    asyncio.run(program())
    assert heard.ended == ["work"]


def _factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


@ON_ASYNCIO
async def test_a_task_factory_of_the_program_s_own_begins_no_task_in_its_caller() -> None:
    loop, begun = asyncio.get_running_loop(), []

    async def body() -> None:
        begun.append(True)

    loop.set_task_factory(getattr(asyncio, "eager_task_factory", _factory))  # from Python 3.12
    try:
        async with works() as (running, heard, _):
            running.start("work", body, heard.over)
            assert begun == []
    finally:
        loop.set_task_factory(None)
    assert (heard.ended, begun) == (["work"], [True])


# An end that nobody asked for.


@asynccontextmanager
async def hosted() -> AsyncIterator[tuple[anyio.CancelScope, list[str]]]:
    """In a host: the scope of its group, and what the host has called."""
    scopes: list[anyio.CancelScope] = []
    called: list[str] = []

    async def call(name: str) -> None:
        await checkpoint()
        called.append(name)

    def start(group: TaskGroup, _: Tasks) -> None:
        scopes.append(group.cancel_scope)

    host = TaskHost(
        start, partial(call, "close"), partial(call, "last"), partial(call, "cancelled")
    )
    await host.enter()
    try:
        yield scopes[0], called
    finally:
        await host.leave()


async def test_a_host_that_is_left_is_closed_and_raises_nothing() -> None:
    async with hosted() as (_, called):
        await anyio.sleep(1)
    assert called == ["close", "last"]


async def test_a_host_whose_group_somebody_cancels_says_so_when_it_is_left() -> None:
    with pytest.raises(SessionClosed, match="cancelled one of its tasks"):
        async with hosted() as (scope, called):
            scope.cancel()
            await anyio.sleep(1)
    assert called == ["cancelled", "last"]


@ON_ASYNCIO
async def test_a_host_whose_task_somebody_cancels_cancels_the_task_that_entered() -> None:
    went_on = []
    with pytest.raises(SessionClosed, match="cancelled one of its tasks"):
        async with hosted() as (_, called):
            task_named("llmsession manager").cancel()
            await anyio.sleep(1)
            went_on.append(True)
    assert (called, went_on) == (["cancelled", "last"], [])
    await anyio.sleep(1)  # nothing of the cancellation is left


# What a tool may use inside of such a task.


async def in_a_timeout() -> None:
    async with asyncio.timeout(100):
        await asyncio.sleep(10)


async def in_a_task_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(10))
        await asyncio.sleep(10)


async def in_a_group_of_anyio() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 10)


async def in_fail_after() -> None:
    with anyio.fail_after(100):
        await anyio.sleep(10)


async def waiting_for_a_future() -> None:
    await asyncio.get_running_loop().create_future()


INSIDE: tuple[Callable[[], Awaitable[None]], ...] = (
    in_a_timeout, in_a_task_group, in_a_group_of_anyio, in_fail_after, waiting_for_a_future,
)  # fmt: skip


@ON_ASYNCIO
@pytest.mark.parametrize("inside", INSIDE)
async def test_a_cancellation_reaches_what_a_tool_waits_in_once(
    inside: Callable[[], Awaitable[None]],
) -> None:
    raised: list[int] = []

    async def tool() -> None:
        try:
            await inside()
        except asyncio.CancelledError:
            raised.append(1)
            raise

    async with works() as (running, heard, _):
        work = running.start("tool", tool, heard.over)
        await anyio.sleep(1)
        work.cancel()
        for _ in range(4):
            await checkpoint()
        assert heard.ended == ["tool"]
    assert (raised, heard.failed) == ([1], {})


@ON_ASYNCIO
async def test_limits_inside_of_a_tool_end_there_and_leave_no_cancellation_behind() -> None:
    counts: list[int] = []

    async def tool() -> str:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(1)
        counts.append(task.cancelling())
        with anyio.move_on_after(0.01):
            await anyio.sleep(1)
        counts.append(task.cancelling())
        with pytest.raises(TimeoutError), anyio.fail_after(0.01):
            await anyio.sleep(1)
        counts.append(task.cancelling())
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(1))
                raise ZeroDivisionError
        counts.append(task.cancelling())
        return "done"

    async with works() as (running, heard, _):
        work = running.start("tool", tool, heard.over)
    assert (work.result, counts, heard.failed) == ("done", [0, 0, 0, 0], {})


async def test_a_task_is_named_after_its_work_and_may_use_threads() -> None:
    found: list[str | None] = []

    async def tool() -> None:
        found.append(anyio.get_current_task().name)
        found.append(await anyio.to_thread.run_sync(lambda: "from a thread"))

    async with works() as (running, heard, _):
        running.start("tool read", tool, heard.over)
    assert found == ["llmsession tool read", "from a thread"]
