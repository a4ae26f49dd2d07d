"""From what is answered to the steps that send it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from llmsession.errors import ProviderError
from llmsession.turns.blocks import encode_json

from ..model.faults import Break, End, Head, Pause, Send, Step, WireFault, spoiled
from ..model.refusal import Api, Refusal, error_body, invalid, overloaded
from .chat_chunks import COMMENT, CREATED_S, completion_body, completion_chunks, error_chunk
from .message_events import PING, error_event, message_body, message_events
from .received import Reply

__all__ = [
    "Answer",
    "model_entry",
    "model_list",
    "refused_answer",
    "reply_answer",
    "value_answer",
]

Answer: TypeAlias = Sequence[Step]


def refused_answer(number: int, api: Api, refusal: Refusal) -> Answer:
    """The error body, with its status and headers."""
    body = error_body(refusal, api, request_id(number))
    return _whole(number, api, body, refusal.status, refusal.headers())


def value_answer(number: int, api: Api, value: Any) -> Answer:
    """A JSON value, 200."""
    return _whole(number, api, encode_json(value))


def reply_answer(reply: Reply, fault: WireFault | None) -> Answer:
    """The reply as the request wants it, streamed or whole, with what the script and *fault* do
    to it."""
    streams = bool(reply.received.body.get("stream"))
    if fault is not None and fault.kind == "error_event" and not streams:
        return refused_answer(reply.received.number, reply.api, overloaded(reply.api))
    steps = list(_streamed(reply) if streams else _at_once(reply))
    if fault is None:
        return steps
    failed = overloaded(reply.api)
    error_of = error_event(failed.kind, failed.message), PING
    if reply.api == "completions":
        error_of = error_chunk(failed.kind, failed.message), COMMENT
    return spoiled(steps, fault, error_event=error_of[0], ping=error_of[1] if streams else b"")


def model_entry(name: str, api: Api) -> dict[str, Any]:
    """One model as ``GET /v1/models`` tells it."""
    if api == "completions":
        return {"id": name, "object": "model", "created": CREATED_S, "owned_by": "strict-server"}
    created_at = "2026-01-01T00:00:00Z"
    return {"id": name, "type": "model", "display_name": name, "created_at": created_at}


def model_list(entries: Sequence[dict[str, Any]], api: Api) -> dict[str, Any]:
    """All models, in one page."""
    if api == "completions":
        return {"object": "list", "data": entries}
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
    return {"data": entries, "has_more": False, **ends}


def request_id(number: int) -> str:
    """The id of an answer; it says that no vendor made it."""
    return f"req_strict_{number:06d}"


def _headers(number: int, api: Api, content_type: str) -> list[tuple[str, str]]:
    name = "request-id" if api == "messages" else "x-request-id"
    return [("content-type", content_type), (name, request_id(number))]


def _whole(
    number: int,
    api: Api,
    body: bytes,
    status: int = 200,
    headers: Sequence[tuple[str, str]] = (),
) -> list[Step]:
    length = ("content-length", str(len(body)))
    head = Head(status, (*_headers(number, api, "application/json"), length, *headers))
    return [head, Send(body), End()]


def _events(reply: Reply) -> list[bytes]:
    if reply.api == "completions":
        options = reply.received.body.get("stream_options") or {}
        events = completion_chunks(reply, include_usage=bool(options.get("include_usage")))
    else:
        events = message_events(reply)
    if reply.script.shuffled and len(events) > 2:
        events[1], events[2] = events[2], events[1]
    return events


def _streamed(reply: Reply) -> Iterator[Step]:
    script = reply.script
    events = _events(reply)
    fault_at = min(script.fault.at, len(events) - 1) if script.fault else None
    if script.fault is not None and script.fault.error is not None and fault_at == 0:
        yield from _failed_at_once(reply, script.fault.error)
        return
    content_type = "text/event-stream; charset=utf-8"
    number = reply.received.number
    yield Head(200, (*_headers(number, reply.api, content_type), ("cache-control", "no-cache")))
    for index, event in enumerate(events):
        if script.fault is not None and index == fault_at:
            if script.fault.error is not None:
                yield from _failed_midway(reply.api, script.fault.error)
                return
            yield Pause(_silence_s(script.fault.ignores_cancellation_s))
        if script.delay_s:
            yield Pause(script.delay_s)
        yield Send(event)
    yield End()


def _at_once(reply: Reply) -> Iterator[Step]:
    script = reply.script
    if script.fault is not None:
        if script.fault.error is not None:
            yield from _failed_at_once(reply, script.fault.error)
            return
        yield Pause(_silence_s(script.fault.ignores_cancellation_s))
    if script.delay_s:
        yield Pause(script.delay_s * len(_events(reply)))
    body = message_body(reply) if reply.api == "messages" else completion_body(reply)
    yield from _whole(reply.received.number, reply.api, body)


def _silence_s(ignores_cancellation_s: float | None) -> float:
    return math.inf if ignores_cancellation_s is None else ignores_cancellation_s


def _failed_at_once(reply: Reply, error: BaseException) -> Answer:
    """What a script's error is over HTTP: a refusal of its kind; a broken connection, if it is
    no provider's error."""
    if not isinstance(error, ProviderError):
        return [Break(reset=True)]
    return refused_answer(reply.received.number, reply.api, _refusal_of(error, reply.api))


def _refusal_of(error: ProviderError, api: Api) -> Refusal:
    if error.kind == "retryable":
        refusal = overloaded(api)
        return msgspec.structs.replace(refusal, retry_after_s=error.delay_s or None)
    if error.kind == "overflow":
        return _overflow(api)
    return invalid(str(error))


def _overflow(api: Api) -> Refusal:
    if api == "messages":
        return invalid("prompt is too long: 200001 tokens > 200000 maximum")
    return invalid(
        "This model's maximum context length is 128000 tokens. However, your messages resulted"
        " in 128001 tokens. Please reduce the length of the messages.",
        param="messages",
        code="context_length_exceeded",
    )


def _failed_midway(api: Api, error: BaseException) -> Iterator[Step]:
    if not isinstance(error, ProviderError):
        yield Break(reset=True)
        return
    refusal = _refusal_of(error, api)
    error_of = error_event if api == "messages" else error_chunk
    yield Send(error_of(refusal.kind, refusal.message))
    yield End()
