"""Between the envelopes of gRPC and the messages of the wire: the JSON inside is the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from llmsession.errors import InvalidInput, InvalidMessage, ProtocolError
from llmsession.turns.blocks import encode_json

from ..v1.session_pb2 import Command, Envelope
from ..wire import messages as w

__all__ = ["answer_envelope", "command_in", "event_envelope", "type_of"]

_ENVELOPED = {"type", "id", "session", "command_id"}
_fields: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def type_of(call: str) -> str:
    """The type on the wire of the command that *call* is: ``open_calls`` of ``OpenCalls``."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in call).removeprefix("_")


def command_in(call: str, id: int, request: Command) -> w.Command:
    """The command that *request* is, as *call*. Raises InvalidInput."""
    named: dict[str, Any] = {"type": type_of(call), "id": id}
    if request.session:
        named["session"] = request.session
    if request.command_id:
        named["command_id"] = request.command_id
    try:
        fields = _fields_of(request.body or b"{}")
        if again := fields.keys() & _ENVELOPED:
            told = ", ".join(sorted(again))
            raise InvalidInput(f"the body has {told}, which the call and its envelope say")
        message = w.decode_from_client(msgspec.json.encode({**named, **fields}))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ProtocolError) as error:
        raise InvalidInput(f"the body is no JSON object: {error}") from error
    if isinstance(message, w.Error):
        raise InvalidInput(message.message)
    assert isinstance(message, w.Command)
    return message


def _fields_of(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _fields.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise
    # A lone surrogate: it is replaced, as in every text.
    try:
        return _fields.decode(encode_json(json.loads(body)))
    except (ValueError, InvalidMessage) as error:
        raise msgspec.DecodeError(str(error)) from error


class _Named(msgspec.Struct):
    """What answers have of the fields that an envelope has, too."""

    session: str = ""
    turn: int | None = None


def answer_envelope(call: str, command: w.Command, reply: w.Reply) -> Envelope:
    """The answer to *command*, as *call*."""
    try:
        named = msgspec.json.decode(reply.body, type=_Named)
    except msgspec.ValidationError:
        named = _Named()
    session = named.session or getattr(command, "session", None) or ""
    turn = named.turn or getattr(command, "turn", None) or 0
    return Envelope(session=session, kind=type_of(call), turn=turn, body=bytes(reply.body))


def event_envelope(event: w.Event) -> Envelope:
    """*event*, whose body stays as it is, byte for byte."""
    return Envelope(
        session=event.session,
        seq=event.seq,
        kind=event.kind,
        turn=event.turn or 0,
        body=bytes(event.body),
        offset=event.offset,
        calls=[bytes(each) for each in event.calls],
    )
