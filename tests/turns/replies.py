"""A reply as a provider streams it, event by event, and small parts to make others of."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    DeltaKind,
    ReplyEnded,
    ReplyStarted,
    StreamEvent,
    UsageReported,
)
from llmsession.turns.usage import Usage

Json = dict[str, Any]


def raw(block: Json) -> bytes:
    return json.dumps(block, ensure_ascii=False, separators=(",", ":")).encode()


def opened(index: int, block: Json) -> BlockStarted:
    return BlockStarted(index, msgspec.Raw(raw(block)))


def block(index: int, start: Json, *deltas: tuple[DeltaKind, str]) -> list[StreamEvent]:
    """One whole block: opened, filled, closed."""
    filled = [BlockDelta(index, kind, text) for kind, text in deltas]
    return [opened(index, start), *filled, BlockStopped(index)]


def text(index: int, *pieces: str) -> list[StreamEvent]:
    return block(index, {"type": "text", "text": ""}, *(("text", piece) for piece in pieces))


def call(index: int, id: str, *pieces: str) -> list[StreamEvent]:
    start = {"type": "tool_use", "id": id, "name": "bash", "input": {}}
    return block(index, start, *(("input", piece) for piece in pieces))


def thinking(index: int, *pieces: str) -> list[StreamEvent]:
    start = {"type": "thinking", "thinking": "", "signature": ""}
    deltas: list[tuple[DeltaKind, str]] = [("thinking", piece) for piece in pieces]
    return block(index, start, *deltas, ("signature", "SIG"))


SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"url": "u"}]}
CITATION = {"type": "char_location", "cited_text": "sea", "start": 0}

WHOLE: list[StreamEvent] = [
    ReplyStarted("model-1", Usage(input_tokens=9, output_tokens=1)),
    *thinking(0, "let me ", "look"),
    *block(1, SEARCH, ("input", '{"query"'), ("input", ':"sea"}')),
    *block(2, FOUND),
    *block(
        3,
        {"type": "text", "text": "", "citations": []},
        ("text", "The s"),
        ("citation", json.dumps(CITATION)),
        ("text", "ea."),
    ),
    UsageReported(Usage(input_tokens=9, output_tokens=20)),
    *call(4, "c1", '{"cmd":', ' "ls"}'),
    *call(5, "c2"),
    ReplyEnded("tool_use", Usage(input_tokens=9, output_tokens=42)),
]


def fed(events: list[StreamEvent]) -> ReplyBuilder:
    builder = ReplyBuilder()
    for event in events:
        builder.feed(event)
    return builder


def whole(*parts: list[StreamEvent], stop_reason: str | None = "end_turn") -> Reply:
    """The reply that is made of *parts*."""
    events = [event for part in parts for event in part]
    return fed([ReplyStarted("m"), *events, ReplyEnded(stop_reason)]).reply()


def said(reply: Reply) -> list[Json]:
    return [json.loads(part) for part in reply.blocks]
