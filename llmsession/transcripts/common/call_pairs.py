"""Calls and their results: each call gets an id of its own, and each result finds its call.

The rules stand in ``assembly``, which alone uses this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from llmsession.turns.blocks import block_type, encode_json

from .record import Record

__all__ = ["Call", "CallPairs", "clean_call_id"]

_NOT_IN_CALL_IDS = re.compile(r"[^a-zA-Z0-9_-]+")


def clean_call_id(call_id: str) -> str:
    """*call_id* with the characters alone that providers accept; ``call`` if none is left."""
    return _NOT_IN_CALL_IDS.sub("_", call_id) or "call"


class Call(msgspec.Struct, eq=False):
    """A call: its id as recorded, its id here, and its result, found in a message."""

    recorded_id: str
    id: str
    reply: int
    result: bytes | None = None
    answered_at: int = -1


class CallPairs:
    """The calls and results in the *blocks* of messages, by the index of the message. A call whose
    id is new is renamed in *blocks*. *note* and *leave_out* tell of what is not as recorded.
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
        """By message: the calls that it answers, by their reply."""
        self.texts: list[list[bytes]] = [[] for _ in blocks]
        """By message: its blocks other than results."""
        self._number_calls(used_ids)
        self._pair_results()

    def _number_calls(self, used: set[str]) -> None:
        """Give each call an id that no other call has, and that every provider accepts."""
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
                    unique = f"{base}_{suffixes[base]}"
                used.add(unique)
                if unique != recorded_id:
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
            self._note(index, "duplicate", f"the result of call {call_id} stands here again")
        else:
            detail = f"call {call_id} has its result; the first one stays"
            self._leave_out(index, [raw], "duplicate", detail)

    def _call_for(self, index: int, call_id: str) -> Call | None:
        unanswered = self._unanswered.get(call_id, [])
        before = [call for call in unanswered if call.reply < index]
        if before:
            newest = max(call.reply for call in before)
            return next(call for call in before if call.reply == newest)
        # Nothing before it: a result can be recorded before its call.
        after = (call for call in unanswered if call.reply > index)
        return next(after, self._answered.get(call_id))


def _why_renamed(call_id: str) -> str:
    if not call_id:
        return "it has no id"
    valid = call_id == clean_call_id(call_id)
    return "its id was used before" if valid else "no provider accepts its id"
