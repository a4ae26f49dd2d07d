"""The mailbox of one actor: two bounded lanes for commands, and reports of the actor's own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from llmsession.errors import Overloaded

__all__ = ["Mailbox", "MailboxStatistics"]

C = TypeVar("C")
W = TypeVar("W")
R = TypeVar("R")


class MailboxStatistics(msgspec.Struct, frozen=True):
    """How full a mailbox is."""

    control: int
    """Unread control commands."""
    work: int
    """Unread work commands."""
    reports: int
    """Unread reports of the actor's own work."""
    ingress: int
    """How many commands were numbered so far."""
    refused: int
    """How many commands were refused so far because their lane was full."""


class Mailbox(Generic[C, W, R]):
    """A queue with three lanes: reports are read first, then control commands, then work commands.

    Both command lanes are bounded; a full lane refuses the command. Control commands are read first
    so that an interrupt does not wait behind queued messages. Reports are never refused: the actor
    has started the works that send them, so their number is bounded. They are read first so that a
    command sees the newest state.
    """

    def __init__(self, *, work_limit: int, control_limit: int = 1024) -> None:
        # Lists instead of deques: an empty deque allocates a block of 64 places, and most lanes are
        # empty.
        self._control: list[C] = []
        self._work: list[W] = []
        self._reports: list[R] = []
        self._work_limit = work_limit
        self._control_limit = control_limit
        self._held = False
        self._ingress = 0
        self._refused = 0

    def number(self) -> int:
        """The next ingress number. Take it before any await, because it defines the order of
        commands.
        """
        self._ingress += 1
        return self._ingress

    def put_control(self, command: C) -> None:
        """Add a control command. Raises Overloaded if the lane is full."""
        self._refuse_if(len(self._control) >= self._control_limit, "control")
        self._control.append(command)

    def put_work(self, command: W) -> None:
        """Add a work command. Raises Overloaded if the lane is full."""
        self._refuse_if(len(self._work) >= self._work_limit, "work")
        self._work.append(command)

    def _refuse_if(self, full: bool, lane: str) -> None:
        if full:
            self._refused += 1
            raise Overloaded(f"the session's {lane} lane is full; retry later")

    def report(self, report: R) -> None:
        """Add a report of the actor's own work. Never refused."""
        self._reports.append(report)

    def find_control(self, predicate: Callable[[C], bool]) -> C | None:
        """The first unread control command for which *predicate* is true; None if there is none."""
        return next((command for command in self._control if predicate(command)), None)

    def take_work(self, predicate: Callable[[W], bool]) -> list[W]:
        """Remove every unread work command for which *predicate* is true. Returns them in order."""
        commands = [command for command in self._work if predicate(command)]
        if commands:
            self._work = [command for command in self._work if not predicate(command)]
        return commands

    def hold_work(self) -> None:
        """Stop reading the work lane until ``release_work``. The lane still accepts commands."""
        self._held = True

    def release_work(self) -> None:
        """Read the work lane again."""
        self._held = False

    def drain(self) -> None:
        """Drop everything that is unread, because the actor has ended."""
        self._control.clear()
        self._work.clear()
        self._reports.clear()

    def next_nowait(self) -> C | W | R | None:
        """The next item to read; None if there is none."""
        if self._reports:
            return self._reports.pop(0)
        if self._control:
            return self._control.pop(0)
        return self._work.pop(0) if self._work and not self._held else None

    @property
    def is_empty(self) -> bool:
        """Is there nothing to read? A work lane that is on hold does not count."""
        return not (self._reports or self._control or (self._work and not self._held))

    def statistics(self) -> MailboxStatistics:
        """How full it is now."""
        return MailboxStatistics(
            len(self._control), len(self._work), len(self._reports), self._ingress, self._refused
        )
