"""The projection: turns a history and a view into the exact request. It moves and renames nothing.

A message that the view does not touch is sent with the very bytes in which it arrived. Of a changed
message only the affected fields are written anew; every other field keeps its bytes. All functions
here are pure; ``projector.py`` has the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, starmap
from typing import Any, NamedTuple, TypeAlias

import msgspec

from llmsession.turns.blocks import (
    Block,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    block_type,
    encode_json,
    is_thinking,
    join_blocks,
    parse_blocks,
    split_blocks,
    text_block,
)
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, PrefixSummary
from llmsession.turns.reply import may_run_server_tools, open_server_calls
from llmsession.turns.request import Frame, Profile, Request, RequestMessage

from .provider_blocks import is_sent_as_block, message_from_block
from .view import View, text_key

__all__ = [
    "EMPTY_OUTPUT",
    "BlockFacts",
    "Form",
    "block_facts",
    "form_of",
    "joined",
    "place_of",
    "project",
    "render",
    "request_of",
    "runs_of",
    "shown_messages",
]

EMPTY_OUTPUT = "(no output)"
"""Replaces an empty text block inside a tool result, because the API refuses empty text there."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def project(messages: Sequence[Message], view: View, profile: Profile, frame: Frame) -> Request:
    """The request for *messages* as *view* shows them. Equal inputs give equal bytes.

    - A result that the view swaps or caps shows the view's text in the same block: the id, the
      order, the number of blocks and ``is_error`` stay. Shortened inputs and texts likewise.
    - A prefix summary is a user's text in place of the first messages. If the provider wrote the
      summary and the model accepts it, it is the provider's own block instead.
    - What the view leaves out is not sent. What it injects becomes a user's text before the message
      at that position, or is appended to the system text.
    - Thinking before ``thinking_from`` is left out, and so is all thinking without a signature.
      Blank text blocks, and messages that become empty, are left out, too.
    - In a user message, tool results stand before everything else.
    - Neighbours of one role become one message if the profile merges roles.
    """
    in_block = is_sent_as_block(view.prefix_summary, profile, frame)
    parts = shown_messages(messages, view, in_block=in_block)
    sent = [joined(run) for run in runs_of(parts, merges=profile.merges_roles)]
    return request_of(frame, view, sent)


def request_of(frame: Frame, view: View, messages: Iterable[RequestMessage]) -> Request:
    """The request with *messages* and the model, system text, tools and options of *frame*."""
    return Request(
        model=frame.model,
        max_tokens=frame.max_tokens,
        system=_system(frame.system, view),
        tools=frame.tools,
        messages=tuple(messages),
        options=frame.options,
    )


class BlockFacts(NamedTuple):
    """The facts of a message that its form depends on, beside the view."""

    call_ids: tuple[str, ...]
    """The calls that its results answer, in order."""
    has_thinking: bool
    is_whole: bool
    """Is its body sent byte for byte, unless the view changes it?"""


def block_facts(message: Message) -> BlockFacts:
    """The facts of *message*. They never change."""
    # Parse the body instead of reading ``content``: the message would keep ``content``, which is
    # the text of the conversation once more.
    blocks = parse_blocks(message.body)
    call_ids: list[str] = []
    has_thinking = holds_others = False
    is_whole = bool(blocks)
    for block in blocks:
        kind = block.__class__
        if kind in _MAY_BE_RESULTS and _is_result(block):
            is_whole = is_whole and not (holds_others and message.is_user)
            call_id = _call_id(block)
            if call_id:
                call_ids.append(call_id)
        else:
            holds_others = True
            has_thinking = has_thinking or (kind in _MAY_BE_THINKING and is_thinking(block))
        is_whole = is_whole and _is_sent_as_it_is(block)
    if is_whole and not call_ids and not has_thinking:
        return _NOTHING_SPECIAL
    return BlockFacts(tuple(call_ids), has_thinking, is_whole)


_MAY_BE_RESULTS = frozenset({ToolResultBlock, OpaqueBlock})
_MAY_BE_THINKING = frozenset({ThinkingBlock, RedactedThinkingBlock, OpaqueBlock})
_NOTHING_SPECIAL = BlockFacts((), has_thinking=False, is_whole=True)


class Form(NamedTuple):
    """How a message is shown: with or without its thinking, and what replaces its blocks."""

    leaves_out_thinking: bool = False
    results: tuple[str | None, ...] = ()
    """For each result: the text that is shown instead, or None."""
    others: tuple[bytes | None, ...] = ()
    """For each block that is not a result: the JSON of the input or text that is shown instead, or
    None.
    """


_AS_IT_IS = Form()


def form_of(message: Message, facts: BlockFacts, first: int, position: int, view: View) -> Form:
    """How *view* shows *message* at *position*.

    *first* is the number that its first block has in the history, because a message may be shown
    from one of its blocks on.
    """
    leaves_out = facts.has_thinking and position < view.thinking_from
    results: tuple[str | None, ...] = ()
    if facts.call_ids and (view.capped or view.shown_results):
        texts = tuple([view.text_for(call_id, position) for call_id in facts.call_ids])
        results = texts if texts.count(None) < len(texts) else ()
    others = _other_blocks(message, first, view) if view.inputs or view.texts else ()
    return Form(leaves_out, results, others) if leaves_out or results or others else _AS_IT_IS


def _other_blocks(message: Message, first: int, view: View) -> tuple[bytes | None, ...]:
    others: list[bytes | None] = []
    for number, block in enumerate(parse_blocks(message.body), first):
        instead: bytes | None = None
        if isinstance(block, ToolUseBlock) and block.id in view.inputs:
            instead = bytes(view.inputs[block.id])
        elif isinstance(block, TextBlock):
            text = view.texts.get(text_key(message, number))
            instead = None if text is None else encode_json(text)
        others.append(instead)
    return tuple(others) if any(others) else ()


def render(message: Message, facts: BlockFacts, form: Form) -> RequestMessage | None:
    """*message* in *form*; None if nothing of it is left."""
    if facts.is_whole and form is _AS_IT_IS:  # nearly always
        return RequestMessage(message.role, message.body)
    swaps = {
        call_id: text
        for call_id, text in zip(facts.call_ids, form.results, strict=False)
        if text is not None
    }
    blocks = parse_blocks(message.body)
    others = form.others or (None,) * len(blocks)
    sent: list[msgspec.Raw] = []
    results: list[bool] = []
    changed = False
    for block, raw, other in zip(blocks, split_blocks(message.body), others, strict=True):
        if other is None:
            sent_block = _shown_block(block, raw, swaps, form.leaves_out_thinking)
        else:
            field = "input" if isinstance(block, ToolUseBlock) else "text"
            # An empty text is left out, because the API refuses empty text blocks.
            sent_block = _with_field(raw, field, other) if other != b'""' else None
        changed |= sent_block is not raw
        if sent_block is not None:
            sent.append(sent_block)
            results.append(_is_result(block))
    if not sent:
        return None
    # The API requires tool results before all other blocks of a user message.
    if message.is_user and not _are_results_first(results):
        sent = _results_first(sent, results)
        changed = True
    return RequestMessage(message.role, join_blocks(sent) if changed else message.body)


def _show(message: Message, first: int, position: int, view: View) -> RequestMessage | None:
    facts = block_facts(message)
    return render(message, facts, form_of(message, facts, first, position, view))


Show: TypeAlias = Callable[[Message, int, int, View], "RequestMessage | None"]
"""A function that maps a message, the number of its first block, its position and the view to what
is sent for it.
"""


def shown_messages(
    messages: Sequence[Message],
    view: View,
    *,
    in_block: bool,
    start: int = 0,
    show: Show = _show,
    from_block: Callable[[Message, int], Message | None] = message_from_block,
) -> Iterator[RequestMessage]:
    """What is sent for each of *messages* from position *start* on, before neighbours are joined.

    *in_block* says whether the prefix summary is sent as the provider's own block. A cache passes
    its own *show* and *from_block*, which return the same values.
    """
    notes = _notes(view, messages) if view.injected else {}
    prefix_summary = view.prefix_summary
    if start == 0 and prefix_summary is not None:
        yield from _opening(prefix_summary, in_block)
    for position in _places(view, start, len(messages), notes):
        if notes and position in notes:
            yield _user_text(notes[position])
            if not view.shows(position):
                continue
        message: Message | None = messages[position]
        first = _first_block(prefix_summary, position, in_block) if prefix_summary else 0
        if first and message is not None:
            message = from_block(message, first)
        part = None if message is None else show(message, first, position, view)
        if part is not None:
            yield part
    if len(messages) in notes:
        yield _user_text(notes[len(messages)])


def _places(view: View, start: int, end: int, notes: Collection[int]) -> Iterator[int]:
    """The positions from *start* to *end* at which a message is shown or a text of *notes*
    stands.
    """
    if not (notes or view.omitted):  # nearly always
        return iter(range(max(start, view.start), end))
    shown = chain.from_iterable(starmap(range, view.shown_ranges(end, start)))
    if not notes:
        return shown
    # A text stays where it is if the message behind it is left out.
    noted = (place for place in notes if max(start, view.start) <= place < end)
    return iter(sorted({*shown, *noted}))


def _first_block(prefix_summary: PrefixSummary, position: int, in_block: bool) -> int:
    """The number of the block from which on the message at *position* is shown.

    A provider's summary may stand within a message. The blocks before it in that message are part
    of what it summarises.
    """
    if prefix_summary.inside is None or position != prefix_summary.upto:
        return 0
    # If the summary is sent as text, its own block in the message is skipped, too.
    return prefix_summary.inside + (not in_block)


def runs_of(parts: Iterable[RequestMessage], *, merges: bool) -> Iterator[list[RequestMessage]]:
    """*parts* in runs. Each run becomes one message: neighbours of one role if *merges*, else
    single parts.
    """
    run: list[RequestMessage] = []
    for part in parts:
        if run and not (merges and run[0].role == part.role):
            yield run
            run = []
        run.append(part)
    if run:
        yield run


def joined(run: Sequence[RequestMessage]) -> RequestMessage:
    """The parts of *run* as one message."""
    if len(run) == 1:
        return run[0]
    raws = [raw for part in run for raw in split_blocks(part.body)]
    if run[0].role == "user":
        raws = _results_first(raws, [block_type(raw) == "tool_result" for raw in raws])
    return RequestMessage(run[0].role, join_blocks(raws))


def _system(system: str | None, view: View) -> str | None:
    if not view.injected:
        return system
    tail = [item.text for item in view.injected if item.at < 0]
    return "\n\n".join(filter(None, (system, *tail))) if tail else system


def _notes(view: View, messages: Sequence[Message]) -> dict[int, str]:
    """The injected texts by position, without those that wait for the rest of a reply."""
    notes: dict[int, str] = {}
    for item in view.injected:
        if item.at >= 0:
            position = place_of(item, view, messages)
            earlier = f"{notes[position]}\n\n" if position in notes else ""
            notes[position] = earlier + item.text
    return notes


def place_of(item: Injected, view: View, messages: Sequence[Message]) -> int:
    """The position of the message before which *item* stands. More than the number of messages if
    it is not shown yet: it waits for the rest of a reply, or there are fewer messages.

    It stands at the first shown message at the earliest, and never between calls and their results,
    neither the caller's nor the provider's own: the provider goes on with a reply as it was, and
    its result may come behind the results of the caller.
    """
    # Calls in messages that are not shown do not count: what is left out parts no call from its
    # result. So a text behind a summary costs no walk to the beginning of a long turn.
    position, end = max(item.at, view.start), len(messages)
    if position > end:
        return position
    open_calls = _open_calls(messages, view.shown_from(position), position)
    while position < end and (messages[position].tool_results or open_calls):
        open_calls = _open_after(messages[position], open_calls)
        position += 1
    return position + bool(open_calls)


def _open_calls(messages: Sequence[Message], first: int, end: int) -> frozenset[bytes]:
    """The calls of the provider's own tools that are open at the position *end*, of those in the
    messages from *first* on.
    """
    start = end
    while start > first and (messages[start - 1].is_assistant or messages[start - 1].tool_results):
        start -= 1
    calls: frozenset[bytes] = frozenset()
    for message in messages[start:end]:
        calls = _open_after(message, calls)
    return calls


def _open_after(message: Message, calls: frozenset[bytes]) -> frozenset[bytes]:
    """The provider's calls that are open after *message*, if *calls* are before it. They are open
    only within a turn: a user message without results begins a new one.
    """
    if not message.is_assistant:
        return calls if message.tool_results else frozenset()
    if not may_run_server_tools(message.body):
        return calls
    return open_server_calls(split_blocks(message.body), calls)


def _opening(prefix_summary: PrefixSummary, in_block: bool) -> Iterator[RequestMessage]:
    """What replaces the first messages: nothing, if the next message holds the provider's summary
    itself.
    """
    if not in_block:
        yield _user_text(prefix_summary.text)
    elif prefix_summary.inside is None:
        yield RequestMessage("assistant", join_blocks([prefix_summary.block]))


def _user_text(text: str) -> RequestMessage:
    return RequestMessage("user", join_blocks([text_block(text)]))


def _shown_block(
    block: Block, raw: msgspec.Raw, swaps: dict[str, str], leave_out_thinking: bool
) -> msgspec.Raw | None:
    """*raw* itself if it is shown unchanged, None if it is left out, else its new bytes."""
    if leave_out_thinking and is_thinking(block):
        return None
    call_id = _call_id(block)
    if call_id is not None and call_id in swaps:
        return _with_field(raw, "content", encode_json(swaps[call_id]))
    if _is_sent_as_it_is(block):
        return raw
    if not isinstance(block, ToolResultBlock):
        return None
    if block.content:
        return _with_placeholders(raw)
    return _with_field(raw, "content", encode_json(EMPTY_OUTPUT))


def _is_sent_as_it_is(block: Block) -> bool:
    """Does a provider accept *block* back? A result is changed if not, any other block is left
    out.
    """
    # ``isinstance`` takes five times as long to see that a struct is of another class.
    if block.__class__ is TextBlock:
        return bool(block.text.strip())
    if block.__class__ is ThinkingBlock:
        # Compatible servers may send thinking without a signature.
        return bool(block.signature)
    if block.__class__ is ToolResultBlock:
        if block.is_error and not block.content:
            return False  # an empty result is accepted without ``is_error``, but not with it
        return not (isinstance(block.content, list) and any(map(_is_blank, block.content)))
    # The other one that is refused is a text block without its text.
    return not (block.__class__ is OpaqueBlock and block.type == "text")


def _is_result(block: Block) -> bool:
    return isinstance(block, ToolResultBlock) or (
        isinstance(block, OpaqueBlock) and block.type == "tool_result"
    )


def _call_id(block: Block) -> str | None:
    if isinstance(block, ToolResultBlock):
        return block.tool_use_id
    if isinstance(block, OpaqueBlock) and block.type == "tool_result":
        # A result that does not fit its struct, for example one whose content is null.
        call_id = block.decoded().get("tool_use_id")
        return call_id if isinstance(call_id, str) else None
    return None


def _is_blank(part: Any) -> bool:
    """Is *part*, of a result's content, a text block without text?"""
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


def _are_results_first(results: list[bool]) -> bool:
    """Does no block that is a result stand behind one that is none? *results* tells for each."""
    return results == sorted(results, reverse=True)


def _results_first(raws: list[msgspec.Raw], results: list[bool]) -> list[msgspec.Raw]:
    pairs = list(zip(raws, results, strict=True))
    return [raw for raw, is_result in pairs if is_result] + [
        raw for raw, is_result in pairs if not is_result
    ]
