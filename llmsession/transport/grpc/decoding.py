"""Decodes protobuf messages. Invalid bytes are the client's mistake, so the status is
INVALID_ARGUMENT, and the log gets no traceback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from llmsession.errors import InvalidInput

__all__ = ["MAX_FIELDS", "DecodingInterceptor", "decode_message"]

MAX_FIELDS = 4096
"""The most fields, and so the most frames, of one message. A message of 36 MiB could have two
million frames, and splitting it would block the event loop for all clients."""

M = TypeVar("M", bound=Message)


def decode_message(kind: type[M], raw: bytes, max_fields: int = MAX_FIELDS) -> M:
    """The message of *kind* in *raw*. Raises InvalidInput for invalid bytes and for more than
    *max_fields* fields. Fields after that are not read, so they cost no time."""
    name = kind.DESCRIPTOR.full_name
    if _field_count(raw, max_fields) > max_fields:
        raise InvalidInput(f"the message has more than {max_fields:,} fields; send several")
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidInput(f"the bytes are not a protobuf message {name}") from None


def _field_count(raw: bytes, limit: int) -> int:
    """The number of fields in *raw*. Stops counting above *limit*. Raises InvalidInput."""
    place, count = 0, 0
    while place < len(raw) and count <= limit:
        count += 1
        tag, place = _varint(raw, place)
        match tag & 7:
            case 0:  # a varint
                _, place = _varint(raw, place)
            case 1:
                place += 8
            case 2:  # bytes, with their length before them
                size, place = _varint(raw, place)
                place += size
            case 5:
                place += 4
            case _:
                raise InvalidInput(
                    "the bytes are not a protobuf message: a group or an invalid wire type"
                )
    return count


def _varint(raw: bytes, place: int) -> tuple[int, int]:
    """The number at the index *place*, and the index after it. Raises InvalidInput."""
    number = 0
    for index, byte in enumerate(raw[place : place + 10]):
        number |= (byte & 127) << (7 * index)
        if byte < 128:
            return number, place + index + 1
    raise InvalidInput("the bytes are not a protobuf message: a number does not end")


class _Malformed:
    """Stands for a request that could not be decoded."""

    def __init__(self, why: str) -> None:
        self.why = why


class _Method(Protocol):
    """The attributes of an RpcMethodHandler that are used here."""

    request_deserializer: Callable[[bytes], Any] | None
    request_streaming: bool
    response_streaming: bool

    def _replace(self, **changes: Any) -> Any: ...


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Refuses invalid requests to gRPC's own services, health and reflection. Calls to these need
    no token."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the method. A method of gRPC's own services is wrapped to refuse invalid bytes."""
        method: _Method | None = await continuation(handler_call_details)
        if method is None or method.request_deserializer is None:
            return method  # unknown, or a session call, which decodes after authentication
        decode = method.request_deserializer

        def decoded(raw: bytes) -> Any:
            try:
                is_sound = _field_count(raw, MAX_FIELDS) <= MAX_FIELDS
                return decode(raw) if is_sound else _Malformed("the message has too many fields")
            except (DecodeError, InvalidInput):
                return _Malformed("the bytes are not the protobuf message of this call")

        name = "{}_{}".format(
            "stream" if method.request_streaming else "unary",
            "stream" if method.response_streaming else "unary",
        )
        checked = _CHECKED[name](getattr(method, name))
        return method._replace(request_deserializer=decoded, **{name: checked})


async def _refuse(call: Any, request: _Malformed) -> None:
    await call.abort(grpc.StatusCode.INVALID_ARGUMENT, request.why)


def _unary_unary(serve: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Any]:
    async def checked(request: Any, call: Any) -> Any:
        if isinstance(request, _Malformed):
            await _refuse(call, request)
        return await serve(request, call)

    return checked


def _unary_stream(serve: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def checked(request: Any, call: Any) -> None:
        if isinstance(request, _Malformed):
            await _refuse(call, request)
        await _written(serve(request, call), call)

    return checked


def _stream_stream(serve: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def checked(requests: Any, call: Any) -> None:
        async def sound() -> AsyncIterator[Any]:
            async for request in requests:
                if isinstance(request, _Malformed):
                    await _refuse(call, request)
                yield request

        await _written(serve(sound(), call), call)

    return checked


async def _written(answers: Any, call: Any) -> None:
    """Write the answers of a method that is an async generator. Other methods write their answers
    themselves and are only awaited."""
    if hasattr(answers, "__aiter__"):
        async for answer in answers:
            await call.write(answer)
    else:
        await answers


_CHECKED: dict[str, Callable[[Any], Any]] = {
    "unary_unary": _unary_unary,
    "unary_stream": _unary_stream,
    "stream_stream": _stream_stream,
}
