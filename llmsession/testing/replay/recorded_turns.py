"""A recorded conversation as something to act out: what is sent, what is answered, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from llmsession.compaction.recall import RECALL_TOOL_NAME
from llmsession.errors import InvalidConfig, InvalidMessage
from llmsession.session.values.config import SessionConfig, Tool, ToolResult
from llmsession.transcripts import Conversation
from llmsession.turns.blocks import (
    Content,
    OpaqueBlock,
    TextBlock,
    block_type,
    encode_blocks,
    join_blocks,
    split_blocks,
)
from llmsession.turns.messages import Message
from llmsession.turns.reply import Reply, can_go_on, committed_blocks
from llmsession.turns.stop import Follow, stop_rule
from llmsession.turns.usage import Usage

__all__ = [
    "NO_RESULT",
    "RecordedResult",
    "RecordedStep",
    "RecordedTurn",
    "read_turns",
    "recorded_tools",
]

NO_RESULT = "Tool result unavailable; do not assume the call ran."
"""What answers a call that the recording has no result for, where the turn goes on after it."""


class RecordedResult(msgspec.Struct, frozen=True):
    """A recorded result's content, blocks byte for byte, and whether it was an error."""

    content: Content
    is_error: bool

    def answering(self, call_id: str) -> ToolResult:
        """It as the result of the live call *call_id*."""
        return ToolResult(call_id, self.content, self.is_error)


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded reply, the results of its calls, and what the user said beside them."""

    reply: Message
    calls: tuple[str, ...]
    results: dict[str, RecordedResult]
    steer: tuple[OpaqueBlock, ...] = ()


class RecordedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded turn, as far as a session can be taken through it; ``position`` counts from 0.

    ``messages`` are what it has to leave in a history. A reply that ends a turn ends it here too:
    ``left_out`` counts, by reason, what came after it in the recording, texts without text, and
    results that no session takes. ``refused`` says that the whole turn cannot be sent, and why.
    """

    position: int
    messages: tuple[Message, ...]
    opening: tuple[OpaqueBlock, ...]
    steps: tuple[RecordedStep, ...]
    left_out: Counter[str]
    refused: str | None = None

    @property
    def unanswered(self) -> frozenset[str]:
        """The calls whose result is not the recording's: it has none, or a session answers them
        itself."""
        return frozenset(
            call.id
            for step in self.steps
            for call in step.reply.tool_calls
            if call.id not in step.results or call.name == RECALL_TOOL_NAME
        )


def read_turns(conversation: Conversation) -> tuple[RecordedTurn, ...]:
    """The turns of *conversation*, in order."""
    return tuple(
        _read_turn(position, messages) for position, messages in enumerate(conversation.turns)
    )


def _read_turn(position: int, messages: tuple[Message, ...]) -> RecordedTurn:
    left_out: Counter[str] = Counter()
    groups = [_with_its_results(group, left_out) for group in _by_reply(messages)]
    opening = _said(groups[0], left_out)
    steps: list[RecordedStep] = []
    played = list(groups[0])
    replies_at_end: list[Sequence[msgspec.Raw]] = []
    for count, (reply, *answers) in enumerate(groups[1:], 2):
        step = _read_step(reply, answers, left_out)
        steps.append(step)
        played += [reply, *answers]
        replies_at_end = [*replies_at_end, split_blocks(reply.body)]
        if _ends_turn(step, replies_at_end):
            left_out["unplayed_reply"] += len(groups) - count
            played[-1:] = [_as_committed(reply)]
            break
        replies_at_end = [] if answers else replies_at_end
    return RecordedTurn(
        position=position,
        messages=tuple(played),
        opening=opening,
        steps=tuple(steps),
        left_out=left_out,
        refused=next(filter(None, map(_refusal, [opening, *(step.steer for step in steps)])), None),
    )


def _by_reply(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """What came before the first reply; then each reply with what answers it."""
    group: list[Message] = []
    for message in messages:
        if message.is_assistant:
            yield group
            group = []
        group.append(message)
    yield group


def _with_its_results(group: Sequence[Message], left_out: Counter[str]) -> list[Message]:
    """*group* without results of calls that its reply did not make, or that have one: a session
    takes none. A file that lost a line, or was put together, has some."""
    waiting = {call.id for message in group if message.is_assistant for call in message.tool_calls}
    whole = []
    for message in group:
        raws = split_blocks(message.body)
        stays = []
        for index, raw in enumerate(raws):
            if message.is_user and block_type(raw) == "tool_result":
                call = msgspec.json.decode(raw, type=_ResultId).tool_use_id
                if call not in waiting:
                    left_out["orphan_result"] += 1
                    continue
                waiting.discard(call)
            stays.append(index)
        if len(stays) < len(raws):
            synthetic = tuple(stays.index(index) for index in message.synthetic if index in stays)
            body = join_blocks([bytes(raws[index]) for index in stays])
            message = msgspec.structs.replace(message, body=body, synthetic=synthetic)
        if stays or not raws:
            whole.append(message)
    return whole


def _read_step(reply: Message, answers: Sequence[Message], left_out: Counter[str]) -> RecordedStep:
    calls = tuple(call.id for call in reply.tool_calls)
    return RecordedStep(
        reply=reply,
        calls=calls,
        results={call: result for call, result in _results(answers, left_out) if call in calls},
        steer=_said(answers, left_out),
    )


def _ends_turn(step: RecordedStep, replies_at_end: Sequence[Sequence[msgspec.Raw]]) -> bool:
    match stop_rule(step.reply.stop_reason or ("tool_use" if step.calls else "end_turn")).follow:
        case Follow.COMMIT | Follow.RUN_TOOLS:
            return not step.calls and not step.steer
        case Follow.COMMIT_CUT:
            return not step.steer
        case Follow.CONTINUE:
            return not (step.calls or step.steer or can_go_on(replies_at_end))
        case _:
            return True


def _as_committed(reply: Message) -> Message:
    """A reply that ends its turn, as it is kept: one that was cut loses its calls."""
    raws = tuple(bytes(raw) for raw in split_blocks(reply.body))
    said = Reply(blocks=raws, stop_reason=reply.stop_reason or "end_turn", usage=Usage())
    return msgspec.structs.replace(reply, body=join_blocks(committed_blocks(said)))


def _said(messages: Iterable[Message], left_out: Counter[str]) -> tuple[OpaqueBlock, ...]:
    """The user's blocks other than results, byte for byte."""
    said = []
    for message in messages:
        for block, raw in zip(message.content, split_blocks(message.body), strict=True):
            kind = block_type(raw)
            if isinstance(block, TextBlock) and not block.text.strip():
                left_out["blank_text"] += 1
            elif kind != "tool_result":
                said.append(OpaqueBlock(kind, bytes(raw)))
    return tuple(said)


def _refusal(said: tuple[OpaqueBlock, ...]) -> str | None:
    """Why a session does not take *said* from a user; None if it does, or if it is nothing."""
    kinds = {block.type for block in said} & {"tool_use", "thinking", "redacted_thinking"}
    if kinds:
        return f"the user says {' and '.join(sorted(kinds))}"
    try:
        encode_blocks(said)
    except InvalidMessage as error:
        return str(error)
    return None


class _ResultId(msgspec.Struct):
    tool_use_id: Any = ""


class _Result(msgspec.Struct):
    tool_use_id: str = ""
    content: msgspec.Raw = msgspec.Raw(b'""')
    is_error: bool | None = None


def _results(
    messages: Iterable[Message], left_out: Counter[str]
) -> Iterator[tuple[str, RecordedResult]]:
    for message in messages:
        for raw in split_blocks(message.body):
            if block_type(raw) != "tool_result":
                continue
            try:
                result = msgspec.json.decode(raw, type=_Result)
                content = _content(bytes(result.content))
                encode_blocks(content)
            except (InvalidMessage, msgspec.ValidationError):
                left_out["refused_result"] += 1
            else:
                yield result.tool_use_id, RecordedResult(content, bool(result.is_error))


def _content(raw: bytes) -> Content:
    if raw.startswith(b"["):
        return [OpaqueBlock(block_type(part), bytes(part)) for part in split_blocks(raw)]
    return msgspec.json.decode(raw, type=str | None) or ""


def recorded_tools(conversation: Conversation) -> tuple[Tool, ...]:
    """Bare definitions of the tools that were called, in order of their first call; one named
    ``placeholder`` if there were none. Names that a session does not take are left out: a model
    may call what it was not offered."""
    names = [call.name for message in conversation.messages for call in message.tool_calls]
    tools = []
    for name in dict.fromkeys(names):
        try:
            SessionConfig(model="recorded", tools=(Tool(name=name),)).checked()
        except InvalidConfig:
            continue
        tools.append(Tool(name=name))
    return tuple(tools) or (Tool(name="placeholder"),)
