"""What each command of one session does, on its handle. Reads are answered at once; what waits
for something durable is a coroutine, whose first step enqueues it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from llmsession.compaction.summaries.digest import DIGEST_CHARS
from llmsession.errors import InvalidConfig, InvalidInput, InvalidMessage
from llmsession.session import LLMSession, SessionConfig, ToolResult
from llmsession.session.handles.subscription import generation_of, newest_seq
from llmsession.turns import Content, OpaqueBlock
from llmsession.turns.blocks import block_type, split_blocks

from ..wire import messages as w

__all__ = ["ASYNC_COMMANDS", "READ_COMMANDS", "content_of", "is_slow_to_number"]

PAGE_BYTES = 1024 * 1024
"""A page of a history ends here, or with its first message if that is larger."""
MAX_PAGE = 1000
QUICK_BYTES = 8_000
"""Results up to here are surely made ready without a thread, so their command is enqueued by its
first step."""


_CONFIG_TYPES = {field.name: field.type for field in msgspec.structs.fields(SessionConfig)}


def content_of(raw: msgspec.Raw) -> Content:
    """Content as a handle takes it: text, or blocks with their bytes as they came.

    Raises InvalidMessage.
    """
    try:
        if memoryview(raw)[0] == ord('"'):
            return msgspec.json.decode(raw, type=str)
        return [OpaqueBlock(block_type(block), bytes(block)) for block in split_blocks(raw)]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"content is text or a list of blocks: {error}") from error


def opened(handle: LLMSession) -> w.Opened:
    """What ``create``, ``open`` and ``fork`` are answered with."""
    return w.Opened(handle.id, newest_seq(handle))


def _page(handle: LLMSession, command: w.Conversation) -> w.Page:
    if command.after < 0 or not 0 < command.limit <= MAX_PAGE:
        raise InvalidInput(f"a page begins at 0 or later and has 1 to {MAX_PAGE} messages")
    history = handle.conversation()
    end, size = command.after, 0
    for message in history[command.after : command.after + command.limit]:
        size += len(message.body)
        if size > PAGE_BYTES and end > command.after:
            break
        end += 1
    messages, generation = history[command.after : end], generation_of(handle)
    if end < len(history):
        return w.Page(messages, generation, end)
    if command.include_open:
        messages += handle.conversation(include_open=True)[len(history) :]
    return w.Page(messages, generation)


def _summary(handle: LLMSession, command: w.Summary) -> str:
    return handle.summary(
        max_chars=DIGEST_CHARS if command.max_chars is None else command.max_chars
    )


READ_COMMANDS: dict[type[w.SessionCommand], Callable[[LLMSession, Any], Any]] = {
    w.Conversation: _page,
    w.Context: lambda handle, _: handle.context(),
    w.Status: lambda handle, _: handle.status(),
    w.UsageOf: lambda handle, _: handle.usage(),
    w.OpenCalls: lambda handle, _: handle.open_calls(),
    w.Summary: _summary,
    w.Open: lambda handle, _: opened(handle),
}


async def _send(handle: LLMSession, command: w.Send) -> w.Taken:
    turn = await handle.send(
        content_of(command.content),
        when_busy=command.when_busy,
        command_id=command.command_id,
        expected_head=command.expected_head,
    )
    return w.Taken(turn.id.number)


async def _submit(handle: LLMSession, command: w.Submit) -> None:
    results = [
        ToolResult(
            result.call_id, content_of(result.content), result.is_error, result.compact_summary
        )
        for result in command.results
    ]
    await handle.submit_tool_results(results, command_id=command.command_id)


def _interrupt(handle: LLMSession, command: w.Interrupt) -> Awaitable[Any]:
    return handle.interrupt(command.turn, policy=command.policy, command_id=command.command_id)


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
        raise InvalidConfig(f"changes are fields of a configuration: {error}") from error
    unknown = set(changes) - set(_CONFIG_TYPES)
    if unknown:
        raise InvalidConfig(f"no such configuration: {', '.join(sorted(unknown))}")
    for name in changes.keys() - {"tools"}:  # definitions of tools are taken as they are
        try:
            changes[name] = msgspec.convert(changes[name], _CONFIG_TYPES[name])
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"{name}: {error}") from error
    await handle.configure(command_id=command.command_id, **changes)


ASYNC_COMMANDS: dict[type[w.SessionCommand], Callable[[LLMSession, Any], Awaitable[Any]]] = {
    w.Send: _send,
    w.Submit: _submit,
    w.Interrupt: _interrupt,
    w.Outcome: _outcome,
    w.Compact: lambda handle, _: handle.compact(),
    w.Clear: lambda handle, command: handle.clear(
        purge=command.purge, when_busy=command.when_busy, command_id=command.command_id
    ),
    w.Rewind: lambda handle, command: handle.rewind(
        command.to, when_busy=command.when_busy, command_id=command.command_id
    ),
    w.Forget: _forget,
    w.Label: lambda handle, command: handle.label(command.labels, command_id=command.command_id),
    w.Configure: _configure,
    w.StoreSummaries: lambda handle, command: handle.store_compact_summaries(
        command.summaries, command_id=command.command_id
    ),
    w.SetSummary: lambda handle, command: handle.set_summary(
        command.text, upto=command.upto, command_id=command.command_id
    ),
    w.Close: lambda handle, _: handle.close(),
}


def is_slow_to_number(command: w.SessionCommand) -> bool:
    """May the command need a thread before it is enqueued? What follows it waits for it then."""
    return (
        isinstance(command, w.Submit)
        and sum(len(result.content) for result in command.results) > QUICK_BYTES
    )
