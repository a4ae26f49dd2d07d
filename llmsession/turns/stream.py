"""The events of a reply stream, in one vocabulary for all providers.

A well-formed stream is ``ReplyStarted``, then for each block ``BlockStarted``, deltas and
``BlockStopped``, then ``ReplyEnded``. Failures are raised, not sent: ``ProviderError``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .usage import AppliedEdit, Usage

__all__ = [
    "BlockDelta",
    "BlockStarted",
    "BlockStopped",
    "DeltaKind",
    "ReplyEnded",
    "ReplyStarted",
    "StreamEvent",
    "UsageReported",
]

DeltaKind: TypeAlias = Literal["text", "thinking", "signature", "input", "citation"]


class ReplyStarted(msgspec.Struct, frozen=True, gc=False):
    """The first event. ``usage``, if given, is what the prompt cost."""

    model: str
    usage: Usage | None = None


class BlockStarted(msgspec.Struct, frozen=True):
    """``block`` is the block as the provider opened it, JSON bytes."""

    index: int
    block: msgspec.Raw


class BlockDelta(msgspec.Struct, frozen=True, gc=False):
    """More of one block. ``text`` is text, thinking, a signature, a piece of the input's JSON,
    or one citation as JSON."""

    index: int
    kind: DeltaKind
    text: str


class BlockStopped(msgspec.Struct, frozen=True, gc=False):
    """The block is whole. One that never stops is left out of the reply, unless it is text."""

    index: int


class UsageReported(msgspec.Struct, frozen=True, gc=False):
    """Usage so far, cumulative: it overwrites what was reported before."""

    usage: Usage


class ReplyEnded(msgspec.Struct, frozen=True, gc=False):
    """The end. ``stop_reason`` in the provider's word; usage, if given, is the final one.

    ``context`` is the usage of the last sampling alone, where ``usage`` is more than that: what
    the next request begins with; all zero if nothing was sampled. ``edits`` are what the
    provider cleared before the model read the request.
    """

    stop_reason: str | None
    usage: Usage | None = None
    context: Usage | None = None
    edits: tuple[AppliedEdit, ...] = ()


StreamEvent: TypeAlias = (
    ReplyStarted | BlockStarted | BlockDelta | BlockStopped | UsageReported | ReplyEnded
)
