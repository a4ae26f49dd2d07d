"""The task in which all sessions of a manager run, and its orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

from llmsession.errors import InvalidInput, SessionClosed, work_supervisor
from llmsession.store.caller import tell_asyncio

__all__ = ["LoopCalls", "TaskHost", "Tasks", "asyncio_loop"]

Ts = TypeVarTuple("Ts")


class TaskHost:
    """A task group in a task of its own, which no other task's cancellation reaches.

    It may be left in another task than the one that entered it, as test fixtures and frameworks do.
    *start* gets the task group and the tasks beside it when they are open. When the host is left,
    *close* ends what runs in them, and *last* is called when nothing runs any more.

    If something in them raises, both are cancelled (on asyncio also the task that entered),
    *cancelled* is called before they are waited for, and ``leave`` raises the error. The same
    happens if foreign code cancels the task or the group: then the error is SessionClosed.
    """

    def __init__(
        self,
        start: Callable[[TaskGroup, Tasks], None],
        close: Callable[[], Awaitable[None]],
        last: Callable[[], Awaitable[None]],
        cancelled: Callable[[], Awaitable[None]],
    ) -> None:
        self._start = start
        self._close = close
        self._last = last
        self._cancelled = cancelled
        self._error: BaseException | None = None
        self._has_cancelled = False

    async def enter(self) -> None:
        """Open the task group. Call it once. Raises what *start* raises."""
        self._leave, self._left = anyio.Event(), anyio.Event()
        self._loop = _loop()
        self._entered_by = asyncio.current_task() if asyncio_loop() is not None else None
        ready = anyio.Event()
        self._task = _spawn(self._run, ready)
        try:
            # Shielded, because after a cancellation here ``leave`` would never be called. It takes
            # no time.
            with anyio.CancelScope(shield=True):
                await ready.wait()
        except BaseException:  # asyncio's Task.cancel() passes through a shield
            await self._wait_for_end()
            raise
        if self._error is not None:
            raise self._error

    async def leave(self) -> None:
        """End everything that runs in the group, and wait for it, even if the wait is cancelled.

        Raises InvalidInput in another event loop than the one in which it was entered.
        """
        if _loop() is not self._loop:
            raise InvalidInput(
                "a SessionManager must be left in the event loop in which it was entered, and this"
                " is another one; in tests, give its fixture the scope of the event loop"
            )
        cancelled = await self._wait_for_end()
        if self._error is not None:
            if self._has_cancelled and self._entered_by is not None:
                self._entered_by.uncancel()  # the error is raised instead of the cancellation
            raise self._error
        if cancelled is not None:
            raise cancelled

    async def _wait_for_end(self) -> BaseException | None:
        """Wait until nothing runs. Returns a cancellation that passed through the shield on
        asyncio.
        """
        self._leave.set()
        cancelled: BaseException | None = None
        while not self._left.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await self._left.wait()
            except anyio.get_cancelled_exc_class() as error:
                cancelled = error
        return cancelled

    async def _run(self, ready: anyio.Event) -> None:
        try:
            await self._serve(ready)
        except anyio.get_cancelled_exc_class():
            # An event loop that ends before ``leave`` cancels the task that entered, too.
            if self._entered_by is not None and not self._entered_by.cancelling():
                self._fail(_cancelled_by_others())
            raise
        except BaseException as error:
            self._fail(error)
        finally:
            ready.set()
            self._left.set()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        if self._entered_by is not None and not self._leave.is_set():
            self._has_cancelled = self._entered_by.cancel("the SessionManager failed")

    async def _serve(self, ready: anyio.Event) -> None:
        is_closed = False
        try:
            async with anyio.create_task_group() as group, Tasks(group) as tasks:
                self._start(group, tasks)
                ready.set()
                try:
                    await self._leave.wait()
                    await self._close()
                    is_closed = True
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await self._cancelled()
                    raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._last()
        if not is_closed:  # the group was cancelled, and raises nothing for that
            raise _cancelled_by_others()


def _cancelled_by_others() -> SessionClosed:
    return SessionClosed(
        "the SessionManager ended before it was left: code in this process cancelled one of its"
        " tasks; cancel only tasks that you started"
    )


class _Start(NamedTuple):
    """The arguments of ``Tasks.start``."""

    function: Callable[..., Coroutine[Any, Any, None]]
    args: tuple[Any, ...]
    cancel: Callable[[], None]
    is_over: Callable[[], bool]
    name: str


class Tasks:
    """Tasks beside *group*, which is left only when they have ended.

    On asyncio they are tasks of the loop itself. A task of anyio's group costs three times as much
    as that, and more than what a short work does in it. So this does for them what the group would
    do: it waits for them, and if one of them raises, or something else in the group, it cancels all
    of them and raises the error. On trio they are tasks of *group*.
    """

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._loop = asyncio_loop()
        self._supervisor = asyncio.current_task() if self._loop is not None else None
        self._running: dict[asyncio.Task[None], _Start] = {}
        """The tasks of the loop, each with how it was started."""
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._emptied: anyio.Event | None = None

    def start(
        self,
        function: Callable[[*Ts], Coroutine[Any, Any, None]],
        *args: *Ts,
        cancel: Callable[[], None],
        is_over: Callable[[], bool],
        name: str,
    ) -> None:
        """Run ``function(*args)`` in a task. It calls ``adopt`` at once, enters a scope that
        *cancel* cancels, and before it ends, in whatever way, it lets *is_over* be true.
        """
        # A task factory of the program's own may begin a task in the middle of its caller, which
        # the group knows how to prevent.
        if self._loop is None or self._loop.get_task_factory() is not None:
            self._group.start_soon(function, *args, name=name)
            return
        task = self._loop.create_task(function(*args), name=name)
        self._running[task] = _Start(function, args, cancel, is_over, name)
        task.add_done_callback(self._ended)
        if self._is_cancelled:
            cancel()

    def adopt(self) -> None:
        """In a task that was started here: say who supervises it, for ``contained_in_work``."""
        work_supervisor.set(self._supervisor)

    def _ended(self, task: asyncio.Task[None]) -> None:
        start = self._running.pop(task)
        if task.cancelled() and not start.is_over():
            # Task.cancel() came before its first step. So nothing in it could say that it ended,
            # and somebody may wait for that.
            self.start(
                start.function, *start.args, cancel=start.cancel, is_over=start.is_over,
                name=start.name,
            )  # fmt: skip
        # One that was cancelled by Task.cancel() ends alone. At the end of the event loop the
        # supervisor is cancelled, too.
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._error = self._error or error
            self._group.cancel_scope.cancel()
        if self._emptied is not None and not self._running:
            self._emptied.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Wait until no task runs. If the body raised, or the wait is cancelled, cancel them."""
        raised = error
        while True:
            if raised is not None:
                self._is_cancelled = True
                for start in tuple(self._running.values()):
                    start.cancel()
            if not self._running:
                break
            self._emptied = anyio.Event()
            try:
                with anyio.CancelScope(shield=raised is not None):
                    await self._emptied.wait()
            except anyio.get_cancelled_exc_class() as cancelled:
                # asyncio's Task.cancel() passes through the shield. The tasks end all the same.
                raised = raised or cancelled
        if self._error is not None:
            raise self._error
        if raised is not error and raised is not None:
            raise raised


class LoopCalls:
    """Calls in the running event loop that are not made by a task.

    On asyncio a call is a callback, which costs a tenth of a task. trio has only tasks: each call
    is one in *group*.
    """

    __slots__ = ("_group", "_loop", "new_scope", "now")

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._loop = asyncio_loop()
        self.new_scope: Callable[[], anyio.CancelScope] = type(anyio.CancelScope())
        """Makes a scope. ``anyio.CancelScope`` does the same, but looks for the event loop first
        and initialises the scope twice.
        """
        self.now = anyio.current_time if self._loop is None else self._loop.time
        """The time of the event loop, in seconds."""

    def call_soon(self, function: Callable[[], None]) -> None:
        """Let the event loop call *function* soon, in a copy of this context."""
        if self._loop is not None:
            self._loop.call_soon(function)
        else:
            self._group.start_soon(_call, function)

    @property
    def delivers_on_every_turn(self) -> bool:
        """Is a cancellation delivered on every turn of the loop, until the task has ended?"""
        return self._loop is not None

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Let asyncio's loop call *function* after *delay_s* seconds."""
        assert self._loop is not None
        self._loop.call_later(delay_s, function)

    def new_context(self) -> Context:
        """A copy of this context, in which anyio can be used in a callback as well."""
        context = copy_context()
        if self._loop is not None:
            context.run(tell_asyncio)
        return context


async def _call(function: Callable[[], None]) -> None:
    function()


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop, if this is a task of asyncio. trio may run as a guest in a loop of asyncio,
    and then this is no task of that.
    """
    try:
        return asyncio.get_running_loop() if asyncio.current_task() is not None else None
    except RuntimeError:
        return None


def _loop() -> object:
    loop = asyncio_loop()
    if loop is not None:
        return loop
    import trio

    return trio.lowlevel.current_trio_token()


def _spawn(function: Callable[[anyio.Event], Any], ready: anyio.Event) -> object:
    """Start a task without a parent. Returns an object that keeps it from being collected."""
    name = "llmsession manager"
    loop = asyncio_loop()
    if loop is not None:
        return loop.create_task(function(ready), name=name)
    import trio

    return trio.lowlevel.spawn_system_task(function, ready, name=name, context=copy_context())
