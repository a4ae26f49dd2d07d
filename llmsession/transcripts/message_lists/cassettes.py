"""Recorded requests ("cassettes"): what was sent to a provider, and its answer.

``read_exchanges`` returns each request with the usage that the provider reported for it: exact
token counts of known prompts. ``read_cassette`` returns the conversations: the messages of a
request, and the reply. Each request is one conversation, because each contains a whole
conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.errors import InvalidMessage, ProviderError, TranscriptError
from llmsession.turns.blocks import encode_json, split_blocks
from llmsession.turns.reply import ReplyBuilder
from llmsession.turns.stream import BlockDelta, BlockStarted, BlockStopped, DeltaKind, ReplyEnded
from llmsession.turns.usage import Usage

from ..common.conversation import Conversation, Note
from ..common.message_list import MessageList
from ..common.record import Record
from ..common.recorded_message import RecordedMessage
from .anthropic_list import (
    anthropic_usage,
    read_anthropic_message,
    read_anthropic_messages,
    system_text,
)
from .cassette_yaml import load_yaml
from .openai_chat import STOP_REASONS, chat_usage, read_chat
from .openai_items import ItemReader

__all__ = ["FORMAT", "Api", "RecordedExchange", "looks_cassette", "read_cassette", "read_exchanges"]

FORMAT = "cassette"

Api: TypeAlias = Literal[
    "anthropic-messages", "anthropic-count-tokens", "openai-chat", "openai-responses", "other"
]
_PATHS: list[tuple[re.Pattern[str], Api]] = [
    (re.compile(r"/v1/messages/count_tokens/?$"), "anthropic-count-tokens"),
    (re.compile(r"/v1/messages/?$"), "anthropic-messages"),
    (re.compile(r"/chat/completions/?$"), "openai-chat"),
    (re.compile(r"/responses/?$"), "openai-responses"),
]
_OK = 200


class RecordedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request and its answer. ``number`` counts the requests of a file from 1.

    ``request`` is the body as JSON, and so is ``response``, unless it was ``streamed``: then it is
    the whole stream as a JSON text. Null means a body that is not JSON. ``usage`` is what the
    provider reported, which for a count of tokens is the prompt alone; None if it reported nothing.
    """

    number: int
    api: Api
    url: str
    status: int
    request: msgspec.Raw
    response: msgspec.Raw
    usage: Usage | None = None
    model: str | None = None
    streamed: bool = False


def looks_cassette(raw: bytes | None) -> bool:
    """Does the file begin as a cassette does?"""
    if raw is None:
        return False
    rows = (row.rstrip() for row in raw[:4096].removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    telling = (row for row in rows if row and not row.startswith((b"#", b"---", b"version:")))
    return next(telling, b"").startswith(b"interactions:")


def read_exchanges(raw: bytes, *, strict: bool = False) -> tuple[RecordedExchange, ...]:
    """All requests in *raw*, a cassette's bytes, in order.

    Raises TranscriptError if *raw* is not a cassette, or if PyYAML is missing. With *strict*, also
    for a request that cannot be read.
    """
    return tuple(exchange for exchange, _, _ in _exchanges(raw, [], strict))


_Answered: TypeAlias = tuple[RecordedExchange, RecordedMessage | None, list[Note]]
"""An exchange, its reply as a message, and the notes on the reply."""


def _exchanges(raw: bytes, notes: list[Note], strict: bool) -> list[_Answered]:
    value = load_yaml(raw)
    rows = value.get("interactions") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        raise TranscriptError("not a cassette: no list of interactions in it")
    exchanges = []
    for number, row in enumerate(rows, 1):
        try:
            exchanges.append(_exchange(number, row))
        except (InvalidMessage, LookupError, TypeError, AttributeError, ValueError) as error:
            if strict:
                raise TranscriptError(
                    f"interaction {number}: it has no request and response"
                ) from error
            notes.append(Note(number, "bad_record", "it has no request and response", visible=True))
    return exchanges


def _exchange(number: int, row: Any) -> _Answered:
    request, response = row["request"], row["response"]
    url = str(request["uri"])
    sent, answered = _body(request), _body(response)
    streamed = answered.startswith(b'"') and "event:" in msgspec.json.decode(answered)[:200]
    api = _api(url)
    status = response["status"]
    whole = _whole_message(msgspec.json.decode(answered)) if streamed else answered
    answer = Record.of(whole, number)
    notes: list[Note] = []
    reply, usage = _reply(api, answer, notes)
    exchange = RecordedExchange(
        number=number,
        api=api,
        url=url,
        status=int(status["code"] if isinstance(status, dict) else status),
        request=msgspec.Raw(sent),
        response=msgspec.Raw(answered),
        usage=usage,
        model=answer.text("model") or Record.of(sent).text("model"),
        streamed=streamed,
    )
    return exchange, reply, notes


def _api(url: str) -> Api:
    path = url.partition("?")[0]
    return next((api for pattern, api in _PATHS if pattern.search(path)), "other")


def _body(half: Any) -> bytes:
    """A body as JSON: decoded, or the text as it was recorded. A text that is not JSON becomes a
    JSON text.
    """
    if half.get("parsed_body") is not None:
        return encode_json(half["parsed_body"])
    body = half.get("body")
    text = body.get("string") if isinstance(body, dict) else body
    if not isinstance(text, str):
        return encode_json(text)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return encode_json(text)
    return text.encode()


# Replies.


def _reply(
    api: Api, answer: Record, notes: list[Note]
) -> tuple[RecordedMessage | None, Usage | None]:
    """The provider's reply, and the usage that it reported."""
    match api:
        case "anthropic-messages":
            messages = read_anthropic_message(answer, notes) if answer.text("role") else None
            return messages, anthropic_usage(answer.record("usage"))
        case "anthropic-count-tokens" if "input_tokens" in answer.fields:
            return None, Usage(input_tokens=answer.count("input_tokens"))
        case "openai-chat":
            return _chat_reply(answer, notes), chat_usage(answer.record("usage"))
        case "openai-responses":
            return _items_reply(answer, notes), chat_usage(answer.record("usage"))
    return None, None


def _chat_reply(answer: Record, notes: list[Note]) -> RecordedMessage | None:
    choices = answer.records("choices")
    if not choices or not choices[0].raw("message"):
        return None
    messages = read_chat([choices[0].raw("message") or b"{}"], notes).messages
    if not messages or messages[0].role != "assistant":
        return None
    stop = choices[0].text("finish_reason")
    messages[0].id = answer.text("id") or ""
    messages[0].stop_reason = STOP_REASONS.get(stop or "", stop)
    messages[0].usage = chat_usage(answer.record("usage"))
    messages[0].created_at = answer.at("created")
    messages[0].model = answer.text("model")
    return messages[0]


def _items_reply(answer: Record, notes: list[Note]) -> RecordedMessage | None:
    items = ItemReader(notes)
    for item in answer.items("output"):
        if not items.add(item, answer.number):
            notes.append(Note(answer.number, "bad_message", "an item without a type", visible=True))
    cut = answer.record("incomplete_details").text("reason")
    stop = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}.get(cut or "", cut)
    reply = items.end_reply(chat_usage(answer.record("usage")), stop)
    if reply is not None:
        reply.id = answer.text("id") or reply.id
        reply.model = answer.text("model")
        reply.created_at = answer.at("created_at")
    return reply


# Streams.


def _whole_message(stream: str) -> bytes:
    """The message that an Anthropic stream made; for OpenAI, the last response in the stream."""
    builder = ReplyBuilder()
    message: dict[str, Any] = {}
    for event in _events(stream):
        kind = event.text("type") or ""
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            return event.raw("response") or b"{}"
        if kind == "message_start":
            message = dict(event.record("message").fields)
        elif kind == "message_delta":
            message |= event.record("delta").fields
            message["usage"] = {
                **Record.of(message.get("usage")).fields,
                **event.record("usage").fields,
            }
            message["usage"] = msgspec.Raw(encode_json(message["usage"]))
        else:
            _feed(builder, event, kind)
    builder.feed(ReplyEnded("end_turn"))
    return encode_json({**message, "content": [msgspec.Raw(b) for b in builder.reply().blocks]})


def _events(stream: str) -> list[Record]:
    rows = (row.removeprefix("data:").strip() for row in stream.split("\n") if row[:5] == "data:")
    events: list[Record] = []
    for index, row in enumerate(rows, 1):
        try:
            msgspec.json.decode(row)
        except (msgspec.DecodeError, RecursionError):
            continue
        events.append(Record.of(row.encode(), index))
    return events


_DELTAS: dict[str, tuple[str, DeltaKind]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}


def _feed(builder: ReplyBuilder, event: Record, kind: str) -> None:
    index = event.count("index")
    delta = event.record("delta")
    try:
        if kind == "content_block_start":
            block = msgspec.Raw(event.raw("content_block") or b"{}")
            builder.feed(BlockStarted(index, block))
        elif kind == "content_block_stop":
            builder.feed(BlockStopped(index))
        elif kind == "content_block_delta" and delta.text("type") == "citations_delta":
            citation = (delta.raw("citation") or b"{}").decode()
            builder.feed(BlockDelta(index, "citation", citation))
        elif kind == "content_block_delta" and delta.text("type") in _DELTAS:
            name, what = _DELTAS[delta.text("type") or ""]
            builder.feed(BlockDelta(index, what, delta.text(name) or ""))
    except ProviderError as error:
        raise ValueError(str(error)) from error


# Conversations.


def read_cassette(raw: bytes, strict: bool = False) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a cassette's bytes: one for each request with messages.

    Raises TranscriptError if *raw* is not a cassette, if no request in it has messages, or if
    PyYAML is missing. With *strict*, also for a request that cannot be read.
    """
    loose: list[Note] = []
    conversations: list[Conversation] = []
    for exchange, reply, notes in _exchanges(raw, loose, strict):
        read = _READERS.get(exchange.api)
        listed = read(exchange, strict) if read is not None else None
        if listed is None or not (listed.messages or reply):
            detail = f"{exchange.api}: {exchange.url.partition('?')[0][:80]}"
            loose.append(Note(exchange.number, "other_request", detail))
            continue
        conversations.append(_conversation(exchange, listed, reply, notes))
    if not conversations:
        raise TranscriptError("no recorded request in it has messages")
    if loose:
        every = tuple(sorted((*conversations[0].notes, *loose), key=lambda note: note.line))
        conversations[0] = msgspec.structs.replace(conversations[0], notes=every)
    return tuple(conversations)


def _conversation(
    exchange: RecordedExchange,
    listed: MessageList,
    reply: RecordedMessage | None,
    notes: Sequence[Note],
) -> Conversation:
    """The conversation of *exchange*: what was sent, *listed*, and the *reply*, with the *notes* on
    it.
    """
    place = len(listed.messages) + 1
    listed.notes.extend(msgspec.structs.replace(note, line=place) for note in notes)
    if reply is not None:
        listed.messages.append(msgspec.structs.replace(reply, number=place))
    elif exchange.status != _OK:
        listed.notes.append(Note(1, "refused_request", f"answered with {exchange.status}"))
    request = Record.of(exchange.request)
    extra = {
        "api": msgspec.Raw(encode_json(exchange.api)),
        "status": msgspec.Raw(encode_json(exchange.status)),
        "request": msgspec.Raw(encode_json(request.rest({"messages", "input"}))),
    }
    if exchange.usage is not None:
        extra["usage"] = msgspec.Raw(encode_json(exchange.usage))
    if "previous_response_id" in request.fields or request.raw("conversation"):
        detail = "the provider holds messages before these"
        listed.notes.append(Note(1, "held_by_provider", detail, visible=True))
    whole = listed.conversation(f"exchange-{exchange.number}", FORMAT, extra=extra)
    instructions = system_text(request.raw("system")) or request.text("instructions") or ""
    texts = "\n\n".join(filter(None, (instructions, whole.system)))
    return msgspec.structs.replace(whole, system=texts)


def _read_anthropic(exchange: RecordedExchange, strict: bool) -> MessageList:
    return read_anthropic_messages(Record.of(exchange.request).items("messages"), [], strict)


def _read_chat(exchange: RecordedExchange, strict: bool) -> MessageList:
    return read_chat(Record.of(exchange.request).items("messages"), [], strict)


def _read_responses(exchange: RecordedExchange, strict: bool) -> MessageList:
    notes: list[Note] = []
    items = ItemReader(notes)
    sent = Record.of(exchange.request).raw("input")
    if sent is not None and sent.startswith(b'"'):
        sent = encode_json([{"role": "user", "content": msgspec.Raw(sent)}])
    listed = sent if sent is not None and sent.startswith(b"[") else b"[]"
    for number, item in enumerate(split_blocks(listed), 1):
        if items.add(item, number):
            continue
        if strict:
            raise TranscriptError(f"interaction {exchange.number}: item {number} has no type")
        notes.append(Note(number, "bad_message", "an item without a type", visible=True))
    items.end_reply()
    return MessageList(items.messages, items.system, notes)


_READERS: dict[Api, Callable[[RecordedExchange, bool], MessageList]] = {
    "anthropic-messages": _read_anthropic,
    "anthropic-count-tokens": _read_anthropic,
    "openai-chat": _read_chat,
    "openai-responses": _read_responses,
}
