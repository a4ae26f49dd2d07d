"""Notices streams that have fallen silent, with one timer for all streams of the same limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from .timers import Timers

__all__ = ["Progress", "SilenceWatch"]

LOOKS = 4
"""How often a stream is checked within its limit."""


class Progress(Protocol):
    """A stream that can be watched."""

    fed: int
    """How many events have arrived so far. The number only grows."""


class _Watched:
    __slots__ = ("looks_left", "seen", "silent")

    def __init__(self, seen: int, looks_left: int, silent: Callable[[], None]) -> None:
        self.seen, self.looks_left, self.silent = seen, looks_left, silent


class SilenceWatch:
    """Calls back when a stream has brought nothing for as long as its limit.

    Beginning and ending a watch costs an entry in a dict, and an event of a stream costs nothing:
    one timer checks all streams four times within their limit, and runs only while there are any.
    So a silence is noticed after the limit, and at most a quarter of the limit later. A process
    that was suspended for long reads what arrived in the meantime before it regards a stream as
    silent.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._watched: dict[float, dict[Progress, _Watched]] = {}
        """The streams by their limit. A limit has an entry as long as its timer runs."""

    def begin(self, stream: Progress, limit_s: float, silent: Callable[[], None]) -> None:
        """Call *silent* once *stream* has brought nothing for *limit_s* seconds, unless ``end``
        comes first.

        *silent* must not wait.
        """
        streams = self._watched.get(limit_s)
        if streams is None:
            self._watched[limit_s] = {stream: _Watched(stream.fed, LOOKS, silent)}
            self._timers.after(limit_s / LOOKS, partial(self._look, limit_s))
        else:  # the next check may come too soon, so one more is needed
            streams[stream] = _Watched(stream.fed, LOOKS + 1, silent)

    def end(self, stream: Progress, limit_s: float) -> None:
        """*stream* is over, so its silence means nothing any more."""
        self._watched.get(limit_s, {}).pop(stream, None)

    def _look(self, limit_s: float) -> None:
        streams = self._watched[limit_s]
        silent = []
        for stream, watched in streams.items():
            if stream.fed != watched.seen:
                watched.seen, watched.looks_left = stream.fed, LOOKS
                continue
            watched.looks_left -= 1
            if not watched.looks_left:
                silent.append(stream)
        calls = [streams.pop(stream).silent for stream in silent]
        if streams:
            self._timers.after(limit_s / LOOKS, partial(self._look, limit_s))
        else:
            del self._watched[limit_s]
        for call in calls:
            call()
