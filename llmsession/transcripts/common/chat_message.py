"""What stands between a record of a chat application and our messages, in both directions.

A reader makes one or more of `Said` of each record; a writer makes the record of them. What the
writer would not give back as it was is kept as it came, in ``extra``: so a record that is read
and written again loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import (
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    block_type,
    encode_json,
    parse_blocks,
    split_blocks,
    text_block,
    too_deep,
)
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

from .conversation import Conversation, Note
from .record import Record

__all__ = [
    "MISSING",
    "Reading",
    "Said",
    "arguments_of",
    "beside",
    "call_block",
    "expand",
    "fold",
    "id_of",
    "is_ours",
    "kept_fields",
    "outgoing",
    "read_usage",
    "result_block",
    "result_text",
    "text_blocks",
    "text_of",
    "thinking_block",
    "thinking_of",
]

MISSING = "Tool result unavailable; do not assume the call ran."
"""Stands in for a result that the source does not have. Neutral, because a model repeats what
it reads in its own history."""


class Said(msgspec.Struct, kw_only=True, eq=False):
    """One message on its way. ``id`` is "" where the source has none. ``number`` is the place of
    its record, from 1. ``extra`` are fields of the record that nothing else here holds, ``raw``
    is the record itself. ``cut`` says that the message was stopped before it was done."""

    role: Literal["user", "assistant", "system"]
    blocks: list[bytes]
    id: str = ""
    number: int = 1
    created_at: float = 0.0
    completed_at: float = 0.0
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str | None = None
    extra: dict[str, msgspec.Raw] = {}
    raw: bytes = b"null"
    cut: bool = False

    @property
    def content(self) -> tuple[Block, ...]:
        """The blocks, parsed."""
        return parse_blocks(b"[" + b",".join(self.blocks) + b"]")

    @property
    def calls(self) -> list[ToolUseBlock]:
        """The calls in it, in order."""
        return [block for block in self.content if isinstance(block, ToolUseBlock)]

    @property
    def results(self) -> list[ToolResultBlock]:
        """The tool results in it, in order."""
        return [block for block in self.content if isinstance(block, ToolResultBlock)]


class Reading:
    """One conversation on its way in: its notes, and what is kept beside its messages."""

    def __init__(self, *, strict: bool, where: str = "") -> None:
        self.strict = strict
        self.where = where
        self.notes: list[Note] = []
        self.records: list[msgspec.Raw] = []

    def note(self, number: int, what: str, detail: str = "", *, visible: bool = False) -> None:
        """Add a note on the record *number*."""
        self.notes.append(Note(max(1, number), what, detail, visible))

    def leave_out(
        self, number: int, why: str, raw: bytes, detail: str = "", *, visible: bool = False
    ) -> None:
        """Keep *raw*, JSON that becomes no part of a message, beside the messages."""
        self.note(number, why, detail, visible=visible)
        # In an object of its own, so that in our own format it looks like no message.
        record = {"left_out": why, "record": msgspec.Raw(raw)}
        self.records.append(msgspec.Raw(encode_json(record)))

    def refuse(self, number: int, what: str, raw: bytes | msgspec.Raw) -> None:
        """Leave out a record that cannot be read. Raises TranscriptError if strict."""
        if self.strict:
            raise TranscriptError(f"{self.where}record {number}: {what}")
        self.leave_out(number, "bad_record", bytes(raw), what, visible=True)


# Blocks, from what other systems write.


def text_blocks(text: str) -> list[bytes]:
    """One text block; none for an empty text."""
    return [text_block(text)] if text else []


def thinking_block(text: str, signature: str = "") -> bytes:
    """The JSON of a thinking block; without a signature it is kept and never sent."""
    signed = {"signature": signature} if signature else {}
    return encode_json({"type": "thinking", "thinking": text} | signed)


def call_block(call_id: str, name: str, arguments: Any) -> bytes:
    """The JSON of a call. *arguments* are an object, or the JSON text of one; anything else
    becomes the field ``arguments`` of one, for a call's input is always an object."""
    given = arguments
    if isinstance(arguments, str):
        given = _parsed_object(arguments)
    if not isinstance(given, dict):
        given = {} if arguments in (None, "") else {"arguments": arguments}
    return encode_json({"type": "tool_use", "id": call_id, "name": name, "input": given})


def _parsed_object(text: str) -> Any:
    try:
        return None if too_deep(text.encode()) else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def arguments_of(call: ToolUseBlock) -> str:
    """A call's input as JSON text."""
    return encode_json(call.input).decode()


def result_block(
    call_id: str, content: str | Sequence[msgspec.Raw], *, is_error: bool = False
) -> bytes:
    """The JSON of a tool result."""
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return encode_json(block | ({"is_error": True} if is_error else {}))


def result_text(block: ToolResultBlock) -> str:
    """A result as one text: its own, or the JSON of its parts if one is no text."""
    if isinstance(block.content, list) and any(
        not isinstance(part, dict) or part.get("type") != "text" for part in block.content
    ):
        return encode_json(block.content).decode()
    return block.text


def text_of(said: Iterable[Said], between: str = "") -> str:
    """All text blocks, joined."""
    texts = (block.text for each in said for block in each.content if isinstance(block, TextBlock))
    return between.join(texts)


def thinking_of(said: Iterable[Said]) -> str:
    """All readable thinking, joined."""
    blocks = (block for each in said for block in each.content)
    return "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))


def read_usage(reported: Record) -> Usage | None:
    """Usage as chat applications keep it; None if *reported* says nothing of it.

    Where cached tokens are a detail of the input (OpenAI's convention) they are taken out of
    it, so that nothing is counted twice.
    """
    sent = _count(reported, "input_tokens", "prompt_tokens", "totalInputTokens")
    answered = _count(reported, "output_tokens", "completion_tokens", "totalOutputTokens")
    if sent is None and answered is None:
        return None
    inside = _count(reported.record("input_tokens_details"), "cached_tokens")
    if inside is None:
        inside = _count(reported.record("prompt_tokens_details"), "cached_tokens")
    if inside is None:
        inside = _count(reported, "inputCachedTokens")
    beside = _count(reported, "cache_read_input_tokens") or 0
    return Usage(
        input_tokens=max(0, (sent or 0) - (inside or 0)),
        output_tokens=answered or 0,
        cache_read_tokens=beside if inside is None else inside,
        cache_write_tokens=_count(reported, "cache_creation_input_tokens") or 0,
    )


def _count(record: Record, *names: str) -> int | None:
    for name in names:
        number = record.number_of(name)
        if number is not None and 0 <= number < 1e15:
            return int(number)
    return None


# Records, and what is kept of them.


def id_of(record: Record, *names: str) -> str:
    """The first of these fields that is an id, a text or a whole number; "" if none is."""
    for name in names:
        value = record.value(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def beside(
    record: Record, written: Mapping[str, Any], without: Iterable[str] = ()
) -> dict[str, msgspec.Raw]:
    """The fields of *record* that *written*, the same record as our writer makes it, does not
    give back as they are; those named *without* are never among them."""
    return {
        name: msgspec.Raw(bytes(raw))
        for name, raw in record.fields.items()
        if name not in without and not (name in written and _is_same(raw, written[name]))
    }


def _is_same(raw: msgspec.Raw, value: Any) -> bool:
    # As bytes: in Python 1 equals True and 1.0.
    return _sorted(raw) == _sorted(encode_json(value))


def _sorted(raw: bytes | msgspec.Raw) -> bytes | None:
    try:
        return msgspec.json.encode(msgspec.json.decode(raw), order="sorted")
    except msgspec.DecodeError:  # a number out of range
        return None


def is_ours(conversation: Conversation, format: str) -> bool:
    """Was it read from *format*? Then the extras of its messages are fields of that format."""
    return format in conversation.extra


def kept_fields(conversation: Conversation, format: str) -> dict[str, msgspec.Raw]:
    """What was kept beside a conversation that was read from *format*."""
    return Record.of(conversation.extra.get(format)).fields


# Systems that keep calls and results inside of one assistant message.


def expand(said: Said) -> list[Said]:
    """*said*, whose blocks hold results among the model's own, as messages of both sides.

    What the model wrote behind a call it wrote when the call was over, also if the result is not
    there. The first message keeps the id ``x``, the others are ``x#1``, ``x#2``. What was
    reported of the whole (usage, stop reason, error) stands with the last that the model wrote.
    """
    runs: list[tuple[bool, list[bytes]]] = []
    kinds = [block_type(raw) for raw in said.blocks]
    for before, kind, raw in zip(["", *kinds], kinds, said.blocks, strict=False):
        is_result = kind == "tool_result"
        is_over = before == "tool_use" != kind
        if not runs or runs[-1][0] is not is_result or is_over:
            runs.append((is_result, []))
        runs[-1][1].append(raw)
    if len(runs) < 2:
        return [said]
    parts = [
        msgspec.structs.replace(
            said,
            role="user" if is_result else "assistant",
            blocks=blocks,
            id=f"{said.id}#{at}" if at else said.id,
            usage=None, stop_reason=None, error=None, cut=False,
            model=None if is_result else said.model,
            provider=None if is_result else said.provider,
            extra={} if at else said.extra,
        )
        for at, (is_result, blocks) in enumerate(runs)
    ]  # fmt: skip
    last = next(part for part in reversed(parts) if part.role == "assistant")
    last.usage, last.stop_reason = said.usage, said.stop_reason
    last.error, last.cut = said.error, said.cut
    return parts


def outgoing(conversation: Conversation, format: str) -> list[Said]:
    """The messages of *conversation* on their way to a file of *format*.

    Results that only stand in for missing ones are left out. The last reply of an interrupted
    turn is cut. Extras that are another format's are left out.
    """
    ours = is_ours(conversation, format)
    last = {message.turn: message.id for message in conversation.messages if message.is_assistant}
    cut = {last[turn] for turn in conversation.interrupted if turn in last}
    said = []
    for message in conversation.messages:
        one = _said_of(message, ours=ours, cut=message.id in cut)
        # A message that was empty stays; one whose results only stood in was nobody's.
        if one.blocks or not message.synthetic:
            said.append(one)
    return said


def _said_of(message: Message, *, ours: bool, cut: bool) -> Said:
    raws = split_blocks(message.body)
    stands_in = {at for at in message.synthetic if _stands_in(message.content[at : at + 1])}
    return Said(
        role=message.role,
        blocks=[bytes(raw) for at, raw in enumerate(raws) if at not in stands_in],
        id=message.id,
        created_at=message.created_at,
        completed_at=message.completed_at,
        model=message.model,
        provider=message.provider,
        usage=message.usage,
        stop_reason=message.stop_reason,
        error=message.error,
        extra=Record.of(message.extra).fields if ours else {},
        cut=cut,
    )


def _stands_in(blocks: Sequence[Block]) -> bool:
    return any(isinstance(each, ToolResultBlock) and each.content == MISSING for each in blocks)


def fold(said: Iterable[Said]) -> list[list[Said]]:
    """*said* for systems that keep results inside of the assistant's message: each assistant
    message with the results of its calls, and what `expand` made of one as one again.

    Text that came with results is a user message of its own behind them.
    """
    groups: list[list[Said]] = []
    for each in said:
        last = groups[-1] if groups and groups[-1][0].role == "assistant" else None
        results = [raw for raw in each.blocks if block_type(raw) == "tool_result"]
        if last is not None and each.role == "user" and results:
            last.append(msgspec.structs.replace(each, blocks=results))
            others = [raw for raw in each.blocks if block_type(raw) != "tool_result"]
            if others:
                groups.append([msgspec.structs.replace(each, blocks=others)])
        elif last is not None and _goes_on(last, each):
            last.append(each)
        else:
            groups.append([each])
    return groups


def _goes_on(group: Sequence[Said], said: Said) -> bool:
    base, mark, count = said.id.rpartition("#")
    of_group = bool(mark) and count.isdigit() and base == group[0].id
    return of_group and said.role == "assistant"
