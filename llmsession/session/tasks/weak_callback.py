"""Callbacks that do not keep in memory whom they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec
from weakref import ref

__all__ = ["WeakCallback"]

P = ParamSpec("P")


class WeakCallback(Generic[P]):
    """Calls a method as long as the object is there that it is bound to.

    For the parts of an object: with the bound method itself, part and object would keep each other
    in memory until the next garbage collection.
    """

    __slots__ = ("_function", "_object")

    def __init__(self, method: Callable[P, None]) -> None:
        bound: Any = method
        self._object = ref(bound.__self__)
        self._function = bound.__func__

    def __call__(self, *args: P.args, **options: P.kwargs) -> None:
        found = self._object()
        if found is not None:
            self._function(found, *args, **options)
