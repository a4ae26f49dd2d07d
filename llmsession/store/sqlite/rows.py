"""Rows of SQLite's tables as the store's values, and searches as SQL. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from ..protocol import Owner, SessionFilter, SessionRow

__all__ = [
    "SELECT_ROW",
    "SEQ_BITS",
    "UNFINISHED",
    "Values",
    "filter_sql",
    "labels_text",
    "place_of",
    "read_labels",
    "row_of",
    "seq_at",
]

Values: TypeAlias = "tuple[Any, ...]"
"""A row as SQLite returns it."""

SELECT_ROW = """
SELECT s.id, s.epoch, s.head, s.created_at, s.touched_at, s.labels, s.parent,
       s.owner, o.pid, o.started, o.host, s.origin_seal, s.head_seal, s.log, o.lease_until
FROM session AS s LEFT JOIN owner AS o ON o.name = s.owner
"""

SEQ_BITS = 32
_labels = msgspec.json.Decoder(dict[str, str])


def place_of(log: int, seq: int) -> int:
    """The place of record *seq* of *log* in the table."""
    return log << SEQ_BITS | seq


def seq_at(place: int) -> int:
    """The seq of the record at *place*."""
    return place & ((1 << SEQ_BITS) - 1)


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


UNFINISHED = f"{SELECT_ROW} WHERE s.unfinished IS NOT 0 AND s.id > ? ORDER BY s.id"
"""The unfinished sessions, whoever holds them."""

Condition: TypeAlias = tuple[str, list[Any]]
"""SQL that a row must meet, and the values bound to it."""


def filter_sql(
    after: str, limit: int, filter: SessionFilter, more: Sequence[Condition] = ()
) -> tuple[str, list[Any]]:
    """The query for the matching rows, and the values bound to it."""
    conditions: list[Condition] = [("s.id > ?", [after]), *more]
    for name, value in filter.labels.items():
        if value is None:
            conditions.append(("s.id IN (SELECT session FROM label WHERE name = ?)", [name]))
        else:
            query = "s.id IN (SELECT session FROM label WHERE name = ? AND value = ?)"
            conditions.append((query, [name, value]))
    for name in filter.without:
        conditions.append(("s.id NOT IN (SELECT session FROM label WHERE name = ?)", [name]))
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
    return f"{SELECT_ROW} WHERE {where} ORDER BY s.id LIMIT ?", [*bound, max(0, limit)]
