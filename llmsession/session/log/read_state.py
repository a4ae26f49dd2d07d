"""Reading whole sessions from a store, without taking them: rows, first records, states."""

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
    "begun_rows",
    "check_belongs",
    "read_state",
    "tool_runners",
    "was_created_by",
    "with_command",
]

PAGE = 1000
"""Records read at a time when a session is loaded."""


async def begun_rows(
    store: Store, *, after: str = "", limit: int, filter: SessionFilter = EVERYTHING
) -> Sequence[SessionRow]:
    """As ``Store.rows``, without the sessions that have no record. Such a session is being created,
    or its creator died: it does not exist yet, or never did. Raises StoreError."""
    while rows := await store.rows(after=after, limit=limit, filter=filter):
        begun = [row for row in rows if row.head]
        if begun:
            return begun
        after = rows[-1].session
    return ()


def with_command(created: r.SessionCreated, command_id: str | None) -> r.SessionCreated:
    """*created*, with the id of the command that it answers. Raises InvalidInput for an id that
    could not be logged."""
    command_id = checked_command_id(command_id)
    digest = command_digest(command_id, "create", r.encode_record(created))
    return msgspec.structs.replace(created, commands=remembered(command_id, digest, None))


async def was_created_by(store: Store, session: str, commands: Sequence[r.CommandAnswer]) -> bool:
    """Is the session's first record the answer to the same command? Acquires nothing."""
    first = await store.read(session, limit=1)
    return bool(commands and first) and read_record(session, first[0]).commands == tuple(commands)


async def read_state(
    store: Store,
    session: str,
    folded: Callable[[SessionState, r.Record], None] | None = None,
    *,
    head: int | None = None,
) -> SessionState:
    """The fold of a session's whole log; *folded* is called with each record. Acquires nothing.
    *head* is the last record's seq, where it is known: nothing is read after it.

    Raises SessionNotFound, also for a log without a record, StoreError, and RecordDamaged at the
    first record that cannot be read or cannot follow the one before it; nothing is changed.
    """
    state = SessionState(session)
    with state.whole_log():
        # A short page is not the end: a damaged record ends one, and is raised when it comes first.
        while state.head != head:
            page = await store.read(session, after=state.head, limit=PAGE)
            if not page:
                break
            _fold_page(state, session, page, folded)
    if not state.head:
        raise SessionNotFound(session)
    return state


def check_belongs(state: SessionState, row: SessionRow) -> None:
    """Raises RecordDamaged if the log whose fold is *state* is not that of *row*: its records name
    another session, or another tenant. *row* is as it was after the last record of *state*."""
    if state.session != row.session:
        # A fork whose own first record was never written begins as its parent.
        if row.parent != state.session:
            why = f"its records are those of session {state.session!r}"
            raise RecordDamaged(row.session, 1, why)
        return
    if tenant_of(state.labels) != tenant_of(row.labels):
        why = "its row has a label of another tenant than its records"
        raise RecordDamaged(row.session, state.head, why)


def tool_runners(
    runners: dict[str, r.Runner],
) -> Callable[[SessionState, r.Record], None]:
    """What to give ``read_state`` as *folded* to note in *runners* who ran each tool last."""

    def folded(_: SessionState, record: r.Record) -> None:
        if isinstance(record, r.ToolsRequested):
            runners.update((call.name, call.runner) for call in record.calls)

    return folded


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
