"""Writes snapshots of a live session to the store, beside its turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from zlib import crc32

import anyio

from llmsession.errors import contained_in_work, error_text
from llmsession.store.checked import CheckedStore

from ..core.core import Core
from ..log.read_state import PAGE
from ..snapshots.format import encoder_of
from ..tasks.worker_thread import off_loop

__all__ = ["SnapshotWriter", "snapshots_every"]

MIN_RECORDS = 256
"""As many records are folded in a few milliseconds, so a shorter log needs no snapshot."""
SHARE = 8
"""A new snapshot is due when an eighth of the log is not covered. So an opening folds at most about
that part, and all snapshots of a growing log together have about eight times the size of the last.
"""
SHORT_RECORDS = 2_000
"""The state of so many records is encoded in a few milliseconds: too little for a thread."""

LAST_S = 5.0
"""So many seconds a manager that is left waits for the last snapshots of its sessions."""

_every: ContextVar[int | None] = ContextVar("every", default=None)


@contextmanager
def snapshots_every(records: int | None) -> Iterator[None]:
    """In the body and in tasks that it starts, a snapshot is due after so many records, however
    long the log is; None for the usual number. A simulation has short logs.
    """
    token = _every.set(records)
    try:
        yield
    finally:
        _every.reset(token)


class _Rewritten(Exception):
    """The log was rewritten while it was read."""


class SnapshotWriter:
    """Writes a snapshot of one session when enough records came after the last one.

    A snapshot that is lost costs only time, so nobody waits for one. It may be written while the
    session is released, but not after another owner has taken it.
    """

    __slots__ = ("_core", "_is_writing", "_store")

    def __init__(self, core: Core, store: CheckedStore) -> None:
        self._core = core
        self._store = store
        self._is_writing = False

    def write_if_due(self) -> None:
        """Begin to write a snapshot if one is due. Returns at once."""
        state, every = self._core.state, _every.get()
        uncovered = state.head - state.snapshot_head
        if every is None:
            is_due = uncovered >= MIN_RECORDS and uncovered >= state.head // SHARE
        else:
            is_due = uncovered >= every
        if is_due:
            self._begin(is_last=False)

    def write_if_removed(self) -> None:
        """Begin to write a snapshot if a rewrite has removed the last one: this session ends, and
        nothing changes its state any more. Returns at once.
        """
        state, every = self._core.state, _every.get()
        if state.checksum is None and state.head >= (MIN_RECORDS if every is None else every):
            self._begin(is_last=True)

    def _begin(self, *, is_last: bool) -> None:
        core = self._core
        # What is still to be erased must not be kept in a snapshot.
        is_possible = self._store.keeps_snapshots and core.state.pending_redaction is None
        if self._is_writing or not is_possible:
            return
        lease = core.journal.lease
        self._is_writing, core.state.snapshot_head = True, core.state.head
        encoder = self._encoder() if core.state.checksum is not None else None

        async def write() -> None:
            try:
                # A manager that is left cancels all works. It waits for the last snapshot, but not
                # for a store that hangs.
                limit_s = LAST_S if is_last else math.inf
                with anyio.move_on_after(limit_s, shield=is_last):
                    seq, encode = encoder or await self._summed_up()
                    body = encode() if seq <= SHORT_RECORDS else await off_loop(encode)
                    await self._store.save_snapshot(lease, seq, body)
            except _Rewritten:
                pass  # another one is due later
            except BaseException as raised:  # a store is foreign code
                error = contained_in_work(raised)
                core.log.trouble("snapshot.not_saved", error=error_text(error))
            finally:
                self._is_writing = False

        core.works.start(f"snapshot of {core.session}", write)

    def _encoder(self) -> tuple[int, Callable[[], bytes]]:
        """How many records a snapshot of the state as it is now covers, and what encodes it."""
        state, by_model = self._core.state, self._core.account.by_model
        return state.head, encoder_of(state, by_model.sums, by_model.prices)

    async def _summed_up(self) -> tuple[int, Callable[[], bytes]]:
        """``_encoder``, after the checksum of a rewritten log was made. Raises _Rewritten if the
        log may be rewritten meanwhile.
        """
        state = self._core.state
        generation, after, checksum = state.generation, 0, 0
        while after < state.head:  # records may follow meanwhile
            limit = min(PAGE, state.head - after)
            page = await self._store.read(self._core.session, after=after, limit=limit)
            if state.generation != generation or not page:
                raise _Rewritten
            checksum = crc32(b"".join(stored.body for stored in page), checksum)
            after = page[-1].seq
        state.checksum = checksum
        return self._encoder()
