"""Converts between gRPC envelopes and wire messages. Both contain the same JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from llmsession.errors import InvalidInput, ProtocolError

from ..v1.session_pb2 import Command, Envelope
from ..wire import messages as w
from ..wire.framing import decode_from_client, decode_lenient

__all__ = ["answer_envelope", "command_in", "event_envelope"]

_ENVELOPED = {"type", "id", "session", "command_id"}
_fields: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def command_in(kind: str, id: int, request: Command) -> w.Command[Any]:
    """The command of type *kind* in *request*. Raises InvalidInput."""
    envelope: dict[str, Any] = {"type": kind, "id": id}
    if request.session:
        envelope["session"] = request.session
    if request.command_id:
        envelope["command_id"] = request.command_id
    try:
        fields = decode_lenient(_fields, request.body or b"{}")
        if repeated := fields.keys() & _ENVELOPED:
            names = ", ".join(sorted(repeated))
            raise InvalidInput(f"the body may not have {names}: the call or its envelope has it")
        message = decode_from_client(msgspec.json.encode({**envelope, **fields}))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ProtocolError) as error:
        raise InvalidInput(f"the body is not a JSON object: {error}") from error
    if isinstance(message, w.Error):
        raise InvalidInput(message.message)
    assert isinstance(message, w.Command)
    return message


class _EnvelopeFields(msgspec.Struct):
    """The fields of an answer that are also fields of its envelope."""

    session: str = ""
    turn: int | None = None


def answer_envelope(kind: str, command: w.Command[Any], reply: w.Reply) -> Envelope:
    """The envelope of *reply*, the answer to *command* of type *kind*."""
    try:
        fields = msgspec.json.decode(reply.body, type=_EnvelopeFields)
    except msgspec.ValidationError:
        fields = _EnvelopeFields()
    session = fields.session or getattr(command, "session", None) or ""
    turn = fields.turn or getattr(command, "turn", None) or 0
    return Envelope(session=session, kind=kind, turn=turn, body=bytes(reply.body))


def event_envelope(event: w.Event) -> Envelope:
    """The envelope of *event*. The bytes of its body do not change."""
    return Envelope(
        session=event.session,
        seq=event.seq,
        kind=event.kind,
        turn=event.turn or 0,
        body=bytes(event.body),
        offset=event.offset,
        calls=[bytes(call) for call in event.calls],
    )
