"""The SQL statements of a PostgreSQL store, and the meaning of their rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from llmsession.errors import StoreError

from ..cipher import Cipher, Unreadable, unseal_block
from ..large_blocks import NAME_BYTES, join_large, unpack_places
from ..protocol import Owner, SessionFilter, SessionRow, StoredRecord
from ..row_seals import check_row
from .schema import OPEN

__all__ = [
    "ALL_SHAPES",
    "LARGE_PARTS",
    "LONGEST_IN_A_ROW",
    "MARK_BYTES",
    "OWNER_COLUMNS",
    "PLACED_BYTES",
    "RECORDS_A_ROW",
    "Page",
    "Shape",
    "Statements",
    "account_mark",
    "body_place",
    "check_seals",
    "label_marks",
    "model_bytes",
    "owner_of",
    "owner_values",
    "record_of",
    "row_of",
    "seal_labels",
]

PLACED_BYTES = 8 + NAME_BYTES
"""Of a large part, in ``record.large``: see ``pack_places``."""

LARGE_PARTS = f"""
CASE WHEN r.large IS NOT NULL THEN (
    SELECT array_agg(b.body ORDER BY at)
      FROM generate_series(0, length(r.large) - 1, {PLACED_BYTES}) AS at
      LEFT JOIN {{s}}.blob b ON b.name = substring(r.large FROM at + 9 FOR {NAME_BYTES})
) END"""
"""The contents of the blobs that belong into a record *r*, in order."""

RECORDS_A_ROW = 64
"""So many small records come in one row. For each row the driver makes an object, which takes
longer than the values of a record. But the server copies what is in a row, and sends it in the end:
with larger rows a read takes longer, and so it does with larger records.
"""
LONGEST_IN_A_ROW = 64 * 1024
"""A longer record never comes in a row with others, even if those read before it were small. Else
the server would keep 64 of any length in memory, and it refuses an array of 1 GiB.
"""

MARK_BYTES = 8
"""So much of a label's mark is in ``label``: see ``schema``."""

OWNER_COLUMNS = "owner, owner_pid, owner_started, owner_host"
_ROW = f"id, epoch, head, {OWNER_COLUMNS}, created_at, touched_at, labels, parent"


class Statements:
    """The statements for the tables in *schema*."""

    def __init__(self, schema: str) -> None:
        s = f'"{schema}"'
        # A locked row is read as it is at that moment, not as it was when the statement began. So a
        # creator that waits here for a deletion gets an epoch above that of the deleted session.
        highest = f"SELECT highest_epoch FROM {s}.store FOR SHARE"
        inserted = f"""
            INSERT INTO {s}.session (
                id, log, epoch, head, {OWNER_COLUMNS}, origin_seal, head_seal)
            SELECT $1, nextval('{s}.log_number'), highest_epoch + 1, 0, $2, $3, $4, $5,
                   $6::bytea, $7::bytea
              FROM ({highest}) h
            ON CONFLICT (id) DO NOTHING
            RETURNING log, epoch"""
        self.create = f"""
            WITH made AS ({inserted}),
            spanned AS (
                INSERT INTO {s}.span (session, first, last, log, born)
                SELECT $1, 1, {OPEN}, log, $1 FROM made)
            SELECT epoch FROM made"""
        # If the row is still as its owner made it, an earlier attempt whose answer was lost has
        # made it.
        self.just_made = f"""
            SELECT epoch FROM {s}.session
             WHERE id = $1 AND ({OWNER_COLUMNS}) = ($2, $3, $4, $5)
               AND parent IS NOT DISTINCT FROM $6 AND head = $7"""
        self.rows_of = f"SELECT {_ROW} FROM {s}.session WHERE id = ANY($1::text[])"
        # The mark with the fewest sessions above an id, and their number, counted up to a limit.
        self.rarest = f"""
            SELECT m.mark, c.sessions FROM unnest($1::bytea[]) WITH ORDINALITY AS m(mark, n)
             CROSS JOIN LATERAL (
                SELECT count(*) AS sessions FROM (
                    SELECT FROM {s}.label l
                     WHERE l.mark = substring(m.mark FOR {MARK_BYTES}) AND l.session > $2 LIMIT $3
                ) l) c
             ORDER BY c.sessions, m.n LIMIT 1"""
        self.holder = f"""
            SELECT s.id, s.epoch, {OWNER_COLUMNS}, extract(epoch FROM now())::float8 AS now,
                   extract(epoch FROM o.lease_until)::float8 AS lease_until
              FROM {s}.session s LEFT JOIN {s}.owner o ON o.name = s.owner
             WHERE s.id = ANY($1::text[])"""
        # What a session left unfinished is looked for under its owner.
        self.take = f"""
            WITH taken AS (
            UPDATE {s}.session s
               SET epoch = s.epoch + 1, owner = u.owner, owner_pid = u.pid,
                   owner_started = u.started, owner_host = u.host
              FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[],
                          $6::bigint[], $7::text[])
                   WITH ORDINALITY AS u(id, owner, pid, started, host, epoch, earlier, n)
             WHERE s.id = u.id AND s.epoch = u.epoch AND s.owner IS NOT DISTINCT FROM u.earlier
            RETURNING u.n, s.id, s.owner, s.epoch, s.head),
            listed AS (
                UPDATE {s}.unfinished l SET owner = t.owner
                  FROM taken t WHERE l.session = t.id AND l.owner <> t.owner)
            SELECT n, epoch, head FROM taken"""
        self.release = f"""
            WITH released AS (
                UPDATE {s}.session s
                   SET owner = NULL, owner_pid = NULL, owner_started = NULL, owner_host = NULL
                  FROM unnest($1::text[], $2::bigint[]) AS u(id, epoch)
                 WHERE s.id = u.id AND s.epoch = u.epoch RETURNING s.id, s.unfinished),
            settled AS (
                DELETE FROM {s}.unfinished u USING released r
                 WHERE u.session = r.id AND NOT r.unfinished)
            UPDATE {s}.unfinished u SET owner = ''
              FROM released r WHERE u.session = r.id AND r.unfinished"""
        # Each owner is found by one step of the index, however many sessions it has there. The
        # process of an owner is in the row of a session that it holds.
        self.unfinished_owners = f"""
            WITH RECURSIVE each AS (
                (SELECT owner FROM {s}.unfinished ORDER BY owner LIMIT 1)
                UNION ALL
                SELECT (SELECT u.owner FROM {s}.unfinished u
                         WHERE u.owner > each.owner ORDER BY u.owner LIMIT 1)
                  FROM each WHERE each.owner IS NOT NULL)
            SELECT e.owner AS key, s.*, extract(epoch FROM now())::float8 AS now,
                   extract(epoch FROM o.lease_until)::float8 AS lease_until
              FROM each e
              LEFT JOIN {s}.owner o ON o.name = e.owner
              LEFT JOIN LATERAL (
                SELECT s.owner, s.owner_pid, s.owner_started, s.owner_host
                  FROM {s}.unfinished u JOIN {s}.session s ON s.id = u.session
                 WHERE u.owner = e.owner AND s.owner = e.owner LIMIT 1) s ON true
             WHERE e.owner IS NOT NULL"""
        self.unfinished = f"""
            SELECT {_ROW}, extract(epoch FROM now())::float8 AS now,
                   extract(epoch FROM o.lease_until)::float8 AS lease_until
              FROM (SELECT u.session FROM {s}.unfinished u
                      JOIN {s}.session s ON s.id = u.session AND s.unfinished
                     WHERE u.owner = ANY($1::text[]) AND u.session > $2
                     ORDER BY u.session LIMIT $3) u
              JOIN {s}.session s ON s.id = u.session
              LEFT JOIN {s}.owner o ON o.name = s.owner
             ORDER BY id"""
        # Whoever appends meanwhile is waited for, and has then changed the head.
        self.settle = f"""
            WITH same AS (UPDATE {s}.session SET unfinished = false
                           WHERE id = $1 AND epoch = $2 AND head = $3 RETURNING id)
            DELETE FROM {s}.unfinished u USING same WHERE u.session = same.id"""
        # Sessions that dead owners left without unfinished work. Whoever appends to one waits for
        # its row, and then lists it again. One that somebody appends to now is passed over.
        self.forget_finished = f"""
            WITH finished AS (
                SELECT s.id FROM {s}.unfinished u
                  JOIN {s}.session s ON s.id = u.session AND NOT s.unfinished
                 WHERE u.owner = ANY($1::text[]) FOR UPDATE OF s SKIP LOCKED)
            DELETE FROM {s}.unfinished u USING finished f WHERE u.session = f.id"""
        self.lease = f"""
            INSERT INTO {s}.owner (name, lease_until)
            SELECT name, now() + $2::float8 * interval '1 second' FROM unnest($1::text[]) AS name
            ON CONFLICT (name) DO UPDATE SET lease_until = excluded.lease_until
            RETURNING name, xmax = 0 AS is_new"""
        self.epochs = f"SELECT id, epoch FROM {s}.session WHERE id = ANY($1::text[])"
        self.end_leases = f"DELETE FROM {s}.owner WHERE name = ANY($1::text[])"
        self.forget_owners = f"""
            DELETE FROM {s}.owner WHERE lease_until < now() - interval '1 day'"""
        self.read = _read(s)
        self.read_plain = _read_plain(s)
        self.read_small = _read_small(s)
        self.snapshot = f"""
            SELECT least, body FROM {s}.snapshot WHERE session = $1 AND body IS NOT NULL"""
        self.seals = f"""
            SELECT s.head, s.parent, s.origin_seal, s.head_seal,
                   array_agg(p.first ORDER BY p.first) AS firsts,
                   array_agg(p.last ORDER BY p.first) AS lasts,
                   array_agg(p.born ORDER BY p.first) AS borns
              FROM {s}.session s LEFT JOIN {s}.span p ON p.session = s.id
             WHERE s.id = $1 GROUP BY s.id"""
        # A key share lock: until the fork is made, the parent can be appended to, but not deleted
        # or rewritten.
        self.parent = f"SELECT epoch, head, touched_at FROM {s}.session WHERE id = $1 FOR KEY SHARE"
        self.fork = f"""
            WITH made AS (
                INSERT INTO {s}.session (
                    id, log, epoch, head, {OWNER_COLUMNS}, created_at, touched_at, parent,
                    origin_seal, head_seal)
                SELECT $1, nextval('{s}.log_number'), greatest(highest_epoch, $8) + 1, $7::bigint,
                       $2, $3, $4, $5, $9::float8, $9, $6::text, $10::bytea, $11::bytea
                  FROM ({highest}) h
                ON CONFLICT (id) DO NOTHING
                RETURNING log, epoch),
            spanned AS (
                INSERT INTO {s}.span (session, first, last, log, born)
                SELECT $1, p.first, least(p.last, $7), p.log, p.born
                  FROM {s}.span p, made WHERE p.session = $6 AND p.first <= $7
                UNION ALL SELECT $1, $7 + 1, {OPEN}, log, $1 FROM made)
            SELECT epoch FROM made"""
        self.appends = {shape: _append(s, shape) for shape in ALL_SHAPES}
        self._schema = s

    def page(self, wanted: Page) -> tuple[str, Sequence[object]]:
        """The statement for a page of rows, by id, and its values.

        It begins at its place and ends when the page is full: it reads the ids in their order, all
        of them or those of ``Page.lead``, and sorts nothing. Only a search without a lead first
        finds every session that has the words.
        """
        s = self._schema
        filter = wanted.filter
        values: list[object] = [wanted.after, wanted.limit]

        def bound(value: object) -> str:
            values.append(value)
            return f"${len(values)}"

        conditions = [
            f"s.{condition} {bound(time)}::float8"
            for condition, time in (
                ("created_at >=", filter.created_after),
                ("created_at <", filter.created_before),
                ("touched_at >=", filter.touched_after),
                ("touched_at <", filter.touched_before),
            )
            if time is not None
        ]
        if wanted.marks:
            conditions.append(f"s.label_marks @> {bound(wanted.marks)}::bytea[]")
        if wanted.without:
            others = bound(wanted.without)
            conditions.append(f"NOT coalesce(s.label_marks, '{{}}') && {others}::bytea[]")
        queries = [f"w.words @@ {bound(query)}::text::tsquery" for query in wanted.queries]
        # OFFSET 0 is a fence: what is in it is read first, in its order.
        if wanted.lead is not None:
            ids = f"""
                SELECT session AS listed FROM {s}.label
                 WHERE mark = substring({bound(wanted.lead)}::bytea FOR {MARK_BYTES})
                   AND session > $1 ORDER BY session OFFSET 0"""
            # IS TRUE keeps the planner from asking the index of all words about each session.
            conditions += [
                f"""EXISTS (
                SELECT FROM {s}.span p
                  JOIN {s}.word w ON w.log = p.log AND w.seq BETWEEN p.first AND p.last
                 WHERE p.session = s.id AND ({query}) IS TRUE OFFSET 0)"""
                for query in queries
            ]
        else:
            # The records of a log are not compared with each of its forks: nearly every span that
            # has one of them has the first or the last one.
            ids = " INTERSECT ".join(
                f"""
                SELECT DISTINCT p.session AS listed
                  FROM (SELECT log, min(seq) AS low, max(seq) AS high
                          FROM (SELECT log, seq FROM {s}.word w WHERE {query} OFFSET 0) w
                         GROUP BY log) f
                 CROSS JOIN LATERAL (
                    SELECT session, first, last FROM {s}.span
                     WHERE log = f.log AND first <= f.high AND last >= f.low AND session > $1
                    OFFSET 0) p
                 WHERE f.low >= p.first OR f.high <= p.last OR EXISTS (
                    SELECT FROM {s}.word w
                     WHERE w.log = f.log AND w.seq BETWEEN p.first AND p.last
                       AND ({query}) IS TRUE OFFSET 0)"""
                for query in queries
            )
        source, at = f"{s}.session s", "s.id"
        if ids:
            source, at = (
                f"({ids}) i CROSS JOIN LATERAL"
                f" (SELECT * FROM {s}.session WHERE id = i.listed OFFSET 0) s",
                "i.listed",
            )
        else:
            conditions.append("s.id > $1")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {_ROW} FROM {source} {where} ORDER BY {at} LIMIT $2", values


class Page(NamedTuple):
    """The page of rows that somebody wants."""

    after: str
    limit: int
    filter: SessionFilter
    marks: Sequence[bytes] = ()
    """The marks of the labels that a session must have."""
    without: Sequence[bytes] = ()
    """The marks that it must not have."""
    lead: bytes | None = None
    """The one of *marks* whose sessions are read; None: the sessions of all ids, or those that
    *queries* find."""
    queries: Sequence[str] = ()
    """Of the word index: the session must have a record for each of these tsqueries."""


class Shape(NamedTuple):
    """Which parts the statement of an append has. The less it has, the faster it begins: an append
    of one session takes about as long as beginning its statement.
    """

    lone: bool
    """There is one unit. Its values are sent as they are, and not as arrays."""
    single: bool
    """Each unit has one record."""
    marked: bool
    """Some say whether they are unfinished."""
    plain: bool
    """No unit has large parts or seals."""
    labelled: bool
    """Some have labels."""
    charged: bool
    """Some have charges."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The names and types of a unit's values, in the order in which they are sent."""
        columns = [*_COLUMNS]
        if not self.single:
            columns += [("starts", "text"), ("lengths", "text")]
        if self.marked:
            columns += [("unfinished", "boolean")]
        if not self.plain:
            columns += [("large", "bytea"), ("seal", "bytea")]
        if not (self.plain or self.single):
            columns += [("large_starts", "text"), ("large_lengths", "text")]
        if self.labelled:
            columns += [("labels", "bytea"), ("marks", "text")]
        if self.charged:
            columns += [("account", "bytea"), ("tokens", "text"), ("nano_usd", "text")]
            columns += [("unpriced", "text")]
        return tuple(columns)


_COLUMNS = (
    ("session", "text"), ("epoch", "bigint"), ("head", "bigint"), ("at", "float8"),
    ("body", "bytea"),
)  # fmt: skip
ALL_SHAPES = tuple(Shape(*parts) for parts in itertools.product((True, False), repeat=6))


def _append(s: str, shape: Shape) -> str:
    """The fenced append of a group. A unit is a session, the epoch and the head that it is expected
    at, and what is to be written; one that meets others is left out, whole. What comes back is the
    numbers of the units that were written. Its values are those of ``groups.arguments``: columns of
    *shape*, and the numbers of units, names, bodies and reference counts of blobs if it is not
    plain. Charges go to the counters that were begun, in the order of their names: two groups that
    lock them in different orders would deadlock.

    A unit of one record has its body; the bodies of more are one string, with their starts and
    lengths. So the rows of records are made without a join over the group, of which the planner
    cannot know the size.
    """
    columns = shape.columns
    names = ", ".join(name for name, _ in columns)
    dimension = "" if shape.lone else "[]"
    values = ", ".join(f"${at}::{kind}{dimension}" for at, (_, kind) in enumerate(columns, 1))
    units = f"unnest({values}) WITH ORDINALITY AS u({names}, n)"
    if shape.lone:
        units = f"(VALUES ({values}, 1)) AS u({names}, n)"
    head = "u.head + 1"
    kept = ["n", "head", "epoch", "body"]
    sets, parts = "", ""
    large = "NULL::bytea" if shape.plain else "f.large"
    written = f"SELECT f.log, f.head + 1, f.epoch, f.body, {large} FROM fenced f"
    if not shape.single:
        kept += ["starts", "lengths"]
        head = """u.head + CASE WHEN u.starts IS NULL THEN 1
                                ELSE cardinality(u.starts::int[]) END"""
        cuts, cut, piece = "f.starts::int[], f.lengths::int[]", "start, length", large
        if not shape.plain:
            kept += ["large_starts", "large_lengths"]
            cuts += ", f.large_starts::int[], f.large_lengths::int[]"
            cut += ", large_start, large_length"
            piece = """CASE WHEN c.large_length > 0
                            THEN substring(f.large FROM c.large_start FOR c.large_length) END"""
        written += f""" WHERE f.starts IS NULL
             UNION ALL
            SELECT f.log, f.head + c.i, f.epoch, substring(f.body FROM c.start FOR c.length),
                   {piece}
              FROM fenced f
             CROSS JOIN LATERAL unnest({cuts}) WITH ORDINALITY AS c({cut}, i)
             WHERE f.starts IS NOT NULL"""
    if shape.marked:
        # A session that is listed stays so: then nothing is written here.
        kept += ["session", "unfinished"]
        sets += ", unfinished = coalesce(u.unfinished, s.unfinished)"
        parts += f""", begun AS (
            INSERT INTO {s}.unfinished (session, owner)
            SELECT f.session, coalesce(f.owner, '') FROM fenced f WHERE f.unfinished
            ON CONFLICT (session) DO NOTHING
        )"""
    if not shape.plain:
        kept += ["large"]
        sets += ", head_seal = u.seal"
        n, name, body, refs = (f"${len(columns) + at}" for at in range(1, 5))
        parts += f""", kept AS (
            INSERT INTO {s}.blob (name, body, refs)
            SELECT b.name, (array_agg(b.body))[1], sum(b.refs)
              FROM unnest({n}::bigint[], {name}::bytea[], {body}::bytea[], {refs}::bigint[])
                   AS b(n, name, body, refs)
              JOIN fenced f ON f.n = b.n
             GROUP BY b.name ORDER BY b.name
            ON CONFLICT (name) DO UPDATE SET refs = blob.refs + excluded.refs
        )"""
    if shape.labelled:
        kept += ["marks"] if "session" in kept else ["session", "marks"]
        sets += """, labels = CASE WHEN u.marks IS NULL THEN s.labels ELSE u.labels END,
                label_marks = CASE WHEN u.marks IS NULL THEN s.label_marks
                                   ELSE u.marks::bytea[] END"""
        # The whole statement sees the session's row as it was before, with its former marks.
        parts += f""", marked AS (
            SELECT f.session, substring(m.mark FOR {MARK_BYTES}) AS mark
              FROM fenced f CROSS JOIN LATERAL unnest(f.marks::bytea[]) AS m(mark)
        ), unlabelled AS (
            DELETE FROM {s}.label l
             USING fenced f, {s}.session s, unnest(s.label_marks) AS m(mark)
             WHERE f.marks IS NOT NULL AND s.id = f.session AND l.session = f.session
               AND l.mark = substring(m.mark FOR {MARK_BYTES})
               AND (l.mark, l.session) NOT IN (SELECT mark, session FROM marked)
        ), labelled AS (
            INSERT INTO {s}.label (mark, session)
            SELECT mark, session FROM marked ON CONFLICT DO NOTHING
        )"""
    if shape.charged:
        kept += ["account", "tokens", "nano_usd", "unpriced"]
        parts += f""", charged AS (
            INSERT INTO {s}.counter AS c (account, tokens, nano_usd, unpriced)
            SELECT f.account, sum(f.tokens::numeric), sum(f.nano_usd::numeric),
                   ARRAY(SELECT DISTINCT m.name FROM fenced g
                          CROSS JOIN LATERAL unnest(g.unpriced::bytea[]) AS m(name)
                          WHERE g.account = f.account)
              FROM fenced f JOIN {s}.counter k ON k.account = f.account
             GROUP BY f.account ORDER BY f.account
            ON CONFLICT (account) DO UPDATE
               SET tokens = c.tokens + excluded.tokens, nano_usd = c.nano_usd + excluded.nano_usd,
                   unpriced = CASE WHEN excluded.unpriced <@ c.unpriced THEN c.unpriced
                              ELSE ARRAY(SELECT DISTINCT unnest(c.unpriced || excluded.unpriced))
                              END
        )"""
    return f"""
        WITH fenced AS (
            UPDATE {s}.session s
               SET head = {head}, touched_at = u.at, unindexed = true,
                   created_at = CASE WHEN s.created_at = 0 THEN u.at ELSE s.created_at END{sets}
              FROM {units}
             WHERE s.id = u.session AND s.epoch = u.epoch AND s.head = u.head
            RETURNING s.log, s.owner, {", ".join(f"u.{name}" for name in kept)}
        ), written AS (
            INSERT INTO {s}.record (log, seq, epoch, body, large)
            {written}
        ){parts}
        SELECT array_agg(n) FROM fenced"""


def _read(s: str) -> str:
    """Of each session in $1 the records after the seq in $2 and up to that in $3, each with the
    number of the session in $1 and its head; a row without a seq if there are none. They come in
    the order in which the indexes have them, which is that of their seqs, but this is not promised:
    sorting them would cost the server as much as reading them. The first four
    columns are all that most records need. *born*, which seals
    need, is left out unless $4."""
    return f"""
        SELECT r.seq, r.epoch, r.body, r.large, r.parts, r.born, u.n, s.head
          FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::boolean[])
               WITH ORDINALITY AS u(session, after, upto, sealed, n)
          JOIN {s}.session s ON s.id = u.session
          LEFT JOIN LATERAL (
            SELECT r.seq, r.epoch, r.body, r.large, CASE WHEN u.sealed THEN p.born END AS born,
                   {LARGE_PARTS.format(s=s)} AS parts
              FROM {s}.span p
             CROSS JOIN LATERAL (
                SELECT * FROM {s}.record r
                 WHERE r.log = p.log
                   AND r.seq BETWEEN greatest(p.first, u.after + 1)
                                 AND least(p.last, s.head, u.upto)
                OFFSET 0  -- a fence: no plan may read more records than these
             ) r
             WHERE p.session = s.id
          ) r ON true"""


def _read_plain(s: str) -> str:
    """Of the session $1 its head, in a row without an epoch, and those of its records after the seq
    $2 and up to $3 that have no large parts. The driver takes as long for a few further columns as
    for these three."""
    return f"""
        SELECT s.head AS seq, NULL::bigint AS epoch, NULL::bytea AS body
          FROM {s}.session s WHERE s.id = $1
        UNION ALL
        SELECT r.seq, r.epoch, r.body
          FROM {s}.session s JOIN {s}.span p ON p.session = s.id
         CROSS JOIN LATERAL (
            SELECT seq, epoch, body FROM {s}.record
             WHERE log = p.log AND large IS NULL
               AND seq BETWEEN greatest(p.first, $2::bigint + 1)
                           AND least(p.last, s.head, $3::bigint)
            OFFSET 0
         ) r
         WHERE s.id = $1"""


def _read_small(s: str) -> str:
    """What ``_read_plain`` reads, but for records longer than LONGEST_IN_A_ROW, with up to
    RECORDS_A_ROW records in each row: the seq of the first, and their epochs and bodies by seq. The
    head is in a row without epochs.
    """
    return f"""
        SELECT s.head AS first, NULL::bigint[] AS epochs, NULL::bytea[] AS bodies
          FROM {s}.session s WHERE s.id = $1
        UNION ALL
        SELECT f.first, r.epochs, r.bodies
          FROM {s}.session s JOIN {s}.span p ON p.session = s.id
         CROSS JOIN LATERAL generate_series(
            greatest(p.first, $2::bigint + 1), least(p.last, s.head, $3::bigint), {RECORDS_A_ROW}
         ) AS f(first)
         CROSS JOIN LATERAL (
            SELECT array_agg(epoch ORDER BY seq) AS epochs, array_agg(body ORDER BY seq) AS bodies
              FROM {s}.record
             WHERE log = p.log AND large IS NULL AND octet_length(body) <= {LONGEST_IN_A_ROW}
               AND seq BETWEEN f.first AND least(
                   f.first + {RECORDS_A_ROW} - 1, p.last, s.head, $3::bigint)
         ) r
         WHERE s.id = $1"""


# What rows mean.


def row_of(row: Mapping[str, Any], cipher: Cipher) -> SessionRow:
    """The session in *row*. Raises StoreError if its labels cannot be read."""
    sealed = row["labels"]
    labels: dict[str, str] = {}
    if sealed is not None:
        try:
            labels = _LABELS.decode(cipher.unseal(sealed, _labels_place(row["id"])))
        except (Unreadable, msgspec.MsgspecError) as error:
            message = f"the labels of session {row['id']!r} cannot be read"
            raise StoreError(message, committed=False) from error
    return SessionRow(
        row["id"],
        row["epoch"],
        row["head"],
        owner_of(row),
        row["created_at"],
        row["touched_at"],
        labels,
        row["parent"],
    )


def owner_of(row: Mapping[str, Any]) -> Owner | None:
    """The owner in *row*; None if nobody holds the session."""
    if row["owner"] is None:
        return None
    return Owner(row["owner"], row["owner_pid"], row["owner_started"], row["owner_host"])


def owner_values(owner: Owner) -> tuple[str, int, str, str]:
    """The values of OWNER_COLUMNS."""
    return owner.name, owner.pid, owner.started, owner.host


_LABELS = msgspec.json.Decoder(dict[str, str])


def seal_labels(labels: Mapping[str, str], session: str, cipher: Cipher) -> bytes:
    """*labels* of *session* as they are stored: as bytes, because PostgreSQL's texts cannot hold a
    NUL.
    """
    return cipher.seal(msgspec.json.encode(labels), _labels_place(session))


def label_marks(labels: Mapping[str, str | None], cipher: Cipher) -> list[bytes]:
    """The marks by which *labels* are searched: one per name, and one per name with its value."""
    marks = [cipher.name(msgspec.json.encode([name])) for name in labels]
    pairs = ([name, value] for name, value in labels.items() if value is not None)
    return marks + [cipher.name(msgspec.json.encode(pair)) for pair in pairs]


def account_mark(account: str, cipher: Cipher) -> bytes:
    """The name of an account in the tables."""
    return cipher.name(msgspec.json.encode(["account", account]))


def model_bytes(models: Iterable[str]) -> list[bytes]:
    """Names of models as they are stored: as bytes, because a text cannot hold a NUL there."""
    return [model.encode("utf-8", "replace") for model in sorted(models)]


def check_seals(row: Mapping[str, Any], session: str, cipher: Cipher) -> None:
    """Raises RecordDamaged if *row*, of ``Statements.seals``, is not the one that was sealed."""
    parts = list(zip(row["firsts"], row["lasts"], row["borns"], strict=True))
    check_row(
        cipher,
        session,
        session,
        parent=row["parent"],
        parts=parts,
        head=row["head"],
        seals=(row["origin_seal"], row["head_seal"]),
    )


def body_place(born: str, epoch: int, seq: int) -> bytes:
    """The place that a record's body is sealed for. No two records of a store have the same one."""
    return msgspec.json.encode([born, epoch, seq])


def snapshot_place(session: str, seq: int) -> bytes:
    """The place that a snapshot of *session* up to the record *seq* is sealed for."""
    return msgspec.json.encode(["snapshot", session, seq])


def _labels_place(session: str) -> bytes:
    return msgspec.json.encode(["labels", session])


def record_of(row: Mapping[str, Any], cipher: Cipher) -> StoredRecord:
    """The record in *row* as it was appended. Raises Unreadable with the reason if it cannot be
    read.
    """
    seq, epoch = row["seq"], row["epoch"]
    body = cipher.unseal(row["body"], body_place(row["born"], epoch, seq))
    if row["large"] is None:
        return StoredRecord(seq, epoch, body)
    try:
        places, names = unpack_places(row["large"])
        blocks = zip(row["parts"], names, strict=True)
        parts = [unseal_block(cipher, sealed, name) for sealed, name in blocks]
        return StoredRecord(seq, epoch, join_large(body, places, parts))
    except ValueError as error:
        raise Unreadable(str(error)) from error
