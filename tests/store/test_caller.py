"""Calls from a store's thread into the event loop of the caller."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest
import trio

from llmsession.store.caller import Caller, caller_now

pytestmark = pytest.mark.real_time


async def test_a_call_can_start_a_task_of_a_group_as_if_a_task_had_made_it() -> None:
    is_over = anyio.Event()

    async def body() -> None:
        is_over.set()

    async with anyio.create_task_group() as group:
        caller = Caller()
        thread = threading.Thread(target=caller.call, args=[lambda: group.start_soon(body)])
        thread.start()
        with anyio.fail_after(100):
            await is_over.wait()
        thread.join()


async def test_what_one_loop_calls_shares_one_caller() -> None:
    first = caller_now(None)
    assert caller_now(first) is first

    async def elsewhere() -> Caller:
        return caller_now(first)

    other = await anyio.to_thread.run_sync(anyio.run, elsewhere)
    assert other is not first
    assert other.loop is not first.loop


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_callback_of_asyncio_has_the_caller_of_its_tasks() -> None:
    first = caller_now(None)
    seen: list[Caller] = []
    asyncio.get_running_loop().call_soon(lambda: seen.append(caller_now(first)))
    await asyncio.sleep(0)
    assert seen == [first]
    assert seen[0] is first


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_trio_as_a_guest_of_asyncio_has_a_caller_of_its_own() -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    first = caller_now(None)

    async def guest() -> Caller:
        return caller_now(first)

    trio.lowlevel.start_guest_run(
        guest,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=lambda outcome: ended.set_result(outcome.unwrap()),
    )
    assert (await ended).loop is not loop
