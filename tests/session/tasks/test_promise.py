"""A promise: set once, awaited by any number."""

from __future__ import annotations

import gc
import traceback
import tracemalloc
import weakref

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llmsession.errors import Overloaded
from llmsession.session.tasks.promise import Promise
from tests.session.actors import meanwhile


async def test_a_promise_that_was_kept_answers_at_once() -> None:
    promise: Promise[int] = Promise()
    promise.set(7)
    with anyio.CancelScope() as scope:
        scope.cancel()  # any wait would raise here
        assert await promise.wait() == 7
    assert promise.is_set


@pytest.mark.parametrize("value", ["here", None])
async def test_everybody_who_waits_gets_the_value(value: str | None) -> None:
    promise: Promise[str | None] = Promise()
    with anyio.fail_after(5):
        async with meanwhile(*[promise.wait] * 3) as got:
            assert (got, promise.is_set) == ([], False)
            promise.set(value)
    assert got == [value] * 3


async def test_the_first_answer_is_the_answer() -> None:
    kept: Promise[int] = Promise()
    kept.set(1)
    kept.set(2)
    kept.fail(ValueError("late"))
    assert await kept.wait() == 1

    failed: Promise[int] = Promise()
    failed.fail(ValueError("first"))
    failed.fail(ValueError("second"))
    failed.set(3)
    with pytest.raises(ValueError, match="first"):
        await failed.wait()


async def test_a_failure_is_raised_at_everybody_and_its_traceback_does_not_grow() -> None:
    promise: Promise[int] = Promise()
    promise.fail(ValueError("no"))
    depths = []
    for _ in range(3):
        with pytest.raises(ValueError, match="no") as caught:
            await promise.wait()
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert depths == [depths[0]] * 3


async def test_cancelling_one_wait_changes_nothing_for_the_others() -> None:
    promise: Promise[int] = Promise()
    with anyio.fail_after(5):
        async with meanwhile(promise.wait) as got:
            with anyio.move_on_after(1) as impatient:
                await promise.wait()
            assert impatient.cancelled_caught
            assert not promise.is_set
            promise.set(4)
    assert got == [4]


async def test_a_wait_that_was_cancelled_leaves_nothing_behind_while_others_wait() -> None:
    promise: Promise[int] = Promise()
    with anyio.fail_after(5):
        async with meanwhile(promise.wait) as got:
            tracemalloc.start()
            for _ in range(500):
                with anyio.move_on_after(0.001):
                    await promise.wait()
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert held < 50_000, "a waiter has some 200 bytes"
            promise.set(4)
    assert got == [4]


async def test_a_cancellation_in_the_moment_of_the_answer_changes_nothing_for_the_others() -> None:
    promise: Promise[int] = Promise()
    with anyio.fail_after(5):
        async with meanwhile(promise.wait) as got, anyio.create_task_group() as group:
            group.start_soon(promise.wait)
            await checkpoint()
            promise.set(4)
            group.cancel_scope.cancel()
    assert got == [4]


async def test_followers_get_the_same_answer_whenever_they_were_added() -> None:
    promise: Promise[int] = Promise()
    early: Promise[int] = Promise()
    late: Promise[int] = Promise()
    own: Promise[int] = Promise()
    promise.follow(early)
    promise.follow(own)
    assert not early.is_set
    own.set(0)
    promise.set(5)
    promise.follow(late)
    assert [await one.wait() for one in (early, late, own)] == [5, 5, 0]


async def test_followers_of_a_failure_fail() -> None:
    promise: Promise[int] = Promise()
    early: Promise[int] = Promise()
    late: Promise[int] = Promise()
    promise.follow(early)
    promise.fail(ValueError("no"))
    promise.follow(late)
    for follower in (early, late):
        with pytest.raises(ValueError, match="no"):
            await follower.wait()


async def test_who_was_refused_is_let_go_without_a_collection_of_garbage() -> None:
    """A held promise that keeps what was raised would keep every caller's frame with it."""

    class Held:
        pass

    async def ask(promise: Promise[int]) -> weakref.ref[Held]:
        held = Held()  # what a caller's frame has, as a session's handle
        told = weakref.ref(held)
        with pytest.raises(Overloaded) as refused:
            await promise.wait()
        del refused
        return told

    promise: Promise[int] = Promise()
    promise.fail(Overloaded("full", retry_after_s=1.5))
    gc.collect()
    gc.disable()
    try:
        assert [(await ask(promise))() for _ in range(2)] == [None, None]
    finally:
        gc.enable()


async def test_each_who_waits_gets_the_whole_error_with_its_cause() -> None:
    promise: Promise[int] = Promise()
    error = Overloaded("full", retry_after_s=1.5)
    error.__cause__ = OSError("the disk")
    promise.fail(error)
    raised = []
    for _ in range(2):
        with pytest.raises(Overloaded, match=r"^full$") as refused:
            await promise.wait()
        raised.append(refused.value)
    assert [each.retry_after_s for each in raised] == [1.5, 1.5]
    assert all(each.__cause__ is error.__cause__ for each in raised)
    assert error.__traceback__ is None
