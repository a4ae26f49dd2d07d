"""The projection: history and view in, the exact request out. Nothing is moved or renamed.

A message that the view does not touch is sent as the very bytes it came in. Of a changed one
only the ``content`` of tool results is written anew; every other field keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from llmsession.turns.blocks import (
    Block,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    encode_json,
    is_thinking,
    join_blocks,
    parse_blocks,
    split_blocks,
    text_block,
)
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary
from llmsession.turns.request import Frame, Profile, Request, RequestMessage

from .prefix import shared_prefix
from .provider_blocks import is_sent_as_block, message_from_block
from .view import View, text_key

__all__ = ["EMPTY_OUTPUT", "Projector", "project"]

EMPTY_OUTPUT = "(no output)"
"""Stands for an empty text block inside a tool result: the API refuses empty text there."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def project(messages: Sequence[Message], view: View, profile: Profile, frame: Frame) -> Request:
    """The request for *messages* as *view* shows them; equal inputs give equal bytes.

    Results that the view swaps or caps show its text in the same block: same id, order, count
    and ``is_error``; inputs and texts that it shortens likewise. A segment is a user's text in
    place of a prefix, or the provider's own block where it is its own and the model takes it;
    what the view leaves out is not there, and what it injects stands on the
    user's side before the message at that position, or behind the system text. Thinking before
    ``thinking_from`` is left out, and all without a signature; so are white-space text blocks and
    messages that become empty. In a user message tool results stand before everything else.
    Neighbours of one role become one message if the profile merges roles.
    """
    return Projector().project(messages, view, profile, frame)


class Projector:
    """``project`` with a memory, so that a step costs its new messages and little else.

    The memory changes no result. It holds the messages of the last projections; those that are
    not shown any more are forgotten now and then.
    """

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}
        self._merged: dict[int, tuple[list[RequestMessage], RequestMessage]] = {}
        self._messages: tuple[Message, ...] = ()
        """The last projection: its messages, the view they were shown by, ..."""
        self._view: View | None = None
        self._merges = False
        self._in_block = False
        self._cut: tuple[Message, int, Message | None] | None = None
        """The message that holds the provider's summary, from which block on it is shown, and
        that."""
        self._closed: list[RequestMessage] = []
        """... what was sent for them, ..."""
        self._run: list[RequestMessage] = []
        """... and the parts of the last message that was sent, which may grow by a neighbour."""

    def project(
        self, messages: Sequence[Message], view: View, profile: Profile, frame: Frame
    ) -> Request:
        """See the function ``project``."""
        return Request(
            model=frame.model,
            max_tokens=frame.max_tokens,
            system=_system(frame.system, view),
            tools=frame.tools,
            messages=self._sent(
                tuple(messages),
                view,
                profile.merges_roles,
                is_sent_as_block(view.prefix_summary, profile, frame),
            ),
            options=frame.options,
        )

    def _sent(
        self, messages: tuple[Message, ...], view: View, merges: bool, in_block: bool
    ) -> tuple[RequestMessage, ...]:
        start, before = len(self._messages), self._merged
        # What is shown of a message depends on the view and its position alone; a text that is
        # injected behind the last message does not stay the last thing.
        same_way = view.is_like(self._view) and merges == self._merges
        same_way = same_way and in_block == self._in_block
        same_way = same_way and not any(each.at + 1 >= start for each in view.injected)
        if not same_way or shared_prefix(self._messages, messages) < start:
            start, self._merged = 0, {}
            self._closed, self._run = [], []
        self._view = None  # until this pass is through
        for part in self._parts(messages, view, start, in_block):
            if self._run and not (merges and self._run[0].role == part.role):
                self._closed.append(self._joined(self._run, before))
                self._run = []
            self._run.append(part)
        self._messages, self._view, self._merges = messages, view, merges
        self._in_block = in_block
        if not self._run:
            return tuple(self._closed)
        return (*self._closed, self._joined(self._run, before))

    def _parts(
        self, messages: tuple[Message, ...], view: View, start: int, in_block: bool
    ) -> Iterator[RequestMessage]:
        if len(self._shown) > 2 * len(messages) + 64:
            self._shown = {}
        memory = self._shown
        notes = _notes(view, messages) if view.injected else {}
        prefix_summary = view.prefix_summary
        if start == 0 and prefix_summary is not None:
            yield from _opening(prefix_summary, in_block)
        for position in range(max(start, view.start), len(messages)):
            if position in notes:
                yield _said(notes[position])
            if view.omitted and not view.shows(position):
                continue
            message, first = messages[position], 0
            if (
                prefix_summary is not None
                and prefix_summary.inside is not None
                and position == prefix_summary.upto
            ):
                first = prefix_summary.inside + (not in_block)
                cut = self.from_block(message, first)
                if cut is None:
                    continue
                message = cut
            shown = memory.get(message.id)
            if shown is None or shown.message is not message:
                shown = memory[message.id] = _Shown(message, first)
            part = shown.at(position, view)
            if part is not None:
                yield part
        if len(messages) in notes:
            yield _said(notes[len(messages)])

    def from_block(self, message: Message, first: int) -> Message | None:
        """*message* from block number *first* on; the same object each time it is asked for."""
        known = self._cut
        if known is None or known[0] is not message or known[1] != first:
            known = self._cut = (message, first, message_from_block(message, first))
        return known[2]

    def _joined(
        self,
        run: list[RequestMessage],
        before: dict[int, tuple[list[RequestMessage], RequestMessage]],
    ) -> RequestMessage:
        if len(run) == 1:
            return run[0]
        # The memory keeps the parts alive, so an address in it cannot be another part's.
        known = self._merged.get(id(run[0])) or before.get(id(run[0]))
        if known is None or not _same(known[0], run):
            known = (list(run), _join(run))
        self._merged[id(run[0])] = known
        return known[1]


def _system(system: str | None, view: View) -> str | None:
    tail = [each.text for each in view.injected if each.at < 0]
    return "\n\n".join(filter(None, (system, *tail))) if tail else system


def _notes(view: View, messages: Sequence[Message]) -> dict[int, str]:
    """What is injected, by its position: at the first message that is shown, at the earliest, and
    never between calls and their results."""
    notes: dict[int, str] = {}
    for each in view.injected:
        if 0 <= each.at <= len(messages):
            at = max(each.at, view.start)
            if at < len(messages) and messages[at].tool_results:
                at += 1
            notes[at] = f"{notes[at]}\n\n{each.text}" if at in notes else each.text
    return notes


def _opening(prefix_summary: PrefixSummary, in_block: bool) -> Iterator[RequestMessage]:
    """What stands for the first messages; nothing where the next one holds its own summary."""
    if not in_block:
        yield _said(prefix_summary.text)
    elif prefix_summary.inside is None:
        yield RequestMessage("assistant", join_blocks([prefix_summary.block]))


def _said(text: str) -> RequestMessage:
    return RequestMessage("user", join_blocks([text_block(text)]))


def _same(left: list[RequestMessage], right: list[RequestMessage]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def _join(run: list[RequestMessage]) -> RequestMessage:
    raws = [raw for part in run for raw in split_blocks(part.body)]
    if run[0].role == "user":
        raws = _results_first(raws, [_type_of(raw) == "tool_result" for raw in raws])
    return RequestMessage(run[0].role, join_blocks(raws))


class _Typed(msgspec.Struct):
    type: Any = None


_typed = msgspec.json.Decoder(_Typed)


def _type_of(raw: msgspec.Raw) -> Any:
    return _typed.decode(raw).type


class _Key(NamedTuple):
    """How a message is shown: with its thinking or without, and what stands in it instead."""

    leaves_out: bool = False
    results: tuple[str | None, ...] = ()
    others: tuple[bytes | None, ...] = ()
    """For each block that is no result: the JSON of the input or of the text that is shown."""


_AS_IT_IS = _Key()
_LEFT_OUT = _Key(True)


class _Shown:
    """One message, and how it was shown last."""

    __slots__ = ("_first", "_key", "_part", "call_ids", "message", "thinks")

    def __init__(self, message: Message, first: int = 0) -> None:
        self.message = message
        self._first = first
        """The number that its first block has in the history."""
        # Not ``content``, which the message would keep: the text of a conversation once more.
        blocks = parse_blocks(message.body)
        self.call_ids = tuple(filter(None, map(_call_id, blocks)))
        self.thinks = any(map(is_thinking, blocks))
        self._key: _Key | None = None
        self._part: RequestMessage | None = None

    def at(self, position: int, view: View) -> RequestMessage | None:
        """The message as *view* shows it at *position*; None if nothing of it is left."""
        leaves_out = self.thinks and position < view.thinking_from
        key = _LEFT_OUT if leaves_out else _AS_IT_IS
        if self.call_ids or view.inputs or view.texts:
            results = tuple([view.text_for(each, position) for each in self.call_ids])
            key = _Key(leaves_out, results, self._others(view))
        if key != self._key:
            swaps = {
                call_id: text
                for call_id, text in zip(self.call_ids, key.results, strict=False)
                if text is not None
            }
            self._part = _render(self.message, swaps, key)
            self._key = key
        return self._part

    def _others(self, view: View) -> tuple[bytes | None, ...]:
        if not view.inputs and not view.texts:
            return ()
        others: list[bytes | None] = []
        for at, block in enumerate(parse_blocks(self.message.body)):
            shown: bytes | None = None
            if isinstance(block, ToolUseBlock) and block.id in view.inputs:
                shown = bytes(view.inputs[block.id])
            elif isinstance(block, TextBlock):
                text = view.texts.get(text_key(self.message, self._first + at))
                shown = None if text is None else encode_json(text)
            others.append(shown)
        return tuple(others) if any(others) else ()


def _render(message: Message, swaps: dict[str, str], key: _Key) -> RequestMessage | None:
    kept: list[msgspec.Raw] = []
    results: list[bool] = []
    changed = False
    blocks = parse_blocks(message.body)
    others = key.others or (None,) * len(blocks)
    for block, raw, other in zip(blocks, split_blocks(message.body), others, strict=True):
        if other is None:
            shown = _shown_block(block, raw, swaps, key.leaves_out)
        else:
            field = "input" if isinstance(block, ToolUseBlock) else "text"
            shown = _with_field(raw, field, other) if other != b'""' else None
        changed |= shown is not raw
        if shown is not None:
            kept.append(shown)
            results.append(_is_result(block))
    if not kept:
        return None
    if message.is_user and results != sorted(results, reverse=True):
        kept = _results_first(kept, results)
        changed = True
    return RequestMessage(message.role, join_blocks(kept) if changed else message.body)


def _shown_block(
    block: Block, raw: msgspec.Raw, swaps: dict[str, str], leave_out_thinking: bool
) -> msgspec.Raw | None:
    """*raw* itself if it is shown as it is, None if it is left out, else its new bytes."""
    if isinstance(block, TextBlock):
        return raw if block.text.strip() else None
    if isinstance(block, OpaqueBlock) and block.type == "text":
        return None  # a text block without its text
    if is_thinking(block):
        return None if leave_out_thinking or _is_unsigned(block) else raw
    call_id = _call_id(block)
    if call_id is None:
        return raw
    if call_id in swaps:
        return _with_field(raw, "content", encode_json(swaps[call_id]))
    if isinstance(block, ToolResultBlock) and block.is_error and not block.content:
        # Without is_error an empty result is accepted, with it it is not.
        return _with_field(raw, "content", encode_json(EMPTY_OUTPUT))
    if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
        return _with_placeholders(raw) if any(map(_is_blank, block.content)) else raw
    return raw


def _is_result(block: Block) -> bool:
    return _call_id(block) is not None or (
        isinstance(block, OpaqueBlock) and block.type == "tool_result"
    )


def _call_id(block: Block) -> str | None:
    if isinstance(block, ToolResultBlock):
        return block.tool_use_id
    if isinstance(block, OpaqueBlock) and block.type == "tool_result":
        # A result that does not fit its struct, such as one whose content is null.
        call_id = block.decoded().get("tool_use_id")
        return call_id if isinstance(call_id, str) else None
    return None


def _is_unsigned(block: Block) -> bool:
    """Is it thinking that no provider takes back? Compatible servers may send such."""
    return isinstance(block, ThinkingBlock) and not block.signature


def _is_blank(part: Any) -> bool:
    """Is *part* of a result's content a text block without text?"""
    return (
        isinstance(part, dict)
        and part.get("type") == "text"
        and not str(part.get("text") or "").strip()
    )


def _with_field(raw: msgspec.Raw, name: str, value: bytes | msgspec.Raw) -> msgspec.Raw:
    fields = _fields.decode(raw)
    fields[name] = msgspec.Raw(value)
    return msgspec.Raw(msgspec.json.encode(fields))


def _with_placeholders(raw: msgspec.Raw) -> msgspec.Raw:
    placeholder = encode_json(EMPTY_OUTPUT)
    parts = [
        _with_field(part, "text", placeholder) if _is_blank(msgspec.json.decode(part)) else part
        for part in split_blocks(_fields.decode(raw)["content"])
    ]
    return _with_field(raw, "content", join_blocks(parts))


def _results_first(raws: list[msgspec.Raw], results: list[bool]) -> list[msgspec.Raw]:
    pairs = list(zip(raws, results, strict=True))
    return [raw for raw, is_result in pairs if is_result] + [
        raw for raw, is_result in pairs if not is_result
    ]
