"""LLMSession: the handle that users hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from llmsession.compaction.planning.prefix_summaries import digest_of
from llmsession.compaction.summaries.digest import DIGEST_CHARS
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig, InvalidInput, SessionBusy
from llmsession.providers.counting.counts import Count
from llmsession.turns import records as r
from llmsession.turns.blocks import Content
from llmsession.turns.ids import TurnId, turn_number
from llmsession.turns.messages import Message, count_turns
from llmsession.turns.previews import ToolUse
from llmsession.turns.request import Request

from ..actor.actor import Actor
from ..actor.tool_runner import prepare_answers, tool_around
from ..core.account import usage_of
from ..core.subscriptions import Subscription
from ..log.reader import read_outcome, read_page
from ..log.state import SessionState
from ..log.titles import title_of
from ..registry.forking import fork_of
from ..registry.runtime import Runtime
from ..tasks.promise import Promise
from ..values import commands as c
from ..values.config import SessionConfig, ToolResult, WhenBusy
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
    checked_flag,
    checked_if_busy,
    checked_labelling,
    checked_labels,
    checked_number,
    checked_policy,
    checked_session_id,
    checked_summaries,
    checked_summary,
    checked_user_body,
    checked_when_busy,
    turn_or_moment,
    turn_or_none_before,
)
from .reference import ActorReference
from .turn import Turn

__all__ = ["LLMSession", "Turn", "live_state"]


class LLMSession:
    """One conversation. Get it from ``SessionManager.create`` or ``open``, and hold it while you
    use it: a session that no handle holds may be evicted, and is loaded again when it is used.

    Commands are numbered when they are called, before any await, and answered when they are
    durable. Cancelling a call that waits for its answer does not take the command back. Reads
    (``conversation``, ``context``, ``status``, ``usage``) are synchronous. Remote sessions have
    their async forms only (``read_conversation``, ...).

    All commands raise SessionClosed, SessionMoved, Overloaded or StoreError where that applies.
    """

    def __init__(self, runtime: Runtime, actor: Actor) -> None:
        self.id = actor.session
        self.reference = ActorReference(runtime, actor)
        """For the other layers of this package; no part of the public interface."""

    def __repr__(self) -> str:
        return f"<LLMSession {self.id} {self._actor.status}>"

    @property
    def _actor(self) -> Actor:
        return self.reference.actor

    @property
    def _runtime(self) -> Runtime:
        return self.reference.runtime

    # Commands.

    async def send(
        self,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        command_id: str | None = None,
        expected_head: TurnId | str | int | None = None,
    ) -> Turn:
        """Send a user message. Returns its turn once the acceptance is durable.

        *content* is text, or a list of blocks (structs or plain dicts). With a turn open,
        *when_busy* decides: ``queue`` waits its turn, ``reject`` raises SessionBusy,
        ``interrupt`` ends the open turn and goes first, ``steer`` joins the open turn at its
        next step boundary and returns that turn. A repeat of *command_id* returns the same turn
        and sends nothing. *expected_head* is the last committed turn that the caller knows, 0 for
        an empty history.

        Raises InvalidMessage, SessionBusy, HeadMoved, KeyReused, Overloaded, BudgetExhausted.
        """
        body = checked_user_body(content)
        when_busy = checked_when_busy(when_busy)
        head = None if expected_head is None else turn_or_none_before(expected_head)
        actor = await self.reference.activated()
        ingress = actor.mailbox.number()
        command = c.Send(ingress, command_id, body=body, when_busy=when_busy, expected_head=head)
        actor.put(command)
        number = await command.promise.wait()
        run = actor.turns.runs.get(number)
        return self._turn(number, run.outcome if run is not None else command.outcome)

    async def submit_tool_results(
        self, results: Sequence[ToolResult], *, command_id: str | None = None
    ) -> None:
        """Give the results of open tool calls, of some or all of them. Durable when it returns.

        All *results* are accepted or none is. Raises UnknownToolCall, DuplicateToolResult,
        TurnNotOpen (the turn has ended; nothing was changed), InvalidMessage.
        """
        actor = await self.reference.activated()
        answers = await prepare_answers(results, compaction=actor.core.capping)
        await _perform(actor, c.Submit(actor.mailbox.number(), command_id, answers))

    async def interrupt(
        self,
        turn: TurnId | str | int | None = None,
        *,
        policy: r.InterruptPolicy | None = None,
        command_id: str | None = None,
    ) -> InterruptOutcome:
        """Stop *turn*. Without one: the open turn, and every send enqueued before this call.

        *policy*: ``drop_turn`` removes the whole turn, ``keep_steps`` keeps its complete steps,
        ``keep_text`` also the text of the reply that streams; None is the configured policy. It is
        answered when it is durable: within the grace period plus a store write, whatever tool or
        stream is running. A turn that is not open is no error: see the result.
        """
        policy, command_id = checked_policy(policy), c.checked_command_id(command_id)
        number = None if turn is None else turn_number(turn)
        actor = await self.reference.activated()
        return await actor.put_interrupt(number, policy, command_id).wait()

    async def compact(self) -> CompactionOutcome:
        """Compact now, whatever the threshold is. Waits until the compaction is applied or given
        up. A reply that streams is finished first."""
        actor = await self.reference.activated()
        command = c.Compact(actor.mailbox.number(), None)
        actor.put(command)
        return await command.promise.wait()

    def cancel_compaction(self) -> None:
        """Stop the background compaction, if one runs. Nothing of it is applied."""
        if self._actor.status != "live":
            return
        self._actor.report(self._actor.turns.runner.compactor.cancel)

    async def clear(
        self, *, purge: bool = False, when_busy: c.IfBusy = "reject", command_id: str | None = None
    ) -> None:
        """Start the next generation with an empty history. The log keeps the old history, unless
        *purge* erases it: then no record of this session's log holds any message until now when
        the call returns. Forks keep the records that they share.

        With a turn open, *when_busy* raises SessionBusy, or ends every open turn first. If the
        store fails between clearing and erasing, it raises StoreError, and the next ``open`` erases
        the rest.
        """
        busy, purge = checked_if_busy(when_busy), checked_flag(purge, "purge")
        actor = await self.reference.activated()
        number = actor.mailbox.number()
        await _perform(actor, c.Clear(number, command_id, purge=purge, when_busy=busy))

    async def rewind(
        self,
        to: TurnId | str | int,
        *,
        when_busy: c.IfBusy = "reject",
        command_id: str | None = None,
    ) -> None:
        """Make turn *to* the last one of the history again, 0 for none. The next generation starts.

        The log keeps the turns after it, and ``fork`` can still begin there. Receipts that their
        messages carried are sent again with the next message. *when_busy* as for ``clear``. Raises
        InvalidInput for a turn that is not in the history.
        """
        turn, busy = turn_or_none_before(to), checked_if_busy(when_busy)
        actor = await self.reference.activated()
        number = actor.mailbox.number()
        await _perform(actor, c.Rewind(number, command_id, to=turn, when_busy=busy))

    async def forget(
        self,
        before: TurnId | str | int | float | datetime,
        *,
        when_busy: c.IfBusy = "reject",
        command_id: str | None = None,
    ) -> None:
        """Erase the messages before turn *before* from the history and from the log.

        *before* may be a moment instead: a datetime with its zone, or a float in seconds since the
        epoch. Then the turns that were accepted before it are erased, but for those that stand
        after a later one in the history. Aborted and rewound turns from before are erased, too, and
        what an import had beside its messages. Turn numbers, costs, outcomes, and what later
        messages quote stay. If there is nothing to forget, nothing changes. Otherwise the next
        generation starts. The thinking so far is no longer sent: its signatures are bound to the
        erased messages. *when_busy*, what a fork keeps, and errors are as for
        ``clear(purge=True)``; it also raises InvalidInput for a turn that is not in the history.
        """
        place, busy = turn_or_moment(before), checked_if_busy(when_busy)
        actor = await self.reference.activated()
        number = actor.mailbox.number()
        await _perform(actor, c.Forget(number, command_id, before=place, when_busy=busy))

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

        The fork has the history, the view, the receipts and the configuration of that moment, and
        the tools' callables that are bound here. Without *labels* it gets those of this session.
        Its command ids and its usage begin anew. *when_busy* as for ``clear``. A repeat of
        *command_id* returns the same fork. Raises InvalidInput for a turn that was never committed
        or was forgotten, SessionExists, StoreError.
        """
        turn = None if at is None else turn_number(at)
        busy = checked_if_busy(when_busy)
        given_id = None if session_id is None else checked_session_id(session_id)
        labels = None if labels is None else checked_labels(labels)
        actor = await self.reference.activated()
        command = c.Fork(
            actor.mailbox.number(),
            command_id,
            at=turn,
            session=given_id or new_session_id(self.tenant),
            given_id=given_id,
            labels=labels,
            when_busy=busy,
        )
        actor.put(command)
        return LLMSession(self._runtime, await fork_of(self._runtime, actor, command, labels))

    async def label(
        self,
        labels: Mapping[str, str] | None = None,
        *,
        title: str | None = None,
        archived: bool | None = None,
        command_id: str | None = None,
    ) -> None:
        """Replace the session's labels with *labels*, give it a *title*, archive it or not. What is
        None stays as it is. Durable when it returns.

        Labels are at most 64, with printable names of up to 64 characters and texts of up to 256.
        A title has up to 200 characters; "" takes it away, and the session has the beginning of its
        first request again. An archived session works as before, and is only left out of ``list``.
        Both are labels, ``llmsession.title`` and ``llmsession.archived``: they can be read in an
        encrypted store, and stay when messages are forgotten. Raises InvalidInput.
        """
        labels, title, archived = checked_labelling(labels, title, archived)
        actor = await self.reference.activated()
        number = actor.mailbox.number()
        await _perform(actor, c.Label(number, command_id, labels, title, archived))

    async def configure(self, *, command_id: str | None = None, **changes: Any) -> None:
        """Change the configuration: ``configure(model=..., system=..., tools=...)``.

        Takes effect between turns: now, or when the open turn has ended, before the next one. A
        tool of this session cannot call it: the change would wait for the turn that waits for the
        tool. There it raises SessionBusy at once. Raises InvalidConfig and changes nothing.
        """
        tool = tool_around(self.id)
        if tool is not None:
            raise SessionBusy(
                f"tool {tool!r} cannot configure its own session {self.id!r}: the change would wait"
                " for the turn that waits for the tool; configure it when the turn has ended"
            )
        actor = await self.reference.activated()
        unknown = set(changes) - set(SessionConfig.__struct_fields__)
        if unknown:
            raise InvalidConfig(f"no such configuration: {', '.join(sorted(unknown))}")
        config = self._runtime.complete_config(actor.core.config, changes)
        checked = {name: getattr(config, name) for name in changes}
        await _perform(actor, c.Configure(actor.mailbox.number(), command_id, checked))

    async def store_compact_summaries(
        self, summaries: dict[str, str], *, command_id: str | None = None
    ) -> None:
        """Give compact summaries of earlier tool results: ``{call id: text}``.

        The next compaction uses them; ``compact_summaries`` gives them back. A result that is
        already shown in compact form keeps its text. Raises UnknownToolCall, InvalidInput.
        """
        cleaned = checked_summaries(summaries)
        actor = await self.reference.activated()
        await _perform(actor, c.StoreSummaries(actor.mailbox.number(), command_id, cleaned))

    async def set_summary(
        self, text: str, *, upto: TurnId | str | int, command_id: str | None = None
    ) -> None:
        """Show *text* in place of all messages up to the end of turn *upto*, from now on.

        It is applied like a compaction: the history stays as it is, a rewind to before that turn
        removes the summary, and it waits while a reply streams. It may be longer than the messages
        that it replaces, but not longer than a request may be. Durable when it returns. Raises
        InvalidInput for a turn that is not in the history or that a later summary covers already,
        for a text that is empty or too long, and where thinking after that turn must open a tool
        loop that was stopped.
        """
        text, turn = checked_summary(text), turn_number(upto)
        actor = await self.reference.activated()
        await _perform(
            actor, c.SetSummary(actor.mailbox.number(), command_id, text=text, turn=turn)
        )

    async def close(self) -> Closed:
        """Interrupt open turns, release the session, and name the tools that still run."""
        return await self._actor.put_close().wait()

    # Reads: synchronous, of the newest durable state.

    @property
    def config(self) -> SessionConfig:
        """The configuration in force, without a change that waits for the turn's end."""
        return self._actor.core.config

    @property
    def labels(self) -> dict[str, str]:
        """The session's labels: a copy."""
        return dict(self._actor.state.labels)

    @property
    def title(self) -> str:
        """What a list shows of the session: the title that it was given, that of its import, or the
        beginning of its first request; "" if it has none of them."""
        return title_of(self._actor.state)

    @property
    def tenant(self) -> str | None:
        """The tenant that the session was created for; its spending counts to that one's budget."""
        return tenant_of(self._actor.state.labels)

    def summary(self, *, max_chars: int = DIGEST_CHARS) -> str:
        """What this conversation was about, in at most *max_chars* characters, 200 at least: the
        text to seed another session with. "" for an empty history.

        If a summary covers all of the history in the context, it is that one. Otherwise rules pick
        the questions, the tools and files that were used, and the last answer, without a model:
        from the messages after the summary, which comes first, or from all if there is none.
        """
        max_chars = checked_number(max_chars, "max_chars")
        state = self._actor.state
        seed = state.seed.text if state.seed else ""
        return digest_of(state.history, state.view.prefix_summary, seed, max_chars=max_chars)

    def conversation(self, *, include_open: bool = False) -> tuple[Message, ...]:
        """The committed history, oldest first: an immutable tuple, in O(1).

        With *include_open* also the open turn's messages so far, which may still be dropped.
        """
        state, include_open = self._actor.state, checked_flag(include_open, "include_open")
        return state.context_messages() if include_open else state.history

    def context(self) -> Request:
        """The request that the model would be sent now, without a new user message. What the
        policy would inject into it is there already."""
        core = self._actor.core
        return core.builder.project(core.state.context_messages(), self._view_to_send())

    def _view_to_send(self) -> View:
        return self._actor.turns.runner.compactor.view_to_send()

    def status(self) -> SessionStatus:
        """The session's status. Costs a projection of the context."""
        actor, core, state = self._actor, self._actor.core, self._actor.state
        run, size = actor.turns.current, core.size_now(self._view_to_send())
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
            next_turn=TurnId("u", state.counter.last + 1),
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
            jobs=actor.turns.runner.compactor.jobs + actor.history_commands.jobs,
            late_reports=core.late_reports,
            still_running=tuple(sorted(core.still_running)),
            open_calls=tuple(call.id for call in actor.open_calls),
            forgotten=state.forgotten,
        )

    def will_compact(self) -> bool:
        """Would the next request be sent behind a compaction, if it were built now? Begins nothing.
        It costs a projection of the context, as ``status``, and where the policy is due a plan.

        True where the policy keeps a limit of its own and has a plan that frees something, where a
        plan is ready and its moment has come, or where the context is larger than the budget. A
        policy that waits for the provider's cache plans beside a reply, so for it a context above
        the threshold alone is no reason. The next message counts as a message, and its text is not
        counted: it may be what exceeds a limit. What a policy injects is no compaction.
        """
        actor = self._actor
        return actor.turns.runner.compactor.will_apply(actor.core.size_now())

    def compact_summaries(self) -> dict[str, str]:
        """The compact summaries of tool results, by call id: those that ``store_compact_summaries``
        and ``submit_tool_results`` gave, that tools returned, and that a model wrote. A copy. Those
        of calls that were forgotten, cleared or rewound are gone."""
        return dict(self._actor.state.summaries)

    async def count(self) -> Count:
        """The size of the request that the model would be sent now, by the best method there is:
        the provider's count, else the last reported usage plus an estimate, else tiktoken where
        its vocabulary is installed, else characters. ``method`` says which. Counts are cached by
        content. Raises nothing but cancellation, and waits a few seconds at most.
        """
        return await self._actor.core.count(self._view_to_send())

    def open_calls(self) -> tuple[ToolUse, ...]:
        """The calls of the running turn that wait for their results, in order, as in its events.
        After ``open`` a resumed turn waits for these: answer the caller's ones under these ids with
        ``submit_tool_results``."""
        return self._actor.open_calls

    def usage(self) -> SessionUsage:
        """The tokens that ended turns spent, interrupted ones included, and the open one so far,
        and what they cost by the manager's prices. Costs a walk over all requests."""
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

    async def read_will_compact(self) -> bool:
        """As ``will_compact``."""
        return self.will_compact()

    async def read_compact_summaries(self) -> dict[str, str]:
        """As ``compact_summaries``."""
        return self.compact_summaries()

    async def read_usage(self) -> SessionUsage:
        """As ``usage``."""
        return self.usage()

    async def read_summary(self, *, max_chars: int = DIGEST_CHARS) -> str:
        """As ``summary``."""
        return self.summary(max_chars=max_chars)

    # Events.

    def subscribe(self, *, after: int | None = None) -> Subscription:
        """Events of this session: previews, and the durable events after the cursor *after*, or
        from now on without one. A subscriber that begins in mid-stream first gets the step's text
        so far.

        The subscription belongs to the manager, not to this handle. Close it when done. Raises
        InvalidInput for a cursor that the log has not reached.
        """
        return self._subscribe(after, None)

    def _subscribe(self, after: int | None, turn: int | None) -> Subscription:
        actor = self._actor
        head = actor.state.head
        if after is not None:
            after = checked_number(after, "the cursor")
            if after > head:
                raise InvalidInput(f"cursor {after} is not in this log; its head is {head}")
        subscription = Subscription(
            actor.core.subscriptions,
            self.id,
            after=head if after is None else after,
            head=head,
            turn=turn,
            # No method of this handle: a subscription must not keep the session live.
            replay=partial(read_page, self._runtime.store, self.id),
            open_calls=partial(self._runtime.open_calls, self.id),
        )
        if actor.status in ("closed", "moved"):
            subscription.end()  # the events in the log come, and none after them
        for preview in actor.turns.runner.previews_so_far():
            subscription.offer_preview(preview)
        return subscription

    def events_of(self, number: int) -> Subscription:
        """The events of turn *number*, from its acceptance to its terminal one."""
        return self._subscribe(self._actor.state.accepted_at.get(number, 1) - 1, number)

    def turn(self, turn: TurnId | str | int) -> Turn:
        """The handle of a turn that was accepted before, open or ended.

        Raises InvalidInput for a turn that was never accepted. For one that was open when this
        owner lost the session, it raises why: SessionMoved, SessionClosed or StoreError.
        """
        number, state = turn_number(turn), self._actor.state
        run = self._actor.turns.runs.get(number)
        if run is None and number not in state.ended:
            if number in state.open:
                self._actor.check_open()
            raise InvalidInput(f"session {self.id!r} has no turn {number}")
        return self._turn(number, run.outcome if run else None)

    def _turn(self, number: int, promise: Promise[TurnOutcome] | None) -> Turn:
        outcome = self._outcome_from_log if promise is None else partial(self._outcome, promise)
        return Turn(self.id, number, events=self.events_of, outcome=outcome)

    async def _outcome(self, promise: Promise[TurnOutcome], _: int) -> TurnOutcome:
        # A method of the handle, and not the promise's own: a turn keeps its session live.
        return await promise.wait()

    async def _outcome_from_log(self, number: int) -> TurnOutcome:
        """The outcome of a turn that has ended, read from the log.

        Raises SessionClosed if its end is not in the log yet, StoreError, SessionNotFound.
        """
        state = self._actor.state
        return await read_outcome(
            self._runtime.store,
            self.id,
            number,
            after=state.accepted_at[number] - 1,
            head=state.head,
            born_in=state.born_in(number),
        )


async def _perform(
    actor: Actor,
    command: c.Clear | c.Rewind | c.Forget | c.Label | c.Configure | c.Submit
    | c.StoreSummaries | c.SetSummary,
) -> None:  # fmt: skip
    """Enqueue *command*, and wait until it is durable."""
    actor.put(command)
    await command.promise.wait()


def live_state(session: LLMSession) -> SessionState:
    """The state of *session* in memory, for tests that compare it with its log. Read only."""
    return session.reference.actor.state
