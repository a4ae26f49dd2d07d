"""Translates the JSON chunks of a chat completion stream into our events. Pure.

One instance reads one reply. Servers that call themselves compatible differ in details. All of
these are accepted:

- calls without an index or an id, and several calls under one index;
- arguments as an object;
- reasoning under two names, or in parts;
- usage on every chunk, or on none;
- no ``[DONE]`` at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from llmsession.turns.blocks import encode_json
from llmsession.turns.stop import STOP_RULES
from llmsession.turns.stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    DeltaKind,
    ReplyEnded,
    ReplyStarted,
    StreamEvent,
    UsageReported,
)
from llmsession.turns.usage import Usage

from ..failures import StreamFault
from ..reading import Events, read_json, stopped_early

__all__ = ["FINISH_REASONS", "OpenAIEvents"]

FINISH_REASONS: dict[str, str] = {
    "stop": "end_turn",
    "eos": "end_turn",
    "length": "max_tokens",
    "model_length": "model_context_window_exceeded",  # Mistral
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    # Treated like a refusal, because the same context would be filtered again.
    "content_filter": "refusal",
}
"""Maps the finish reasons of chat completions to ours. A reason that is not here is kept as it is,
and an unknown one ends the turn without running any tool.
"""

_BROKEN_OFF = frozenset({"error", "insufficient_system_resource"})
"""Finish reasons of a reply that the server broke off, and that is worth another try. The second
one is DeepSeek's.
"""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    prompt_cache_hit_tokens: int | None = None  # DeepSeek


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)
_NONE: Events = ()
_EMPTY_TEXT = msgspec.Raw(b'{"type":"text","text":""}')


class _OpenCall:
    """A tool call whose block is open, or whose name has not arrived yet."""

    __slots__ = ("block", "call_id", "early")

    def __init__(self, call_id: str | None) -> None:
        self.call_id = call_id
        self.block: int | None = None
        self.early: list[str] = []
        """Arguments that arrived before the name."""


Names: TypeAlias = Callable[[str], str]


class OpenAIEvents:
    """Reads the chunks of one reply, in order. ``ended`` is True after the last one.

    *name_of* maps a tool's name on the wire to its name in the session. With *keeps_reasoning*, the
    signature of a thinking block names the field that it came in, so that it is sent back there.
    """

    def __init__(
        self, *, name_of: Names = lambda name: name, keeps_reasoning: bool = False
    ) -> None:
        self.ended = False
        self.usage: Usage | None = None
        self.name_of = name_of
        self._keeps_reasoning = keeps_reasoning
        self._started = False
        self._blocks = 0
        self._open: tuple[DeltaKind, int] | None = None
        """The text or thinking block that is open; there is at most one."""
        self._calls: dict[int, _OpenCall] = {}
        self._finished_calls = 0
        self._last_call = 0
        self._finish: str | None = None

    def read(self, data: str) -> Events:
        """The events that the chunk *data* stands for; often none.

        Raises StreamFault for an error chunk, and ProviderError if *data* cannot be read.
        """
        if data.startswith("[DONE]"):
            return self.finish()
        data, chunk = read_json(data, _decoder)
        if chunk.error:
            raise StreamFault({"error": chunk.error})
        events: list[StreamEvent] = []
        if not self._started:
            self._started = True
            events.append(ReplyStarted(chunk.model or ""))
        if chunk.choices:
            self._choice(chunk.choices[0], events)
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
            events.append(UsageReported(self.usage))
        return tuple(events)

    def finish(self) -> Events:
        """Called when the stream has ended. Raises a retryable ProviderError if the reply is
        incomplete.
        """
        if self.ended:
            return _NONE
        if self._finish is None:
            raise stopped_early()
        self.ended = True
        return (ReplyEnded(self._finish, self.usage),)

    def _choice(self, choice: _Choice, events: list[StreamEvent]) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            self._delta(delta, events)
        if choice.finish_reason:
            if choice.finish_reason in _BROKEN_OFF:
                raise StreamFault({"error": {"type": "server_error"}})
            self._finish = _stop_reason(choice.finish_reason)
            self._close_all(events)

    def _delta(self, delta: _Delta, events: list[StreamEvent]) -> None:
        content = delta.content
        if delta.reasoning_content:
            self._grow("thinking", delta.reasoning_content, events, "reasoning_content")
        elif delta.reasoning and isinstance(delta.reasoning, str):
            self._grow("thinking", delta.reasoning, events, "reasoning")
        if content:
            if isinstance(content, str):
                self._grow("text", content, events)
            else:
                self._parts(content, events)
        if delta.refusal:
            self._grow("text", delta.refusal, events)
        for call in delta.tool_calls or ():
            self._call(call, events)
        if delta.function_call is not None:
            self._call(_Call(index=0, function=delta.function_call), events)

    def _parts(self, parts: Any, events: list[StreamEvent]) -> None:
        """Content in parts: text, and thinking that is itself a list of texts (Mistral)."""
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part, dict):
                continue
            kind: DeltaKind = "thinking" if part.get("type") == "thinking" else "text"
            content = part.get(kind)
            for text in content if isinstance(content, list) else (content,):
                text = text.get("text") if isinstance(text, dict) else text
                if isinstance(text, str) and text:
                    self._grow(kind, text, events)

    def _grow(self, kind: DeltaKind, text: str, events: list[StreamEvent], field: str = "") -> None:
        if self._open is None or self._open[0] != kind:
            self._close_open(events)
            block = _EMPTY_TEXT
            if kind == "thinking":
                opened = {"type": "thinking", "thinking": ""}
                if field and self._keeps_reasoning:
                    opened["signature"] = field
                block = msgspec.Raw(encode_json(opened))
            self._open = (kind, self._start(block, events))
        events.append(BlockDelta(self._open[1], kind, text))

    def _start(self, block: msgspec.Raw, events: list[StreamEvent]) -> int:
        index, self._blocks = self._blocks, self._blocks + 1
        events.append(BlockStarted(index, block))
        return index

    def _call(self, call: _Call, events: list[StreamEvent]) -> None:
        function = call.function or _Function()
        index = self._place(call, function)
        self._last_call = index
        known = self._calls.get(index)
        if known is not None and known.block is not None and _is_another(known, call, function):
            self._close_call(index, events)
            known = None
        if known is None:
            known = self._calls[index] = _OpenCall(call.id or None)
        known.call_id = known.call_id or call.id or None
        arguments = function.arguments
        if arguments is not None and not isinstance(arguments, str):
            arguments = encode_json(arguments).decode()
        if known.block is None:
            if arguments:
                known.early.append(arguments)
            if function.name:
                self._open_call(known, function.name, events)
        elif arguments:
            events.append(BlockDelta(known.block, "input", arguments))

    def _place(self, call: _Call, function: _Function) -> int:
        if call.index is not None:
            return call.index
        # Without an index, a call with a name is a new one, and anything else belongs to the last
        # one.
        return max(self._calls, default=-1) + 1 if function.name else self._last_call

    def _open_call(self, call: _OpenCall, name: str, events: list[StreamEvent]) -> None:
        self._close_open(events)
        number = self._finished_calls + len(self._calls)
        call_id = call.call_id or f"call_{number}"
        fields = {"type": "tool_use", "id": call_id, "name": self.name_of(name), "input": {}}
        call.block = self._start(msgspec.Raw(encode_json(fields)), events)
        for arguments in call.early:
            events.append(BlockDelta(call.block, "input", arguments))

    def _close_open(self, events: list[StreamEvent]) -> None:
        if self._open is not None:
            events.append(BlockStopped(self._open[1]))
            self._open = None

    def _close_call(self, index: int, events: list[StreamEvent]) -> None:
        call = self._calls.pop(index)
        self._finished_calls += 1
        if call.block is not None:
            events.append(BlockStopped(call.block))

    def _close_all(self, events: list[StreamEvent]) -> None:
        self._close_open(events)
        for index in list(self._calls):
            self._close_call(index, events)


def _is_another(known: _OpenCall, call: _Call, function: _Function) -> bool:
    """Does a new call begin here? Some servers stream every call under index 0; then a name with
    another id begins a new call.
    """
    return bool(function.name and call.id and call.id != known.call_id)


def _stop_reason(finish_reason: str) -> str:
    if finish_reason in STOP_RULES:
        return finish_reason
    return FINISH_REASONS.get(finish_reason, finish_reason)


def _usage(usage: _Usage) -> Usage:
    """Their prompt tokens include cached ones; ours do not."""
    details = usage.prompt_tokens_details or _PromptDetails()
    cached = details.cached_tokens or usage.prompt_cache_hit_tokens or 0
    written = details.cache_write_tokens or 0
    prompt = usage.prompt_tokens or 0
    return Usage(max(0, prompt - cached - written), usage.completion_tokens or 0, cached, written)
