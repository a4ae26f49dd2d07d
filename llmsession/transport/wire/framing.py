"""Frames: encoding a message as bytes, and splitting a byte stream into lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar, Union

import msgspec

from llmsession.errors import InvalidInput, InvalidMessage, ProtocolError
from llmsession.turns import Preview
from llmsession.turns.blocks import encode_json

from . import messages as w

__all__ = [
    "LineReader",
    "brief",
    "command_in",
    "decode_from_client",
    "decode_from_server",
    "decode_lenient",
    "encode",
    "encode_preview",
    "encode_reply",
    "lines_of",
]

T = TypeVar("T")

_from_client: msgspec.json.Decoder[w.FromClient] = msgspec.json.Decoder(
    Union[(w.Hello, w.Ping, w.Pong, w.Goodbye, *w.COMMANDS)]  # made of a tuple
)
_from_server: msgspec.json.Decoder[w.FromServer] = msgspec.json.Decoder(w.FromServer)
_encoder = msgspec.json.Encoder()


class _Numbered(msgspec.Struct):
    id: int


class _Envelope(_Numbered):
    type: str


_envelope = msgspec.json.Decoder(_Envelope)
_COMMAND_TYPES = frozenset(w.tag_of(kind) for kind in w.COMMANDS)

_numbered = msgspec.json.Decoder(_Numbered)

_WRONG_COMMAND = InvalidInput.__name__
QUOTED_CHARS = 500
"""An error answer quotes at most this many characters of what is wrong with a frame."""


def encode(message: w.FromClient | w.FromServer) -> bytes:
    """The frame of *message*."""
    return _encoder.encode(message)


def encode_reply(id: int, body: bytes) -> bytes:
    """The frame of a ``Reply`` with a body that is already encoded."""
    return b'{"type":"reply","id":%d,"body":%b}' % (id, body)


@lru_cache(maxsize=4096)
def _preview_head(subscription: int, session: str, kind: type[Preview]) -> bytes:
    whole = encode(
        w.Event(
            subscription=subscription,
            session=session,
            kind=kind.__struct_config__.tag,  # type: ignore[arg-type]  # every preview has one
            body=msgspec.Raw(b"0"),
        )
    )
    return whole[: -len(b"0}")]


def encode_preview(subscription: int, session: str, preview: Preview, offset: int) -> bytes:
    """The frame of a preview's ``Event``. Every delta is sent to every client, so the part that is
    the same in all previews of a reply is encoded only once."""
    body = _encoder.encode(preview)
    place = b',"turn":%d,"offset":%d}' if offset else b',"turn":%d}'
    numbers = (preview.turn, offset) if offset else (preview.turn,)
    return _preview_head(subscription, session, type(preview)) + body + place % numbers


def decode_from_client(frame: bytes) -> w.FromClient | w.Error:
    """The message in *frame*. For an invalid command with an id, the error that answers it.

    Raises ProtocolError if *frame* is not a message, or is an invalid one without an id.
    """
    try:
        frame.decode()
        message = _from_client.decode(frame)
    except msgspec.ValidationError as error:
        # Any client can send many invalid frames, so this avoids the cost of a second exception.
        wrong = f"the command is wrong: {brief(error)}"
        return w.Error(id=_id_of(frame, wrong), code=_WRONG_COMMAND, message=wrong)
    except msgspec.DecodeError as error:
        if (replaced := _replace_surrogates(frame)) is not None:
            return decode_from_client(replaced)
        raise ProtocolError(f"the frame is not valid JSON: {error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the frame is not valid JSON: {error}") from error
    if isinstance(message, w.Command) and not 0 <= message.id <= w.MAX_ID:
        raise ProtocolError(f"the command's id is {message.id}, not 0 to {w.MAX_ID}")
    return message


def command_in(frame: bytes) -> tuple[str, int] | None:
    """The type and the id of the command in *frame*, without reading its other fields. None if
    *frame* is not a command with a valid id. ``decode_from_client`` then says what it is."""
    try:
        envelope = _envelope.decode(frame)
    except (msgspec.DecodeError, RecursionError):
        return None
    is_command = envelope.type in _COMMAND_TYPES and 0 <= envelope.id <= w.MAX_ID
    return (envelope.type, envelope.id) if is_command else None


def brief(wrong: object) -> str:
    """*wrong* as text for an answer, cut off after ``QUOTED_CHARS``. A peer's own text is not sent
    back to it at full length."""
    text = str(wrong)
    return text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS]}..."


def decode_lenient(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """The value in *text*. Some JSON writers let lone surrogates through: they are replaced, as in
    every text. Raises msgspec.DecodeError for invalid JSON, and its subclass ValidationError for a
    value of another type."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if (replaced := _replace_surrogates(text)) is None:
            raise
    return decoder.decode(replaced)


def _replace_surrogates(text: bytes) -> bytes | None:
    """*text* with its lone surrogates replaced. None if *text* has no lone surrogate, or is invalid
    for another reason."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return None
    try:
        return encode_json(json.loads(text))
    except (ValueError, RecursionError, InvalidMessage):
        return None


def _id_of(frame: bytes, wrong: str) -> int:
    try:
        number = _numbered.decode(frame).id
    except (msgspec.MsgspecError, RecursionError):
        raise ProtocolError(f"the frame is not a message: {wrong}") from None
    if not 0 <= number <= w.MAX_ID:
        raise ProtocolError(f"the command's id is {number}, not 0 to {w.MAX_ID}")
    return number


def decode_from_server(frame: bytes) -> w.FromServer:
    """The message in *frame*. Raises ProtocolError."""
    try:
        return _from_server.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the server sent an invalid message: {error}") from error


# Lines.


def lines_of(frames: Sequence[bytes]) -> bytes:
    """*frames* as lines. A newline in JSON can only be between tokens, so a space may replace
    it."""
    lines = frames[0] + b"\n" if len(frames) == 1 else b"\n".join((*frames, b""))
    if lines.count(b"\n") > len(frames):
        lines = b"\n".join((*(frame.replace(b"\n", b" ") for frame in frames), b""))
    return lines


class LineReader:
    """Splits received bytes into lines. Buffers at most one unfinished line of the allowed size."""

    def __init__(self) -> None:
        self._unfinished = bytearray()

    @property
    def holds(self) -> int:
        """The number of bytes of the unfinished line."""
        return len(self._unfinished)

    def clear(self) -> None:
        """Discard the unfinished line."""
        self._unfinished = bytearray()

    def feed(self, received: bytes, max_bytes: int) -> list[bytes]:
        """The lines that end in *received*. Empty lines are included, because limits on the number
        of lines count them, too.

        Raises ProtocolError for a finished or unfinished line of more than *max_bytes*.
        """
        *lines, rest = received.split(b"\n")
        if lines and self._unfinished:
            self._unfinished += lines[0]
            lines[0] = bytes(self._unfinished)
            self.clear()
        self._unfinished += rest
        for line in (*lines, self._unfinished):
            if len(line) > max_bytes:
                raise ProtocolError(f"a line has more than {max_bytes:,} bytes")
        return lines
