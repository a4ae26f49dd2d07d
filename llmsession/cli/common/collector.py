"""Python's garbage collector in a process that is a service."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["seldom_full_collections"]

THRESHOLDS = (5_000, 10, 100)
"""One collection of the youngest objects after 5,000 of them, one of the middle-aged after 10 of
those, and a full one after 100 of these. Python's own are (700, 10, 10)."""


@contextmanager
def seldom_full_collections() -> Iterator[None]:
    """In the body, which has the process for itself, full collections are 70 times as seldom.

    A full collection looks at every object, so with thousands of live sessions it stops the event
    loop for 100 ms and more. Nearly all that a session leaves behind is freed without it. What is
    there already, modules and settings, lives as long as the process, and is never looked at.
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
