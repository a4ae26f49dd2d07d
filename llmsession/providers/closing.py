"""How providers end: by their manager, or by the context that they are used in."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from llmsession.errors import contained_in_task

__all__ = ["Closing", "close_all"]


class Closing:
    """Something that closes itself where it is used as a context manager."""

    is_held = False
    """Is it used as a context manager? Then no session manager closes it."""

    async def aclose(self) -> None:
        """Close what it holds."""
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
    """Close each of *parts* that can be closed, but for those that are used as context managers
    themselves. Raises what the first one raised, after all were asked."""
    failed: Exception | None = None
    for part in parts:
        if hasattr(part, "aclose") and not getattr(part, "is_held", False):
            try:
                await part.aclose()
            except BaseException as error:  # each may be anybody's code
                failed = failed or contained_in_task(error)
    if failed is not None:
        raise failed
