"""Pairs calls with results: each call gets an id of its own, and each result finds its call.

``assembly`` explains the rules. An id that a provider would refuse makes every later request
invalid. It is replaced in the call and its result by an id that is derived from it, always in the
same way. The message keeps the recorded id in ``extra``, under ``RECORDED_IDS``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from llmsession.turns.blocks import block_type, encode_json, join_blocks, split_blocks
from llmsession.turns.messages import Message

from .record import Record

__all__ = [
    "MAX_CALL_ID_CHARS",
    "RECORDED_IDS",
    "Call",
    "CallPairs",
    "clean_call_id",
    "clean_name",
    "with_usable_calls",
]

MAX_CALL_ID_CHARS = 64
"""The longest call id that all providers accept, except OpenAI's chat interface. The provider for
that interface shortens ids when it sends them.
"""
RECORDED_IDS = "recorded_call_ids"
"""The field of a message's ``extra`` that maps the new ids of its renamed calls to the recorded
ones.
"""

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
_DIGEST_CHARS = 12


def clean_name(name: str) -> str:
    """*name*, reduced to the characters that providers accept; ``call`` if none is left."""
    return _NOT_IN_NAMES.sub("_", name) or "call"


def clean_call_id(call_id: str) -> str:
    """*call_id* if providers accept it, else an acceptable id that is derived from it.

    Equal ids give equal results. The end of an id that is too long is replaced by a digest of the
    whole.
    """
    clean = clean_name(call_id)
    if len(clean) <= MAX_CALL_ID_CHARS:
        return clean
    digest = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{clean[: MAX_CALL_ID_CHARS - _DIGEST_CHARS - 1]}_{digest}"


def _numbered(base: str, number: int) -> str:
    suffix = f"_{number}"
    return base[: MAX_CALL_ID_CHARS - len(suffix)] + suffix


class Call(msgspec.Struct, eq=False):
    """A call: its recorded id, its id here, and its result with the index of the message that holds
    it.
    """

    recorded_id: str
    id: str
    reply: int
    result: bytes | None = None
    answered_at: int = -1


class CallPairs:
    """The calls and results in the *blocks* of messages, by the index of the message.

    A call that gets a new id is renamed in *blocks*. *note* and *leave_out* are called for whatever
    differs from the recording.
    """

    def __init__(
        self,
        blocks: list[list[bytes]],
        used_ids: set[str],
        note: Callable[[int, str, str], None],
        leave_out: Callable[[int, Sequence[bytes], str, str], None],
    ) -> None:
        self._blocks = blocks
        self._note = note
        self._leave_out = leave_out
        self._unanswered: dict[str, list[Call]] = {}
        self._answered: dict[str, Call] = {}
        self.calls: list[list[Call]] = [[] for _ in blocks]
        self.results: list[dict[int, list[Call]]] = [{} for _ in blocks]
        """For each message, the calls that it answers, by the index of their reply."""
        self.renamed: list[dict[str, str]] = [{} for _ in blocks]
        """For each message, the recorded ids of its renamed calls, by their new ids."""
        self.texts: list[list[bytes]] = [[] for _ in blocks]
        """For each message, its blocks other than results."""
        self._number_calls(used_ids)
        self._pair_results()

    def _number_calls(self, used: set[str]) -> None:
        """Give each call an id that no other call has and that every provider accepts."""
        recorded_ids = {
            Record.of(raw).text("id") or ""
            for blocks in self._blocks
            for raw in blocks
            if block_type(raw) == "tool_use"
        }
        suffixes: dict[str, int] = {}
        for index, blocks in enumerate(self._blocks):
            for place, raw in enumerate(blocks):
                if block_type(raw) != "tool_use":
                    continue
                block = Record.of(raw)
                recorded_id = block.text("id") or ""
                base = unique = clean_call_id(recorded_id)
                while unique in used or (unique != recorded_id and unique in recorded_ids):
                    suffixes[base] = suffixes.get(base, 1) + 1
                    unique = _numbered(base, suffixes[base])
                used.add(unique)
                if unique != recorded_id:
                    if recorded_id:
                        self.renamed[index][unique] = recorded_id
                    blocks[place] = encode_json({**block.fields, "id": unique})
                    detail = f"call {recorded_id} is {unique} here: {_why_renamed(recorded_id)}"
                    self._note(index, "renamed_call", detail)
                self.calls[index].append(Call(recorded_id or unique, unique, index))

    def _pair_results(self) -> None:
        """Find the call of each result."""
        for calls in self.calls:
            for call in calls:
                self._unanswered.setdefault(call.recorded_id, []).append(call)
        for index, blocks in enumerate(self._blocks):
            for raw in blocks:
                if block_type(raw) == "tool_result":
                    self._pair_result(index, raw)
                else:
                    self.texts[index].append(raw)

    def _pair_result(self, index: int, raw: bytes) -> None:
        result = Record.of(raw)
        call_id = result.text("tool_use_id") or ""
        call = self._call_for(index, call_id)
        if call is None:
            detail = f"no call {call_id} in the recording"
            self._leave_out(index, [raw], "orphan_result", detail)
        elif call.result is None:
            self._unanswered[call_id].remove(call)
            self._answered[call_id] = call
            renamed = encode_json({**result.fields, "tool_use_id": call.id})
            call.result = raw if call.id == call_id else renamed
            call.answered_at = index
            self.results[index].setdefault(call.reply, []).append(call)
        elif call.result == raw:
            self._note(index, "duplicate", f"the result of call {call_id} is repeated here")
        else:
            detail = f"call {call_id} has its result; the first one stays"
            self._leave_out(index, [raw], "duplicate", detail)

    def _call_for(self, index: int, call_id: str) -> Call | None:
        unanswered = self._unanswered.get(call_id, [])
        before = [call for call in unanswered if call.reply < index]
        if before:
            newest = max(call.reply for call in before)
            return next(call for call in before if call.reply == newest)
        # No call before it: a result can be recorded before its call.
        after = (call for call in unanswered if call.reply > index)
        return next(after, self._answered.get(call_id))


def _why_renamed(call_id: str) -> str:
    if not call_id:
        return "it has no id"
    valid = call_id == clean_call_id(call_id)
    return "its id was used before" if valid else "no provider accepts its id"


_ID_FIELDS = {"tool_use": "id", "tool_result": "tool_use_id"}


def with_usable_calls(
    messages: Sequence[Message], note: Callable[[Message, str], None] = lambda message, detail: None
) -> tuple[Message, ...]:
    """*messages*, with call ids that no provider accepts replaced in calls and results.

    Unaffected messages are the same objects. *note* is called with a message and a description, for
    each call that gets a new id. Equal ids stay equal, and different ids stay different.
    """
    recorded_ids = list(dict.fromkeys(_call_ids(messages)))
    used = {call_id for call_id in recorded_ids if call_id == clean_call_id(call_id)}
    new_ids: dict[str, str] = {}
    for call_id in recorded_ids:
        if call_id and call_id not in used:
            base = unique = clean_call_id(call_id)
            number = 1
            while unique in used:
                number += 1
                unique = _numbered(base, number)
            used.add(unique)
            new_ids[call_id] = unique
    if not new_ids:
        return tuple(messages)
    return tuple(_with_new_ids(message, new_ids, note) for message in messages)


def _call_ids(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        for raw in split_blocks(message.body):
            field = _ID_FIELDS.get(block_type(raw))
            if field is not None:
                yield Record.of(raw).text(field) or ""


def _with_new_ids(
    message: Message, new_ids: dict[str, str], note: Callable[[Message, str], None]
) -> Message:
    raws = [bytes(raw) for raw in split_blocks(message.body)]
    renamed: dict[str, str] = {}
    is_changed = False
    for index, raw in enumerate(raws):
        kind, block = block_type(raw), Record.of(raw)
        recorded_id = block.text(_ID_FIELDS.get(kind, "")) or ""
        if recorded_id not in new_ids:
            continue
        is_changed = True
        new_id = new_ids[recorded_id]
        raws[index] = encode_json({**block.fields, _ID_FIELDS[kind]: new_id})
        if kind == "tool_use":
            renamed[new_id] = recorded_id
            note(message, f"call {recorded_id} is {new_id} here: {_why_renamed(recorded_id)}")
    if not is_changed:
        return message
    extra = message.extra
    if renamed:
        fields = Record.of(message.extra).fields
        known = Record.of(fields.get(RECORDED_IDS)).fields
        extra = msgspec.Raw(encode_json({**fields, RECORDED_IDS: {**known, **renamed}}))
    return msgspec.structs.replace(message, body=join_blocks(raws), extra=extra)
