"""LLMSession: the handle that users hold."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from llmsession.compaction.planning.prefix_summaries import digest_of
from llmsession.compaction.summaries.digest import DIGEST_CHARS
from llmsession.errors import InvalidConfig, InvalidInput
from llmsession.providers.counting.counts import Count
from llmsession.turns import records as r
from llmsession.turns.blocks import Content
from llmsession.turns.ids import TurnId, turn_number
from llmsession.turns.machine import tag_of
from llmsession.turns.messages import Message, count_turns
from llmsession.turns.previews import ToolUse
from llmsession.turns.request import Request

from ..actor.actor import Actor
from ..actor.tool_runner import prepare_answers
from ..core.account import usage_of
from ..core.reply_reader import previews_so_far
from ..core.subscriptions import Subscription
from ..log.reader import read_outcome, read_page
from ..log.state import SessionState
from ..registry.forking import fork_of
from ..values import commands as c
from ..values.config import SessionConfig, ToolResult, WhenBusy
from ..values.environment import with_environment
from ..values.labels import new_session_id, tenant_of
from ..values.outcome import (
    Closed,
    CompactionOutcome,
    InterruptOutcome,
    SessionPhase,
    SessionStatus,
    SessionUsage,
    TurnOutcome,
)
from ..values.validation import (
    checked_if_busy,
    checked_labels,
    checked_session_id,
    checked_summary,
    checked_user_body,
    turn_or_moment,
    turn_or_none_before,
)
from .turn import Turn

if TYPE_CHECKING:
    from ..manager import SessionManager

__all__ = ["LLMSession", "Turn", "live_state"]

_WHEN_BUSY: tuple[str, ...] = get_args(WhenBusy)
_POLICIES: tuple[str, ...] = get_args(r.InterruptPolicy)


class LLMSession:
    """One conversation. Get it from ``SessionManager.create`` or ``open``; hold it while you use
    it: a held session stays live, one that nobody holds may be evicted and comes back on touch.

    Commands are numbered when they are called, before any await, and answered when they are
    durable. Cancelling a call that waits for its answer does not take the command back. Reads
    (``conversation``, ``context``, ``status``, ``usage``) are synchronous; their async twins
    (``read_conversation``, ...) are what remote sessions have too.

    All commands raise SessionClosed, SessionMoved, Overloaded or StoreError where that applies.
    """

    def __init__(self, manager: SessionManager, actor: Actor) -> None:
        self._manager = manager
        self._actor = actor
        self.id = actor.session
        self._return = manager.returns(actor.session)
        actor.pins += 1
        self._unpin = weakref.finalize(self, manager.unpin, actor)
        self._unpin.atexit = False

    def __repr__(self) -> str:
        return f"<LLMSession {self.id} {self._actor.status}>"

    @property
    def _is_live(self) -> bool:
        """Can a command be enqueued at once? Not where earlier ones wait for the session."""
        return self._actor.status == "live" and not self._return.callers

    async def _live(self) -> Actor:
        """The actor; brought back first if the session went cold under this handle. Those who
        wait for it go on in the order in which they came: so commands are numbered as called."""
        if self._actor.status != "cold" and not self._return.callers:
            return self._actor
        async with self._return.in_turn():
            # Again, where it was evicted before this task came to run.
            while self._actor.status == "cold":
                # Callables are not in the log: those that were bound here are bound again.
                bound = [tool for tool in self.config.bound_tools.values() if tool.run is not None]
                actor = await self._manager.activate(self.id, tools=bound)
                self._unpin()
                self._actor = actor
                actor.pins += 1
                self._unpin = weakref.finalize(self, self._manager.unpin, actor)
                self._unpin.atexit = False
            return self._actor

    # Commands.

    async def send(
        self,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        command_id: str | None = None,
        expected_head: TurnId | str | int | None = None,
    ) -> Turn:
        """Say something. Returns the turn once its acceptance is durable.

        *content* is text, or a list of blocks (structs or plain dicts). With a turn open,
        *when_busy* decides: ``queue`` waits its turn, ``reject`` raises SessionBusy,
        ``interrupt`` ends the open turn and goes first, ``steer`` joins the open turn at its
        next step boundary and returns that turn. A repeat of *command_id* returns the same turn
        and sends nothing. *expected_head* is the last committed turn that the caller knows.

        Raises InvalidMessage, SessionBusy, HeadMoved, KeyReused, Overloaded, BudgetExhausted.
        """
        body = checked_user_body(content)
        if when_busy not in _WHEN_BUSY:
            raise InvalidInput(f"when_busy is {when_busy!r}; it is one of {', '.join(_WHEN_BUSY)}")
        head = None if expected_head is None else turn_number(expected_head)
        actor = self._actor if self._is_live else await self._live()
        ingress = actor.mailbox.number()
        command = c.Send(ingress, command_id, body=body, when_busy=when_busy, expected_head=head)
        actor.put(command)
        number = await command.promise.wait()
        run = actor.turns.runs.get(number)
        return Turn(self, number, run.outcome if run is not None else command.outcome)

    async def submit_tool_results(
        self, results: Sequence[ToolResult], *, command_id: str | None = None
    ) -> None:
        """Answer calls that the model made; some of them, or all. Durable when it returns.

        All or none of *results* are taken. Raises UnknownToolCall, DuplicateToolResult,
        TurnNotOpen (the turn has ended; nothing was changed), InvalidMessage.
        """
        actor = await self._live()
        answers = await prepare_answers(results, compaction=actor.core.capping)
        command = c.Submit(actor.mailbox.number(), command_id, answers)
        actor.put(command)
        await command.promise.wait()

    async def interrupt(
        self,
        turn: TurnId | str | int | None = None,
        *,
        policy: r.InterruptPolicy | None = None,
        command_id: str | None = None,
    ) -> InterruptOutcome:
        """Stop *turn*; without one, the open turn and every send enqueued before this call.

        *policy*: ``drop_turn`` takes the whole turn out, ``keep_steps`` keeps its complete
        steps, ``keep_text`` also the text of the reply that streams; None is the configured
        one. Answered when it is durable, within the grace period plus a store write, whatever
        tool or stream is running. Never raises for a turn that is not there: see the result.
        """
        if policy is not None and policy not in _POLICIES:
            raise InvalidInput(f"policy is {policy!r}; it is one of {', '.join(_POLICIES)}")
        number = None if turn is None else turn_number(turn)
        actor = self._actor if self._is_live else await self._live()
        return await actor.put_interrupt(number, policy, command_id).wait()

    async def compact(self) -> CompactionOutcome:
        """Compact now, whatever the threshold says. Waits until it is applied or given up; a
        reply that streams is finished first."""
        actor = await self._live()
        command = c.Compact(actor.mailbox.number(), None, "")
        actor.put(command)
        return await command.promise.wait()

    def cancel_compaction(self) -> None:
        """Stop the background compaction, if one runs; nothing of it is applied."""
        if self._actor.status != "live":
            return
        self._actor.report(self._actor.turns.runner.compactor.cancel)

    async def clear(
        self,
        *,
        purge: bool = False,
        when_busy: c.IfBusy = "reject",
        command_id: str | None = None,
    ) -> None:
        """Start the next generation with an empty history. The log keeps the old one, unless
        *purge* takes it out: what was said until now, by whomever, is in no record of this
        session's log when it returns; forks keep what they share.

        With a turn open, *when_busy* raises SessionBusy, or ends every open turn first. If the
        store fails between the two steps, StoreError; the next ``open`` finishes it.
        """
        busy = checked_if_busy(when_busy)
        actor = await self._live()
        number = actor.mailbox.number()
        await _done(actor, c.Clear(number, command_id, purge=bool(purge), when_busy=busy))

    async def rewind(
        self,
        to: TurnId | str | int,
        *,
        when_busy: c.IfBusy = "reject",
        command_id: str | None = None,
    ) -> None:
        """Let the history end with turn *to* again, 0 for none; the next generation starts.

        The log keeps what was rewound, and ``fork`` still begins there. Receipts that its
        messages carried come with the next message again. *when_busy* as for ``clear``. Raises
        InvalidInput for a turn that is not in the history.
        """
        turn, busy = turn_or_none_before(to), checked_if_busy(when_busy)
        actor = await self._live()
        number = actor.mailbox.number()
        await _done(actor, c.Rewind(number, command_id, to=turn, when_busy=busy))

    async def forget(
        self,
        before: TurnId | str | int | float | datetime,
        *,
        when_busy: c.IfBusy = "reject",
        command_id: str | None = None,
    ) -> None:
        """Take what was said before turn *before* out of the history and out of the log.

        With a moment instead (a datetime with its zone, or a float in seconds since the epoch)
        the turns go that were accepted before it; where a later one stands before them in the
        history, they stay. Aborted and rewound turns from before go, too, and what an import
        knew beside its messages. Numbers, costs and how turns ended stay, and what later
        messages quote. Nothing to forget changes nothing; otherwise the next generation starts,
        without its earlier thinking, whose signatures were bound to what is gone. *when_busy*,
        what a fork keeps, and errors as for ``clear(purge=True)``, and InvalidInput for a turn
        that is not in the history.
        """
        place, busy = turn_or_moment(before), checked_if_busy(when_busy)
        actor = await self._live()
        number = actor.mailbox.number()
        await _done(actor, c.Forget(number, command_id, before=place, when_busy=busy))

    async def fork(
        self,
        at: TurnId | str | int | None = None,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        when_busy: c.IfBusy = "reject",
        command_id: str | None = None,
    ) -> LLMSession:
        """A new session that goes on from here, or from the commit of turn *at*, which may have
        been rewound since. No message is copied, and neither session changes the other.

        It has the history, the view, the receipts and the configuration as of then, the tools'
        callables as they are bound here, and *labels*, without them those of this session; its
        commands and its usage begin anew. *when_busy* as for ``clear``. A repeat of *command_id*
        returns the same fork. Raises InvalidInput for a turn that was never committed or was
        forgotten, SessionExists, StoreError.
        """
        turn = None if at is None else turn_number(at)
        busy = checked_if_busy(when_busy)
        given = None if session_id is None else checked_session_id(session_id)
        wanted = None if labels is None else checked_labels(labels)
        actor = await self._live()
        command = c.Fork(
            actor.mailbox.number(),
            command_id,
            at=turn,
            session=given or new_session_id(self.tenant),
            given=given,
            labels=wanted,
            when_busy=busy,
        )
        actor.put(command)
        return LLMSession(self._manager, await fork_of(self._manager, actor, command, wanted))

    async def label(self, labels: Mapping[str, str], *, command_id: str | None = None) -> None:
        """Give the session *labels*, in place of those that it has. Durable when it returns.

        At most 64, with printable names of up to 64 characters and texts of up to 256. Raises
        InvalidInput.
        """
        wanted = checked_labels(labels)
        actor = await self._live()
        await _done(actor, c.Label(actor.mailbox.number(), command_id, wanted))

    async def configure(self, *, command_id: str | None = None, **changes: Any) -> None:
        """Change the configuration: ``configure(model=..., system=..., tools=...)``.

        Takes effect between turns: now, or when the open turn has ended, before the next one.
        Raises InvalidConfig and changes nothing.
        """
        actor = await self._live()
        unknown = set(changes) - set(SessionConfig.__struct_fields__)
        if unknown:
            raise InvalidConfig(f"no such configuration: {', '.join(sorted(unknown))}")
        config = msgspec.structs.replace(actor.core.config, **changes)
        config = with_environment(config, self._manager.environ).checked()
        config = self._manager.with_callables(config)
        checked = {name: getattr(config, name) for name in changes}
        command = c.Configure(actor.mailbox.number(), command_id, checked)
        actor.put(command)
        await command.promise.wait()

    async def store_compact_summaries(
        self, summaries: dict[str, str], *, command_id: str | None = None
    ) -> None:
        """Give compact summaries for results that came before: ``{call id: text}``.

        They serve the next compaction; a result that is shown compacted already keeps the text
        it has. Raises UnknownToolCall, InvalidInput.
        """
        if not isinstance(summaries, dict) or not all(
            isinstance(text, str) for entry in summaries.items() for text in entry
        ):
            raise InvalidInput("summaries are texts by call id: {call id: text}")
        actor = await self._live()
        command = c.StoreSummaries(actor.mailbox.number(), command_id, dict(summaries))
        actor.put(command)
        await command.promise.wait()

    async def set_summary(
        self, text: str, *, upto: TurnId | str | int, command_id: str | None = None
    ) -> None:
        """Show *text* in place of all messages up to the end of turn *upto*, from now on.

        As a compaction: the history stays as it is, a rewind to before that turn takes it away,
        and while a reply streams it waits. It may be longer than what it stands for, but not than
        what a request may hold. Durable when it returns. Raises InvalidInput for a turn that is
        not in the history, or that a later summary has in it already, for a text that is empty or
        too long, and where thinking behind that turn must open a tool loop that was stopped.
        """
        told, turn = checked_summary(text), turn_number(upto)
        actor = await self._live()
        command = c.SetSummary(actor.mailbox.number(), command_id, text=told, turn=turn)
        actor.put(command)
        await command.promise.wait()

    async def close(self) -> Closed:
        """Interrupt what is open, release the session, and name the tools that still run."""
        return await self._actor.put_close().wait()

    # Reads: synchronous, of the newest durable state.

    @property
    def config(self) -> SessionConfig:
        """The configuration in force; a change that waits for the turn's end is not in it."""
        return self._actor.core.config

    @property
    def labels(self) -> dict[str, str]:
        """The session's labels: a copy."""
        return dict(self._actor.state.labels)

    @property
    def tenant(self) -> str | None:
        """Who the session belongs to, as it was created; its spending counts to their budget."""
        return tenant_of(self._actor.state.labels)

    def summary(self, *, max_chars: int = DIGEST_CHARS) -> str:
        """What this conversation was about, in at most *max_chars* characters, 200 at least.

        If a summary stands for all of the history in the context, that one. Else what was asked,
        the tools and files that were used, and the last answer, picked by rules without a model:
        of what came after the summary, with that told first, or of all where there is none. ""
        for an empty history. Made to seed another session with.
        """
        state = self._actor.state
        seed = state.seed.text if state.seed else ""
        return digest_of(state.history, state.view.prefix_summary, seed, max_chars=max_chars)

    def conversation(self, *, include_open: bool = False) -> tuple[Message, ...]:
        """The committed history, oldest first: a reference, valid for ever, in O(1).

        With *include_open* also the open turn's staged messages, which may yet be dropped.
        """
        state = self._actor.state
        return state.context_messages() if include_open else state.history

    def context(self) -> Request:
        """What the model would be sent now, without a new user message."""
        core = self._actor.core
        return core.builder.project(core.state.context_messages(), core.state.view)

    def status(self) -> SessionStatus:
        """Where the session stands. Costs a projection of the context."""
        actor, core, state = self._actor, self._actor.core, self._actor.state
        run, size = actor.turns.current, core.size_now()
        phase: SessionPhase = "running" if run is not None else "idle"
        if actor.status != "live":
            phase = "closed" if actor.status == "closing" else actor.status
        return SessionStatus(
            session=self.id,
            phase=phase,
            turn=TurnId("u", run.number) if run else None,
            turn_phase=run.turn.phase.value if run else None,
            step=run.turn.step if run else 0,
            queued=actor.turns.waiting,
            head=TurnId("a", state.head_turn) if state.head_turn else None,
            seq=state.head,
            epoch=core.journal.lease.epoch,
            generation=state.generation,
            messages=len(state.history),
            turns=count_turns(state.history),
            context_tokens=size.tokens,
            context_method=size.method,
            counted_tokens=core.context_tokens,
            counted_at=core.counted_at,
            budget_tokens=core.budget_tokens,
            compacted_before=state.view.compacted_before,
            jobs=actor.turns.runner.compactor.jobs + actor.changes.jobs,
            late_reports=core.late_reports,
            still_running=tuple(sorted(core.still_running)),
            open_calls=tuple(call.id for call in actor.open_calls),
        )

    async def count(self) -> Count:
        """How large what the model would be sent now is, counted as well as can be: by the
        provider where it counts itself, else from the last reported usage on, else by tiktoken
        where its vocabulary is there, else by characters; ``method`` says which. Counts are
        remembered by content. Raises nothing but cancellation; waits a few seconds at most.
        """
        return await self._actor.core.count()

    def open_calls(self) -> tuple[ToolUse, ...]:
        """The calls of the running turn that wait for their results, in their order, as events
        tell them. After ``open`` these are what a resumed turn waits for: answer the caller's
        with ``submit_tool_results``, which takes them under these ids."""
        return self._actor.open_calls

    def usage(self) -> SessionUsage:
        """What ended turns spent, interrupted ones included, and the open one so far: tokens, and
        what they cost by the manager's prices. Costs a walk over all requests."""
        actor = self._actor
        return usage_of(actor.state, actor.core.services.prices, actor.turns.current)

    async def read_conversation(self, *, include_open: bool = False) -> tuple[Message, ...]:
        """As ``conversation``; the form that remote sessions have too."""
        return self.conversation(include_open=include_open)

    async def read_context(self) -> Request:
        """As ``context``."""
        return self.context()

    async def read_status(self) -> SessionStatus:
        """As ``status``."""
        return self.status()

    async def read_open_calls(self) -> tuple[ToolUse, ...]:
        """As ``open_calls``."""
        return self.open_calls()

    async def read_usage(self) -> SessionUsage:
        """As ``usage``."""
        return self.usage()

    async def read_summary(self, *, max_chars: int = DIGEST_CHARS) -> str:
        """As ``summary``."""
        return self.summary(max_chars=max_chars)

    # Events.

    def subscribe(self, *, after: int | None = None) -> Subscription:
        """Events of this session: durable ones after the cursor *after*, from now on without
        one, and previews. Who joins in mid-stream first gets the step's text so far.

        The subscription lives in the manager, not in this handle. Close it when done. Raises
        InvalidInput for a cursor that the log has not reached.
        """
        return self._subscribe(after, None)

    def _subscribe(self, after: int | None, turn: int | None) -> Subscription:
        actor = self._actor
        head = actor.state.head
        if after is not None and not (isinstance(after, int) and 0 <= after <= head):
            raise InvalidInput(f"cursor {after!r} is not in this log; its head is {head}")
        subscription = Subscription(
            actor.core.hub,
            self.id,
            after=head if after is None else after,
            head=head,
            turn=turn,
            replay=partial(read_page, self._manager.store, self.id),  # not ours: it would pin us
            open_calls=partial(self._manager.open_calls, self.id),
        )
        if actor.status in ("closed", "moved"):
            subscription.end()  # what is in the log comes, and nothing after it
        run = actor.turns.current
        if run is not None and run.builder is not None:
            for preview in previews_so_far(run.builder, tag_of(run.turn)):
                subscription.offer_preview(preview)
        return subscription

    def events_of(self, number: int) -> Subscription:
        """The events of turn *number*, from its acceptance to its terminal one."""
        return self._subscribe(self._actor.state.accepted_at.get(number, 1) - 1, number)

    def turn(self, turn: TurnId | str | int) -> Turn:
        """The handle of a turn that was accepted before, open or ended.

        Raises InvalidInput for one that never was; for one that was open when this owner lost the
        session, what lost it: SessionMoved, SessionClosed or StoreError.
        """
        number, state = turn_number(turn), self._actor.state
        run = self._actor.turns.runs.get(number)
        if run is None and number not in state.ended:
            if number in state.open:
                self._actor.check_open()
            raise InvalidInput(f"session {self.id!r} has no turn {number}")
        return Turn(self, number, run.outcome if run else None)

    async def outcome_from_log(self, number: int) -> TurnOutcome:
        """The outcome of a turn that has ended, read from the log.

        Raises SessionClosed if its end is not in the log yet, StoreError, SessionNotFound.
        """
        state = self._actor.state
        return await read_outcome(
            self._manager.store,
            self.id,
            number,
            after=state.accepted_at[number] - 1,
            head=state.head,
            born_in=state.born_in(number),
        )


async def _done(actor: Actor, command: c.Clear | c.Rewind | c.Forget | c.Label) -> None:
    actor.put(command)
    await command.promise.wait()


def live_state(session: LLMSession) -> SessionState:
    """The fold in memory behind *session*, for tests that hold it against its log. Read only."""
    return session._actor.state
