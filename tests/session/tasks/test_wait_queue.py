"""Tasks that wait for the same thing: all are woken together, and each can be cancelled alone."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from llmsession.errors import InvalidInput
from llmsession.session.tasks.wait_queue import WaitQueue
from tests.session.actors import settled
from tests.virtual_time import VirtualTimeLoop

ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)

place: ContextVar[str] = ContextVar("place", default="nowhere")


class Waiting:
    """Tasks that wait again and again, each with one waiter; and who was woken, in order."""

    def __init__(self) -> None:
        self.queue = WaitQueue()
        self.woken: list[str] = []
        self.scopes: dict[str, anyio.CancelScope] = {}
        """Those of the tasks that have not ended."""

    async def wait(self, name: str) -> None:
        """Wait until it is cancelled."""
        place.set(name)
        waiter = self.queue.waiter()
        with anyio.CancelScope() as self.scopes[name]:
            while True:
                await waiter
                assert place.get() == name
                self.woken.append(name)
        del self.scopes[name]

    async def wake(self) -> list[str]:
        """Who is woken."""
        self.woken = []
        self.queue.wake_all()
        await settled()
        return self.woken


async def test_all_that_wait_are_woken_and_each_goes_on_in_its_own_context() -> None:
    waiting = Waiting()
    async with anyio.create_task_group() as group:
        assert await waiting.wake() == []
        for name in "abc":
            group.start_soon(waiting.wait, name)
        await settled()
        for _ in range(3):
            assert sorted(await waiting.wake()) == ["a", "b", "c"]
        group.cancel_scope.cancel()


async def test_who_begins_to_wait_after_the_wake_up_is_not_woken() -> None:
    waiting = Waiting()
    async with anyio.create_task_group() as group:
        group.start_soon(waiting.wait, "early")
        await settled()
        waiting.queue.wake_all()
        group.start_soon(waiting.wait, "late")
        await settled()
        assert waiting.woken == ["early"]
        assert sorted(await waiting.wake()) == ["early", "late"]
        group.cancel_scope.cancel()


@pytest.mark.parametrize("cancelled", ["a", "b", "c", "ab", "ca", "abc"])
async def test_the_others_are_woken_when_some_were_cancelled(cancelled: str) -> None:
    waiting = Waiting()
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(waiting.wait, name)
        await settled()
        for name in cancelled:
            waiting.scopes[name].cancel()
        await settled()
        left = sorted(set("abc") - set(cancelled))
        assert sorted(waiting.scopes) == left
        for _ in range(2):
            assert sorted(await waiting.wake()) == left
        group.cancel_scope.cancel()


@pytest.mark.parametrize("tasks", [1, 2])
async def test_a_cancellation_in_the_moment_of_the_wake_up_is_not_lost(tasks: int) -> None:
    waiting = Waiting()
    async with anyio.create_task_group() as group:
        for name in "ab"[:tasks]:
            group.start_soon(waiting.wait, name)
        await settled()
        waiting.queue.wake_all()
        for scope in waiting.scopes.values():
            scope.cancel()
        await settled()
        assert not waiting.scopes


async def test_a_task_whose_wait_timed_out_can_wait_again_with_the_same_waiter() -> None:
    queue, waits = WaitQueue(), list[bool]()

    async def impatient() -> None:
        waiter = queue.waiter()
        for _ in range(40):
            with anyio.move_on_after(3) as scope:
                await waiter
            waits.append(scope.cancelled_caught)

    with anyio.fail_after(1000):
        async with anyio.create_task_group() as group:
            group.start_soon(impatient)
            while len(waits) < 40:
                await anyio.sleep(7)
                queue.wake_all()
    assert {True, False} == set(waits)


@ON_ASYNCIO
async def test_many_are_resumed_by_one_callback_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, loop = Waiting(), asyncio.get_running_loop()
    async with anyio.create_task_group() as group:
        for at in range(100):
            group.start_soon(waiting.wait, str(at))
        await settled()
        callbacks = 0
        call_soon = loop.call_soon

        def count(*args: Any, **kwargs: Any) -> asyncio.Handle:
            nonlocal callbacks
            callbacks += 1
            return call_soon(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon", count)
            waiting.queue.wake_all()
        await settled()
        assert (callbacks, waiting.woken) == (1, [str(at) for at in range(100)])
        group.cancel_scope.cancel()


@ON_ASYNCIO
async def test_a_task_hears_why_it_was_cancelled() -> None:
    async def wait() -> None:
        await WaitQueue().waiter()

    task = asyncio.create_task(wait())
    await settled()
    task.cancel("because")
    with pytest.raises(asyncio.CancelledError, match="because"):
        await task


def test_the_others_are_resumed_when_one_leaves_the_event_loop() -> None:
    loop, waiting = VirtualTimeLoop(), Waiting()

    async def leave() -> None:
        await waiting.queue.waiter()
        raise KeyboardInterrupt

    async def wake() -> None:
        await settled()
        waiting.queue.wake_all()
        await settled()

    tasks = [loop.create_task(waiting.wait("a")), loop.create_task(leave())]
    tasks += [loop.create_task(waiting.wait(name)) for name in "bc"]
    waking = loop.create_task(wake())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(waking)
    loop.run_until_complete(waking)
    assert waiting.woken == ["a", "b", "c"]
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


def test_another_event_loop_is_refused() -> None:
    queue = WaitQueue()

    async def make() -> None:
        queue.waiter()

    asyncio.run(make())
    with pytest.raises(InvalidInput, match="one event loop"):
        asyncio.run(make())
