"""The first records of a fork's own log, and the messages that it shares with its parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from llmsession.turns import records as r
from llmsession.turns.messages import Message

from .history_cuts import first_kept
from .state import SessionState

__all__ = ["Branch", "fork_records", "shared_history"]


class Branch(NamedTuple):
    """The part of an imported branch that its parent does not have."""

    config: msgspec.Raw
    source: r.Source
    records: Sequence[r.Record]


def fork_records(
    state: SessionState,
    session: str,
    parent: str,
    labels: dict[str, str],
    imported: Branch | None = None,
) -> tuple[r.Record, ...]:
    """The first records of *session*'s own log, or all records of an *imported* branch.

    *state* is the fold of the records that it shares with *parent*. The same state gives the same
    records.

    If the parent has forgotten the beginning of the fork's history, the fork forgets it, too. The
    content is erased from the shared records, so the fork's history would begin with empty
    messages.
    """
    forked = r.SessionForked(
        session=session,
        parent=parent,
        turn_kept=state.head_turn or 0,
        config=imported.config if imported else state.config,
        labels=labels,
        source=imported.source if imported else None,
    )
    branch = imported.records if imported else ()
    # Looking at the messages would decode each of them.
    before = first_kept(state.messages) if state.erased else None
    if before is None:
        return forked, *branch
    edge = state.accepted_at[before] if before else state.head + 1
    forgotten = r.ConversationForgotten(before=before, generation=state.generation + 1, edge=edge)
    return forked, forgotten, *branch


def shared_history(history: tuple[Message, ...], others: Sequence[Message]) -> tuple[Message, ...]:
    """*history*, with the objects of *others* where both begin with equal messages.

    So equal messages are in memory only once.
    """
    same = 0
    for mine, theirs in zip(history, others, strict=False):
        if mine != theirs:
            break
        same += 1
    return (*others[:same], *history[same:])
