"""Additions to the rows of a store in a list of sessions: titles, and the filter for archived
ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from llmsession.errors import RecordDamaged, SessionNotFound
from llmsession.store.protocol import SessionFilter, SessionRow, Store

from ..log.titles import read_title
from ..values.labels import ARCHIVED_LABEL
from ..values.validation import checked_flag

__all__ = ["with_archived", "with_titles"]


def with_archived(filter: SessionFilter, archived: bool | None) -> SessionFilter:
    """*filter* for archived sessions, for those that are not, or (None) for both. Raises
    InvalidInput.
    """
    if archived is None:
        return filter
    if checked_flag(archived, "archived"):
        return replace(filter, labels={**filter.labels, ARCHIVED_LABEL: None})
    return replace(filter, without=(*filter.without, ARCHIVED_LABEL))


async def with_titles(store: Store, rows: Sequence[SessionRow]) -> Sequence[SessionRow]:
    """*rows* with their titles. A session whose log cannot be read has none. Raises StoreError."""
    titled = []
    for row in rows:
        try:
            titled.append(replace(row, title=await read_title(store, row)))
        except (RecordDamaged, SessionNotFound):  # ``integrity`` names what is damaged
            titled.append(row)
    return titled
