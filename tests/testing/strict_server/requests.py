"""Request bodies for the tests of the strict server. Nothing here was recorded."""

from __future__ import annotations

from typing import Any

from llmsession.testing import ScriptedReply
from llmsession.testing.strict_server.model.models import COMPLETION_MODELS, MESSAGE_MODELS
from llmsession.testing.strict_server.model.refusal import Api, Refusal
from llmsession.testing.strict_server.model.request import MessageRequest
from llmsession.testing.strict_server.model.usage import Cost
from llmsession.testing.strict_server.replies.received import Received, Reply
from llmsession.testing.strict_server.rules.signatures import Signer
from llmsession.testing.strict_server.rules.validation import (
    AcceptedMessage,
    validate_chat,
    validate_message,
)

OLD, BOUND, NEW = "claude-sonnet-4-0", "claude-opus-5-5", "claude-opus-4-8"
LS: dict[str, Any] = {"name": "ls", "input_schema": {"type": "object", "properties": {}}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [_block(block) for block in blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [_block(block) for block in blocks]}


def system(*blocks: Any) -> dict[str, Any]:
    return {"role": "system", "content": [_block(block) for block in blocks]}


def _block(block: Any) -> Any:
    return {"type": "text", "text": block} if isinstance(block, str) else block


def tool_use(call_id: str, name: str = "ls", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}, **fields}


def tool_result(call_id: str, content: Any = "done", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def server_use(call_id: str, name: str = "web_search") -> dict[str, Any]:
    return {"type": "server_tool_use", "id": call_id, "name": name, "input": {}}


def server_result(call_id: str, kind: str = "web_search_tool_result") -> dict[str, Any]:
    return {"type": kind, "tool_use_id": call_id, "content": []}


def thinking(text: str = "hm", signature: str = "strict.x") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def body(*messages: dict[str, Any], model: str = "test-model", **fields: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 100, "messages": list(messages), **fields}


def with_tools(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return body(*messages, tools=[LS], **fields)


def refused(
    request: Any,
    *,
    counting: bool = False,
    betas: tuple[str, ...] = (),
    signer: Signer | None = None,
) -> str | None:
    """What a Messages request is refused with; None if it is accepted."""
    result = validate_message(
        request, MESSAGE_MODELS, betas=betas, counting=counting, signer=signer
    )
    return result.message if isinstance(result, Refusal) else None


def accepted(request: Any, *, signer: Signer | None = None) -> MessageRequest:
    result = validate_message(request, MESSAGE_MODELS, signer=signer)
    assert isinstance(result, AcceptedMessage), result
    return result.request


def chat_refused(request: Any) -> Refusal | None:
    """What a chat completions request is refused with; None if it is accepted."""
    result = validate_chat(request, COMPLETION_MODELS)
    return result if isinstance(result, Refusal) else None


def chat(*messages: dict[str, Any], model: str = "test-model", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(messages), **fields}


def received(conversation: str = "", *messages: Any, **fields: Any) -> Received:
    """A request as the server has written it down."""
    return Received(
        number=0, method="POST", path="/v1/messages", headers={}, conversation=conversation,
        body={"model": "m", "messages": list(messages), **fields},
    )  # fmt: skip


def reply_of(
    api: Api, blocks: tuple[dict[str, Any], ...], cost: Cost, *, size: int = 3,
    stop_reason: str = "end_turn", **fields: Any,
) -> Reply:  # fmt: skip
    """A reply on its way out, in deltas of *size* characters."""
    script = ScriptedReply(stop_reason=stop_reason, delta_chars=size)
    return Reply(received(), api, script, blocks, cost, **fields)
