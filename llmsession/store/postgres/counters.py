"""What accounts have spent, in PostgreSQL: see ``store.counting``. Runs in the store's own loop.

The append's statement charges the counters: see ``sql.Shape``. Of an encrypted store the
names of accounts are kept as marks, as those of labels are. Amounts and models stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmsession.turns.spending.spending import Spending

from ..cipher import Cipher
from ..counting import Amounts, Grant, Uncounted, grant_of, not_begun
from .connections import Connection, Connections
from .sql import MARK_BYTES, account_mark, label_marks, model_bytes

__all__ = ["Counters"]

_LOCK = "SELECT pg_advisory_xact_lock($1::int, hashtext($2::text))"
_LOCK_CLASS = 0x6C6C6D62  # "llmb": keeps our advisory locks apart from other programs'


class Counters:
    """The counters in *schema*."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        s = f'"{schema}"'
        self._find = f"SELECT tokens, nano_usd, unpriced FROM {s}.counter WHERE account = $1"
        # Every append that charges a counter locks the table in a mode that excludes this one. So
        # here all of those before have ended, and those after see the new counter.
        self._lock_appends = f"LOCK TABLE {s}.counter IN SHARE ROW EXCLUSIVE MODE"
        self._begin = f"""
            INSERT INTO {s}.counter (account) VALUES ($1) ON CONFLICT DO NOTHING RETURNING 1"""
        self._list = f"""
            INSERT INTO {s}.uncounted (account, session, upto)
            SELECT $1, id, head FROM {s}.session WHERE head > 0"""
        self._list_labelled = f"""
            INSERT INTO {s}.uncounted (account, session, upto)
            SELECT $1, s.id, s.head FROM {s}.label l JOIN {s}.session s ON s.id = l.session
             WHERE l.mark = substring($3::bytea FOR {MARK_BYTES})
               AND s.head > 0 AND s.label_marks @> $2::bytea[]"""
        self._uncounted = f"""
            SELECT session, upto FROM {s}.uncounted WHERE account = $1 ORDER BY session LIMIT $2"""
        self._strike = f"""
            DELETE FROM {s}.uncounted WHERE account = $1 AND session = ANY($2::text[])
            RETURNING session"""
        self._add = f"""
            UPDATE {s}.counter
               SET tokens = tokens + $2::text::numeric, nano_usd = nano_usd + $3::text::numeric,
                   unpriced = ARRAY(SELECT DISTINCT unnest(unpriced || $4::bytea[]))
             WHERE account = $1"""
        self._end_slices = f"""
            DELETE FROM {s}.slice WHERE account = $1 AND (owner = $2 OR until <= now())"""
        self._held = f"""
            SELECT coalesce(sum(tokens), 0) AS tokens, coalesce(sum(nano_usd), 0) AS nano_usd,
                   coalesce(extract(epoch FROM min(until) - now()), 0)::float8 AS retry_s
              FROM {s}.slice WHERE account = $1"""
        self._hold = f"""
            INSERT INTO {s}.slice (account, owner, tokens, nano_usd, until)
            VALUES ($1, $2, $3::text::numeric, $4::text::numeric,
                    now() + make_interval(secs => $5))"""
        self._give_back = f"DELETE FROM {s}.slice WHERE owner = $1"

    async def begin(
        self, account: str, labels: Mapping[str, str], limit: int, cipher: Cipher
    ) -> Sequence[Uncounted]:
        """See ``CountingStore.begin_count``."""
        mark = account_mark(account, cipher)

        async def act(connection: Connection) -> Sequence[Any]:
            if await connection.fetchrow(self._find, mark) is None:
                async with connection.transaction():
                    await connection.execute(self._lock_appends)
                    if await connection.fetchval(self._begin, mark):
                        if marks := label_marks(labels, cipher):
                            listed = (self._list_labelled, mark, marks, marks[-1])
                            await connection.execute(*listed)
                        else:
                            await connection.execute(self._list, mark)
            return await connection.fetch(self._uncounted, mark, max(0, limit))

        rows = await self._connections.run(act)
        return [Uncounted(row["session"], row["upto"]) for row in rows]

    async def add_counted(
        self, account: str, spent: Mapping[str, Spending], cipher: Cipher
    ) -> None:
        """See ``CountingStore.add_counted``."""
        mark = account_mark(account, cipher)

        async def act(connection: Connection) -> None:
            async with connection.transaction():
                await self._read(connection, account, mark)
                rows = await connection.fetch(self._strike, mark, sorted(spent))
                total = sum((spent[row["session"]] for row in rows), Spending())
                amounts = str(total.tokens), str(total.cost_nano_usd)
                await connection.execute(self._add, mark, *amounts, model_bytes(total.unpriced))

        await self._connections.run(act)

    async def spent_by(self, account: str, cipher: Cipher) -> Spending:
        """See ``CountingStore.spent_by``."""
        mark = account_mark(account, cipher)
        return await self._connections.run(lambda it: self._read(it, account, mark))

    async def _read(self, connection: Connection, account: str, mark: bytes) -> Spending:
        row = await connection.fetchrow(self._find, mark)
        if row is None:
            raise not_begun(account)
        unpriced = frozenset(name.decode("utf-8", "replace") for name in row["unpriced"])
        return Spending(int(row["tokens"]), int(row["nano_usd"]), unpriced)

    async def reserve(
        self,
        account: str,
        owner: str,
        limit: Amounts,
        asked: Amounts,
        *,
        pending: Spending,
        hold_s: float,
        cipher: Cipher,
    ) -> Grant:
        """See ``CountingStore.reserve``. Doing it twice is harmless: an owner has one slice."""
        mark = account_mark(account, cipher)

        async def act(connection: Connection) -> Grant:
            async with connection.transaction():
                # Not a lock on the counter's row: appends must not wait for this.
                await connection.execute(_LOCK, _LOCK_CLASS, f"{self._schema}/{mark.hex()}")
                await connection.execute(self._end_slices, mark, owner)
                spent = await self._read(connection, account, mark)
                row = await connection.fetchrow(self._held, mark)
                held = Spending(int(row["tokens"]), int(row["nano_usd"]))
                part = grant_of(limit, asked, spent, held, pending)
                if not part.is_used_up:
                    kept = Spending(part.tokens or 0, part.nano_usd or 0) + pending
                    amounts = str(kept.tokens), str(kept.cost_nano_usd)
                    await connection.execute(self._hold, mark, owner, *amounts, hold_s)
                return Grant(spent, part, row["retry_s"])

        return await self._connections.run(act)

    async def give_back(self, owner: str) -> None:
        """See ``CountingStore.give_back``."""
        await self._connections.execute(self._give_back, owner)
