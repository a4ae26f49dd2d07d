"""Owners and their leases: taking sessions and giving them back. Runs in the store's own loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from llmsession.errors import SessionExists, SessionInUse, SessionNotFound, StoreError

from ..cipher import PLAIN, Cipher
from ..liveness import this_host
from ..ownership import still_holds
from ..protocol import Lease, Owner
from ..row_seals import seal_head, seal_origin
from .connections import FAILURES, Connection, Connections
from .schema import OPEN
from .sql import Statements, check_seals, owner_of, owner_values

__all__ = ["Owners"]


class Owners:
    """The owners that live in this store. Their leases are renewed while ``renew`` runs."""

    def __init__(self, connections: Connections, statements: Statements, lease_s: float) -> None:
        self._connections = connections
        self._statements = statements
        self._lease_s = lease_s
        self._leased: set[str] = set()

    async def lease(self, owner: Owner) -> None:
        """Begin the lease of *owner*, by the database's clock."""
        if owner.name not in self._leased:
            await self._connections.execute(self._statements.lease, [owner.name], self._lease_s)
            self._leased.add(owner.name)

    async def renew(self) -> None:
        """Renew the leases for ever, on a connection of their own.

        The shared connections may all be waiting for a long vacuum. After an error it is tried
        again the next time.
        """
        connection: Connection | None = None
        try:
            while True:
                await asyncio.sleep(self._lease_s / 3)
                try:
                    if connection is None or connection.is_closed():
                        connection = await self._connections.open()
                    names = sorted(self._leased)
                    await connection.execute(self._statements.lease, names, self._lease_s)
                    await connection.execute(self._statements.forget_owners)
                except FAILURES:
                    continue
        finally:
            if connection is not None:
                connection.terminate()

    async def end(self) -> None:
        """Give up the leases, so that the sessions that these owners still hold are free."""
        if self._leased:
            with suppress(StoreError):  # then the leases run out by themselves
                await self._connections.execute(self._statements.end_leases, sorted(self._leased))

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
            row = await self._connections.fetchrow(self._statements.holder, session)
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
            new_row = await self._connections.fetchrow(
                self._statements.take, session, *owner_values(owner), row["epoch"], row["owner"]
            )
            if new_row is not None:
                return Lease(session, new_row["epoch"], new_row["head"])

    async def release(self, lease: Lease) -> None:
        """See ``Store.release``."""
        await self._connections.execute(self._statements.release, lease.session, lease.epoch)


def _holder_text(holder: Owner) -> str:
    elsewhere = " on another machine" if holder.host and holder.host != this_host() else ""
    return f"{holder.name} (pid {holder.pid}{elsewhere})"
