"""Is a session served here? Asked by the service before it opens a session that is not live here.

Three answers, in this order. The owner in the session's row serves it, as long as that owner's host
is in the view. Nobody holds it: then the host that it was handed over to serves it, or else the
host that it is placed on. A client that was sent here is served here, so two hosts with different
views do not send a client to and fro; unless this host has handed the session over since, and
nobody has taken it yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import anyio

from llmsession.errors import (
    Overloaded,
    SessionError,
    SessionInUse,
    SessionMoved,
    StoreError,
)
from llmsession.session import SessionManager
from llmsession.session.manager import runtime_of
from llmsession.session.values.labels import new_session_id
from llmsession.transport.wire.messages import ClusterStatistics, HostEntry

from .placement import Host, View, host_of

__all__ = ["HostDirectory", "Routing"]

MAX_HANDED_OVER = 10_000
"""Sessions whose new host is remembered; the placement counts for older ones."""
LEFT_S = 1.0
"""After so long a client that was sent nowhere asks again."""
SEEN_S = 0.05
MAX_IDS = 64
"""So many ids are tried for one that is placed here. Of 20 hosts 96 % of the sessions get one."""


class HostDirectory(Protocol):
    """What a host asks of the directory of its cluster: see ``Directory``."""

    name: str

    @property
    def age_s(self) -> float:
        """See ``Directory.age_s``."""

    @property
    def view(self) -> View:
        """The newest view that is known here."""

    def watch(
        self,
        on_view: Callable[[View, View], None] | None = None,
        on_move: Callable[[str, str], None] | None = None,
    ) -> None:
        """See ``Directory.watch``."""

    async def drain(self, host: str) -> None:
        """See ``Directory.drain``."""

    async def is_gone(self, host: Host) -> bool:
        """See ``Directory.is_gone``."""


class _HandOver(NamedTuple):
    host: str
    """The host that the session was moved to from here."""
    epoch: int
    """The epoch that it had here: with another one, somebody has taken it since."""


class Routing:
    """The router of the host *host*, which serves the sessions of *manager*: see ``Router``."""

    def __init__(self, manager: SessionManager, directory: HostDirectory, host: str) -> None:
        self._runtime = runtime_of(manager)
        self._directory = directory
        self._host = host
        self._handed_over: OrderedDict[str, _HandOver] = OrderedDict()
        self._seen_alive: dict[str, float] = {}
        """By incarnation: until when a host that was seen to live is not looked at again."""
        self.handed_over = self.not_handed_over = 0
        """See ``ClusterStatistics``. Counted by the host."""
        self._has_left = False

    def leave(self) -> None:
        """Send clients away from now on: the host leaves the cluster, and its directory closes."""
        self._has_left = True

    def hand_over_to(self, session: str, host: str) -> None:
        """Clients of *session*, which is live here and is to be handed over, are sent to *host*
        until somebody has taken it."""
        self._handed_over.pop(session, None)
        actor = self._runtime.find_live(session)
        if actor is None:
            return
        self._handed_over[session] = _HandOver(host, actor.core.journal.lease.epoch)
        if len(self._handed_over) > MAX_HANDED_OVER:
            self._handed_over.popitem(last=False)

    async def check(self, session: str, *, is_sent_here: bool) -> None:
        """See ``Router.check``."""
        if self._has_left:
            self._send_away(session)
            return
        try:
            await self._check(session, is_sent_here=is_sent_here)
        except StoreError:
            if not self._has_left:
                raise
            self._send_away(session)

    def _send_away(self, session: str) -> None:
        """Let clients of *session* go on elsewhere, unless it is still live here."""
        if self._runtime.find_live(session) is not None:
            return
        others = tuple(host for host in self._directory.view.hosts if host.name != self._host)
        if not others:
            raise Overloaded(f"host {self._host!r} has left the cluster", retry_after_s=LEFT_S)
        placed = host_of(View(self._version, others), session) or others[0]
        raise SessionMoved(
            f"session {session!r} is served by host {placed.name!r}",
            address=placed.address,
            view=self._version,
        )

    async def _check(self, session: str, *, is_sent_here: bool) -> None:
        actor = self._runtime.find_live(session)
        if actor is not None:
            if actor.status == "live":
                return
            # Until it has released the session, the next host would send the client back.
            await actor.put_close().wait()
        given = self._handed_over.get(session)
        if given is not None and not is_sent_here:
            # The next host knows better if somebody else has taken it since.
            await self._check_target(session, given, is_sent_here=False)
        row = await self._runtime.store.row(session)
        owner = row.owner
        is_ours = owner is not None and owner.name == self._runtime.owner.name
        if given is not None and (given.epoch != row.epoch or is_ours):
            # Somebody has taken it since; or it was never released, because the store failed then,
            # and whoever is asked elsewhere sends the client back.
            if self._handed_over.get(session) is given:
                del self._handed_over[session]
            given = None
        if owner is not None and not is_ours:
            holder = self._directory.view.by_incarnation(owner.name)
            if holder is not None and not await self._is_gone(holder):
                raise SessionInUse(
                    session, f"host {holder.name}", address=holder.address, view=self._version
                )
        await self._check_target(session, given, is_sent_here=is_sent_here)
        self._handed_over.pop(session, None)

    async def located(self, session: str, error: SessionError) -> SessionError:
        """See ``Router.located``."""
        try:
            await self.check(session, is_sent_here=False)
        except (SessionInUse, SessionMoved) as where:
            # The class of the error says what happened, and the address where to go on.
            if isinstance(error, SessionMoved):
                return SessionMoved(str(error), address=where.address, view=where.view)
            return where
        except SessionError:
            return error
        own = self._directory.view.by_name(self._host)
        if own is not None and isinstance(error, SessionMoved):
            return SessionMoved(str(error), address=own.address, view=self._version)
        return error

    @property
    def hosts_up(self) -> int:
        """See ``Router.hosts_up``."""
        return sum(host.state == "up" for host in self._directory.view.hosts)

    def statistics(self) -> ClusterStatistics:
        """See ``Router.statistics``."""
        view = self._directory.view
        own = view.by_name(self._host)
        is_own = own is not None and own.incarnation == self._runtime.owner.name
        return ClusterStatistics(
            cluster=self._directory.name,
            host=self._host,
            state=own.state if own is not None and is_own else None,
            view=view.version,
            hosts=tuple(HostEntry(host.name, host.address, host.state) for host in view.hosts),
            handed_over=self.handed_over,
            not_handed_over=self.not_handed_over,
            lease_valid=self._runtime.is_lease_valid,
            directory_age_s=self._directory.age_s,
        )

    def new_session_id(self, tenant: str | None) -> str:
        """A random id that is placed here, so that the session stays where it was made."""
        session = new_session_id(tenant)
        for _ in range(MAX_IDS):
            placed = host_of(self._directory.view, session)
            if placed is None or placed.name == self._host:
                break
            session = new_session_id(tenant)
        return session

    @property
    def _version(self) -> int:
        return self._directory.view.version

    async def _check_target(
        self, session: str, given: _HandOver | None, *, is_sent_here: bool
    ) -> None:
        target = await self._target(session, given, is_sent_here=is_sent_here)
        if target is not None:
            raise SessionMoved(
                f"session {session!r} is served by host {target.name!r}",
                address=target.address,
                view=self._version,
            )

    async def _is_gone(self, host: Host) -> bool:
        """See ``Directory.is_gone``. One that was seen to live just now is not looked at again:
        when many sessions move, each of their clients asks."""
        now = anyio.current_time()
        if now < self._seen_alive.get(host.incarnation, 0.0):
            return False
        is_gone = await self._directory.is_gone(host)
        if not is_gone:
            self._seen_alive = {
                name: until for name, until in self._seen_alive.items() if until > now
            }
            self._seen_alive[host.incarnation] = now + SEEN_S
        return is_gone

    async def _target(
        self, session: str, given: _HandOver | None, *, is_sent_here: bool
    ) -> Host | None:
        """The other host that is to take *session*, which nobody holds; None to take it here.
        *given*: it was handed over from here last."""
        while True:
            view = self._directory.view
            own = view.by_name(self._host)
            is_draining = own is not None and own.state == "draining"
            if is_sent_here and not is_draining and given is None:
                return None
            target = view.by_name(given.host) if given is not None else None
            if target is None or target.state == "draining":
                target = host_of(view, session)
            if target is None or target.name == self._host:
                return None
            if not await self._is_gone(target):
                return target
            if self._directory.view.version == view.version:
                return None  # the new view is not known here yet: better served here than nowhere
