"""The events of a reply stream, in one vocabulary for all providers.

A well-formed stream is ``ReplyStarted``, then for each block ``BlockStarted``, deltas and
``BlockStopped``, then ``ReplyEnded``. Failures are raised as ``ProviderError`` and not sent as
events.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from llmsession.errors import ProviderError

from .blocks import plain_number, plain_text
from .usage import AppliedEdit, Usage, checked_edits, checked_usage

__all__ = [
    "BlockDelta",
    "BlockStarted",
    "BlockStopped",
    "DeltaKind",
    "ReplyEnded",
    "ReplyStarted",
    "StreamEvent",
    "UsageReported",
    "checked_event",
]

DeltaKind: TypeAlias = Literal["text", "thinking", "signature", "input", "citation"]


class ReplyStarted(msgspec.Struct, frozen=True, gc=False):
    """The first event of a reply. ``usage``, if present, is that of the prompt."""

    model: str
    usage: Usage | None = None


class BlockStarted(msgspec.Struct, frozen=True):
    """A block begins. ``block`` is the block as the provider opened it, in JSON bytes."""

    index: int
    block: msgspec.Raw


class BlockDelta(msgspec.Struct, frozen=True, gc=False):
    """More of one block.

    ``text`` is a piece of text, of thinking, of a signature or of the input's JSON, or one citation
    as JSON.
    """

    index: int
    kind: DeltaKind
    text: str


class BlockStopped(msgspec.Struct, frozen=True, gc=False):
    """The block is complete. A block that never stops is left out of the reply, unless it is
    text.
    """

    index: int


class UsageReported(msgspec.Struct, frozen=True, gc=False):
    """The usage so far. It is cumulative and replaces what was reported before."""

    usage: Usage


class ReplyEnded(msgspec.Struct, frozen=True, gc=False):
    """The reply has ended.

    ``stop_reason`` is the provider's word. ``usage``, if present, is the final one. ``context`` is
    the usage of the last sampling, if the provider sampled more than once: it is what the next
    request begins with, and all zero if nothing was sampled. ``edits`` are what the provider
    cleared before the model read the request.
    """

    stop_reason: str | None
    usage: Usage | None = None
    context: Usage | None = None
    edits: tuple[AppliedEdit, ...] = ()


StreamEvent: TypeAlias = (
    ReplyStarted | BlockStarted | BlockDelta | BlockStopped | UsageReported | ReplyEnded
)
"""What a provider's stream gives."""

_DELTA_KINDS = frozenset(get_args(DeltaKind))


def checked_event(event: StreamEvent) -> StreamEvent:
    """*event* of a provider, checked, because a provider may be foreign code.

    Texts and numbers of subclasses become plain ones. Lone surrogates in a model's name and a stop
    reason are replaced. Those in deltas are replaced when their block is complete, because a pair
    may be split between two deltas. Raises ProviderError (fatal), because another request would
    give the same.
    """
    # Nearly all events are valid deltas, so these are tested first.
    if event.__class__ is BlockDelta:
        if (
            event.text.__class__ is str
            and event.index.__class__ is int
            and event.kind in _DELTA_KINDS
        ):
            return event
    elif event.__class__ is BlockStopped:
        if event.index.__class__ is int:
            return event
    elif event.__class__ is BlockStarted:
        if event.index.__class__ is int and event.block.__class__ is msgspec.Raw:
            return event
    elif event.__class__ is ReplyEnded:
        return _plain_end(event)
    elif event.__class__ is ReplyStarted:
        return _plain_start(event)
    return _plain_event(event)


def _plain_event(event: StreamEvent) -> StreamEvent:
    match event:
        case BlockDelta():
            return _plain_delta(event)
        case BlockStarted(index=index, block=block):
            if not isinstance(block, msgspec.Raw | bytes):
                raise _wrong(event, "block", block, "JSON as msgspec.Raw")
            return event if index.__class__ is int else replace(event, index=_index(event))
        case BlockStopped():
            return BlockStopped(_index(event))
        case ReplyStarted():
            return _plain_start(event)
        case UsageReported():
            if event.usage is None:
                raise _wrong(event, "usage", None, "a Usage")
            return UsageReported(checked_usage(event.usage) or Usage())
        case ReplyEnded():
            return _plain_end(event)
        case _:
            name = type(event).__name__
            raise ProviderError(
                f"the provider's stream cannot be used: {name} is not a stream event", kind="fatal"
            )


def _plain_start(event: ReplyStarted) -> ReplyStarted:
    model = event.model
    if model.__class__ is not str or not model.isascii():
        model = _text_or_none(event, "model") or ""
    usage = checked_usage(event.usage)
    if model is event.model and usage is event.usage:
        return event
    return ReplyStarted(model, usage)


def _plain_end(event: ReplyEnded) -> ReplyEnded:
    stop_reason = event.stop_reason
    if stop_reason.__class__ is not str or not stop_reason.isascii():
        stop_reason = _text_or_none(event, "stop_reason")
    usage = checked_usage(event.usage)
    context = None if event.context is None else checked_usage(event.context)
    edits = checked_edits(event.edits) if event.edits else ()
    if (
        stop_reason is event.stop_reason
        and usage is event.usage
        and context is event.context
        and edits is event.edits  # there is one empty tuple
    ):
        return event
    return ReplyEnded(stop_reason, usage, context, edits)


def _plain_delta(event: BlockDelta) -> BlockDelta:
    if not isinstance(event.text, str):
        raise _wrong(event, "text", event.text, "text")
    if not isinstance(event.kind, str) or event.kind not in _DELTA_KINDS:
        raise _wrong(event, "kind", event.kind, f"one of {', '.join(sorted(_DELTA_KINDS))}")
    return BlockDelta(_index(event), event.kind, str.__str__(event.text))


def _index(event: BlockStarted | BlockDelta | BlockStopped) -> int:
    index = plain_number(event.index)
    if index is None:
        raise _wrong(event, "index", event.index, "a whole number")
    return index


def _text_or_none(event: ReplyStarted | ReplyEnded, field: str) -> str | None:
    value = getattr(event, field)
    if value is None:
        return None
    text = plain_text(value)
    if text is None:
        raise _wrong(event, field, value, "text")
    return text


def _wrong(event: StreamEvent, field: str, value: object, rule: str) -> ProviderError:
    name, kind = type(event).__name__, type(value).__name__
    return ProviderError(
        f"the provider's stream cannot be used: {field} of {name} is {kind}, not {rule}",
        kind="fatal",
    )
