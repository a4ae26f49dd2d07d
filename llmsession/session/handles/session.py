"""LLMSession: the handle through which users work with a session."""

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
from llmsession.turns.messages import Message
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
from ..values.config import SessionConfig, ToolResult, WhenBusy, copy_of
from ..values.labels import tenant_of
from ..values.outcome import (
    USAGE_TURNS,
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
    """One conversation with a language model.

    Get it from ``SessionManager.create`` or ``open``. Hold it while you use it: a session without a
    handle may be evicted from memory, and is loaded again when it is next used.

    Commands (``send``, ``interrupt``, ...) are async. They take effect in the order in which they
    are called, and they return when their effect is durable. Cancelling a call that waits for its
    answer does not undo the command. Every command may raise SessionClosed, SessionMoved,
    Overloaded and StoreError.

    Reads (``conversation``, ``context``, ``status``, ``usage``, ...) are synchronous and return the
    newest durable state. Remote sessions have only their async forms (``read_conversation``, ...).
    Embedded sessions have both.
    """

    def __init__(self, runtime: Runtime, actor: Actor) -> None:
        self.id = actor.session
        """The session's id in its store."""
        self.reference = ActorReference(runtime, actor)
        """For the other layers of this package; not part of the public interface."""

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
        """Send a user message. Returns its turn as soon as the acceptance is durable.

        - *content* is a text, or a list of blocks (structs or plain dicts).
        - *when_busy* says what happens if a turn is open. ``queue`` (default) starts this turn
          after it. ``reject`` raises SessionBusy. ``interrupt`` ends the open turn and puts this
          one first in the queue. ``steer`` adds the message to the open turn at its next step
          boundary, and returns that turn.
        - *command_id* makes the call repeatable: a repeat returns the same turn and sends nothing.
        - *expected_head* is the last committed turn that the caller knows of, 0 for an empty
          history. HeadMoved is raised if another turn was committed since, or if other sends are
          open.

        Raises InvalidMessage, SessionBusy, HeadMoved, KeyReused (the *command_id* was used for
        another command), Overloaded, BudgetExhausted.
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
        """Submit the results of some or all open tool calls. They are durable when this returns.

        Either all of *results* are accepted or none is. Raises UnknownToolCall,
        DuplicateToolResult, TurnNotOpen (the turn has ended; nothing was changed), InvalidMessage.
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
        """Stop *turn*. Without *turn*: stop the open turn and every send that was enqueued before
        this call.

        *policy* says what is kept: ``drop_turn`` removes the whole turn, ``keep_steps`` keeps its
        complete steps, and ``keep_text`` also keeps the text of the reply that is streaming. None
        uses the session's ``interrupt_policy``.

        Returns when the interrupt is durable. That takes at most the grace period (``grace_s``)
        plus one write to the store, whatever tool or stream is running. Interrupting a turn that is
        not open is not an error: the result says so.
        """
        policy, command_id = checked_policy(policy), c.checked_command_id(command_id)
        number = None if turn is None else turn_number(turn)
        actor = await self.reference.activated()
        return await actor.put_interrupt(number, policy, command_id).wait()

    async def compact(self) -> CompactionOutcome:
        """Compact the context now, even if it is below the threshold.

        Waits until the compaction is applied or given up. A reply that is streaming is finished
        first.
        """
        actor = await self.reference.activated()
        command = c.Compact(actor.mailbox.number(), None)
        actor.put(command)
        return await command.promise.wait()

    def cancel_compaction(self) -> None:
        """Stop the background compaction if one is running. None of its work is applied."""
        if self._actor.status != "live":
            return
        self._actor.report(self._actor.turns.runner.compactor.cancel)

    async def clear(
        self, *, purge: bool = False, when_busy: c.IfBusy = "reject", command_id: str | None = None
    ) -> None:
        """Empty the history. The next generation starts.

        The log keeps the old history. With *purge* it is erased: when the call returns, the
        session's log holds no message from before it. Forks keep the records that they share with
        the session.

        If a turn is open, *when_busy* ``reject`` raises SessionBusy, and ``interrupt`` ends every
        open turn first. If the store fails between clearing and erasing, StoreError is raised, and
        the next ``open`` erases the rest.
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
        """Drop all turns after turn *to* from the history; 0 drops all. The next generation starts.

        The log keeps the dropped turns, so ``fork`` can still begin at one of them. A receipt that
        a dropped message carried is sent again with the next message. *when_busy* is that of
        ``clear``. Raises InvalidInput if turn *to* is not in the history.
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
        """Erase the messages before turn *before*, from the history and from the log.

        *before* may also be a moment: a datetime with a time zone, or a float in seconds since the
        epoch. Then the turns that were accepted before that moment are erased, except those that
        stand after a later one in the history. Aborted and rewound turns from before that point are
        erased, too, and so is what an import stored beside its messages. Turn numbers, costs,
        outcomes, and quotations in later messages stay.

        If there is nothing to forget, nothing changes. Otherwise the next generation starts.
        Thinking from before the call is no longer sent, because its signatures are bound to the
        erased messages.

        *when_busy*, the records that a fork keeps, and the errors are those of
        ``clear(purge=True)``. Also raises InvalidInput if the turn is not in the history.
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
        """Create a session that continues from here, or from the commit of turn *at*.

        Turn *at* may have been rewound since. No message is copied, and later changes of one
        session do not affect the other. The fork starts with the history, the view, the receipts
        and the configuration of that point, and with the tool functions that are bound here.
        Without *labels* it gets the labels of this session. Its command ids and its usage start
        from nothing. A repeat of *command_id* returns the same fork. *when_busy* is that of
        ``clear``.

        Raises InvalidInput for a turn that was never committed or was forgotten, SessionExists,
        StoreError.
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
            session=given_id or self._runtime.new_session_id(self.tenant),
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
        """Replace the session's labels, set its title, or archive it. Durable when it returns.

        Arguments that are None change nothing.

        - *labels*: at most 64. Names are printable and have up to 64 characters, values up to 256.
        - *title*: up to 200 characters. "" removes it; then the title is the beginning of the first
          request again.
        - *archived*: an archived session works as before, and is only left out of ``list``.

        Title and archived flag are stored as the labels ``llmsession.title`` and
        ``llmsession.archived``. Like all labels, they are readable even in an encrypted store, and
        they stay when messages are forgotten. Raises InvalidInput.
        """
        labels, title, archived = checked_labelling(labels, title, archived)
        actor = await self.reference.activated()
        number = actor.mailbox.number()
        await _perform(actor, c.Label(number, command_id, labels, title, archived))

    async def configure(self, *, command_id: str | None = None, **changes: Any) -> None:
        """Change fields of the configuration: ``configure(model=..., system=..., tools=...)``.

        The change takes effect between turns: now, or when the open turn has ended and before the
        next one starts. A tool cannot configure its own session: the change would wait for the
        turn, and the turn waits for the tool. In that case SessionBusy is raised at once. Raises
        InvalidConfig, and changes nothing, for an unknown field or an invalid value.
        """
        tool = tool_around(self.id)
        if tool is not None:
            raise SessionBusy(
                f"tool {tool!r} cannot configure its own session {self.id!r}: the change would wait"
                " for the turn, which waits for the tool; configure it when the turn has ended"
            )
        actor = await self.reference.activated()
        unknown = set(changes) - set(SessionConfig.__struct_fields__)
        if unknown:
            names = ", ".join(sorted(unknown))
            raise InvalidConfig(f"unknown configuration fields: {names}; see SessionConfig")
        config = self._runtime.complete_config(actor.core.config, changes)
        checked = {name: getattr(config, name) for name in changes}
        await _perform(actor, c.Configure(actor.mailbox.number(), command_id, checked))

    async def store_compact_summaries(
        self, summaries: dict[str, str], *, command_id: str | None = None
    ) -> None:
        """Store compact summaries of earlier tool results: ``{call id: text}``.

        The next compaction uses them, and ``compact_summaries`` returns them. A result that is
        already shown in compact form keeps the text it is shown with. Raises UnknownToolCall,
        InvalidInput.
        """
        cleaned = checked_summaries(summaries)
        actor = await self.reference.activated()
        await _perform(actor, c.StoreSummaries(actor.mailbox.number(), command_id, cleaned))

    async def set_summary(
        self, text: str, *, upto: TurnId | str | int, command_id: str | None = None
    ) -> None:
        """Show *text* to the model in place of all messages up to the end of turn *upto*.

        It is applied like a compaction: it waits while a reply is streaming, the history is not
        changed, and a rewind to before the end of that turn removes the summary. The text may be
        longer than the messages that it replaces, but not longer than a request may be. Durable
        when it returns.

        Raises InvalidInput if the turn is not in the history or is already covered by a later
        summary, if the text is empty or too long, if thinking after that turn must open a tool loop
        that was stopped, and if turns are forgotten while it waits.
        """
        text, turn = checked_summary(text), turn_number(upto)
        actor = await self.reference.activated()
        await _perform(
            actor, c.SetSummary(actor.mailbox.number(), command_id, text=text, turn=turn)
        )

    async def close(self) -> Closed:
        """Interrupt open turns, end the actor, and release the session's lease.

        Returns the names of tools that still run. If the store fails meanwhile, what it could not
        write is left to the next owner, as after a crash.
        """
        return await self._actor.put_close().wait()

    # Reads: synchronous, of the newest durable state.

    @property
    def config(self) -> SessionConfig:
        """The configuration in force, as a copy. It does not include a change that waits for the
        open turn's end.
        """
        return copy_of(self._actor.core.config)

    @property
    def labels(self) -> dict[str, str]:
        """The session's labels, as a copy."""
        return dict(self._actor.state.labels)

    @property
    def title(self) -> str:
        """The title that a list shows.

        It is the title that was set with ``label``, or that of the imported conversation, or the
        beginning of the first request. It is "" if there is none of these.
        """
        return title_of(self._actor.state)

    @property
    def tenant(self) -> str | None:
        """The tenant that owns the session and whose budget its spending counts against; None if
        none does.
        """
        return tenant_of(self._actor.state.labels)

    def summary(self, *, max_chars: int = DIGEST_CHARS) -> str:
        """A text of at most *max_chars* characters (200 or more) that says what the conversation
        was about.

        Use it as the ``seed`` of another session. It is "" for an empty history. If a summary
        covers the whole history in the context, that summary is returned. Otherwise a fixed set of
        rules, without a model, picks the questions, the tools and files that were used, and the
        last answer. If a summary covers the beginning of the history, it comes first and the rules
        are applied to the messages after it.
        """
        max_chars = checked_number(max_chars, "max_chars")
        state = self._actor.state
        seed = state.seed.text if state.seed else ""
        return digest_of(state.messages, state.view.prefix_summary, seed, max_chars=max_chars)

    def conversation(self, *, include_open: bool = False) -> tuple[Message, ...]:
        """The committed history, oldest message first. An immutable tuple, in O(1).

        The first call after an opening or a fork decodes what was said before: about 20 ms for
        1,000 turns, in which the event loop waits.

        With *include_open*, the messages of the open turn so far follow; that turn may still be
        dropped.
        """
        state, include_open = self._actor.state, checked_flag(include_open, "include_open")
        return tuple(state.context_messages()) if include_open else state.history

    def context(self) -> Request:
        """The request that would be sent to the model now, without a new user message.

        It includes what the compaction policy injects. Costs one projection of the context.
        """
        core = self._actor.core
        return core.builder.project(core.state.context_messages(), self._view_to_send())

    def _view_to_send(self) -> View:
        return self._actor.turns.runner.compactor.view_to_send()

    def status(self) -> SessionStatus:
        """The session's status. Costs one projection of the context if a record has come since the
        last one.
        """
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
            messages=state.message_count,
            turns=state.turn_count,
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
        """Would a compaction be applied before the next request, if that request were built now?

        Nothing is started. It costs a projection of the context, as ``status`` does, and a plan if
        the policy's threshold is reached. Returns True in these cases:

        - The policy keeps a limit of its own, and its plan frees something.
        - A plan is ready, and the moment to apply it has come.
        - The context is larger than the budget.

        A policy that waits for the provider's cache makes its plan while a reply is streaming. For
        such a policy a context above the threshold is not enough. The next user message counts as
        one message, but its text is not known and not counted, so it may still exceed a limit.
        Items that a policy injects do not count as a compaction.
        """
        actor = self._actor
        return actor.turns.runner.compactor.will_apply(actor.core.size_now())

    def compact_summaries(self) -> dict[str, str]:
        """The compact summaries of tool results, by call id, as a copy.

        They come from ``store_compact_summaries``, ``submit_tool_results``, tools that returned
        one, and a model. Summaries of calls that were forgotten, cleared or rewound are not
        included.
        """
        return dict(self._actor.state.summaries)

    async def count(self) -> Count:
        """Count the tokens of the request that would be sent to the model now.

        Uses the best method that is available: the provider's count, else the last reported usage
        plus an estimate, else tiktoken if its vocabulary is installed, else characters.
        ``Count.method`` says which one was used. Counts are cached by content. Takes a few seconds
        at most, is cancellable, and raises no other error.
        """
        return await self._actor.core.count(self._view_to_send())

    def open_calls(self) -> tuple[ToolUse, ...]:
        """The tool calls of the running turn that wait for their results, in order, as in its
        events.

        A turn that was resumed by ``open`` waits for these. Answer the caller's ones under these
        ids with ``submit_tool_results``.
        """
        return self._actor.open_calls

    def usage(self, *, turns: int = USAGE_TURNS) -> SessionUsage:
        """The tokens that ended turns and the open turn have spent so far, and their cost.

        Interrupted and failed turns count. Costs are computed from the manager's prices. The totals
        are those of all turns; the newest *turns* turns are also listed one by one, which is what
        the call costs. The first call after the session was loaded visits all requests. Raises
        InvalidInput.
        """
        core, turns = self._actor.core, checked_number(turns, "turns")
        return usage_of(core.state, core.account.by_model, self._actor.turns.current, turns=turns)

    async def read_conversation(self, *, include_open: bool = False) -> tuple[Message, ...]:
        """The same as ``conversation``, in the form that remote sessions have, too."""
        return self.conversation(include_open=include_open)

    async def read_context(self) -> Request:
        """The same as ``context``."""
        return self.context()

    async def read_status(self) -> SessionStatus:
        """The same as ``status``."""
        return self.status()

    async def read_open_calls(self) -> tuple[ToolUse, ...]:
        """The same as ``open_calls``."""
        return self.open_calls()

    async def read_will_compact(self) -> bool:
        """The same as ``will_compact``."""
        return self.will_compact()

    async def read_compact_summaries(self) -> dict[str, str]:
        """The same as ``compact_summaries``."""
        return self.compact_summaries()

    async def read_usage(self, *, turns: int = USAGE_TURNS) -> SessionUsage:
        """The same as ``usage``."""
        return self.usage(turns=turns)

    async def read_summary(self, *, max_chars: int = DIGEST_CHARS) -> str:
        """The same as ``summary``."""
        return self.summary(max_chars=max_chars)

    # Events.

    def subscribe(self, *, after: int | None = None) -> Subscription:
        """Subscribe to the session's events: previews and durable events.

        With *after*, a cursor, the durable events after it come first. Without it the subscription
        begins now. A subscriber that begins in the middle of a reply first gets that step's text so
        far.

        The subscription belongs to the manager and does not keep this session in memory. Close it
        when you are done. Raises InvalidInput for a cursor that the log has not reached.
        """
        return self._subscribe(after, None)

    def _subscribe(self, after: int | None, turn: int | None) -> Subscription:
        actor = self._actor
        head = actor.state.head
        if after is not None:
            after = checked_number(after, "the cursor")
            if after > head:
                raise InvalidInput(
                    f"cursor {after} is not in the log of session {self.id!r}; its head is {head}"
                )
        subscription = Subscription(
            actor.core.subscriptions,
            self.id,
            after=head if after is None else after,
            head=head,
            turn=turn,
            # Not methods of this handle: a subscription must not keep the session in memory.
            replay=partial(read_page, self._runtime.store, self.id),
            open_calls=partial(self._runtime.open_calls, self.id),
        )
        if actor.status in ("closed", "moved"):
            # The events in the log are still read; no new ones will come.
            subscription.end(moved=actor.status == "moved")
        for preview in actor.turns.runner.previews_so_far():
            subscription.offer_preview(preview)
        return subscription

    def events_of(self, number: int) -> Subscription:
        """The events of turn *number*, from its acceptance to its terminal event.

        Raises InvalidInput for a turn that was never accepted.
        """
        number, state = turn_number(number), self._actor.state
        is_known = number in state.ended or number in state.open
        if not is_known and number not in self._actor.turns.runs:
            raise self._no_turn(number)
        return self._subscribe(state.accepted_at.get(number, 1) - 1, number)

    def turn(self, turn: TurnId | str | int) -> Turn:
        """The handle of a turn that was accepted earlier, whether it is open or has ended.

        Raises InvalidInput for a turn that was never accepted. If the turn was open when this
        process lost the session, raises the reason: SessionMoved, SessionClosed or StoreError.
        """
        number, state = turn_number(turn), self._actor.state
        run = self._actor.turns.runs.get(number)
        if run is None and number not in state.ended:
            if number in state.open:
                self._actor.check_open()
            raise self._no_turn(number)
        return self._turn(number, run.outcome if run else None)

    def _no_turn(self, number: int) -> InvalidInput:
        return InvalidInput(f"session {self.id!r} has no turn {number}")

    def _turn(self, number: int, promise: Promise[TurnOutcome] | None) -> Turn:
        outcome = self._outcome_from_log if promise is None else partial(self._outcome, promise)
        return Turn(self.id, number, events=self.events_of, outcome=outcome)

    async def _outcome(self, promise: Promise[TurnOutcome], _: int) -> TurnOutcome:
        # A method of the handle and not the promise's own: it refers to the handle, so that a turn
        # keeps its session in memory.
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
    """Enqueue *command*, and wait until its effect is durable."""
    actor.put(command)
    await command.promise.wait()


def live_state(session: LLMSession) -> SessionState:
    """The in-memory state of *session*, for tests that compare it with the log. Read it only."""
    return session.reference.actor.state
