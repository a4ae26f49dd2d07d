"""Puts recorded messages into numbered turns, and pairs each call with its result.

These rules hold for every format:

- A recorded message stays a message of its own, with its own id. A message that answers calls of
  several replies is split.
- A user's text starts a turn, with these exceptions: nothing was answered since the last text; or
  it came with the results of an open tool loop, or after all of them. Then the next reply answers
  it, too. If it cuts a tool loop short, the turn before is marked as interrupted.
- A result belongs to the newest call with its id that has no result yet, in order within one reply,
  because providers have used an id twice. A call is renamed, together with its result, if its id
  was used before or no provider accepts it. The recorded id stays in the message's ``extra``.
- Results stand directly behind the reply that made their calls, in the order of the calls, before
  any text. A result that was recorded elsewhere is moved there.
- Some things have no place in a message: a result without a call, a second result, a reply before
  any user text, a reply without content, and a block on the wrong side. They are left out, noted,
  and kept beside the messages.

``Rules`` lists what differs between families of formats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from llmsession.turns.blocks import block_type, encode_json, join_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, Role, message_id

from .call_pairs import RECORDED_IDS, Call, CallPairs
from .conversation import Conversation, Note
from .record import Record
from .recorded_message import MISSING, RecordedMessage, joined, result_block, text_of

__all__ = [
    "AGENT",
    "CHAT",
    "CLAUDE_CODE",
    "Before",
    "Rules",
    "assemble",
    "derived_id",
]

_THOUGHTS = frozenset({"items", "thinking", "thoughts", "unsigned_thinking"})
"""Fields of ``extra`` that hold text which a model wrote."""


def derived_id(session: str, place: int) -> str:
    """The id of message number *place*, counted from 0, if the source of a conversation has no
    ids.
    """
    digest = hashlib.sha256(f"{session}\n{place}".encode("utf-8", "replace")).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between families of formats."""

    each_text_opens_turn: bool = False
    """Every user message starts a turn, whatever came before; an empty one, too."""
    stand_ins: bool = False
    """A call without a result gets a neutral error result, which is marked as synthetic. A call
    after which nothing came stays open.
    """
    one_message_per_side: bool = False
    """Consecutive user messages become one message."""
    joins_ids: bool = False
    """Neighbours with the same id and role are one message that a writer had to split."""
    derives_ids: bool = False
    """Missing ids look like a UUID, and not like ``session/u1.0``. A second use of an id is
    noted.
    """
    left_out_as_records: bool = False
    """What has no place becomes records of the conversation, instead of its
    ``extra["unplaced"]``.
    """


AGENT = Rules(joins_ids=True)
"""The rules for coding agents and for lists of messages."""
CLAUDE_CODE = Rules(one_message_per_side=True)
"""The rules for Claude Code, which writes a line for each block."""
CHAT = Rules(each_text_opens_turn=True, stand_ins=True, derives_ids=True, left_out_as_records=True)
"""The rules for chat applications."""


class Before(msgspec.Struct, frozen=True):
    """The whole turns that a branch begins with, as they are in the path that it leaves."""

    messages: tuple[Message, ...] = ()
    interrupted: tuple[int, ...] = ()


class _Piece(msgspec.Struct, eq=False):
    """A message in the making: blocks of one recorded message. ``part`` is its number if the
    message was split.
    """

    recorded: RecordedMessage
    blocks: list[bytes]
    part: int = 0
    synthetic: tuple[int, ...] = ()
    has_own_id: bool = True
    joined: Sequence[RecordedMessage] = ()
    """The recorded messages that it consists of, if there are several."""


class _Step(msgspec.Struct, eq=False):
    """A reply, its calls, and the texts that came while it was the newest reply."""

    index: int
    reply: _Piece
    calls: list[Call]
    texts: dict[int, _Piece] = {}
    answers: list[_Piece] = []


class _Turn(msgspec.Struct, eq=False):
    number: int
    opening: list[_Piece] = []
    steps: list[_Step] = []
    closed: bool = False
    interrupted: bool = False

    def pieces(self) -> Iterator[_Piece]:
        yield from self.opening
        for step in self.steps:
            yield step.reply
            yield from step.answers


def assemble(
    recorded: Iterable[RecordedMessage],
    *,
    session: str,
    format: str,
    rules: Rules = AGENT,
    before: Before = Before(),  # noqa: B008 - a frozen value
    notes: Sequence[Note] = (),
    records: Sequence[msgspec.Raw] = (),
    system: str = "",
    summary: str = "",
    extra: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Conversation:
    """The conversation of the *recorded* messages, in their order.

    - *rules* are those of the format's family.
    - *before* is the beginning of the conversation; the recorded messages follow it.
    - *system* is the system prompt. System messages before the first message are appended to it,
      and later ones are left out.
    - *summary* is a summary whose place is unknown. A summary that is marked between messages takes
      precedence.
    - *notes*, *records*, *extra* and *fields* become fields of the conversation.
    """
    messages = list(joined(recorded) if rules.joins_ids else recorded)
    assembly = _Assembly(messages, session, rules, before)
    assembly.run()
    beside: dict[str, Any] = dict(extra or {})
    left_out = [msgspec.Raw(encode_json(entry)) for entry in assembly.left_out]
    if left_out and not rules.left_out_as_records:
        beside["unplaced"] = msgspec.Raw(encode_json(left_out))
    return Conversation(
        id=session,
        format=format,
        messages=(*before.messages, *assembly.messages),
        notes=tuple(sorted((*notes, *assembly.notes), key=lambda note: note.line)),
        interrupted=(
            *before.interrupted,
            *(turn.number for turn in assembly.turns if turn.interrupted),
        ),
        records=(*records, *(left_out if rules.left_out_as_records else ())),
        system="\n\n".join(text for text in (system, assembly.system) if text),
        summary=assembly.summary or summary,
        summary_upto=assembly.summary_upto,
        extra=beside,
        **fields,
    )


def _with_content(result: Record) -> bytes | None:
    """A result whose content is neither text nor a list, in the form that a message needs; None for
    any other result.
    """
    content = result.raw("content")
    if content is not None and content.startswith((b'"', b"[")):
        return None
    return encode_json({**result.fields, "content": "" if content is None else content.decode()})


class _Assembly:
    """One conversation in the making. ``run`` fills ``turns``, ``messages``, ``notes`` and
    ``left_out``.
    """

    def __init__(
        self, recorded: list[RecordedMessage], session: str, rules: Rules, before: Before
    ) -> None:
        self.session = session
        self.rules = rules
        self.before = before
        self.notes: list[Note] = []
        self.left_out: list[dict[str, Any]] = []
        self.turns: list[_Turn] = []
        self.messages: list[Message] = []
        self.recorded = recorded
        self.system = ""
        self.summary = ""
        self.summary_upto = 0
        self.placed: dict[int, int] = {}
        """The position of the first message made of each recorded one, by the object's identity."""

    def run(self) -> None:
        marks = [index for index, message in enumerate(self.recorded) if message.summary]
        marked = self.recorded[marks[-1] :] if marks else []
        self.system, self.recorded = self._without_system()
        self.blocks = [self._allowed(index) for index in range(len(self.recorded))]
        used = {call.id for message in self.before.messages for call in message.tool_calls}
        pairs = CallPairs(self.blocks, used, self._note, self._leave_out)
        self.calls, self.results, self.texts = pairs.calls, pairs.results, pairs.texts
        pairs_of = zip(self.recorded, pairs.renamed, strict=True)
        self.renamed = {id(message): renamed for message, renamed in pairs_of if renamed}
        self.steps: dict[int, _Step] = {}
        for index, message in enumerate(self.recorded):
            if message.role == "assistant":
                self._place_reply(index)
            else:
                self._place_user(index)
            if message.interrupted and self.turns:
                self.turns[-1].closed = self.turns[-1].interrupted = True
        self._place_results()
        self._make_messages()
        if marked:
            end = len(self.before.messages) + len(self.messages)
            places = (self.placed.get(id(message)) for message in marked)
            self.summary = marked[0].summary
            self.summary_upto = next((place for place in places if place is not None), end)

    def _note(self, index: int, what: str, detail: str = "", *, visible: bool = False) -> None:
        self.notes.append(Note(max(1, self.recorded[index].number), what, detail, visible))

    def _leave_out(self, index: int, blocks: Sequence[bytes], why: str, detail: str) -> None:
        """Leave out some *blocks* of a message, with a note."""
        self._note(index, why, detail, visible=True)
        self._keep(self.recorded[index], blocks, why)

    def _keep(
        self,
        message: RecordedMessage,
        blocks: Sequence[bytes],
        why: str,
        record: bytes = b"",
    ) -> None:
        """Keep *blocks* beside the messages, or the complete *record* that they come from."""
        fields: dict[str, Any] = {"id": message.id} if message.id else {}
        fields |= {"role": message.role, "content": [msgspec.Raw(raw) for raw in blocks]}
        for name in ("error", "usage", "extra"):
            if getattr(message, name):
                fields[name] = getattr(message, name)
        if self.rules.left_out_as_records:
            # Wrapped in an object, so that it does not look like a message in our own format.
            fields = {"left_out": why, "record": msgspec.Raw(record) if record else fields}
        self.left_out.append(fields)

    # What a message may contain.

    def _without_system(self) -> tuple[str, list[RecordedMessage]]:
        prompts: list[str] = []
        others: list[RecordedMessage] = []
        for message in self.recorded:
            if message.summary and not message.blocks:
                continue  # a summary mark, which is not a message
            if message.role != "system":
                others.append(message)
            elif not others and not self.before.messages:
                prompts.append(text_of([message], "\n\n"))
            else:
                detail = "a system message inside of the conversation"
                self.notes.append(Note(max(1, message.number), "system", detail, True))
                self._keep(message, message.blocks, "system", message.raw)
        return "\n\n".join(filter(None, prompts)), others

    def _allowed(self, index: int) -> list[bytes]:
        """The blocks of a message that its side may contain, with each call and result in valid
        form.
        """
        message = self.recorded[index]
        wrong = "tool_result" if message.role == "assistant" else "tool_use"
        allowed: list[bytes] = []
        for raw in message.blocks:
            kind = block_type(raw)
            is_pair = kind in ("tool_use", "tool_result")
            block = Record.of(raw if is_pair else None)
            if kind == wrong or (kind == "tool_use" and not block.text("name")):
                detail = f"a {kind} block in a message of the {message.role}"
                self._leave_out(index, [raw], "misplaced_block", detail)
            elif kind == "tool_result":
                allowed.append(_with_content(block) or raw)
            else:
                allowed.append(raw)
        return allowed

    # Turns.

    def _is_answered(self, reply: int) -> bool:
        """Has every call of this reply a result before the next reply?"""
        after = range(reply + 1, len(self.recorded))
        replies = (index for index in after if self.recorded[index].role == "assistant")
        end = next(replies, len(self.recorded))
        return all(-1 < call.answered_at < end for call in self.calls[reply])

    def _place_reply(self, index: int) -> None:
        message, blocks = self.recorded[index], self.blocks[index]
        if not blocks:
            detail = f"a reply without content{f', {message.id}' if message.id else ''}"
            lost = not _THOUGHTS.isdisjoint(message.extra)
            self._note(index, "empty", detail, visible=lost)
            says_more = message.blocks or message.extra or message.error
            if says_more or self.rules.left_out_as_records:
                self._keep(message, [], "empty", message.raw)
        elif not (self.turns or self.before.messages):
            self._note(index, "no_user_message", "a reply before any user text", visible=True)
            self._keep(message, blocks, "no_user_message", message.raw)
        else:
            step = _Step(index, _Piece(message, blocks), self.calls[index])
            self.steps[index] = step
            self._last_turn().steps.append(step)
            message.turn = self.turns[-1].number

    def _last_turn(self) -> _Turn:
        if not self.turns:
            self.turns.append(_Turn(self.before.messages[-1].turn))
        return self.turns[-1]

    def _place_user(self, index: int) -> None:
        """Decide to which turn the texts of a message belong. Results follow their calls."""
        message, texts = self.recorded[index], self.texts[index]
        is_empty = not message.blocks
        if is_empty and not self.rules.each_text_opens_turn:
            named = f", {message.id}" if message.id else ""
            self._note(index, "empty", f"a user message without content{named}")
        if not texts and not (is_empty and self.rules.each_text_opens_turn):
            return
        piece = _Piece(message, texts)
        last = self.turns[-1] if self.turns else None
        if last is None or last.closed:
            last = self._open_turn(piece)
        elif last.steps and not message.starts and self._joins(index, last.steps[-1]):
            last.steps[-1].texts[index] = piece
        elif not last.steps and not self.rules.each_text_opens_turn:
            last.opening.append(piece)
        else:
            if last.steps and last.steps[-1].calls and not message.starts:
                last.interrupted = True
            last = self._open_turn(piece)
        message.turn = last.number

    def _joins(self, index: int, step: _Step) -> bool:
        """Does the text of this message belong to the tool loop of *step*?"""
        message = self.recorded[index]
        if step.index in self.results[index]:
            return True
        if not step.calls or self.rules.each_text_opens_turn:
            return False
        return self._is_answered(step.index) if message.joins is None else message.joins

    def _open_turn(self, piece: _Piece) -> _Turn:
        number = self.turns[-1].number if self.turns else self._turns_before()
        self.turns.append(_Turn(number + 1, [piece]))
        return self.turns[-1]

    def _turns_before(self) -> int:
        return self.before.messages[-1].turn if self.before.messages else 0

    # Results behind their calls.

    def _place_results(self) -> None:
        self._note_moved()
        parts = [1 if texts else 0 for texts in self.texts]
        last = self.turns[-1].steps[-1:] if self.turns else []
        for turn in self.turns:
            for step in turn.steps:
                step.answers = self._answers(step, parts, is_last=step in last)
        for index, calls in enumerate(self.calls):
            for call in calls:
                if call.result is None and index in self.steps:
                    detail = f"call {call.id} has no result"
                    is_open = self.rules.stand_ins and self.steps[index] in last
                    if not is_open:
                        self._note(index, "unanswered_call", detail)

    def _note_moved(self) -> None:
        """Note the results that were not recorded directly behind their calls. Leave out those of
        calls that have no place themselves.
        """
        newest = -1
        texts_since = False
        for index, results in enumerate(self.results):
            if index in self.steps:
                newest, texts_since = index, False
            for reply, calls in results.items():
                if reply not in self.steps:
                    for call in calls:
                        raws = [call.result or b""]
                        self._leave_out(index, raws, "orphan_result", "its call has no place")
                elif reply != newest or (texts_since and index not in self.steps[reply].texts):
                    self._note(index, "moved_result", "put behind its call")
            is_user = self.recorded[index].role == "user"
            texts_since = texts_since or (is_user and bool(self.texts[index]))

    def _answers(self, step: _Step, parts: list[int], *, is_last: bool) -> list[_Piece]:
        """The user messages behind a reply: results in the order of its calls, then texts."""
        origin = next((call.answered_at for call in step.calls if call.result), -1)
        by_message: dict[int, list[bytes]] = {}
        stand_ins: list[bytes] = []
        for call in step.calls:
            if call.result is not None:
                origin = call.answered_at
                by_message.setdefault(origin, []).append(call.result)
            elif self.rules.stand_ins and not is_last:
                # A stand-in joins the results before it, or the first results.
                stand_ins.append(result_block(call.id, MISSING, is_error=True))
                by_message.setdefault(origin, []).append(stand_ins[-1])
        pieces = []
        for index, results in by_message.items():
            synthetic = tuple(n for n, raw in enumerate(results) if raw in stand_ins)
            if index in step.texts:
                text = step.texts[index]
                text.blocks, text.synthetic = results + text.blocks, synthetic
            elif index < 0:
                pieces.append(_Piece(_behind(step.reply.recorded), results, 0, synthetic, False))
            else:
                pieces.append(_Piece(self.recorded[index], results, parts[index], synthetic))
                parts[index] += 1
        # Results come first, so messages with results and text stand before messages with text
        # alone.
        with_results = [piece for index, piece in step.texts.items() if index in by_message]
        alone = [piece for index, piece in step.texts.items() if index not in by_message]
        return pieces + with_results + alone

    # Messages.

    def _make_messages(self) -> None:
        self.ids = {message.id for message in self.before.messages}
        for turn in self.turns:
            counts: dict[Role, int] = {"user": 0, "assistant": 0}
            pieces: Iterable[_Piece] = turn.pieces()
            for piece in _merged(pieces) if self.rules.one_message_per_side else pieces:
                role: Role = "assistant" if piece.recorded.role == "assistant" else "user"
                place = len(self.before.messages) + len(self.messages)
                for recorded in piece.joined or (piece.recorded,):
                    self.placed.setdefault(id(recorded), place)
                self.messages.append(self._message(turn, piece, role, counts[role]))
                counts[role] += 1

    def _message(self, turn: _Turn, piece: _Piece, role: Role, position: int) -> Message:
        recorded = piece.recorded
        extra = recorded.extra
        if role == "assistant" and id(recorded) in self.renamed:
            extra = {**extra, RECORDED_IDS: self.renamed[id(recorded)]}
        return Message(
            id=self._id(turn, piece, role, position),
            session=self.session,
            turn=turn.number,
            role=role,
            body=join_blocks(piece.blocks),
            created_at=recorded.created_at or recorded.completed_at,
            completed_at=recorded.completed_at or recorded.created_at,
            synthetic=piece.synthetic,
            model=recorded.model,
            provider=recorded.provider,
            usage=recorded.usage,
            stop_reason=recorded.stop_reason,
            error=recorded.error,
            extra=msgspec.Raw(encode_json(extra)) if extra else msgspec.UNSET,
        )

    def _id(self, turn: _Turn, piece: _Piece, role: Role, position: int) -> str:
        recorded = piece.recorded
        if not piece.has_own_id:
            name = f"{self.messages[-1].id}#results"
        elif recorded.id:
            name = f"{recorded.id}+{piece.part}" if piece.part else recorded.id
        elif self.rules.derives_ids:
            name = derived_id(self.session, len(self.before.messages) + len(self.messages))
        else:
            owner = TurnId("u" if role == "user" else "a", turn.number)
            name = message_id(self.session, owner, position)
        unique, number = name, 1
        while unique in self.ids:
            number += 1
            unique = f"{name}~{number}"
        if unique != name and self.rules.derives_ids:
            detail = f"a second message with the id {name}: it is {unique} here"
            self.notes.append(Note(max(1, recorded.number), "duplicate_id", detail))
        self.ids.add(unique)
        return unique


def _behind(reply: RecordedMessage) -> RecordedMessage:
    """The message for stand-in results behind *reply*."""
    time = reply.completed_at or reply.created_at
    return RecordedMessage(role="user", blocks=[], number=reply.number, created_at=time)


def _merged(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """Consecutive user messages as one message: results first, then texts."""
    group: list[_Piece] = []
    for piece in pieces:
        if piece.recorded.role == "assistant":
            yield from _one_piece(group)
            group = []
            yield piece
        else:
            group.append(piece)
    yield from _one_piece(group)


def _one_piece(group: Sequence[_Piece]) -> Iterator[_Piece]:
    if not group:
        return
    blocks = [raw for piece in group for raw in piece.blocks]
    blocks.sort(key=lambda raw: block_type(raw) != "tool_result")
    times = [piece.recorded.created_at for piece in group if piece.recorded.created_at]
    recorded = msgspec.structs.replace(
        group[0].recorded,
        created_at=min(times, default=0.0),
        completed_at=max(times, default=0.0),
    )
    yield _Piece(recorded, blocks, joined=[piece.recorded for piece in group])
