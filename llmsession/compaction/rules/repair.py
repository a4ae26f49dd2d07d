"""Repairs tool pairing: each call of an assistant gets exactly one result, directly after it.

Neighbours of one role are treated as one message, as the provider reads them. The rules are:

- R1: a call's results stand in the user messages directly after the assistant's. A call in a user
  message cannot have a result and is dropped.
- R2: there, a result without a call and a second result are dropped. Results take the order of the
  calls.
- R3: a call without a result gets a neutral error result; in mode ``strip`` it is dropped.
- R4: a result that stands too late is moved back if its id is unique, else it is dropped.
- R5: a call id that is used again is renamed, together with its result.
- R6: other blocks of a user message stay, after the results.
- R7: a message that lost all its blocks is removed. Neighbours are not merged.
- R8: calls and results of the provider's own tools pair inside the assistant's messages of one tool
  loop. A result without its call is dropped. A call is dropped if the user speaks, or the
  transcript ends, before its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from llmsession.errors import InvalidInput
from llmsession.turns.blocks import encode_json
from llmsession.turns.messages import Message

from .repair_draft import Draft, Repair, Run, Slot

__all__ = ["Mode", "PairingError", "Reason", "Repair", "tool_pair_repair"]

Mode: TypeAlias = Literal["synthesise", "strip", "strict"]
Reason: TypeAlias = Literal["interrupted", "compacted", "crashed", "unknown"]
Pairs: TypeAlias = dict[Slot, Slot]
"""The result of each call that has one."""

# A neutral text, because a model repeats what it reads in its own history.
MISSING = "Tool result unavailable; do not assume the call ran."


class PairingError(InvalidInput):
    """Tool calls and results of a transcript do not pair. ``repair`` is the first change needed.

    Cause: ``tool_pair_repair(..., mode="strict")`` met a call without a result, a result without a
    call, or either one twice.

    Example: ``messages[3] (call 'call_1'): R4: moved back to its call``

    Remedy: correct the transcript, or repair it with ``mode="synthesise"`` or ``mode="strip"``.
    """

    def __init__(self, repair: Repair) -> None:
        call = f" (call {repair.call_id!r})" if repair.call_id else ""
        super().__init__(f"messages[{repair.message_index}]{call}: {repair.rule}: {repair.what}")
        self.repair = repair


def tool_pair_repair(
    messages: Sequence[Message], mode: Mode = "synthesise", reason: Reason = "unknown"
) -> tuple[tuple[Message, ...], tuple[Repair, ...]]:
    """The messages with every call paired, and the list of changes in the order of the input.

    Messages that need no repair are returned as the same objects, and so is a tuple that needs
    none. Repairing the result again changes nothing. *mode* says what to do about a call without a
    result: add an error result (``synthesise``), drop the call (``strip``), or raise (``strict``).
    *reason* is mentioned in the results that are added.

    Raises PairingError in strict mode if anything needs repair, and InvalidMessage if a message's
    body is not a JSON list.
    """
    draft = Draft(messages)
    _drop_calls_of_the_user(draft)
    turns = [_Pairing(run, after) for run, after in _assistant_runs(draft)]
    pairs = _pair_within_runs(draft, turns)
    _move_back_late_results(draft, turns, pairs)
    _drop_unpaired_results(draft, pairs)
    for turn in turns:
        if mode == "strip":
            _strip_unanswered(draft, turn, pairs)
        else:
            _answer_unanswered(draft, turn, pairs, reason)
    for turn in turns:
        _place_results(draft, turn, pairs)
    _drop_stray_server_results(draft)
    _drop_open_server_calls(draft)
    repaired = tuple(draft.finished())
    repairs = tuple(sorted(draft.repairs, key=lambda repair: repair.message_index))
    if not repairs:
        return (messages if isinstance(messages, tuple) else tuple(messages)), ()
    if mode == "strict":
        raise PairingError(repairs[0])
    return repaired, repairs


class _Pairing:
    """An assistant run, the user run that has to answer it, and its calls in order."""

    def __init__(self, run: Run, after: Run | None) -> None:
        self.run = run
        self.after = after
        self.calls: list[Slot] = []
        self.ids: dict[Slot, str] = {}
        """The id of each call, after renaming."""


def _assistant_runs(draft: Draft) -> Iterator[tuple[Run, Run | None]]:
    for index, run in enumerate(draft.runs):
        if run.role == "assistant":
            yield run, draft.runs[index + 1] if index + 1 < len(draft.runs) else None


def _drop_calls_of_the_user(draft: Draft) -> None:
    for run in draft.runs:
        if run.role != "assistant":
            for slot in draft.slots(run, "call"):
                draft.drop(slot, "R1", "dropped: a call in a user message")


def _pair_within_runs(draft: Draft, turns: Sequence[_Pairing]) -> Pairs:
    """Pair calls with the results right after them, and rename ids that are used again (R5)."""
    pairs: Pairs = {}
    all_ids = {slot.call_id for slots in draft.content for slot in slots}
    used: set[str] = set()
    for turn in turns:
        turn.calls = draft.slots(turn.run, "call")
        results = draft.slots(turn.after, "result") if turn.after else []
        for call_id in dict.fromkeys(call.call_id for call in turn.calls):
            same = [call for call in turn.calls if call.call_id == call_id]
            answers = [result for result in results if result.call_id == call_id]
            # If there are fewer results than calls, the last calls ran: the earlier ones were cut
            # off.
            answered = same[max(0, len(same) - len(answers)) :]
            pairs.update(zip(answered, answers, strict=False))
            for call in same:
                turn.ids[call] = _rename_if_used(draft, call, pairs.get(call), used, all_ids)
    return pairs


def _rename_if_used(
    draft: Draft, call: Slot, result: Slot | None, used: set[str], all_ids: set[str]
) -> str:
    new_id = call.call_id
    if new_id in used:
        new_id = _free_id(call.call_id, all_ids)
        draft.rename(call, new_id)
        if result is not None:
            draft.rename(result, new_id)
        draft.note("R5", call.message, call.call_id, f"id used before: renamed to {new_id!r}")
    used.add(new_id)
    all_ids.add(new_id)
    return new_id


def _free_id(call_id: str, all_ids: set[str]) -> str:
    number = 2
    while f"{call_id}_{number}" in all_ids:
        number += 1
    return f"{call_id}_{number}"


def _move_back_late_results(draft: Draft, turns: Sequence[_Pairing], pairs: Pairs) -> None:
    """Pair a call with a result further down, if no other call or result has the same id (R4)."""
    calls = Counter(call.call_id for turn in turns for call in turn.calls)
    results: dict[str, list[Slot]] = {}
    for run in draft.runs:
        for slot in draft.slots(run, "result"):
            results.setdefault(slot.call_id, []).append(slot)
    for turn in turns:
        for call in turn.calls:
            matches = results.get(call.call_id, [])
            unique = calls[call.call_id] == 1 and len(matches) == 1
            if call not in pairs and unique and matches[0].message >= turn.run.start:
                pairs[call] = matches[0]
                draft.take(matches[0])
                draft.note("R4", matches[0].message, call.call_id, "moved back to its call")


def _drop_unpaired_results(draft: Draft, pairs: Pairs) -> None:
    paired = set(pairs.values())
    called: set[str] = set()
    just_called: set[str] = set()
    for run in draft.runs:
        if run.role == "assistant":
            just_called = {slot.call_id for slot in draft.slots(run, "call")}
        for slot in draft.slots(run, "result"):
            if slot not in paired:
                late = slot.call_id in called - just_called
                _drop_result(draft, slot, late, slot.call_id in just_called)
        called |= just_called


def _drop_result(draft: Draft, slot: Slot, late: bool, second: bool) -> None:
    if late:
        draft.drop(slot, "R4", "dropped: too late, and the id or the result is not unique")
    elif second:
        draft.drop(slot, "R2", "dropped: the call has its result")
    else:
        draft.drop(slot, "R2", "dropped: no such call before it")


def _strip_unanswered(draft: Draft, turn: _Pairing, pairs: Pairs) -> None:
    for call in [call for call in turn.calls if call not in pairs]:
        draft.drop(call, "R3", "dropped: the call has no result")
        turn.calls.remove(call)


def _answer_unanswered(draft: Draft, turn: _Pairing, pairs: Pairs, reason: Reason) -> None:
    text = MISSING if reason == "unknown" else f"{MISSING} Reason: {reason}."
    for call in turn.calls:
        if call not in pairs:
            block = {
                "type": "tool_result",
                "tool_use_id": turn.ids[call],
                "content": text,
                "is_error": True,
            }
            pairs[call] = Slot(-1, encode_json(block), synthetic=True)
            what = "the call has no result: an error result was put in"
            draft.note("R3", call.message, call.call_id, what)


def _place_results(draft: Draft, turn: _Pairing, pairs: Pairs) -> None:
    """Put the results of a run's calls first, in the order of the calls, and other blocks after
    them.
    """
    results = [pairs[call] for call in turn.calls]
    if turn.after is None:
        if results:
            draft.add_after(turn.run.stop - 1, results)
        return
    now = draft.slots(turn.after)
    others = [slot for slot in now if slot.kind != "result"]
    if now == results + others:
        return
    _note_order(draft, now, [slot for slot in results if slot in now])
    for index in range(turn.after.start, turn.after.stop):
        draft.content[index] = [slot for slot in draft.content[index] if slot.kind != "result"]
    draft.content[turn.after.start][:0] = results


def _note_order(draft: Draft, now: Sequence[Slot], ordered: Sequence[Slot]) -> None:
    results = [slot for slot in now if slot.kind == "result"]
    if results != ordered:
        first = next(is_ for is_, should in zip(results, ordered, strict=True) if is_ != should)
        draft.note("R2", first.message, first.call_id, "results put in the order of the calls")
    first_other = next((index for index, slot in enumerate(now) if slot.kind != "result"), len(now))
    late = next((slot for slot in now[first_other:] if slot.kind == "result"), None)
    if late is not None:
        draft.note("R6", late.message, late.call_id, "results put before the other blocks")


def _drop_stray_server_results(draft: Draft) -> None:
    open_calls: set[str] = set()
    in_loop = False
    for run in draft.runs:
        if run.role == "assistant" and not in_loop:
            open_calls = set()
        for slot in draft.slots(run, "server_call", "server_result"):
            if run.role != "assistant":
                draft.drop(slot, "R8", "dropped: a block of a server tool in a user message")
            elif slot.kind == "server_call":
                open_calls.add(slot.call_id)
            elif slot.call_id not in open_calls:
                draft.drop(slot, "R8", "dropped: no call of a server tool before it")
        if run.role == "assistant":
            in_loop = bool(draft.slots(run, "call"))


def _drop_open_server_calls(draft: Draft) -> None:
    open_calls: list[Slot] = []
    for run in draft.runs:
        if run.role != "assistant":
            if draft.slots(run, "other"):
                _drop_server_calls(draft, open_calls)
                open_calls = []
            continue
        for slot in draft.slots(run, "server_call", "server_result"):
            if slot.kind == "server_call":
                open_calls.append(slot)
            else:
                open_calls = [call for call in open_calls if call.call_id != slot.call_id]
    _drop_server_calls(draft, open_calls)


def _drop_server_calls(draft: Draft, calls: Sequence[Slot]) -> None:
    for call in calls:
        draft.drop(call, "R8", "dropped: the call of a server tool has no result")
