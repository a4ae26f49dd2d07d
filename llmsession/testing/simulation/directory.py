"""The directory of a simulated cluster: its rows in the shared store, and what each host knows of
them. It does what ``cluster.directory`` says of PostgreSQL's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import msgspec
from anyio.abc import TaskGroup

from llmsession.cluster.placement import EMPTY, Host, View
from llmsession.errors import StoreError
from llmsession.store.protocol import Owner

from .network import Network, host_name
from .shared_store import HostLink, SharedDisk

__all__ = ["DirectoryLink", "DirectoryRows"]

LEASE_S = 0.6
SETTLE_S = 0.1
POLL_S = 0.2
SILENT_S = 0.2
"""A host that another one has not reached for so long is suspected, and gone when two say so."""


class _Row(msgspec.Struct):
    host: Host
    owner: Owner
    lease_until: float
    settled_at: float
    suspected_by: dict[str, float]


class DirectoryRows:
    """The rows, and the links that are notified when they change."""

    def __init__(self, disk: SharedDisk) -> None:
        self.links: list[DirectoryLink] = []
        self.rows: dict[str, _Row] = {}
        self._disk = disk
        self._version = 0

    @property
    def view(self) -> View:
        """The view as the rows are now."""
        return View(self._version, tuple(self.rows[name].host for name in sorted(self.rows)))

    def changed(self) -> None:
        """The rows were changed: there is a new version, and the hosts are notified."""
        self._version += 1
        for link in self.links:
            link.notify()

    def remove(self, incarnations: Sequence[str]) -> bool:
        """Remove hosts. Returns whether there were any."""
        gone = [name for name, row in self.rows.items() if row.host.incarnation in incarnations]
        for name in gone:
            del self.rows[name]
        if gone:
            self.changed()
        return bool(gone)

    def declare_dead(self, incarnation: str) -> bool:
        """See ``Directory.declare_dead``. A wrong notice costs sessions, and loses nothing."""
        if not self.remove([incarnation]):
            return False
        self._disk.end_lease(incarnation)
        return True

    def suspect(self, incarnation: str, witness: str) -> None:
        """*witness* does not reach a host: when two do not, it is declared dead."""
        now = anyio.current_time()
        for row in tuple(self.rows.values()):
            if row.host.incarnation == incarnation:
                row.suspected_by[witness] = now
                recent = [at for at in row.suspected_by.values() if at > now - 2 * POLL_S]
                if len(recent) >= 2:
                    self.declare_dead(incarnation)


class DirectoryLink:
    """The directory as one incarnation of a host sees it: a ``HostDirectory``.

    *silent* returns the hosts of a view that this host does not reach.
    """

    def __init__(
        self,
        rows: DirectoryRows,
        store: HostLink,
        network: Network,
        group: TaskGroup,
        silent: Callable[[View], Sequence[str]],
    ) -> None:
        self.name = "simulated"
        self.age_s = 0.0
        self.view: View = EMPTY
        self._rows = rows
        self._store = store
        self._network = network
        self._group = group
        self._silent = silent
        self._silent_since: dict[str, float] = {}
        self._own: tuple[str, Owner] | None = None
        self._due = anyio.Event()
        self._on_view: list[Callable[[View, View], None]] = []
        self._on_move: list[Callable[[str, str], None]] = []
        rows.links.append(self)

    def watch(
        self,
        on_view: Callable[[View, View], None] | None = None,
        on_move: Callable[[str, str], None] | None = None,
    ) -> None:
        if on_view is not None:
            self._on_view.append(on_view)
        if on_move is not None:
            self._on_move.append(on_move)

    # Changes.

    async def join(self, number: int, owner: Owner) -> None:
        """Enter the host *number*, whose manager is *owner*."""
        self._own = (host_name(number), self._store.process(owner))
        async with self._store.trip():
            self._enter()

    def _enter(self) -> None:
        assert self._own is not None
        (name, owner), rows, now = self._own, self._rows.rows, anyio.current_time()
        is_first = not any(row.host.state == "up" for other, row in rows.items() if other != name)
        host = Host(name, name, "up" if is_first else "joining", owner.name)
        rows[name] = _Row(host, owner, now + LEASE_S, now + SETTLE_S, {})
        self._rows.changed()

    async def drain(self, host: str) -> None:
        async with self._store.trip():
            row = self._rows.rows.get(host)
            if row is not None:
                row.host = msgspec.structs.replace(row.host, state="draining")
                self._rows.changed()
        await self._read()

    async def leave(self) -> None:
        """Remove the host that joined here."""
        if self._own is not None:
            (_, owner), self._own = self._own, None
            async with self._store.trip():
                self._rows.remove([owner.name])

    async def is_gone(self, host: Host) -> bool:
        row = self._rows.rows.get(host.name)
        if row is None or row.host.incarnation != host.incarnation or not self._sees_dead(row):
            return self.view.by_incarnation(host.incarnation) is None
        async with self._store.trip():
            self._rows.declare_dead(host.incarnation)
        await self._read()
        return True

    def _sees_dead(self, row: _Row) -> bool:
        return self._store.sees_dead(row.owner.pid, row.owner.started, row.owner.host) is True

    # The view.

    async def follow(self) -> None:
        """Renew the lease and read the view until the process ends."""
        while not self._store.is_over:
            with anyio.move_on_after(POLL_S):
                await self._due.wait()
            self._due = anyio.Event()
            try:
                await self._refresh()
            except StoreError:
                continue  # after the pause it is tried again

    async def _refresh(self) -> None:
        async with self._store.trip():
            self._renew()
            self._clear_away()
            self._observe()
        await self._read()

    def _renew(self) -> None:
        if self._own is None:
            return
        name, owner = self._own
        row = self._rows.rows.get(name)
        if row is None:
            self._enter()  # others removed it
        elif row.owner == owner:
            row.lease_until = anyio.current_time() + LEASE_S
        else:
            self._own = None

    def _clear_away(self) -> None:
        now, rows = anyio.current_time(), self._rows.rows.values()
        for row in [row for row in rows if row.lease_until < now or self._sees_dead(row)]:
            self._rows.declare_dead(row.host.incarnation)
        is_up = any(row.host.state == "up" for row in rows)
        for row in self._rows.rows.values():
            if row.host.state == "joining" and (row.settled_at <= now or not is_up):
                row.host = msgspec.structs.replace(row.host, state="up")
                self._rows.changed()

    def _observe(self) -> None:
        """Suspect the hosts that were not reached for a while."""
        now, silent = anyio.current_time(), self._silent(self.view)
        self._silent_since = {name: self._silent_since.get(name, now) for name in silent}
        if self._own is not None:
            for incarnation, since in self._silent_since.items():
                if now - since >= SILENT_S:
                    self._rows.suspect(incarnation, self._own[0])

    async def _read(self) -> None:
        async with self._store.trip():
            view = self._rows.view
        # Two that were read one after the other may be known in any order.
        delay_s = self._network.delay_s()
        if delay_s is not None:
            self._group.start_soon(self._learn, view, delay_s)

    async def _learn(self, view: View, delay_s: float) -> None:
        await anyio.sleep(delay_s)
        await self._store.flows.wait()
        if view.version > self.view.version and not self._store.is_over:
            before, self.view = self.view, view
            for tell in self._on_view:
                tell(before, view)

    def notify(self) -> None:
        """The rows were changed."""
        if not self._store.is_over:
            delay_s = self._network.delay_s()
            if delay_s is not None:
                self._group.start_soon(self._wake, delay_s)

    async def _wake(self, delay_s: float) -> None:
        await anyio.sleep(delay_s)
        await self._store.flows.wait()
        self._due.set()

    def ask_to_move(self, session: str, target: str) -> None:
        """Somebody asked the host here to hand *session* over to the host *target*."""
        for tell in self._on_move:
            tell(session, target)
