"""A provider with scripted replies, which fails on demand. It calls no model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import anyio
import msgspec

from llmsession.errors import ProviderError
from llmsession.turns.blocks import block_type, encode_json
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    DeltaKind,
    ReplyEnded,
    ReplyStarted,
    StreamEvent,
)
from llmsession.turns.usage import Usage

__all__ = ["ScriptedProvider", "ScriptedReply", "block", "call", "never", "say", "think"]

_STREAMED: dict[str, tuple[tuple[str, DeltaKind], ...]] = {
    "text": (("text", "text"),),
    "thinking": (("thinking", "thinking"), ("signature", "signature")),
    "tool_use": (("input", "input"),),
}
"""By type of block: the fields that are streamed, in order, with the kind of their deltas."""


class _Fault(msgspec.Struct, frozen=True):
    """A fault before event *at*. With *error*, the stream raises it. With
    *ignores_cancellation_s*, the stream pauses so long and ignores cancellation. With neither, it
    pauses for ever."""

    at: int
    error: BaseException | None = None
    ignores_cancellation_s: float | None = None


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True):
    """One reply of a script: its blocks as JSON bytes, and how they are streamed.

    Use ``+`` to combine replies: ``think("hm") + say("let me see") + call("ls", {"path": "."})``.
    The default *stop_reason* is ``tool_use`` if there are calls, and ``end_turn`` otherwise.
    *delay_s* is the pause before each event, and *delta_chars* the length of a delta.

    The methods return a changed copy. Where a method takes *at*, that many events of the stream
    come before the fault, but never the last event.
    """

    blocks: tuple[bytes, ...] = ()
    stop_reason: str | None = None
    usage: Usage = Usage(input_tokens=10, output_tokens=5)
    model: str | None = None
    delta_chars: int = 16
    delay_s: float = 0.0
    fault: _Fault | None = None
    shuffled: bool = False

    def __add__(self, other: ScriptedReply) -> ScriptedReply:
        """This reply with the blocks of *other* after its own."""
        return msgspec.structs.replace(self, blocks=self.blocks + other.blocks)

    def stopping(self, stop_reason: str) -> ScriptedReply:
        """A copy that ends with *stop_reason*, as the provider names it."""
        return msgspec.structs.replace(self, stop_reason=stop_reason)

    def costing(self, usage: Usage) -> ScriptedReply:
        """A copy that reports *usage* at its start and at its end."""
        return msgspec.structs.replace(self, usage=usage)

    def slow(self, delay_s: float, *, delta_chars: int = 16) -> ScriptedReply:
        """A copy that waits *delay_s* before each event. Deltas have *delta_chars* characters."""
        return msgspec.structs.replace(self, delay_s=delay_s, delta_chars=delta_chars)

    def hanging(self, at: int = 0) -> ScriptedReply:
        """A copy that sends nothing more after *at* events, until it is cancelled."""
        return self._with(_Fault(at))

    def raising(self, error: BaseException, at: int = 0) -> ScriptedReply:
        """A copy that raises *error* after *at* events. Use a ProviderError, or any other exception
        to simulate a faulty provider."""
        return self._with(_Fault(at, error=error))

    def ignoring_cancellation(self, seconds: float, at: int = 0) -> ScriptedReply:
        """A copy that pauses for *seconds* after *at* events, and ignores cancellation in the
        pause."""
        return self._with(_Fault(at, ignores_cancellation_s=seconds))

    def _with(self, fault: _Fault) -> ScriptedReply:
        return msgspec.structs.replace(self, fault=fault)

    def out_of_order(self) -> ScriptedReply:
        """A copy whose first block starts one event too late."""
        return msgspec.structs.replace(self, shuffled=True)

    def events(self, model: str) -> list[StreamEvent]:
        """All events of the stream in the order in which they are sent, without the fault."""
        events: list[StreamEvent] = [ReplyStarted(self.model or model, self.usage)]
        for index, raw in enumerate(self.blocks):
            events.extend(_block_events(index, raw, self.delta_chars))
        calls = any(block_type(raw) == "tool_use" for raw in self.blocks)
        stop_reason = self.stop_reason or ("tool_use" if calls else "end_turn")
        events.append(ReplyEnded(stop_reason, self.usage))
        if self.shuffled and self.blocks:
            events[1], events[2] = events[2], events[1]
        return events


def _block_events(index: int, raw: bytes, size: int) -> Iterator[StreamEvent]:
    """The events of a block: a start with empty fields, deltas that fill them, and a stop."""
    fields = msgspec.json.decode(raw)
    streamed = _STREAMED.get(fields["type"], ())
    values = [(kind, fields[name]) for name, kind in streamed if fields.get(name) is not None]
    for name, _ in streamed:
        if fields.get(name) is not None:
            fields[name] = {} if name == "input" else ""
    yield BlockStarted(index, msgspec.Raw(encode_json(fields)))
    for kind, value in values:
        text = encode_json(value).decode() if kind == "input" else value
        for start in range(0, len(text), size):
            yield BlockDelta(index, kind, text[start : start + size])
    yield BlockStopped(index)


def block(fields: Mapping[str, Any]) -> ScriptedReply:
    """A reply of one block with these JSON *fields*, including its ``type``."""
    return ScriptedReply(blocks=(encode_json(fields),))


def say(text: str) -> ScriptedReply:
    """A reply of one text block."""
    return block({"type": "text", "text": text})


def think(thinking: str, signature: str = "signed") -> ScriptedReply:
    """A reply of one thinking block."""
    return block({"type": "thinking", "thinking": thinking, "signature": signature})


def call(tool: str, arguments: Mapping[str, Any] | None = None, *, id: str) -> ScriptedReply:
    """A reply of one tool call."""
    return block({"type": "tool_use", "id": id, "name": tool, "input": dict(arguments or {})})


def never() -> ScriptedReply:
    """A model that never answers."""
    return ScriptedReply().hanging()


Scripted: TypeAlias = ScriptedReply | str
Script: TypeAlias = Iterable[Scripted] | Callable[[Request, StepTag], Scripted]


class ScriptedProvider:
    """A provider that answers from *script*.

    *script* is a list of replies, which answer the requests in order. Or it is a function that
    takes a request and its tag and returns a reply. A string stands for ``say(text)``. If several
    sessions share the provider, use a function, which can tell them apart.

    A request after the last reply raises a fatal ProviderError. ``requests`` and ``tags`` are all
    that were received. ``opened`` and ``closed`` count streams: they are equal if none is open.
    """

    def __init__(
        self, script: Script, *, name: str = "scripted", profile: Profile | None = None
    ) -> None:
        self._choose = script if callable(script) else _in_order(script)
        self._name = name
        self._profile = profile or Profile(name=name)
        self.requests: list[Request] = []
        self.tags: list[StepTag] = []
        self.opened = 0
        self.closed = 0

    @property
    def name(self) -> str:
        """The *name* that was passed to the constructor."""
        return self._name

    def profile(self, model: str) -> Profile:
        """The *profile* that was passed to the constructor, for every *model*."""
        return self._profile

    @property
    def open_streams(self) -> int:
        """How many streams are open."""
        return self.opened - self.closed

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """Stream the next reply of the script, with its fault. Raises the error of the fault."""
        self.requests.append(request)
        self.tags.append(tag)
        self.opened += 1
        try:
            chosen = self._choose(request, tag)
            reply = say(chosen) if isinstance(chosen, str) else chosen
            events = reply.events(request.model)
            fault_at = min(reply.fault.at, len(events) - 1) if reply.fault else None
            for index, event in enumerate(events):
                if reply.fault is not None and index == fault_at:
                    await _misbehave(reply.fault)
                await anyio.sleep(reply.delay_s)
                yield event
        finally:
            self.closed += 1


def _in_order(replies: Iterable[Scripted]) -> Callable[[Request, StepTag], Scripted]:
    rest = iter(replies)

    def choose(_request: Request, tag: StepTag) -> Scripted:
        for reply in rest:
            return reply
        raise ProviderError(
            f"the script has no reply for turn {tag.turn}, step {tag.step}, attempt {tag.attempt}",
            kind="fatal",
        )

    return choose


async def _misbehave(fault: _Fault) -> None:
    if fault.error is not None:
        raise fault.error
    if fault.ignores_cancellation_s is None:
        await anyio.sleep_forever()
        return
    until = anyio.current_time() + fault.ignores_cancellation_s
    while (left_s := until - anyio.current_time()) > 0:
        try:
            await anyio.sleep(left_s)
        except anyio.get_cancelled_exc_class():
            continue  # ignoring cancellation is the fault that the script asks for
