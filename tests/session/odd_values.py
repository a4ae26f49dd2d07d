"""Values and errors that nobody expects: what foreign code returns and raises, and what callers
pass."""

from __future__ import annotations

import asyncio
import enum
from typing import Any

import msgspec

from llmsession import ProviderError, SessionError, ToolOutput, Usage


class Text(str):
    """A text that is no plain one, as of a template engine."""

    def __str__(self) -> str:
        return "another text"


class Number(int):
    """A number that is no plain one."""


class Word(enum.StrEnum):
    WORD = "word"


class Evil:
    """Whatever is asked of it, it raises."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Evil
        raise SystemExit(name)

    def _fail(self, *_: Any) -> Any:
        raise GeneratorExit("evil")

    __str__ = __repr__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __int__ = _fail
    __float__ = __index__ = __lt__ = __gt__ = __le__ = __ge__ = __await__ = __call__ = _fail
    __getitem__ = __contains__ = __enter__ = __aiter__ = __anext__ = _fail


class Unprintable(BaseException):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


OBJECTS: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 2.5, float("inf"), float("nan"), -1e300, "", "text", "lone \ud83d",
    Text("text"), Number(5), Word.WORD, b"bytes", [], ["x"], {}, {"a": object()}, (), object(), int,
    len, Evil(), Evil, ValueError("no"), Usage(), Usage(output_tokens=2.5), iter(()),  # type: ignore[arg-type]
    ToolOutput(content="x"), [[[]]], complex(1, 2), range(3), msgspec.UNSET, NotImplemented, ...,
)  # fmt: skip
ERRORS: tuple[BaseException, ...] = (
    ValueError("no"), SystemExit(3), GeneratorExit(), asyncio.CancelledError(), Unprintable(),
    BaseExceptionGroup("many", [SystemExit(1), ValueError()]), StopIteration(5),
    StopAsyncIteration(), RecursionError(), MemoryError(), SessionError("not yours"),
    ProviderError("odd", kind=5, delay_s="soon"), ExceptionGroup("many", [ValueError()]),  # type: ignore[arg-type]
    ProviderError("late", kind="retryable", delay_s=float("nan")), KeyError(Evil),
)  # fmt: skip
