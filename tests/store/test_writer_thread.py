"""A thread that performs what waits together, and answers into the loops that asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from llmsession.store.writer_thread import MAX_GROUP, Answer, BatchingThread, QueuedCall, deliver

pytestmark = pytest.mark.real_time


class Stage:
    """A thread whose work waits for a gate, and what it was given."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.groups: list[list[int]] = []
        self.rejected: list[tuple[int, str]] = []
        self.idles = 0
        self.idle_s: float | None = None
        self.was_idle = threading.Event()
        self.ended = threading.Event()
        self.thread: BatchingThread[int] = BatchingThread(
            "stage", perform=self._perform, on_idle=self._idle, idle_s=lambda: self.idle_s,
            on_end=self.ended.set, reject=lambda item, reason: self.rejected.append((item, reason)),
        )  # fmt: skip

    def _perform(self, group: list[int]) -> None:
        self.gate.wait()
        self.groups.append(group)

    def _idle(self) -> None:
        self.idles += 1
        self.was_idle.set()
        self.idle_s = None

    def finish(self) -> list[list[int]]:
        self.gate.set()
        self.thread.stop()
        assert self.ended.wait(100)
        return self.groups


def test_what_comes_while_it_works_waits_together_in_order() -> None:
    stage = Stage()
    for item in range(100):
        stage.thread.put(item)
    groups = stage.finish()
    assert [item for group in groups for item in group] == list(range(100))
    assert len(groups) <= 3  # at most: the first alone, then some, then the rest


def test_a_group_has_an_end_however_much_comes() -> None:
    stage = Stage()
    for item in range(3 * MAX_GROUP):
        stage.thread.put(item)
    assert max(len(group) for group in stage.finish()) <= MAX_GROUP


def test_what_was_put_before_the_stop_is_performed_and_what_comes_after_is_refused() -> None:
    stage = Stage()
    stage.thread.put(1)
    stage.thread.put(2)
    assert [item for group in stage.finish() for item in group] == [1, 2]
    stage.thread.put(3)
    assert stage.rejected == [(3, "was closed")]


def test_one_that_never_worked_ends_without_a_thread() -> None:
    stage = Stage()
    before = threading.active_count()
    stage.thread.stop()
    assert stage.ended.is_set()
    stage.thread.put(1)
    assert stage.rejected == [(1, "was closed")]
    assert threading.active_count() == before


def test_it_rests_when_nothing_comes_for_as_long_as_it_says() -> None:
    stage = Stage()
    stage.idle_s = 0.001
    stage.gate.set()
    stage.thread.put(1)
    assert stage.was_idle.wait(100)
    assert stage.finish() == [[1]]
    assert stage.idles == 1


def test_a_process_that_was_forked_from_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.thread.put(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        stage.thread.put(2)
    assert [item for item, _ in stage.rejected] == [2]
    assert "forked" in stage.rejected[0][1]
    assert stage.finish() == [[1]]


async def in_thread(body: Callable[[], None]) -> None:
    await anyio.to_thread.run_sync(body)


async def test_a_value_and_an_error_come_back_to_the_task_that_waits() -> None:
    fine: QueuedCall[int] = QueuedCall()
    wrong: QueuedCall[int] = QueuedCall()

    def work() -> None:
        deliver([(fine.caller, fine.set, 7), (wrong.caller, wrong.fail, KeyError("it"))])

    await in_thread(work)
    assert await fine.wait() == 7
    with pytest.raises(KeyError):
        await wrong.wait()


async def test_answers_are_given_in_order_in_the_loops_own_thread() -> None:
    last: QueuedCall[None] = QueuedCall()
    seen: list[tuple[int, int]] = []

    def work() -> None:
        def see(number: int) -> None:
            seen.append((number, threading.get_ident()))

        answers: list[Answer] = [(last.caller, see, number) for number in range(5)]
        deliver([*answers, (last.caller, last.set, None)])

    await in_thread(work)
    await last.wait()
    assert seen == [(number, threading.get_ident()) for number in range(5)]


async def test_a_wait_that_was_cancelled_is_marked_as_dropped() -> None:
    waiting: QueuedCall[None] = QueuedCall()
    assert not waiting.is_dropped
    with anyio.CancelScope() as scope:
        scope.cancel()
        await waiting.wait()
    assert waiting.is_dropped


def test_one_caller_that_fails_does_not_keep_the_others_from_their_answers() -> None:
    calls: list[Callable[[], None]] = []

    class Here:
        loop = object()

        def call(self, body: Callable[[], None]) -> None:
            calls.append(body)

    seen: list[int] = []

    def fails(number: int) -> None:
        raise ValueError(number)

    here: Any = Here()
    deliver([(here, fails, 1), (here, seen.append, 2)])
    assert len(calls) == 1  # one call into the loop for both
    with pytest.raises(ValueError, match="1"):
        calls[0]()
    assert seen == [2]
