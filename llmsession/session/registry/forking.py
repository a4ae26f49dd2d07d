"""How a fork becomes a live session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmsession.errors import SessionClosed, SessionExists

from ..actor.actor import Actor
from ..tasks.promise import Promise
from ..values import commands as c
from ..values.labels import reserved_labels

if TYPE_CHECKING:
    from ..manager import SessionManager

__all__ = ["fork_of"]


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
        async with manager.loader.forked(parent.session, point, given, shared) as (state, hold):
            return await manager.add(state, manager.bound(state, tools), hold)

    try:
        return await manager.bring(point.session, make)
    except SessionExists:
        # Of a command that came again: it is there already.
        row = await manager.store.row(point.session)
        if asked.command_id is None or row.parent != parent.session:
            raise
        return await manager.activate(point.session, tools=tools)
