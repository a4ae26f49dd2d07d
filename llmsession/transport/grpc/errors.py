"""Errors over gRPC: a status code for plain gRPC clients, and rich details for others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
import msgspec
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from llmsession import errors as e
from llmsession.errors import SessionError

from ..wire import messages as w
from ..wire.errors import from_wire

__all__ = ["DOMAIN", "error_of", "refusal", "status_code"]

DOMAIN = "llmsession"
MAX_CHARS = 512
"""The most characters of a text in a status. A status is sent in the trailers, which peers limit to
8 KiB."""

_C = grpc.StatusCode
# The first base class that matches counts, so special classes come before general ones.
_CODES: Mapping[type[SessionError], grpc.StatusCode] = {
    e.DuplicateToolResult: _C.ALREADY_EXISTS,
    e.KeyReused: _C.ALREADY_EXISTS,
    e.InvalidInput: _C.INVALID_ARGUMENT,
    e.Overloaded: _C.RESOURCE_EXHAUSTED,
    e.HeadMoved: _C.ABORTED,
    e.Refused: _C.FAILED_PRECONDITION,
    e.SessionNotFound: _C.NOT_FOUND,
    e.SessionExists: _C.ALREADY_EXISTS,
    e.SessionMoved: _C.ABORTED,
    e.Gone: _C.FAILED_PRECONDITION,
    e.TurnEnded: _C.ABORTED,
    e.ProviderError: _C.FAILED_PRECONDITION,
    e.ContextTooLarge: _C.FAILED_PRECONDITION,
    e.BudgetExhausted: _C.RESOURCE_EXHAUSTED,
    e.Unauthenticated: _C.UNAUTHENTICATED,
    e.ProtocolError: _C.INVALID_ARGUMENT,
    e.TransportError: _C.UNAVAILABLE,
    e.UnknownRecord: _C.FAILED_PRECONDITION,  # no data is lost: upgrade the service
    e.RecordDamaged: _C.DATA_LOSS,
    e.StoreDamaged: _C.DATA_LOSS,
    e.StoreError: _C.INTERNAL,
}


def status_code(kind: type[SessionError]) -> grpc.StatusCode:
    """The status code of an error of class *kind*."""
    return next(
        (code for attributes, code in _CODES.items() if issubclass(kind, attributes)), _C.INTERNAL
    )


def refusal(error: w.Error, kind: type[SessionError]) -> grpc.Status:
    """*error*, of class *kind*, as the status that ends its call. The details have an ErrorInfo,
    and a RetryInfo if the error has a hint when to retry."""
    attributes = {name: bytes(value).decode() for name, value in error.details.items()}
    metadata = {name: value for name, value in attributes.items() if len(value) <= MAX_CHARS}
    metadata["retryable"] = json.dumps(error.retryable)
    details = [
        _packed(error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=metadata))
    ]
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    code, _ = status_code(kind).value
    message = error.message[:MAX_CHARS]
    return rpc_status.to_status(status_pb2.Status(code=code, message=message, details=details))


def _packed(detail: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def error_of(failed: grpc.aio.AioRpcError) -> SessionError | None:
    """The SessionError in *failed*. None for an error of gRPC itself."""
    try:
        # Not the function of rpc_status for grpc.aio: it raises TypeError for an AioRpcError.
        status = rpc_status.from_call(failed)  # type: ignore[arg-type]  # has the methods needed
    except ValueError:
        return None
    for detail in () if status is None else status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            attributes = {
                name: msgspec.Raw(value.encode())
                for name, value in info.metadata.items()
                if name != "retryable"
            }
            message = w.Error(code=info.reason, message=failed.details() or "", details=attributes)
            try:
                return from_wire(message)
            except msgspec.MsgspecError:
                return SessionError(f"{info.reason}: {failed.details()}")
    return None
