"""A timer that fires when a session has been idle, shortly before the provider's cache expires."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..core.core import Core
from ..tasks.timers import Timer

__all__ = ["IdleTimer"]


class IdleTimer:
    """Calls ``expired`` in the actor, once for each start, unless it is stopped first."""

    def __init__(self, core: Core, expired: Callable[[], None]) -> None:
        self._core = core
        self._expired = expired
        self._timer: Timer | None = None
        self.has_expired = False
        """Has the timer expired since its last start?"""

    def start(self, delay_s: float) -> None:
        """Expire after *delay_s* seconds. The timer must be stopped."""
        self._timer = self._core.timers.after(delay_s, partial(self._core.report, self._expire))

    def stop(self) -> None:
        """The session is not idle any more, or it has ended."""
        self.has_expired = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        # The report may already have been in the mailbox when the timer was stopped.
        if self._timer is not None:
            self._timer, self.has_expired = None, True
            self._expired()
