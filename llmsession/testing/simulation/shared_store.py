"""The store that simulated hosts share: the simulated disk with leases, and a link to it for each
incarnation of a host, which renews its lease and hears of sessions that were taken from it.

What decides is the code of the real stores: ``still_holds`` and ``HeldLeases``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from llmsession.errors import SessionInUse, StoreError
from llmsession.store.held_leases import HeldLeases
from llmsession.store.ownership import still_holds
from llmsession.store.protocol import Lease, Owner, OwnerListener

from ..recording.recorder import KeepingStore
from .disk import DiskLink, SimDisk
from .network import RENEWALS, STORE, HostClock, Network

__all__ = ["LEASE_S", "HostLink", "SharedDisk"]

LEASE_S = 0.6
RETRY_S = 0.05
MOMENT_S = 0.005
"""So long may pass until a notice that has arrived stops what it has to stop."""


class SharedDisk(SimDisk):
    """The disk, and what is known of the leases of its owners, by the disk's clock.

    It also knows the truth that no host has: whether an owner must know by now that it lost a
    session.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dead_pids: set[int] = set()
        self._until: dict[str, float] = {}
        """By owner: the end of its lease. An owner without one holds nothing."""
        self._promised_until: dict[str, float] = {}
        """The same, also of an owner whose lease others have ended."""
        self._lapsed_at: dict[str, float] = {}
        self._caught_up: dict[str, float] = {}
        self._lost_at: dict[tuple[str, int], float] = {}
        """By session and epoch: when the next epoch began."""
        self._heard: dict[tuple[str, str], tuple[int, float]] = {}
        self._links: dict[str, HostLink] = {}

    # Leases.

    def attach(self, owner: str, link: HostLink) -> None:
        """*owner* listens at *link*."""
        self._links[owner] = link

    def renew(self, owner: str) -> bool:
        """Begin or renew the lease of *owner*. Returns whether it had none."""
        now, is_new = anyio.current_time(), owner not in self._until
        promised = self._promised_until.get(owner, now)
        if now > promised:
            self._lapsed_at[owner] = now
        self._until[owner] = self._promised_until[owner] = now + LEASE_S
        return is_new

    def end_lease(self, owner: str) -> None:
        """What *owner* holds is free for others from now on. It is notified of that."""
        self._until.pop(owner, None)
        if owner in self._links:
            self._links[owner].notify("", 0)

    def lease_until(self, owner: str) -> float | None:
        """When the lease of *owner* ends or ended; None if it has none."""
        return self._until.get(owner)

    def taken(self, holder: Owner | None, taker: Owner, lease: Lease) -> None:
        """*taker* has taken a session: notify *holder*."""
        self._lost_at[lease.session, lease.epoch - 1] = anyio.current_time()
        if holder is not None and holder.name != taker.name and holder.name in self._links:
            self._links[holder.name].notify(lease.session, lease.epoch)

    # What an owner must know.

    def heard(self, owner: str, session: str, epoch: int) -> None:
        """*owner* was notified that *session* has *epoch* now."""
        self._heard[owner, session] = (epoch, anyio.current_time())

    def caught_up(self, owner: str, since: float) -> None:
        """*owner* listens since *since*, and knows that it has missed what came before."""
        self._caught_up[owner] = since

    def loss_known_to(self, owner: str, session: str, epoch: int) -> str:
        """Why *owner*, which had *session* under *epoch*, must know by now that it may not act for
        it; "" if it need not know."""
        now = anyio.current_time()
        if now > self._promised_until.get(owner, now):
            return "its lease had run out"
        lost_at = self._lost_at.get((session, epoch))
        if lost_at is None:
            return ""
        heard_epoch, heard_at = self._heard.get((owner, session), (0, now))
        if heard_epoch > epoch and heard_at < now - MOMENT_S:
            return "it had heard that another owner has the session"
        if self._lapsed_at.get(owner, -1.0) > lost_at:
            return "its lease had run out when another owner took the session"
        if self._caught_up.get(owner, -1.0) > lost_at:
            return "it was not listening when another owner took the session, and knew that"
        return ""


class HostLink(DiskLink):
    """The store of one incarnation of the host *host*: its process *pid* on *machine*. It is a
    ``LeasingStore``. Processes on one machine see each other end."""

    def __init__(
        self,
        disk: SharedDisk,
        group: TaskGroup,
        network: Network,
        *,
        host: str,
        pid: int,
        machine: str,
        clock: HostClock,
    ) -> None:
        super().__init__(disk, group)
        self.disk = disk
        self.network = network
        self.host = host
        self.machine = machine
        self.pid = pid
        self._leases = HeldLeases(LEASE_S, clock=clock)
        self._due = anyio.Event()
        self._doubted: set[str] = set()
        """Owners whose lease somebody has ended."""
        self._is_closed = False
        self._listens_since: int | None = None
        """The number of breaks of the connection that it listens on; None if it does not."""

    @property
    def is_over(self) -> bool:
        """Whether nothing passes any more."""
        return self.is_cut or self._is_closed

    def process(self, owner: Owner) -> Owner:
        """*owner* as the process that it stands for in this world."""
        return Owner(owner.name, self.pid, "1", self.machine)

    def sees_dead(self, pid: int, started: str, machine: str) -> bool | None:
        """Whether a process has ended; None if that cannot be seen from here."""
        return pid in self.disk.dead_pids if machine == self.machine else None

    def cut(self) -> None:
        super().cut()
        self.disk.dead_pids.add(self.pid)
        self._due.set()

    async def _travel(self) -> bool:
        await super()._travel()
        return self.network.reaches(self.host, STORE)

    # As a store.

    async def create(self, session: str, owner: Owner) -> Lease:
        await self._begin_lease(owner)
        return await super().create(session, self.process(owner))

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        await self._begin_lease(owner)
        return await super().acquire(session, self.process(owner), takeover=takeover)

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        await self._begin_lease(owner)
        return await super().fork(parent, upto, session, self.process(owner))

    async def _take(self, session: str, owner: Owner, takeover: bool, truth: KeepingStore) -> Lease:
        holder = (await truth.row(session)).owner
        until = None if holder is None else self.disk.lease_until(holder.name)
        is_kept = until is not None and still_holds(
            holder, until, taker=owner, now=anyio.current_time(), owner_is_dead=self.sees_dead
        )
        if is_kept and holder is not None and not takeover:
            raise SessionInUse(session, holder.name)
        lease = await truth.acquire(session, owner, takeover=True)
        self.disk.taken(holder, owner, lease)
        return lease

    async def aclose(self) -> None:
        """Give up the lease. The process ends after it."""
        self._is_closed = True
        self.disk.dead_pids.add(self.pid)
        self._due.set()
        for owner in sorted(self._leases.owners):
            if self.network.reaches(self.host, STORE):
                self.disk.end_lease(owner)

    # As a leasing store.

    def watch_owner(self, owner: Owner, listener: OwnerListener) -> None:
        self._leases.watch(owner.name, listener, lambda body: body())
        self.disk.attach(owner.name, self)

    def is_lease_valid(self, owner: Owner) -> bool:
        return self._leases.is_valid(owner.name)

    async def epochs(self, sessions: Sequence[str]) -> Mapping[str, int]:
        async with self.trip() as truth:
            rows = {name: truth.row_of(name) for name in sessions}
        return {name: row.epoch for name, row in rows.items() if row is not None}

    async def _begin_lease(self, owner: Owner) -> None:
        if owner.name not in self._leases.owners:
            asked_at = self._leases.now()
            async with self.trip():
                self.disk.renew(owner.name)
            self._leases.begun(owner.name, asked_at)
            self._due.set()

    async def renew(self) -> None:
        """Renew the lease until the process ends, as ``postgres.owners`` does."""
        await self._due.wait()  # for the lease
        listening: set[str] = set()
        cut_off: set[str] = set()
        since = 0.0
        while not self.is_over:
            pause_s = LEASE_S / 3
            self._due = anyio.Event()
            try:
                if self._listens_since != self._breaks():
                    cut_off |= listening
                    listening = set()
                    async with self._renewal():
                        self._listens_since, since = self._breaks(), anyio.current_time()
                listening |= self._leases.owners
                await self._renew_all(listening, cut_off, since)
                cut_off = set()
            except StoreError:
                pause_s = RETRY_S
            with anyio.move_on_after(pause_s):
                await self._due.wait()

    async def _renew_all(self, owners: set[str], cut_off: set[str], since: float) -> None:
        asked_at, names = self._leases.now(), sorted(owners)
        doubted, self._doubted = self._doubted, set()
        async with self._renewal():
            doubted |= {name for name in names if self.disk.renew(name)}  # somebody had ended it
        for name in names:
            self.disk.caught_up(name, since)
        renewed = [name for name in names if name not in self._doubted]
        self._leases.renewed(renewed, asked_at, cut_off=cut_off | doubted)

    def _breaks(self) -> int:
        """How often the connection on which the lease is renewed has been broken."""
        network = self.network
        return network.breaks(self.host, STORE) + network.breaks(self.host, RENEWALS)

    @asynccontextmanager
    async def _renewal(self) -> AsyncIterator[None]:
        """A trip on the connection on which the lease is renewed."""
        if not self.network.reaches(self.host, RENEWALS):
            raise StoreError("the connection broke", committed=None)
        async with self.trip():
            yield
        if not self.network.reaches(self.host, RENEWALS):
            raise StoreError("the connection broke", committed=None)

    def notify(self, session: str, epoch: int) -> None:
        """Somebody took *session* from the owner here, or ended its lease if *session* is "": the
        notice is on its way, or is lost."""
        delay_s = self.network.delay_s()
        if delay_s is not None and self._listens_since == self._breaks():
            self._group.start_soon(self._hear, session, epoch, delay_s, self._breaks())

    async def _hear(self, session: str, epoch: int, delay_s: float, breaks: int) -> None:
        await anyio.sleep(delay_s)
        await self.flows.wait()
        if not self.is_over and breaks == self._breaks():
            for owner in sorted(self._leases.owners):
                if session:
                    self.disk.heard(owner, session, epoch)
                    self._leases.taken(owner, session, epoch)
                else:
                    self._doubted.add(owner)
                    self._leases.ended(owner)
                    self._due.set()
