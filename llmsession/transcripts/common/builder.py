"""Recorded user texts, replies and results, in file order, folded into numbered turns.

For formats that record a stream of lines. The rules that hold for all of them live here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llmsession.turns.blocks import ToolUseBlock, join_blocks, parse_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, Role, message_id
from llmsession.turns.usage import Usage

from .conversation import Conversation, Note

__all__ = ["Reply", "TurnBuilder"]


class Reply(msgspec.Struct, kw_only=True):
    """One model reply: all blocks of one response, each with the line that it stood on."""

    blocks: list[tuple[int, bytes]]
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0


class _UserMessage(msgspec.Struct):
    """User blocks of one message: results by call, then everything else in file order."""

    results: dict[str, bytes] = {}
    others: list[bytes] = []
    first_at: float = 0.0
    last_at: float = 0.0

    def saw(self, at: float) -> None:
        self.first_at = min(self.first_at or at, at)
        self.last_at = max(self.last_at, at)


class _Step(msgspec.Struct):
    reply: Reply
    calls: list[str]
    answer: _UserMessage


class _Turn(msgspec.Struct):
    number: int
    opening: _UserMessage
    steps: list[_Step] = []
    closed: bool = False
    interrupted: bool = False

    @property
    def replied(self) -> bool:
        return bool(self.steps) and not self.steps[-1].calls


class _LateResult(msgspec.Struct, frozen=True):
    line: int
    call_id: str
    raw: bytes
    at: float


class TurnBuilder:
    """Takes what a file records, in file order; ``build`` gives the conversation.

    A person's text starts a turn, unless nothing was answered since the last text: then it is
    one more block of the same user message. Where it cuts a tool loop short, the turn before
    is marked interrupted. Text that ``joins`` an open tool loop stands after its results.
    """

    def __init__(self, session: str, format: str) -> None:
        self.session = session
        self.format = format
        self.notes: list[Note] = []
        self._turns: list[_Turn] = []
        self._step_of_call: dict[str, _Step] = {}
        self._results: list[_LateResult] = []

    def note(self, line: int, what: str, detail: str = "", *, visible: bool = False) -> None:
        """Add a note on the file's line *line*."""
        self.notes.append(Note(line, what, detail, visible))

    def user(self, blocks: Sequence[bytes], at: float, *, joins: bool = False) -> int:
        """Add user blocks other than results. Returns the number of the turn they are in."""
        turn = self._turn_for(joins)
        place = turn.steps[-1].answer if turn.steps else turn.opening
        place.others.extend(blocks)
        place.saw(at)
        return turn.number

    def _turn_for(self, joins: bool) -> _Turn:
        last = self._turns[-1] if self._turns else None
        if last and not last.closed and not last.replied:
            if joins or not last.steps:
                return last
            last.interrupted = True
        self._turns.append(_Turn(len(self._turns) + 1, _UserMessage()))
        return self._turns[-1]

    def reply(self, reply: Reply) -> None:
        """Add a whole response. Without a user message before it, it is noted and left out."""
        if not self._turns:
            for line, _ in reply.blocks:
                self.note(line, "no_user_message", "a reply before any user text", visible=True)
            return
        step = _Step(reply, [], _UserMessage())
        reply.blocks = [(line, raw) for line, raw in reply.blocks if self._accept(step, line, raw)]
        if reply.blocks:
            self._turns[-1].steps.append(step)

    def _accept(self, step: _Step, line: int, raw: bytes) -> bool:
        (block,) = parse_blocks(b"[" + raw + b"]")
        if not isinstance(block, ToolUseBlock):
            return True
        if block.id in self._step_of_call:
            self.note(line, "duplicate", f"call {block.id} was there before", visible=True)
            return False
        self._step_of_call[block.id] = step
        step.calls.append(block.id)
        return True

    def result(self, line: int, call_id: str, raw: bytes, at: float) -> None:
        """Add a tool result. Which call it answers is decided in ``build``."""
        self._results.append(_LateResult(line, call_id, raw, at))

    def interrupt(self) -> None:
        """The open turn ended here, before it was done."""
        if self._turns:
            self._turns[-1].closed = self._turns[-1].interrupted = True

    def build(self, title: str = "") -> Conversation:
        """The conversation so far. Results without a call are noted and left out."""
        for result in self._results:
            self._place(result)
        self._results.clear()
        messages = [message for turn in self._turns for message in self._messages(turn)]
        return Conversation(
            id=self.session,
            format=self.format,
            title=title,
            messages=tuple(messages),
            notes=tuple(sorted(self.notes, key=lambda note: note.line)),
            interrupted=tuple(turn.number for turn in self._turns if turn.interrupted),
        )

    def _place(self, result: _LateResult) -> None:
        step = self._step_of_call.get(result.call_id)
        if step is None:
            detail = f"no call {result.call_id} in the recording"
            self.note(result.line, "orphan_result", detail, visible=True)
        elif result.call_id in step.answer.results:
            detail = f"call {result.call_id} has its result; the first one stays"
            self.note(result.line, "duplicate", detail, visible=True)
        else:
            step.answer.results[result.call_id] = result.raw
            step.answer.saw(result.at)

    def _messages(self, turn: _Turn) -> list[Message]:
        messages = [self._user_message(turn, 0, turn.opening, ())]
        for at, step in enumerate(turn.steps):
            messages.append(self._assistant_message(turn, at, step.reply))
            if step.answer.results or step.answer.others:
                position = sum(message.is_user for message in messages)
                messages.append(self._user_message(turn, position, step.answer, step.calls))
        return messages

    def _user_message(
        self, turn: _Turn, position: int, said: _UserMessage, calls: Sequence[str]
    ) -> Message:
        results = [said.results[call] for call in calls if call in said.results]
        return Message(
            id=self._id("user", turn, position),
            session=self.session,
            turn=turn.number,
            role="user",
            body=join_blocks(results + said.others),
            created_at=said.first_at,
            completed_at=said.last_at,
        )

    def _assistant_message(self, turn: _Turn, position: int, reply: Reply) -> Message:
        return Message(
            id=self._id("assistant", turn, position),
            session=self.session,
            turn=turn.number,
            role="assistant",
            body=join_blocks(raw for _, raw in reply.blocks),
            created_at=reply.started_at,
            completed_at=reply.ended_at,
            model=reply.model,
            provider=reply.provider,
            usage=reply.usage,
            stop_reason=reply.stop_reason,
        )

    def _id(self, role: Role, turn: _Turn, position: int) -> str:
        owner = TurnId("u" if role == "user" else "a", turn.number)
        return message_id(self.session, owner, position)
