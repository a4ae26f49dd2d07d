"""Runs one session's turns: feeds events to the turn machine and performs the effects it returns.

This file makes no decision about a turn: ``turns.machine`` does. And nothing here waits: whatever
takes time is a work of the manager, and its report comes back through the mailbox.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import msgspec

from llmsession.errors import ProviderError, contained_in_work, error_text
from llmsession.providers.protocol import name_for
from llmsession.providers.reading import ClosedLater
from llmsession.turns import events as e
from llmsession.turns import records as r
from llmsession.turns.blocks import clean_text, join_blocks
from llmsession.turns.event_choice import (
    event_for_interrupt,
    event_for_limit,
    event_for_reply,
    event_for_step,
    event_for_stopped,
    event_for_stream_failure,
)
from llmsession.turns.machine import ENDED, Phase, is_late, step, tag_of
from llmsession.turns.previews import Preview, StepRestarted
from llmsession.turns.reply import (
    Reply,
    ReplyBuilder,
    can_go_on,
    committed_blocks,
    may_run_server_tools,
    open_server_calls,
    rename_calls,
    without_stray_results,
)
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stop import Follow, stop_rule
from llmsession.turns.usage import cleared_tokens

from ..compacting.compactor import INLINE_MESSAGES, Compactor
from ..core.core import Core, Report
from ..core.reply_reader import checked_failure, previews_so_far, read_reply
from ..core.turn_run import CallTrack, Run
from ..tasks.works import Work
from .recovery import resume_event
from .request_build import RequestBuilds
from .tool_calls import Toolbox
from .turn_works import RunWorks

__all__ = ["TurnRunner"]

_SETTLE: dict[str, r.SettleReason] = {
    "cancelled": "cancelled",
    "error": "error",
    "max_steps": "limit",
    "max_seconds": "limit",
    "max_turn_tokens": "limit",
    "budget": "limit",
}


class TurnRunner:
    """The runner of one session. ``ended`` is called with each run whose turn has ended."""

    def __init__(self, core: Core, ended: Callable[[Run], None]) -> None:
        self._core = core
        self._ended = ended
        self._events: list[tuple[Run, e.Event]] = []
        self._feeding = False
        self.holds_steps = False
        """Does no other step begin? The session is to be handed over where the turn is now."""
        self.current: Run | None = None
        """The run whose turn has started or is next to start; None if no turn is open."""
        self._works = RunWorks(core, self._stopped)
        self.toolbox = Toolbox(core, self._works, self.feed)
        self.compactor = Compactor(core, self._resume_build)
        self._builds = RequestBuilds(core, self.compactor, self._works, self.feed)

    def let_go(self) -> None:
        """The actor is gone: drop the parts that refer to this one."""
        self.compactor.let_go()
        del self._works, self.toolbox, self.compactor, self._builds

    # Feeding the machine.

    def feed(self, run: Run, event: e.Event) -> None:
        """Give *event* to the run's turn, and perform the effects.

        Effects may feed further events. These are queued and processed in order instead of
        recursively, so that each step of the machine completes before the next one begins.
        """
        if self._feeding:
            self._events.append((run, event))
            return
        self._feeding = True
        try:
            self._step(run, event)
            while self._events:
                self._step(*self._events.pop(0))
        finally:
            self._feeding = False

    def _step(self, run: Run, event: e.Event) -> None:
        before = run.turn
        # A result of an earlier step or attempt arrives late. It is not an error, and it must not
        # change the turn, so it is counted and dropped.
        if before.phase in ENDED or is_late(before, event):
            self._core.late_reports += 1
            return
        run.turn, effects = step(before, event)
        phase = run.turn.phase
        if self._core.log.is_on:
            self._core.log.event("turn.moved", run.turn, by=type(event).__name__, phase=phase.value)
        if before.phase is Phase.STREAMING and phase not in (Phase.STREAMING, Phase.STOPPING):
            self._close_stream(run)
        for effect in effects:
            _PERFORM[type(effect)](self, run, effect)
        if phase in ENDED:
            run.cancel_timers()
            # A tool call that passed its deadline may still be in its grace period, and close() has
            # to name it.
            self._core.still_running.update(n for n, work in run.works.items() if not work.is_done)
            self._ended(run)
            self.compactor.results.consider()

    def drop(self, run: Run, event: e.Fenced | e.StoreLost) -> None:
        """Leave the turn to its next owner. What runs for it here is cancelled, and nothing waits
        for that.
        """
        for work in tuple(run.works.values()):
            self._works.cancel(run, work)
        self.feed(run, event)

    def start(self, run: Run) -> None:
        """Start the turn. Its user message is durable."""
        self._start_clock(run)
        self.feed(run, e.Started())

    def resume(self, run: Run) -> None:
        """Continue a turn that an earlier owner started, at the point where the log ends."""
        self._start_clock(run)
        self.feed(run, resume_event(self._core.state.open[run.number], self._core.config.limits))

    def _start_clock(self, run: Run) -> None:
        self.compactor.turn_started()
        seconds = self._core.config.limits.max_seconds
        if seconds is not None:
            self._works.after(run, "max_seconds", seconds, lambda: self._limit(run, "max_seconds"))

    def _limit(self, run: Run, stop_reason: str) -> None:
        if run.turn.phase not in ENDED:
            self.feed(run, event_for_limit(stop_reason))

    def interrupt(self, run: Run, policy: r.InterruptPolicy, reason: str) -> None:
        """Ask the turn to stop under *policy*. *reason* is stored in the record of an aborted
        turn.
        """
        builder = run.builder if policy == "keep_text" else None  # the others keep no text
        has_text = builder is not None and builder.has_text()
        self.feed(run, event_for_interrupt(run.turn, policy, reason=reason, has_text=has_text))

    # BUILDING

    def _build_context(self, run: Run, effect: e.BuildContext) -> None:
        tag = effect.tag
        if self.holds_steps:
            return
        if tag.attempt > 1:  # the previews of the earlier attempt are void
            restart = StepRestarted(tag.turn, tag.step, tag.attempt)
            self._core.subscriptions.restart(self._core.session, restart)
        self._builds.start(run, effect)

    def _resume_build(self) -> None:
        self._builds.resume()

    def reconsider(self) -> None:
        """The configuration has changed, so a compaction may be needed between turns.

        If the window is smaller, or the prompt cache is lost anyway, a plan is made at once, so
        that it is ready when the next turn begins.
        """
        self.compactor.reconfigured()
        messages = self._core.state.context_messages()
        if self.current is not None or not messages:
            return
        if len(messages) > INLINE_MESSAGES:
            self._builds.warm(messages, self._look_again)
        else:
            self._look_again()

    def _look_again(self) -> None:
        core = self._core
        # A summary must not be asked for with words that are being purged.
        if self.current is None and not core.is_changing:
            size = core.size_now()
            core.counted(size)
            self.compactor.consider(size, "idle" if core.state.prefix_broken else "step")

    # STREAMING

    def _open_stream(self, run: Run, effect: e.OpenStream) -> None:
        core, tag = self._core, effect.tag
        request = run.request
        assert request is not None  # the build sets it before it feeds ContextBuilt
        run.builder = builder = ReplyBuilder()
        run.stream_at = core.services.clock()
        run.reply = run.failure = None
        core.services.observers.requested(
            core.session, run.number, request, run.sent_tokens, core.budget_tokens
        )

        closing = ClosedLater(lambda: work.is_cancelled)

        async def stream() -> Report:
            try:
                reply = await self._read(request, tag, builder, closing)
            except ProviderError as error:
                return partial(self._stream_failed, run, tag, checked_failure(error))
            except BaseException as error:  # a provider is foreign code
                core.log.bug("provider.crashed", contained_in_work(error))
                said = f"raised {error_text(error)}"
                if isinstance(error, anyio.get_cancelled_exc_class()):
                    # This task was not cancelled. The provider cancelled a scope of its own, and
                    # the cancellation escaped from that scope.
                    said = "cancelled itself"
                fatal = ProviderError(f"the provider {said}", kind="fatal")
                return partial(self._stream_failed, run, tag, fatal)
            return partial(self._replied, run, tag, reply)

        name = f"stream of turn {run.number} in {core.session}"
        work = self._works.start(run, name, stream, closing.close)
        run.silence_s = limit_s = core.config.limits.silence_s
        if limit_s is not None:
            silent = partial(core.report, partial(self._silent, run, tag, work, limit_s))
            core.services.silence.begin(builder, limit_s, silent)

    def _silent(self, run: Run, tag: StepTag, work: Work, limit_s: float) -> None:
        if run.turn.phase is Phase.STREAMING and tag == tag_of(run.turn):
            self._works.cancel(run, work)
            text = f"the provider sent nothing for {limit_s:g} s (limits.silence_s)"
            self._stream_failed(run, tag, ProviderError(text, kind="retryable"))

    async def _read(
        self, request: Request, tag: StepTag, builder: ReplyBuilder, closing: ClosedLater
    ) -> Reply:
        core, lease = self._core, self._core.services.lease
        is_first, is_muted = core.services.observers.is_on, False

        def show(preview: Preview) -> None:
            nonlocal is_first, is_muted
            # Perhaps another owner shows a reply of its own. What is missing here is in the record
            # that closes the step; a gap in the middle would have to be told anew.
            is_muted = is_muted or not lease.is_valid
            run = self.current
            # A stream that was given up may still deliver. Its attempt is over, so it shows no more
            # previews.
            if run is not None and run.builder is builder and not is_muted:
                if is_first:
                    is_first = False
                    core.services.observers.began(core.session, tag.turn)
                core.subscriptions.preview(core.session, preview)

        return await read_reply(
            core.provider, request, tag, builder=builder, show=show, lease=lease, closing=closing
        )

    def previews_so_far(self) -> tuple[Preview, ...]:
        """What the stream of the running step has brought, for a subscriber that comes now."""
        run = self.current
        if run is None or run.builder is None or not self._core.services.lease.is_valid:
            return ()
        return previews_so_far(run.builder, tag_of(run.turn))

    def _stream_failed(self, run: Run, tag: StepTag, error: ProviderError) -> None:
        if run.turn.phase in ENDED or tag != tag_of(run.turn):
            self._core.late_reports += 1
            return
        self._core.log.trouble("provider.failed", run.turn, error=str(error), failure=error.kind)
        run.failure = r.ProviderFailure(
            kind=error.kind,
            message=clean_text(str(error)),
            status=error.status,
            retry_after_s=error.delay_s or None,
        )
        config = self._core.config
        event = event_for_stream_failure(
            run.turn, error, limits=config.limits, on_failure=config.on_failure, tag=tag
        )
        self.feed(run, event)

    def _replied(self, run: Run, tag: StepTag, reply: Reply) -> None:
        if run.turn.phase in ENDED or tag != tag_of(run.turn):
            self._core.late_reports += 1
            return
        if reply.edits:
            cleared = cleared_tokens(reply.edits)
            self._core.log.event("context.edited", run.turn, cleared=cleared)
        # If the provider edited or summarised the context, its usage is not that of the request
        # whose size was estimated, so nothing can be learned from it.
        if run.sent_size is not None and not (reply.edits or reply.context):
            self._core.builder.learn(run.sent_size, reply.usage.prompt_tokens)
        state = self._core.state
        if any(map(may_run_server_tools, reply.blocks)):
            _, strays = without_stray_results(reply.blocks, state.open[run.number].server_calls)
            if strays:  # results without a call: kept in the log, left out of the conversation
                self._core.log.trouble("reply.stray_results", run.turn, left_out=list(strays))
        blocks = rename_calls(reply.blocks, state.call_turns.keys())
        if blocks is not reply.blocks:
            reply = msgspec.structs.replace(reply, blocks=blocks)
        run.reply = reply
        pending_calls: tuple[r.PendingCall, ...] = ()
        follow = stop_rule(reply.stop_reason).follow
        if follow not in (Follow.COMMIT_CUT, Follow.DROP):
            pending_calls = tuple(self.toolbox.pending_call(call) for call in reply.calls)
        if run.turn.phase is Phase.STREAMING:
            run.calls.update((call.id, CallTrack(call)) for call in pending_calls)
        event = event_for_reply(
            run.turn,
            reply,
            pending_calls,
            steers=run.steers,
            limits=self._core.config.limits,
            tag=tag,
            goes_on=follow is Follow.CONTINUE
            and can_go_on([*state.open[run.number].replies_at_end, reply.blocks]),
        )
        self.feed(run, event)

    def _close_stream(self, run: Run) -> None:
        if run.builder is not None and run.silence_s is not None:
            self._core.services.silence.end(run.builder, run.silence_s)
        request = run.close_stream()
        if request is not None:
            self._core.account.add(request)
            provider = name_for(self._core.provider, self._core.config.model)
            self._core.services.observers.ended(
                self._core.session, run.number, request, provider, run.reply
            )

    # JOURNALING

    def _assistant_reply(
        self, run: Run, blocks: tuple[bytes, ...], stop_reason: str | None
    ) -> r.AssistantReply:
        reply = run.reply
        if reply is not None:
            run.note_recorded()
        return r.AssistantReply(
            body=join_blocks(blocks),
            started_at=run.stream_at,
            model=(reply.model if reply else None) or self._core.config.model,
            provider=name_for(self._core.provider, self._core.config.model),
            usage=reply.usage if reply else None,
            stop_reason=stop_reason,
            context=reply.context if reply else None,
            edits=reply.edits if reply else (),
        )

    def _journal_calls(self, run: Run, effect: e.JournalCalls) -> None:
        reply = run.reply
        assert reply is not None  # ReplyRequestedTools was fed by _replied
        pending_calls = tuple(run.calls[call.id].call for call in reply.calls)
        record = r.ToolsRequested(
            turn=run.number,
            step=effect.tag.step,
            reply=self._assistant_reply(run, reply.blocks, reply.stop_reason),
            calls=pending_calls,
        )
        run.reply = None
        self._core.journal.write(record, lambda: self.feed(run, e.CallsJournaled(tag=effect.tag)))

    def _journal_answers(self, run: Run, effect: e.JournalAnswers) -> None:
        answers, run.answers = tuple(run.answers), []
        if answers:
            record = r.ToolsAnswered(turn=run.number, step=effect.tag.step, answers=answers)
            self._core.journal.write(record)

    def _journal_step(self, run: Run, effect: e.JournalStep) -> None:
        message, reply = None, run.reply
        if reply is None:
            waits = self._core.state.open[run.number].waits_for_server
        else:
            blocks = reply.blocks if effect.paused else committed_blocks(reply)
            waits = effect.paused and bool(open_server_calls(blocks))
            message = self._assistant_reply(run, blocks, reply.stop_reason) if blocks else None
            run.reply = None
        # No user message may stand between a call of the provider's own tool and its result.
        steers = 0 if waits else run.steers
        run.steers -= steers
        record = r.StepCompleted(
            turn=run.number, step=effect.tag.step, reply=message, steers=steers
        )
        self._core.journal.write(record, lambda: self._step_journaled(run, effect.tag))

    def _step_journaled(self, run: Run, tag: StepTag) -> None:
        self.compactor.results.consider()
        usage = run.usage
        tokens = usage.prompt_tokens + usage.output_tokens
        limits = self._core.config.limits
        self.feed(run, event_for_step(run.turn, tokens=tokens, limits=limits, tag=tag))

    # TOOLS

    def _start_tools(self, run: Run, effect: e.StartTools) -> None:
        self.toolbox.start(run, effect.tag)

    # STOPPING

    def _stop_work(self, run: Run, effect: e.StopWork) -> None:
        self._builds.stop(run)
        self._works.stop(run)

    def _stopped(self, run: Run) -> None:
        self.feed(run, event_for_stopped(run.turn))

    # The end

    def _journal_commit(self, run: Run, effect: e.JournalCommit) -> None:
        reply = None
        if effect.keep == "reply" and run.reply is not None:
            blocks = committed_blocks(run.reply)
            reply = self._assistant_reply(run, blocks, run.reply.stop_reason) if blocks else None
        elif effect.keep == "text" and run.builder is not None:
            blocks = run.builder.text_blocks()
            self._close_stream(run)
            reply = self._assistant_reply(run, blocks, "cancelled") if blocks else None
        self._close_stream(run)
        record = r.TurnCommitted(
            turn=run.number,
            stop_reason=effect.stop_reason,
            usage=run.usage,
            reply=reply,
            settle=_SETTLE.get(effect.stop_reason),
            error=effect.error,
            unrecorded_usage=run.unrecorded_usage(),
            exceeded=run.exceeded if effect.stop_reason == "budget" else None,
        )
        self._core.journal.write(record, lambda: self.feed(run, e.Committed()))

    def _journal_abort(self, run: Run, effect: e.JournalAbort) -> None:
        self._close_stream(run)
        if run is self.current:
            self.compactor.change_began()
        record = r.TurnAborted(
            turn=run.number,
            reason=effect.reason,
            usage=run.usage,
            calls=run.receipts(),
            unrecorded_usage=run.unrecorded_usage(),
        )
        self._core.journal.write(record, lambda: self.feed(run, e.Aborted()))

    def _journal_failure(self, run: Run, effect: e.JournalFailure) -> None:
        self._close_stream(run)
        if run is self.current:
            self.compactor.change_began()
        record = r.TurnFailed(
            turn=run.number,
            cause=effect.cause,
            error=effect.error,
            usage=run.usage,
            calls=run.receipts(),
            unrecorded_usage=run.unrecorded_usage(),
            exceeded=run.exceeded if effect.cause == "budget" else None,
            failure=run.failure if run.failure and run.failure.kind == effect.cause else None,
        )
        self._core.journal.write(record, lambda: self.feed(run, e.Failed()))

    def may_compact(self) -> bool:
        """May the view change now? Not while a reply to a request that was built from it is
        pending.
        """
        run = self.current
        if run is None:
            return True
        return run.turn.phase in (Phase.ACCEPTED, Phase.TOOLS)


_PERFORM: dict[type[e.Effect], Callable[[TurnRunner, Run, Any], None]] = {
    e.BuildContext: TurnRunner._build_context,
    e.OpenStream: TurnRunner._open_stream,
    e.JournalCalls: TurnRunner._journal_calls,
    e.StartTools: TurnRunner._start_tools,
    e.JournalAnswers: TurnRunner._journal_answers,
    e.JournalStep: TurnRunner._journal_step,
    e.StopWork: TurnRunner._stop_work,
    e.JournalCommit: TurnRunner._journal_commit,
    e.JournalAbort: TurnRunner._journal_abort,
    e.JournalFailure: TurnRunner._journal_failure,
}
