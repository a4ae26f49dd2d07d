"""The keys that stop a turn while it streams, when no input line is open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["stop_keys"]


@contextmanager
def stop_keys(stop: Callable[[], None]) -> Iterator[None]:
    """Call *stop* for each Esc and Ctrl-C meanwhile. Other keys are swallowed: they were not
    meant for the next line. Without a terminal nothing is read."""
    if not sys.stdin.isatty():
        yield
        return
    # Not needed to start: prompt_toolkit takes a fifth of the time in which every command starts.
    from prompt_toolkit.input import create_input
    from prompt_toolkit.keys import Keys

    stopping, keys = {Keys.Escape, Keys.ControlC}, create_input()

    def read() -> None:
        # A lone Esc may begin the code of another key, which then comes in the same read.
        if any(press.key in stopping for press in (*keys.read_keys(), *keys.flush_keys())):
            stop()

    with keys.raw_mode(), keys.attach(read):
        yield
