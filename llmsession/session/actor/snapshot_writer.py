"""Writes snapshots of a live session to the store, beside its turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from llmsession.errors import contained_in_task, error_text
from llmsession.store.checked import CheckedStore

from ..core.core import Core
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
        if not self._is_due:
            return
        core, store = self._core, self._store
        lease, seq = core.journal.lease, core.state.head
        by_model, is_short = core.account.by_model, seq <= SHORT_RECORDS
        encode = encoder_of(core.state, by_model.sums, by_model.prices)
        self._is_writing, core.state.snapshot_head = True, seq

        async def write() -> None:
            try:
                body = encode() if is_short else await off_loop(encode)
                await store.save_snapshot(lease, seq, body)
            except BaseException as raised:  # a store is foreign code
                error = contained_in_task(raised)
                core.log.trouble("snapshot.not_saved", error=error_text(error))
            finally:
                self._is_writing = False

        core.works.start(f"snapshot of {core.session}", write)

    @property
    def _is_due(self) -> bool:
        state, every = self._core.state, _every.get()
        least = max(MIN_RECORDS, state.head // SHARE) if every is None else every
        return (
            state.head - state.snapshot_head >= least
            and not self._is_writing
            and self._store.keeps_snapshots
            # While a log is rewritten, its checksum is not known. And what is still to be erased
            # must not be kept in a snapshot.
            and state.checksum is not None
            and state.pending_redaction is None
        )
