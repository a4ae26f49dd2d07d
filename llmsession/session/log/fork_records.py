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
    """What an imported branch has of its own: its configuration, its source, its turns."""

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
    """The first records of *session*'s own, whose *state* is the fold of those that it shares
    with *parent*; all of an *imported* branch. Same state, same records.

    Where the parent has forgotten what the fork would begin with, the fork forgets it, too: it
    is out of the records already, and the history would begin with messages that say nothing.
    """
    forked = r.SessionForked(
        session=session,
        parent=parent,
        turn_kept=state.head_turn or 0,
        config=imported.config if imported else state.config,
        labels=labels,
        source=imported.source if imported else None,
    )
    own = imported.records if imported else ()
    before = first_kept(state.history)
    if before is None:
        return forked, *own
    edge = state.accepted_at[before] if before else state.head + 1
    forgotten = r.ConversationForgotten(before=before, generation=state.generation + 1, edge=edge)
    return forked, forgotten, *own


def shared_history(history: tuple[Message, ...], others: Sequence[Message]) -> tuple[Message, ...]:
    """*history* with the objects of *others* for its equal beginning: they are kept once."""
    same = 0
    for mine, theirs in zip(history, others, strict=False):
        if mine != theirs:
            break
        same += 1
    return (*others[:same], *history[same:])
