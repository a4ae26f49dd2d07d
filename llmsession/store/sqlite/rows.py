"""Rows of SQLite's tables as the store's values, and searches as SQL. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from ..protocol import Owner, SessionFilter, SessionRow

__all__ = [
    "SELECT_ROW",
    "SEQ_BITS",
    "UNFINISHED_HELD",
    "UNFINISHED_LEFT",
    "Values",
    "count_sql",
    "filter_sql",
    "labels_text",
    "place_of",
    "read_labels",
    "row_of",
    "seq_at",
    "snapshot_place",
]

Values: TypeAlias = "tuple[Any, ...]"
"""A row as SQLite returns it."""

_SELECT = """
SELECT s.id, s.epoch, s.head, s.created_at, s.touched_at, s.labels, s.parent,
       s.owner, o.pid, o.started, o.host, s.origin_seal, s.head_seal, s.log, o.lease_until
"""
_OWNER = "LEFT JOIN owner AS o ON o.name = s.owner"
SELECT_ROW = f"{_SELECT} FROM session AS s {_OWNER} "

SEQ_BITS = 32
_labels = msgspec.json.Decoder(dict[str, str])


def place_of(log: int, seq: int) -> int:
    """The place of record *seq* of *log* in the table."""
    return log << SEQ_BITS | seq


def seq_at(place: int) -> int:
    """The seq of the record at *place*."""
    return place & ((1 << SEQ_BITS) - 1)


def snapshot_place(log: int, seq: int) -> bytes:
    """What the seal of a snapshot of *log* up to the record *seq* is bound to."""
    return b"snapshot %d %d" % (log, seq)


def row_of(values: Values) -> SessionRow:
    """The session in a row of ``SELECT_ROW``."""
    session, epoch, head, created_at, touched_at, labels, parent, owner, pid, started, host = (
        values[:11]
    )
    return SessionRow(
        session,
        epoch,
        head,
        None if owner is None else Owner(owner, pid or 0, started or "", host or ""),
        created_at,
        touched_at,
        read_labels(labels),
        parent,
    )


def labels_text(labels: dict[str, str]) -> str:
    """Labels in the form in which the table keeps them."""
    return msgspec.json.encode(labels).decode()


def read_labels(text: str) -> dict[str, str]:
    """The labels that ``labels_text`` encoded."""
    return _labels.decode(text) if text != "{}" else {}


_UNFINISHED = f"{SELECT_ROW} WHERE s.unfinished IS NOT 0 AND s.owner"
UNFINISHED_LEFT = f"{_UNFINISHED} IS NULL AND s.id > ? ORDER BY s.id LIMIT ?"
"""The unfinished sessions that nobody holds."""
UNFINISHED_HELD = f"{_UNFINISHED} = ? AND s.id > ? ORDER BY s.id LIMIT ?"
"""The unfinished sessions that an owner holds."""

Condition: TypeAlias = tuple[str, list[Any]]
"""SQL that a row must meet, and the values bound to it."""


def _has_label(name: str, value: str | None) -> Condition:
    """A row *l* of ``label`` is this one. None: whatever its value is."""
    return (
        ("l.name = ?", [name]) if value is None else ("l.name = ? AND l.value = ?", [name, value])
    )


def count_sql(name: str, value: str | None, after: str, upto: int) -> tuple[str, list[Any]]:
    """The query for the number of sessions above *after* with a label, counted up to *upto*."""
    has_label, bound = _has_label(name, value)
    some = f"SELECT 1 FROM label AS l WHERE {has_label} AND l.session > ? LIMIT ?"
    return f"SELECT count(*) FROM ({some})", [*bound, after, upto]


def filter_sql(
    after: str,
    limit: int,
    filter: SessionFilter,
    lead: str | None = None,
    more: Sequence[Condition] = (),
) -> tuple[str, list[Any]]:
    """The query for the matching rows, and the values bound to it.

    It begins at *after* and ends with the page, however many sessions match: by the index of the
    label *lead*, one of those that the filter names, or else by the ids. It sorts nothing.
    """
    source, at = "session AS s", "s.id"
    conditions: list[Condition] = list(more)
    if lead is not None:
        # CROSS JOIN: SQLite keeps the order of the tables.
        source, at = "label AS l CROSS JOIN session AS s ON s.id = l.session", "l.session"
        conditions.append(_has_label(lead, filter.labels[lead]))
    conditions.append((f"{at} > ?", [after]))
    for name, value in filter.labels.items():
        if name != lead:
            has_label, bound_label = _has_label(name, value)
            query = f"EXISTS (SELECT 1 FROM label AS l WHERE {has_label} AND l.session = s.id)"
            conditions.append((query, bound_label))
    for name in filter.without:
        query = "NOT EXISTS (SELECT 1 FROM json_each(s.labels) WHERE key = ?)"
        conditions.append((query, [name]))
    for condition, time in (
        ("s.created_at >= ?", filter.created_after),
        ("s.created_at < ?", filter.created_before),
        ("s.touched_at >= ?", filter.touched_after),
        ("s.touched_at < ?", filter.touched_before),
    ):
        if time is not None:
            conditions.append((condition, [time]))
    where = " AND ".join(condition for condition, _ in conditions)
    bound = [value for _, values in conditions for value in values]
    return (
        f"{_SELECT} FROM {source} {_OWNER} WHERE {where} ORDER BY {at} LIMIT ?",
        [*bound, max(0, limit)],
    )
