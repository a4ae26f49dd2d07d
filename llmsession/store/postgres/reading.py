"""Reads records and rows. Runs in the store's own loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count, starmap
from typing import Any

from llmsession.errors import RecordDamaged, SessionNotFound, StoreDamaged, StoreError

from ..cipher import PLAIN, Cipher, Unreadable
from ..ownership import NOBODY, still_holds
from ..protocol import Batch, SessionFilter, SessionRow, StoredRecord
from .connections import Connection, Connections, Grouped, is_damage
from .schema import OPEN
from .sql import (
    RECORDS_A_ROW,
    Page,
    Statements,
    check_seals,
    label_marks,
    owner_of,
    record_of,
    row_of,
    snapshot_place,
)

__all__ = ["Reading"]

MANY = 1_000
"""Of a label with so many sessions it is not counted how many more it has."""
SMALL_BYTES = 1536
"""Records of at most so many bytes are read several in a row. It takes three quarters of the CPU
with 0.3 to 1 kB, and as much as row by row with 4 kB, but then a read takes longer.
"""
SMALL, MAX_TOGETHER = 16, 64
"""Reads of at most so many records are made together, at most so many of them. So a statement reads
no more records than one for a page does."""


class Reading:
    """Reads with the shared connections."""

    def __init__(self, connections: Connections, statements: Statements) -> None:
        self._connections = connections
        self._statements = statements
        self._rows = Grouped(self._find_rows)
        self._small_reads = Grouped(self._read, most=MAX_TOGETHER)
        self._are_small = True
        """Were the plain records that were read last small? Those of a store are mostly alike."""

    async def records(
        self, session: str, after: int, limit: int | None, cipher: Cipher
    ) -> list[StoredRecord]:
        """See ``Store.read``."""
        if after == 0:  # a reader that starts later has read the beginning or taken the session
            await self.check_seals(session, cipher)
        upto = OPEN if limit is None else after + limit
        try:
            if cipher is PLAIN and upto - after > SMALL:
                records = await self._plain(session, after, upto)
                if records is not None:
                    return records
            rows = await self._fetch(session, after, upto, cipher)
        except StoreError as error:
            if not is_damage(error.__cause__):
                raise
            return await self._up_to_damage(session, after, upto, cipher)
        return _whole(session, after, min(upto, rows[0]["head"]), rows, cipher)

    async def _plain(self, session: str, after: int, upto: int) -> list[StoredRecord] | None:
        """The records, if each exists and is stored as it was appended; otherwise None, and perhaps
        if one is long and was not expected. It is so nearly always, and takes half of the time if
        they are small, and else two thirds.
        """
        are_small = self._are_small
        statement = self._statements.read_small if are_small else self._statements.read_plain
        rows = await self._connections.run(lambda it: it.fetch(statement, session, after, upto))
        if not rows:
            raise SessionNotFound(session)
        head, no_epoch, _ = rows[0]
        if no_epoch is not None:
            return None
        records = _in_arrays(rows[1:]) if are_small else [*starmap(StoredRecord, rows[1:])]
        expected = range(after + 1, min(upto, head) + 1)
        if expected:
            some = records[:RECORDS_A_ROW]  # none if all are long
            self._are_small = sum(len(record.body) for record in some) < SMALL_BYTES * len(some)
        return records if [record.seq for record in records] == [*expected] else None

    async def snapshot(self, session: str, cipher: Cipher) -> bytes | None:
        """See ``SnapshotStore.snapshot``."""
        row = await self._connections.fetchrow(self._statements.snapshot, session)
        if row is None:
            return None
        try:
            return cipher.unseal(row["body"], snapshot_place(session, row["least"]))
        except Unreadable as error:
            message = f"the snapshot of session {session!r} cannot be read: {error}"
            raise StoreDamaged(message) from error

    async def check_seals(self, session: str, cipher: Cipher) -> None:
        """Raises RecordDamaged if the session's row is not the one that was sealed, and
        SessionNotFound.
        """
        if cipher is PLAIN:
            return
        row = await self._connections.fetchrow(self._statements.seals, session)
        if row is None:
            raise SessionNotFound(session)
        check_seals(row, session, cipher)

    async def _fetch(self, session: str, after: int, upto: int, cipher: Cipher) -> Sequence[Any]:
        part = (session, after, upto, cipher is not PLAIN)
        if upto - after > SMALL:
            [rows] = await self._read([part])
        else:
            rows = await self._small_reads.ask(part)
        if not rows:
            raise SessionNotFound(session)
        return rows

    async def _read(self, parts: Sequence[tuple[str, int, int, bool]]) -> list[list[Any]]:
        """The rows for each of *parts*: a session, after and up to which seq, and whether the
        records are sealed.
        """
        columns = list(zip(*parts, strict=True))
        rows = await self._connections.run(lambda it: it.fetch(self._statements.read, *columns))
        if len(parts) == 1:
            return [list(rows)]
        found: list[list[Any]] = [[] for _ in parts]
        for row in rows:
            found[row["n"] - 1].append(row)
        return found

    async def _up_to_damage(
        self, session: str, after: int, upto: int, cipher: Cipher
    ) -> list[StoredRecord]:
        """Read record by record, because the server could not read one of them and returned
        none.
        """
        records: list[StoredRecord] = []
        seq = after
        while seq < upto:
            try:
                rows = await self._fetch(session, seq, seq + 1, cipher)
            except StoreError as error:
                if not is_damage(error.__cause__) or records:
                    break
                raise RecordDamaged(session, seq + 1, str(error)) from error
            if seq >= rows[0]["head"]:
                break
            try:
                records += _whole(session, seq, seq + 1, rows, cipher)
            except RecordDamaged:
                if not records:
                    raise
                break
            seq += 1
        return records

    async def row(self, session: str, cipher: Cipher) -> SessionRow:
        """See ``Store.row``."""
        row = await self._rows.ask(session)
        if row is None:
            raise SessionNotFound(session)
        return row_of(row, cipher)

    async def _find_rows(self, sessions: Sequence[str]) -> list[Any]:
        rows = await self._connections.run(lambda it: it.fetch(self._statements.rows_of, sessions))
        by_id = {row["id"]: row for row in rows}
        return [by_id.get(session) for session in sessions]

    async def rows_of(self, sessions: Sequence[str], cipher: Cipher) -> dict[str, SessionRow]:
        """The rows of those of *sessions* that exist."""
        rows = await self._find_rows(sessions)
        return {row["id"]: row_of(row, cipher) for row in rows if row is not None}

    async def rows(
        self,
        after: str,
        limit: int,
        filter: SessionFilter,
        cipher: Cipher,
        *,
        queries: Sequence[str] = (),
    ) -> list[SessionRow]:
        """See ``Store.rows``. Only sessions that have records for each of *queries*, which are
        tsqueries.
        """
        marks = label_marks(filter.labels, cipher)
        without = label_marks(dict.fromkeys(filter.without), cipher)
        # A name with its value says more than the name.
        leads = [label_marks({label: value}, cipher)[-1] for label, value in filter.labels.items()]

        async def act(connection: Connection) -> Sequence[Any]:
            lead = await self._lead(connection, after, leads, is_search=bool(queries))
            wanted = Page(after, max(0, limit), filter, marks, without, lead, queries)
            statement, values = self._statements.page(wanted)
            return await connection.fetch(statement, *values)

        rows = await self._connections.run(act)
        return [row_of(row, cipher) for row in rows]

    async def _lead(
        self, connection: Connection, after: str, marks: Sequence[bytes], *, is_search: bool
    ) -> bytes | None:
        """The one of *marks* with the fewest sessions from *after* on; of those with many the first
        one, or None in a search, whose words may be in fewer sessions.
        """
        if not marks or (len(marks) == 1 and not is_search):
            return marks[0] if marks else None
        row = await connection.fetchrow(self._statements.rarest, marks, after, MANY)
        return None if is_search and row["sessions"] == MANY else row["mark"]

    async def unfinished(self, after: str, limit: int, cipher: Cipher) -> list[SessionRow]:
        """See ``UnfinishedIndex.unfinished``."""
        statements = self._statements
        owners = await self._connections.run(lambda it: it.fetch(statements.unfinished_owners))
        free = [owner["key"] for owner in owners if not _is_held(owner)]
        if free and not after:
            await self._connections.execute(statements.forget_finished, free)
        while free:
            rows = await self._connections.run(partial(self._unfinished, free, after, limit))
            # Some may have been taken since they were marked.
            found = [row_of(row, cipher) for row in rows if not _is_held(row)]
            if found or not rows:
                return found
            after = rows[-1]["id"]
        return []

    async def _unfinished(
        self, owners: Sequence[str], after: str, limit: int, connection: Connection
    ) -> Sequence[Any]:
        statement = self._statements.unfinished
        return await connection.fetch(statement, owners, after, max(0, limit))

    async def is_written(self, batch: Batch, cipher: Cipher) -> bool:
        """Is *batch* in the log, at its place and in its epoch?

        Then our write succeeded, because nobody else writes in that epoch. Raises StoreError if it
        cannot be found out.
        """
        try:
            records = await self.records(batch.session, batch.head, len(batch.bodies), cipher)
        except SessionNotFound:
            return False
        return [(record.epoch, record.body) for record in records] == [
            (batch.epoch, body) for body in batch.bodies
        ]


def _in_arrays(rows: Sequence[Any]) -> list[StoredRecord]:
    """The records in *rows* of ``Statements.read_small``."""
    records: list[StoredRecord] = []
    for first, epochs, bodies in rows:
        if epochs is not None:  # otherwise none of the records is there
            records += map(StoredRecord, count(first), epochs, bodies)
    return records


def _is_held(row: Mapping[str, Any]) -> bool:
    """Does the owner in *row* live? See ``Owners.acquire``."""
    holder, until = owner_of(row), row["lease_until"]
    return until is not None and still_holds(holder, until, taker=NOBODY, now=row["now"])


def _whole(
    session: str, after: int, upto: int, rows: Sequence[Any], cipher: Cipher
) -> list[StoredRecord]:
    """The records in *rows* with seqs from *after* + 1 to *upto*, up to the first that cannot be
    read.

    Raises RecordDamaged if that is the first one.
    """
    records: list[StoredRecord] = []
    rows_by_seq = {row["seq"]: row for row in rows}
    for seq in range(after + 1, upto + 1):
        try:
            row = rows_by_seq.get(seq)
            if row is None:
                raise Unreadable("it is not there")
            records.append(record_of(row, cipher))
        except Unreadable as error:
            if not records:
                raise RecordDamaged(session, seq, str(error)) from error
            break
    return records
