"""Running the functions of a session's tools, and turning their results into durable answers."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from llmsession.compaction.summaries.cap import cap_content, result_text
from llmsession.compaction.summaries.extractive import summarise
from llmsession.errors import InvalidMessage, contained_in_work, error_text, foreign, refusing
from llmsession.store.caller import tell_nothing
from llmsession.turns.blocks import (
    MAX_CONTENT_BYTES,
    Content,
    encode_blocks,
    encode_json,
    is_block,
    plain_text,
)
from llmsession.turns.records import Answer

from ..tasks.tool_threads import ToolThreads
from ..values.config import CAP_CHARS, CompactionConfig, Tool, ToolOutput, ToolResult
from ..values.function_schema import plain_function

__all__ = [
    "make_answer",
    "make_error",
    "prepare_answers",
    "run_callable",
    "running_tool",
    "tool_around",
]


class running_tool:
    """While its body runs, ``tool_around`` returns *tool*, also in tasks and threads that it
    starts.

    Tasks that outlive the body keep the context variable, but ``is_over`` tells that the tool has
    ended.
    """

    __slots__ = ("_token", "is_over", "session", "tool")

    def __init__(self, session: str, tool: str) -> None:
        self.session, self.tool, self.is_over = session, tool, False

    def __enter__(self) -> None:
        self._token = _around.set(self)

    def __exit__(self, *raised: object) -> None:
        self.is_over = True
        _around.reset(self._token)


_around: ContextVar[running_tool | None] = ContextVar("tool", default=None)


def tool_around(session: str) -> str | None:
    """The name of *session*'s tool that the caller runs in; None if it runs in none."""
    around = _around.get()
    if around is None or around.is_over or around.session != session:
        return None
    return around.tool


async def run_callable(
    tool: Tool, call_input: Any, *, threads: ToolThreads | None = None, name: str = "a tool"
) -> ToolOutput:
    """Run *tool* with *call_input*, the call's input as decoded JSON. Returns its output.

    A synchronous function runs in a thread of *threads* under *name*. Once the thread has begun, a
    cancellation does not stop it, and this call waits for it. An exception of the tool becomes an
    error output. Only a cancellation of this call is raised.
    """
    run = tool.run
    assert run is not None  # calls of a tool without a callable go to the caller
    tell_nothing()
    try:
        arguments = _arguments(call_input)
        if _is_coroutine_function(run):
            returned = await foreign(run(**arguments))
        else:
            call = partial(run, **arguments)
            returned = await _in_thread(call, threads or ToolThreads(), name)
            if inspect.isawaitable(returned):
                returned = await foreign(returned)
        return (
            returned if isinstance(returned, ToolOutput) else ToolOutput(content=_content(returned))
        )
    except BaseException as error:  # a tool may raise anything; the model gets the text
        contained_in_work(error)
        if isinstance(error, anyio.get_cancelled_exc_class()):
            # This task was not cancelled. The tool cancelled a scope of its own, and the
            # cancellation escaped from that scope.
            error = RuntimeError(f"{type(error).__name__}: the tool was cancelled")
            return ToolOutput(content=str(error), is_error=True)
        return ToolOutput(content=error_text(error), is_error=True)


async def _in_thread(call: Callable[[], Any], threads: ToolThreads, name: str) -> Any:
    """Run *call* in a thread of *threads* under *name*. Returns its result or raises its error."""
    ended: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        # Result and error do not travel through the thread's own answer. trio refuses an awaitable
        # that a thread returns, and keeps an answer in frames that the error's traceback has. And a
        # GeneratorExit that is thrown into a task closes each of its coroutines, even where the
        # exception is caught.
        try:
            ended.append((call(), None))
        except BaseException as error:
            ended.append((None, error))

    await threads.run(name, run)
    returned, error = ended.pop()
    try:
        if error is not None:
            raise error
        return returned
    finally:
        del error  # its traceback has this frame: only the garbage collector would free both


def _is_coroutine_function(run: Callable[..., Any]) -> bool:
    if run.__class__ is FunctionType and run.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # as most tools are
    return inspect.iscoroutinefunction(plain_function(run))


def _arguments(call_input: Any) -> dict[str, Any]:
    if call_input is None:
        return {}
    if not isinstance(call_input, dict):
        raise TypeError(f"the input must be a JSON object, not {type(call_input).__name__}")
    return call_input


def _content(returned: Any) -> Content:
    if isinstance(returned, str | list | tuple):
        return returned
    if returned is None:
        return ""
    return encode_json(returned).decode()


def make_answer(result: ToolResult, *, compaction: CompactionConfig) -> Answer:
    """The durable answer to a call: its content as JSON, its capped text and its summary.

    The summary is the caller's if there is one. Otherwise rules extract one from a long result.
    Raises InvalidMessage for invalid content, for content over 32 MiB, and for fields of the wrong
    type: such an answer would make the log unreadable.
    """
    result = _plain_result(result)
    content = _encoded(result.content)
    decoded = msgspec.json.decode(content)
    summary = result.compact_summary
    capped = None
    if compaction.enabled is not False:
        max_chars = compaction.cap_chars or CAP_CHARS
        capped = cap_content(decoded, max_chars=max_chars, call_id=result.call_id)
        if summary is None or not summary.strip():
            summary = summarise(
                result_text(decoded), is_error=result.is_error, max_chars=compaction.summary_chars
            )
    return Answer(
        call_id=result.call_id,
        content=msgspec.Raw(content),
        is_error=result.is_error,
        summary=summary or None,
        capped=capped,
    )


def _plain_result(result: ToolResult) -> ToolResult:
    """*result* with plain ``str`` texts in valid UTF-8."""
    if (
        result.call_id.__class__ is str
        and result.call_id.isascii()
        and result.content.__class__ is str
        and result.content.isascii()
        and result.is_error.__class__ is bool
        and result.compact_summary is None
    ):
        return result  # the usual case: nothing has to be converted
    call_id, summary = plain_text(result.call_id), plain_text(result.compact_summary)
    if call_id is None:
        raise InvalidMessage(f"the call_id of a result must be a text, not {result.call_id!r}")
    if not isinstance(result.is_error, bool):
        raise InvalidMessage(
            f"result of {call_id!r}: is_error must be True or False, not {result.is_error!r}"
        )
    if summary is None and result.compact_summary is not None:
        raise InvalidMessage(f"result of {call_id!r}: compact_summary must be a text")
    text = plain_text(result.content)
    content = result.content if text is None else text
    return ToolResult(call_id, content, result.is_error, summary)


INLINE_CHARS = 32_000
"""Capping and summarising a result of this size takes less time than switching to a thread."""


async def prepare_answers(
    results: Sequence[ToolResult], *, compaction: CompactionConfig
) -> tuple[Answer, ...]:
    """``make_answer`` for each result. Large results are prepared in a thread.

    Raises InvalidMessage before anything is changed.
    """

    prepared = _prepared_here(results, compaction)
    if prepared is not None:
        return prepared
    return await anyio.to_thread.run_sync(_prepared, results, compaction)


@refusing
def _prepared_here(results: Any, compaction: CompactionConfig) -> tuple[Answer, ...] | None:
    """The answers; None if they should be made in a thread."""
    checked = _checked_results(results)
    size = 0
    for result in checked:
        size += _size(result.content)
    return _answers(checked, compaction) if size <= INLINE_CHARS else None


@refusing
def _prepared(results: Any, compaction: CompactionConfig) -> tuple[Answer, ...]:
    return _answers(_checked_results(results), compaction)


def _answers(results: Sequence[ToolResult], compaction: CompactionConfig) -> tuple[Answer, ...]:
    return tuple([make_answer(result, compaction=compaction) for result in results])


def _checked_results(results: Any) -> tuple[ToolResult, ...]:
    if not isinstance(results, list | tuple):
        raise InvalidMessage(f"results must be a list of ToolResult, not {type(results).__name__}")
    for result in results:
        if not isinstance(result, ToolResult):
            raise InvalidMessage(f"a result must be a ToolResult, not {type(result).__name__}")
    return tuple(results)


def _size(content: Content) -> int:
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, Sequence):
        return 0  # invalid content; make_answer refuses it
    # Only the texts of blocks can be long; a result has few blocks.
    return sum(len(str(block)) for block in content)


def _encoded(content: Content) -> bytes:
    """Text as a JSON string, anything else as a JSON list of blocks."""
    if not isinstance(content, str):
        _check_blocks(content)
        return bytes(encode_blocks(content))
    encoded = encode_json(content)
    if len(encoded) > MAX_CONTENT_BYTES:
        raise InvalidMessage(
            f"the result has {len(encoded):,} bytes; the maximum is {MAX_CONTENT_BYTES:,}"
        )
    return encoded


def _check_blocks(content: Content) -> None:
    """Raises InvalidMessage for a list of anything but blocks, and says what to return instead."""
    if isinstance(content, Sequence):
        for index, block in enumerate(content):
            if not is_block(block):
                raise InvalidMessage(
                    f"the result is a {type(content).__name__} whose item {index} is"
                    f" {reprlib.repr(block)}; a list has to be one of content blocks, such as"
                    ' {"type": "text", "text": "..."}; return any other list as text, for example'
                    " with json.dumps"
                )


def make_error(call_id: str, text: str) -> Answer:
    """The durable answer to a call whose result could not be used. *text* says why."""
    return Answer(call_id=call_id, content=msgspec.Raw(encode_json(text)), is_error=True)
