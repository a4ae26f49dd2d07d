"""Translates between records of chat applications and our messages, in both directions.

A reader makes one or more recorded messages of each record, and a writer makes the record from
them. Fields that the writer would not reproduce exactly are kept in ``extra``, so a record that is
read and written again loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import Block, ToolResultBlock, block_type, encode_json, split_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

from .conversation import Conversation, Note
from .record import Record
from .recorded_message import MISSING, RecordedMessage

__all__ = [
    "Reading",
    "beside",
    "expand",
    "id_of",
    "is_ours",
    "kept_fields",
    "outgoing",
    "read_usage",
    "with_results",
    "without_metadata",
]


class Reading:
    """One conversation while it is read: its notes, and what is kept beside its messages."""

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
        # Wrapped in an object, so that it does not look like a message in our own format.
        record = {"left_out": why, "record": msgspec.Raw(raw or b"null")}
        self.records.append(msgspec.Raw(encode_json(record)))

    def refuse(self, number: int, what: str, raw: bytes | msgspec.Raw) -> None:
        """Leave out a record that cannot be read. Raises TranscriptError if strict."""
        if self.strict:
            raise TranscriptError(f"{self.where}record {number}: {what}")
        self.leave_out(number, "bad_record", bytes(raw), what, visible=True)

    def added_to(self, conversation: Conversation) -> Conversation:
        """*conversation* with these notes and records added."""
        return msgspec.structs.replace(
            conversation,
            notes=(*conversation.notes, *self.notes),
            records=(*conversation.records, *self.records),
        )


def read_usage(reported: Record) -> Usage | None:
    """Usage as chat applications store it; None if *reported* has none.

    If cached tokens are a part of the input (OpenAI's convention), they are subtracted from it, so
    that nothing is counted twice.
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
    """The first of these fields that is an id: a text or a whole number; "" if none is."""
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
    """The fields of *record* that *written* does not reproduce exactly.

    *written* is the same record as our writer makes it. Fields named in *without* are never
    included.
    """
    return {
        name: msgspec.Raw(bytes(raw))
        for name, raw in record.fields.items()
        if name not in without and not (name in written and _is_same(raw, written[name]))
    }


def without_metadata(record: Record, names: Collection[str]) -> Record:
    """*record* without some fields of its metadata: its place in the tree, which is written
    anew.
    """
    metadata = record.record("metadata")
    rest = metadata.rest(names)
    if "metadata" not in record.fields or rest == metadata.fields:
        return record
    fields = record.rest({"metadata"}) | ({"metadata": rest} if rest else {})
    return Record.of(encode_json(fields), record.number)


def _is_same(raw: msgspec.Raw, value: Any) -> bool:
    # Compared as bytes, because in Python 1 equals True and 1.0.
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


# Systems that store calls and results inside one assistant message.


def expand(message: RecordedMessage) -> list[RecordedMessage]:
    """*message*, whose blocks mix results with the model's own blocks, as messages of both sides.

    What the model wrote behind a call was written after the call was over, even if the result is
    missing. The first message keeps the id ``x``, and the others get ``x#1``, ``x#2``. What was
    reported for the whole (usage, stop reason, error) is attached to the last part that the model
    wrote.
    """
    runs: list[tuple[bool, list[bytes]]] = []
    kinds = [block_type(raw) for raw in message.blocks]
    for before, kind, raw in zip(["", *kinds], kinds, message.blocks, strict=False):
        is_result = kind == "tool_result"
        is_over = before == "tool_use" != kind
        if not runs or runs[-1][0] is not is_result or is_over:
            runs.append((is_result, []))
        runs[-1][1].append(raw)
    if len(runs) < 2:
        return [message]
    parts = [
        msgspec.structs.replace(
            message,
            role="user" if is_result else "assistant",
            blocks=blocks,
            id=f"{message.id}#{index}" if index else message.id,
            usage=None, stop_reason=None, error=None, interrupted=False,
            model=None if is_result else message.model,
            provider=None if is_result else message.provider,
            extra={} if index else message.extra,
        )
        for index, (is_result, blocks) in enumerate(runs)
    ]  # fmt: skip
    last = next(part for part in reversed(parts) if part.role == "assistant")
    last.usage, last.stop_reason = message.usage, message.stop_reason
    last.error, last.interrupted = message.error, message.interrupted
    return parts


def outgoing(conversation: Conversation, format: str) -> list[RecordedMessage]:
    """The messages of *conversation*, prepared for a file of *format*.

    Synthetic results for missing ones are left out. The last reply of an interrupted turn is marked
    as interrupted. Extras of another format are left out.
    """
    ours = is_ours(conversation, format)
    last = {message.turn: message.id for message in conversation.messages if message.is_assistant}
    cut = {last[turn] for turn in conversation.interrupted if turn in last}
    messages = []
    for message in conversation.messages:
        recorded = _recorded(message, ours=ours, cut=message.id in cut)
        # A message that was recorded as empty stays. One that held only stand-in results was never
        # sent.
        if recorded.blocks or not message.synthetic:
            messages.append(recorded)
    return messages


def _recorded(message: Message, *, ours: bool, cut: bool) -> RecordedMessage:
    raws = split_blocks(message.body)
    stands_in = {
        index for index in message.synthetic if _stands_in(message.content[index : index + 1])
    }
    return RecordedMessage(
        role=message.role,
        blocks=[bytes(raw) for index, raw in enumerate(raws) if index not in stands_in],
        id=message.id,
        created_at=message.created_at,
        completed_at=message.completed_at,
        model=message.model,
        provider=message.provider,
        usage=message.usage,
        stop_reason=message.stop_reason,
        error=message.error,
        extra=Record.of(message.extra).fields if ours else {},
        interrupted=cut,
    )


def _stands_in(blocks: Sequence[Block]) -> bool:
    return any(isinstance(block, ToolResultBlock) and block.content == MISSING for block in blocks)


def with_results(messages: Iterable[RecordedMessage]) -> list[list[RecordedMessage]]:
    """*messages*, grouped for systems that store results inside the assistant's message.

    Each group is an assistant message with the results of its calls; what `expand` split is one
    group again. Text that came with results is a user message of its own behind them.
    """
    groups: list[list[RecordedMessage]] = []
    for message in messages:
        last = groups[-1] if groups and groups[-1][0].role == "assistant" else None
        results = [raw for raw in message.blocks if block_type(raw) == "tool_result"]
        if last is not None and message.role == "user" and results:
            last.append(msgspec.structs.replace(message, blocks=results))
            others = [raw for raw in message.blocks if block_type(raw) != "tool_result"]
            if others:
                groups.append([msgspec.structs.replace(message, blocks=others)])
        elif last is not None and _goes_on(last, message):
            last.append(message)
        else:
            groups.append([message])
    return groups


def _goes_on(group: Sequence[RecordedMessage], message: RecordedMessage) -> bool:
    base, mark, count = message.id.rpartition("#")
    of_group = bool(mark) and count.isdigit() and base == group[0].id
    return of_group and message.role == "assistant"
