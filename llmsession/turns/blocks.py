"""Content blocks: typed where the machine reads them, opaque and lossless everywhere else.

Content is stored as the JSON bytes of a list of blocks, exactly as it came. The structs here are
views of those bytes. A block of a known type with unknown fields keeps its type, and the bytes keep
the fields. A block of an unknown type is an OpaqueBlock with its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard, get_args

import msgspec

from llmsession.errors import InvalidMessage

__all__ = [
    "KNOWN_TYPES",
    "Block",
    "Content",
    "DocumentBlock",
    "ImageBlock",
    "OpaqueBlock",
    "RedactedThinkingBlock",
    "TextBlock",
    "ThinkingBlock",
    "ToolResultBlock",
    "ToolUseBlock",
    "block_type",
    "clean_text",
    "encode_blocks",
    "encode_json",
    "is_block",
    "is_number",
    "is_thinking",
    "join_blocks",
    "joined_text",
    "parse_blocks",
    "plain_number",
    "plain_text",
    "split_blocks",
    "text_block",
    "too_deep",
]

MAX_CONTENT_BYTES = 32 * 1024 * 1024
"""The Messages API refuses requests over 32 MB, so one message can never be larger."""

MAX_NESTING = 500
"""The maximum number of nested lists and objects in one message. JSON is read recursively, and
Python allows 1,000 frames. A message that was written near the top of the stack must be readable
deep in it.
"""


class _Known(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """A block of a type that this package reads."""


class TextBlock(_Known, frozen=True, tag="text", gc=False):
    """A text."""

    text: str


class ThinkingBlock(_Known, frozen=True, tag="thinking", gc=False):
    """The model's thinking. ``signature`` binds it to everything that stands before it."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Known, frozen=True, tag="redacted_thinking", gc=False):
    """Thinking that only the provider can read."""

    data: str


class ToolUseBlock(_Known, frozen=True, tag="tool_use"):
    """A tool call that the model made. ``input`` is decoded JSON; providers require an object."""

    id: str
    name: str
    input: Any = None


class ToolResultBlock(_Known, frozen=True, tag="tool_result"):
    """The result of a tool call. ``content`` is a text or a list of blocks, as decoded JSON."""

    tool_use_id: str
    content: str | list[Any] = ""
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """The result's text blocks, joined with newlines. Other blocks are left out."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(
            str(part.get("text", ""))
            for part in self.content
            if isinstance(part, dict) and part.get("type") == "text"
        )


class ImageBlock(_Known, frozen=True, tag="image"):
    """An image. ``source`` is decoded JSON, as the provider defines it."""

    source: Any = None


class DocumentBlock(_Known, frozen=True, tag="document"):
    """A document. ``source`` is decoded JSON, as the provider defines it."""

    source: Any = None


class OpaqueBlock(msgspec.Struct, frozen=True, gc=False):
    """A block that the machine does not read. ``raw`` is its JSON, byte for byte."""

    type: str
    raw: bytes

    def decoded(self) -> dict[str, Any]:
        """The block as plain Python values."""
        value: dict[str, Any] = msgspec.json.decode(self.raw)
        return value


KnownBlock: TypeAlias = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
)
Block: TypeAlias = KnownBlock | OpaqueBlock
"""Any content block."""
Content: TypeAlias = str | Sequence[Block | Mapping[str, Any]]
"""Content that a caller may pass: a text, or blocks as structs or as plain dicts."""


KNOWN_TYPES = frozenset(str(known.__struct_config__.tag) for known in get_args(KnownBlock))
"""The block types that are read here. An opaque block of one of these types is malformed."""


class _Typed(msgspec.Struct):
    type: str


_all_known = msgspec.json.Decoder(tuple[KnownBlock, ...])
_one_known = msgspec.json.Decoder(KnownBlock)
_type_only = msgspec.json.Decoder(_Typed)
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
# A float that is out of range is valid JSON, so it must be readable, too.
_all_floats = msgspec.json.Decoder(float_hook=str)
_encoder = msgspec.json.Encoder()


def clean_text(text: str) -> str:
    """*text* as valid UTF-8: a lone surrogate becomes U+FFFD, and a split pair is joined."""
    if text.isascii():  # Python knows this without looking at the characters
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def plain_text(value: object) -> str | None:
    """*value* as a plain ``str`` in valid UTF-8; None if it is not a text.

    A subclass of ``str`` may encode itself in its own way, or not at all.
    """
    if value.__class__ is str:
        return value if value.isascii() else clean_text(value)
    return clean_text(str.__str__(value)) if isinstance(value, str) else None


def plain_number(value: object) -> int | None:
    """*value* as a plain ``int``; None if it is not a whole number. True and False are not
    numbers.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int.__index__(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Is *value* a number? True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def encode_json(value: Any) -> bytes:
    """*value* as JSON. Lone surrogates are replaced. Raises InvalidMessage if it cannot be
    encoded.
    """
    try:
        try:
            return _encoder.encode(value)
        except UnicodeEncodeError:
            return _encoder.encode(_clean(_plain(value)))
    except (RecursionError, TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"the value cannot be encoded as JSON: {error}") from error


def _plain(value: Any) -> Any:
    # Structs become dicts first, so that _clean sees every string in them.
    return msgspec.to_builtins(value, builtin_types=(bytes, msgspec.Raw))


def too_deep(raw: bytes) -> bool:
    """Is the JSON *raw* nested deeper than MAX_NESTING? Raises msgspec.DecodeError if it is not
    JSON.
    """
    # Brackets are counted first, also those inside of strings: nearly all messages have few.
    if raw.count(b"[") + raw.count(b"{") <= MAX_NESTING:
        return False
    try:
        level = [_all_floats.decode(raw)]
    except RecursionError:
        return True
    for _ in range(MAX_NESTING):
        parents = [item for item in level if isinstance(item, dict | list)]
        if not parents:
            return False
        level = [
            item
            for parent in parents
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return any(isinstance(item, dict | list) for item in level)


def block_type(raw: bytes | msgspec.Raw) -> str:
    """The ``type`` of a block in JSON bytes; "" if it has none."""
    try:
        return _type_only.decode(raw).type
    except msgspec.ValidationError:
        return ""


def split_blocks(body: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """The JSON bytes of each block in *body*. The pieces are views of *body*'s buffer."""
    return _raw_list.decode(body)


def join_blocks(raws: Iterable[bytes | msgspec.Raw]) -> msgspec.Raw:
    """The JSON list of the blocks *raws*, byte for byte."""
    return msgspec.Raw(b"[" + b",".join(bytes(raw) for raw in raws) + b"]")


def parse_blocks(body: bytes | msgspec.Raw) -> tuple[Block, ...]:
    """The blocks of *body*, in order. A block of an unknown type becomes an OpaqueBlock."""
    try:
        return _all_known.decode(body)
    except msgspec.ValidationError:
        return tuple(_parse_one(raw) for raw in split_blocks(body))


def _parse_one(raw: msgspec.Raw) -> Block:
    try:
        known: KnownBlock = _one_known.decode(raw)
        return known
    except msgspec.ValidationError:
        return OpaqueBlock(block_type(raw), bytes(raw))


def joined_text(blocks: Iterable[Block], between: str = "") -> str:
    """The text of the text blocks among *blocks*, joined."""
    return between.join(block.text for block in blocks if isinstance(block, TextBlock))


def text_block(text: str) -> bytes:
    """The JSON of a text block."""
    return encode_json({"type": "text", "text": text})


def encode_blocks(content: Content) -> msgspec.Raw:
    """*content* as the JSON bytes of a list of blocks. A plain text becomes one text block.

    Raises InvalidMessage if it cannot be encoded as JSON, has a block without a type, is nested too
    deep, or is over 32 MiB.
    """
    text = plain_text(content)
    if text is not None:
        body = b"[" + text_block(text) + b"]"
    elif isinstance(content, Sequence):
        blocks: Sequence[Any] = content
        body = bytes(join_blocks(_encode_one(block, index) for index, block in enumerate(blocks)))
    else:
        kind = type(content).__name__
        raise InvalidMessage(f"content must be a text or a list of blocks, not {kind}")
    if len(body) > MAX_CONTENT_BYTES:
        raise InvalidMessage(
            f"the message has {len(body):,} bytes; the maximum is {MAX_CONTENT_BYTES:,}"
        )
    if too_deep(body):
        raise InvalidMessage(f"the message is nested deeper than {MAX_NESTING} levels; flatten it")
    return msgspec.Raw(body)


def is_block(value: object) -> bool:
    """Is *value* a content block, or a mapping with a type?"""
    if isinstance(value, Mapping):
        kind = value.get("type")
        return isinstance(kind, str) and bool(kind)
    return isinstance(value, OpaqueBlock | _Known)


def _encode_one(block: Block | Mapping[str, Any], index: int) -> bytes:
    if isinstance(block, OpaqueBlock):
        return _checked(block, index)
    if is_block(block):
        return encode_json(block)
    raise InvalidMessage(f"block {index} has no 'type', so it is not a content block")


def _checked(block: OpaqueBlock, index: int) -> bytes:
    try:
        block.raw.decode()
        if block_type(block.raw):
            return block.raw
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"block {index} is not JSON: {error}") from error
    raise InvalidMessage(f"block {index} has no 'type', so it is not a content block")


_THINKING_TYPES = frozenset({"thinking", "redacted_thinking"})


def is_thinking(block: Block) -> bool:
    """Is *block* thinking, readable or redacted?"""
    if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
        return True
    return isinstance(block, OpaqueBlock) and block.type in _THINKING_TYPES
