"""Which streams of a manager fell silent: one timer for all streams of the same limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from .timers import Timers

__all__ = ["Progress", "SilenceWatch"]

LOOKS = 4
"""How often a stream is looked at in the time that it may be silent."""


class Progress(Protocol):
    """A stream as it is watched."""

    fed: int
    """How many events came so far. It only grows."""


class _Watched(msgspec.Struct):
    seen: int
    looks_left: int
    silent: Callable[[], None]


class SilenceWatch:
    """Calls back when a stream has brought nothing for its limit.

    To begin and to end a watch costs a place in a dict, and an event of a stream costs nothing: a
    timer looks at all streams four times within their limit, and runs on only while there are any.
    So a silence is noticed after the limit, and at most a quarter of it later; and a process that
    was stopped for long reads what came meanwhile before it takes a stream for silent.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._watched: dict[float, dict[Progress, _Watched]] = {}
        """The streams by their limit. A limit is in it as long as its timer runs."""

    def begin(self, stream: Progress, limit_s: float, silent: Callable[[], None]) -> None:
        """Call *silent*, which must not wait, once *stream* brings nothing for *limit_s* seconds,
        unless ``end`` comes first."""
        streams = self._watched.get(limit_s)
        if streams is None:
            self._watched[limit_s] = {stream: _Watched(stream.fed, LOOKS, silent)}
            self._timers.after(limit_s / LOOKS, partial(self._look, limit_s))
        else:  # a look that comes too soon does not count
            streams[stream] = _Watched(stream.fed, LOOKS + 1, silent)

    def end(self, stream: Progress, limit_s: float) -> None:
        """*stream* is over: its silence says nothing any more."""
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
