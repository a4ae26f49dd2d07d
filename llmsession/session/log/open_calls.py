"""Pending calls as ``ToolUse`` events, from a record or from the fold of the log."""

from __future__ import annotations

from llmsession.turns.blocks import ToolUseBlock, parse_blocks
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import ToolsRequested

from .state import SessionState

__all__ = ["tool_uses", "unanswered_uses"]


def tool_uses(record: ToolsRequested) -> list[ToolUse]:
    """The calls of *record*, in order."""
    runners = {call.id: call.runner for call in record.calls}
    return [
        ToolUse(
            seq=record.seq,
            turn=record.turn,
            step=record.step,
            id=block.id,
            name=block.name,
            input=block.input,
            runner=runners[block.id],
        )
        for block in parse_blocks(record.reply.body)
        if isinstance(block, ToolUseBlock) and block.id in runners
    ]


def unanswered_uses(state: SessionState) -> tuple[ToolUse, ...]:
    """The calls of the running turn that have no result in the log, in order."""
    turn = state.running()
    if turn is None or not turn.calls:
        return ()
    inputs = {call.id: call.input for call in turn.staged[-1].tool_calls}
    return tuple(
        ToolUse(
            seq=turn.calls_seq,
            turn=turn.number,
            step=turn.step,
            id=call.id,
            name=call.name,
            input=inputs[call.id],
            runner=call.runner,
        )
        for call in turn.unanswered
    )
