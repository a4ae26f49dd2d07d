"""A provider that says what a test tells it to, and misbehaves on demand. No model answers."""

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
"""The fields of a block that stream, in order, each as its kind of delta."""


class _Fault(msgspec.Struct, frozen=True):
    """*error* is raised; or nothing comes for *seconds*, whatever cancels it; or for ever."""

    at: int
    error: BaseException | None = None
    ignores_cancellation_s: float | None = None


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True):
    """One reply of a script: blocks as JSON bytes, and how they are streamed.

    Replies are added: ``think("hm") + say("let me see") + call("ls", {"path": "."})``. Without
    a *stop_reason* it is ``tool_use`` if there are calls, else ``end_turn``. *delay_s* passes
    before each event, *delta_chars* is the length of a delta. The methods give a changed copy;
    where one takes *at*, that is the number of events that come before, at most all but the last.
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
        """It ends with *stop_reason*, in the provider's word."""
        return msgspec.structs.replace(self, stop_reason=stop_reason)

    def costing(self, usage: Usage) -> ScriptedReply:
        """It reports *usage*, at its start and at its end."""
        return msgspec.structs.replace(self, usage=usage)

    def slow(self, delay_s: float, *, delta_chars: int = 16) -> ScriptedReply:
        """*delay_s* passes before each event, and a delta is *delta_chars* long."""
        return msgspec.structs.replace(self, delay_s=delay_s, delta_chars=delta_chars)

    def hanging(self, at: int = 0) -> ScriptedReply:
        """Nothing more comes from there on. Cancellation ends it."""
        return self._with(_Fault(at))

    def raising(self, error: BaseException, at: int = 0) -> ScriptedReply:
        """*error* is raised there: a ProviderError, or anything that a faulty provider raises."""
        return self._with(_Fault(at, error=error))

    def ignoring_cancellation(self, seconds: float, at: int = 0) -> ScriptedReply:
        """Nothing comes there for *seconds*, and every cancellation is swallowed meanwhile."""
        return self._with(_Fault(at, ignores_cancellation_s=seconds))

    def _with(self, fault: _Fault) -> ScriptedReply:
        return msgspec.structs.replace(self, fault=fault)

    def out_of_order(self) -> ScriptedReply:
        """The first block's start comes after what should follow it."""
        return msgspec.structs.replace(self, shuffled=True)

    def events(self, model: str) -> list[StreamEvent]:
        """The whole stream, without its faults but in the order that it is sent in."""
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
    """A block as a provider streams it: opened empty, filled by deltas, closed."""
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
    """A reply of one block, given as it stands in JSON; it has a ``type``."""
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
    """Plays *script*: replies, one for each request in the order that requests come; or a
    function from a request and its tag to a reply. Text stands for ``say(text)``.

    A request beyond the script raises ProviderError, fatal. ``requests`` and ``tags`` hold what
    came in, ``opened`` and ``closed`` count streams: they are equal when nothing was left open.
    Where several sessions share a provider, a function tells them apart.
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
        """The one that it was made with."""
        return self._name

    def profile(self, model: str) -> Profile:
        """The one that it was made with, whatever *model* is."""
        return self._profile

    @property
    def open_streams(self) -> int:
        """Streams that were opened and are not closed yet."""
        return self.opened - self.closed

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """The script's next reply, with its faults. Raises what the reply says it raises."""
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
        except anyio.get_cancelled_exc_class():  # this is the misbehaviour
            continue  # it is swallowed on purpose
