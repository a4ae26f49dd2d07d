"""Who closes a provider: its manager, or the context manager around it."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from llmsession.errors import contained_in_task

__all__ = ["Closing", "close_all"]


class Closing:
    """A base class for parts that close themselves when their ``async with`` block is left."""

    is_held = False
    """Is it used as a context manager? Then no session manager closes it."""

    async def aclose(self) -> None:
        """Release connections and other resources."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self.is_held = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_held = False
        await self.aclose()


async def close_all(parts: Iterable[Any]) -> None:
    """Close each of *parts* that has ``aclose``, except parts that are used as context managers.

    All parts are closed before the first error is raised.
    """
    failed: Exception | None = None
    for part in parts:
        if hasattr(part, "aclose") and not getattr(part, "is_held", False):
            try:
                await part.aclose()
            except BaseException as error:  # a part may be anybody's code
                failed = failed or contained_in_task(error)
    if failed is not None:
        raise failed
