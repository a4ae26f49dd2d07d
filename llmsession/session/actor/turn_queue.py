"""The order of a session's turns: the running one, the waiting ones, and the answers to callers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llmsession.errors import HeadMoved, Overloaded, SessionBusy, SessionError
from llmsession.turns import events as e
from llmsession.turns import records as r
from llmsession.turns.event_choice import progress
from llmsession.turns.ids import TurnId
from llmsession.turns.machine import Phase
from llmsession.turns.receipts import receipt_text
from llmsession.turns.spending.spending import exhausted

from ..core.core import Core
from ..core.turn_run import Run
from ..values import commands as c
from ..values.outcome import InterruptOutcome, InterruptResult, TurnOutcome
from .interrupts import PendingInterrupt
from .recovery import resumed_run
from .turn_runner import TurnRunner

__all__ = ["TurnQueue"]


class TurnQueue:
    """All accepted turns of a session that have not ended, in order.

    ``answered`` is called with a send whose acceptance is durable, and with a caller of an
    interrupt whose answer is durable. ``between`` is called between two turns, before the next one
    starts.
    """

    def __init__(
        self,
        core: Core,
        answered: Callable[[c.Send | c.InterruptCaller], None],
        between: Callable[[], None],
    ) -> None:
        self._core = core
        self._answered = answered
        self._between = between
        self.runner = TurnRunner(core, self._turn_ended)
        self._waiting: list[Run] = []
        self.left_waiting: tuple[int, ...] = ()
        """The turns that waited when the session was left, in the order in which they start; () if
        that is the order of their numbers."""
        self._interrupts: list[PendingInterrupt] = []
        self._is_holding = False
        self.runs: dict[int, Run] = {}
        """Every turn that was accepted and has not ended, by number."""

    def let_go(self) -> None:
        """The actor is gone: drop the parts that refer to this one."""
        self.runner.let_go()
        del self.runner

    @property
    def current(self) -> Run | None:
        """The run whose turn has started or is next to start; None if no turn is open."""
        return self.runner.current

    @property
    def waiting(self) -> int:
        """The number of accepted turns that have not started."""
        return len(self._waiting)

    def resume(self) -> None:
        """Continue the open turns of the log, if there are any. Their next event is a report."""
        running = self._core.state.running()
        for turn in self._core.state.open.values():
            run = self._add(resumed_run(turn))
            if turn is running:
                self.runner.current = run
            else:  # the session was handed over
                self._waiting.append(run)
        # Last, because a report may be read at once.
        if self.runner.current is not None:
            self._core.report(partial(self.runner.resume, self.runner.current))
        elif self._waiting:
            self._core.report(self._start_next)

    def _add(self, run: Run) -> Run:
        self.runs[run.number] = run
        self._core.services.open_runs.add(run)
        return run

    # Sends.

    def send(self, command: c.Send) -> None:
        """Accept *command* as its ``when_busy`` says.

        While the history changes its turn does not start: it would begin with notes of what is
        cleared. The interrupt that reads it then ends it before that.

        Changes nothing if it raises SessionBusy, HeadMoved, Overloaded or BudgetExhausted.
        """
        current, session = self.current, self._core.session
        if command.expected_head is not None:
            self._check_head(command.expected_head)
        if command.when_busy == "reject" and self.runs:
            raise SessionBusy(
                f"session {session!r} has an open turn; wait for it, or use another when_busy"
            )
        exceeded = self._core.account.exceeded(self._core.config.budget)
        if exceeded is not None:
            raise exhausted(exceeded)
        if command.when_busy == "steer" and current is not None and _goes_on(current):
            self._steer(command, current)
            return
        if len(self._waiting) >= self._core.config.queue_limit:
            raise Overloaded(
                f"{len(self._waiting)} turns wait in session {session!r}, and queue_limit is"
                f" {self._core.config.queue_limit}; retry later"
            )
        run = self._accept(command, starts=not (self.runs or self._core.is_changing))
        if command.when_busy == "interrupt" and current is not None:
            self._waiting.remove(run)
            self._waiting.insert(0, run)
            if progress(current.turn) == "open":
                policy = self._core.config.interrupt_policy
                self.runner.interrupt(current, policy, "replaced")

    def _check_head(self, expected: int) -> None:
        actual = self._core.state.head_turn or 0  # 0 stands for an empty history
        if self.runs:
            raise HeadMoved(_head_name(expected), None, "other sends are open")
        if expected != actual:
            raise HeadMoved(_head_name(expected), _head_name(actual) if actual else None)

    def _accept(self, command: c.Send, *, starts: bool) -> Run:
        """Number the turn, and write its acceptance. The turn *starts* at once, or waits."""
        state = self._core.state
        number = state.counter.next()
        run = self._add(Run(number, command.ingress))
        command.outcome = run.outcome
        record = r.TurnAccepted(
            turn=number,
            body=command.body,
            started=starts,
            receipt=receipt_text(state.receipts) if starts else None,
            seed=self._seed() if starts else None,
            commands=c.remembered(command.command_id, command.digest, number),
        )
        if starts:
            self.runner.current = run
        else:
            self._waiting.append(run)

        def accepted() -> None:
            self._answer_send(command, number)
            if starts:
                self.runner.start(run)

        self._core.log.event("turn.accepted", run.turn, content=command.body)
        self._core.journal.write(record, accepted)
        return run

    def _seed(self) -> str | None:
        """The summary to begin with, if the turn that starts is the first one."""
        state = self._core.state
        return state.seed.text if state.seed is not None and not state.message_count else None

    def _answer_send(self, command: c.Send, number: int) -> None:
        self._answered(command)
        command.promise.set(number)

    def _steer(self, command: c.Send, run: Run) -> None:
        run.steers += 1
        command.outcome = run.outcome
        record = r.SteerAccepted(
            turn=run.number,
            body=command.body,
            commands=c.remembered(command.command_id, command.digest, run.number),
        )
        self._core.journal.write(record, lambda: self._answer_send(command, run.number))

    # Interrupts.

    def foresee_interrupt(self, number: int | None) -> None:
        """An interrupt of turn *number*, or of all, is in the mailbox and will be read soon.

        A reply that streams cannot end otherwise any more, unless it is already complete. So its
        stream is cancelled now, and ends while the interrupt is being read.
        """
        run = self.current
        if run is not None and run.turn.phase is Phase.STREAMING and number in (None, run.number):
            for work in run.works.values():
                work.cancel()

    def interrupt_all(
        self, mark: int, policy: r.InterruptPolicy, callers: list[c.InterruptCaller]
    ) -> None:
        """End every accepted turn whose send was enqueued before *mark*, and no later one."""
        current = self.current
        covered = current if current is not None and current.ingress < mark else None
        pending = PendingInterrupt(callers, covered)
        self._interrupts.append(pending)
        # Includes queued turns that an earlier interrupt is aborting: their end must be durable,
        # too, before this interrupt is answered.
        for run in [run for run in self.runs.values() if run.ingress < mark and run is not covered]:
            pending.wait_for(run)
            self._abort_waiting(run, "interrupt")
        if covered is not None:
            self._interrupt_run(covered, pending, policy)
        self._answer_interrupts()

    def interrupt_one(
        self, number: int, policy: r.InterruptPolicy, callers: list[c.InterruptCaller]
    ) -> None:
        """End one turn, running or queued."""
        run = self.runs.get(number)
        if run is None:
            known = number in self._core.state.ended
            result = InterruptResult.NOT_RUNNING if known else InterruptResult.UNKNOWN_TURN
            self._tell(callers, InterruptOutcome(result=result, turn=TurnId("u", number)))
            return
        pending = PendingInterrupt(callers, run)
        self._interrupts.append(pending)
        if run is self.current:
            self._interrupt_run(run, pending, policy)
        else:
            pending.wait_for(run)
            self._abort_waiting(run, "interrupt")
        self._answer_interrupts()

    def _abort_waiting(self, run: Run, reason: str) -> None:
        if run in self._waiting:
            self._waiting.remove(run)
            self.runner.interrupt(run, "drop_turn", reason)

    def _interrupt_run(
        self, run: Run, pending: PendingInterrupt, policy: r.InterruptPolicy
    ) -> None:
        if progress(run.turn) == "open":
            pending.wait_for(run)
            self.runner.interrupt(run, policy, "interrupt")
        elif run.turn.phase is Phase.ABORTING or _was_kept(run):
            # An earlier interrupt has decided the turn's end. This one gets the same answer.
            pending.wait_for(run)
        else:
            pending.too_late = True

    def stop_all(self, reason: str) -> None:
        """End every turn, because the session is closed."""
        for run in tuple(self._waiting):
            self._abort_waiting(run, reason)
        if self.current is not None and progress(self.current.turn) == "open":
            self.runner.interrupt(self.current, self._core.config.interrupt_policy, reason)

    def _answer_interrupts(self) -> None:
        complete = [pending for pending in self._interrupts if pending.is_complete]
        if complete:
            self._interrupts = [p for p in self._interrupts if not p.is_complete]
            for pending in complete:
                self._tell(pending.callers, pending.outcome())

    def _tell(self, callers: list[c.InterruptCaller], outcome: InterruptOutcome) -> None:
        for caller in callers:
            self._tell_one(caller, outcome)

    def _tell_one(self, caller: c.InterruptCaller, outcome: InterruptOutcome) -> None:
        if caller.command_id is None:
            caller.promise.set(outcome)
            return
        noted = c.remembered(caller.command_id, caller.digest, outcome)
        record = r.CommandAnswered(commands=noted)

        def durable() -> None:
            self._answered(caller)
            caller.promise.set(outcome)

        self._core.journal.write(record, durable)

    # The end of a turn, and the start of the next.

    def note_outcome(self, number: int, outcome: TurnOutcome) -> None:
        """The terminal record of turn *number* is durable and folded; *outcome* is the turn's
        outcome.
        """
        run = self.runs.get(number)
        if run is not None:
            run.ended_as = outcome

    def _turn_ended(self, run: Run) -> None:
        self.runs.pop(run.number, None)
        self._core.services.open_runs.discard(run)
        if not self.runs:
            self.runs.clear()  # an emptied dict keeps its table, of 160 bytes
        outcome = run.ended_as
        if outcome is None:
            return  # fenced, or the store was lost: abandon() has answered the callers
        for pending in self._interrupts:
            pending.ended(run, outcome)
        self._core.log.event("turn.ended", run.turn, status=outcome.status, why=outcome.stop_reason)
        run.outcome.set(outcome)
        self._answer_interrupts()
        if run is self.current:
            self.runner.current = None
        if self.current is None:
            self._between()
            self._start_next()
        if self.current is None:
            self.runner.compactor.turn_ended()

    def _start_next(self) -> None:
        if not self._waiting or self._is_holding or self.current is not None:
            return
        run = self.runner.current = self._waiting.pop(0)
        record = r.TurnStarted(
            turn=run.number, receipt=receipt_text(self._core.state.receipts), seed=self._seed()
        )
        self._core.journal.write(record, lambda: self.runner.start(run))

    def hold(self, *, steps: bool) -> None:
        """Start no other turn, because the session is to be handed over; with *steps* no other
        step either."""
        self._is_holding = True
        self.runner.holds_steps = self.runner.holds_steps or steps

    def may_leave(self, when: c.HandOverWhen) -> bool:
        """Can the next owner go on from here, as *when* wants it?"""
        run = self.current
        if when == "now" or run is None:
            return True
        if when == "idle":
            return False
        phase = run.turn.phase
        return phase in (Phase.ACCEPTED, Phase.BUILDING) or (phase is Phase.TOOLS and not run.works)

    def leave(self, error: SessionError) -> None:
        """Stop the open turns without ending them, so that the next owner recovers them.

        No other turn starts. A turn that is already stopping, or whose end is decided, still ends:
        its end is written, and the callers of its interrupts are answered.
        """
        left, self._waiting = self._waiting, []
        numbers = [run.number for run in left]
        self.left_waiting = () if numbers == sorted(numbers) else tuple(numbers)
        current = self.current
        if current is not None and _goes_on(current):
            left.insert(0, current)
            self.runner.current = None
        for run in left:
            self._drop(run, error, e.StoreLost())

    def _drop(self, run: Run, error: SessionError, event: e.Fenced | e.StoreLost) -> None:
        run.outcome.fail(error)
        self.runner.drop(run, event)

    def abandon(self, error: SessionError, *, fenced: bool) -> None:
        """This owner can write nothing more: leave every turn to recovery, and fail its callers."""
        for run in tuple(self.runs.values()):
            self._drop(run, error, e.Fenced() if fenced else e.StoreLost())
        self._interrupts.clear()
        self._waiting.clear()
        self.runner.current = None


def _head_name(turn: int) -> str:
    return f"a{turn}" if turn else "0"


def _goes_on(run: Run) -> bool:
    return progress(run.turn) == "open" and run.turn.phase is not Phase.STOPPING


def _was_kept(run: Run) -> bool:
    ending = run.turn.ending
    return (
        run.turn.phase is Phase.COMMITTING and ending is not None and ending.reason == "cancelled"
    )
