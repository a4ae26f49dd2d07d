"""Runs an async function on trio in virtual time. A seed decides the order of its tasks."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from llmsession.errors import InvalidInput

if TYPE_CHECKING:
    import trio

__all__ = ["run_seeded"]

T = TypeVar("T")

BUSY_TURNS = 50
"""How many iterations of the loop may have work at the same virtual time. After that the clock
moves, as it would in reality."""
TURN_S = 100e-6


def run_seeded(seed: int, work: Callable[[], Awaitable[T]]) -> T:
    """Run *work*, and return its result or raise its exception.

    *seed* decides the order of the tasks. Time moves when all tasks wait. The garbage collector
    runs only before and after. Two runs of one seed are the same, step by step, if *work* has no
    threads and no I/O, and takes neither times nor random numbers from elsewhere.

    Raises InvalidInput if trio is not installed, within a running event loop, and if something
    asked for a thread. An exception group of one error is raised as that error.
    """
    try:
        import trio
        import trio.testing
    except ImportError as error:
        message = "a simulation needs trio: pip install 'llmsession[testing]'"
        raise InvalidInput(message) from error

    _check_no_loop()
    clock = trio.testing.MockClock(autojump_threshold=0)
    with _scheduled_by(seed), _collected_outside(), _without_threads():
        try:
            return trio.run(work, clock=clock, instruments=[_busy_time(clock)])
        except BaseExceptionGroup as group:
            raise _sole(group) from None


def _sole(error: BaseException) -> BaseException:
    """Unwrap exception groups with one error, which trio's nurseries raise."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _check_no_loop() -> None:
    try:
        anyio.get_current_task()
    except RuntimeError:
        return
    message = "a simulation runs its own event loop: call it from a function that is not async"
    raise InvalidInput(message)


@contextmanager
def _without_threads() -> Iterator[None]:
    """Refuse threads: virtual time does not wait for them, and no seed orders them."""
    from trio import _threads

    module: Any = _threads
    before, was_asked = module.start_thread_soon, False

    def refuse(*_: Any, **__: Any) -> None:
        nonlocal was_asked
        was_asked = True
        raise RuntimeError("there are no threads in a simulation")

    module.start_thread_soon = refuse
    try:
        yield
    finally:
        module.start_thread_soon = before
    if was_asked:
        raise InvalidInput(
            "something asked for a thread, as a tool that is not an async function does: then a"
            " seed does not decide the run. In a simulation wait with anyio or trio only"
        )


@contextmanager
def _scheduled_by(seed: int) -> Iterator[None]:
    # Trio has this for Hypothesis: tasks in the order of their creation, shuffled by `_r`.
    from trio._core import _run

    module: Any = _run
    before, state = module._ALLOW_DETERMINISTIC_SCHEDULING, module._r.getstate()
    module._ALLOW_DETERMINISTIC_SCHEDULING = True
    module._r.seed(seed)
    try:
        yield
    finally:
        module._ALLOW_DETERMINISTIC_SCHEDULING = before
        module._r.setstate(state)


@contextmanager
def _collected_outside() -> Iterator[None]:
    """An unreferenced handle is released when the collector finds it. That moment would depend on
    what ran before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _busy_time(clock: trio.testing.MockClock) -> trio.abc.Instrument:
    import trio

    class BusyTime(trio.abc.Instrument):
        """Moves the clock while the loop always has work. A task that ignores its cancellation runs
        again in every iteration. A clock that moves only when the loop is idle would then stop."""

        def __init__(self) -> None:
            self._seen = 0.0
            self._busy = 0

        def before_io_wait(self, timeout: float) -> None:
            now = clock.current_time()
            self._busy = self._busy + 1 if now == self._seen else 0
            if self._busy > BUSY_TURNS:
                clock.jump(TURN_S)
            self._seen = clock.current_time()

    return BusyTime()
