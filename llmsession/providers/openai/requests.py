"""Turns requests into chat completion requests. Pure: equal requests give equal bytes.

Calls become ``tool_calls``, and results become messages of the role ``tool``, in their order. Two
kinds of content have no place in chat completions and are left out: signed thinking, and blocks of
another provider's own tools. Two facts are written as text: that a result is an error, and which
result an image belongs to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.errors import ProviderError
from llmsession.turns.blocks import block_type, split_blocks
from llmsession.turns.request import Request

__all__ = ["CallIds", "ChatDialect", "ToolNames", "chat_body", "chat_messages"]

CallIds: TypeAlias = Literal["any", "short", "nine"]
"""The call ids that a server accepts: any; up to 40 characters (OpenAI); or nine letters and digits
(Mistral).
"""

MAX_NAME = 64
MAX_ID = 40
ERROR_MARK = "Error: "
EMPTY_RESULT = "(no output)"
EMPTY_MESSAGE = "(empty message)"
_FIXED = ("model", "messages", "system", "stream")
_REASONING_FIELDS = ("reasoning_content", "reasoning")
_Fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ChatDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Which variant of chat completions a server accepts.

    - ``system_role`` is the role of the system prompt: "system" or "developer".
    - ``max_tokens_field`` is the name of the output limit.
    - ``call_ids`` is the form of call ids that the server accepts.
    - ``usage`` asks for usage in the stream, which some servers refuse.
    - ``max_name`` is the longest tool name that the server accepts, in characters.
    """

    system_role: str = "system"
    max_tokens_field: str = "max_tokens"
    call_ids: CallIds = "any"
    usage: bool = True
    max_name: int = MAX_NAME


class ToolNames:
    """Maps tool names to the wire and back: ours may be longer than a server accepts."""

    def __init__(self, names: Sequence[str], longest: int) -> None:
        self._out = {name: _short(name, longest) for name in names if len(name) > longest}
        self._back = {short: name for name, short in self._out.items()}
        self._longest = longest

    def out(self, name: str) -> str:
        """*name* as it is sent. Names of tools that are no longer offered are shortened, too."""
        return self._out.get(name) or _short(name, self._longest)

    def back(self, name: str) -> str:
        """The session's name of the tool that the server calls *name*."""
        return self._back.get(name, name)


def _short(text: str, longest: int) -> str:
    """*text*, or its beginning with a digest of the whole text if it is too long."""
    if len(text) <= longest:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text[: longest - 13]}_{digest}"


_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NINE = re.compile(r"[a-zA-Z0-9]{9}")


def _call_id(call_id: str, style: CallIds) -> str:
    if style == "any":
        return call_id
    if style == "short":
        return _short(call_id, MAX_ID)
    if _NINE.fullmatch(call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8], "big")
    digits = []
    for _ in range(9):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(digits)


def chat_body(request: Request, dialect: ChatDialect) -> tuple[bytes, ToolNames]:
    """The JSON body of the chat completion request for *request*, and the names to read the reply
    with. Raises a fatal ProviderError if an option is set that only the session may set.
    """
    tools = [_Fields.decode(tool) for tool in request.tools]
    names = ToolNames([_text(tool.get("name")) for tool in tools], dialect.max_name)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": list(chat_messages(request, dialect, names)),
        dialect.max_tokens_field: request.max_tokens,
    }
    if tools:
        body["tools"] = [_tool(tool, names) for tool in tools]
    for name, value in request.options.items():
        if name in _FIXED:
            raise ProviderError(
                f"option {name!r} must not be set in options: the session sets it", kind="fatal"
            )
        _add_option(body, name, value, names)
    body["stream"] = True
    if dialect.usage:
        body.setdefault("stream_options", {"include_usage": True})
    return msgspec.json.encode(body), names


def _text(raw: msgspec.Raw | None) -> str:
    value = msgspec.json.decode(raw) if raw is not None else ""
    return value if isinstance(value, str) else ""


def _tool(tool: Mapping[str, msgspec.Raw], names: ToolNames) -> dict[str, Any]:
    function: dict[str, Any] = {"name": names.out(_text(tool.get("name")))}
    if description := _text(tool.get("description")):
        function["description"] = description
    function["parameters"] = tool.get("input_schema", msgspec.Raw(b'{"type":"object"}'))
    return {"type": "function", "function": function}


def _add_option(body: dict[str, Any], name: str, value: Any, names: ToolNames) -> None:
    """Add an option under the name, and in the shape, that chat completions use."""
    if name == "tool_choice" and isinstance(value, Mapping) and value.get("type") != "function":
        if value.get("disable_parallel_tool_use"):
            body["parallel_tool_calls"] = False
        body["tool_choice"] = _tool_choice(value, names)
    elif name == "stop_sequences":
        body["stop"] = value
    elif name == "tools" and isinstance(value, list | tuple):
        body["tools"] = [*body.get("tools", ()), *value]
    elif name not in ("cache_control", "betas"):
        body[name] = value


def _tool_choice(choice: Mapping[str, Any], names: ToolNames) -> Any:
    match choice.get("type"):
        case "any":
            return "required"
        case "tool":
            name = names.out(str(choice.get("name", "")))
            return {"type": "function", "function": {"name": name}}
        case kind:
            return kind


def chat_messages(
    request: Request, dialect: ChatDialect, names: ToolNames
) -> Iterator[dict[str, Any]]:
    """The messages of *request*, beginning with the system prompt."""
    if request.system:
        yield {"role": dialect.system_role, "content": request.system}
    for message in request.messages:
        blocks = _blocks(message.body)
        if len(blocks) == 1 and blocks[0].type == "text" and _begins_with_a_sign(blocks[0].text):
            yield {"role": message.role, "content": blocks[0].text}  # most messages
        elif message.role == "assistant":
            yield from _assistant(blocks, dialect, names)
        else:
            yield from _user(blocks, dialect)


_NOTHING = msgspec.Raw(b'""')


class _Block(msgspec.Struct):
    """The fields of a block that are sent, as JSON. They are read for each request anew."""

    type: str = ""
    text: msgspec.Raw = _NOTHING
    thinking: msgspec.Raw = _NOTHING
    signature: msgspec.Raw = _NOTHING
    id: msgspec.Raw = _NOTHING
    name: msgspec.Raw = _NOTHING
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: msgspec.Raw = _NOTHING
    content: msgspec.Raw = _NOTHING
    is_error: msgspec.Raw = _NOTHING
    source: msgspec.Raw = msgspec.Raw(b"null")
    title: msgspec.Raw = _NOTHING


_block_list = msgspec.json.Decoder(list[_Block])


def _blocks(body: msgspec.Raw | bytes) -> list[_Block]:
    try:
        return _block_list.decode(body)
    except msgspec.ValidationError:  # a type that is no text
        return [
            msgspec.json.decode(raw, type=_Block) if block_type(raw) else _Block()
            for raw in split_blocks(body)
        ]


def _begins_with_a_sign(text: msgspec.Raw) -> bool:
    """Is *text*, as JSON, a text that begins with a visible ASCII character? So it is not blank."""
    start = bytes(memoryview(text)[:2])
    return len(start) == 2 and start[0] == _QUOTE and start[1] not in _MAY_BE_BLANK


_QUOTE = ord('"')
# A space, the end of the text, an escape, or a character beyond ASCII.
_MAY_BE_BLANK = frozenset({*b' "\\', *range(0x80, 0x100)})


def _assistant(
    blocks: Sequence[_Block], dialect: ChatDialect, names: ToolNames
) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    reasoning: dict[str, str] = {}
    for block in blocks:
        if block.type == "text":
            texts.append(_text(block.text))
        elif block.type == "tool_use":
            calls.append(_tool_call(block, dialect, names))
        elif block.type == "thinking" and (field := _text(block.signature)) in _REASONING_FIELDS:
            reasoning[field] = reasoning.get(field, "") + _text(block.thinking)
    content = "\n\n".join(text for text in texts if text.strip())
    if not content and not calls:
        return  # chat completions have no place for its content, and refuse an empty message
    message: dict[str, Any] = {"role": "assistant", "content": content or None, **reasoning}
    if calls:
        message["tool_calls"] = calls
    yield message


def _tool_call(block: _Block, dialect: ChatDialect, names: ToolNames) -> dict[str, Any]:
    return {
        "id": _call_id(_text(block.id), dialect.call_ids),
        "type": "function",
        "function": {
            "name": names.out(_text(block.name)),
            "arguments": bytes(block.input).decode(),
        },
    }


def _user(blocks: Sequence[_Block], dialect: ChatDialect) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    results = 0
    for block in blocks:
        if block.type == "tool_result":
            results += 1
            call_id = _call_id(_text(block.tool_use_id), dialect.call_ids)
            text, media = _result(block)
            yield {"role": "tool", "tool_call_id": call_id, "content": text}
            if media:
                parts.append(_text_part(f"What call {call_id} returned besides text:"))
                parts += media
    if results < len(blocks):
        for block in blocks:
            part = _part(block)
            parts += [part] if part else []
    if not parts:
        if results:
            return
        parts = [_text_part(EMPTY_MESSAGE)]  # user and assistant messages must alternate
    if all(part["type"] == "text" for part in parts):
        # Every server accepts plain text; only some accept parts.
        yield {"role": "user", "content": "\n\n".join(part["text"] for part in parts)}
    else:
        yield {"role": "user", "content": parts}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result(block: _Block) -> tuple[str | msgspec.Raw, list[dict[str, Any]]]:
    """A result's text, as JSON if it is sent as it is, and its other content parts."""
    raw, is_error = bytes(block.content), bytes(block.is_error) == b"true"
    texts: list[str] = []
    media: list[dict[str, Any]] = []
    if raw.startswith(b"["):
        for part in _blocks(raw):
            if part.type == "text":
                texts.append(_text(part.text))
            elif medium := _part(part):
                media.append(medium)
    elif not is_error and raw.startswith(b'"') and raw != b'""':
        return block.content, media
    else:
        texts.append(_text(block.content))
    text = "\n".join(texts) or EMPTY_RESULT
    if is_error and not text.startswith(ERROR_MARK):
        text = ERROR_MARK + text
    return text, media


def _part(block: _Block) -> dict[str, Any] | None:
    """A block of a user message as a content part; None if there is no such part."""
    if block.type == "text":
        text = _text(block.text)
        return _text_part(text) if text.strip() else None
    if block.type not in ("image", "document"):
        return None
    source = msgspec.json.decode(block.source)
    if not isinstance(source, dict):
        return None
    media_type, data = source.get("media_type"), source.get("data")
    url = f"data:{media_type};base64,{data}" if source.get("type") == "base64" else None
    if block.type == "image":
        url = url or source.get("url")
        return {"type": "image_url", "image_url": {"url": url}} if url else None
    if source.get("type") == "text":
        return _text_part(str(data))
    if url is None:
        return None
    title = _text(block.title) or "document"
    return {"type": "file", "file": {"filename": title, "file_data": url}}
