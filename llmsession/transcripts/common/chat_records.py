"""What stands between a record of a chat application and our messages, in both directions.

A reader makes one or more recorded messages of each record; a writer makes the record of them.
What the writer would not give back as it was is kept as it came, in ``extra``: so a record that
is read and written again loses nothing.
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
        record = {"left_out": why, "record": msgspec.Raw(raw or b"null")}
        self.records.append(msgspec.Raw(encode_json(record)))

    def refuse(self, number: int, what: str, raw: bytes | msgspec.Raw) -> None:
        """Leave out a record that cannot be read. Raises TranscriptError if strict."""
        if self.strict:
            raise TranscriptError(f"{self.where}record {number}: {what}")
        self.leave_out(number, "bad_record", bytes(raw), what, visible=True)

    def added_to(self, conversation: Conversation) -> Conversation:
        """*conversation* with the notes and records of this one, too."""
        return msgspec.structs.replace(
            conversation,
            notes=(*conversation.notes, *self.notes),
            records=(*conversation.records, *self.records),
        )


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


def without_metadata(record: Record, names: Collection[str]) -> Record:
    """*record* without some fields of its metadata: its place in the tree, written anew."""
    metadata = record.record("metadata")
    rest = metadata.rest(names)
    if "metadata" not in record.fields or rest == metadata.fields:
        return record
    fields = record.rest({"metadata"}) | ({"metadata": rest} if rest else {})
    return Record.of(encode_json(fields), record.number)


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


def expand(message: RecordedMessage) -> list[RecordedMessage]:
    """*message*, whose blocks hold results among the model's own, as messages of both sides.

    What the model wrote behind a call it wrote when the call was over, also if the result is not
    there. The first message keeps the id ``x``, the others are ``x#1``, ``x#2``. What was
    reported of the whole (usage, stop reason, error) stands with the last that the model wrote.
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
    """The messages of *conversation* on their way to a file of *format*.

    Results that only stand in for missing ones are left out. The last reply of an interrupted
    turn is cut. Extras that are another format's are left out.
    """
    ours = is_ours(conversation, format)
    last = {message.turn: message.id for message in conversation.messages if message.is_assistant}
    cut = {last[turn] for turn in conversation.interrupted if turn in last}
    messages = []
    for message in conversation.messages:
        recorded = _recorded(message, ours=ours, cut=message.id in cut)
        # A message that was empty stays; one whose results only stood in was nobody's.
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
    """*messages* for systems that keep results inside of the assistant's message: each assistant
    message with the results of its calls, and what `expand` made of one as one again.

    Text that came with results is a user message of its own behind them.
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
