"""Builds a reply from the events of a provider's stream. Nothing here waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import msgspec

from llmsession.errors import ProviderError

from .blocks import (
    Block,
    ToolUseBlock,
    block_type,
    clean_text,
    encode_json,
    parse_blocks,
    too_deep,
)
from .stop import Follow, stop_rule
from .stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    ReplyEnded,
    ReplyStarted,
    StreamEvent,
    UsageReported,
)
from .usage import AppliedEdit, Usage

__all__ = [
    "Reply",
    "ReplyBuilder",
    "can_go_on",
    "committed_blocks",
    "may_run_server_tools",
    "open_server_calls",
    "rename_calls",
    "without_open_server_calls",
    "without_stray_results",
]

_TEXT_FIELDS = ("text", "thinking", "signature")
"""Fields of a block whose deltas have the field's name as their kind."""
_Fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_USAGE = Usage()
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]+")
_COMPACTION = "compaction"
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
_THINKING = ("thinking", "redacted_thinking")
_Raw: TypeAlias = bytes | msgspec.Raw


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that has ended. ``blocks`` are complete blocks as JSON bytes, in order."""

    blocks: tuple[bytes, ...]
    stop_reason: str | None
    usage: Usage
    model: str | None = None
    context: Usage | None = None
    """The field of ``ReplyEnded`` with this name, and so is ``edits``."""
    edits: tuple[AppliedEdit, ...] = ()

    @property
    def calls(self) -> tuple[ToolUseBlock, ...]:
        """The calls that need a result. Calls of the provider's own tools need none."""
        blocks = (_parsed(raw) for raw in self.blocks if block_type(raw) == "tool_use")
        return tuple(block for block in blocks if isinstance(block, ToolUseBlock))


class _Part:
    """One block while it is streaming. Its pieces are joined once, at its end."""

    __slots__ = ("citations", "opened", "pieces", "stopped", "type")

    def __init__(self, opened: bytes) -> None:
        self.opened = opened
        self.type = block_type(opened)
        self.pieces: dict[str, list[str]] = {}
        self.citations: list[msgspec.Raw] = []
        self.stopped = False

    def add(self, delta: BlockDelta) -> None:
        if delta.kind == "citation":
            citation = clean_text(delta.text).encode()
            _check_json(citation, f"the citation of block {delta.index}")
            self.citations.append(msgspec.Raw(citation))
        else:
            pieces = self.pieces.get(delta.kind)
            if pieces is None:
                pieces = self.pieces[delta.kind] = []
            pieces.append(delta.text)

    def joined(self, kind: str) -> str:
        pieces = self.pieces.get(kind)
        if not pieces:
            return ""
        if len(pieces) > 1:
            pieces[:] = ["".join(pieces)]
        return pieces[0]

    def encode(self) -> bytes:
        """The block with its deltas. Unknown fields stay unchanged."""
        if not self.pieces and not self.citations:
            return self.opened
        fields: dict[str, Any] = _Fields.decode(self.opened)
        for field in _TEXT_FIELDS:
            if field in self.pieces:
                opened = fields.get(field)
                before = msgspec.json.decode(opened) if opened is not None else ""
                fields[field] = (before or "") + self.joined(field)
        if "input" in self.pieces:
            fields["input"] = _input_json(self.joined("input"))
        if self.citations:
            had = fields.get("citations")
            earlier = msgspec.json.decode(had, type=list[msgspec.Raw] | None) if had else None
            fields["citations"] = [*(earlier or ()), *self.citations]
        return encode_json(fields)


def _input_json(text: str) -> msgspec.Raw:
    """A tool input as it was streamed.

    With eager streaming it may not be JSON, or not an object, and providers refuse that. Then it is
    wrapped, so that the call can still be answered.
    """
    if not text.strip():
        return msgspec.Raw(b"{}")
    whole = clean_text(text).encode()
    try:
        if isinstance(msgspec.json.decode(whole), dict) and not too_deep(whole):
            return msgspec.Raw(whole)
    except (msgspec.DecodeError, RecursionError):
        pass
    return msgspec.Raw(encode_json({"INVALID_JSON": text}))


class ReplyBuilder:
    """Feed it a stream's events in order, and take the Reply when ``ended`` is True.

    An event out of order is the provider's fault and raises ProviderError (retryable).
    """

    def __init__(self) -> None:
        self.model: str | None = None
        self.usage = _NO_USAGE
        self.ended = False
        self.fed = 0
        """How many events were fed."""
        self.stop_reason: str | None = None
        self._end = ReplyEnded(None)
        self._parts: dict[int, _Part] = {}

    def feed(self, event: StreamEvent) -> None:
        """Process the next event. Raises ProviderError for one that cannot come at this point."""
        if self.ended:
            raise _broken("an event came after the end of the reply")
        self.fed += 1
        match event:
            case BlockDelta():
                self._open_part(event.index).add(event)
            case BlockStarted():
                if event.index in self._parts:
                    raise _broken(f"block {event.index} was started twice")
                self._parts[event.index] = _opened(event)
            case BlockStopped():
                self._open_part(event.index).stopped = True
            case ReplyStarted():
                self.model = event.model
                self.usage = event.usage or self.usage
            case UsageReported():
                self.usage = event.usage
            case ReplyEnded():
                self.ended = True
                self._end = event
                self.stop_reason = event.stop_reason
                self.usage = event.usage or self.usage

    def _open_part(self, index: int) -> _Part:
        part = self._parts.get(index)
        if part is None or part.stopped:
            raise _broken(f"block {index} is not open")
        return part

    def reply(self) -> Reply:
        """The complete reply.

        A block that was never closed is left out, unless it is text: the input or the signature of
        any other block is incomplete. Raises ProviderError (retryable) if the stream stopped before
        its end.
        """
        if not self.ended:
            raise _broken("the stream stopped before the reply ended")
        blocks = (
            self._parts[index]
            for index in sorted(self._parts)
            if self._parts[index].stopped or self._parts[index].type == "text"
        )
        return Reply(
            blocks=tuple(part.encode() for part in blocks),
            stop_reason=self.stop_reason,
            usage=self.usage,
            model=self.model,
            context=self._end.context,
            edits=self._end.edits,
        )

    def text_blocks(self) -> tuple[bytes, ...]:
        """The text blocks so far that are not blank. These are what ``keep_text`` keeps."""
        parts = (self._parts[index] for index in sorted(self._parts))
        encoded = (part.encode() for part in parts if part.type == "text")
        return tuple(raw for raw in encoded if _says_something(raw))

    def has_text(self) -> bool:
        """Is there text that ``keep_text`` would keep?"""
        return bool(self.text_blocks())

    def so_far(self) -> tuple[tuple[int, str, bytes, str], ...]:
        """(index, delta kind, opened block, text so far) of each streamed block.

        For a subscriber that joins in the middle of the reply.
        """
        streamed = []
        for index in sorted(self._parts):
            part = self._parts[index]
            for kind in ("text", "thinking", "input"):
                text = part.joined(kind)
                if text:
                    streamed.append((index, kind, part.opened, text))
        return tuple(streamed)


def _opened(event: BlockStarted) -> _Part:
    """The part that *event* opens, checked completely.

    An error must be found here and not later, when the reply is put together or an interrupt asks
    for its text.
    """
    place = f"block {event.index}"
    _check_json(bytes(event.block), place)
    part = _Part(bytes(event.block))
    if not part.type:
        raise _broken(f"{place} has no type")
    if part.type == "tool_result":
        raise _broken(f"{place} is a tool result, which a model cannot send")
    try:
        if part.type in ("text", "thinking"):
            _Streamed.decode(part.opened)
        call = part.type == "tool_use" and not isinstance(_parsed(part.opened), ToolUseBlock)
    except msgspec.DecodeError as error:
        raise _broken(f"{place} does not match its type: {error}") from error
    if call:
        # Such a call cannot be answered, and a call without a result makes later requests invalid.
        raise _broken(f"{place} is a call without an id or a name")
    return part


class _StreamedFields(msgspec.Struct):
    """The fields of a block to which deltas are added."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    citations: list[msgspec.Raw] | None = None


_Streamed = msgspec.json.Decoder(_StreamedFields)
# A float that is out of range is valid JSON, so it must be readable, too.
_Json = msgspec.json.Decoder(float_hook=str)


def _check_json(raw: bytes, what: str) -> None:
    try:
        _Json.decode(raw)
        deep = too_deep(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _broken(f"{what} is not JSON: {error}") from error
    if deep:
        raise _broken(f"{what} is nested too deeply")


def _parsed(raw: _Raw) -> Block:
    return parse_blocks(b"[" + bytes(raw) + b"]")[0]


def _broken(what: str) -> ProviderError:
    return ProviderError(f"the provider's stream is broken: {what}", kind="retryable")


def _says_something(raw: _Raw) -> bool:
    if block_type(raw) != "text":
        return True
    return bool(getattr(_parsed(raw), "text", "x").strip())


def committed_blocks(reply: Reply) -> tuple[bytes, ...]:
    """The blocks that a final reply leaves in the history; empty if it has no content.

    A cut-off or paused reply never keeps tool calls, because nobody will answer them. Server tool
    calls without a result are removed, too. For a complete reply this happens when the turn
    commits, because its earlier replies may have such calls, too (see
    ``without_open_server_calls``).

    Thinking that comes last is removed from every reply, because an assistant message may not end
    with it. A model may also end its turn after thinking alone.
    """
    if not any(_says_something(raw) for raw in reply.blocks):
        return ()
    if stop_rule(reply.stop_reason).follow in (Follow.COMMIT, Follow.RUN_TOOLS):
        ended = _ended(reply.blocks)
        last = reply.blocks[len(ended) :]
        return ended if any(block_type(raw) in _THINKING for raw in last) else reply.blocks
    places = _open_places([reply.blocks])
    gone = {index for _, index in places}
    gone.update(index for index, raw in enumerate(reply.blocks) if block_type(raw) == "tool_use")
    return _ended(_without(reply.blocks, gone.__contains__, is_edited=False))


def _without(
    blocks: Sequence[_Raw], gone: Callable[[int], bool], *, is_edited: bool
) -> tuple[bytes, ...]:
    """*blocks* without those whose index is *gone*.

    Thinking after the first removed block is removed, too, because its signature is bound to
    everything before it. *is_edited* says that something was removed earlier.
    """
    kept: list[bytes] = []
    for index, raw in enumerate(blocks):
        if gone(index):
            is_edited = True
        elif not (is_edited and block_type(raw) in _THINKING):
            kept.append(bytes(raw))
    return tuple(kept)


def _ended(blocks: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """*blocks* up to the last one that an assistant message may end with; () if there is none."""
    end = len(blocks)
    while end and _may_not_be_last(blocks[end - 1]):
        end -= 1
    return blocks[:end]


def _may_not_be_last(raw: _Raw) -> bool:
    # Text that is only white space is not sent, so the block before it would come last.
    return block_type(raw) in _THINKING or not _says_something(raw)


# Calls and results of the provider's own tools. The provider answers a call in the same reply, or
# at the beginning of the next one: after a pause, or after the caller's tools in the same reply.


may_run_server_tools: Callable[[_Raw], object] = re.compile(
    rb'"(?:server|mcp)_tool_use"|_tool_result"'
).search
"""May a block or a body hold a call or a result of a provider's own tool?

This test is made first for every reply, because reading its blocks costs ten times as much.
"""


def open_server_calls(blocks: Sequence[_Raw], before: Collection[bytes] = ()) -> frozenset[bytes]:
    """The ids, as JSON, of server tool calls that have no result after *blocks*.

    *blocks* are the next reply of a turn. *before* are the calls that had no result before it.
    """
    calls = set(before)
    for raw in blocks:
        kind = block_type(raw)
        if kind in _SERVER_CALLS:
            calls.add(_raw_field(raw, "id") or b"")
        elif kind.endswith("_tool_result"):
            calls.discard(_raw_field(raw, "tool_use_id") or b"")
    return frozenset(calls)


def can_go_on(replies: Sequence[Sequence[_Raw]]) -> bool:
    """May the next request end with *replies*, so that the provider continues where it stopped?

    *replies* are the blocks of the replies after the last user message. A provider continues after
    its own tools and after its own summary. A request that ends with any other assistant content is
    a prefill, which many models refuse. A reply without content is not sent, so such a request ends
    with the user.
    """
    if not any(_says_something(raw) for blocks in replies for raw in blocks):
        return True
    if any(block_type(raw) in _SERVER_CALLS for blocks in replies for raw in blocks):
        return True
    return bool(replies[-1]) and block_type(replies[-1][-1]) == _COMPACTION


def without_stray_results(
    blocks: Sequence[_Raw], before: Collection[bytes]
) -> tuple[Sequence[_Raw], tuple[str, ...]]:
    """*blocks* without results of server tools that no call before them asked for.

    Returns the blocks, and the types of the removed results. *before* are the calls that earlier
    replies of the turn left open. With such a result, every later request would be refused.
    """
    called = set(before)
    strays: dict[int, str] = {}
    for index, raw in enumerate(blocks):
        kind = block_type(raw)
        if kind in _SERVER_CALLS:
            called.add(_raw_field(raw, "id") or b"")
        elif kind.endswith("_tool_result") and _raw_field(raw, "tool_use_id") not in called:
            strays[index] = kind
    if not strays:
        return blocks, ()
    kept = _ended(_without(blocks, strays.__contains__, is_edited=False))
    return kept, tuple(strays.values())


def without_open_server_calls(replies: Sequence[Sequence[_Raw]]) -> list[tuple[bytes, ...]]:
    """*replies* without server tool calls that have no result, and without thinking that came after
    them.

    *replies* are the blocks of a turn's replies, in order. A reply of which nothing is left becomes
    (). The provider answers a call only in the turn that made it. When the turn is over no result
    can come, and every later request with the call would be refused.
    """
    places = _open_places(replies)
    left: list[tuple[bytes, ...]] = []
    is_edited = False
    for number, blocks in enumerate(replies):
        gone = {index for place, index in places if place == number}
        kept = _without(blocks, gone.__contains__, is_edited=is_edited)
        is_edited = is_edited or bool(gone)
        left.append(_ended(kept) if is_edited else kept)
    return left


def _open_places(replies: Sequence[Sequence[_Raw]]) -> set[tuple[int, int]]:
    """The places, as (reply, block), of server tool calls without a result."""
    places: dict[tuple[int, int], bytes | None] = {}
    for number, blocks in enumerate(replies):
        for index, raw in enumerate(blocks):
            kind = block_type(raw)
            if kind in _SERVER_CALLS:
                places[number, index] = _raw_field(raw, "id")
            elif kind.endswith("_tool_result"):
                answered = _raw_field(raw, "tool_use_id")
                places = {place: name for place, name in places.items() if name != answered}
    return set(places)


def _raw_field(raw: _Raw, name: str) -> bytes | None:
    value = _Fields.decode(raw).get(name)
    return None if value is None else bytes(value)


def _unused(base: str, *taken: Collection[str]) -> str:
    """*base*, or *base* with a suffix: the first one that is in none of *taken*, if all suffixes
    before it are.

    Looks at few names, however many are taken: some servers give every call the same id.
    """

    def is_taken(suffix: int) -> bool:
        name = f"{base}_{suffix}" if suffix > 1 else base
        return any(name in names for names in taken)

    last, free = 0, 1
    while is_taken(free):
        last, free = free, 2 * free
    while free - last > 1:
        middle = (last + free) // 2
        last, free = (middle, free) if is_taken(middle) else (last, middle)
    return f"{base}_{free}" if free > 1 else base


def rename_calls(blocks: tuple[bytes, ...], used: Collection[str]) -> tuple[bytes, ...]:
    """*blocks* with call ids that no earlier call of the session has: ``id``, ``id_2``, ...

    Providers allow letters, digits, ``_`` and ``-`` in ids, and the suffix uses only these. Other
    characters that a compatible server puts into an id (``functions.ls:0``) become ``_``.
    """
    names: set[str] = set()
    renamed: list[bytes] = []
    is_renamed = False
    for raw in blocks:
        if block_type(raw) == "tool_use":
            fields = _Fields.decode(raw)
            call_id: str = msgspec.json.decode(fields["id"], type=str)
            base = _NOT_IN_IDS.sub("_", call_id) or "call"
            unique = _unused(base, names, used)
            names.add(unique)
            if unique != call_id:
                is_renamed = True
                raw = encode_json({**fields, "id": unique})
        renamed.append(raw)
    return tuple(renamed) if is_renamed else blocks
