"""One recorded message on its way to a turn, and the blocks that its parts become."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from llmsession.turns.blocks import encode_json, text_block
from llmsession.turns.messages import Role
from llmsession.turns.usage import Usage

__all__ = ["Said", "call_block", "call_input", "image_block", "image_url", "result_block", "texts"]

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.-]+)*;base64,")


class Said(msgspec.Struct, kw_only=True):
    """What one side said at once, results among it. ``place`` is its line or record, from 1.

    ``id`` is the source's; "" if it has none. ``starts`` says that a turn begins here, whatever
    came before, ``interrupted`` that the turn was cut short after this.
    """

    place: int
    role: Role
    blocks: list[bytes]
    id: str = ""
    at: float = 0.0
    until: float = 0.0
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str | None = None
    extra: dict[str, Any] = {}
    starts: bool = False
    interrupted: bool = False


def call_input(arguments: bytes | str | None) -> msgspec.Raw:
    """The input of a call, from JSON or from the text of it. What is no object is wrapped, as a
    provider's broken stream is: providers refuse anything else."""
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
    """A call. *arguments* is JSON, or the text of it."""
    fields = {"type": "tool_use", "id": id, "name": name, "input": call_input(arguments)}
    return encode_json(fields)


def result_block(call: str, content: str | list[bytes], *, is_error: bool | None = None) -> bytes:
    """The result of a call: a text, or blocks."""
    shown = content if isinstance(content, str) else [msgspec.Raw(raw) for raw in content]
    fields: dict[str, Any] = {"type": "tool_result", "tool_use_id": call, "content": shown}
    return encode_json(fields | ({} if is_error is None else {"is_error": is_error}))


def image_block(url: str) -> bytes:
    """An image, from its URL, which may hold the image itself."""
    found = _DATA_URL.match(url)
    if found is None:
        return encode_json({"type": "image", "source": {"type": "url", "url": url}})
    source = {
        "type": "base64",
        "media_type": found[1] or "image/png",
        "data": url[found.end() :],
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


def texts(*said: str | None) -> list[bytes]:
    """A text block for each that says something."""
    return [text_block(text) for text in said if text]
