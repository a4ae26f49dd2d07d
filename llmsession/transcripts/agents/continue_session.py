"""Continue's session files: one JSON document, with results inside the assistant's item.

- The results of an item's calls are in its ``toolCallStates``. The command line writes them as
  messages of their own, too. A cancelled call has no result.
- A thinking item comes before the reply that it belongs to.
- Context items were sent before the text that they belong to, so they become blocks before it.
- The newest ``conversationSummary`` is the conversation's ``summary``. The messages that it
  summarises are kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmsession.errors import TranscriptError
from llmsession.turns.blocks import encode_json, text_block

from ..common.content_parts import has_other_fields, openai_blocks, without_unsigned
from ..common.conversation import Conversation, Note
from ..common.document import read_document
from ..common.format import Probe
from ..common.jsonl import clip
from ..common.message_list import MessageList, SystemTexts
from ..common.record import Record
from ..common.recorded_message import RecordedMessage, call_block, result_block, summary_mark
from ..common.writing import results_id

__all__ = ["FORMAT", "looks_continue", "read_continue"]

FORMAT = "continue"

_KNOWN = {"role", "content", "toolCalls", "toolCallId", "id"}
_KNOWN_STATE = {"toolCallId", "toolCall", "status", "output"}
_KNOWN_SESSION = {"sessionId", "title", "history"}


def looks_continue(probe: Probe) -> bool:
    """Is the file a session of Continue?"""
    history = probe.fields.get("history")
    if "sessionId" not in probe.fields or not isinstance(history, list):
        return False
    return not history or any(
        isinstance(record, dict) and "message" in record for record in history
    )


def read_continue(raw: bytes, strict: bool = False) -> tuple[Conversation, ...]:
    """The one conversation in *raw*, a file's bytes.

    Raises TranscriptError if *raw* is not a session. With *strict*, also for an item that cannot be
    read.
    """
    notes: list[Note] = []
    whole = Record.of(read_document(raw, notes, strict=strict), 1)
    if "sessionId" not in whole.fields or "history" not in whole.fields:
        raise TranscriptError("not a Continue session: no sessionId with a history in it")
    history = _History(notes, strict)
    for item in whole.records("history"):
        history.take(item)
    history.end()
    conversation = history.listed.conversation(
        whole.text("sessionId") or FORMAT,
        FORMAT,
        whole.text("title") or "",
        whole.rest(_KNOWN_SESSION),
    )
    return (conversation,)


class _History:
    def __init__(self, notes: list[Note], strict: bool) -> None:
        self.listed = MessageList([], SystemTexts(), notes)
        self.strict = strict
        self.thinking: list[bytes] = []
        self.thought_at = 0

    def note(self, number: int, what: str, detail: str = "", *, visible: bool = False) -> None:
        self.listed.notes.append(Note(number, what, detail, visible))

    def take(self, item: Record) -> None:
        message, number = item.record("message"), item.number
        summary = item.text("conversationSummary")
        if summary:
            self.note(number, "summary", clip(summary))
        self._take(item, message)
        # Continue does not send the messages before it, nor the message that it is stored at.
        self.listed.messages += summary_mark(summary or "")

    def _take(self, item: Record, message: Record) -> None:
        messages, number = self.listed.messages, item.number
        match message.text("role"):
            case "user":
                self.end()
                messages.append(self._user(item, message))
            case "assistant":
                messages += self._assistant(item, message)
            case "thinking":
                self.thinking.append(_thinking(message))
                self.thought_at = number
            case "tool":
                messages.append(self._tool(item, message))
            case "system" | "developer":
                raw = item.raw("message") or b"{}"
                self.listed.notes.append(self.listed.system.add(len(messages), raw, number))
            case role if self.strict:
                raise TranscriptError(f"item {number}: a message of an unknown role {role!r}")
            case role:
                detail = f"a message of an unknown role {clip(str(role))!r}"
                self.note(number, "bad_message", detail, visible=True)

    def end(self) -> None:
        """Keep thinking that no reply followed: it is not a message."""
        if self.thinking:
            extra = {"thinking": [msgspec.Raw(raw) for raw in self.thinking]}
            message = RecordedMessage(
                number=self.thought_at, role="assistant", blocks=[], extra=extra
            )
            self.listed.messages.append(message)
            self.thinking = []

    def _recorded(
        self, item: Record, message: Record, blocks: list[bytes], extra: dict[str, Any]
    ) -> RecordedMessage:
        thoughts = without_unsigned(self.thinking, item.number, self.listed.notes, extra)
        self.thinking = []
        return RecordedMessage(
            number=item.number,
            role="assistant",
            blocks=thoughts + blocks,
            id=message.text("id") or "",
            extra=extra,
        )

    def _extra(self, item: Record, message: Record, known: set[str]) -> dict[str, Any]:
        extra = item.rest({"message"} | known)
        rest: dict[str, Any] = message.rest(_KNOWN)
        if has_other_fields(message.raw("content")):
            extra["parts"] = msgspec.Raw(message.raw("content") or b"null")
        return {**extra, "message": rest} if rest else extra

    def _user(self, item: Record, message: Record) -> RecordedMessage:
        number = item.number
        blocks = _context_blocks(item)
        blocks += openai_blocks(message.raw("content"), number, self.listed.notes)
        return RecordedMessage(
            number=number,
            role="user",
            blocks=blocks,
            id=message.text("id") or "",
            extra=self._extra(item, message, set()),
        )

    def _assistant(self, item: Record, message: Record) -> list[RecordedMessage]:
        number, id = item.number, message.text("id") or ""
        blocks = openai_blocks(message.raw("content"), number, self.listed.notes)
        rests: dict[str, Any] = {}
        called: set[str] = set()
        for call in message.records("toolCalls"):
            function, call_id = call.record("function"), call.text("id") or ""
            called.add(call_id)
            blocks.append(_call(call_id, function))
        answers = []
        for state in item.records("toolCallStates"):
            call, call_id = state.record("toolCall"), state.text("toolCallId") or ""
            if call_id not in called:
                called.add(call_id)
                blocks.append(_call(call_id, call.record("function")))
            rest: dict[str, Any] = state.rest(_KNOWN_STATE)
            rest["status"] = msgspec.Raw(state.raw("status") or b"null")
            output = _output(state)
            if output is not None and not _is_plain(state):
                rest["output"] = msgspec.Raw(state.raw("output") or b"null")
            rests[call_id] = rest
            if output is None:
                continue
            failed = True if state.text("status") == "errored" else None
            block = result_block(call_id, output, is_error=failed)
            answers.append(
                RecordedMessage(number=number, role="user", blocks=[block], id=results_id(id))
            )
        extra = self._extra(item, message, {"toolCallStates"})
        if rests:
            extra["states"] = rests
        return [self._recorded(item, message, blocks, extra), *answers]

    def _tool(self, item: Record, message: Record) -> RecordedMessage:
        content = message.text("content")
        result: str | list[bytes] = content or ""
        if content is None:
            result = openai_blocks(message.raw("content"), item.number, self.listed.notes)
        block = result_block(message.text("toolCallId") or "", result)
        extra = self._extra(item, message, set())
        id = message.text("id") or ""
        return RecordedMessage(number=item.number, role="user", blocks=[block], id=id, extra=extra)


def _call(id: str, function: Record) -> bytes:
    arguments = function.raw("arguments")
    is_text = arguments is not None and arguments.startswith(b'"')
    return call_block(
        id, function.text("name") or "", function.text("arguments") if is_text else arguments
    )


def _thinking(message: Record) -> bytes:
    hidden = message.text("redactedThinking")
    if hidden:
        return encode_json({"type": "redacted_thinking", "data": hidden})
    text = message.text("content") or ""
    fields = {"type": "thinking", "thinking": text, "signature": message.text("signature") or ""}
    return encode_json(fields)


def _context_blocks(item: Record) -> list[bytes]:
    contents = (record.text("content") for record in item.records("contextItems"))
    return [text_block(content) for content in contents if content]


def _output(state: Record) -> str | None:
    """The output of a call; None if it has none."""
    contents = [record.text("content") or "" for record in state.records("output")]
    if not contents and state.text("status") not in ("done", "errored"):
        return None
    return "\n\n".join(contents)


def _is_plain(state: Record) -> bool:
    output = state.records("output")
    return len(output) == 1 and set(output[0].fields) == {"content"}
