"""Recorded messages, in order, folded into numbered turns; calls and results are paired.

The rules that hold for all formats of this folder:

- A recorded message stays a message of its own, under its own id. One that answers calls of
  several replies is split.
- A user's text starts a turn, unless nothing was answered since the last text, or it came with
  the results of an open tool loop, or after all of them: then the next reply answers it, too.
  Where it cuts a tool loop short, the turn before is marked interrupted.
- A result belongs to the newest call of its id that has none yet, in order within one reply:
  providers have used an id twice. A call whose id was there before is renamed, with its result.
- A result that stands elsewhere is moved behind its call. One without a call, and a second one,
  has no place in a message; nor has a reply before anybody asked, or one without content. All
  of these are noted and kept, as ``unplaced``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmsession.turns.blocks import block_type, encode_json, join_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, message_id

from .conversation import Conversation, Note
from .record import Record
from .recorded_message import Said

__all__ = ["Folded", "fold"]

_SAID = frozenset({"items", "thinking", "thoughts", "unsigned_thinking"})
"""Fields of ``extra`` that hold what a model wrote."""


class _Call(msgspec.Struct, eq=False):
    given: str
    id: str
    step: int
    result: bytes | None = None
    answered_at: int = -1


class _Piece(msgspec.Struct, eq=False):
    """A message to be: blocks of one recorded message. ``part`` counts where it was split."""

    at: int
    said: Said
    blocks: list[bytes]
    part: int = 0
    has_text: bool = False


class _Step(msgspec.Struct, eq=False):
    at: int
    reply: _Piece
    calls: list[_Call]
    answers: list[_Piece] = []


class _Turn(msgspec.Struct, eq=False):
    opening: list[_Piece] = []
    steps: list[_Step] = []
    closed: bool = False
    interrupted: bool = False

    def pieces(self) -> Iterator[_Piece]:
        yield from self.opening
        for step in self.steps:
            yield step.reply
            yield from step.answers


class Folded(msgspec.Struct, frozen=True):
    """The turns of one path through a file. ``unplaced`` are the messages, as JSON objects, and
    parts of messages that no turn has a place for."""

    turns: tuple[_Turn, ...]
    notes: tuple[Note, ...]
    unplaced: tuple[msgspec.Raw, ...]

    @property
    def interrupted(self) -> tuple[int, ...]:
        """The numbers of the turns that were cut short."""
        return tuple(at for at, turn in enumerate(self.turns, 1) if turn.interrupted)

    def conversation(self, session: str, format: str, **fields: Any) -> Conversation:
        """The conversation *session*. *fields* are more fields of it; its notes come first."""
        notes = [*fields.pop("notes", ()), *self.notes]
        extra = dict(fields.pop("extra", {}))
        if self.unplaced:
            extra["unplaced"] = msgspec.Raw(encode_json(self.unplaced))
        return Conversation(
            id=session,
            format=format,
            messages=self.messages(session),
            interrupted=self.interrupted,
            notes=tuple(sorted(notes, key=lambda note: note.line)),
            extra=extra,
            **fields,
        )

    def branch(self, main: Folded, parent: Conversation, session: str) -> Conversation:
        """This path as a branch of *parent*, which *main* became: the turns that both begin with
        are the same message objects."""
        shared = _equal_turns(self.turns, main.turns)
        kept = tuple(message for turn in parent.turns[:shared] for message in turn)
        whole = self.conversation(session, parent.format)
        own = tuple(message for message in whole.messages if message.turn > shared)
        return msgspec.structs.replace(
            whole,
            messages=kept + own,
            title=parent.title,
            source=parent.source,
            parent=parent.id,
            shared_turns=shared,
        )

    def messages(self, session: str) -> tuple[Message, ...]:
        """All messages, as those of *session*."""
        taken: set[str] = set()
        return tuple(
            message
            for number, turn in enumerate(self.turns, 1)
            for message in _messages(session, number, turn, taken)
        )


def _equal_turns(one: Sequence[_Turn], two: Sequence[_Turn]) -> int:
    shared = 0
    for left, right in zip(one, two, strict=False):
        if left.interrupted != right.interrupted or _signature(left) != _signature(right):
            break
        shared += 1
    return shared


def _signature(turn: _Turn) -> list[tuple[int, int, list[bytes]]]:
    return [(id(piece.said), piece.part, piece.blocks) for piece in turn.pieces()]


def _messages(session: str, number: int, turn: _Turn, taken: set[str]) -> Iterator[Message]:
    counts = {"u": 0, "a": 0}
    for piece in turn.pieces():
        said = piece.said
        owner = TurnId("u" if said.role == "user" else "a", number)
        wanted = said.id or message_id(session, owner, counts[owner.owner])
        if said.id and piece.part:
            wanted = f"{wanted}+{piece.part}"
        counts[owner.owner] += 1
        unique, suffix = wanted, 2
        while unique in taken:
            unique, suffix = f"{wanted}~{suffix}", suffix + 1
        taken.add(unique)
        yield Message(
            id=unique,
            session=session,
            turn=number,
            role=said.role,
            body=join_blocks(piece.blocks),
            created_at=said.at or said.until,
            completed_at=said.until or said.at,
            model=said.model,
            provider=said.provider,
            usage=said.usage,
            stop_reason=said.stop_reason,
            error=said.error,
            extra=msgspec.Raw(encode_json(said.extra)) if said.extra else msgspec.UNSET,
        )


def fold(said: Sequence[Said]) -> Folded:
    """The turns of *said*, the messages of one path in their order."""
    return _Fold(said).folded()


def _with_content(result: bytes) -> bytes:
    """A result whose content is a text or a list, as a message needs it."""
    content = Record.of(result).raw("content")
    if content is not None and content.startswith((b'"', b"[")):
        return result
    fields: dict[str, Any] = dict(Record.of(result).fields)
    fields["content"] = "" if content is None else content.decode()
    return encode_json(fields)


class _Fold:
    def __init__(self, said: Sequence[Said]) -> None:
        self.said = said
        self.notes: list[Note] = []
        self.unplaced: list[msgspec.Raw] = []
        self.turns: list[_Turn] = []
        self.calls: list[list[_Call]] = [[] for _ in said]
        self.blocks: list[list[bytes]] = [self._allowed(each) for each in said]
        self.free: dict[str, list[_Call]] = {}
        """The calls of an id that have no result yet."""
        self.answered: dict[str, _Call] = {}
        """The newest call of an id that has one."""
        self._number_calls()
        self.groups: list[dict[int, list[bytes]]] = [{} for _ in said]
        """The results in each message, by the reply that they answer."""
        self.others: list[list[bytes]] = [[] for _ in said]
        for at in range(len(said)):
            self._pair(at)
        self.steps: dict[int, _Step] = {}

    def note(self, at: int, what: str, detail: str = "", *, visible: bool = False) -> None:
        self.notes.append(Note(max(1, self.said[at].place), what, detail, visible))

    def _lose(self, at: int, blocks: Sequence[bytes]) -> None:
        said = self.said[at]
        fields: dict[str, Any] = {"id": said.id} if said.id else {}
        fields |= {"role": said.role, "content": [msgspec.Raw(raw) for raw in blocks]}
        if said.error:
            fields["error"] = said.error
        if said.usage:
            fields["usage"] = said.usage
        if said.extra:
            fields["extra"] = said.extra
        self.unplaced.append(msgspec.Raw(encode_json(fields)))

    # Calls and results.

    def _allowed(self, said: Said) -> list[bytes]:
        wrong = "tool_use" if said.role == "user" else "tool_result"
        kept, stray = [], []
        for raw in said.blocks:
            kind = block_type(raw)
            if kind == wrong or (kind == "tool_use" and not Record.of(raw).text("name")):
                stray.append(raw)
            else:
                kept.append(_with_content(raw) if kind == "tool_result" else raw)
        if stray:
            at = next(at for at, each in enumerate(self.said) if each is said)
            self._lose(at, stray)
            detail = f"{len(stray)} blocks that the {said.role} cannot say; left out"
            self.note(at, "misplaced_block", detail, visible=True)
        return kept

    def _number_calls(self) -> None:
        taken = {
            Record.of(raw).text("id") or ""
            for blocks in self.blocks
            for raw in blocks
            if block_type(raw) == "tool_use"
        }
        used: set[str] = set()
        suffixes: dict[str, int] = {}
        for at, blocks in enumerate(self.blocks):
            for place, raw in enumerate(blocks):
                if block_type(raw) != "tool_use":
                    continue
                block = Record.of(raw)
                given = block.text("id")
                base = unique = given or "call"
                while unique in used or (unique != given and unique in taken):
                    suffixes[base] = suffixes.get(base, 1) + 1
                    unique = f"{base}_{suffixes[base]}"
                used.add(unique)
                if unique != given:
                    blocks[place] = encode_json({**block.fields, "id": unique})
                    why = "its id was used before" if given else "it has no id"
                    self.note(at, "renamed_call", f"call {given or ''} is {unique} here: {why}")
                call = _Call(given or unique, unique, at)
                self.calls[at].append(call)
                self.free.setdefault(call.given, []).append(call)

    def _pair(self, at: int) -> None:
        for raw in self.blocks[at]:
            if block_type(raw) != "tool_result":
                self.others[at].append(raw)
                continue
            result = Record.of(raw)
            given = result.text("tool_use_id") or ""
            call = self._call_for(at, given)
            if call is None:
                self._lose(at, [raw])
                detail = f"no call {given} in the recording"
                self.note(at, "orphan_result", detail, visible=True)
            elif call.result is not None:
                if call.result == raw:
                    detail = f"the result of call {given} stands here again"
                    self.note(at, "duplicate", detail)
                else:
                    self._lose(at, [raw])
                    detail = f"call {given} has its result; the first one stays"
                    self.note(at, "duplicate", detail, visible=True)
            else:
                call.result, call.answered_at = raw, at
                self.free[given].remove(call)
                self.answered[given] = call
                if call.id != given:
                    raw = encode_json({**result.fields, "tool_use_id": call.id})
                self.groups[at].setdefault(call.step, []).append(raw)

    def _call_for(self, at: int, given: str) -> _Call | None:
        free = self.free.get(given, [])
        before = [call for call in free if call.step < at]
        if before:
            newest = max(call.step for call in before)
            return next(call for call in before if call.step == newest)
        after = (call for call in free if call.step > at)
        return next(after, self.answered.get(given))

    def _is_answered(self, step: int) -> bool:
        """Has every call of this reply its result before the next reply?"""
        after = range(step + 1, len(self.said))
        end = next((at for at in after if self.said[at].role == "assistant"), len(self.said))
        return all(-1 < call.answered_at < end for call in self.calls[step])

    # Turns.

    def folded(self) -> Folded:
        for at, said in enumerate(self.said):
            if said.role == "assistant":
                self._reply(at)
            else:
                self._user(at)
            if said.interrupted and self.turns:
                self.turns[-1].closed = self.turns[-1].interrupted = True
        for at in range(len(self.said)):
            self._answer(at)
        for at, calls in enumerate(self.calls):
            for call in calls:
                if call.result is None and at in self.steps:
                    self.note(at, "unanswered_call", f"call {call.id} has no result")
        return Folded(
            tuple(self.turns),
            tuple(sorted(self.notes, key=lambda note: note.line)),
            tuple(self.unplaced),
        )

    def _reply(self, at: int) -> None:
        said = self.said[at]
        if not self.blocks[at]:
            if said.blocks or said.extra or said.error:
                self._lose(at, [])
            detail = f"a reply without content{f', {said.id}' if said.id else ''}"
            self.note(at, "empty", detail, visible=not _SAID.isdisjoint(said.extra))
        elif not self.turns:
            self._lose(at, self.blocks[at])
            self.note(at, "no_user_message", "a reply before any user text", visible=True)
        else:
            step = _Step(at, _Piece(at, said, self.blocks[at]), self.calls[at])
            self.steps[at] = step
            self.turns[-1].steps.append(step)

    def _user(self, at: int) -> None:
        """Place what a user's message says beside results; those of the open tool loop with it."""
        said, last = self.said[at], self.turns[-1] if self.turns else None
        groups = self.groups[at]
        if not said.blocks:
            named = f", {said.id}" if said.id else ""
            self.note(at, "empty", f"a user message without content{named}")
        if not self.others[at]:
            return
        open_step = last.steps[-1] if last and last.steps and not last.closed else None
        beside = groups.pop(open_step.at, None) if open_step is not None else None
        if open_step is not None and beside is not None:
            blocks = beside + self.others[at]
            open_step.answers.append(_Piece(at, said, blocks, has_text=True))
        else:
            self._say(at, last)

    def _say(self, at: int, last: _Turn | None) -> None:
        said = self.said[at]
        piece = _Piece(at, said, self.others[at], has_text=True)
        if last is not None and not last.closed and not (said.starts and last.steps):
            if not last.steps:
                last.opening.append(piece)
                return
            calls = last.steps[-1].calls
            if calls and not said.starts and self._is_answered(calls[0].step):
                last.steps[-1].answers.append(piece)
                return
            last.interrupted = bool(calls)
        self.turns.append(_Turn([piece]))

    def _answer(self, at: int) -> None:
        """Put the results in a message that are left behind their calls."""
        part = 1 if self.others[at] else 0
        for step_at, results in self.groups[at].items():
            step = self.steps.get(step_at)
            if step is None:  # the answer to a reply that has no place itself
                self._lose(at, results)
                self.note(at, "orphan_result", "its call has no place", visible=True)
                continue
            texts = (n for n, other in enumerate(step.answers) if other.has_text)
            place = next(texts, len(step.answers))
            is_later = any(other.at < at for other in step.answers[place:])
            if is_later or self._reply_before(at) != step_at:
                self.note(at, "moved_result", "put behind its call")
            step.answers.insert(place, _Piece(at, self.said[at], results, part))
            part += 1

    def _reply_before(self, at: int) -> int:
        return next((n for n in range(at - 1, -1, -1) if n in self.steps), -1)
