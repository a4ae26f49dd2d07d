"""Find the sessions whose owner left a turn open, and open them.

A session is recovered when it is opened. A client that only waits for the end of a turn would wait
for ever if nobody opened its session. The rows of a store do not say which turns are open, so the
ends of the logs are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import anyio
import anyio.to_thread
import msgspec

from llmsession.errors import SessionClosed, SessionError, SessionInUse, SessionNotFound
from llmsession.store.liveness import owner_is_dead
from llmsession.store.protocol import Owner, SessionRow, Store

from .manager import SessionManager, runtime_of

__all__ = ["RecoveryReport", "has_open_turn", "recover_unfinished"]

PAGE = 500
"""Rows read at a time."""
FIRST_PAGE, MAX_PAGE = 64, 1024
"""Records read of a log: how many of the newest ones at first, and at most at a time after that."""
_GOES_ON = frozenset(
    {"turn.accepted", "turn.started", "tools.requested", "tools.answered", "step.completed",
     "turn.resumed"}
)  # fmt: skip
_ENDS = frozenset({"turn.committed", "turn.aborted", "turn.failed"})
_BEGINS = frozenset({"session.created", "session.forked"})
"""Nothing before one of these is open: a fork has none of its parent's open turns."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """``recovered`` are the sessions that had an open turn and are live now. ``failed`` says why
    others could not be read or opened. Sessions that another owner holds are in neither."""

    recovered: tuple[str, ...] = ()
    failed: dict[str, SessionError] = {}


class _Brief(msgspec.Struct, frozen=True):
    """The fields of a record that matter here."""

    kind: str
    turn: int | None = None


_brief = msgspec.json.Decoder(_Brief)


async def recover_unfinished(manager: SessionManager, *, at_once: int = 4) -> RecoveryReport:
    """Open every session of *manager*'s store that has an open turn and no living owner, at most
    *at_once* at a time. Its turns end or go on, as its ``recovery`` says, and its subscribers get
    the events. Costs a read of the end of each log, and of the whole log where the owner has died.

    Raises StoreError where the store cannot be listed. An error of one session is in the report.
    Cancellable; sessions that were opened stay open.
    """
    store = runtime_of(manager).store
    recovered: list[str] = []
    failed: dict[str, SessionError] = {}

    async def look(row: SessionRow) -> None:
        async with limiter:
            try:
                if await has_open_turn(store, row):
                    await manager.open(row.session, unbound="warn")
                    recovered.append(row.session)
            except (SessionInUse, SessionNotFound, SessionClosed):
                return  # another owner has it, or it was deleted, or the manager is closing
            except SessionError as error:
                failed[row.session] = error

    limiter, after = anyio.Semaphore(at_once), ""
    while rows := await store.rows(after=after, limit=PAGE):
        after = rows[-1].session
        async with anyio.create_task_group() as group:
            rows = await _not_held(rows)
            live = set(manager.live)
            for row in rows:
                if row.session not in live:
                    group.start_soon(look, row)
    return RecoveryReport(recovered=tuple(recovered), failed=failed)


async def _not_held(rows: Sequence[SessionRow]) -> Sequence[SessionRow]:
    """The *rows* whose owner is not known to live. Whether an owner on another machine lives is
    only known when the session is opened."""
    owners = {row.owner for row in rows if row.owner is not None}
    if not owners:
        return rows
    living = await anyio.to_thread.run_sync(_living, owners)  # asks the system
    return [row for row in rows if row.owner not in living]


def _living(owners: set[Owner]) -> set[Owner]:
    return {
        owner for owner in owners if owner_is_dead(owner.pid, owner.started, owner.host) is False
    }


async def has_open_turn(store: Store, row: SessionRow) -> bool:
    """Was a turn left open in the log of *row*'s session? Acquires nothing.

    An owner that released the session left at most the turn that ran, so records before the last
    turn that ran to its end are not read. An owner that died may have left any turn open. Raises
    as ``Store.read``.
    """
    died, ended = row.owner is not None, set[int]()
    upto, limit = row.head, FIRST_PAGE
    while upto > 0:
        after = max(0, upto - limit)
        page = await store.read(row.session, after=after, limit=upto - after)
        newest_first = (_read(stored.body) for stored in reversed(page))
        is_open = _has_open_turn(newest_first, ended, died=died)
        if is_open is not None:
            return is_open
        upto, limit = after, min(4 * limit, MAX_PAGE)
    return False


def _read(body: bytes) -> _Brief:
    try:
        return _brief.decode(body)
    except msgspec.MsgspecError:
        return _Brief("")  # opening the session raises what is wrong with the record


def _has_open_turn(newest_first: Iterable[_Brief], ended: set[int], *, died: bool) -> bool | None:
    """Do these records show that a turn is open, or that none is? None if they show neither.
    Adds to *ended*."""
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
