"""Calls from a store's thread into the event loop of the caller."""

from __future__ import annotations

import threading

import anyio
import pytest

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
