"""Record bodies in SQLite's tables: sealed, and with their large blocks kept once.

Each use of a large block is counted. The last record that is removed takes the block with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TypeAlias

import apsw

from ..cipher import PLAIN, Cipher, Unreadable, unseal_block
from ..large_blocks import LARGE_BYTES, join_large, pack_places, split_large, unpack_places
from ..protocol import StoredRecord
from .rows import SEQ_BITS, Values, place_of

__all__ = ["INSERT", "RecordRow", "Records"]

INSERT = "INSERT INTO record (place, epoch, large, body) VALUES (?, ?, ?, ?)"
"""Writes a RecordRow."""

RecordRow: TypeAlias = tuple[int, int, bytes | None, bytes]
"""A row of the table: place, epoch, the large blocks' places and names, and the rest of the
body.
"""

_bound = Struct(">QQ").pack


class Records:
    """The records in *db*, sealed by *cipher*. Changes belong to the open transaction."""

    def __init__(self, db: apsw.Connection, cipher: Cipher) -> None:
        self._db = db
        self._cipher = cipher
        self.is_plain = cipher is PLAIN
        """Has the store no key?"""

    def keep(
        self, log: int, first: int, epoch: int, bodies: Sequence[bytes], rows: list[RecordRow]
    ) -> None:
        """Append the rows for *bodies* to *rows*, which must then be written by ``INSERT``.

        The bodies are the records *first* and following of *log*.
        """
        place = log << SEQ_BITS | first
        for body in bodies:
            if self.is_plain and len(body) < LARGE_BYTES:
                rows.append((place, epoch, None, body))
            else:
                rows.append(self._row_of(place, epoch, body))
            place += 1

    def _row_of(self, place: int, epoch: int, body: bytes) -> RecordRow:
        large: bytes | None = None
        split = split_large(body)
        if split is not None:
            large = pack_places(split.places, [self._use(part) for part in split.parts])
            body = split.rest
        return place, epoch, large, self._cipher.seal(body, _sealed_for(place, epoch, large))

    def replace(self, log: int, seq: int, body: bytes) -> bool:
        """Replace the body of a record. Returns False if there is no such record. Its epoch
        stays.
        """
        place = place_of(log, seq)
        rows: list[Values] = self._db.execute(
            "SELECT epoch, large FROM record WHERE place = ?", (place,)
        ).fetchall()
        if not rows:
            return False
        [(epoch, old)] = rows
        _, _, large, rest = self._row_of(place, epoch, body)
        self._db.execute(
            "UPDATE record SET large = ?, body = ? WHERE place = ?", (large, rest, place)
        )
        if old is not None:
            self._let_go([old])
        return True

    def copy(self, log: int, seq: int, target: int, body: bytes) -> bool:
        """Store *body* as record *seq* of the log *target*, with the epoch of record *seq* of
        *log*.

        Returns False if that record does not exist.
        """
        epoch: int | None = self._db.execute(
            "SELECT epoch FROM record WHERE place = ?", (place_of(log, seq),)
        ).get
        if epoch is None:
            return False
        self._db.execute(INSERT, self._row_of(place_of(target, seq), epoch, body))
        return True

    def remove(self, log: int, first: int, upto: int) -> None:
        """Delete the records *first* to *upto* of *log*."""
        ends = place_of(log, first), place_of(log, upto)
        rows: list[Values] = self._db.execute(
            "SELECT large FROM record WHERE place BETWEEN ? AND ? AND large IS NOT NULL", ends
        ).fetchall()
        self._let_go(packed for (packed,) in rows)
        self._db.execute("DELETE FROM record WHERE place BETWEEN ? AND ?", ends)

    def rows(self, log: int, first: int, upto: int, limit: int = -1) -> Iterable[RecordRow]:
        """The rows of the records *first* to *upto* of *log* that exist; at most *limit*, if it is
        not negative.
        """
        return self._db.execute(
            "SELECT place, epoch, large, body FROM record WHERE place BETWEEN ? AND ?"
            " ORDER BY place LIMIT ?",
            (place_of(log, first), place_of(log, upto), limit),
        )

    def plain(self, log: int, first: int, upto: int) -> list[StoredRecord] | None:
        """The records *first* to *upto* of *log*, if each exists and is stored as it was appended.

        That is so nearly always, and it is twice as fast as reading row by row. Otherwise None.
        """
        if not self.is_plain:
            return None
        try:
            rows: list[Values] = self._db.execute(
                "SELECT epoch, body FROM record WHERE place BETWEEN ? AND ? AND large IS NULL"
                " ORDER BY place",
                (place_of(log, first), place_of(log, upto)),
            ).fetchall()
        except apsw.CorruptError:  # reading row by row will find the damaged record
            return None
        if len(rows) <= upto - first:
            return None
        # There are as many rows as places, so each record is at its own place.
        return [StoredRecord(seq, epoch, body) for seq, (epoch, body) in enumerate(rows, first)]

    def body(self, row: RecordRow) -> bytes:
        """The body that was stored as *row*. Raises Unreadable."""
        place, epoch, large, body = row
        if large is None and self.is_plain:
            return body
        rest = self._cipher.unseal(body, _sealed_for(place, epoch, large))
        if large is None:
            return rest
        try:
            places, names = unpack_places(large)
            return join_large(rest, places, [self._part(name) for name in names])
        except ValueError as error:
            raise Unreadable(f"its large blocks cannot be put back: {error}") from error

    # Large blocks.

    def _use(self, part: bytes) -> bytes:
        """Count one more use of *part*, which is written if it is new. Returns its name."""
        name = self._cipher.name(part)
        self._db.execute("UPDATE large SET uses = uses + 1 WHERE name = ?", (name,))
        if self._db.changes() == 0:
            self._db.execute(
                "INSERT INTO large_body (body) VALUES (?)", (self._cipher.seal(part, name),)
            )
            place = self._db.last_insert_rowid()
            self._db.execute("INSERT INTO large VALUES (?, 1, ?)", (name, place))
        return name

    def _let_go(self, packed: Iterable[bytes]) -> None:
        """Count one use less of each block in *packed*, and delete blocks without any use."""
        for places in packed:
            for name in unpack_places(places)[1]:
                self._db.execute("UPDATE large SET uses = uses - 1 WHERE name = ?", (name,))
                place = self._db.execute(
                    "DELETE FROM large WHERE name = ? AND uses <= 0 RETURNING place", (name,)
                ).get
                if place is not None:
                    self._db.execute("DELETE FROM large_body WHERE place = ?", (place,))

    def _part(self, name: bytes) -> bytes:
        sealed: bytes | None = self._db.execute(
            "SELECT b.body FROM large AS n JOIN large_body AS b USING (place) WHERE n.name = ?",
            (name,),
        ).get
        return unseal_block(self._cipher, sealed, name)


def _sealed_for(place: int, epoch: int, large: bytes | None) -> bytes:
    """What a record's seal is bound to: its place, its epoch, and its large blocks."""
    return _bound(place, epoch) + (large or b"")
