"""Gemini's own token count, through its SDK, for a provider that reaches Gemini in another way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmsession.errors import need_package
from llmsession.turns.blocks import (
    Block,
    DocumentBlock,
    ImageBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    parse_blocks,
)
from llmsession.turns.request import Request

from .blocking import COUNT_TIMEOUT_S, BlockingTokens, fields_of, without_prefix

__all__ = ["GeminiTokens", "gemini_request"]

_PREFIXES = ("models/", "google/")
_NOTHING = {"role": "user", "parts": [{"text": "."}]}


class GeminiTokens(BlockingTokens):
    """Counts with ``countTokens``, of the Gemini API or of Vertex. ``CountedProvider`` adds it to a
    provider.

    - *api_key*: without one the SDK reads GOOGLE_API_KEY and GEMINI_API_KEY.
    - *base_url* is another server that speaks the same protocol.
    - *client_options* go to the SDK's client. ``vertexai=True`` among them selects Vertex.
    - *client* is a ``google.genai.Client`` of your own. It replaces all other arguments.

    System text, tools, calls, results and images are counted. Thinking is not, because Gemini is
    not sent the thinking of earlier replies. Raises InvalidConfig if google-genai is not installed.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client_options: Mapping[str, Any] | None = None,
        client: Any | None = None,
    ) -> None:
        need_package("google.genai", "GeminiTokens", "llmsession[gemini]")
        options = {**(client_options or {}), **({"api_key": api_key} if api_key else {})}

        def make() -> Any:
            from google import genai

            http: dict[str, Any] = {
                "timeout": int(COUNT_TIMEOUT_S * 1000),
                "retry_options": {"attempts": 1},
                **({"base_url": base_url} if base_url else {}),
                # The other version of the Gemini API counts neither system text nor tools.
                **({} if options.get("vertexai") else {"api_version": "v1beta"}),
            }
            return genai.Client(**{"http_options": http, **options})

        super().__init__("gemini", client=client, make=make, options=options)

    async def count_tokens(self, request: Request) -> int:
        """Gemini's own count of the prompt of *request*, in tokens. It costs one request, sent from
        a thread. Raises ProviderError. Can be cancelled.
        """
        model = without_prefix(request.model, _PREFIXES)

        def ask(client: Any) -> object:
            whole = gemini_request(request)
            if not client.vertexai:
                named = {"model": f"models/{model}", **whole}
                whole = {"contents": [], "generateContentRequest": named}
            # Outside Vertex the SDK's own parameters leave out system text and tools, so the body
            # is passed as it is.
            config = {"http_options": {"extra_body": whole}}
            answer = client.models.count_tokens(model=model, contents=[_NOTHING], config=config)
            return answer.total_tokens

        return await self._counted(ask)


def gemini_request(request: Request) -> dict[str, Any]:
    """*request* in the JSON of Gemini's REST interface: contents, system instruction and tools.
    Raises msgspec's errors for content that is not JSON.
    """
    names: dict[str, str] = {}
    contents = []
    for message in request.messages:
        parts = [part for block in parse_blocks(message.body) for part in _parts(block, names)]
        if parts:
            role = "model" if message.role == "assistant" else "user"
            contents.append({"role": role, "parts": parts})
    body: dict[str, Any] = {"contents": contents or [_NOTHING]}
    if request.system:
        body["systemInstruction"] = {"parts": [{"text": request.system}]}
    if request.tools:
        declarations = []
        for raw in request.tools:
            tool = fields_of(raw)
            declarations.append({
                "name": tool.get("name"), "description": tool.get("description", ""),
                "parametersJsonSchema": tool.get("input_schema", {"type": "object"}),
            })  # fmt: skip
        body["tools"] = [{"functionDeclarations": declarations}]
    return body


def _parts(block: Block, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The Gemini parts that *block* becomes. *names* maps the ids of the calls so far to tool
    names.
    """
    match block:
        case TextBlock(text=text):
            if text:
                yield {"text": text}
        case ToolUseBlock(id=call_id, name=name, input=arguments):
            names[call_id] = name
            yield {"functionCall": {"name": name, "args": arguments}}
        case ToolResultBlock(tool_use_id=call_id):
            name = names.get(call_id, "tool")
            yield {"functionResponse": {"name": name, "response": {"result": block.text}}}
            if isinstance(block.content, list):
                for part in block.content:
                    if isinstance(part, dict) and part.get("type") in ("image", "document"):
                        yield from _media(part.get("source"))
        case ImageBlock(source=source) | DocumentBlock(source=source):
            yield from _media(source)
        case ThinkingBlock() | RedactedThinkingBlock():
            return
        case _:
            yield {"text": bytes(block.raw).decode("utf-8", "replace")}


def _media(source: Any) -> Iterator[dict[str, Any]]:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(held)}:
            yield {"inlineData": {"mimeType": kind, "data": held}}
        case {"type": "url", "url": str(url)}:
            yield {"fileData": {"fileUri": url}}
        case {"type": "text", "data": str(text)}:
            yield {"text": text}
