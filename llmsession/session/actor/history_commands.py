"""Commands on the whole history: clear, rewind, forget, retention, and fork (which only reads it).

Each is performed between turns and alone. The work lane is not read until the command is durable
and the erased content is out of the log. So every later command sees the new history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from llmsession.compaction.tokens.messages import message_tokens
from llmsession.errors import (
    InvalidInput,
    SessionBusy,
    SessionError,
    SessionMoved,
    StoreError,
    contained_in_work,
    error_text,
)
from llmsession.store.protocol import Store
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile

from ..core.core import Core, Report
from ..core.idempotency_keys import IdempotencyKeys
from ..log.erasing import erase
from ..log.history_cuts import Excess, excess_of, first_since, messages_before
from ..log.state import SessionState
from ..tasks.worker_thread import off_loop
from ..values import commands as c
from ..values.history_limits import UNLIMITED, HistoryLimits
from ..values.retention import limits_of
from .mailbox import Mailbox
from .turn_queue import TurnQueue

__all__ = ["HistoryCommands", "HistoryWeight", "state_excess"]

_Change: TypeAlias = c.Clear | c.Rewind | c.Forget | c.Retain
_ChangeRecord: TypeAlias = r.ConversationCleared | r.ConversationRewound | r.ConversationForgotten
SHORT_MESSAGES, SHORT_RECORDS = 500, 1_000
"""So many messages, and the tables of so many records, are decoded in a few milliseconds: too
little for a thread.
"""
_PLAIN = Profile()
"""The profile for estimating tokens for retention: a limit means the same for every model."""


def state_excess(
    state: SessionState, limits: HistoryLimits, now: float, weight: HistoryWeight | None = None
) -> Excess | None:
    """The part of *state*'s history that exceeds *limits* at the time *now*; None if nothing
    does. *weight* remembers the tokens from one call to the next.
    """
    if limits.is_unlimited:
        return None
    return excess_of(
        state.messages,
        state.accepted_at,
        state.accepted_time,
        state.head,
        limits=limits,
        now=now,
        tokens_of=_tokens,
        all_tokens=partial((weight or HistoryWeight()).tokens, state),
    )


def _tokens(message: Message) -> int:
    return message_tokens(message, _PLAIN)


class HistoryWeight:
    """The estimated tokens of a growing history. Each message is counted once."""

    def __init__(self) -> None:
        self._generation = self._count = self._tokens = 0

    def tokens(self, state: SessionState) -> int:
        """The tokens of the history of *state*, which is the same state in every call."""
        history = state.messages
        if self._generation != state.generation:  # within a generation it only grows
            self._generation, self._count, self._tokens = state.generation, 0, 0
        self._tokens += sum(map(_tokens, history[self._count :]))
        self._count = len(history)
        return self._tokens

    def forgetting(self, state: SessionState, count: int) -> None:
        """The next change of *state* will be that its first *count* messages are forgotten."""
        if self._count:
            self._tokens = self.tokens(state) - sum(map(_tokens, state.messages[:count]))
            self._count -= count
            self._generation += 1


class HistoryCommands:
    """Performs the history commands of one session.

    ``lost`` is called if erased content could not be removed from the log. The session cannot
    continue then.
    """

    def __init__(
        self,
        core: Core,
        keys: IdempotencyKeys,
        turns: TurnQueue,
        *,
        mailbox: Mailbox[c.ControlCommand, c.WorkCommand, Report],
        store: Store,
        lost: Callable[[SessionError], None],
    ) -> None:
        self._core = core
        self._keys = keys
        self._turns = turns
        self._mailbox = mailbox
        self._store = store
        self._lost = lost
        self._waiting: c.HistoryCommand | None = None
        """The command that waits for the end of the turns that it interrupted."""
        self._weight = HistoryWeight()
        self._erasing = False
        self._may_exceed = False
        """Has anything happened since the history was last compared with the limits of
        retention?
        """

    @property
    def is_idle(self) -> bool:
        """Is no change waiting or being written, and nothing left to erase?"""
        return (
            self._waiting is None
            and not self._core.is_changing
            and self._core.state.pending_redaction is None
        )

    @property
    def is_pending(self) -> bool:
        """May ``go_on`` or ``retain`` have work? Asked after each item of the mailbox."""
        return self._may_exceed or self._waiting is not None

    @property
    def jobs(self) -> tuple[str, ...]:
        """The name of the job that erases records, while it runs."""
        return ("redaction",) if self._erasing else ()

    def begin(self, command: c.HistoryCommand) -> None:
        """Perform the command: at once, or when the open turns that it interrupts have ended.

        Raises InvalidInput, and SessionBusy if a turn is open and the command may not interrupt it.
        """
        self._check(command)
        if not self._turns.runs:
            self._make(command)
            return
        if isinstance(command, c.Retain):  # the end of the open turn starts retention again
            self._keys.answer(command)()
            return
        if command.when_busy == "reject":
            advice = 'wait for it, interrupt it, or pass when_busy="interrupt"'
            raise SessionBusy(f"session {self._core.session!r} has an open turn; {advice}")
        self._waiting = command
        self._mailbox.hold_work()
        # The work lane is read in order, so every turn that is open now was sent before this
        # command. That is why the command's own ingress number is the right mark.
        self._turns.interrupt_all(command.ingress, self._core.config.interrupt_policy, [])

    def go_on(self) -> None:
        """Perform the waiting command if every open turn has ended."""
        if self._waiting is None or self._turns.runs:
            return
        command, self._waiting = self._waiting, None
        self._mailbox.release_work()
        try:
            self._check(command)
            self._make(command)
        except SessionError as error:  # it named a turn that was open and has been dropped
            self._keys.refuse(command, error)

    def may_exceed(self) -> None:
        """Compare the history with the limits of retention as soon as no turn is open.

        Called when a turn has ended, time has passed, or the limits have changed.
        """
        self._may_exceed = True

    def retain(self) -> None:
        """Forget what exceeds the limits of retention, if no turn is open and no other change is
        being made.

        Does nothing unless ``may_exceed`` was called since the last time.
        """
        if self._may_exceed and not self._turns.runs and self.is_idle:
            self._may_exceed = False
            if self._excess(None) is not None:
                self._make(c.Retain(0, None))

    @property
    def excess(self) -> Excess | None:
        """The part of the history that exceeds its limits now; None if nothing does or a turn is
        open.
        """
        return None if self._turns.runs else self._excess(None)

    def _excess(self, limits: HistoryLimits | None) -> Excess | None:
        core = self._core
        if limits is None:
            own, rules = core.config.retention, core.services.retention
            if own is None and not rules:
                return None
            limits = limits_of(rules, core.state.labels, own or UNLIMITED)
        return state_excess(core.state, limits, core.services.clock(), self._weight)

    def refuse_waiting(self, error: SessionError) -> None:
        """The session ends: answer the command that waits for turns to end with *error*."""
        if self._waiting is not None:
            self._keys.refuse(self._waiting, error)
            self._waiting = None
            self._mailbox.release_work()

    def _check(self, command: c.HistoryCommand) -> None:
        state = self._core.state
        match command:
            case c.Rewind(to=turn) if turn:
                known = state.has_turn(turn)
                problem = "is not in the history"
            case c.Forget(before=int(turn)):
                known = state.has_turn(turn)
                problem = "is not in the history"
            case c.Fork(at=int(turn)):
                known = turn in state.committed_at
                problem = "was never committed or was forgotten"
            case _:
                return
        # A turn that is open now may still be committed by the interrupt, so it is checked again
        # later.
        if not known and turn not in self._turns.runs:
            raise InvalidInput(f"turn {turn} of session {state.session!r} {problem}")

    def _make(self, command: c.HistoryCommand) -> None:
        """Start the change: write its record, or answer it if nothing changes."""
        forgets = isinstance(command, c.Forget | c.Retain) or (
            isinstance(command, c.Clear) and command.purge
        )
        state = self._core.state
        if forgets and state.head > SHORT_RECORDS and not state.is_unpacked:
            self._unpack_for(command)
        else:
            self._change(command)

    def _unpack_for(self, command: c.HistoryCommand) -> None:
        """Decode what the change looks at, beside the event loop, and then make it."""
        core = self._core
        core.is_changing = True
        self._mailbox.hold_work()

        async def work() -> None:
            try:
                await off_loop(core.state.unpack)
            except BaseException as error:  # it comes again where it can be answered
                contained_in_work(error)
            core.report(unpacked)

        def unpacked() -> None:
            core.is_changing = False
            if self._turns.runs:  # an interrupt has accepted sends meanwhile, and ends them first
                self._waiting = command
                return
            self._mailbox.release_work()
            try:
                self._change(command)
            except SessionError as error:
                self._keys.refuse(command, error)

        core.works.start(f"change of the history of {core.session}", work)

    def _change(self, command: c.HistoryCommand) -> None:
        generation = self._core.state.generation + 1
        match command:
            case c.Fork():
                self._answer_fork(command)
            case c.Forget():
                self._forget(command, generation)
            case c.Retain():
                self._retain(command, generation)
            case c.Clear():
                cleared = r.ConversationCleared(generation=generation, purge=command.purge)
                self._write(command, cleared)
            case c.Rewind():
                self._write(command, r.ConversationRewound(to=command.to, generation=generation))

    def _answer_fork(self, command: c.Fork) -> None:
        journal, state = self._core.journal, self._core.state
        upto = journal.seq if command.at is None else state.committed_at[command.at]
        point = c.ForkPoint(command.session, upto)
        answer = self._keys.answer_with(command, point)
        noted = c.remembered(command.command_id, command.digest, point)
        if noted:
            journal.write(r.CommandAnswered(commands=noted), answer)
        else:
            journal.follow(answer)

    def _forget(self, command: c.Forget, generation: int) -> None:
        state, before = self._core.state, command.before
        if isinstance(before, int):
            edge = state.accepted_at[before]
        else:
            before, edge = first_since(
                state.messages, state.accepted_at, state.accepted_time, before, state.head
            )
        turns = state.turns_to_forget(before, edge)
        # The others were erased already, in the parent of this session.
        known = len(turns) - sum(turn in turns for turn in state.erased)
        if known or (before == 0 and state.seed is not None):
            record = r.ConversationForgotten(
                before=before,
                generation=generation,
                edge=edge,
                turns=known,
                messages=messages_before(state.messages, before),
            )
            self._write(command, record)
        else:
            self._answer_unchanged(command)

    def _retain(self, command: c.Retain, generation: int) -> None:
        excess = self._excess(command.limits)
        if excess is None:
            self._answer_unchanged(command)
            return
        turns = sum(excess.limits.values())
        record = r.ConversationForgotten(
            before=excess.before,
            generation=generation,
            edge=excess.edge,
            turns=turns,
            messages=excess.messages,
            limits=excess.limits,
        )
        self._weight.forgetting(self._core.state, excess.messages)
        self._write(command, record)

    def _answer_unchanged(self, command: _Change) -> None:
        noted = c.remembered(command.command_id, command.digest, None)
        if noted:
            self._core.journal.write(r.CommandAnswered(commands=noted), self._keys.answer(command))
        else:
            self._core.journal.follow(self._keys.answer(command))

    def _write(
        self,
        command: _Change,
        record: _ChangeRecord,
    ) -> None:
        compactor = self._turns.runner.compactor
        compactor.cancel()
        if isinstance(record, r.ConversationForgotten):  # a purge leaves no turn to summarise
            compactor.caller_summaries.refuse_waiting(
                InvalidInput(
                    f"turns of session {self._core.session!r} were forgotten before the summary was"
                    " applied, and it may repeat what they said; give one of what is left"
                )
            )
        self._core.context_size = None
        self._core.is_changing = True
        self._mailbox.hold_work()
        noted = c.remembered(command.command_id, command.digest, None)
        record = replace(record, commands=noted)
        self._core.journal.write(record, lambda: self._written(command, record))

    def _written(self, command: _Change, record: _ChangeRecord) -> None:
        if isinstance(record, r.ConversationForgotten) and record.limits:
            turns, messages, limits = record.turns, record.messages, record.limits
            self._core.log.event("retention.forgot", turns=turns, messages=messages, limits=limits)
        if self._core.state.pending_redaction is None:
            self._end(command)
            return
        if self._core.state.pending_redaction.receipts:  # the messages that carry them are shorter
            self._weight = HistoryWeight()
        # The request builder caches requests that contain the erased content, so it is replaced.
        self._core.renew_builder()
        self._erasing = True
        self._core.works.start(f"redaction of {self._core.session}", self._erasure(command))

    def _erasure(self, command: _Change) -> Callable[[], Awaitable[None]]:
        core, pending_redaction = self._core, self._core.state.pending_redaction
        assert pending_redaction is not None  # _written has checked it

        async def work() -> None:
            try:
                # The state decodes what is left at the end of this. Here it takes no time of the
                # event loop.
                if not core.state.is_decoded and core.state.message_count > SHORT_MESSAGES:
                    await off_loop(tuple, core.state.messages)
                lease = core.journal.lease
                changed = await erase(self._store, lease, pending_redaction)
            except BaseException as error:  # a store is foreign code
                lost = self._error(contained_in_work(error))
                core.report(lambda: self._lost(lost))
            else:
                core.report(lambda: self._erased(command, changed))

        return work

    def _error(self, error: Exception) -> SessionError:
        if isinstance(error, SessionMoved):
            return error
        message = (
            f"the content that session {self._core.session!r} should forget is still in its log; it"
            f" is erased when the session is opened again: {error_text(error)}"
        )
        lost = StoreError(message, committed=None)
        lost.__cause__ = error
        return lost

    def _erased(self, command: _Change, changed: bool) -> None:
        self._erasing = False
        if changed:
            self._core.state.rewritten()
        self._core.journal.write(r.RecordsRedacted(), lambda: self._end(command))

    def _end(self, command: _Change) -> None:
        self._core.is_changing = False
        self._mailbox.release_work()
        self._keys.answer(command)()
