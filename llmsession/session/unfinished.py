"""Finding the sessions whose owner left a turn open, and recovering them before anybody asks.

A session is recovered when it is opened, so who waits for the end of a turn and asks nothing more
would wait for ever. The rows of a store do not say what is open; the ends of the logs do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import anyio
import anyio.to_thread
import msgspec

from llmsession.errors import SessionClosed, SessionError, SessionInUse, SessionNotFound
from llmsession.store.liveness import owner_is_dead
from llmsession.store.protocol import Owner, SessionRow, Store

from .manager import SessionManager

__all__ = ["RecoveryReport", "has_open_turn", "recover_unfinished"]

PAGE = 500
"""Rows read at a time."""
LAST, MOST = 64, 1024
"""Records of a log that are looked at first, and at a time: the newest ones, then those before."""
_GOES_ON = frozenset(
    {"turn.accepted", "turn.started", "tools.requested", "tools.answered", "step.completed",
     "turn.resumed"}
)  # fmt: skip
_ENDS = frozenset({"turn.committed", "turn.aborted", "turn.failed"})
_BEGINS = frozenset({"session.created", "session.forked"})
"""Nothing before one of these is open: a fork has none of its parent's open turns."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that had an open turn and are live now, and why others could not be looked at
    or opened. Those that another owner holds are in neither."""

    recovered: tuple[str, ...] = ()
    failed: dict[str, SessionError] = {}


class _Brief(msgspec.Struct, frozen=True):
    """What is looked at of a record."""

    kind: str
    turn: int | None = None


_brief = msgspec.json.Decoder(_Brief)


async def recover_unfinished(manager: SessionManager, *, at_once: int = 4) -> RecoveryReport:
    """Open every session of *manager*'s store that nobody holds and that has an open turn, at most
    *at_once* at a time: its turns end or go on, as its ``recovery`` says, and its subscribers are
    told. Costs a read of the end of each log, and of the whole log where the owner has died.

    Raises StoreError where the store cannot be listed. What fails of one session is in the report.
    Cancellable; what was opened stays.
    """
    recovered: list[str] = []
    failed: dict[str, SessionError] = {}

    async def look(row: SessionRow) -> None:
        async with limiter:
            try:
                if await has_open_turn(manager.store, row):
                    await manager.open(row.session)
                    recovered.append(row.session)
            except (SessionInUse, SessionNotFound, SessionClosed):
                return  # somebody else has it, or it is gone, or the manager goes
            except SessionError as error:
                failed[row.session] = error

    limiter, after = anyio.Semaphore(at_once), ""
    while rows := await manager.store.rows(after=after, limit=PAGE):
        after = rows[-1].session
        async with anyio.create_task_group() as group:
            rows = await _not_held(rows)
            live = set(manager.live)
            for row in rows:
                if row.session not in live:
                    group.start_soon(look, row)
    return RecoveryReport(recovered=tuple(recovered), failed=failed)


async def _not_held(rows: Sequence[SessionRow]) -> Sequence[SessionRow]:
    """Those without an owner that surely lives. One on another machine may be gone: opening
    tells."""
    owners = {row.owner for row in rows if row.owner is not None}
    if not owners:
        return rows
    living = await anyio.to_thread.run_sync(_living, owners)  # it asks the system
    return [row for row in rows if row.owner not in living]


def _living(owners: set[Owner]) -> set[Owner]:
    return {
        owner for owner in owners if owner_is_dead(owner.pid, owner.started, owner.host) is False
    }


async def has_open_turn(store: Store, row: SessionRow) -> bool:
    """Was a turn left open in the log of *row*'s session? Acquires nothing.

    Whoever released a session may have left the turn that ran, so nothing older than the last one
    that ran to its end is looked at. Who died may have left any. Raises as ``Store.read``.
    """
    died, ended = row.owner is not None, set[int]()
    upto, many = row.head, LAST
    while upto > 0:
        after = max(0, upto - many)
        page = await store.read(row.session, after=after, limit=upto - after)
        found = _look(map(_read, (stored.body for stored in reversed(page))), ended, died=died)
        if found is not None:
            return found
        upto, many = after, min(4 * many, MOST)
    return False


def _read(body: bytes) -> _Brief:
    try:
        return _brief.decode(body)
    except msgspec.MsgspecError:
        return _Brief("")  # opening the session says what is wrong with it


def _look(newest_first: Iterable[_Brief], ended: set[int], *, died: bool) -> bool | None:
    """Do these records show that a turn is open, or that none is? Adds to *ended*."""
    for record in newest_first:
        if record.kind in _BEGINS:
            return False
        if record.turn is None:
            continue
        if record.kind in _ENDS:
            ended.add(record.turn)
            if not died and record.kind != "turn.aborted":
                return False
        elif record.kind in _GOES_ON and record.turn not in ended:
            return True
    return None
