"""Summaries that a provider wrote in its own blocks: where they are, and where they may be sent.

There are two kinds. When a request has passed a threshold, a provider may put a summary into its
reply; it replaces everything before it. A summary that was asked for is signed, comes alone, and is
sent first, in place of the messages that it summarises.

Source: version 2.11 of the anthropic SDK, its types, and Anthropic's documentation of compaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llmsession.turns.blocks import (
    DocumentBlock,
    ImageBlock,
    ToolResultBlock,
    block_type,
    split_blocks,
)
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary
from llmsession.turns.request import Frame, Profile
from llmsession.turns.usage import edit_kinds

from .summary_wording import introduced

__all__ = [
    "COMPACTION",
    "is_sent_as_block",
    "lost_media",
    "message_from_block",
    "signed_summary",
    "summary_in",
]

COMPACTION = "compaction"


class _Block(msgspec.Struct):
    content: str | None = None
    signature: str | None = None


_decoder = msgspec.json.Decoder(_Block)


def _read(raw: bytes | msgspec.Raw) -> _Block | None:
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError:
        return None


def summary_in(body: msgspec.Raw, position: int) -> PrefixSummary | None:
    """The newest summary in an assistant message at *position*; None if there is none. A block
    without content is a failed summary, which providers ignore.
    """
    if b'"compaction"' not in bytes(body):
        return None
    summary: PrefixSummary | None = None
    for number, raw in enumerate(split_blocks(body)):
        block = _read(raw) if block_type(raw) == COMPACTION else None
        if block is not None and block.content and block.content.strip():
            text = introduced(block.content)
            summary = PrefixSummary(position, text, "provider", inside=number)
    return summary


def signed_summary(raw: bytes, upto: int) -> PrefixSummary | None:
    """The summary of the first *upto* messages in *raw*, a block that was asked for. None if it is
    not signed or has no content.
    """
    block = _read(raw) if block_type(raw) == COMPACTION else None
    if block is None or not block.signature or not (block.content or "").strip():
        return None
    return PrefixSummary(upto, introduced(str(block.content)), "provider", msgspec.Raw(bytes(raw)))


def message_from_block(message: Message, first: int) -> Message | None:
    """*message* without its blocks before number *first*; None if nothing is left."""
    raws = split_blocks(message.body)[first:]
    body = msgspec.Raw(b"[" + b",".join(map(bytes, raws)) + b"]")
    return msgspec.structs.replace(message, body=body) if raws else None


def is_sent_as_block(prefix_summary: PrefixSummary | None, profile: Profile, frame: Frame) -> bool:
    """Is *prefix_summary* sent as the provider's own block? If not, its text is sent.

    The model must accept such blocks. A summary from a threshold needs the compact edit in the
    request; a signed summary must not be combined with that edit.
    """
    if prefix_summary is None or prefix_summary.by != "provider":
        return False
    compacts = any(kind.startswith("compact_") for kind in edit_kinds(frame.options))
    if prefix_summary.inside is not None:
        return compacts and "compact" in profile.provider_edits
    return not compacts and profile.compacts_on_demand


def lost_media(messages: Sequence[Message]) -> int:
    """How many images and documents *messages* hold. The provider's summaries drop them."""
    count = 0
    for message in messages:
        if not any(mark in bytes(message.body) for mark in (b'"image"', b'"document"')):
            continue
        for block in message.content:
            if isinstance(block, ImageBlock | DocumentBlock):
                count += 1
            elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                count += sum(
                    isinstance(part, dict) and part.get("type") in ("image", "document")
                    for part in block.content
                )
    return count
