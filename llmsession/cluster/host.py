"""A service as a host of a cluster: it joins, hands over what is placed elsewhere, and leaves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from llmsession.errors import InvalidConfig, SessionClosed, SessionError, StoreError
from llmsession.session import SessionManager
from llmsession.session.core.session_log import default_logger
from llmsession.session.manager import runtime_of
from llmsession.session.unfinished import recover_unfinished
from llmsession.session.values.commands import HandOverWhen
from llmsession.transport import Service
from llmsession.transport.wire.addresses import parse_address

from .observing import observing
from .placement import Change, View, host_of
from .routing import HostDirectory, Routing

if TYPE_CHECKING:
    from .directory import Directory

__all__ = ["ClusterHost", "advertised", "joined"]

AT_ONCE = 64
"""So many sessions are handed over at the same time, of those that wait for the end of a step."""
LOOKED_AT = 200
"""So many sessions that stay are looked at in a row, in less than a millisecond."""
RECOVER_AGAIN_S = 1.0
"""The pause before a recovery that failed, or had to wait for the host's lease, is tried again."""
LOOK_S = 30.0
"""So often a host looks for open turns that nobody told it of."""
MAX_SOCKET_PATH = 103
"""The bytes that every system takes as the path of a Unix socket; Linux takes 107."""
ROUNDS = 5
"""So often a host that drains looks for sessions that were opened meanwhile."""


class ClusterHost:
    """The host *name*: it hands over the sessions of *manager* that other hosts are to serve."""

    def __init__(
        self,
        manager: SessionManager,
        directory: HostDirectory,
        name: str,
        *,
        logger: Any | None = None,
    ) -> None:
        self._manager = manager
        self._directory = directory
        self._name = name
        self._log = logger if logger is not None else default_logger()
        self._slots = anyio.Semaphore(AT_ONCE, fast_acquire=True)
        self._recovery_due = anyio.Event()
        self.routing = Routing(manager, directory, name)
        directory.watch(self._view_changed, self._asked_to_move)

    async def recover(self, at_once: int, *, look_s: float = LOOK_S) -> None:
        """Open the sessions that a host left which is gone, whose turns are open and which are
        placed here, so that they go on without a client. At most *at_once* at a time; now, and
        whenever a host is gone or the host here is given its share. Cancellable.

        Every *look_s* seconds, too. A host that was declared dead wrongly may accept a turn and die
        before it is in the directory again; and a session that was live here until somebody took
        it may be left by its taker. No view says either.
        """
        self._recovery_due.set()
        while True:
            with anyio.move_on_after(look_s):
                await self._recovery_due.wait()
            self._recovery_due = anyio.Event()
            if not runtime_of(self._manager).is_lease_valid:
                # It could run no turn. Two such hosts would take sessions from each other.
                await anyio.sleep(RECOVER_AGAIN_S)
                self._recovery_due.set()
                continue
            try:
                report = await recover_unfinished(
                    self._manager, at_once=at_once, wanted=self._is_placed_here
                )
                report.log(self._log)
            except SessionError as error:
                self._log.error(
                    "sessions.not_recovered", error=type(error).__name__, why=str(error)
                )
                await anyio.sleep(RECOVER_AGAIN_S)
                self._recovery_due.set()

    def _is_placed_here(self, session: str) -> bool:
        placed = host_of(self._directory.view, session)
        return placed is None or placed.name == self._name

    def _view_changed(self, before: View, after: View) -> None:
        if self._may_have_left_turns(before, after):
            self._recovery_due.set()
        work = partial(self._hand_over_moved, Change(before, after, self._name))
        self._run(f"hand-overs of view {after.version}", work)

    async def _hand_over_moved(self, change: Change) -> None:
        """Hand over what moves because of *change*. Other work goes on meanwhile: with many hosts a
        session that moves costs a look at each of them."""
        moved = []
        for number, session in enumerate(self._manager.live, 1):
            target = change.target(session)
            if target is not None:
                self.routing.hand_over_to(session, target.name)
                moved.append(session)
            if number % LOOKED_AT == 0:
                await anyio.lowlevel.checkpoint()
        await self._hand_over_each(moved, "step")

    def _may_have_left_turns(self, before: View, after: View) -> bool:
        is_gone = any(after.by_incarnation(host.incarnation) is None for host in before.hosts)
        was, own = before.by_name(self._name), after.by_name(self._name)
        is_given_more = own is not None and own.state == "up" and was != own
        return is_gone or is_given_more

    def _asked_to_move(self, session: str, target: str) -> None:
        self.routing.hand_over_to(session, target)
        self._start(session)

    def _start(self, session: str) -> None:
        work = partial(self._hand_over, session, "step")
        self._run(f"hand-over of {session}", work)

    def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* unless the manager closes: then it gives up all that it has."""
        runtime = runtime_of(self._manager)
        with suppress(SessionClosed):
            runtime.check_accepting()
            runtime.run_work(name, work)

    async def _hand_over(self, session: str, when: HandOverWhen) -> None:
        # Those that wait for the ends of steps do not hold up one that waits for nothing.
        async with self._slots if when == "step" else nullcontext():
            try:
                await self._manager.hand_over(session, when=when)
                self.routing.handed_over += 1
            except SessionError as error:
                self.routing.not_handed_over += 1
                self._log.warning("session.not_handed_over", session=session, why=str(error))

    async def hand_over_all(self, timeout_s: float) -> None:
        """Take no more sessions, and hand over those that are live here: each at the end of its
        step, or in the middle of it after *timeout_s*. Where no other host is up they stay."""
        if self._has_its_name():
            try:
                await self._directory.drain(self._name)
            except SessionError as error:
                self._log.warning("cluster.directory_unreachable", why=str(error))
                return
        if not any(host.state == "up" for host in self._directory.view.hosts):
            return
        for _ in range(ROUNDS):
            sessions = self._manager.live
            if not sessions:
                return
            with anyio.move_on_after(timeout_s) as scope:
                await self._hand_over_each(sessions, "step")
            if scope.cancelled_caught:
                await self._hand_over_each(self._manager.live, "now")

    def _has_its_name(self) -> bool:
        """Is the entry of that name this process's? Another one that was started with the same name
        is not to be drained."""
        own = self._directory.view.by_name(self._name)
        return own is not None and own.incarnation == runtime_of(self._manager).owner.name

    async def _hand_over_each(self, sessions: Collection[str], when: HandOverWhen) -> None:
        """Hand *sessions* over. A few tasks do it, because a task for each of thousands costs as
        much as its hand-over."""
        waiting = iter(sessions)

        async def work() -> None:
            for session in waiting:
                await self._hand_over(session, when)

        async with anyio.create_task_group() as group:
            for _ in range(min(AT_ONCE, len(sessions))):
                group.start_soon(work)


@asynccontextmanager
async def joined(
    directory: Directory,
    manager: SessionManager,
    service: Service,
    addresses: Sequence[str],
    *,
    name: str,
    address: str | None,
    logger: Any | None = None,
) -> AsyncIterator[ClusterHost]:
    """*service*, which listens at *addresses*, as the host *name* of a cluster; others reach it at
    *address*, by default the first of these. Raises InvalidConfig and StoreError."""
    reached_at = advertised(address, addresses)
    async with directory:
        host = ClusterHost(manager, directory, name, logger=logger)
        runtime = runtime_of(manager)
        service.admission.router = host.routing
        runtime.new_session_id = host.routing.new_session_id
        await directory.join(name, reached_at, runtime.owner)
        try:
            async with observing(directory, name, log=logger):
                yield host
        finally:
            host.routing.leave()
            with suppress(StoreError):  # its lease runs out
                await directory.leave()


def advertised(address: str | None, addresses: Sequence[str]) -> str:
    """The address at which others reach a service that listens at *addresses*: *address*, or the
    first that they can use. The path of a socket becomes absolute, because others have working
    directories of their own. Raises InvalidConfig, and InvalidInput for an *address* that is none.
    """
    if address is None:
        address = next((each for each in addresses if not each.startswith("http")), None)
        if address is None:
            raise InvalidConfig("a host of a cluster has to listen somewhere")
        if "//0.0.0.0:" in address or "//[::]:" in address:
            raise InvalidConfig(
                f"{address} is no address that other machines can connect to; set advertise"
            )
    where = parse_address(address)
    if where.scheme != "unix":
        return address
    path = str(Path(where.path).absolute())
    # From a deep folder a short relative path is all that the system takes.
    return f"unix:{path}" if len(os.fsencode(path)) <= MAX_SOCKET_PATH else address
