"""Gemini CLI's session files: one JSON document; a message contains calls and their results.

A message with calls becomes a reply and a user message with their results. If a notice came between
a reply's text and its calls, the calls are in a message of their own without usage. They are added
to the reply, and the other fields of that message to the reply's ``extra``. Thoughts are unsigned
summaries; they are kept in ``extra`` and never sent. Input tokens include cached ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import block_type, encode_json, split_blocks, text_block
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

from ..common.assembly import assemble
from ..common.conversation import Conversation, Note
from ..common.document import read_document
from ..common.format import Files, Probe
from ..common.jsonl import clip
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, call_block, result_block
from ..common.times import iso_time
from ..common.writing import BESIDE, Attached, attached_results, path_of, plain_text, results_id

__all__ = ["FORMAT", "looks_gemini", "read_gemini", "write_gemini"]

FORMAT = "gemini-cli"

_KNOWN = {"id", "timestamp", "type", "content", "toolCalls", "model"}
_KNOWN_CALL = {"id", "name", "args", "result", "resultId", "blocks"}
_TOLD = {"info", "error", "warning"}
_FAILED = ("error", "cancelled")


def looks_gemini(probe: Probe) -> bool:
    """Is the file a session of Gemini CLI?"""
    messages = probe.fields.get("messages")
    if "sessionId" not in probe.fields or not isinstance(messages, list):
        return False
    kinds = {"user", "gemini", *_TOLD}
    return "projectHash" in probe.fields or any(
        isinstance(message, dict) and message.get("type") in kinds and "role" not in message
        for message in messages
    )


def read_gemini(raw: bytes, strict: bool = False) -> tuple[Conversation, ...]:
    """The one conversation in *raw*, a file's bytes.

    Raises TranscriptError if *raw* is not a session. With *strict*, also for a message that cannot
    be read.
    """
    notes: list[Note] = []
    whole = Record.of(read_document(raw, notes, strict=strict), 1)
    if "sessionId" not in whole.fields or "messages" not in whole.fields:
        raise TranscriptError("not a Gemini CLI session: no sessionId with messages in it")
    messages: list[RecordedMessage] = []
    records: list[msgspec.Raw] = []
    for message, item in zip(whole.records("messages"), whole.items("messages"), strict=True):
        kind = message.text("type")
        if kind == "user":
            messages.append(_user(message, notes))
        elif kind == "gemini" and messages and _goes_on(message, messages[-1]):
            reply, *answers = _reply(message, notes)
            messages[-1] = _with_calls(messages[-1], reply, message)
            messages += answers
            notes.append(Note(message.number, "continued", f"{reply.id} is a part of the reply"))
        elif kind == "gemini":
            messages += _reply(message, notes)
        elif kind in _TOLD:
            records.append(msgspec.Raw(bytes(item)))
            notes.append(Note(message.number, kind, clip(message.text("content") or "")))
        elif strict:
            raise TranscriptError(f"message {message.number}: unknown type {clip(str(kind))!r}")
        else:
            detail = f"unknown type {clip(str(kind))!r}"
            notes.append(Note(message.number, "bad_message", detail, visible=True))
    conversation = assemble(
        messages,
        session=whole.text("sessionId") or FORMAT,
        format=FORMAT,
        notes=notes,
        title=whole.text("summary") or "",  # one line for the list of sessions
        extra=whole.rest({"sessionId", "messages", "summary"}),
        records=tuple(records),
    )
    return (conversation,)


def _blocks(message: Record) -> list[bytes]:
    content = message.raw("content")
    text = plain_text(content)
    if text is not None:
        return [text_block(text)] if text else []
    blocks = []
    for part, raw in zip(message.records("content"), message.items("content"), strict=True):
        text_part = part.text("text")
        inline = part.record("inlineData")
        if text_part is not None and block_type(raw) in ("", "text"):
            blocks.append(text_block(text_part))
        elif inline.text("data") is not None and (inline.text("mimeType") or "").startswith(
            "image/"
        ):
            source = {"type": "base64", "media_type": inline.text("mimeType")}
            source["data"] = inline.text("data")
            blocks.append(encode_json({"type": "image", "source": source}))
        elif block_type(raw):
            blocks.append(bytes(raw))
        else:
            blocks.append(encode_json({"type": "gemini_part", "part": msgspec.Raw(bytes(raw))}))
    return blocks


def _user(message: Record, notes: list[Note]) -> RecordedMessage:
    return RecordedMessage(
        number=message.number,
        role="user",
        blocks=_blocks(message),
        id=message.text("id") or "",
        created_at=message.at("timestamp"),
        extra=message.rest(_KNOWN),
    )


def _reply(message: Record, notes: list[Note]) -> list[RecordedMessage]:
    number, id, time = message.number, message.text("id") or "", message.at("timestamp")
    blocks = _blocks(message)
    extra = message.rest(_KNOWN)
    if message.items("thoughts"):
        notes.append(Note(number, "reasoning", "unsigned thoughts: kept in extra, never sent"))
    answers: list[RecordedMessage] = []
    rests: dict[str, Any] = {}
    for call in message.records("toolCalls"):
        call_id = call.text("id") or f"call_{number}_{call.number}"
        blocks.append(call_block(call_id, call.text("name") or "", call.raw("args")))
        rest = call.rest(_KNOWN_CALL)
        content, is_plain = _result(call, call_id)
        if not is_plain:
            rest["result"] = msgspec.Raw(call.raw("result") or b"null")
        rests |= {call_id: rest} if rest else {}
        if content is None:
            continue
        failed = True if call.text("status") in _FAILED else None
        answers.append(
            RecordedMessage(
                number=number,
                role="user",
                blocks=[result_block(call_id, content, is_error=failed)],
                id=call.text("resultId") or results_id(id),
                created_at=call.at("timestamp") or time,
            )
        )
    if rests:
        extra["calls"] = rests
    reply = RecordedMessage(
        number=number,
        role="assistant",
        blocks=blocks,
        id=id,
        created_at=time,
        model=message.text("model"),
        provider="google",
        usage=_usage(message.record("tokens")),
        extra=extra,
    )
    return [reply, *answers]


def _goes_on(message: Record, last: RecordedMessage) -> bool:
    """Does *message* contain only the calls of *last*, a reply? Then it has no usage of its own."""
    is_open = last.role == "assistant" and "calls" not in last.extra
    return (
        is_open
        and bool(message.items("toolCalls"))
        and not message.text("content")
        and _usage(message.record("tokens")) is None
    )


def _with_calls(reply: RecordedMessage, calls: RecordedMessage, message: Record) -> RecordedMessage:
    fields = message.rest(_KNOWN - {"id", "timestamp"})
    extra = reply.extra | {name: calls.extra[name] for name in ("calls",) if name in calls.extra}
    return msgspec.structs.replace(
        reply,
        blocks=reply.blocks + calls.blocks,
        completed_at=max(reply.created_at, calls.created_at),
        extra=extra | {"continued": msgspec.Raw(encode_json(fields))},
    )


def _result(call: Record, id: str) -> tuple[str | list[bytes] | None, bool]:
    """The result of a call, and whether its plain form is complete."""
    blocks = call.items("blocks")
    if blocks:
        return [bytes(raw) for raw in blocks], True
    result = call.items("result")
    if not result:
        return None, call.raw("result") is None
    response = Record.of(result[0]).record("functionResponse")
    inner = response.record("response")
    output = inner.text("output")
    if len(result) == 1 and output is not None:
        plain = _function_response(id, call.text("name") or "", output)
        return output, encode_json(plain) == bytes(call.raw("result") or b"")
    texts = [_response_text(Record.of(item).record("functionResponse")) for item in result]
    return "\n".join(texts) if all(texts) else (call.raw("result") or b"").decode(), False


def _response_text(response: Record) -> str:
    inner = response.record("response")
    return inner.text("output") or inner.text("error") or (response.raw("response") or b"").decode()


def _function_response(id: str, name: str, output: str) -> list[dict[str, Any]]:
    return [{"functionResponse": {"id": id, "name": name, "response": {"output": output}}}]


def _usage(tokens: Record) -> Usage | None:
    if not tokens.count("total") and not tokens.count("input"):
        return None
    prompt, cached = tokens.count("input"), tokens.count("cached")
    cached = min(prompt, cached)
    return Usage(
        input_tokens=prompt - cached,
        output_tokens=tokens.count("output") + tokens.count("thoughts"),
        cache_read_tokens=cached,
    )


# Writing.


def write_gemini(conversations: Sequence[Conversation]) -> Files:
    """A session file for each conversation."""
    return {
        path_of(index, conversation, ".json"): encode_json(_document(conversation)) + b"\n"
        for index, conversation in enumerate(conversations)
    }


def _document(conversation: Conversation) -> dict[str, Any]:
    own = conversation.format in (FORMAT, "own")
    extra = {k: raw for k, raw in conversation.extra.items() if k not in BESIDE} if own else {}
    results = attached_results(conversation.messages)
    rows = [row for item in conversation.messages for row in _written(item, results, own)]
    times = [item.created_at for item in conversation.messages] or [0.0]
    fields: dict[str, Any] = {
        "startTime": iso_time(min(times)),
        "lastUpdated": iso_time(max(times)),
        **extra,
        "sessionId": conversation.id,
    }
    if conversation.title:
        fields["summary"] = conversation.title
    records = conversation.records if conversation.format == FORMAT else ()
    return fields | {"messages": [*rows, *records]}


def _written(message: Message, results: dict[str, Attached], own: bool) -> list[dict[str, Any]]:
    extra: dict[str, Any] = dict(Record.of(message.extra).fields) if own else {}
    raws = [bytes(raw) for raw in split_blocks(message.body)]
    rests = Record.of(extra.pop("calls", None))
    others = [raw for raw in raws if block_type(raw) not in ("tool_use", "tool_result")]
    if message.is_user and not others:
        return []
    continued = extra.pop("continued", None)
    fields: dict[str, Any] = {
        "id": message.id,
        "timestamp": iso_time(message.created_at),
        "type": "user" if message.is_user else "gemini",
        "content": _content(others),
    }
    if message.is_assistant:
        if message.model:
            fields["model"] = message.model
        if message.usage and "tokens" not in extra:
            fields["tokens"] = _tokens(message.usage)
        calls = [Record.of(raw) for raw in raws if block_type(raw) == "tool_use"]
        written = [_call(message, call, rests, results) for call in calls]
        if written and continued is not None:
            rest = {"type": "gemini", "content": "", "toolCalls": written}
            return [{**extra, **fields}, {**Record.of(continued).fields, **rest}]
        if written:
            fields["toolCalls"] = written
    return [{**extra, **fields}]


def _content(blocks: Sequence[bytes]) -> Any:
    texts = [Record.of(raw).text("text") for raw in blocks if block_type(raw) == "text"]
    if not blocks or (len(blocks) == len(texts) == 1):
        return texts[0] if texts else ""
    return [_part(raw) for raw in blocks]


def _part(raw: bytes) -> Any:
    block = Record.of(raw)
    match block_type(raw):
        case "text":
            return {"text": block.text("text")}
        case "gemini_part" if block.raw("part"):
            return msgspec.Raw(block.raw("part") or b"{}")
    return msgspec.Raw(raw)


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "input": usage.prompt_tokens,
        "output": usage.output_tokens,
        "cached": usage.cache_read_tokens,
        "thoughts": 0,
        "tool": 0,
        "total": usage.prompt_tokens + usage.output_tokens,
    }


def _call(
    message: Message, call: Record, rests: Record, results: dict[str, Attached]
) -> dict[str, Any]:
    id, name = call.text("id") or "", call.text("name") or ""
    rest: dict[str, Any] = dict(rests.record(id).fields)
    fields = {"id": id, "name": name, "args": msgspec.Raw(call.raw("input") or b"{}")}
    answer = results.get(id)
    if answer is None:
        return {"status": "cancelled", **rest, **fields}
    content = Record.of(answer.block).raw("content")
    text = plain_text(content)
    if text is None:
        fields["blocks"] = msgspec.Raw(content or b"[]")
    if "result" not in rest:
        rest["result"] = _function_response(id, name, text or "")
    if answer.message != results_id(message.id):
        rest["resultId"] = answer.message
    if answer.time != message.completed_at and "timestamp" not in rest:
        rest["timestamp"] = iso_time(answer.time)
    return {"status": "error" if answer.is_error else "success", **rest, **fields}
