"""Forks: their own first records, the messages that they share, and how one comes to life."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from llmsession.errors import SessionClosed, SessionExists
from llmsession.turns import records as r
from llmsession.turns.messages import Message

from ..actor.actor import Actor
from ..log.history_cuts import first_kept
from ..log.state import SessionState
from ..tasks.promise import Promise
from ..values import commands as c
from ..values.labels import reserved_labels

if TYPE_CHECKING:
    from ..manager import SessionManager

__all__ = ["Branch", "fork_of", "fork_records", "shared_history"]


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


async def fork_of(
    manager: SessionManager, parent: Actor, asked: c.Fork, labels: dict[str, str] | None
) -> Actor:
    """The fork that *asked*, a command of *parent*'s, is about. Raises as ``LLMSession.fork``."""
    forked: Promise[Actor] = Promise()

    async def work() -> None:
        try:
            forked.set(await _forked(manager, parent, asked, labels))
        except Exception as error:
            forked.fail(error)
        finally:
            stopped = f"the manager was stopped while it forked session {parent.session!r}"
            forked.fail(SessionClosed(stopped))

    # A caller that is cancelled does not take the command back.
    manager.start(f"fork of {parent.session}", work)
    try:
        return await forked.wait()
    except BaseException:
        manager.sweeper.later()  # perhaps it comes, and nobody holds it
        raise


async def _forked(
    manager: SessionManager, parent: Actor, asked: c.Fork, labels: dict[str, str] | None
) -> Actor:
    point = await asked.promise.wait()
    tools = [tool for tool in parent.core.config.bound_tools.values() if tool.run is not None]

    async def make() -> Actor:
        own = reserved_labels(parent.state.labels)
        given = parent.state.labels if labels is None else {**labels, **own}
        shared = parent.state.history
        async with manager.loader.forked(parent.session, point, given, shared) as (state, lease):
            return await manager.add(state, manager.bound(state, tools), lease)

    try:
        return await manager.bring(point.session, make)
    except SessionExists:
        # Of a command that came again: it is there already.
        row = await manager.store.row(point.session)
        if asked.command_id is None or row.parent != parent.session:
            raise
        return await manager.activate(point.session, tools=tools)
