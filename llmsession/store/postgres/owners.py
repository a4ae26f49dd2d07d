"""Owners and their leases: taking sessions and giving them back. Runs in the store's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from llmsession.errors import SessionExists, SessionInUse, SessionNotFound, StoreError

from ..caller import Caller
from ..cipher import PLAIN, Cipher
from ..held_leases import HeldLeases
from ..liveness import this_host
from ..ownership import still_holds
from ..protocol import Lease, Owner, OwnerListener, SessionRow
from ..row_seals import seal_head, seal_origin
from .connections import FAILURES, NOTIFY, Connection, Connections, Grouped, channel_name
from .schema import OPEN
from .sql import Statements, check_seals, owner_of, owner_values

__all__ = ["Owners", "end_lease"]

END_S = 30.0
"""How long a store that closes waits for a renewal, and for the end of its leases, that the server
does not answer."""
RETRY_S = 0.5
"""The pause in seconds after a renewal that failed."""
TICK_S = 0.25
STALL_S = 1.0
"""A process that stood still for longer may have been declared dead: observers wait for 2 seconds
(``cluster.ladder``). So it asks before it relies on its lease again."""
_ENDED = "ended"
"""What an owner is told whose lease another process ended."""


async def end_lease(connection: Connection, schema: str, owner: str) -> None:
    """End the lease of the owner named *owner*, because its process is dead: its sessions are free
    at once. If it lives after all, it is told. Then it renews its lease, keeps what nobody took
    meanwhile, and is fenced from the rest. Does nothing where no store has made its tables.
    """
    if await connection.fetchval("SELECT to_regclass($1)", f'"{schema}".owner') is not None:
        await connection.execute(Statements(schema).end_leases, [owner])
        await connection.execute(NOTIFY, _channel(schema, owner), _ENDED)


class Owners:
    """The owners that live in this store. Their leases are renewed while ``renew`` runs.

    The connection that renews them listens, too, because whoever takes a session notifies the owner
    that held it.
    """

    def __init__(
        self, connections: Connections, statements: Statements, schema: str, lease_s: float
    ) -> None:
        self._connections = connections
        self._statements = statements
        self._schema = schema
        self._lease_s = lease_s
        self._leases = HeldLeases(lease_s)
        self._doubted: set[str] = set()
        """The owners that may have lost sessions without being told, until their next renewal."""
        self._ticked = self._leases.now()
        """When the store's loop was last seen to run."""
        self._holders = Grouped(self._find_holders)
        self._takes = Grouped(self._take)
        self._releases = Grouped(self._release)
        self._due = asyncio.Event()
        """Set when something has to be done before the next renewal."""
        self._ending = False

    def watch(self, owner: Owner, listener: OwnerListener) -> None:
        """See ``LeasingStore.watch_owner``. Called in the listener's loop, as is the next."""
        self._leases.watch(owner.name, listener, Caller().call)

    def is_valid(self, owner: Owner) -> bool:
        """See ``LeasingStore.is_lease_valid``."""
        if owner.name not in self._leases.owners:
            return True
        is_running = self._leases.now() - self._ticked <= STALL_S
        return is_running and self._leases.is_valid(owner.name)

    async def lease(self, owner: Owner) -> None:
        """Begin the lease of *owner*, by the database's clock."""
        if owner.name not in self._leases.owners:
            asked_at = self._leases.now()
            await self._connections.execute(self._statements.lease, [owner.name], self._lease_s)
            self._leases.begun(owner.name, asked_at)
            self._due.set()  # to listen

    async def renew(self) -> None:
        """Renew the leases until ``end``, on a connection of their own.

        The shared connections may all be waiting for a long vacuum. After an error it is tried
        again soon.
        """
        ticking = asyncio.create_task(self._tick())
        connection: Connection | None = None
        listening: set[str] = set()
        try:
            await self._due.wait()  # for the first owner
            while not self._ending:
                pause_s = self._lease_s / 3
                self._due.clear()
                try:
                    if connection is None or connection.is_closed():
                        self._doubted |= listening
                        listening = set()
                        connection = await self._connections.open()
                        connection.add_termination_listener(lambda _: self._due.set())
                    for name in sorted(self._leases.owners - listening):
                        heard = partial(self._heard, name)
                        await connection.add_listener(_channel(self._schema, name), heard)
                        listening.add(name)
                    await self._renew_all(connection)
                    if not all(map(self._leases.is_valid, self._leases.owners)):
                        pause_s = min(pause_s, RETRY_S)  # the answer came too late
                    await connection.execute(self._statements.forget_owners)
                except FAILURES:
                    pause_s = min(pause_s, RETRY_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._due.wait(), pause_s)
        finally:
            ticking.cancel()
            if connection is not None:
                connection.terminate()

    async def _tick(self) -> None:
        """Notice that this process stood still, because it was stopped or its machine froze."""
        while True:
            now = self._leases.now()
            if now - self._ticked > STALL_S:
                for name in self._leases.owners:
                    self._doubt(name)
            self._ticked = now  # last: until then ``is_valid`` sees how long it was
            await asyncio.sleep(TICK_S)

    async def _renew_all(self, connection: Connection) -> None:
        """Renew all leases, and tell those owners that may have lost sessions meanwhile."""
        asked_at, names = self._leases.now(), sorted(self._leases.owners)
        doubted, self._doubted = self._doubted, set()
        try:
            rows = await connection.fetch(self._statements.lease, names, self._lease_s)
        except BaseException:
            self._doubted |= doubted
            raise
        doubted |= {row["name"] for row in rows if row["is_new"]}  # somebody had ended it
        # One whose lease was ended again meanwhile is renewed in the next round.
        renewed = [name for name in names if name not in self._doubted]
        self._leases.renewed(renewed, asked_at, cut_off=doubted)

    def _doubt(self, name: str) -> None:
        """The lease of *name* is not valid until it is renewed, which is due now."""
        self._doubted.add(name)
        self._leases.ended(name)
        self._due.set()

    def _heard(self, name: str, _connection: object, _pid: int, _channel: str, news: str) -> None:
        if news == _ENDED:
            self._doubt(name)
            return
        epoch, _, session = news.partition(" ")
        self._leases.taken(name, session, int(epoch))

    async def _notify(self, holder: Owner, session: str, epoch: int) -> None:
        """Tell *holder* that it lost *session*. It finds out by itself at its next append."""
        with suppress(StoreError):
            channel, payload = _channel(self._schema, holder.name), f"{epoch} {session}"
            await self._connections.execute(NOTIFY, channel, payload)

    async def epochs(self, sessions: Sequence[str]) -> dict[str, int]:
        """See ``LeasingStore.epochs``."""
        rows = await self._connections.run(
            lambda connection: connection.fetch(self._statements.epochs, list(sessions))
        )
        return {row["id"]: row["epoch"] for row in rows}

    async def end_lease_of(self, owner: str) -> None:
        """See ``PostgresStore.end_lease_of``."""

        async def act(connection: Connection) -> None:
            async with connection.transaction():
                await end_lease(connection, self._schema, owner)

        await self._connections.run(act)

    async def end(self, renewing: asyncio.Task[None]) -> None:
        """Give up the leases, so that the sessions that these owners still hold are free.

        *renewing* runs ``renew``, and ends first. A renewal that was sent, and cancelled, may still
        reach the tables after what is sent on another connection: it would begin the leases again.
        """
        self._ending = True
        self._due.set()
        await asyncio.wait([renewing], timeout=END_S)
        renewing.cancel()
        if names := sorted(self._leases.owners):
            # Otherwise the leases run out by themselves.
            with suppress(StoreError, TimeoutError):
                ended = self._connections.execute(self._statements.end_leases, names)
                await asyncio.wait_for(ended, END_S)

    async def create(self, session: str, owner: Owner, cipher: Cipher) -> Lease:
        """See ``Store.create``."""
        await self.lease(owner)
        seals = (
            seal_origin(cipher, session, session, None, [(1, OPEN, session)]),
            seal_head(cipher, session, 0),
        )

        async def act(connection: Connection, in_doubt: bool) -> Lease:
            row = await connection.fetchrow(
                self._statements.create, session, *owner_values(owner), *seals
            )
            if row is None and in_doubt:
                row = await connection.fetchrow(
                    self._statements.just_made, session, *owner_values(owner), None, 0
                )
            if row is None:
                raise SessionExists(session)
            return Lease(session, row["epoch"], 0)

        return await self._connections.change(act)

    async def acquire(self, session: str, owner: Owner, takeover: bool, cipher: Cipher) -> Lease:
        """See ``Store.acquire``. Reads the row, decides, and takes the session if the row is
        unchanged.
        """
        await self.lease(owner)
        while True:
            row = await self._holders.ask(session)
            if row is None:
                raise SessionNotFound(session)
            holder, until = owner_of(row), row["lease_until"]
            # An owner without a lease: its store was closed and gave up its sessions.
            is_kept = until is not None and still_holds(holder, until, taker=owner, now=row["now"])
            if is_kept and holder is not None and not takeover:
                raise SessionInUse(session, _holder_text(holder))
            if cipher is not PLAIN:
                sealed = await self._connections.fetchrow(self._statements.seals, session)
                if sealed is None:
                    raise SessionNotFound(session)
                check_seals(sealed, session, cipher)
            values = owner_values(owner)
            new_row = await self._takes.ask((session, *values, row["epoch"], row["owner"]))
            if new_row is not None:
                if holder is not None and holder.name != owner.name:
                    await self._notify(holder, session, new_row["epoch"])
                return Lease(session, new_row["epoch"], new_row["head"])

    async def settle(self, row: SessionRow) -> None:
        """See ``UnfinishedIndex.settle``."""
        await self._connections.execute(self._statements.settle, row.session, row.epoch, row.head)

    async def release(self, lease: Lease) -> None:
        """See ``Store.release``."""
        await self._releases.ask((lease.session, lease.epoch))

    async def _find_holders(self, sessions: Sequence[str]) -> list[Any]:
        rows = await self._connections.run(lambda it: it.fetch(self._statements.holder, sessions))
        by_id = {row["id"]: row for row in rows}
        return [by_id.get(session) for session in sessions]

    async def _take(self, takes: Sequence[tuple[object, ...]]) -> list[Any]:
        """The new epoch and the head of each session; None where its row has changed."""
        # Ordered by id, because two statements that lock the same rows in different orders would
        # deadlock.
        places = sorted(range(len(takes)), key=lambda place: str(takes[place][0]))
        columns = list(zip(*(takes[place] for place in places), strict=True))
        # Repeated after an answer that was lost, it takes none: their rows have changed.
        rows = await self._connections.change(
            lambda it, _: it.fetch(self._statements.take, *columns)
        )
        taken: list[Any] = [None] * len(takes)
        for row in rows:
            taken[places[row["n"] - 1]] = row
        return taken

    async def _release(self, leases: Sequence[tuple[str, int]]) -> list[None]:
        columns = list(zip(*sorted(leases), strict=True))
        await self._connections.execute(self._statements.release, *columns)
        return [None] * len(leases)


def _channel(schema: str, owner: str) -> str:
    """Where *owner* listens."""
    return channel_name("llmsession_", f"{schema}/{owner}")


def _holder_text(holder: Owner) -> str:
    elsewhere = " on another machine" if holder.host and holder.host != this_host() else ""
    return f"{holder.name} (pid {holder.pid}{elsewhere})"
