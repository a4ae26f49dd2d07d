"""A loop in a thread of its own, for callers in other loops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import anyio
import pytest

from llmsession.errors import StoreError
from llmsession.store.postgres.thread import LoopThread

pytestmark = pytest.mark.real_time


async def test_work_runs_in_the_other_thread_and_its_result_comes_back() -> None:
    thread = LoopThread("test")
    assert not thread.has_begun

    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert await thread.run(work) == "test"
    assert thread.has_begun
    await thread.end()


async def test_what_the_work_raises_is_raised() -> None:
    thread = LoopThread("test")

    async def work() -> None:
        raise KeyError("told")

    with pytest.raises(KeyError, match="told"):
        await thread.run(work)
    await thread.end()


@pytest.mark.parametrize("ends", [True, False])
async def test_work_ends_with_its_caller_if_it_is_to(ends: bool) -> None:
    thread = LoopThread("test")
    begun, ended = threading.Event(), threading.Event()
    goes_on: asyncio.Event | None = None

    async def work() -> None:
        nonlocal goes_on
        goes_on = asyncio.Event()
        begun.set()
        try:
            await goes_on.wait()
        finally:
            ended.set()

    async with anyio.create_task_group() as group:

        async def wait() -> None:
            await thread.run(work, ends=ends)

        group.start_soon(wait)
        await anyio.to_thread.run_sync(begun.wait)
        group.cancel_scope.cancel()
    if ends:
        await anyio.to_thread.run_sync(ended.wait)
    else:
        assert goes_on is not None
        assert not ended.is_set()
        thread.soon(goes_on.set)
        await anyio.to_thread.run_sync(ended.wait)
    await thread.end()


async def test_who_waits_for_work_when_the_thread_ends_is_told() -> None:
    thread = LoopThread("test")
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with anyio.create_task_group() as group:

        async def wait() -> None:
            with pytest.raises(StoreError, match="closed") as error:
                await thread.run(work)
            assert error.value.committed is None

        group.start_soon(wait)
        await anyio.to_thread.run_sync(begun.wait)
        await thread.end()


async def test_ending_cancels_what_still_runs() -> None:
    thread = LoopThread("test")
    begun, ended = threading.Event(), threading.Event()

    def begin() -> None:
        async def work() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        tasks.append(asyncio.create_task(work()))

    tasks: list[asyncio.Task[None]] = []
    thread.soon(begin)
    await anyio.to_thread.run_sync(begun.wait)
    await thread.end()
    assert ended.is_set()


def test_a_thread_that_nobody_ends_does_not_keep_its_process() -> None:
    code = (
        "from llmsession.store.postgres.thread import LoopThread\n"
        "LoopThread('left').soon(lambda: None)\n"
        "print('done')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("anyio_backend", "kind"),
    [(("asyncio", {}), "asyncio"), (("asyncio", {"use_uvloop": True}), "uvloop")],
    ids=["asyncio", "uvloop"],
)
async def test_its_loop_is_of_the_kind_of_its_first_caller(kind: str) -> None:
    thread = LoopThread("test")

    async def work() -> str:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    assert await thread.run(work) == kind
    await thread.end()
