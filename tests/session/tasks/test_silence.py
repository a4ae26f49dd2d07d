"""One timer for the silence of many streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio

from llmsession.session.tasks.silence import SilenceWatch
from llmsession.session.tasks.task_host import LoopCalls, Tasks
from llmsession.session.tasks.timers import Timer, Timers


class CountedTimers(Timers):
    """Counts the timers that were set."""

    count = 0

    def after(self, delay_s: float, fire: object) -> Timer:
        self.count += 1
        return super().after(delay_s, fire)  # type: ignore[arg-type]


class Stream:
    fed = 0


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[CountedTimers, SilenceWatch]]:
    async with anyio.create_task_group() as group, Tasks(group) as tasks:
        timers = CountedTimers(tasks, LoopCalls(group))
        yield timers, SilenceWatch(timers)


async def test_many_streams_one_after_the_other_set_one_timer() -> None:
    async with watching() as (timers, watch):
        for _ in range(1_000):
            stream = Stream()
            watch.begin(stream, 300.0, lambda: None)
            watch.end(stream, 300.0)
        assert timers.count == 1
        await anyio.sleep(80.0)
        assert timers.count == 1  # nothing is left to look at


async def test_a_stream_is_silent_after_its_limit_and_at_most_a_quarter_later() -> None:
    took: list[float] = []

    def note(begun: float) -> None:
        took.append(anyio.current_time() - begun)

    async with watching() as (_, watch):
        for _ in range(30):
            watch.begin(Stream(), 300.0, partial(note, anyio.current_time()))
            await anyio.sleep(17.0)
    assert len(took) == 30
    assert all(300.0 <= seconds <= 375.0 for seconds in took)


async def test_a_stream_that_brings_something_is_not_silent_nor_one_that_ended() -> None:
    silent: list[str] = []
    async with watching() as (_, watch):
        lively, ended, quiet = Stream(), Stream(), Stream()
        for name, stream in (("lively", lively), ("ended", ended), ("quiet", quiet)):
            watch.begin(stream, 40.0, partial(silent.append, name))
        watch.end(ended, 40.0)
        for _ in range(10):
            await anyio.sleep(30.0)
            lively.fed += 1
        assert silent == ["quiet"]
        watch.end(lively, 40.0)
        watch.end(lively, 40.0)  # it need not be watched


async def test_what_silence_calls_may_begin_and_end_watches() -> None:
    silent: list[float] = []
    async with watching() as (_, watch):
        first = Stream()

        def again() -> None:
            silent.append(anyio.current_time())
            if len(silent) < 3:
                watch.begin(first, 40.0, again)

        watch.begin(first, 40.0, again)
    assert len(silent) == 3
