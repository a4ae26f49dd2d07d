"""Children that live and are killed, one a line of orders: everything is imported once, and each
life is forked from there, in a few milliseconds instead of a second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import TracebackType

import anyio
import msgspec

from .life import SESSIONS, Plan, Teller, live, open_place
from .write_points import How, WritePoints

__all__ = ["Nursery", "Order"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A life: on which store (see ``open_place``), told where, which one there, with which fault
    at which write point, and how many seconds after its first word it is killed (None: never).
    *vacuum*: it ends with one."""

    place: str
    told: str
    seed: int = 0
    number: int = 1
    rounds: int = 4
    at: int = 0
    how: How = "count"
    killed_after_s: float | None = None
    forget: bool = True
    vacuum: bool = False
    sessions: tuple[str, ...] = SESSIONS


class Nursery:
    """The parent's side: a process that forks lives. Use it as a context manager."""

    def __enter__(self) -> Nursery:
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", "from tests.store.crash.nursery import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._nursery.communicate(timeout=160)

    def live(self, order: Order) -> int:
        """Let a life run; returns the signal that ended it, 0 if it ended by itself."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(msgspec.json.encode(order) + b"\n")
        self._nursery.stdin.flush()
        status = int(self._nursery.stdout.readline())
        assert status == 0 or os.WIFSIGNALED(status), f"the life ended with status {status}"
        return os.WTERMSIG(status) if status else 0


def serve() -> None:
    """The nursery's side: read orders, fork lives, say how each ended."""
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        before = _size(order.told)
        child = os.fork()
        if child == 0:
            os.close(0)
            os._exit(_live(order))
        if order.killed_after_s is not None:
            _wait_until_told(order.told, before)
            time.sleep(order.killed_after_s)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        sys.stdout.buffer.write(b"%d\n" % status)
        sys.stdout.buffer.flush()


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _wait_until_told(path: str, before: int) -> None:
    """Killed sooner it would have done nothing yet; write points are the test for that."""
    until = time.monotonic() + 120
    while _size(path) == before and time.monotonic() < until:
        time.sleep(0.001)


def _live(order: Order) -> int:
    signal.alarm(150)
    points = WritePoints(order.at, order.how)
    if order.place.startswith("sqlite:"):
        points.watch_sqlite()
    else:
        points.watch_sockets()
    tell = Teller(order.told)

    async def life() -> None:
        seed = f"{order.seed}/{order.number}"
        plan = Plan(seed, order.rounds, order.forget, order.sessions)
        await live(open_place(order.place), tell, plan)
        if order.vacuum:
            store = open_place(order.place)
            await store.vacuum()
            await store.aclose()

    try:
        anyio.run(life)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 3
    tell(what="points", count=points.count)
    return 0
