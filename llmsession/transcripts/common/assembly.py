"""Messages of chat applications, put together: turns, ids, and each call with its results.

The rules, each a note where it changes something:

R1 a result stands in the user messages right behind the assistant message that made its call,
   in the order of the calls; one found elsewhere is moved there. R2 a result without a call is
   left out, and so is a second one. R3 a call without a result gets a neutral error result,
   flagged as synthetic, unless nothing came after it: then it is still open. R4 a call id that
   was used before, or that no provider takes, is renamed, with its result. R5 what else came
   with results stands behind them. R6 what the model said before any user is left out, and so
   are its messages without content.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from llmsession.turns.blocks import (
    ToolResultBlock,
    ToolUseBlock,
    block_type,
    encode_json,
    join_blocks,
    parse_blocks,
)
from llmsession.turns.messages import Message

from .chat_message import MISSING, Reading, Said, result_block, text_of
from .conversation import Conversation

__all__ = ["Before", "assemble", "clean_call_id", "derived_id", "is_asking", "leave_out_reply"]

_NOT_IN_CALL_IDS = re.compile(r"[^a-zA-Z0-9_-]+")


def derived_id(session: str, place: int) -> str:
    """The id of the *place*-th message, from 0, of a conversation whose source gives none."""
    digest = hashlib.sha256(f"{session}\n{place}".encode("utf-8", "replace")).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def clean_call_id(call_id: str) -> str:
    """*call_id* with the characters alone that providers take; ``call`` if none is left."""
    return _NOT_IN_CALL_IDS.sub("_", call_id) or "call"


class _Slot(msgspec.Struct, eq=False):
    """One block; ``pair`` is what pairs it, the call id as it came."""

    raw: bytes
    kind: str
    pair: str


class _Step(msgspec.Struct, eq=False):
    """A message and its blocks; of an assistant's, the results of its calls."""

    said: Said
    slots: list[_Slot]
    results: dict[_Slot, tuple[_Step, _Slot]] = {}
    """By the call: the message that the result was found in, and the result."""
    answers: list[_Step] = []
    """Of a message with results: the assistant messages whose calls they answer."""
    joined: bool = False
    """Is it a part of what answers an assistant message, and opens no turn?"""

    @property
    def is_assistant(self) -> bool:
        return self.said.role == "assistant"

    def of_kind(self, kind: str) -> list[_Slot]:
        return [slot for slot in self.slots if slot.kind == kind]


def _slot(raw: bytes) -> _Slot:
    kind = block_type(raw)
    (block,) = parse_blocks(b"[" + raw + b"]")
    if isinstance(block, ToolUseBlock):
        return _Slot(raw, kind, block.id)
    if isinstance(block, ToolResultBlock):
        return _Slot(raw, kind, block.tool_use_id)
    return _Slot(raw, "malformed" if kind in ("tool_use", "tool_result") else kind, "")


class Before(msgspec.Struct, frozen=True):
    """Whole turns that a branch begins with, as they are in the path that it leaves."""

    messages: tuple[Message, ...] = ()
    interrupted: tuple[int, ...] = ()


def assemble(
    said: Iterable[Said],
    reading: Reading,
    *,
    session: str,
    format: str,
    before: Before = Before(),  # noqa: B008 - a frozen value
    **fields: Any,
) -> Conversation:
    """The conversation that *said* are, in order, with the notes and records of *reading* and
    those that are added here. *fields* are more fields of it. What is *before* is its beginning;
    *said* goes on from there.

    Texts of the system before the first message are its system prompt; later ones are left out.
    Ids that are missing are derived from *session*, and an id that comes twice gets ``~2``.
    """
    system, spoken = _without_system(said, reading, user_spoke=bool(before.messages))
    steps = [_Step(each, [_slot(raw) for raw in each.blocks]) for each in spoken]
    _drop_misplaced(steps, reading)
    _pair(steps, reading)
    _rename(steps, {call.id for message in before.messages for call in message.tool_calls}, reading)
    _join_results(steps, reading)
    built = _Turns(session, before, [step for step in steps if not step.joined], reading)
    prompts = [text for text in (fields.pop("system", ""), system) if text]
    return Conversation(
        id=session,
        format=format,
        messages=tuple(built.messages),
        notes=tuple(sorted(reading.notes, key=lambda note: note.line)),
        interrupted=tuple(sorted(built.interrupted)),
        records=tuple(reading.records),
        system="\n\n".join(prompts),
        **fields,
    )


def _without_system(
    said: Iterable[Said], reading: Reading, *, user_spoke: bool
) -> tuple[str, list[Said]]:
    """The system prompt, and the messages from the first user's on."""
    prompts: list[str] = []
    kept: list[Said] = []
    goes_on = user_spoke
    for each in said:
        user_spoke = user_spoke or is_asking(each)
        if each.role == "system" and not (kept or goes_on):
            prompts.append(text_of([each], "\n\n"))
        elif each.role == "system":
            detail = "a system message inside of the conversation"
            reading.leave_out(each.number, "system", each.raw, detail, visible=True)
        elif each.role == "assistant" and not (each.blocks and user_spoke):
            leave_out_reply(each, reading)
        else:
            kept.append(each)
    return "\n\n".join(filter(None, prompts)), kept


def is_asking(said: Said) -> bool:
    """Is it a user's message that says more than results, or nothing?"""
    kinds = {block_type(raw) for raw in said.blocks}
    return said.role == "user" and (not kinds or bool(kinds - {"tool_use", "tool_result"}))


def leave_out_reply(said: Said, reading: Reading) -> None:
    """Keep a reply that has no place in any turn beside the messages."""
    if not said.blocks:
        why = "error" if said.error else "empty"
        reading.leave_out(said.number, why, said.raw, "a reply without content")
    else:
        detail = "a reply before any user text"
        reading.leave_out(said.number, "no_user_message", said.raw, detail, visible=True)


def _drop_misplaced(steps: Sequence[_Step], reading: Reading) -> None:
    for step in steps:
        wrong = "tool_result" if step.is_assistant else "tool_use"
        for slot in step.of_kind(wrong) + step.of_kind("malformed"):
            detail = f"a {slot.kind} block in a message of the {step.said.role}"
            _drop(step, slot, "misplaced", detail, reading)


def _drop(step: _Step, slot: _Slot, why: str, detail: str, reading: Reading) -> None:
    reading.leave_out(step.said.number, why, slot.raw, detail, visible=True)
    step.slots.remove(slot)


def _pair(steps: Sequence[_Step], reading: Reading) -> None:
    """Give each call its result: that of the nearest call before it, or of the only one."""
    latest: dict[str, tuple[_Step, _Slot]] = {}
    count = Counter(call.pair for step in steps for call in step.of_kind("tool_use"))
    early: list[tuple[_Step, _Slot]] = []
    for step in steps:
        for call in step.of_kind("tool_use"):
            latest[call.pair] = (step, call)
        for result in step.of_kind("tool_result"):
            if result.pair in latest:
                _answer(latest[result.pair], step, result, reading)
            else:
                early.append((step, result))
    for step, result in early:
        if count[result.pair] == 1:
            _answer(latest[result.pair], step, result, reading)
        else:
            detail = f"no call {result.pair} before it"
            _drop(step, result, "orphan_result", detail, reading)


def _answer(called: tuple[_Step, _Slot], step: _Step, result: _Slot, reading: Reading) -> None:
    caller, call = called
    if call in caller.results:
        detail = f"call {result.pair} has its result; the first one stays"
        _drop(step, result, "duplicate", detail, reading)
        return
    caller.results[call] = (step, result)
    if caller not in step.answers:
        step.answers.append(caller)


def _rename(steps: Sequence[_Step], used: set[str], reading: Reading) -> None:
    """Give each call an id that is not in *used*, nor another's, and that every provider takes."""
    asked = {slot.pair for step in steps for slot in step.slots}
    for step in steps:
        for call in step.of_kind("tool_use"):
            name = _free_id(call.pair, used, asked)
            used.add(name)
            if name != call.pair:
                detail = f"call {call.pair!r} is {name!r} here"
                reading.note(step.said.number, "renamed", detail)
                call.raw = _with_field(call.raw, "id", name)
                call.pair = name
                if call in step.results:
                    result = step.results[call][1]
                    result.raw = _with_field(result.raw, "tool_use_id", name)


def _free_id(call_id: str, used: set[str], asked: set[str]) -> str:
    name = wanted = clean_call_id(call_id)
    number = 2
    while name in used or (name != call_id and name in asked):
        name = f"{wanted}_{number}"
        number += 1
    return name


def _with_field(raw: bytes, name: str, value: str) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return encode_json(fields | {name: value})


def _join_results(steps: Sequence[_Step], reading: Reading) -> None:
    """Decide which user messages belong behind an assistant message, and open no turn."""
    behind: _Step | None = None
    for step in steps:
        if step.is_assistant:
            behind = step
        elif step.answers and step.answers == [behind]:
            step.joined = True
        elif step.answers:
            reading.note(step.said.number, "moved", "results were put right behind their calls")
            step.slots = [slot for slot in step.slots if slot.kind != "tool_result"]
            step.joined = not step.slots
            behind = behind if step.joined else None
        else:
            # A message that held nothing but results without a call is gone.
            step.joined = bool(step.said.blocks) and not step.slots
            behind = behind if step.joined else None


class _Turns:
    """The steps, without those that are joined, as messages of numbered turns."""

    def __init__(
        self, session: str, before: Before, steps: Sequence[_Step], reading: Reading
    ) -> None:
        self.session = session
        self.reading = reading
        self.messages = list(before.messages)
        self.interrupted = set(before.interrupted)
        self._ids = {message.id for message in before.messages}
        self._turn = before.messages[-1].turn if before.messages else 0
        in_loop = False
        for step in steps:
            if not step.is_assistant:
                if in_loop:
                    self.interrupted.add(self._turn)
                self._turn += 1
            self._add(step.said, [slot.raw for slot in step.slots])
            calls = step.of_kind("tool_use")
            if calls:
                self._add_results(step, calls, is_last=step is steps[-1])
            if step.said.cut:
                self.interrupted.add(self._turn)
            in_loop = bool(calls)

    def _add_results(self, step: _Step, calls: Sequence[_Slot], *, is_last: bool) -> None:
        answers = _Answers()
        name = f"{self.messages[-1].id}#results"
        for call in calls:
            if call in step.results:
                answers.found(*step.results[call])
            elif not is_last:
                answers.missing(result_block(call.pair, MISSING, is_error=True))
                detail = f"call {call.pair} has no result: one that says so was put in"
                self.reading.note(step.said.number, "unanswered_call", detail)
        for origin, raws, synthetic in answers.messages():
            # A message that is split, or stands elsewhere, lends its id to its first part.
            own = origin is not None and origin.joined and origin.answers[0] is step
            said = origin.said if origin is not None and own else _behind(step, origin, name)
            self._add(said, raws, synthetic)

    def _add(self, said: Said, raws: Sequence[bytes], synthetic: tuple[int, ...] = ()) -> None:
        self.messages.append(
            Message(
                id=self._unique(said),
                session=self.session,
                turn=self._turn,
                role="assistant" if said.role == "assistant" else "user",
                body=join_blocks(raws),
                created_at=said.created_at,
                completed_at=said.completed_at or said.created_at,
                synthetic=synthetic,
                model=said.model,
                provider=said.provider,
                usage=said.usage,
                stop_reason=said.stop_reason,
                error=said.error,
                extra=msgspec.Raw(encode_json(said.extra)) if said.extra else msgspec.UNSET,
            )
        )

    def _unique(self, said: Said) -> str:
        wanted = said.id or derived_id(self.session, len(self.messages))
        unique, number = wanted, 1
        while unique in self._ids:
            number += 1
            unique = f"{wanted}~{number}"
        if unique != wanted:
            detail = f"a second message with the id {wanted}: it is {unique} here"
            self.reading.note(said.number, "duplicate_id", detail)
        self._ids.add(unique)
        return unique


class _Answers:
    """The results of one message's calls, in the order of the calls, by the message that each was
    found in. What stands in for a result joins the message before it."""

    def __init__(self) -> None:
        self._groups: list[tuple[_Step | None, list[bytes]]] = []
        self._stand_ins: set[bytes] = set()

    def found(self, origin: _Step, result: _Slot) -> None:
        """The next call has *result*."""
        if all(origin is not other for other, _ in self._groups):
            if len(self._groups) == 1 and self._groups[0][0] is None:
                self._groups[0] = (origin, self._groups[0][1])
            else:
                self._groups.append((origin, []))
        self._groups[-1][1].append(result.raw)

    def missing(self, stand_in: bytes) -> None:
        """The next call has none."""
        if not self._groups:
            self._groups.append((None, []))
        self._groups[-1][1].append(stand_in)
        self._stand_ins.add(stand_in)

    def messages(self) -> Iterator[tuple[_Step | None, list[bytes], tuple[int, ...]]]:
        """Each message to be: where it was found, its blocks, and which of them stand in. What
        else came with results stands in the last."""
        others = [
            slot.raw
            for origin, _ in self._groups
            if origin is not None and origin.joined and len(origin.answers) == 1
            for slot in origin.slots
            if slot.kind != "tool_result"
        ]
        for at, (origin, raws) in enumerate(self._groups, 1):
            synthetic = tuple(n for n, raw in enumerate(raws) if raw in self._stand_ins)
            yield origin, raws + (others if at == len(self._groups) else []), synthetic


def _behind(step: _Step, found: _Step | None, name: str) -> Said:
    """The message *name* for results of *step*'s calls that have none of their own there."""
    said = step.said if found is None else found.said
    at = said.completed_at or said.created_at
    return Said(role="user", blocks=[], id=name, number=said.number, created_at=at)
