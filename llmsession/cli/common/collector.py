"""Settings of Python's garbage collector for a service process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["seldom_full_collections"]

THRESHOLDS = (5_000, 10, 100)
"""The youngest objects are collected after 5,000 allocations, the middle-aged after 10 of these
collections, and all objects after 100 of those. Python's own thresholds are (700, 10, 10)."""


@contextmanager
def seldom_full_collections() -> Iterator[None]:
    """Make full collections 70 times rarer while the context is open. For a process that runs only
    a service.

    A full collection visits every object. With thousands of sessions in memory it stops the event
    loop for 100 ms and more, although nearly everything that a session leaves behind is freed by
    reference counting. Objects that exist already (modules, settings) live as long as the process;
    they are frozen, so that collections skip them.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
