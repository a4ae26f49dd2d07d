"""The hosts of a cluster, in the store's PostgreSQL: who there is, where, and in which state.

Each host keeps a row with a lease, on one connection of its own. Every change of the rows makes a
new version of the view, in the same transaction, and notifies all hosts. A host that is not
notified polls. Whoever notices that a host's lease ran out removes its row. Whoever knows that a
host is dead declares it dead: its sessions are then free at once. The directory says where hosts
are. It does not say who owns a session: that is in the session's row, and the store alone decides
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from llmsession.errors import InvalidInput, StoreError
from llmsession.session.core.session_log import default_logger
from llmsession.store.caller import Caller
from llmsession.store.liveness import lease_clock, owner_is_dead
from llmsession.store.postgres.connections import (
    FAILURES,
    NOTIFY,
    Connection,
    Connections,
    channel_name,
)
from llmsession.store.postgres.owners import end_lease
from llmsession.store.postgres.schema import check_schema
from llmsession.store.postgres.thread import LoopThread
from llmsession.store.protocol import Owner

from .ladder import LATE_POLLS, SILENT_S, WINDOW, Evidence
from .placement import EMPTY, Host, View
from .sql import LOCK, LOCK_CLASS, Statements

__all__ = ["Directory"]

LEASE_S = 15.0
SETTLE_S = 5.0
"""A host that joins is given no session for so long, so that one that starts again and again moves
none."""
POLL_S = 2.0
"""How often a lease is renewed and the view is read, if no notification came."""
RETRY_S = 0.5
NAME_CHARS = 100
HOLD_S = 10.0
"""A change that stands still for so long is rolled back, because its host may be frozen or lost.
Until then no other host can change anything, or renew its lease if it waits for a change."""
MAX_WANTED = 10_000
"""More hosts than one PostgreSQL can serve: a slip of the finger."""
_ENDED_HERE = "its process ended"

OnView = Callable[[View, View], None]
OnMove = Callable[[str, str], None]


class Directory:
    """The directory of the cluster *name*, in the schema *schema* of the database at *dsn*.

    Use it as an async context manager, in asyncio: it then follows the view, in a thread of its
    own. *lease_s*, *settle_s*, *poll_s* and *silent_s* must be the same at every host; times are by
    the database's clock. Raises InvalidInput and InvalidConfig for what cannot be used. Every
    method that waits raises StoreError if the database cannot be reached.
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        *,
        schema: str = "llmsession",
        lease_s: float = LEASE_S,
        settle_s: float = SETTLE_S,
        poll_s: float = POLL_S,
        silent_s: float = SILENT_S,
        logger: Any | None = None,
    ) -> None:
        check_schema(schema)
        self.name = _checked_name(name, "the cluster")
        self.silent_s = silent_s
        """A host that answers nobody for so long is taken for dead: see ``ladder``."""
        self.view: View = EMPTY
        """The newest view that is known here."""
        self._rows = _Rows(
            Connections(dsn, max_shared=1, retry_s=0.0),
            schema,
            name,
            times=_Times(lease_s, settle_s, poll_s, silent_s),
            log=logger if logger is not None else default_logger(),
            found=lambda view: self._caller.call(lambda: self._found(view)),
            asked=lambda session, target: self._caller.call(lambda: self._asked(session, target)),
        )
        self._thread = LoopThread("llmsession-cluster")
        self._caller: Caller
        self._on_view: list[OnView] = []
        self._on_move: list[OnMove] = []

    async def __aenter__(self) -> Directory:
        self._caller = Caller()
        try:
            await self._thread.run(self._rows.begin)
        except BaseException:
            await self._thread.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._thread.run(self._rows.end)
        await self._thread.end()

    @property
    def wanted(self) -> int | None:
        """How many hosts supervisors are to keep running; None: one for each core."""
        return self._rows.wanted

    async def set_wanted(self, count: int | None) -> None:
        """Supervisors are to keep *count* hosts running, or one for each core. All of them are
        notified. Raises InvalidInput for a number that is negative or too high."""
        if count is not None and not 0 <= count <= MAX_WANTED:
            raise InvalidInput(f"a cluster has 0 to {MAX_WANTED} hosts, not {count}")
        await self._thread.run(lambda: self._rows.set_wanted(count))

    def process_of(self, host: Host) -> Owner | None:
        """The process of *host*, as the owner that it is in the store; None if it is gone."""
        return self._rows.process_of(host.incarnation)

    def machine_of(self, host: Host) -> str:
        """The name of the machine that *host* runs on; "" if the host is gone."""
        return self._rows.machine_of(host.incarnation)

    @property
    def age_s(self) -> float:
        """How many seconds ago the database last answered."""
        return lease_clock() - self._rows.answered_at

    def watch(self, on_view: OnView | None = None, on_move: OnMove | None = None) -> None:
        """Call *on_view* with the view before and after each change, and *on_move* with a session
        and the host that is to serve it, where somebody asked the host here to hand it over."""
        if on_view is not None:
            self._on_view.append(on_view)
        if on_move is not None:
            self._on_move.append(on_move)

    async def join(self, host: str, address: str, owner: Owner) -> None:
        """Enter the host *host*, whose manager is *owner*, and renew its lease from now on. A row
        of the same name is replaced: it is that of an earlier process. Raises InvalidInput."""
        _checked_name(host, "a host")
        await self._thread.run(lambda: self._rows.join(host, address, owner))

    async def drain(self, host: str) -> None:
        """Give *host* no more sessions. It hands over those that it has. Raises InvalidInput if
        there is no such host."""
        await self._thread.run(lambda: self._rows.drain(host))

    async def leave(self) -> None:
        """Remove the host that joined here. If that fails, its lease runs out."""
        await self._thread.run(self._rows.leave)

    async def is_gone(self, host: Host) -> bool:
        """Did the process of *host* end? Then its row is removed, and ``view`` is without it. False
        where that cannot be told: on another machine its lease decides."""
        return await self._thread.run(lambda: self._rows.is_gone(host))

    async def declare_dead(self, incarnation: str, why: str) -> bool:
        """The host *incarnation* is dead: remove its row, and end its lease in the store, so that
        its sessions can be taken at once. *why* is for the log. Returns False if nobody has that
        incarnation.

        A notice that is wrong does no harm: a host that lives enters the directory again, renews
        its lease, keeps what nobody took meanwhile, and is fenced from the rest.
        """
        return await self._thread.run(lambda: self._rows.declare_dead(incarnation, why))

    async def remove_ended(self) -> None:
        """Declare those hosts dead whose processes are seen to have ended on this machine."""
        await self._thread.run(self._rows.remove_ended)

    async def suspect(self, incarnation: str) -> Evidence | None:
        """The host *incarnation* is silent to the host here: report it, for a while. Returns what
        all observers know of it; None if it, or the host here, is not in the directory."""
        return await self._thread.run(lambda: self._rows.suspect(incarnation))

    async def withdraw(self, incarnation: str) -> None:
        """The host *incarnation* has answered the host here: see ``suspect``."""
        await self._thread.run(lambda: self._rows.withdraw(incarnation))

    async def ask_to_move(self, session: str, source: Host, target: str) -> None:
        """Ask *source* to hand *session* over, and to send its clients to the host *target*."""
        await self._thread.run(lambda: self._rows.ask_to_move(session, source, target))

    async def refresh(self) -> None:
        """Renew the lease, remove hosts that are gone, and read the view, now."""
        await self._thread.run(self._rows.refresh)

    def _found(self, view: View) -> None:
        before, self.view = self.view, view
        for tell in tuple(self._on_view):
            tell(before, view)

    def _asked(self, session: str, target: str) -> None:
        for tell in self._on_move:
            tell(session, target)


class _Times(NamedTuple):
    lease_s: float
    settle_s: float
    poll_s: float
    silent_s: float


class _Rows:
    """The rows of one cluster. Runs in the directory's thread, which *found* and *asked* are called
    in: with each new view, and with each session that the host here is asked to hand over."""

    def __init__(
        self,
        connections: Connections,
        schema: str,
        name: str,
        *,
        times: _Times,
        log: Any,
        found: Callable[[View], None],
        asked: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.view: View = EMPTY
        self.wanted: int | None = None
        self._connections = connections
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._statements = Statements(schema)
        self._schema = schema
        self._key = f"{schema}/{name}"
        self._channel = channel_name("llmsession_view_", self._key)
        self._times = times
        self._log = log
        self._found = found
        self._asked = asked
        self._due = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._own: tuple[str, str, Owner] | None = None
        """The host that joined here: its name, its address, and its manager as an owner."""
        self._processes: dict[str, Owner] = {}
        """By incarnation: the process of each host in the view."""
        self._machines: dict[str, str] = {}
        """Likewise: the name of its machine."""
        self.answered_at = lease_clock()
        """When the database last answered, by ``lease_clock``."""
        self._patient_until = 0.0
        """Until when no host is removed whose lease ran out. By the same clock."""

    async def begin(self) -> None:
        """Make the tables, read the view, and follow it."""
        async with self._changing() as connection:
            await connection.execute(self._statements.make)
        await self._read()
        self._following = asyncio.create_task(self._follow())

    async def end(self) -> None:
        """Follow the view no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._connection is not None:
            self._connection.terminate()

    # Changes.

    async def join(self, host: str, address: str, owner: Owner) -> None:
        """See ``Directory.join``."""
        self._own = (host, address, owner)
        await self._enter()
        await self._read()

    async def _enter(self) -> None:
        assert self._own is not None
        host, address, owner = self._own
        async with self._changing() as connection:
            await connection.execute(
                self._statements.join,
                self.name,
                host,
                address,
                owner.name,
                owner.pid,
                owner.started,
                owner.host,
                self._times.lease_s,
                self._times.settle_s,
                platform.node(),
            )
            await self._bump(connection)

    async def drain(self, host: str) -> None:
        """See ``Directory.drain``."""
        async with self._changing() as connection:
            row = await connection.fetchrow(self._statements.drain, self.name, host)
            if row is None:
                raise InvalidInput(f"cluster {self.name!r} has no host {host!r}")
            await self._bump(connection)
        await self._read()

    async def set_wanted(self, count: int | None) -> None:
        """See ``Directory.set_wanted``."""
        async with self._changing() as connection:
            await self._bump(connection)
            await connection.execute(self._statements.want, self.name, count)
        await self._read()

    def process_of(self, incarnation: str) -> Owner | None:
        """See ``Directory.process_of``. May be called in any thread."""
        return self._processes.get(incarnation)

    def machine_of(self, incarnation: str) -> str:
        """See ``Directory.machine_of``. May be called in any thread."""
        return self._machines.get(incarnation, "")

    async def leave(self) -> None:
        """See ``Directory.leave``."""
        if self._own is None:
            return
        incarnation, self._own = self._own[2].name, None
        await self._remove([incarnation])
        await self._read()

    async def is_gone(self, host: Host) -> bool:
        """See ``Directory.is_gone``."""
        process = self._processes.get(host.incarnation)
        if process is None or not _is_dead(process):
            return self.view.by_incarnation(host.incarnation) is None
        await self.declare_dead(host.incarnation, _ENDED_HERE)
        return True

    async def declare_dead(self, incarnation: str, why: str) -> bool:
        """See ``Directory.declare_dead``."""
        async with self._changing() as connection:
            names = await connection.fetch(self._statements.remove, self.name, [incarnation])
            if names:
                await end_lease(connection, self._schema, incarnation)
                await self._bump(connection)
        for row in names:
            self._log.warning("cluster.host_dead", host=row["name"], why=why)
        await self._read()
        return bool(names)

    async def remove_ended(self) -> None:
        """See ``Directory.remove_ended``."""
        processes = tuple(self._processes.items())
        for incarnation in _dead(processes):
            await self.declare_dead(incarnation, _ENDED_HERE)

    async def suspect(self, incarnation: str) -> Evidence | None:
        """See ``Directory.suspect``."""
        if self._own is None:
            return None
        times = self._times
        async with self._use() as connection:
            row = await connection.fetchrow(
                self._statements.suspect,
                self.name,
                incarnation,
                self._own[2].name,
                WINDOW * times.silent_s,
                max(0.0, times.lease_s - LATE_POLLS * times.poll_s),
            )
        return None if row is None else Evidence(**row)

    async def withdraw(self, incarnation: str) -> None:
        """See ``Directory.withdraw``."""
        if self._own is not None:
            async with self._use() as connection:
                await connection.execute(
                    self._statements.withdraw, self.name, incarnation, self._own[2].name
                )

    async def ask_to_move(self, session: str, source: Host, target: str) -> None:
        """See ``Directory.ask_to_move``."""
        payload = f"move {source.incarnation} {target} {session}"
        async with self._use() as connection:
            await connection.execute(NOTIFY, self._channel, payload)

    async def _remove(self, incarnations: Sequence[str]) -> None:
        async with self._changing() as connection:
            if await connection.fetch(self._statements.remove, self.name, list(incarnations)):
                await self._bump(connection)

    async def _bump(self, connection: Connection) -> None:
        version = await connection.fetchval(self._statements.bump, self.name)
        await connection.execute(NOTIFY, self._channel, f"view {version}")

    # The view.

    async def _follow(self) -> None:
        """Renew the lease and read the view, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._times.poll_s):  # wait_for may lose a cancellation
                    await self._due.wait()
            self._due.clear()
            try:
                await self.refresh()
            except StoreError as error:
                self._log.warning("cluster.directory_unreachable", why=str(error))
            except Exception as error:  # a bug of ours must not end the lease
                self._log.error("cluster.follow_failed", exc_info=error)
            else:
                continue
            await asyncio.sleep(RETRY_S)
            self._due.set()  # what was to be read is still to be read

    async def refresh(self) -> None:
        """See ``Directory.refresh``."""
        await self._renew()
        await self._clear_away()
        await self._read()

    async def _renew(self) -> None:
        if self._own is None:
            return
        host, _, owner = self._own
        async with self._use() as connection:
            renewed = await connection.fetchval(
                self._statements.renew, self.name, host, owner.name, self._times.lease_s
            )
            holder = await connection.fetchval(self._statements.holder, self.name, host)
        if renewed is not None or self._own is None:  # it may have left meanwhile
            return
        if holder is not None:
            # Another process has this host's name: only one of them can have it.
            self._own = None
            self._log.error("cluster.host_replaced", host=host)
        else:
            await self._enter()  # others removed it, because it could not renew its lease

    async def _clear_away(self) -> None:
        """Remove hosts that are gone, and let those that have settled be given sessions."""
        await self.remove_ended()
        async with self._use() as connection:
            is_due = await connection.fetchval(self._statements.is_due, self.name)
        if not is_due:
            return
        async with self._changing() as connection:
            gone: Sequence[Any] = ()
            if lease_clock() >= self._patient_until:
                gone = await connection.fetch(self._statements.remove_gone, self.name)
            for row in gone:
                await end_lease(connection, self._schema, row["incarnation"])
            settled = await connection.fetch(self._statements.settle, self.name)
            if gone or settled:
                await self._bump(connection)
        for row in gone:
            self._log.warning("cluster.host_gone", host=row["name"])

    async def _read(self) -> None:
        async with self._use() as connection:
            rows = await connection.fetch(self._statements.read, self.name)
        if not rows or rows[0]["version"] <= self.view.version:
            return
        hosts = [row for row in rows if row["name"] is not None]
        entries = (
            Host(row["name"], row["address"], row["state"], row["incarnation"]) for row in hosts
        )
        self.view = View(rows[0]["version"], tuple(entries))
        self.wanted = rows[0]["wanted"]
        self._processes = {
            row["incarnation"]: Owner(
                row["incarnation"], row["pid"], row["started"], row["machine"]
            )
            for row in hosts
        }
        self._machines = {row["incarnation"]: row["machine_name"] for row in hosts}
        self._found(self.view)

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        kind, _, rest = payload.partition(" ")
        if kind != "move":
            self._due.set()
            return
        incarnation, target, session = rest.split(" ", 2)
        if self._own is not None and self._own[2].name == incarnation:
            self._asked(session, target)

    # The connection.

    @contextlib.asynccontextmanager
    async def _use(self) -> AsyncIterator[Connection]:
        """The connection, for one caller at a time; a lost one is opened again. Raises
        StoreError."""
        async with self._turn:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._connections.open(self._listen)
                yield self._connection
            except FAILURES as error:
                raise self._connections.failed(error, None) from error
        self._answered()

    async def _listen(self, connection: Connection) -> None:
        await connection.add_listener(self._channel, self._heard)
        connection.add_termination_listener(lambda _: self._due.set())

    def _answered(self) -> None:
        """The database has answered. If it had not for a while, other hosts could not renew their
        leases either: they are given the time to come back before they are taken for dead."""
        now = lease_clock()
        if now - self.answered_at > LATE_POLLS * self._times.poll_s:
            self._patient_until = now + self._times.lease_s
        self.answered_at = now

    @contextlib.asynccontextmanager
    async def _changing(self) -> AsyncIterator[Connection]:
        """The connection in a transaction that changes rows, one at a time in the cluster."""
        async with self._use() as connection, connection.transaction():
            await connection.execute(LOCK, LOCK_CLASS, self._key, f"{HOLD_S:g}s")
            yield connection


def _is_dead(process: Owner) -> bool:
    return owner_is_dead(process.pid, process.started, process.host) is True


def _dead(processes: Sequence[tuple[str, Owner]]) -> list[str]:
    """The incarnations whose processes ended on this machine."""
    return [incarnation for incarnation, process in processes if _is_dead(process)]


def _checked_name(name: str, what: str) -> str:
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= NAME_CHARS):
        raise InvalidInput(f"{what} is named {name!r}; a name has 1 to {NAME_CHARS} characters")
    if " " in name:
        raise InvalidInput(f"{what} is named {name!r}; a name has no space")
    return name
