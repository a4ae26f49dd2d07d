"""A reply in the words of chat completions: one JSON body, or a stream of chunks.

The script's blocks are the same as for the Messages API: text becomes ``content``, calls become
``tool_calls``, thinking is counted as reasoning and not shown, as it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llmsession.turns.blocks import encode_json

from ..model.usage import completion_usage
from .received import Reply

__all__ = [
    "COMMENT",
    "CREATED_S",
    "DONE",
    "completion_body",
    "completion_chunks",
    "error_chunk",
    "finish_reason",
]

CREATED_S = 1_767_225_600
"""When every completion was made: the first second of 2026. A clock would make runs differ."""
DONE = b"data: [DONE]\n\n"
COMMENT = b": ping\n\n"
"""What compatible servers send to keep a connection open; clients read over it."""

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


def finish_reason(reply: Reply) -> str:
    """The stop reason in this API's word."""
    return _FINISH.get(reply.stop_reason, reply.stop_reason)


def error_chunk(kind: str, message: str) -> bytes:
    """The chunk that ends a stream which fails."""
    error = {"message": message, "type": kind, "param": None, "code": None}
    return _data({"error": error})


def completion_body(reply: Reply) -> bytes:
    """The answer to a request that does not stream."""
    texts = [block["text"] for block in reply.blocks if block.get("type") == "text"]
    refused = finish_reason(reply) == "content_filter"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(texts) if texts else None,
        "refusal": None,
        "annotations": [],
    }
    if calls := [_call(block) for block in _calls(reply.blocks)]:
        message["tool_calls"] = calls
    if refused:
        message["refusal"] = message["content"] or "I can't help with that."
        message["content"] = None
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(reply),
    }
    fields = _envelope(reply, "chat.completion")
    return encode_json({**fields, "choices": [choice], "usage": completion_usage(reply.cost)})


def completion_chunks(reply: Reply, *, include_usage: bool) -> list[bytes]:
    """The stream, to be ended by ``DONE``, which is part of the last event here."""
    first = _chunk(reply, {"role": "assistant", "content": "", "refusal": None}, include_usage)
    inside = [_chunk(reply, delta, include_usage) for delta in _deltas(reply)]
    end = _chunk(reply, {}, include_usage, finish_reason=finish_reason(reply))
    if include_usage:
        fields = _envelope(reply, "chat.completion.chunk")
        end += _data({**fields, "choices": [], "usage": completion_usage(reply.cost)})
    return [first, *inside, end + DONE]


def _data(fields: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % encode_json(fields)


def _envelope(reply: Reply, kind: str) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": kind,
        "created": CREATED_S,
        "model": reply.model,
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _chunk(
    reply: Reply,
    delta: dict[str, Any],
    include_usage: bool,
    finish_reason: str | None = None,
) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    fields = _envelope(reply, "chat.completion.chunk") | {"choices": [choice]}
    return _data(fields | ({"usage": None} if include_usage else {}))


def _calls(blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [block for block in blocks if block.get("type") == "tool_use"]


def _arguments(block: dict[str, Any]) -> str:
    return encode_json(block.get("input") or {}).decode()


def _call(block: dict[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": _arguments(block)}
    return {"id": block["id"], "type": "function", "function": function}


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    number, size = 0, reply.script.delta_chars
    for block in reply.blocks:
        if block.get("type") == "text":
            text = block["text"]
            for start in range(0, len(text), size):
                yield {"content": text[start : start + size]}
        elif block.get("type") == "tool_use":
            opened = _call(block)
            opened["function"] |= {"arguments": ""}
            yield {"tool_calls": [{"index": number, **opened}]}
            arguments = _arguments(block)
            for start in range(0, len(arguments), size):
                function = {"arguments": arguments[start : start + size]}
                yield {"tool_calls": [{"index": number, "function": function}]}
            number += 1
