"""A reply in the words of the Messages API: one JSON body, or a stream of server-sent events.

An event here is what the rest of the library counts as one: the opening of a block with the
piece that is always empty, or the end with its two parts, are one event and are sent together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmsession.turns.blocks import encode_json

from ..model.usage import message_usage
from .received import Reply

__all__ = ["PING", "error_event", "message_body", "message_events", "sse"]

_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
    "server_tool_use": {"input": {}},
    "mcp_tool_use": {"input": {}},
    "compaction": {"content": None},
}
"""What a block that streams is opened with. Others stand whole in their opening."""


def sse(event: str, fields: Mapping[str, Any]) -> bytes:
    """One server-sent event; its type stands in its JSON, too."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), encode_json({"type": event, **fields}))


PING = sse("ping", {})


def error_event(kind: str, message: str) -> bytes:
    """The event that ends a stream instead of ``message_stop``."""
    return sse("error", {"error": {"type": kind, "message": message}})


def message_body(reply: Reply) -> bytes:
    """The answer to a request that does not stream."""
    return encode_json(
        _opening(reply)
        | {
            "content": reply.blocks,
            "stop_reason": reply.stop_reason,
            "stop_sequence": None,
            "usage": message_usage(reply.cost),
            **_management(reply),
        }
    )


def message_events(reply: Reply) -> list[bytes]:
    """The stream: an event each for the start, each block's opening, each delta, each block's
    end, and the end. A ping follows the first block's opening, as it does on the real wire."""
    start = sse("message_start", {"message": _opening(reply)})
    inside: list[bytes] = []
    for index, block in enumerate(reply.blocks):
        inside.extend(_block_events(index, block, reply.script.delta_chars))
    if inside:
        inside[0] += PING
    delta = {"stop_reason": reply.stop_reason, "stop_sequence": None}
    change = {"delta": delta, "usage": message_usage(reply.cost), **_management(reply)}
    end = sse("message_delta", change)
    return [start, *inside, end + sse("message_stop", {})]


def _management(reply: Reply) -> dict[str, Any]:
    applied = reply.applied
    return {} if applied is None else {"context_management": {"applied_edits": applied}}


def _opening(reply: Reply) -> dict[str, Any]:
    transformations = reply.transformations
    return {
        **({} if transformations is None else {"input_transformations": transformations}),
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": message_usage(reply.cost, output=1),
    }


def _block_events(index: int, block: dict[str, Any], size: int) -> Iterator[bytes]:
    kind = str(block.get("type"))
    opened = dict(block)
    if kind == "compaction" and block.get("signature"):  # one that was asked for comes whole
        yield sse("content_block_start", {"index": index, "content_block": opened})
        yield sse("content_block_stop", {"index": index})
        return
    for name, empty in _EMPTY.get(kind, {}).items():
        if name in block:
            opened[name] = empty
    citations = block.get("citations") if kind == "text" else None
    if citations:
        opened["citations"] = []
    start = sse("content_block_start", {"index": index, "content_block": opened})
    if "input" in _EMPTY.get(kind, {}):
        start += _delta(index, {"type": "input_json_delta", "partial_json": ""})
    yield start
    for citation in citations or ():
        yield _delta(index, {"type": "citations_delta", "citation": citation})
    for delta in _deltas(kind, block, size):
        yield _delta(index, delta)
    yield sse("content_block_stop", {"index": index})


def _delta(index: int, delta: Mapping[str, Any]) -> bytes:
    return sse("content_block_delta", {"index": index, "delta": delta})


def _deltas(kind: str, block: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    match kind:
        case "text":
            for piece in _pieces(block.get("text"), size):
                yield {"type": "text_delta", "text": piece}
        case "thinking":
            for piece in _pieces(block.get("thinking"), size):
                yield {"type": "thinking_delta", "thinking": piece}
            # A signature always comes in one piece.
            yield {"type": "signature_delta", "signature": block.get("signature", "")}
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            # A call without arguments sends nothing but the empty piece it was opened with.
            text = encode_json(block["input"]).decode() if block.get("input") else ""
            for piece in _pieces(text, size):
                yield {"type": "input_json_delta", "partial_json": piece}
        case "compaction":
            yield {"type": "compaction_delta", "content": block.get("content")}


def _pieces(text: Any, size: int) -> Sequence[str]:
    if not isinstance(text, str):
        return ()
    return [text[start : start + size] for start in range(0, len(text), size)]
