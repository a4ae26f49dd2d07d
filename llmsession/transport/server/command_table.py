"""The function that performs each command, on the handle of its session or on the whole service.

Queries are answered at once. A command that waits for a durable record is a coroutine, and its
first step enqueues the command. If the fields of a command are the parameters of a method of the
handle, ``_call`` makes its function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from llmsession.compaction.summaries.digest import DIGEST_CHARS
from llmsession.errors import InvalidConfig, InvalidInput, InvalidMessage
from llmsession.session import LLMSession, SessionConfig, ToolResult
from llmsession.session.handles.subscription import generation_of, newest_seq
from llmsession.session.values.validation import checked_number, checked_page
from llmsession.turns import Content, OpaqueBlock
from llmsession.turns.blocks import block_type, split_blocks

from ..wire import messages as w
from .admission import Admission

__all__ = ["ASYNC_COMMANDS", "READ_COMMANDS", "SERVICE_COMMANDS", "is_slow_to_number", "opened"]

PAGE_BYTES = 1024 * 1024
"""The most bytes of messages in a page. A larger message has a page of its own."""
QUICK_BYTES = 8_000
"""Tool results up to this size are prepared without a thread, so that the first step of their
command enqueues it."""

ReadCommand: TypeAlias = Callable[[LLMSession, Any], Any]
AsyncCommand: TypeAlias = Callable[[LLMSession, Any], Awaitable[Any]]
ServiceCommand: TypeAlias = Callable[[Admission, str | None, Any], Awaitable[Any]]

_CONFIG_TYPES = {field.name: field.type for field in msgspec.structs.fields(SessionConfig)}


def _content(raw: msgspec.Raw) -> Content:
    """Content for a method of the handle: text, or blocks with their bytes unchanged.

    Raises InvalidMessage.
    """
    try:
        if memoryview(raw)[0] == ord('"'):
            return msgspec.json.decode(raw, type=str)
        return [OpaqueBlock(block_type(block), bytes(block)) for block in split_blocks(raw)]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"content must be text or a list of blocks: {error}") from error


def opened(handle: LLMSession) -> w.Opened:
    """The answer to ``create``, ``open`` and ``fork``."""
    return w.Opened(handle.id, newest_seq(handle))


def _page(handle: LLMSession, command: w.Conversation) -> w.Page:
    after, limit = checked_number(command.after, "after"), checked_page(command.limit)
    history = handle.conversation()
    end, size = after, 0
    for message in history[after : after + limit]:
        size += len(message.body)
        if size > PAGE_BYTES and end > after:
            break
        end += 1
    messages, generation = history[after:end], generation_of(handle)
    if end < len(history):
        return w.Page(messages, generation, end)
    if command.include_open:
        messages += handle.conversation(include_open=True)[len(history) :]
    return w.Page(messages, generation)


def _summary(handle: LLMSession, command: w.Summary) -> str:
    return handle.summary(
        max_chars=DIGEST_CHARS if command.max_chars is None else command.max_chars
    )


READ_COMMANDS: Mapping[type[w.Command[Any]], ReadCommand] = {
    w.Conversation: _page,
    w.Context: lambda handle, _: handle.context(),
    w.Status: lambda handle, _: handle.status(),
    w.UsageOf: lambda handle, command: handle.usage(turns=command.turns),
    w.OpenCalls: lambda handle, _: handle.open_calls(),
    w.Summary: _summary,
    w.WillCompact: lambda handle, _: handle.will_compact(),
    w.CompactSummaries: lambda handle, _: handle.compact_summaries(),
}
"""Commands that are answered at once, from the state of the handle."""


async def _send(handle: LLMSession, command: w.Send) -> w.Accepted:
    turn = await handle.send(
        _content(command.content),
        when_busy=command.when_busy,
        command_id=command.command_id,
        expected_head=command.expected_head,
    )
    return w.Accepted(turn.id.number)


async def _submit(handle: LLMSession, command: w.Submit) -> None:
    results = [
        ToolResult(
            result.call_id, _content(result.content), result.is_error, result.compact_summary
        )
        for result in command.results
    ]
    await handle.submit_tool_results(results, command_id=command.command_id)


async def _outcome(handle: LLMSession, command: w.Outcome) -> Any:
    return await handle.turn(command.turn).outcome()


async def _forget(handle: LLMSession, command: w.Forget) -> None:
    before = command.turn if command.moment is None else command.moment
    if before is None or (command.turn is not None and command.moment is not None):
        raise InvalidInput("forget takes either a turn or a moment")
    await handle.forget(before, when_busy=command.when_busy, command_id=command.command_id)


async def _configure(handle: LLMSession, command: w.Configure) -> None:
    try:
        changes = msgspec.json.decode(command.changes, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidConfig(
            f"changes must be an object with fields of SessionConfig: {error}"
        ) from error
    unknown = set(changes) - set(_CONFIG_TYPES)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise InvalidConfig(f"unknown configuration fields: {names}; see SessionConfig")
    for name in changes.keys() - {"tools"}:  # the handle checks tools itself
        try:
            changes[name] = msgspec.convert(changes[name], _CONFIG_TYPES[name])
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"{name}: {error}") from error
    await handle.configure(command_id=command.command_id, **changes)


def _call(method: Callable[..., Awaitable[Any]], **renamed: str) -> AsyncCommand:
    """A function that calls *method* with the fields of a command as arguments. *renamed* maps a
    field to a parameter with another name."""

    def call(handle: LLMSession, command: w.SessionCommand[Any]) -> Awaitable[Any]:
        arguments = {
            renamed.get(name, name): getattr(command, name)
            for name in command.__struct_fields__
            if name not in ("id", "session")
        }
        return method(handle, **arguments)

    return call


ASYNC_COMMANDS: Mapping[type[w.Command[Any]], AsyncCommand] = {
    w.Send: _send,
    w.Submit: _submit,
    w.Interrupt: _call(LLMSession.interrupt),
    w.Outcome: _outcome,
    w.Compact: _call(LLMSession.compact),
    w.Clear: _call(LLMSession.clear),
    w.Rewind: _call(LLMSession.rewind),
    w.Forget: _forget,
    w.Fork: _call(LLMSession.fork, fork="session_id"),
    w.Label: _call(LLMSession.label),
    w.Configure: _configure,
    w.StoreSummaries: _call(LLMSession.store_compact_summaries),
    w.SetSummary: _call(LLMSession.set_summary),
    w.Close: _call(LLMSession.close),
}
"""Commands that are coroutines on the handle. If one returns a handle, the answer is ``opened``."""

SERVICE_COMMANDS: Mapping[type[w.Command[Any]], ServiceCommand] = {
    w.Create: Admission.create,
    w.ListSessions: Admission.list,
    w.SearchSessions: Admission.search,
    w.Row: Admission.row,
    w.Export: Admission.export,
    w.Delete: Admission.delete,
}
"""Commands that are coroutines on the service, with the client's tenant. They open no session."""


def is_slow_to_number(command: w.Command[Any]) -> bool:
    """Whether the command may need a thread before it is enqueued. If so, the next command has to
    wait for it, so that commands keep their order."""
    return (
        isinstance(command, w.Submit)
        and sum(len(result.content) for result in command.results) > QUICK_BYTES
    )
