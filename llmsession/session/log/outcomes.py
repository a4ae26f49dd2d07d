"""How a turn ended, as its last record says."""

from __future__ import annotations

from llmsession.turns.ids import TurnId
from llmsession.turns.records import Terminal, TurnCommitted, TurnFailed, TurnImported
from llmsession.turns.usage import Usage

from ..values.outcome import TurnOutcome
from .state import OpenTurn

__all__ = ["outcome_of", "outcome_of_import"]


def outcome_of(
    record: Terminal, turn: OpenTurn, still_running: tuple[str, ...] = ()
) -> TurnOutcome:
    """The outcome of *turn*, which the fold of *record* has just ended.

    *still_running* names the turn's works that ignored their cancellation; they are not in the log.
    """
    speaker = TurnId("u", record.turn)
    unread = tuple(turn.steers)
    if isinstance(record, TurnCommitted):
        return TurnOutcome(
            turn=speaker,
            status="committed",
            stop_reason=record.stop_reason,
            usage=record.usage,
            messages=turn.staged,
            unread_steers=unread,
            still_running=still_running,
            error=record.error,
            exceeded=record.exceeded,
        )
    failed = isinstance(record, TurnFailed)
    return TurnOutcome(
        turn=speaker,
        status="failed" if failed else "aborted",
        stop_reason=record.cause if isinstance(record, TurnFailed) else record.reason,
        usage=record.usage,
        user_body=turn.body,
        unread_steers=unread,
        calls=record.calls,
        still_running=still_running,
        error=record.error if isinstance(record, TurnFailed) else None,
        exceeded=record.exceeded if isinstance(record, TurnFailed) else None,
        failure=record.failure if isinstance(record, TurnFailed) else None,
    )


def outcome_of_import(record: TurnImported) -> TurnOutcome:
    """The outcome of a turn that another system ran: committed, with the messages it has."""
    last = record.messages[-1]
    return TurnOutcome(
        turn=TurnId("u", record.turn),
        status="committed",
        stop_reason=last.stop_reason or "imported",
        usage=Usage(),
        messages=record.messages,
        error=last.error,
    )
