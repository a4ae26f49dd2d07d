"""A Messages request as the rules read it: neighbours of one role are one message.

The canonical form of a block or a tool is one form for what means the same: what signatures are
bound to and prefixes are known by. Left out of it are breakpoints, fields that are null or say the
default, and the difference between a text and a list of one text block. Keys are sorted; a block is
what it says, not how it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from .models import ModelRules

__all__ = [
    "THINKING",
    "MessageRequest",
    "Run",
    "Spot",
    "blocks_of",
    "canonical_block",
    "canonical_json",
    "canonical_tool",
    "is_server_call",
    "is_server_result",
    "read_request",
]

Fields: TypeAlias = Mapping[str, Any]

THINKING = ("thinking", "redacted_thinking")


class Spot(NamedTuple):
    """A block and where it stands."""

    message: int
    at: int
    block: dict[str, Any]

    @property
    def where(self) -> str:
        """The place as the real API names it."""
        return f"messages.{self.message}.content.{self.at}"

    @property
    def kind(self) -> str:
        """The type of the block."""
        return str(self.block["type"])


class Run(msgspec.Struct, frozen=True):
    """Neighbouring messages of one role: the first one's number, and all their blocks."""

    role: str
    start: int
    spots: list[Spot]

    def of(self, *kinds: str) -> list[Spot]:
        """The blocks of these types, in order."""
        return [spot for spot in self.spots if spot.kind in kinds]


class MessageRequest(msgspec.Struct, frozen=True):
    """A request whose shape is right. ``family`` is the name that its model's rules go by."""

    body: dict[str, Any]
    family: str
    rules: ModelRules
    betas: frozenset[str]
    runs: list[Run]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages as they came."""
        items: list[dict[str, Any]] = self.body["messages"]
        return items

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools as they came; none where there is no list."""
        items: list[dict[str, Any]] = self.body.get("tools") or []
        return items

    @property
    def system(self) -> list[dict[str, Any]]:
        """The system prompt as blocks."""
        return blocks_of(self.body.get("system") or [])

    @property
    def asks_for_compaction(self) -> bool:
        """Is a summary wanted instead of a reply?"""
        return bool(self.body.get("compaction"))

    @property
    def thinking_type(self) -> str:
        """``enabled``, ``adaptive`` or ``disabled``; "" where it is not said."""
        return str((self.body.get("thinking") or {}).get("type", ""))

    def spots(self) -> Iterator[Spot]:
        """All blocks of the messages, in order."""
        for run in self.runs:
            yield from run.spots

    def dialogue(self) -> list[Run]:
        """The runs without those of the role ``system``, which may stand between any two."""
        return merged(run for run in self.runs if run.role != "system")


def blocks_of(content: Any) -> list[dict[str, Any]]:
    """Content as blocks: a text is one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def read_request(
    body: dict[str, Any], family: str, rules: ModelRules, betas: Sequence[str] = ()
) -> MessageRequest:
    """*body*, whose shape was found right, as the rules read it."""
    single = (
        Run(
            message["role"],
            number,
            [
                Spot(number, index, block)
                for index, block in enumerate(blocks_of(message.get("content") or []))
            ],
        )
        for number, message in enumerate(body["messages"])
    )
    return MessageRequest(body, family, rules, frozenset(betas), merged(single))


def merged(runs: Iterator[Run]) -> list[Run]:
    """Neighbours of one role as one."""
    items: list[Run] = []
    for run in runs:
        if items and items[-1].role == run.role:
            items[-1] = Run(run.role, items[-1].start, items[-1].spots + run.spots)
        else:
            items.append(run)
    return items


def is_server_call(kind: str) -> bool:
    """Is this a call that the provider runs itself?"""
    return kind in ("server_tool_use", "mcp_tool_use")


def is_server_result(kind: str) -> bool:
    """Is this a result that the provider made itself?"""
    return kind.endswith("_tool_result")


_encoder = msgspec.json.Encoder(order="sorted")

_DEFAULTS: dict[str, list[Any]] = {
    "is_error": [False],
    "citations": [[]],
    "caller": [{"type": "direct"}],
}


def canonical_json(value: Any) -> bytes:
    """Any JSON value, its keys sorted."""
    return _encoder.encode(value)


def canonical_block(block: Mapping[str, Any]) -> bytes:
    """One block of content."""
    return canonical_json(_plain(block))


def canonical_tool(tool: Mapping[str, Any]) -> bytes:
    """One tool definition."""
    fields = {name: value for name, value in tool.items() if value is not None}
    fields.pop("cache_control", None)
    return canonical_json(fields)


def _plain(block: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        name: value
        for name, value in block.items()
        if value is not None and name != "cache_control" and value not in _DEFAULTS.get(name, ())
    }
    # The input of a call is the model's own, whatever its fields are named.
    if fields.get("type") == "tool_result":
        inner = blocks_of(fields.pop("content", None) or [])
        fields["content"] = [_plain(one) for one in inner]
    return fields
