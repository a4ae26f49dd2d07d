"""Translates items of OpenAI's Responses interface into messages, and messages into items.

Consecutive items that the model wrote are one reply. Reasoning and the provider's own tools are not
blocks of ours and cannot be sent to any other provider. They stay in the reply's
``extra["items"]``, in their place among the items that became blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.turns.blocks import block_type, encode_json, split_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

from ..common.content_parts import (
    Parts,
    has_other_fields,
    openai_blocks,
    openai_parts,
    result_content,
)
from ..common.conversation import Note
from ..common.message_list import SystemTexts
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, call_block, result_block

__all__ = ["ItemReader", "write_items"]

_CALLS = {"function_call", "custom_tool_call", "local_shell_call"}
_RESULTS = {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
_KNOWN = {
    "message": {"type", "role", "content"},
    "function_call": {"type", "call_id", "name", "arguments"},
    "custom_tool_call": {"type", "call_id", "name", "input"},
    "local_shell_call": {"type", "call_id", "action"},
}
_KNOWN_RESULT = {"type", "call_id", "output", "id"}
_SHELL = "local_shell"


class ItemReader:
    """Reads items in their order. ``messages`` are those read so far, without the open reply.

    The id of a reply is that of its first item that became blocks.
    """

    def __init__(self, notes: list[Note]) -> None:
        self.notes = notes
        self.messages: list[RecordedMessage] = []
        self.system = SystemTexts()
        self.model: str | None = None
        self.starts = False
        self._open: RecordedMessage | None = None
        self._items: list[dict[str, Any]] = []

    def add(self, item: bytes | msgspec.Raw, number: int, time: float = 0.0) -> bool:
        """Read the next item. Returns False if it is not an item, that is, has neither a type nor a
        role.
        """
        record = Record.of(item, number)
        role, kind = record.text("role"), record.text("type") or ""
        if kind in ("", "message") and role in ("system", "developer"):
            self.end_reply()
            self.notes.append(self.system.add(len(self.messages), item, number))
        elif kind in ("", "message") and role == "user":
            self._say(record, time)
        elif kind in ("", "message") and role == "assistant":
            blocks = openai_blocks(record.raw("content"), number, self.notes)
            self._extend(record, blocks, "message", time)
        elif kind in _CALLS:
            self._extend(record, [_call(record, kind)], kind, time)
        elif kind in _RESULTS:
            self._answer(record, time)
        elif kind:
            self._keep(record, item, kind, time)
        else:
            return False
        return True

    def _note(self, number: int, what: str, detail: str, *, visible: bool = False) -> None:
        self.notes.append(Note(number, what, detail, visible))

    def _say(self, record: Record, time: float) -> None:
        self.end_reply()
        extra = record.rest(_KNOWN["message"] | {"id"})
        if has_other_fields(record.raw("content")):
            extra["parts"] = msgspec.Raw(record.raw("content") or b"null")
        self.messages.append(
            RecordedMessage(
                number=record.number,
                role="user",
                blocks=openai_blocks(record.raw("content"), record.number, self.notes),
                id=record.text("id") or "",
                created_at=time,
                extra=extra,
                starts=self.starts,
            )
        )
        self.starts = False

    def _answer(self, record: Record, time: float) -> None:
        self.end_reply()
        output = record.raw("output") or b'""'
        content: str | list[bytes]
        if output.startswith(b"["):
            content = openai_blocks(output, record.number, self.notes)
        else:
            content = record.text("output") or ("" if output == b'""' else output.decode())
        call = record.text("call_id") or record.text("id") or ""
        self.messages.append(
            RecordedMessage(
                number=record.number,
                role="user",
                blocks=[result_block(call, content)],
                id=record.text("id") or "" if record.text("call_id") else "",
                created_at=time,
                extra=record.rest(_KNOWN_RESULT),
            )
        )

    def _reply(self, record: Record, time: float) -> RecordedMessage:
        if self._open is None:
            self._open = RecordedMessage(
                number=record.number,
                role="assistant",
                blocks=[],
                created_at=time,
                model=self.model,
                provider="openai",
            )
        self._open.completed_at = max(self._open.completed_at, time)
        return self._open

    def _extend(self, record: Record, blocks: list[bytes], kind: str, time: float) -> None:
        reply = self._reply(record, time)
        rest: dict[str, Any] = {"blocks": len(blocks)} | record.rest(_KNOWN[kind])
        if kind not in ("message", "function_call"):
            rest["type"] = kind
        if kind == "message" and has_other_fields(record.raw("content")):
            rest["parts"] = msgspec.Raw(record.raw("content") or b"null")
        if not reply.id and record.text("id"):
            reply.id = record.text("id") or ""
            del rest["id"]
        reply.blocks.extend(blocks)
        self._items.append(rest)

    def _keep(self, record: Record, item: bytes | msgspec.Raw, kind: str, time: float) -> None:
        self._reply(record, time)
        self._items.append({"item": msgspec.Raw(bytes(item))})
        what = "reasoning" if kind == "reasoning" else "foreign_item"
        is_lost = kind.endswith(("_call", "_output"))
        self._note(record.number, what, f"{kind}: kept in extra, never sent", visible=is_lost)

    def end_reply(
        self, usage: Usage | None = None, stop_reason: str | None = None
    ) -> RecordedMessage | None:
        """End the open reply and return it; None if there is none."""
        reply, items = self._open, self._items
        self._open, self._items = None, []
        if reply is None:
            return None
        reply.usage, reply.stop_reason = usage, stop_reason
        if any(set(item) != {"blocks"} for item in items):
            reply.extra = {"items": items}
        self.messages.append(reply)
        return reply


def _call(record: Record, kind: str) -> bytes:
    call, name = record.text("call_id") or record.text("id") or "", record.text("name") or ""
    if kind == "custom_tool_call":
        return call_block(call, name, encode_json({"input": record.text("input") or ""}))
    if kind == "local_shell_call":
        return call_block(call, _SHELL, record.raw("action"))
    arguments = record.raw("arguments")
    return call_block(call, name, record.text("arguments") if _is_text(arguments) else arguments)


def _is_text(raw: bytes | None) -> bool:
    return raw is not None and raw.startswith(b'"')


# Writing.


def write_items(message: Message, custom: set[str], *, own: bool) -> Iterator[dict[str, Any]]:
    """*message* as items, each with its id. *custom* collects the calls of custom tools, so that
    their results are written in the form of custom tools.
    """
    extra = Record.of(message.extra if own else None)
    raws = [bytes(raw) for raw in split_blocks(message.body)]
    if message.is_user:
        yield from _written_user(message, raws, extra, custom)
        return
    index = 0
    id = {"id": message.id}
    for item in [*_recorded(extra, len(raws)), Record(0, {})]:
        if item.raw("item"):
            yield dict(Record.of(item.raw("item")).fields)
            continue
        stop = index + item.count("blocks") if item.fields else len(raws)
        for fields in _written_run(raws[index:stop], item, custom):
            yield {**fields, **id}
            id = {}
        index = stop


def _recorded(extra: Record, blocks: int) -> list[Record]:
    """The items that a reply was read from; empty if they do not match its blocks any more."""
    items = extra.records("items")
    return items if sum(item.count("blocks") for item in items) == blocks else []


def _written_run(raws: Sequence[bytes], item: Record, custom: set[str]) -> Iterator[dict[str, Any]]:
    rest = item.rest({"blocks", "type"})
    messages: list[bytes] = []
    for raw in raws:
        if block_type(raw) != "tool_use":
            messages.append(raw)
            continue
        if messages:
            yield _message("assistant", messages, {})
            messages = []
        yield _written_call(Record.of(raw), item.text("type") or "", rest, custom)
    if messages:
        yield _message("assistant", messages, rest)


def _message(role: str, messages: Sequence[bytes], rest: dict[str, Any]) -> dict[str, Any]:
    words: Parts = "assistant_items" if role == "assistant" else "user_items"
    parts = rest.pop("parts", None)
    content = openai_parts(messages, words, parts)
    return {**rest, "type": "message", "role": role, "content": content}


def _written_call(
    call: Record, kind: str, rest: dict[str, Any], custom: set[str]
) -> dict[str, Any]:
    id, arguments = call.text("id") or "", call.raw("input") or b"{}"
    if kind == "custom_tool_call":
        custom.add(id)
        text = call.record("input").text("input") or ""
        named = {"name": call.text("name") or "", "input": text}
        return {**rest, "type": kind, "call_id": id, **named}
    if kind == "local_shell_call":
        return {**rest, "type": kind, "call_id": id, "action": msgspec.Raw(arguments)}
    named = {"name": call.text("name") or "", "arguments": arguments.decode()}
    return {**rest, "type": "function_call", "call_id": id, **named}


def _written_user(
    message: Message, raws: Sequence[bytes], extra: Record, custom: set[str]
) -> Iterator[dict[str, Any]]:
    rest = extra.rest(())
    others = [raw for raw in raws if block_type(raw) != "tool_result"]
    for raw in raws:
        if block_type(raw) != "tool_result":
            continue
        call = Record.of(raw).text("tool_use_id") or ""
        kind = "custom_tool_call_output" if call in custom else "function_call_output"
        output = result_content(raw, "user_items")
        yield {**rest, "type": kind, "call_id": call, "output": output, "id": message.id}
        rest = {}
    if others:
        yield {**_message("user", others, rest), "id": message.id}
