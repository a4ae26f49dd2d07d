"""Our own format: a header line, then one line for each message, both JSON.

``{"llmsession":1,"session":"...","title":"...","labels":{},"interrupted":[],"source":"..."}``; only
the first two fields are required. A message line has the fields of ``Message``, with the blocks in
``content`` byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json, split_blocks
from llmsession.turns.messages import Message

from .common.call_pairs import with_usable_calls
from .common.conversation import Conversation, Note
from .common.jsonl import JsonLine, read_lines
from .common.writing import path_of

__all__ = ["FORMAT", "looks_own", "read_own", "write_own", "write_own_files"]

FORMAT = "own"
VERSION = 1


class _Header(msgspec.Struct, omit_defaults=True):
    llmsession: int
    session: str
    title: str = ""
    labels: dict[str, str] = {}
    interrupted: tuple[int, ...] = ()
    source: str = ""
    parent: str = ""
    shared_turns: int = 0
    summary: str = ""
    summary_upto: int = 0
    system: str = ""
    archived: bool = False


_OF_CONVERSATION = _Header.__struct_fields__[2:]
"""The header fields that are also fields of a conversation."""
_header_decoder = msgspec.json.Decoder(_Header)
_message_decoder = msgspec.json.Decoder(Message)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()
_MESSAGE_FIELDS = frozenset(Message.__struct_encode_fields__)


def looks_own(first: dict[str, msgspec.Raw]) -> bool:
    """Is *first*, the first object of a file, our header?"""
    return "llmsession" in first


def write_own(conversation: Conversation) -> bytes:
    """*conversation* as the bytes of a file in our own format.

    Notes are not written, because they are about the file that was read and not about the
    conversation.
    """
    values = {name: getattr(conversation, name) for name in _OF_CONVERSATION}
    header = _Header(VERSION, conversation.id, **values)
    fields = _fields_decoder.decode(encode_json(header)) | conversation.extra
    lines = [_encoder.encode(fields)]
    lines += [_encoder.encode(message) for message in conversation.messages]
    lines += [bytes(record) for record in conversation.records]
    return b"".join(_one_line(line) + b"\n" for line in lines)


def write_own_files(conversations: Sequence[Conversation]) -> dict[str, bytes]:
    """A file for each of *conversations*, by its name: the index and the id."""
    return {
        path_of(index, conversation, ".jsonl"): write_own(conversation)
        for index, conversation in enumerate(conversations)
    }


def _one_line(line: bytes) -> bytes:
    # Blocks are kept as they were received, and JSON from elsewhere may contain line breaks.
    return msgspec.json.format(line, indent=-1) if b"\n" in line else line


def read_own(raw: bytes, *, strict: bool = False) -> Conversation:
    """The conversation in *raw*, a file's bytes.

    If two messages have the same id, the later one counts, at the place of the first. Unknown
    records, header fields and message fields are kept. A torn last line is noted and never raised.
    A call id that no provider accepts is replaced; the recorded id is kept in the message's
    ``extra``.

    Raises TranscriptError if there is no header, if a newer version wrote the file, and if a second
    conversation begins in it. With *strict*, also for any line that is not a message or is out of
    order.
    """
    lines, notes = read_lines(raw, strict=strict)
    if not lines:
        raise TranscriptError("no llmsession transcript: the file contains no JSON object")
    header, extra = _read_header(lines[0])
    places: dict[str, tuple[int, Message]] = {}
    records: list[msgspec.Raw] = []
    for line in lines[1:]:
        fields = _fields_decoder.decode(line.raw)
        if looks_own(fields):
            raise TranscriptError("a second conversation starts here", line.line)
        if "role" not in fields:
            notes.append(Note(line.line, "unknown_type", "kept as it is"))
            records.append(msgspec.Raw(line.raw))
            continue
        message = _read_message(line, fields, notes, strict)
        if message is not None:
            if message.id in places:
                detail = f"message {message.id} occurs twice; the later one counts"
                notes.append(Note(places[message.id][0], "duplicate", detail))
            places[message.id] = (line.line, message)
    ordered = _in_order(places.values(), notes, strict)

    def note_renamed(message: Message, detail: str) -> None:
        notes.append(Note(places[message.id][0], "renamed_call", detail))

    messages = with_usable_calls(ordered, note_renamed)
    return Conversation(
        id=header.session,
        format=FORMAT,
        messages=messages,
        notes=tuple(sorted(notes, key=lambda note: note.line)),
        **{name: getattr(header, name) for name in _OF_CONVERSATION},
        extra=extra,
        records=tuple(records),
    )


def _in_order(
    placed: Iterable[tuple[int, Message]], notes: list[Note], strict: bool
) -> tuple[Message, ...]:
    """The messages, without those of a turn that another turn has followed already: they have no
    place.

    The turn numbers need not grow, because a turn that jumped the queue stands earlier.
    """
    ordered: list[Message] = []
    seen: set[int] = set()
    for line, message in placed:
        if ordered and message.turn != ordered[-1].turn and message.turn in seen:
            detail = f"a message of turn {message.turn} after turn {ordered[-1].turn}"
            if strict:
                raise TranscriptError(detail, line)
            notes.append(Note(line, "bad_line", detail, visible=True))
        else:
            ordered.append(message)
            seen.add(message.turn)
    return tuple(ordered)


def _read_header(line: JsonLine) -> tuple[_Header, dict[str, msgspec.Raw]]:
    fields = _fields_decoder.decode(line.raw)
    if not looks_own(fields):
        raise TranscriptError('no llmsession transcript: no "llmsession" header', line.line)
    try:
        header = _header_decoder.decode(line.raw)
    except msgspec.ValidationError as error:
        raise TranscriptError(f"not a header: {error}", line.line) from error
    if header.llmsession != VERSION:
        raise TranscriptError(
            f"version {header.llmsession} of the format; this llmsession reads version {VERSION}:"
            " upgrade it, or export the conversation with the version that wrote the file",
            line.line,
        )
    known = set(_Header.__struct_encode_fields__)
    return header, {name: _own_copy(raw) for name, raw in fields.items() if name not in known}


def _own_copy(raw: msgspec.Raw) -> msgspec.Raw:
    # A Raw is a view, which would keep the whole line alive.
    return msgspec.Raw(bytes(raw))


def _read_message(
    line: JsonLine, fields: dict[str, msgspec.Raw], notes: list[Note], strict: bool
) -> Message | None:
    try:
        message = _message_decoder.decode(line.raw)
        if message.turn < 1:
            raise msgspec.ValidationError(f"turn numbers start at 1, got {message.turn}")
        if message.extra and bytes(message.extra) == b"null":
            message = msgspec.structs.replace(message, extra=msgspec.UNSET)
        if message.extra:
            _fields_decoder.decode(message.extra)
        split_blocks(message.body)
    except msgspec.ValidationError as error:
        if strict:
            raise TranscriptError(f"not a message: {error}", line.line) from error
        notes.append(Note(line.line, "bad_line", f"not a message: {error}", visible=True))
        return None
    unknown = {name: raw for name, raw in fields.items() if name not in _MESSAGE_FIELDS}
    if not unknown:
        return message
    notes.append(Note(line.line, "unknown_fields", f"kept in extra: {', '.join(sorted(unknown))}"))
    extra = _fields_decoder.decode(message.extra) if message.extra else {}
    return msgspec.structs.replace(message, extra=msgspec.Raw(_encoder.encode(extra | unknown)))
