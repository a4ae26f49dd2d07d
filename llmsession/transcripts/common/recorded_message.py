"""One recorded message before it is put into a turn, and the blocks that its parts become."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from llmsession.turns.blocks import (
    Block,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    encode_json,
    joined_text,
    parse_blocks,
    text_block,
    too_deep,
)
from llmsession.turns.usage import Usage

__all__ = [
    "MISSING",
    "RecordedMessage",
    "arguments_of",
    "call_block",
    "call_block_of_value",
    "image_block",
    "image_url",
    "joined",
    "output_text",
    "result_block",
    "result_text",
    "summary_mark",
    "text_blocks",
    "text_of",
    "thinking_block",
    "thinking_of",
]

MISSING = "Tool result unavailable; do not assume the call ran."
"""Replaces a result that the source does not have. The text is neutral, because a model repeats
what it reads in its own history.
"""

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.-]+)*;base64,")


class RecordedMessage(msgspec.Struct, kw_only=True, eq=False):
    """What one side said at once, including results.

    - ``number`` is the place of its line or record in the file, from 1.
    - ``id`` is the source's id; "" if it has none.
    - ``raw`` is the record itself, if it has to be kept in case it has no place.
    - ``extra`` holds fields of the record that no other field holds.
    - ``interrupted`` says that the turn was cut short after this message.
    - ``starts`` says that a turn begins here if anything was answered since the last text, and that
      this message did not cut the turn before short.
    - ``joins`` says whether text belongs to the open tool loop; None means that it does if all
      calls are answered.
    - ``turn`` is the number of the turn that it was put into; the assembly sets it.
    - ``summary`` is a summary of all messages before this one: see ``summary_mark``.
    """

    role: Literal["user", "assistant", "system"]
    blocks: list[bytes]
    id: str = ""
    number: int = 1
    created_at: float = 0.0
    completed_at: float = 0.0
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str | None = None
    extra: dict[str, Any] = {}
    raw: bytes = b""
    interrupted: bool = False
    starts: bool = False
    joins: bool | None = None
    turn: int = 0
    summary: str = ""

    @property
    def content(self) -> tuple[Block, ...]:
        """The blocks, parsed."""
        return parse_blocks(b"[" + b",".join(self.blocks) + b"]")

    @property
    def calls(self) -> list[ToolUseBlock]:
        """The calls in it, in order."""
        return [block for block in self.content if isinstance(block, ToolUseBlock)]

    @property
    def results(self) -> list[ToolResultBlock]:
        """The tool results in it, in order."""
        return [block for block in self.content if isinstance(block, ToolResultBlock)]


def summary_mark(text: str) -> list[RecordedMessage]:
    """A mark between messages: *text* is the summary of everything before it.

    The mark does not become a message. If there are several, the last one counts. Empty if *text*
    is blank.
    """
    text = text.strip()
    return [RecordedMessage(role="system", blocks=[], summary=text)] if text else []


def joined(messages: Iterable[RecordedMessage]) -> list[RecordedMessage]:
    """*messages*, with neighbours of the same id and role joined: a writer had to split them."""
    whole: list[RecordedMessage] = []
    for message in messages:
        last = whole[-1] if whole else None
        if last is None or not message.id or (last.id, last.role) != (message.id, message.role):
            whole.append(message)
            continue
        whole[-1] = msgspec.structs.replace(
            last,
            blocks=last.blocks + message.blocks,
            extra=last.extra | message.extra,
            created_at=last.created_at or message.created_at,
            completed_at=max(last.completed_at, message.completed_at),
            usage=message.usage or last.usage,
            stop_reason=message.stop_reason or last.stop_reason,
            interrupted=last.interrupted or message.interrupted,
        )
    return whole


def text_of(messages: Iterable[RecordedMessage], between: str = "") -> str:
    """All text blocks, joined."""
    blocks = (block for message in messages for block in message.content)
    return joined_text(blocks, between)


def thinking_of(messages: Iterable[RecordedMessage]) -> str:
    """All readable thinking, joined."""
    blocks = (block for message in messages for block in message.content)
    return "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))


# Blocks.


def text_blocks(*texts: str | None) -> list[bytes]:
    """A text block for each text that is not empty."""
    return [text_block(text) for text in texts if text]


def thinking_block(text: str, signature: str = "") -> bytes:
    """The JSON of a thinking block. Without a signature it is kept and never sent."""
    signed = {"signature": signature} if signature else {}
    return encode_json({"type": "thinking", "thinking": text} | signed)


def _call_input(arguments: bytes | str | None) -> msgspec.Raw:
    """The input of a call, from JSON or from a text that contains it.

    Anything but an object is wrapped in one, as the input from a provider's broken stream is,
    because providers refuse anything else.
    """
    text = arguments.decode() if isinstance(arguments, bytes) else arguments or ""
    if not text.strip():
        return msgspec.Raw(b"{}")
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return msgspec.Raw(text.encode())
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        pass
    return msgspec.Raw(encode_json({"INVALID_JSON": text}))


def call_block(id: str, name: str, arguments: bytes | str | None) -> bytes:
    """The JSON of a call. *arguments* is JSON, or a text that contains it."""
    fields = {"type": "tool_use", "id": id, "name": name, "input": _call_input(arguments)}
    return encode_json(fields)


def call_block_of_value(call_id: str, name: str, arguments: Any) -> bytes:
    """The JSON of a call.

    *arguments* is an object, or a JSON text of one. Anything else becomes the field ``arguments``
    of an object, because a call's input is always an object.
    """
    input = arguments
    if isinstance(arguments, str):
        input = _parsed_object(arguments)
    if not isinstance(input, dict):
        input = {} if arguments in (None, "") else {"arguments": arguments}
    return encode_json({"type": "tool_use", "id": call_id, "name": name, "input": input})


def _parsed_object(text: str) -> Any:
    try:
        return None if too_deep(text.encode()) else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def arguments_of(call: ToolUseBlock) -> str:
    """A call's input as JSON text."""
    return encode_json(call.input).decode()


def result_block(
    call: str, content: str | Sequence[bytes | msgspec.Raw], *, is_error: bool | None = None
) -> bytes:
    """The JSON of a call's result: a text, or blocks."""
    blocks = content if isinstance(content, str) else [msgspec.Raw(bytes(raw)) for raw in content]
    fields: dict[str, Any] = {"type": "tool_result", "tool_use_id": call, "content": blocks}
    return encode_json(fields | ({"is_error": True} if is_error else {}))


def output_text(output: Any) -> str:
    """A tool's output as text: itself if it is a text, else its JSON."""
    return output if isinstance(output, str) else encode_json(output).decode()


def result_text(block: ToolResultBlock) -> str:
    """A result as one text: its own, or the JSON of its parts if one of them is not text."""
    if isinstance(block.content, list) and any(
        not isinstance(part, dict) or part.get("type") != "text" for part in block.content
    ):
        return encode_json(block.content).decode()
    return block.text


def image_block(url: str) -> bytes:
    """The JSON of an image from its URL, which may contain the image itself."""
    match = _DATA_URL.match(url)
    if match is None:
        return encode_json({"type": "image", "source": {"type": "url", "url": url}})
    source = {
        "type": "base64",
        "media_type": match[1] or "image/png",
        "data": url[match.end() :],
    }
    return encode_json({"type": "image", "source": source})


def image_url(source: Any) -> str | None:
    """The URL of an image block's *source*; None for a source of another kind."""
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(held)}:
            return f"data:{kind};base64,{held}"
        case {"type": "url", "url": str(url)}:
            return url
    return None
