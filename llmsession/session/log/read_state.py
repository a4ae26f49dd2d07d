"""Reads whole sessions from a store without a lease: rows, first records, states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from llmsession.errors import RecordDamaged, SessionNotFound
from llmsession.store.protocol import EVERYTHING, SessionFilter, SessionRow, Store, StoredRecord
from llmsession.turns import records as r

from ..values.commands import checked_command_id, command_digest, remembered
from ..values.labels import tenant_of
from .reader import read_record, unreadable
from .state import SessionState

__all__ = [
    "PAGE",
    "begun_rows",
    "check_belongs",
    "read_state",
    "was_created_by",
    "with_command",
]

PAGE = 1000
"""Records that are read at a time when only their bytes are needed."""
FOLD_PAGE = 256
"""Records that are folded at a time: that takes a few milliseconds of the event loop."""


async def begun_rows(
    store: Store, *, after: str = "", limit: int, filter: SessionFilter = EVERYTHING
) -> Sequence[SessionRow]:
    """``Store.rows`` without the sessions that have no record.

    Such a session is still being created, or its creator died. Either way it does not exist for
    users. Raises StoreError.
    """
    while rows := await store.rows(after=after, limit=limit, filter=filter):
        begun = [row for row in rows if row.head]
        if begun:
            return begun
        after = rows[-1].session
    return ()


def with_command(created: r.SessionCreated, command_id: str | None) -> r.SessionCreated:
    """*created* with the id of the command that it answers.

    Raises InvalidInput for an id that cannot be logged.
    """
    command_id = checked_command_id(command_id)
    digest = command_digest(command_id, "create", r.encode_record(created))
    return msgspec.structs.replace(created, commands=remembered(command_id, digest, None))


async def was_created_by(store: Store, session: str, commands: Sequence[r.CommandAnswer]) -> bool:
    """Does the session's first record answer the same command? Acquires no lease."""
    first = await store.read(session, limit=1)
    return bool(commands and first) and read_record(session, first[0]).commands == tuple(commands)


async def read_state(
    store: Store,
    session: str,
    folded: Callable[[SessionState, r.Record], None] | None = None,
    *,
    head: int | None = None,
    state: SessionState | None = None,
) -> SessionState:
    """The fold of a session's whole log. *folded* is called with each record. Acquires no lease.

    *head* is the seq of the last record, if it is known; nothing is read after it. *state* is the
    fold of the first records, if it is known: then only the others are read.

    Raises SessionNotFound (also for a log without a record) and StoreError. Raises RecordDamaged at
    the first record that cannot be read or cannot follow the one before it. Nothing is changed.
    """
    state = state or SessionState(session)
    with state.whole_log():
        # A short page is not the end. A damaged record ends a page, and the next read raises its
        # error.
        while state.head != head:
            limit = FOLD_PAGE if head is None else min(FOLD_PAGE, head - state.head)
            page = await store.read(session, after=state.head, limit=limit)
            if not page:
                break
            _fold_page(state, session, page, folded)
    if not state.head:
        raise SessionNotFound(session)
    return state


def check_belongs(state: SessionState, row: SessionRow) -> None:
    """Raises RecordDamaged if the log with the fold *state* is not the log of *row*.

    That is so if its records name another session or another tenant. *row* is the row as it was
    after the last record of *state*.
    """
    if state.session != row.session:
        # A fork whose creator died before its first own record has only its parent's records.
        if row.parent != state.session:
            why = f"its records belong to session {state.session!r}"
            raise RecordDamaged(row.session, 1, why)
        return
    if tenant_of(state.labels) != tenant_of(row.labels):
        why = "the tenant label of its row differs from that of its records"
        raise RecordDamaged(row.session, state.head, why)


def _fold_page(
    state: SessionState,
    session: str,
    page: Sequence[StoredRecord],
    folded: Callable[[SessionState, r.Record], None] | None,
) -> None:
    apply, decode = state.apply, r.decode_record
    for stored in page:
        try:
            record = decode(stored.body)
            apply(record)
        except (msgspec.MsgspecError, KeyError, ValueError) as error:
            raise unreadable(session, stored, error) from error
        if folded is not None:
            folded(state, record)
    state.add_bytes(stored.body for stored in page)
    if state.head > PAGE:  # a long log will have a snapshot
        state.split_tables()
