"""Redacts a log: the same records at the same places, without their content.

A redacted log must fold to the same state as the original one. So every record keeps its kind, and
every message stays a message. The content of a redacted message is a list without blocks, which no
real message has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from llmsession.turns import records as r
from llmsession.turns.blocks import join_blocks, split_blocks, text_block
from llmsession.turns.messages import Message

__all__ = [
    "NOTHING_SAID",
    "NO_TRACE",
    "Redaction",
    "Trace",
    "merged",
    "redact_answer",
    "turns_in_answer",
    "with_receipt",
]

NOTHING_SAID = msgspec.Raw(b"[]")
"""The content of a redacted message."""
_EMPTY_STEER = msgspec.Raw(b'[{"type":"text","text":""}]')
"""The message of its steers closes a step without calls, and that message needs a block."""


class Trace(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Where something of a turn is: it can be forgotten without a look at everything else."""

    calls: tuple[str, ...] = ()
    """The ids of its calls."""
    records: tuple[int, ...] = ()
    """The seqs of records that may repeat its content, beside those from its acceptance to its
    commit. If it was dropped, the record of its end is one of them. Those whose receipts name its
    calls are not: ``SessionState.receipts_by_turn`` has them.
    """
    commands: tuple[str, ...] = ()
    """The ids of commands whose answers have its outcome."""


NO_TRACE = Trace()


class Redaction(msgspec.Struct, frozen=True):
    """What to remove from the records before ``seq``."""

    turns: frozenset[int]
    """The turns whose content is removed. What an imported file held beside its messages is
    removed, too.
    """
    calls: frozenset[str]
    """The call ids whose results and summaries are removed."""
    receipts: dict[int, str]
    """New texts for receipts that other turns carry, by turn."""
    seq: int
    seed: bool
    """Is the session's seed removed as well?"""
    ranges: tuple[tuple[int, int], ...] = ()
    """The records that may have such content: the first and the last seq of each range."""

    def joined(self, other: Redaction | None) -> Redaction:
        """This redaction and the earlier one *other* as one."""
        if other is None:
            return self
        return Redaction(
            self.turns | other.turns,
            self.calls | other.calls,
            {**other.receipts, **self.receipts},
            self.seq,
            self.seed or other.seed,
            merged(self.ranges + other.ranges),
        )

    def apply(self, record: r.Record) -> r.Record:
        """*record* without the content to remove; *record* itself if it has none."""
        if record.seq >= self.seq:
            return record
        match record:
            case r.SessionCreated() | r.SessionForked():
                record = _origin(record, seed=self.seed)
            case r.TurnAccepted() | r.TurnStarted() if record.turn not in self.turns:
                record = self._with_receipt(record)
            case _:
                record = _said(record, self.turns, self.calls)
        return _commands(record, self.turns, self.receipts)

    def _with_receipt(self, record: r.TurnAccepted | r.TurnStarted) -> r.Record:
        if record.receipt is None or record.turn not in self.receipts:
            return record
        return replace(record, receipt=self.receipts[record.turn])


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """*ranges* in order. Ranges that touch or overlap become one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            before = joined.pop()
            first, last = before[0], max(before[1], last)
        joined.append((first, last))
    return tuple(joined)


def _said(record: r.Record, turns: Collection[int], calls: Collection[str]) -> r.Record:
    match record:
        case r.SummariesStored():
            left = {call: text for call, text in record.summaries.items() if call not in calls}
            return record if left == record.summaries else replace(record, summaries=left)
        case r.CompactionApplied():
            return _compacted(record, calls) if turns else record
    if r.turn_of(record) not in turns:
        return record
    match record:
        case r.TurnAccepted():
            return replace(record, body=NOTHING_SAID, receipt=_empty(record.receipt), seed=None)
        case r.TurnStarted():
            return replace(record, receipt=_empty(record.receipt), seed=None)
        case r.SteerAccepted():
            return replace(record, body=_EMPTY_STEER)
        case r.ToolsRequested():
            return replace(record, reply=_silent(record.reply), calls=_pending_calls(record))
        case r.ToolsAnswered():
            return replace(record, answers=())
        case r.StepCompleted():
            return replace(record, reply=_silent(record.reply) if record.reply else None)
        case r.TurnCommitted():
            silent = _silent(record.reply) if record.reply else None
            return replace(record, reply=silent, error=_empty(record.error))
        case r.TurnAborted():
            return replace(record, calls=())
        case r.TurnFailed():
            return replace(record, calls=(), error="", failure=None)
        case r.TurnImported():
            silenced = tuple(_silent_message(message) for message in record.messages)
            return replace(record, messages=silenced)
    return record


def _compacted(record: r.CompactionApplied, calls: Collection[str]) -> r.CompactionApplied:
    # A prefix summary or an injected text may quote any turn. Removing it changes no state, because
    # the view that it belonged to ended when the turns were forgotten. The reason is removed, too:
    # a policy is foreign code and may quote the conversation in it.
    redacted = replace(
        record,
        reason="",
        shown_results={
            call: text for call, text in record.shown_results.items() if call not in calls
        },
        inputs={call: raw for call, raw in record.inputs.items() if call not in calls},
        texts={},
        prefix_summary=None,
        injected=(),
    )
    return record if redacted == record else redacted


def _origin(record: r.SessionCreated | r.SessionForked, *, seed: bool) -> r.Record:
    source = record.source
    if source is not None and source != (bare := r.Source(format=source.format, id=source.id)):
        record = replace(record, source=bare)
    if isinstance(record, r.SessionCreated) and seed and record.seed not in (None, r.Seed("")):
        record = replace(record, seed=r.Seed(""))
    return record


def _empty(text: str | None) -> str | None:
    return None if text is None else ""


def _silent(reply: r.AssistantReply) -> r.AssistantReply:
    return replace(reply, body=NOTHING_SAID)


def _silent_message(message: Message) -> Message:
    return replace(message, id="", body=NOTHING_SAID, synthetic=(), error=None, extra=msgspec.UNSET)


def _pending_calls(record: r.ToolsRequested) -> tuple[r.PendingCall, ...]:
    # The ids stay. A message answers each call, and a late result must not match a new call.
    return tuple(r.PendingCall(call.id, "", call.runner) for call in record.calls)


def _commands(record: r.Record, turns: Collection[int], receipts: Mapping[int, str]) -> r.Record:
    answers = tuple(redact_answer(command, turns, receipts) for command in record.commands)
    return record if answers == record.commands else replace(record, commands=answers)


def turns_in_answer(command: r.CommandAnswer) -> list[int]:
    """The turns whose outcomes are in the answer to *command*."""
    if b'"turns"' not in bytes(command.answer):  # only an interrupt's answer has some
        return []
    answer = msgspec.json.decode(command.answer)
    outcomes = answer.get("turns") if isinstance(answer, dict) else None
    return [outcome["turn"]["number"] for outcome in outcomes or ()]


def redact_answer(
    command: r.CommandAnswer, turns: Collection[int], receipts: Mapping[int, str]
) -> r.CommandAnswer:
    """*command* without the content of *turns* in its answer, and with the new texts of *receipts*,
    by turn.

    The answer to an interrupt holds whole outcomes.
    """
    answer = msgspec.json.decode(command.answer)
    outcomes = answer.get("turns") if isinstance(answer, dict) else None
    if not outcomes:
        return command
    left = [_redacted_outcome(outcome, turns, receipts) for outcome in outcomes]
    if left == outcomes:
        return command
    return replace(command, answer=msgspec.Raw(msgspec.json.encode({**answer, "turns": left})))


def _redacted_outcome(
    outcome: dict[str, Any], turns: Collection[int], receipts: Mapping[int, str]
) -> dict[str, Any]:
    number = outcome["turn"]["number"]
    if number in turns:
        said: dict[str, Any] = {"messages": [], "user_body": [], "unread_steers": [], "calls": []}
        said["error"] = said["failure"] = None
        return {**outcome, **{name: value for name, value in said.items() if name in outcome}}
    if number in receipts and (messages := outcome.get("messages")):  # else it was dropped
        first = msgspec.json.decode(msgspec.json.encode(messages[0]), type=Message)
        shorter = msgspec.json.encode(with_receipt(first, receipts[number]))
        return {**outcome, "messages": [msgspec.json.decode(shorter), *messages[1:]]}
    return outcome


def with_receipt(message: Message, receipt: str) -> Message:
    """*message*, the first of a turn, with *receipt* instead of its own; without one if it is
    "".
    """
    blocks: list[bytes | msgspec.Raw] = [*split_blocks(message.body)[:-1]]
    synthetic = message.synthetic[:-1]
    if receipt:
        synthetic = (*synthetic, len(blocks))
        blocks.append(text_block(receipt))
    return replace(message, body=join_blocks(blocks), synthetic=synthetic)
