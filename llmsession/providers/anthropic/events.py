"""Translates the JSON events of an Anthropic stream into our events. Pure.

One instance reads one reply. Only the fields that are used are decoded, so a delta costs one pass
over its JSON. Nearly all events are deltas of text, of thinking or of a call's input, so these are
decoded first, into structs of these fields alone.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from llmsession.turns.blocks import block_type, encode_json
from llmsession.turns.stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    DeltaKind,
    ReplyEnded,
    ReplyStarted,
    UsageReported,
)
from llmsession.turns.usage import AppliedEdit, Usage

from ..failures import StreamFault
from ..reading import Events, read_json, stopped_early

__all__ = ["AnthropicEvents"]

_NONE: Events = ()
_ABSENT = msgspec.Raw()
_NULL = msgspec.Raw(b"null")


class _CacheCreation(msgspec.Struct):
    ephemeral_1h_input_tokens: int | None = None


class _Counts(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _CacheCreation | None = None

    def over(self, old: Usage) -> Usage:
        """These counts over *old*: a count that is not reported keeps its old value."""
        created = self.cache_creation or _CacheCreation()
        return Usage(
            _or(self.input_tokens, old.input_tokens),
            _or(self.output_tokens, old.output_tokens),
            _or(self.cache_read_input_tokens, old.cache_read_tokens),
            _or(self.cache_creation_input_tokens, old.cache_write_tokens),
            _or(created.ephemeral_1h_input_tokens, old.cache_write_1h_tokens),
        )


class _Iteration(_Counts):
    """One of several model calls within a request, or the writing of a summary."""

    type: str = ""


class _Usage(_Counts):
    iterations: list[_Iteration] | None = None


class _ContextManagement(msgspec.Struct):
    applied_edits: list[AppliedEdit] | None = None


class _Message(msgspec.Struct):
    model: str = ""
    usage: _Usage | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    citation: msgspec.Raw = _ABSENT
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: msgspec.Raw = _ABSENT
    message: _Message | None = None
    usage: _Usage | None = None
    context_management: _ContextManagement | None = None


class _RawDelta(msgspec.Struct):
    delta: dict[str, Any] = {}


class _Text(msgspec.Struct, gc=False, tag_field="type", tag="text_delta"):
    kind: ClassVar[DeltaKind] = "text"
    text: str


class _Thinking(msgspec.Struct, gc=False, tag_field="type", tag="thinking_delta"):
    kind: ClassVar[DeltaKind] = "thinking"
    text: str = msgspec.field(name="thinking")


class _Input(msgspec.Struct, gc=False, tag_field="type", tag="input_json_delta"):
    kind: ClassVar[DeltaKind] = "input"
    text: str = msgspec.field(name="partial_json")


class _StreamedDelta(msgspec.Struct, gc=False, tag_field="type", tag="content_block_delta"):
    index: int
    delta: _Text | _Thinking | _Input


_decoder = msgspec.json.Decoder(_Event)
_streamed_delta = msgspec.json.Decoder(_StreamedDelta)
_raw_delta = msgspec.json.Decoder(_RawDelta)
_STREAMED = frozenset({"text", "thinking", "tool_use", "server_tool_use", "mcp_tool_use"})
"""Block types whose deltas are passed on. A block of any other type is held back until it is
complete.
"""


class AnthropicEvents:
    """Reads the events of one reply, in order. ``ended`` is True after ``message_stop``.

    Usage is cumulative: a later report replaces an earlier one, and a count that is not reported
    again keeps its value. If a reply took several iterations, its usage is their sum, because every
    iteration is charged.
    """

    def __init__(self) -> None:
        self.ended = False
        self.usage: Usage | None = None
        self._sampled: Usage | None = None
        """The usage reported beside the iterations: the sum of all iterations except summaries."""
        self._context: Usage | None = None
        self._edits: tuple[AppliedEdit, ...] = ()
        self._stop_reason: str | None = None
        self._unstreamed: dict[int, tuple[bytes, dict[str, Any]]] = {}

    def read(self, data: str) -> Events:
        """The events that *data*, one server-sent event, stands for; often none.

        Raises StreamFault for an error event, and ProviderError if *data* cannot be read.
        """
        try:
            streamed = _streamed_delta.decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # another event, or one that ``read_json`` repairs
        else:
            if streamed.index not in self._unstreamed:
                return (BlockDelta(streamed.index, streamed.delta.kind, streamed.delta.text),)
        data, event = read_json(data, _decoder)
        kind = event.type
        if kind == "content_block_delta":
            return self._delta(event, data)
        if kind == "content_block_start":
            return self._started(event.index, event.content_block)
        if kind == "content_block_stop":
            return self._stopped(event.index)
        if kind == "message_start":
            message = event.message or _Message()
            self._report(message.usage)
            return (ReplyStarted(message.model, self.usage),)
        if kind == "message_delta":
            self._stop_reason = (event.delta and event.delta.stop_reason) or self._stop_reason
            self._report(event.usage)
            if event.context_management is not None:
                self._edits = tuple(event.context_management.applied_edits or ())
            return (UsageReported(self.usage),) if self.usage and event.usage else _NONE
        if kind == "message_stop":
            self.ended = True
            context = self._context if self._context != self.usage else None
            return (ReplyEnded(self._stop_reason, self.usage, context, self._edits),)
        if kind == "error":
            raise StreamFault(msgspec.json.decode(data))
        return _NONE  # ping, and event types that are not known yet

    def finish(self) -> Events:
        """Called when the stream has ended. Raises a retryable ProviderError if the reply is
        incomplete.
        """
        if not self.ended:
            raise stopped_early()
        return _NONE

    def _delta(self, event: _Event, data: str) -> Events:
        delta, index = event.delta, event.index
        if index in self._unstreamed:
            _grow(self._unstreamed[index][1], _raw_delta.decode(data).delta)
            return _NONE
        if delta is None:
            return _NONE
        if delta.text is not None:
            return (BlockDelta(index, "text", delta.text),)
        if delta.partial_json is not None:
            return (BlockDelta(index, "input", delta.partial_json),)
        if delta.thinking is not None:
            return (BlockDelta(index, "thinking", delta.thinking),)
        if delta.signature is not None:
            return (BlockDelta(index, "signature", delta.signature),)
        if delta.citation not in (_ABSENT, _NULL):
            return (BlockDelta(index, "citation", bytes(delta.citation).decode()),)
        return _NONE

    def _started(self, index: int, block: msgspec.Raw) -> Events:
        # Copy the bytes: msgspec.Raw is a view, and would keep the whole event's text alive.
        block = msgspec.Raw(bytes(block) or b"null")
        if block_type(block) in _STREAMED:
            return (BlockStarted(index, block),)
        self._unstreamed[index] = (bytes(block), {})
        return _NONE

    def _stopped(self, index: int) -> Events:
        block = self._unstreamed.pop(index, None)
        if block is None:
            return (BlockStopped(index),)
        opened, added = block
        return BlockStarted(index, msgspec.Raw(_whole(opened, added))), BlockStopped(index)

    def _report(self, reported: _Usage | None) -> None:
        if reported is None:
            return
        self.usage = self._sampled = reported.over(self._sampled or Usage())
        if not reported.iterations:
            return
        # All iterations are charged. The context size is that of the last sampling, never that of a
        # summary.
        iterations = [(sampling.type, sampling.over(Usage())) for sampling in reported.iterations]
        self.usage = sum((usage for _, usage in iterations), Usage())
        sampled = [usage for kind, usage in iterations if kind == "message"]
        self._context = sampled[-1] if sampled else Usage()


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _grow(fields: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta to a block of an unknown type: texts are appended, other values are replaced."""
    for name, value in delta.items():
        if name == "type" or value is None:
            continue
        before = fields.get(name)
        is_text = isinstance(before, str) and isinstance(value, str)
        fields[name] = before + value if is_text else value


def _whole(opened: bytes, added: dict[str, Any]) -> bytes:
    """The JSON of the block *opened*, with what its deltas have *added*."""
    if not added:
        return opened
    fields: dict[str, Any] = msgspec.json.decode(opened, type=dict[str, msgspec.Raw])
    # A compaction delta carries the whole summary, so it replaces the opened content. The SDK reads
    # it in the same way.
    replaces = block_type(opened) == "compaction"
    for name, value in added.items():
        before = b"" if replaces else bytes(fields.get(name, b""))
        if isinstance(value, str) and before.startswith(b'"'):
            value = msgspec.json.decode(before, type=str) + value
        fields[name] = value
    return encode_json(fields)
