"""Turns requests into bodies of the Messages API, with cache breakpoints.

Pure: equal requests give equal bytes, and the breakpoints depend only on the request itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.errors import ProviderError
from llmsession.turns.blocks import block_type, join_blocks, split_blocks
from llmsession.turns.request import Request, RequestMessage
from llmsession.turns.usage import edit_kinds

__all__ = [
    "NEUTRAL_TOKENS",
    "CacheTtl",
    "bedrock_count_body",
    "closed_by_user",
    "count_body",
    "messages_body",
]

CacheTtl: TypeAlias = Literal["5m", "1h"] | None

_FIXED = ("model", "messages", "max_tokens", "system", "stream")
_COUNTED = ("thinking", "tool_choice", "output_config", "context_management", "mcp_servers")
_INVOKED = ("thinking", "tool_choice", "output_config")
BEDROCK_VERSION = "bedrock-2023-05-31"
_NOT_CACHED = frozenset({"thinking", "redacted_thinking"})
_CONTROL = b'"cache_control"'
EDITS_BETA = "context-management-2025-06-27"
COMPACT_BETA = "compact-2026-01-12"
ON_DEMAND_BETA = "compact-2026-09-04"
_NEUTRAL = RequestMessage("user", msgspec.Raw(b'[{"type":"text","text":"."}]'))
NEUTRAL_TOKENS = 5
"""One token for the dot, and four for the role and the separators of a message."""
_Fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def messages_body(request: Request, *, cache: CacheTtl) -> tuple[bytes, tuple[str, ...]]:
    """The JSON body of a streaming request, and the betas that its header must name.

    With *cache*, up to four breakpoints are placed: after the tools, after the system prompt, and
    after the last two user messages. Two of them, so that a step reads what the step before it
    wrote, however many blocks lie between them. If the request has a breakpoint of its own, or asks
    for automatic caching, none is placed.

    Raises a fatal ProviderError if an option is set that only the session may set.
    """
    options = dict(request.options)
    betas = _betas(options.pop("betas", ()))
    for name in _FIXED:
        if name in options:
            raise ProviderError(
                f"option {name!r} must not be set in options: the session sets it", kind="fatal"
            )
    body = _framed(request, None if _has_own(request) else cache, options.pop("tools", ()))
    body |= options
    body["stream"] = True
    return msgspec.json.encode(body), _with_needed(betas, request)


def count_body(request: Request) -> tuple[bytes, tuple[str, ...]]:
    """The JSON body of a token count of *request*, and the betas that its header must name."""
    options = request.options
    body = _framed(request, None, options.get("tools", ()))
    del body["max_tokens"]
    body |= {name: options[name] for name in _COUNTED if name in options}
    return msgspec.json.encode(body), _with_needed(_betas(options.get("betas", ())), request)


def bedrock_count_body(request: Request) -> bytes:
    """The body of a token count by Bedrock: the same JSON that ``InvokeModel`` accepts."""
    options = request.options
    body = _framed(request, None, options.get("tools", ()))
    del body["model"]
    body |= {name: options[name] for name in _INVOKED if name in options}
    betas = _with_needed(_betas(options.get("betas", ())), request)
    if betas:
        body["anthropic_beta"] = betas
    return msgspec.json.encode({"anthropic_version": BEDROCK_VERSION, **body})


def closed_by_user(request: Request) -> tuple[Request, int]:
    """*request* in a form that every model counts, and the number of tokens that this added.

    A finished conversation ends with the assistant's reply, and a new one has no message. Models
    without prefill refuse to count either. So a neutral user message is appended. It has only a few
    tokens, and the provider's own count is not more exact than that.
    """
    if request.messages and request.messages[-1].role == "user":
        return request, 0
    messages = (*request.messages, _NEUTRAL)
    return msgspec.structs.replace(request, messages=messages), NEUTRAL_TOKENS


def _betas(option: Any) -> tuple[str, ...]:
    return (option,) if isinstance(option, str) else tuple(map(str, option))


def _with_needed(betas: tuple[str, ...], request: Request) -> tuple[str, ...]:
    """*betas*, and the betas that the compaction options and blocks of *request* need."""
    return tuple(dict.fromkeys((*betas, *_needed(request))))


def _needed(request: Request) -> Iterator[str]:
    for kind in edit_kinds(request.options):
        yield COMPACT_BETA if kind.startswith("compact_") else EDITS_BETA
    if request.options.get("compaction") is not None:
        yield ON_DEMAND_BETA
    for message in request.messages:
        if b'"compaction"' in bytes(message.body):
            for raw in split_blocks(message.body):
                if block_type(raw) == "compaction":
                    yield ON_DEMAND_BETA if _Signed.decode(raw).signature else COMPACT_BETA


class _Signature(msgspec.Struct):
    signature: str | None = None


_Signed = msgspec.json.Decoder(_Signature)


def _framed(request: Request, cache: CacheTtl, own_tools: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": request.model, "max_tokens": request.max_tokens}
    control = {"type": "ephemeral"} | ({"ttl": cache} if cache == "1h" else {})
    if request.system:
        body["system"] = request.system
        if cache:
            body["system"] = [{"type": "text", "text": request.system, "cache_control": control}]
    tools: list[Any] = [*request.tools, *own_tools]
    if tools:
        if cache and not own_tools:
            tools[-1] = _with_control(request.tools[-1], control)
        body["tools"] = tools
    messages = list(request.messages)
    if cache:
        for index in _last_of_user(messages, 2):
            messages[index] = _marked(messages[index], control)
    body["messages"] = messages
    return body


def _has_own(request: Request) -> bool:
    """Has the caller placed cache breakpoints already? The API accepts four in all, with the
    longest-lived first, so ours cannot be mixed with the caller's.
    """
    if "cache_control" in request.options:
        return True
    if any(_CONTROL in bytes(tool) for tool in request.tools):
        return True
    return any(
        _CONTROL in bytes(message.body) and _marks(message.body) for message in request.messages
    )


def _marks(body: msgspec.Raw) -> bool:
    for raw in split_blocks(body):
        if _CONTROL not in bytes(raw):
            continue
        fields = _Fields.decode(raw)
        if "cache_control" in fields:
            return True
        content = bytes(fields.get("content", b""))
        nested = block_type(raw) == "tool_result" and content.startswith(b"[")
        if nested and _marks(msgspec.Raw(content)):
            return True
    return False


def _last_of_user(messages: Sequence[RequestMessage], count: int) -> list[int]:
    indexes = [index for index, message in enumerate(messages) if message.role == "user"]
    return indexes[-count:]


def _marked(message: RequestMessage, control: dict[str, str]) -> RequestMessage:
    """*message* with a breakpoint on its last block that may carry one."""
    raws = split_blocks(message.body)
    for index in reversed(range(len(raws))):
        if block_type(raws[index]) not in _NOT_CACHED:
            raws[index] = _with_control(raws[index], control)
            return RequestMessage(message.role, join_blocks(raws))
    return message


def _with_control(raw: msgspec.Raw, control: dict[str, str]) -> msgspec.Raw:
    fields: dict[str, Any] = _Fields.decode(raw)
    return msgspec.Raw(msgspec.json.encode({**fields, "cache_control": control}))
