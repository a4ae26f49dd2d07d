"""How a fork becomes a live session."""

from __future__ import annotations

from llmsession.errors import SessionClosed, SessionExists, contained_in_work

from ..actor.actor import Actor
from ..tasks.promise import Promise
from ..values import commands as c
from ..values.config import tools_with_callables
from ..values.labels import of_fork
from .runtime import Runtime

__all__ = ["fork_of"]


async def fork_of(
    runtime: Runtime, parent: Actor, command: c.Fork, labels: dict[str, str] | None
) -> Actor:
    """The fork that *command* asks for, which was enqueued at *parent*.

    Raises the errors of ``LLMSession.fork``.
    """
    forked: Promise[Actor] = Promise()

    async def work() -> None:
        try:
            forked.set(await _fork(runtime, parent, command, labels))
        except BaseException as error:
            forked.fail(contained_in_work(error))
        finally:
            stopped = f"the SessionManager was closed while it forked session {parent.session!r}"
            forked.fail(SessionClosed(stopped))

    # The fork is a work of the manager, because cancelling the caller does not undo the command.
    runtime.run_work(f"fork of {parent.session}", work)
    try:
        return await forked.wait()
    except BaseException:
        # The fork may be created after its caller gave up. Then no handle refers to it, so look for
        # idle sessions later.
        runtime.evictor.schedule()
        raise


async def _fork(
    runtime: Runtime, parent: Actor, command: c.Fork, labels: dict[str, str] | None
) -> Actor:
    point = await command.promise.wait()
    tools = tools_with_callables(parent.core.config)
    own_labels = of_fork(parent.state.labels, labels)
    try:
        return await runtime.fork(
            parent.session, point, own_labels, parent.state.messages, tools=tools
        )
    except SessionExists:
        # A repeated command finds the fork that the first one created.
        row = await runtime.store.row(point.session)
        if command.command_id is None or row.parent != parent.session:
            raise
        return await runtime.activate(point.session, tools=tools)
