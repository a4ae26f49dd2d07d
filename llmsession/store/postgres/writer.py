"""Appends to PostgreSQL: waiting batches are committed together, one statement per group.

A few connections do that. A group whose answer was lost is sent again when the server is back. The
fence makes that safe: of two equal batches at most one is written, and a batch that is in the log
in its own epoch is ours. A caller gets "unknown" only if the server does not come back in time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from llmsession.errors import SessionError, error_text

from ..caller import Caller, caller_now
from ..cipher import Cipher, Unreadable
from ..large_batches import LargeBatches
from ..protocol import Appended, AppendResult, Batch, Conflict, Lost
from ..writer_thread import deliver
from .connections import FAILURES, Connection, Connections, RetryPolicy, is_lost, is_passing
from .groups import Entry, Unit, arguments, form_group
from .reading import Reading
from .sql import Statements
from .thread import CLOSED, LoopThread

__all__ = ["Writer"]

# The statement is always the same, so its plan is made only once.
_SETTLE = """
SET plan_cache_mode = force_generic_plan; SET work_mem = '64MB'
"""


CLOSE_S = 5.0
"""How many seconds closing a connection may take."""


WORKERS = 2
"""While one worker waits for its commit, another one makes and sends the next group, and their
commits share the server's flush. A third one would only make the groups smaller. A worker connects
when there is a group for it that no connected worker can take. Most stores need only one.
"""


class Writer:
    """Takes batches in any thread. Its workers write them in the store's loop.

    *begin* makes the tables if they are missing, and returns the cipher.
    """

    def __init__(
        self,
        thread: LoopThread,
        connections: Connections,
        statements: Statements,
        reading: Reading,
        begin: Callable[[], Awaitable[Cipher]],
    ) -> None:
        self._thread = thread
        self.connections = connections
        self.statements = statements
        self.reading = reading
        self.begin = begin
        # Other threads append while a worker takes entries. Each step is one call of the deque,
        # which is atomic, so no lock is needed.
        self._waiting: deque[Entry] = deque()
        self._busy: set[str] = set()
        self._large = LargeBatches()
        self._caller: Caller | None = None
        self._wakes: object = None
        """The event loop that is going to wake a worker for the batches that wait, if one is."""
        self._closing = self._ended = False
        self._idle: list[asyncio.Future[None]] = []
        """Workers that wait for something to do; the one that was busy last is woken first."""
        self._workers: list[CommitWorker] = []
        self._serving: list[asyncio.Task[None]] = []

    def put(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        """Queue *batch*. Called in the event loop in which *done* is to be called."""
        if self._closing:
            done(Lost(CLOSED, False))
            return
        self._caller = caller = caller_now(self._caller)
        self._waiting.append(Entry(batch, caller, done))
        if self._wakes is not caller.loop:
            self._wakes = caller.loop
            # Sessions that were answered together append together. If the first one woke a worker
            # at once, its batch would be a group of its own.
            caller.after_this(partial(self._thread.soon, self.wake))
        if self._ended:  # the writer ended after ``_closing`` was read above
            self.give_up(CLOSED)

    def close(self) -> None:
        """Accept no more batches. May be called in any thread."""
        self._closing = True

    # In the store's loop.

    async def end(self) -> None:
        """Wait until all accepted batches are done. Called after ``close``."""
        self.wake()
        await asyncio.gather(*self._serving)
        self._ended = True
        self.give_up(CLOSED)

    def wake(self) -> None:
        """Start the workers if they are not running, and let them check the queue.

        Also called when a session was taken: appends will follow and should find a connection.
        """
        if not self._workers:
            self._workers = [CommitWorker(self) for _ in range(WORKERS)]
            self._serving = [asyncio.create_task(worker.serve()) for worker in self._workers]
        self._wake_one()

    def _wake_one(self) -> None:
        """Let an idle worker look for a group. Busy ones look when they are done."""
        if self._idle:
            self._idle.pop().set_result(None)

    def is_first(self, worker: CommitWorker) -> bool:
        """Is it the worker that connects before there is anything to write?"""
        return worker is self._workers[0]

    async def take(self, worker: CommitWorker) -> list[Unit]:
        """The next group for *worker*, once there is one; () when everything is done.

        Until ``release`` nobody else gets batches of these sessions.
        """
        prepared = False
        while True:
            self._wakes = None  # batches that come from here on wake a worker
            served = any(other.is_connected for other in self._workers)
            if self._waiting and served and not (worker.is_connected or prepared):
                prepared = True
                await worker.prepare()
                continue
            if units := form_group(self._waiting, self._large, self._busy):
                self._busy.update(unit.first.session for unit in units)
                if self._waiting:
                    self._wake_one()
                return units
            if self._closing and not self._waiting:
                self._wake_one()  # it ends, too, and wakes the next one
                return []
            idle = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle

    def release(self, units: Iterable[Unit], retried: Sequence[Entry] = ()) -> None:
        """*units* are done, except for *retried*, which come before all other batches."""
        self._waiting.extendleft(reversed(retried))
        self._busy.difference_update(unit.first.session for unit in units)
        if self._waiting:
            self._wake_one()

    def give_up(self, message: str) -> None:
        """Answer ``Lost`` to all batches that wait now. Later ones are tried again."""
        entries: list[Entry] = []
        with suppress(IndexError):
            while True:
                entries.append(self._waiting.popleft())
        _answer((entry, _lost(entry, message)) for entry in entries)


class CommitWorker:
    """Writes one group after another, on a connection of its own."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._connections = writer.connections
        self._connection: Connection | None = None
        self._retry_policy = RetryPolicy(self._connections.retry_s)

    @property
    def is_connected(self) -> bool:
        """Can it write a group without connecting first?"""
        return self._connection is not None and not self._connection.is_closed()

    async def prepare(self) -> None:
        """Connect before there is a group that would have to wait for it.

        Raises nothing. An error is reported to the callers of the group that meets it.
        """
        with suppress(SessionError, *FAILURES):
            await self._writer.begin()
            await self._connected()

    async def serve(self) -> None:
        """Write groups until the writer is closed and nothing waits."""
        try:
            if self._writer.is_first(self):
                await self.prepare()
            while units := await self._writer.take(self):
                await self._write(units)
        finally:
            if self._connection is not None:
                with suppress(*FAILURES):
                    await asyncio.wait_for(self._connection.close(), CLOSE_S)

    async def _write(self, units: list[Unit]) -> None:
        """Write *units*, and answer their callers."""
        entries = [entry for unit in units for entry in unit.entries]
        retried: list[Entry] = []
        sent = False
        try:
            cipher = await self._writer.begin()
            shape, values = arguments(units, cipher)
            connection = await self._connected()
            sent = True
            numbers = await connection.fetchval(self._writer.statements.appends[shape], *values)
            self._retry_policy = RetryPolicy(self._connections.retry_s)
            units, retried = await self._answer_written(units, frozenset(numbers or ()), cipher)
        except FAILURES as error:
            retried = await self._handle_failure(entries, error, sent)
        except Unreadable as error:
            retried = self._separated(entries, str(error))
        except SessionError as error:  # the store cannot be used
            _answer((entry, _lost(entry, str(error))) for entry in entries)
            self._writer.give_up(str(error))
        except Exception as error:  # a bug of ours; the callers must be answered nevertheless
            message = Lost(error_text(error))
            _answer((entry, message) for entry in entries)
        self._writer.release(units, retried)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = None
            self._connection = await self._connections.open(lambda new: new.execute(_SETTLE))
        return self._connection

    async def _answer_written(
        self, units: list[Unit], numbers: frozenset[int], cipher: Cipher
    ) -> tuple[list[Unit], list[Entry]]:
        """Answer the units *numbers*, which are durable, and the others, which met another epoch or
        head.

        Returns the units that are not released yet, and the entries that wait again.
        """
        done = [unit for number, unit in enumerate(units, 1) if number in numbers]
        _answer((entry, _appended(entry)) for unit in done for entry in unit.entries)
        if len(done) == len(units):
            return units, []
        self._writer.release(done)
        rejected = [unit for number, unit in enumerate(units, 1) if number not in numbers]
        firsts = [unit.entries[0] for unit in rejected]
        try:
            _answer(await self._explain(firsts, cipher))
        except SessionError as error:
            _answer((entry, _lost(entry, str(error))) for entry in firsts)
        # Without the rejected first batch, the batch after it may fit.
        return rejected, [entry for unit in rejected for entry in unit.entries[1:]]

    async def _explain(
        self, entries: list[Entry], cipher: Cipher
    ) -> list[tuple[Entry, AppendResult]]:
        """The results of *entries*, which met another epoch or head.

        If the answer to a first attempt was lost, the batch may have been written after all.
        """
        reading = self._writer.reading
        were_written = [
            entry.doubtful and await reading.is_written(entry.batch, cipher) for entry in entries
        ]
        rows = await reading.rows_of([entry.batch.session for entry in entries], cipher)
        return [
            (entry, _appended(entry) if ours else Conflict(rows.get(entry.batch.session)))
            for entry, ours in zip(entries, were_written, strict=True)
        ]

    async def _handle_failure(
        self, entries: list[Entry], error: BaseException, sent: bool
    ) -> list[Entry]:
        """Nothing of *entries* was written; or, if the connection was lost, that is not known.

        Returns the entries that must be written again, when it is time.
        """
        message = f"{self._connections.where}: {self._connections.error_line(error)}"
        connection = self._connection
        lost = is_lost(error, closed=connection is not None and connection.is_closed())
        if lost and connection is not None:
            connection.terminate()
            self._connection = None
        if not lost and not is_passing(error):
            self._retry_policy = RetryPolicy(self._connections.retry_s)  # the server answers
            return self._separated(entries, message)
        for entry in entries:
            entry.doubtful |= sent and lost
        if await self._retry_policy.wait():
            return entries
        self._retry_policy = RetryPolicy(self._connections.retry_s)
        _answer((entry, _lost(entry, message)) for entry in entries)
        self._writer.give_up(message)
        return []

    @staticmethod
    def _separated(entries: list[Entry], message: str) -> list[Entry]:
        """One of *entries* cannot be written. Try each alone, so that only that one fails."""
        if len(entries) == 1:
            _answer([(entries[0], _lost(entries[0], message))])
            return []
        for entry in entries:
            entry.alone = True
        return entries


def _appended(entry: Entry) -> Appended:
    return Appended(entry.batch.head + len(entry.batch.bodies))


def _lost(entry: Entry, message: str) -> Lost:
    return Lost(message, None if entry.doubtful else False)


def _answer(results: Iterable[tuple[Entry, AppendResult]]) -> None:
    """Answer all callers, with one call per event loop."""
    deliver((entry.caller, entry.done, result) for entry, result in results)
