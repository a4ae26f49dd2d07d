"""What the validity rules need to know of a request, read once for each message and remembered."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from llmsession.turns.blocks import split_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import RequestMessage

from ..view.prefix import shared_prefix
from .block_fields import (
    BlockFields,
    Fault,
    is_server_call,
    is_server_result,
    read_block,
    read_blocks,
)
from .message import THINKING, find_faults, find_tool_faults, is_call_id, is_spoken

__all__ = [
    "FactsCache",
    "Mark",
    "MessageFacts",
    "Thought",
    "ToolCache",
    "ToolFacts",
    "merged",
    "read_message",
    "time_to_live",
]


class Mark(msgspec.Struct, frozen=True, gc=False):
    """Where a block with an id stands: the message's offset in its run, the block's index, its id
    and its type.
    """

    message: int
    block: int
    id: str
    type: str


class Thought(msgspec.Struct, frozen=True, gc=False):
    """A thinking block, byte for byte. ``after_call`` says whether a tool call precedes it in its
    message.
    """

    block: int
    raw: msgspec.Raw
    after_call: bool
    signed: bool


class MessageFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message, or a run of neighbours of one role, which the provider reads as one message."""

    role: str
    body: msgspec.Raw
    size: int = 0
    opens_with: str = ""
    ends_in_space: bool = False
    ends_in_compaction: bool = False
    """Is its last block the provider's own summary?"""
    calls: tuple[Mark, ...] = ()
    call_ids: tuple[str, ...] = ()
    results: tuple[Mark, ...] = ()
    result_ids: tuple[str, ...] = ()
    late_results: tuple[Mark, ...] = ()
    """Results with another block before them."""
    holds_others: bool = False
    """Is there a block that is not a tool result?"""
    server_calls: tuple[str, ...] = ()
    stray_server_results: tuple[Mark, ...] = ()
    """Results of the provider's tools without their call before them in this message."""
    open_server_calls: tuple[Mark, ...] = ()
    """Calls of the provider's tools without their result after them in this message."""
    thinking: tuple[Thought, ...] = ()
    breakpoints: tuple[tuple[str, str], ...] = ()
    """The place and the time to live of each cache breakpoint."""
    compactions: tuple[int, ...] = ()
    """The indexes of signed compaction blocks."""
    faults: tuple[Fault, ...] = ()
    notable: bool = False
    """Does the message concern a rule that most messages do not concern?"""


def read_message(role: str, body: msgspec.Raw) -> MessageFacts:
    """The facts of one message. Never raises: a body that is not a list of blocks is a fault."""
    blocks = read_blocks(body)
    if blocks is None:
        fault = Fault("V1", "content", "Input should be a valid list of content blocks")
        return MessageFacts(role=role, body=body, size=1, faults=(fault,), notable=True)
    return _read_plain(role, body, blocks) or _read_any(role, body, blocks)


def _read_plain(role: str, body: msgspec.Raw, blocks: Sequence[BlockFields]) -> MessageFacts | None:
    """The facts of a message of texts, calls, results and signed thinking that breaks no rule, as
    nearly all messages are; None if it is another one.
    """
    # The calls of an assistant message, or the results of a user message.
    marks: list[Mark] = []
    ids: list[str] = []
    thoughts: list[Thought] = []
    raws: list[msgspec.Raw] = []
    holds_others = False
    for index, block in enumerate(blocks):
        kind = block.type
        if block.cache_control is not None:
            return None
        if kind == "tool_result":
            if holds_others or role != "user" or block.is_error is True:
                return None
            if not (is_call_id(block.tool_use_id) and all(map(_is_plain_text, block.inner()))):
                return None
            marks.append(Mark(0, index, block.tool_use_id, kind))
            ids.append(block.tool_use_id)
            continue
        holds_others = True
        if kind == "text":
            if not is_spoken(block.text):
                return None
        elif role != "assistant":
            return None
        elif kind == "tool_use":
            if not is_call_id(block.id):
                return None
            marks.append(Mark(0, index, block.id, kind))
            ids.append(block.id)
        elif kind in THINKING:
            if kind == "thinking" and not (block.signature and isinstance(block.signature, str)):
                return None
            raws = raws or split_blocks(body)
            thoughts.append(Thought(index, raws[index], bool(marks), signed=True))
        else:
            return None
    if not blocks:
        return None
    called = role == "assistant"
    return MessageFacts(
        role=role,
        body=body,
        size=len(blocks),
        opens_with=blocks[0].type,
        ends_in_space=_ends_in_space(blocks),
        calls=tuple(marks) if called else (),
        call_ids=tuple(ids) if called else (),
        results=() if called else tuple(marks),
        result_ids=() if called else tuple(ids),
        holds_others=holds_others,
        thinking=tuple(thoughts),
    )


def _read_any(role: str, body: msgspec.Raw, blocks: Sequence[BlockFields]) -> MessageFacts:
    faults = find_faults(role, blocks)
    results = tuple(_marks(blocks, "tool_result"))
    calls = tuple(_marks(blocks, "tool_use"))
    server_calls = tuple(str(block.id) for block in blocks if is_server_call(block.type))
    strays = tuple(_stray_server_results(blocks))
    open_calls = _open_server_calls(blocks) if server_calls else ()
    breakpoints = tuple(_breakpoints(blocks, "content"))
    compactions = tuple(n for n, block in enumerate(blocks) if _is_signed_compaction(block))
    first_other = next(
        (index for index, p in enumerate(blocks) if p.type != "tool_result"), len(blocks)
    )
    late = tuple(mark for mark in results if mark.block > first_other)
    return MessageFacts(
        role=role,
        body=body,
        size=len(blocks),
        opens_with=blocks[0].type if blocks else "",
        ends_in_space=_ends_in_space(blocks),
        ends_in_compaction=bool(blocks) and blocks[-1].type == "compaction",
        calls=calls,
        call_ids=tuple(mark.id for mark in calls),
        results=results,
        result_ids=tuple(mark.id for mark in results),
        late_results=late,
        holds_others=first_other < len(blocks),
        server_calls=server_calls,
        stray_server_results=strays,
        open_server_calls=open_calls,
        thinking=tuple(_thoughts(blocks, body)),
        breakpoints=breakpoints,
        compactions=compactions,
        faults=faults,
        notable=bool(late or strays or open_calls or breakpoints or compactions or faults)
        or not blocks,
    )


def _is_plain_text(block: BlockFields) -> bool:
    return block.type == "text" and block.cache_control is None and is_spoken(block.text)


def _ends_in_space(blocks: Sequence[BlockFields]) -> bool:
    last = blocks[-1].text if blocks and blocks[-1].type == "text" else None
    return isinstance(last, str) and last[-1:].isspace()


def _marks(blocks: Sequence[BlockFields], kind: str) -> Iterator[Mark]:
    for index, block in enumerate(blocks):
        if block.type == kind:
            yield Mark(0, index, str(block.id if kind == "tool_use" else block.tool_use_id), kind)


def _stray_server_results(blocks: Sequence[BlockFields]) -> Iterator[Mark]:
    called: set[str] = set()
    for index, block in enumerate(blocks):
        if is_server_call(block.type):
            called.add(str(block.id))
        elif is_server_result(block.type) and str(block.tool_use_id) not in called:
            yield Mark(0, index, str(block.tool_use_id), block.type)


def _open_server_calls(blocks: Sequence[BlockFields]) -> tuple[Mark, ...]:
    calls: list[Mark] = []
    for index, block in enumerate(blocks):
        if is_server_call(block.type):
            calls.append(Mark(0, index, str(block.id), block.type))
        elif calls and is_server_result(block.type):
            calls = [call for call in calls if call.id != str(block.tool_use_id)]
    return tuple(calls)


def _breakpoints(blocks: Sequence[BlockFields], path: str) -> Iterator[tuple[str, str]]:
    for index, block in enumerate(blocks):
        place = f"{path}[{index}]"
        if block.type == "tool_result":
            yield from _breakpoints(block.inner(), f"{place}.content")
        if block.cache_control is not None:
            yield place, time_to_live(block.cache_control)


def time_to_live(cache_control: object) -> str:
    """How long a breakpoint keeps its prefix; five minutes by default."""
    ttl = cache_control.get("ttl") if isinstance(cache_control, dict) else None
    return ttl if isinstance(ttl, str) else "5m"


def _is_signed_compaction(block: BlockFields) -> bool:
    return block.type == "compaction" and isinstance(block.signature, str)


def _thoughts(blocks: Sequence[BlockFields], body: msgspec.Raw) -> Iterator[Thought]:
    raws, called = split_blocks(body), False
    for index, block in enumerate(blocks):
        called = called or block.type == "tool_use"
        if block.type in THINKING:
            signed = block.type != "thinking" or bool(block.signature)
            yield Thought(index, raws[index], called, signed)


def _shifted(marks: tuple[Mark, ...], by: int) -> tuple[Mark, ...]:
    return tuple(msgspec.structs.replace(mark, message=mark.message + by) for mark in marks)


def merged(first: MessageFacts, second: MessageFacts, offset: int) -> MessageFacts:
    """Two neighbours of one role, as the provider reads them: as one message.

    *offset* is the second's place in the run. Only what the rules across messages need is kept.
    """
    results = _shifted(second.results, offset)
    late = results if first.holds_others else _shifted(second.late_results, offset)
    strays = tuple(
        mark
        for mark in _shifted(second.stray_server_results, offset)
        if mark.id not in first.server_calls
    )
    answered = {mark.id for mark in second.stray_server_results}
    open_calls = tuple(call for call in first.open_server_calls if call.id not in answered)
    return MessageFacts(
        role=first.role,
        body=second.body,
        size=first.size + second.size,
        opens_with=first.opens_with or second.opens_with,
        ends_in_space=second.ends_in_space,
        ends_in_compaction=second.ends_in_compaction,
        calls=first.calls + _shifted(second.calls, offset),
        call_ids=first.call_ids + second.call_ids,
        results=first.results + results,
        result_ids=first.result_ids + second.result_ids,
        late_results=first.late_results + late,
        holds_others=first.holds_others or second.holds_others,
        server_calls=first.server_calls + second.server_calls,
        stray_server_results=first.stray_server_results + strays,
        open_server_calls=open_calls + _shifted(second.open_server_calls, offset),
    )


class FactsCache:
    """The facts of the messages of one sequence, remembered until the next one.

    A message is recognised by the identity of its body, because unchanged messages keep theirs.
    Messages that were not in the last sequence are forgotten, so the cache never outgrows one
    request.
    """

    __slots__ = ("_messages", "facts", "thinking_at", "thoughts")

    def __init__(self) -> None:
        self._messages: tuple[RequestMessage | Message, ...] = ()
        self.facts: list[MessageFacts] = []
        self.thoughts: list[Thought] = []
        """The thinking blocks of all messages, the oldest first."""
        self.thinking_at: list[int] = []
        """For each thinking block, the position of its message."""

    def recall(
        self, messages: Sequence[RequestMessage | Message], beside: FactsCache | None = None
    ) -> list[MessageFacts]:
        """The facts of each message, in order. *beside* is another cache that is searched, too.

        The list only grows: if another message stands at any place of the last sequence, it is a
        new list. So whoever has looked at a list need not look at the beginning of it again.
        """
        if messages is self._messages:
            return self.facts
        messages = tuple(messages)
        known, old = shared_prefix(self._messages, messages), self.facts
        self._messages = messages
        if known < len(old):
            first = bisect_left(self.thinking_at, known)
            del self.thoughts[first:], self.thinking_at[first:]
            self.facts = old[:known]
        read = self._read(messages[known:], old[known:], beside)
        self.facts += read
        for index, facts in enumerate(read, known):
            for thought in facts.thinking:
                self.thoughts.append(thought)
                self.thinking_at.append(index)
        return self.facts

    def count_thoughts(self, end: int) -> int:
        """How many thinking blocks stand in the messages before *end*."""
        return bisect_left(self.thinking_at, end)

    def _read(
        self,
        messages: Sequence[RequestMessage | Message],
        old: list[MessageFacts],
        beside: FactsCache | None,
    ) -> list[MessageFacts]:
        # The new messages of this sequence stand at the end of the other one, because a request
        # shows no message twice.
        if beside is not None and messages:
            old = old + beside.facts[-len(messages) :]
        if not old:
            return [read_message(message.role, message.body) for message in messages]
        # The facts keep their bodies alive, so no other object can have the same id meanwhile.
        by_body = {id(facts.body): facts for facts in old}
        read = []
        for message in messages:
            facts = by_body.get(id(message.body))
            if facts is None or facts.role != message.role:
                facts = read_message(message.role, message.body)
            read.append(facts)
        return read


class ToolFacts(NamedTuple):
    """What the rules need to know of the tool definitions of a request."""

    faults: tuple[Fault, ...] = ()
    breakpoints: tuple[tuple[str, str], ...] = ()
    """The place and the time to live of each cache breakpoint."""


class ToolCache:
    """The facts of the last request's tools, because a session's tools rarely change."""

    __slots__ = ("facts", "raws")

    def __init__(self) -> None:
        self.raws: tuple[msgspec.Raw, ...] = ()
        self.facts = ToolFacts()

    def recall(self, raws: tuple[msgspec.Raw, ...]) -> ToolFacts:
        """The facts of the definitions *raws*. One that cannot be read has no name and no type."""
        if raws != self.raws:
            tools = [read_block(raw) for raw in raws]
            breakpoints = tuple(
                (f"tools[{index}]", time_to_live(tool.cache_control))
                for index, tool in enumerate(tools)
                if tool.cache_control is not None
            )
            self.facts = ToolFacts(tuple(find_tool_faults(tools)), breakpoints)
            self.raws = raws
        return self.facts
