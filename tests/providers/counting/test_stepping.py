"""Steps: short work where it is, long work in threads of its own, a cancel between two steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import pytest
from anyio import to_thread

from llmsession.providers.counting.stepping import INLINE_BYTES, THREADS, Stepper

pytestmark = pytest.mark.real_time


async def test_the_size_decides_where_the_steps_are_taken() -> None:
    here = threading.current_thread()
    seen: list[bool] = []

    def steps() -> Iterator[None]:
        for _ in range(3):
            seen.append(threading.current_thread() is here)
            yield

    await Stepper().run(steps(), size_bytes=INLINE_BYTES)
    await Stepper().run(steps(), size_bytes=INLINE_BYTES + 1)
    await Stepper().run(steps(), size_bytes=0, waits_for_disk=True)
    await Stepper(threads=False).run(steps(), size_bytes=10**9, waits_for_disk=True)
    assert seen == [True] * 3 + [False] * 6 + [True] * 3


async def test_what_a_step_raises_arrives() -> None:
    def steps() -> Iterator[None]:
        yield
        raise LookupError("here")

    for size_bytes in (0, 10**6):
        with pytest.raises(LookupError, match="here"):
            await Stepper().run(steps(), size_bytes=size_bytes)


async def test_no_step_begins_after_a_cancel() -> None:
    taken: list[int] = []
    scope = anyio.CancelScope()

    def steps() -> Iterator[None]:
        for number in range(100):
            taken.append(number)
            if number == 2:
                anyio.from_thread.run_sync(scope.cancel)
            yield

    with anyio.fail_after(100), scope:
        await Stepper().run(steps(), size_bytes=10**6)
    assert scope.cancelled_caught
    assert taken == [0, 1, 2]


async def test_counting_does_not_wait_for_threads_that_tools_hold() -> None:
    limiter = to_thread.current_default_thread_limiter()
    tools = [object() for _ in range(int(limiter.total_tokens))]
    for tool in tools:
        limiter.acquire_on_behalf_of_nowait(tool)
    try:
        with anyio.fail_after(100):
            await Stepper().run(iter([None]), size_bytes=10**6)
    finally:
        for tool in tools:
            limiter.release_on_behalf_of(tool)


async def test_no_more_threads_work_at_once_than_help() -> None:
    at_once, most, lock = [0], [0], threading.Lock()
    together = threading.Barrier(THREADS)

    def steps() -> Iterator[None]:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        together.wait(100)
        with lock:
            at_once[0] -= 1
        yield

    async def one() -> None:
        await Stepper().run(steps(), size_bytes=10**6)

    async with anyio.create_task_group() as tasks:
        for _ in range(3 * THREADS):
            tasks.start_soon(one)
    assert most[0] == THREADS
