"""Changes of records that several sessions share: forks, rewriting, deletion. Each is one
transaction.

Rewriting and deleting ask which other sessions have a record, so only one of them runs at a time
(an advisory lock). Locks are taken in the same order everywhere: that lock, sessions, blobs, the
store's own row. So they cannot deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from llmsession.errors import (
    InvalidInput,
    RecordDamaged,
    SessionExists,
    SessionNotFound,
)

from ..cipher import PLAIN, Cipher
from ..large_blocks import unpack_places
from ..ownership import check_epoch
from ..protocol import Lease, Owner
from ..row_seals import seal_head, seal_origin
from ..segments import Segment, moved
from .blobs import Blobs
from .connections import Connection
from .schema import OPEN, lock_structure
from .sql import MARK_BYTES, Statements, body_place, check_seals, owner_values, snapshot_place
from .word_index import WordIndex

__all__ = ["SharedRecords"]


class SharedRecords:
    """Changes shared records in the tables in *schema*."""

    def __init__(self, schema: str, statements: Statements, words: WordIndex) -> None:
        self._schema = schema
        self._words = words
        self._statements = statements
        s = f'"{schema}"'
        self._lock_session = f"SELECT log, epoch, head FROM {s}.session WHERE id = $1 FOR UPDATE"
        self._spans = f"""
            SELECT first, last, log, born FROM {s}.span WHERE session = $1 ORDER BY first"""
        self._parent_of = f"SELECT parent FROM {s}.session WHERE id = $1"
        self._seal_origin = f"UPDATE {s}.session SET origin_seal = $2 WHERE id = $1"
        self._drop_spans = f"DELETE FROM {s}.span WHERE session = $1"
        self._add_spans = f"""
            INSERT INTO {s}.span (session, first, last, log, born)
            SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::text[])"""
        # A fork that forgot something may have thousands of spans. So they are not looked through
        # for each record, but joined first, and a record is found in them by bisection.
        self._records = f"""
            WITH others AS MATERIALIZED (
                SELECT o.log, range_agg(int8range(o.first, o.last, '[]')) AS used
                  FROM {s}.span o
                 WHERE o.session <> $1
                   AND o.log IN (SELECT log FROM {s}.span WHERE session = $1)
                 GROUP BY o.log)
            SELECT r.seq, r.epoch, r.large, r.log, p.born,
                   coalesce(o.used @> r.seq, false) AS shared
              FROM {s}.span p
              JOIN {s}.record r ON r.log = p.log AND r.seq BETWEEN p.first AND p.last
              LEFT JOIN others o ON o.log = p.log
             WHERE p.session = $1 AND r.seq = ANY($2::bigint[])"""
        self._new_log = f"SELECT nextval('{s}.log_number')"
        self._replace = f"""
            UPDATE {s}.record r SET body = n.body, large = n.large
              FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[])
                   AS n(log, seq, epoch, body, large)
             WHERE r.log = n.log AND r.seq = n.seq"""
        self._insert = f"""
            INSERT INTO {s}.record (log, seq, epoch, body, large)
            SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[],
                                 $5::bytea[])"""
        self._drop_records = f"""
            WITH others AS MATERIALIZED (
                SELECT log, range_agg(int8range(first, last, '[]')) AS used
                  FROM {s}.span WHERE log = ANY($1::bigint[]) GROUP BY log),
            gone AS (
                DELETE FROM {s}.record r
                 WHERE r.log = ANY($1::bigint[]) AND NOT EXISTS (
                    SELECT FROM others o WHERE o.log = r.log AND o.used @> r.seq)
                RETURNING large)
            SELECT large FROM gone WHERE large IS NOT NULL"""
        self._keep_blobs = f"""
            INSERT INTO {s}.blob (name, body, refs)
            SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[])
            ON CONFLICT (name) DO UPDATE SET refs = blob.refs + excluded.refs"""
        self._lock_blobs = f"""
            SELECT FROM {s}.blob WHERE name = ANY($1::bytea[]) ORDER BY name FOR UPDATE"""
        self._count_blobs = f"""
            UPDATE {s}.blob b SET refs = b.refs - n.refs
              FROM unnest($1::bytea[], $2::bigint[]) AS n(name, refs) WHERE b.name = n.name"""
        self._drop_blobs = f"DELETE FROM {s}.blob WHERE name = ANY($1::bytea[]) AND refs <= 0"
        # The store's row is locked first, so that a session with the same id cannot be created at
        # the same time.
        self._raise_epoch = f"""
            UPDATE {s}.store SET highest_epoch = greatest(highest_epoch, $1)"""
        self._drop_session = f"""
            WITH settled AS (DELETE FROM {s}.unfinished WHERE session = $1),
            unsaved AS (DELETE FROM {s}.snapshot WHERE session = $1),
            unlabelled AS (
                DELETE FROM {s}.label l USING {s}.session s, unnest(s.label_marks) AS m(mark)
                 WHERE s.id = $1 AND l.session = $1 AND l.mark = substring(m.mark FOR {MARK_BYTES}))
            DELETE FROM {s}.session WHERE id = $1"""
        # A key share lock: appends go on, and a rewrite or a deletion is waited for.
        self._save_snapshot = f"""
            WITH held AS (
                SELECT id FROM {s}.session WHERE id = $1 AND epoch = $2 FOR KEY SHARE)
            INSERT INTO {s}.snapshot (session, least, body) SELECT id, $3, $4 FROM held
            ON CONFLICT (session) DO UPDATE SET least = excluded.least, body = excluded.body
             WHERE excluded.least >= snapshot.least"""
        self._drop_snapshot = f"""
            INSERT INTO {s}.snapshot (session, least) VALUES ($1, $2)
            ON CONFLICT (session) DO UPDATE SET least = excluded.least, body = NULL"""
        self._forget_uncounted = f"DELETE FROM {s}.uncounted WHERE session = $1"

    async def fork(
        self,
        connection: Connection,
        parent: str,
        upto: int,
        session: str,
        owner: Owner,
        *,
        cipher: Cipher,
        in_doubt: bool,
    ) -> Lease:
        """See ``Store.fork``. *in_doubt*: an earlier attempt may have succeeded."""
        async with connection.transaction():
            row = await connection.fetchrow(self._statements.parent, parent)
            if row is None:
                raise SessionNotFound(parent)
            if not 0 <= upto <= row["head"]:
                raise InvalidInput(f"session {parent!r} has no record {upto}")
            await self._check_seals(connection, parent, cipher)
            spans = await connection.fetch(self._spans, parent)
            parts = [
                (span["first"], min(span["last"], upto), span["born"])
                for span in spans
                if span["first"] <= upto
            ]
            parts.append((upto + 1, OPEN, session))
            epoch = await connection.fetchval(
                self._statements.fork,
                session,
                *owner_values(owner),
                parent,
                upto,
                row["epoch"],
                row["touched_at"],
                seal_origin(cipher, session, session, parent, parts),
                seal_head(cipher, session, upto),
            )
            if epoch is None and in_doubt:
                epoch = await connection.fetchval(
                    self._statements.just_made, session, *owner_values(owner), parent, upto
                )
            if epoch is None:
                raise SessionExists(session)
            return Lease(session, epoch, upto)

    async def rewrite(
        self, connection: Connection, lease: Lease, bodies: Mapping[int, bytes], cipher: Cipher
    ) -> None:
        """See ``Store.rewrite``. A record that a fork shares is written into a new log.

        Doing it twice is harmless: an earlier attempt that is still running holds the lock.
        """
        session = lease.session
        async with connection.transaction():
            await lock_structure(connection, self._schema)
            row = await connection.fetchrow(self._lock_session, session)
            if row is None:
                raise SessionNotFound(session)
            check_epoch(session, lease.epoch, now=row["epoch"])
            for seq in bodies:
                if not 1 <= seq <= row["head"]:
                    raise InvalidInput(f"session {session!r} has no record {seq}")
            await self._check_seals(connection, session, cipher)
            await connection.execute(self._drop_snapshot, session, row["head"] + 1)
            records = await connection.fetch(self._records, session, sorted(bodies))
            for seq in sorted(bodies.keys() - {record["seq"] for record in records}):
                raise RecordDamaged(session, seq, "it is not there")
            shared = [record for record in records if record["shared"]]
            own = [record for record in records if not record["shared"]]
            blobs = Blobs(cipher)
            replaced: list[tuple[int, int]] = []
            if shared:
                log = await connection.fetchval(self._new_log)
                places = [(record, log, session) for record in shared]
                await connection.execute(self._insert, *_rows(places, bodies, cipher, blobs))
                seqs = [record["seq"] for record in shared]
                await self._move(connection, session, seqs, log, cipher)
                replaced += [(log, seq) for seq in seqs]
            if own:
                places = [(record, record["log"], record["born"]) for record in own]
                await connection.execute(self._replace, *_rows(places, bodies, cipher, blobs))
                replaced += [(record["log"], record["seq"]) for record in own]
            if blobs:
                await connection.execute(self._keep_blobs, *blobs.columns()[1:])
            await self._let_go(connection, [record["large"] for record in own])
            await self._words.remove_from(connection, replaced)

    async def save_snapshot(
        self, connection: Connection, lease: Lease, seq: int, body: bytes, cipher: Cipher
    ) -> None:
        """See ``SnapshotStore.save_snapshot``. Doing it twice is harmless."""
        sealed = cipher.seal(body, snapshot_place(lease.session, seq))
        await connection.execute(self._save_snapshot, lease.session, lease.epoch, seq, sealed)

    def deletion(
        self, session: str, epoch: int | None
    ) -> Callable[[Connection, bool], Awaitable[None]]:
        """A function that does ``Store.delete``, to be called by ``Connections.change``.

        It keeps the number of the session's own log. If an earlier attempt may have succeeded, and
        the session has another log now, it was deleted and created again since. The new session
        stays.
        """
        tried: int | None = None

        async def delete(connection: Connection, in_doubt: bool) -> None:
            nonlocal tried
            async with connection.transaction():
                await lock_structure(connection, self._schema)
                row = await connection.fetchrow(self._lock_session, session)
                log = None if row is None else row["log"]
                if in_doubt and tried not in (None, log):
                    return
                if row is None:
                    raise SessionNotFound(session)
                check_epoch(session, epoch, now=row["epoch"])
                tried = log
                await self._drop(connection, session, row["epoch"])

        return delete

    async def _drop(self, connection: Connection, session: str, epoch: int) -> None:
        """Delete *session*, which is locked and has *epoch*."""
        spans = await connection.fetch(self._spans, session)
        await connection.execute(self._drop_spans, session)
        logs = list({span["log"] for span in spans})
        dropped = await connection.fetch(self._drop_records, logs)
        await self._let_go(connection, [record["large"] for record in dropped])
        await self._words.remove_deleted(connection, logs)
        await connection.execute(self._raise_epoch, epoch)
        await connection.execute(self._drop_session, session)
        await connection.execute(self._forget_uncounted, session)

    async def _move(
        self,
        connection: Connection,
        session: str,
        seqs: Sequence[int],
        log: int,
        cipher: Cipher,
    ) -> None:
        """Let the records *seqs* of *session* be in its new *log* from now on."""
        spans = await connection.fetch(self._spans, session)
        born = {span["log"]: span["born"] for span in spans} | {log: session}
        parts = moved([Segment(s["first"], s["last"], s["log"]) for s in spans], seqs, log)
        await connection.execute(self._drop_spans, session)
        await connection.execute(
            self._add_spans,
            session,
            [part.first for part in parts],
            [part.upto for part in parts],
            [part.source for part in parts],
            [born[part.source] for part in parts],
        )
        if cipher is not PLAIN:
            parent = await connection.fetchval(self._parent_of, session)
            sealed = [(part.first, part.upto, born[part.source]) for part in parts]
            seal = seal_origin(cipher, session, session, parent, sealed)
            await connection.execute(self._seal_origin, session, seal)

    async def _check_seals(self, connection: Connection, session: str, cipher: Cipher) -> None:
        if cipher is not PLAIN:
            row = await connection.fetchrow(self._statements.seals, session)
            check_seals(row, session, cipher)

    async def _let_go(self, connection: Connection, larges: Sequence[bytes | None]) -> None:
        """Reduce the reference counts of the blobs that *larges* name, and drop unused ones."""
        counted = Counter(
            name for large in larges if large is not None for name in unpack_places(large)[1]
        )
        if counted:
            names = sorted(counted)
            await connection.fetch(self._lock_blobs, names)
            refs = [counted[name] for name in names]
            await connection.execute(self._count_blobs, names, refs)
            await connection.execute(self._drop_blobs, names)


def _rows(
    places: Sequence[tuple[Mapping[str, Any], int, str]],
    bodies: Mapping[int, bytes],
    cipher: Cipher,
    blobs: Blobs,
) -> tuple[list[object], ...]:
    """The columns of records with their new bodies.

    Each place is a record, a log, and the session that it is sealed for.
    """
    sealed_bodies: list[object] = []
    larges: list[object] = []
    for record, _, born in places:
        rest, large = blobs.cut(bodies[record["seq"]])
        sealed_bodies.append(cipher.seal(rest, body_place(born, record["epoch"], record["seq"])))
        larges.append(large or None)
    return (
        [log for _, log, _ in places],
        [record["seq"] for record, _, _ in places],
        [record["epoch"] for record, _, _ in places],
        sealed_bodies,
        larges,
    )
