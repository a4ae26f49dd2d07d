"""Find sessions whose owner left a turn open, and open them.

A session is recovered when it is opened. If nobody opens a session after a crash, a client that
only waits for its turn to end would wait for ever. A store may know which sessions have unfinished
work. Otherwise the newest records of each log are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from llmsession.errors import SessionClosed, SessionError, SessionInUse, SessionNotFound
from llmsession.store.liveness import owner_is_dead
from llmsession.store.protocol import Owner, SessionRow, Store

from .manager import SessionManager, runtime_of

__all__ = ["RecoveryReport", "has_open_turn", "keep_recovering", "recover_unfinished"]

PAGE = 500
"""Rows that are read at a time."""
FIRST_PAGE, MAX_PAGE = 64, 1024
"""How many records are read of a log: the newest 64 at first, then at most 1,024 at a time."""
LOOK_S = 30.0
"""How many seconds ``keep_recovering`` waits after a look. A turn whose session ends each time that
it goes on asks its model no more often than that.
"""
_GOES_ON = frozenset(
    {"turn.accepted", "turn.started", "tools.requested", "tools.answered", "step.completed",
     "turn.resumed"}
)  # fmt: skip
_ENDS = frozenset({"turn.committed", "turn.aborted", "turn.failed"})
_BEGINS = frozenset({"session.created", "session.forked"})
"""No turn from before one of these records is open: a fork has none of its parent's open turns."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``recover_unfinished``. Sessions that another owner holds are not in it."""

    recovered: tuple[str, ...] = ()
    """The ids of sessions that had an open turn and are live now."""
    failed: dict[str, SessionError] = {}
    """The error of each session that could not be read or opened, by id."""

    def log(self, log: Any) -> None:
        """Tell the operator."""
        for session, error in self.failed.items():
            fields = {"error": type(error).__name__, "why": str(error)}
            log.error("session.not_recovered", session=session, **fields)
        if self.recovered:
            log.info("sessions.recovered", sessions=len(self.recovered))


class _Brief(msgspec.Struct, frozen=True):
    """The fields of a record that are needed to find open turns."""

    kind: str
    turn: int | None = None


_brief = msgspec.json.Decoder(_Brief)


def _anything(_: str) -> bool:
    return True


async def recover_unfinished(
    manager: SessionManager,
    *,
    at_once: int = 4,
    wanted: Callable[[str], bool] = _anything,
) -> RecoveryReport:
    """Open every session of *manager*'s store that has an open turn and no living owner, and whose
    id is *wanted*.

    At most *at_once* sessions are read or opened at a time. Their turns are ended or resumed as
    each session's ``SessionConfig.recovery`` says, and their subscribers get the events. A store
    that is an ``UnfinishedIndex`` finds these sessions, however many others there are. Of any other
    store the end of each log is read; if the owner has died, the whole log may be read.

    Raises StoreError if the store cannot be listed. Errors of single sessions are in the report.
    Cancellable; sessions that were already opened stay open.
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
                else:
                    await store.settle(row)  # an earlier version did not say
            except (SessionInUse, SessionNotFound, SessionClosed):
                return  # another owner has it, or it was deleted, or the manager is closing
            except SessionError as error:
                failed[row.session] = error

    limiter, after = anyio.Semaphore(at_once), ""
    while True:
        rows = await store.unfinished(after=after, limit=PAGE)
        is_index = rows is not None
        if rows is None:
            rows = await store.rows(after=after, limit=PAGE)
        if not rows:
            return RecoveryReport(recovered=tuple(recovered), failed=failed)
        after = rows[-1].session
        rows = [row for row in rows if wanted(row.session)]
        # An index knows better who is dead: somebody may have told the store.
        free = rows if is_index else await _not_held(rows)
        live = set(manager.live)
        async with anyio.create_task_group() as group:
            for row in free:
                if row.session not in live:
                    group.start_soon(look, row)


async def keep_recovering(manager: SessionManager, *, at_once: int, log: Any) -> None:
    """Recover as ``recover_unfinished`` does, and afterwards the sessions that *manager* has given
    back because an error of the store had ended them: nobody may open them again.

    What is done, and what cannot be, is logged in *log*. Ends when it is cancelled.
    """
    given_back: set[str] = set()
    runtime_of(manager).unreleased.on_given_back = given_back.add
    wanted: Callable[[str], bool] | None = _anything
    while True:
        try:
            if wanted is not None:
                report = await recover_unfinished(manager, at_once=at_once, wanted=wanted)
                report.log(log)
                wanted = None
        except SessionError as error:
            log.error("sessions.not_recovered", error=type(error).__name__, why=str(error))
        await anyio.sleep(LOOK_S)
        if wanted is None and given_back:
            wanted = frozenset(given_back).__contains__
            given_back.clear()


async def _not_held(rows: Sequence[SessionRow]) -> Sequence[SessionRow]:
    """Those of *rows* that may have no living owner.

    For an owner on another machine this is known only when the session is opened.
    """
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
    """Was a turn left open in the log of *row*'s session? Acquires no lease.

    An owner that released the session has left at most its running turn open. Then records before
    the last turn that ran to its end are not read. An owner that died may have left any turn open.
    Raises the errors of ``Store.read``.
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
        return _Brief("")  # opening the session reports what is wrong with the record


def _has_open_turn(newest_first: Iterable[_Brief], ended: set[int], *, died: bool) -> bool | None:
    """Do these records show that a turn is open (True), or that none is (False)?

    Returns None if the records show neither. Adds the turns that have ended to *ended*.
    """
    for record in newest_first:
        if record.kind in _BEGINS:
            return False
        if record.turn is None:
            continue
        if record.kind in _ENDS:
            ended.add(record.turn)
            # An owner that released the session left at most its running turn open. A turn that was
            # committed or failed was running, so no turn before it is open. An aborted turn may
            # only have been queued.
            if not died and record.kind != "turn.aborted":
                return False
        elif record.kind in _GOES_ON and record.turn not in ended:
            return True
    return None
