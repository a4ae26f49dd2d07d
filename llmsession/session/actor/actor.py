"""The actor of one session: it reads a mailbox, changes the session's state, and answers callers.

The actor has no task, and it never waits. Its mailbox is read until it is empty: by whoever brings
a report (a work that has ended, the store with its answer), or, if a command has come, by a
callback of the event loop. No await is in between, so nothing else can change the state meanwhile,
and no lock is needed. Reports of its own work are read first, then control commands (interrupt,
close), then work commands. Every command gets its ingress number when it is called, before any
await, so the order of calls is the order of effects.

A durable change always has this order: append to the store, fold into the state, publish to
subscribers, answer the caller. Nothing becomes visible before it is durable.

Commands are not read in the call itself: those that are called in one go are read together, so
interrupts are merged, and what a burst writes goes to the store in one append. Only the stream of
a reply that an interrupt will surely end is cancelled in the call. A report is read at once,
because whoever brings it has nothing else to do.

If the actor cannot continue (another owner has the session, the store failed, or there is a bug),
every caller that still waits gets a named error. No caller waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Literal, TypeAlias, get_args

import anyio

from llmsession.errors import (
    DuplicateToolResult,
    InvalidInput,
    Overloaded,
    SessionClosed,
    SessionError,
    SessionMoved,
    StoreError,
    TurnNotOpen,
    UnknownToolCall,
    contained,
    contained_in_work,
    error_text,
)
from llmsession.store.checked import CheckedStore
from llmsession.store.protocol import Appended, Conflict, Lease, Lost
from llmsession.turns import records as r
from llmsession.turns.machine import Phase
from llmsession.turns.previews import ToolUse

from ..core.core import Core, Report, Services
from ..core.idempotency_keys import IdempotencyKeys
from ..core.turn_run import Run
from ..log.journal import Journal, Written
from ..log.meter import charge_of
from ..log.open_calls import unanswered_uses
from ..log.outcomes import outcome_of
from ..log.reader import is_in_log
from ..log.state import SessionState
from ..tasks.promise import Promise
from ..tasks.weak_callback import WeakCallback
from ..values import commands as c
from ..values.config import SessionConfig
from ..values.labels import labelled
from ..values.outcome import Closed, InterruptOutcome
from .configuration import Configuration
from .history_commands import HistoryCommands
from .mailbox import Mailbox
from .snapshot_writer import SnapshotWriter
from .turn_queue import TurnQueue

__all__ = ["Actor", "ActorStatus"]

ActorStatus: TypeAlias = Literal["live", "closing", "closed", "moved", "cold"]
"""Whether the actor accepts commands (``live``), or why not.

``closing`` and ``closed``: a caller closed it. ``moved``: another owner took the session. ``cold``:
it was evicted or lost its store; the session is loaded again when it is next used.
"""


class Actor:
    """One live session.

    ``gone`` is called when this actor accepts no more commands.
    """

    def __init__(
        self,
        *,
        state: SessionState,
        config: SessionConfig,
        store: CheckedStore,
        lease: Lease,
        services: Services,
        gone: Callable[[Actor], None],
    ) -> None:
        self.mailbox: Mailbox[c.ControlCommand, c.WorkCommand, Report] = Mailbox(
            work_limit=config.queue_limit
        )
        self.core = Core(
            state=state,
            config=config,
            journal=Journal(
                store,
                lease,
                services.clock,
                WeakCallback(self._came_back),
                charge=charge_of(state, services.prices),
                open_turns=tuple(state.open),
            ),
            report=WeakCallback(self.report),
            services=services,
        )
        self.keys = IdempotencyKeys(state)
        self.configuration = Configuration(
            self.core,
            self.keys,
            WeakCallback(self._reconfiguring),
            WeakCallback(self._reconfigured),
        )
        self.turns = TurnQueue(self.core, self.keys.forget, self.configuration.apply_waiting)
        self.history_commands = HistoryCommands(
            self.core,
            self.keys,
            self.turns,
            mailbox=self.mailbox,
            store=store,
            lost=WeakCallback(self._cannot_go_on),
        )
        self.snapshots = SnapshotWriter(self.core, store)
        self.status: ActorStatus = "live"
        self.pins = 0
        """How many handles refer to this session. It is not evicted while there is one."""
        self._store = store
        self._gone = gone
        self._is_woken = False
        self._is_reading = False
        self._is_releasing = False
        self._context: Context | None = None
        """The context variables of whoever woke the idle actor: its streams and tools have them."""
        self._close: c.Close | None = None
        self._hand_over: c.HandOver | None = None
        self._error: SessionError | None = None

    def __del__(self) -> None:
        # The parts refer to each other. Together they have the whole history, which would stay in
        # memory until the next garbage collection of all objects, and a service makes few of these.
        self.turns.let_go()

    def _reconfiguring(self) -> None:
        # A plan that is being made is based on the old configuration, so it is discarded.
        self.turns.runner.compactor.change_began()

    def _reconfigured(self) -> None:
        self.turns.runner.reconsider()
        self.history_commands.may_exceed()

    @property
    def session(self) -> str:
        """The session's id."""
        return self.core.session

    @property
    def state(self) -> SessionState:
        """The fold of all durable records. Only this actor changes it."""
        return self.core.state

    @property
    def is_idle(self) -> bool:
        """Is no turn open, no command unread, no record being written, and no job running?"""
        return (
            not self.turns.runs
            and self.mailbox.is_empty
            and self.core.journal.is_idle
            and self.history_commands.is_idle
            and self.turns.runner.compactor.is_idle
            and self.turns.runner.compactor.results.is_idle
        )

    @property
    def open_calls(self) -> tuple[ToolUse, ...]:
        """The running turn's durable calls that wait for their results."""
        run = self.turns.current
        if run is not None and run.turn.phase not in (Phase.ACCEPTED, Phase.TOOLS):
            return ()
        return unanswered_uses(self.state)

    # Called by handles and works in the event loop's thread. Nothing here awaits, so the order in
    # which these are called is the order in which the actor reads.

    def check_open(self) -> None:
        """Raises SessionClosed, SessionMoved or StoreError if no more commands are accepted."""
        if self.status != "live":
            raise self._error or SessionClosed(f"session {self.session!r} was closed")

    def report(self, report: Report) -> None:
        """Let the actor read a report of its own work. It is never refused."""
        self.mailbox.report(report)
        self._read_mailbox()

    def put(self, command: c.WorkCommand) -> None:
        """Put a command on the work lane. Raises Overloaded, and the errors of ``check_open``."""
        self.check_open()
        self.mailbox.put_work(command)
        self.keys.remember(command.promise)
        self._wake()

    def put_interrupt(
        self, turn: int | None, policy: r.InterruptPolicy | None, command_id: str | None
    ) -> Promise[InterruptOutcome]:
        """Put an interrupt on the control lane, merged with an unread one of the same target.

        Raises the errors of ``put``. A repeat of *command_id* gets its answer here and is not
        enqueued: once merged, it would also end the turns that were sent after the first call.
        """
        self.check_open()
        mark = self.mailbox.number()
        effective = policy or self.core.config.interrupt_policy
        digest = c.command_digest(
            command_id, "interrupt", None if turn is None else str(turn), policy
        )
        caller = c.InterruptCaller(command_id, digest)
        self.keys.remember(caller.promise)
        if self.keys.is_repeat(caller):
            return caller.promise
        try:
            self._enqueue(c.Interrupt(mark, turn, effective), caller)
        except Overloaded:
            self.keys.forget(caller)
            raise
        self._wake()
        if not self._is_reading:
            self.turns.foresee_interrupt(turn)
        return caller.promise

    def _enqueue(self, interrupt: c.Interrupt, caller: c.InterruptCaller) -> None:
        folded = self.mailbox.find_control(
            lambda command: isinstance(command, c.Interrupt) and command.turn == interrupt.turn
        )
        if isinstance(folded, c.Interrupt):
            folded.fold(interrupt.mark, interrupt.policy)
            folded.callers.append(caller)
        else:
            self.mailbox.put_control(interrupt)
            interrupt.callers.append(caller)

    def retain(self) -> None:
        """Check the limits of retention as soon as no turn is open."""
        self.report(self.history_commands.may_exceed)

    def put_close(self, *, leave_open: bool = False) -> Promise[Closed]:
        """Ask the session to end, and return the promise of its end. A second call gets the same
        promise.

        With *leave_open*, open turns are left open in the log for the next owner.
        """
        if self._close is None:
            self._close = c.Close(leaves_open=leave_open)
            if self.status == "live":
                self.status = "closing"
                self.mailbox.put_control(self._close)
                self._wake()
            elif self.status != "closing":  # else it is being handed over, and then ends
                self._close.promise.set(self._closed())
        return self._close.promise

    def put_hand_over(self, when: c.HandOverWhen) -> Promise[Closed]:
        """Ask the session to be handed over. A second call waits for the same end; it can only
        bring it forward. Raises as ``put``."""
        if self._hand_over is None:
            self.check_open()
            self._hand_over = c.HandOver(when)
        order = get_args(c.HandOverWhen)
        self._hand_over.when = when = max(self._hand_over.when, when, key=order.index)
        if self.status == "live":
            self.turns.hold(steps=when != "idle")
            self.report(lambda: None)  # look whether it can be now
        return self._hand_over.promise

    # Reading.

    def _wake(self) -> None:
        """Let the event loop have the mailbox read soon."""
        if not (self._is_woken or self._is_reading):
            self._is_woken = True
            self.core.services.loop_calls.call_soon(self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self._read_mailbox()

    def _read_mailbox(self) -> None:
        """Read until the mailbox is empty, unless it is being read already.

        Nothing is read while the lease is released: a record that followed would have no reader.
        """
        if self._is_reading or self._is_releasing:
            return
        if self._context is None:
            self._context = self.core.services.loop_calls.new_context()
        self._is_reading = True
        try:
            self._context.run(self._read_all)
        finally:
            self._is_reading = False
        if not self.mailbox.is_empty and not self._is_releasing:
            self._wake()  # a finalizer may have sent something after the last look

    def _read_all(self) -> None:
        try:
            while self._read_next():
                pass
        except BaseException as raised:  # the top of the actor: from here on nobody else answers
            stopped = SessionClosed(
                f"the actor of session {self.session!r} failed: {error_text(raised)}"
            )
            stopped.__cause__ = raised
            self._give_up(stopped, "cold")
            self.core.log.bug("actor.crashed", contained(raised))
        if self.is_idle:
            self._context = None
            # A failed promise refers to the frames of its caller and through them to the session's
            # handle. Dropping it lets the handle be collected.
            self.keys.drop_answered()

    def _read_next(self) -> bool:
        """Read all that is there, and then write what is queued. Returns False when there is no
        more.
        """
        while (item := self.mailbox.next_nowait()) is not None:
            self._read(item)
        # What the items wrote goes to the store in one append. Commands that come while it is under
        # way go into the next one.
        self.core.journal.flush()
        # The append may have failed or ended at once and put its report into the mailbox.
        if not self.mailbox.is_empty:
            return True
        if self.status == "live":
            self.snapshots.write_if_due()
        elif self.status == "closing" and self.is_idle:
            if self._hand_over is not None and self._hand_over.stage == "leaving":
                self._hand_over.stage = "written"
                self.core.journal.write(r.SessionHandedOver(waiting=self.turns.left_waiting))
                return True
            self._is_releasing = True
            self.snapshots.write_if_removed()
            self.core.works.start(f"release of {self.session}", self._release)
        return False

    def _read(self, item: c.ControlCommand | c.WorkCommand | Report) -> None:
        if callable(item):  # a report
            item()
        elif isinstance(item, c.Interrupt):
            self._interrupt(item)
        elif isinstance(item, c.Close):
            self._begin_close(item)
        else:
            self._command(item)
        changes, runner = self.history_commands, self.turns.runner
        if changes.is_pending:
            changes.go_on()
            if self.status == "live":
                changes.retain()
        if self._hand_over is not None:
            self._begin_hand_over(self._hand_over)
        # A pending change of the history or of the configuration will change what a ready plan was
        # made for. The plan is applied or discarded after that change.
        if (
            runner.compactor.is_pending
            and runner.may_compact()
            and changes.is_idle
            and self.configuration.is_idle
        ):
            runner.compactor.apply_if_ready()

    # Commands.

    def _command(self, command: c.WorkCommand) -> None:
        """Perform a command once. A repeat of its id gets the answer of the first."""
        if self.status != "live":
            closed = SessionClosed(f"session {self.session!r} was closed")
            command.promise.fail(self._error or closed)
            return
        if self.keys.is_repeat(command):
            return
        try:
            self._perform(command)
        except SessionError as error:
            self.keys.refuse(command, error)

    def _perform(self, command: c.WorkCommand) -> None:
        match command:
            case c.Send():
                self.turns.send(command)
            case c.Submit():
                self._submit(command)
            case c.Compact():
                self.turns.runner.compactor.request(command.promise, self.core.size_now())
            case c.Clear() | c.Rewind() | c.Forget() | c.Fork() | c.Retain():
                self.history_commands.begin(command)
            case c.Label():
                noted = c.remembered(command.command_id, command.digest, None)
                old = self.core.labels
                labels = labelled(old, command.labels, command.title, command.archived)
                self.core.relabel(labels, noted, self.keys.answer(command))
            case c.Configure():
                self.configuration.configure(command, now=self.turns.current is None)
            case c.StoreSummaries():
                self._store_summaries(command)
            case c.SetSummary():
                self.turns.runner.compactor.caller_summaries.put(command, self.keys)

    def _submit(self, command: c.Submit) -> None:
        run = self._answerable(command)
        noted = c.remembered(command.command_id, command.digest, None)
        self.turns.runner.toolbox.answer(run, tuple(command.answers))
        if noted:
            self.core.journal.write(r.CommandAnswered(commands=noted))
        # The journal writes in order. The results were queued before this, so they are durable when
        # the answer is called.
        self.core.journal.follow(self.keys.answer(command))

    def _answerable(self, command: c.Submit) -> Run:
        """The run that all results belong to. Raises the error of the first result that has no open
        call.
        """
        run, seen = self.turns.current, set[str]()
        if not command.answers:
            raise InvalidInput("no results were submitted; give at least one ToolResult")
        for answer in command.answers:
            call_id = answer.call_id
            track = run.calls.get(call_id) if run else None
            if run is None or track is None:
                turn = self.state.call_turns.get(call_id)
                if turn is None:
                    raise UnknownToolCall(call_id)
                raise TurnNotOpen(turn, self.state.ended.get(turn, "ended"))
            if call_id in seen or call_id not in run.turn.open_calls:
                raise DuplicateToolResult(call_id)
            if run.turn.phase is not Phase.TOOLS:
                raise TurnNotOpen(run.number, run.turn.phase.value)
            if track.call.runner != "caller":
                raise InvalidInput(
                    f"tool call {call_id!r} is run by the session itself; it takes no result from"
                    " outside"
                )
            seen.add(call_id)
        assert run is not None  # there is at least one result
        return run

    def _store_summaries(self, command: c.StoreSummaries) -> None:
        for call_id in command.summaries:
            turn = self.state.call_turns.get(call_id)
            # A forgotten turn gets no new summaries: they might repeat content that was erased.
            if turn is None or turn not in self.state.accepted_time:
                raise UnknownToolCall(call_id)
        self.turns.runner.compactor.results.supersede(list(command.summaries))
        noted = c.remembered(command.command_id, command.digest, None)
        record = r.SummariesStored(summaries=command.summaries, commands=noted)
        self.core.journal.write(record, self.keys.answer(command))

    def _interrupt(self, command: c.Interrupt) -> None:
        if command.turn is not None:
            self.turns.interrupt_one(command.turn, command.policy, command.callers)
            return
        # Sends that were enqueued before the interrupt but are still unread are accepted first. So
        # they have turns, which end as aborted, and their callers get an answer. While the history
        # changes none of them starts.
        unread = self.mailbox.take_work(
            lambda waiting: isinstance(waiting, c.Send) and waiting.ingress < command.mark
        )
        for send in unread:
            self._command(send)
        self.turns.interrupt_all(command.mark, command.policy, command.callers)

    # Records that came back from the store.

    def _came_back(self, written: Written) -> None:
        # An actor that has ended needs no answer. It may come when the manager has ended, too: then
        # no task can read it.
        if self.status in ("live", "closing"):
            # A store may answer many sessions in one callback, and while it is being asked.
            self.mailbox.report(lambda: self._written(written, written.result))
            self._wake()

    def _written(self, written: Written, result: Appended | Conflict | Lost) -> None:
        if self.status not in ("live", "closing"):
            return
        match result:
            case Appended():
                self.core.account.settled(written.batch.charge)
                self.state.add_bytes(written.batch.bodies)
                for record, then in written.entries:
                    if record is not None:
                        self._take_in(record)
                    if then is not None:
                        then()
            case Conflict(row=None):
                self._give_up(SessionClosed(f"session {self.session!r} was deleted"), "closed")
            # A higher epoch means that another owner has acquired the session. The store's fence
            # refused our append, so nothing of ours is in the log beyond this point.
            case Conflict(row=row) if row is not None and row.epoch > written.batch.epoch:
                self.fence()
            case Conflict():
                self._look_for(written)
            case Lost(error=error, committed=committed):
                # Nobody knows what is in the log now, so this state must not be used any more. The
                # session goes cold; loading it again reads the truth from the log.
                failed = StoreError(
                    f"the store failed while session {self.session!r} was writing: {error}",
                    committed=committed,
                )
                self._give_up(failed, "cold")

    def fence(self) -> None:
        """Stop, because another owner has the session. No more answers are given from this
        state.
        """
        if self.status in ("live", "closing"):
            message = f"session {self.session!r} was taken over by another owner; open it again"
            self._give_up(SessionMoved(message), "moved")
            self.core.services.observers.taken(self.session)

    def _take_in(self, record: r.Record) -> None:
        """Fold a durable record into the state, then publish it."""
        terminal = record if r.is_terminal(record) else None
        turn = self.state.open.get(terminal.turn) if terminal else None
        self.state.apply(record)
        if terminal is not None and turn is not None:
            run = self.turns.runs.get(terminal.turn)
            still_running = run.still_running if run else ()
            self.turns.note_outcome(terminal.turn, outcome_of(terminal, turn, still_running))
            self.history_commands.may_exceed()
        self.core.subscriptions.publish(self.session, record)
        self.core.counters.count(record)
        self.core.services.observers.recorded(self.session, record)

    def _look_for(self, written: Written) -> None:
        """Read the log to find out whether our batch is in it.

        The log has moved although the epoch is still ours. Perhaps our batch was written and only
        its acknowledgement was lost.
        """
        batch = written.batch

        async def look() -> None:
            result: Appended | Lost
            try:
                if await is_in_log(self._store, batch):
                    self.core.journal.settled(batch)
                    result = Appended(batch.head + len(batch.bodies))
                else:
                    result = Lost("the log was changed by somebody else in this owner's epoch")
            except BaseException as error:  # a store is foreign code
                result = Lost(error_text(contained_in_work(error)))
            self.report(lambda: self._written(written, result))

        self.core.works.start(f"read of {self.session}", look)

    # The end.

    def _begin_close(self, close: c.Close) -> None:
        if self.status != "closing":
            return
        if close.leaves_open:
            message = (
                f"session {self.session!r} was released; its open turns stay open in its log, and"
                " the next owner recovers them"
            )
            self._leave(SessionClosed(message))
            return
        self._refuse_waiting(SessionClosed(f"session {self.session!r} was closed"))
        self.turns.stop_all("closed")

    def _begin_hand_over(self, command: c.HandOver) -> None:
        if self.status == "live" and self.turns.may_leave(command.when):
            self.status, command.stage = "closing", "leaving"
            self._leave(SessionMoved(f"session {self.session!r} was handed over"))

    def _leave(self, error: SessionError) -> None:
        """End here, without an end of the open turns; later commands get *error*."""
        self._error = error
        self.turns.leave(error)
        self._refuse_waiting(error)

    def _refuse_waiting(self, error: SessionError) -> None:
        self.configuration.refuse_waiting(error)
        self.history_commands.refuse_waiting(error)
        for command in self.mailbox.take_work(lambda command: True):
            command.promise.fail(error)
        self.turns.runner.compactor.close()
        self.turns.runner.compactor.caller_summaries.refuse_waiting(error)

    async def _release(self) -> None:
        # Shielded, because a lease that is not released blocks the session for other owners until
        # it expires.
        with anyio.CancelScope(shield=True):
            try:
                await self._store.release(self.core.journal.lease)
            except BaseException as error:  # a store is foreign code
                error = contained_in_work(error)
                self.core.log.trouble("session.not_released", error=error_text(error))
        has_handed_over = self._hand_over is not None and self._hand_over.stage == "written"
        try:
            self._end("moved" if has_handed_over else "closed")
            self.core.subscriptions.end(self.session, moved=has_handed_over)
        except Exception as error:  # a bug of ours must not keep those waiting who closed it
            self.core.log.bug("actor.crashed", error)
        self._answer_ends()
        self._is_releasing = False
        self._read_mailbox()

    def _answer_ends(self) -> None:
        for command in (self._close, self._hand_over):
            if command is not None:
                command.promise.set(self._closed())

    def _closed(self) -> Closed:
        """The answer of ``close``. It also names works of earlier activations that still run."""
        left = self.core.works.stopping_in(self.session)
        return Closed(self.session, tuple(sorted(self.core.still_running.union(left))))

    def evict(self) -> Lease:
        """Stop accepting commands, and return the lease, which the caller must release.

        Call it only while the actor is idle and no handle refers to it.
        """
        self._end("cold")
        return self.core.journal.lease

    def stop(self) -> None:
        """The manager's tasks were cancelled, so no work will report any more."""
        if self.status in ("live", "closing"):
            message = f"session {self.session!r} was closed: its manager was stopped"
            self._give_up(SessionClosed(message), "closed")

    def _end(self, status: ActorStatus) -> None:
        self.status = status
        self.turns.runner.compactor.end()
        self.core.journal.stop()
        self.core.account.leave()
        self._gone(self)

    def _cannot_go_on(self, error: SessionError) -> None:
        if self.status in ("live", "closing"):
            self._give_up(error, "moved" if isinstance(error, SessionMoved) else "cold")

    def _give_up(self, error: SessionError, status: ActorStatus) -> None:
        """This actor cannot continue: end it, and answer all callers with *error*."""
        self._error = error
        self.core.log.trouble("session.given_up", error=str(error), status=status)
        self._end(status)
        if status != "moved":
            self._store.release_later(self.core.journal.lease)
        self.turns.abandon(error, fenced=status == "moved")
        self.turns.runner.compactor.fail(error)
        self.configuration.refuse_waiting(error)
        self.mailbox.drain()
        self.keys.fail_all(error)
        if status == "cold":
            # It is not known which records are durable, so subscribers must read the log again.
            self.core.subscriptions.lag_all(self.session)
        else:
            self.core.subscriptions.end(self.session, moved=status == "moved")
        if self._hand_over is not None:
            self._hand_over.promise.fail(error)
        self._answer_ends()
