"""A value that tasks wait for, like Rust's oneshot channel."""

from __future__ import annotations

from typing import Generic, TypeVar

from llmsession.errors import SessionError

from .waiter import Waiter, new_waiter

__all__ = ["Promise"]

T = TypeVar("T")


class Promise(Generic[T]):
    """Set once, awaited by any number of tasks.

    A second ``set`` or ``fail`` is ignored: the first answer counts.
    """

    __slots__ = ("_error", "_followers", "_set", "_value", "_waiters")

    def __init__(self) -> None:
        self._waiters: list[Waiter] | None = None  # most promises are set before anything waits
        self._set = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._followers: tuple[Promise[T], ...] = ()

    @property
    def is_set(self) -> bool:
        """Was it answered, with a value or an error?"""
        return self._set

    def set(self, value: T) -> None:
        """Give *value* to all tasks that wait, now or later."""
        if not self._set:
            self._value = value
            self._settle()

    def fail(self, error: BaseException) -> None:
        """Raise *error* in all tasks that wait, now or later."""
        if not self._set:
            # The frames of its traceback refer to the command, and that to this promise: such a
            # cycle would wait for the garbage collector.
            self._error = error.with_traceback(None)
            self._settle()

    def follow(self, follower: Promise[T]) -> None:
        """Give *follower* the same answer as this promise, now or later."""
        self._followers = (*self._followers, follower)
        if self._set:
            self._settle()

    def _settle(self) -> None:
        self._set = True
        for waiter in self._waiters or ():
            if not waiter.done():  # else its task was cancelled
                waiter.set_result(None)
        self._waiters = None
        followers, self._followers = self._followers, ()
        for follower in followers:
            if self._error is not None:
                follower.fail(self._error)
            else:
                follower.set(self._value)  # type: ignore[arg-type]  # None only where T allows it

    async def wait(self) -> T:
        """Wait for the value. Raises the error if the promise failed.

        Cancelling the wait has no effect on other waiters or on the command.
        """
        if not self._set:
            await self._wait_until_set(new_waiter())
        if self._error is not None:
            raise _again(self._error)
        return self._value  # type: ignore[return-value]  # None only where T allows it

    async def _wait_until_set(self, waiter: Waiter) -> None:
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if self._waiters is not None:
                self._waiters.remove(waiter)
            raise


def _again(error: BaseException) -> BaseException:
    """A copy of *error* to raise, if it is an error of this package; else *error* itself.

    A raised error gets a traceback. Its frames refer to the command, and the command refers to this
    promise. If the error were kept here, that cycle would keep a session in memory until the next
    garbage collection.
    """
    if not isinstance(error, SessionError):
        return error.with_traceback(None)
    copied = type(error).__new__(type(error))
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    copied.__cause__, copied.__suppress_context__ = error.__cause__, error.__suppress_context__
    return copied
