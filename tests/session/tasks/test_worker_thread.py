"""Pure work in a thread: what comes back, and what it leaves behind."""

from __future__ import annotations

import sys
import threading

import anyio
import pytest

from llmsession.session.tasks.worker_thread import BRISK_S, off_loop

pytestmark = pytest.mark.real_time


async def test_what_it_returns_and_raises_comes_back() -> None:
    assert await off_loop(pow, 2, 10) == 1024
    with pytest.raises(ZeroDivisionError):
        await off_loop(divmod, 1, 0)


async def test_threads_hand_over_often_while_it_runs_and_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    begun, go_on = threading.Event(), threading.Event()

    def look() -> float:
        begun.set()
        go_on.wait(100)
        return sys.getswitchinterval()

    seen: list[float] = []

    async def run() -> None:
        seen.append(await off_loop(look))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.to_thread.run_sync(begun.wait, 10)
        # A second one that ends in between puts nothing back.
        await off_loop(pow, 2, 2)
        go_on.set()
    assert seen == [pytest.approx(BRISK_S)]
    assert sys.getswitchinterval() == pytest.approx(before)


async def test_a_cancelled_wait_does_not_wait_for_the_thread() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(100)

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(off_loop, hang)
            await anyio.to_thread.run_sync(begun.wait, 10)
            scope.cancel()
    assert not go_on.is_set()
    go_on.set()
