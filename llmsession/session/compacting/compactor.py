"""The compactions of one session: feeds the compaction machine and performs its effects.

``machine`` decides what a compaction does next; nothing here does. A plan is made for a snapshot of
the conversation, and it is applied only if the conversation still matches the snapshot. It is
applied only while no reply is pending: a pending reply was requested under the old view, and its
thinking would be bound to a prefix that is no longer sent. A plan is made ahead of its need. Then
it waits for a moment at which a new prompt costs little: see
``compaction.planning.cache_economics``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from llmsession.compaction.escalation import escalation_of, hardest_plan
from llmsession.compaction.planning.cache_economics import (
    IDLE_BEFORE_S,
    CacheState,
    Timing,
    ahead_tokens,
    decide,
    expected_requests,
    is_outgrown,
    should_apply,
)
from llmsession.compaction.planning.policy import (
    Budget,
    Policy,
    checked_plan,
    is_worthwhile,
)
from llmsession.compaction.planning.prefix_summaries import with_summary
from llmsession.compaction.planning.schedule import (
    Fill,
    fill_of,
    injects,
    is_due,
    need_of,
    trigger_before_request,
)
from llmsession.compaction.policies.injecting import with_stale_left_out
from llmsession.compaction.view.plan import Plan, record_of
from llmsession.compaction.view.view import View
from llmsession.errors import contained, contained_in_work, error_text
from llmsession.turns.blocks import join_blocks, text_block
from llmsession.turns.messages import Message
from llmsession.turns.records import Trigger

from ..core.core import Core
from ..core.request_builder import ContextBuilder, Size
from ..tasks.promise import Promise
from ..tasks.worker_thread import off_loop
from ..tasks.works import Work
from ..values.outcome import CompactionOutcome
from . import events as e
from .caller_summaries import CallerSummaries
from .idle_timer import IdleTimer
from .machine import APPLYING, RESTING, Compaction, Phase, is_stalled, step
from .result_summaries import ResultSummaries
from .snapshot import PlanRequest, Snapshot, snapshot_of
from .summarizer import Summarizer

__all__ = ["INLINE_MESSAGES", "Compactor"]

_TO_COME = Message(id="", session="", turn=0, role="user", body=join_blocks([text_block("...")]))
"""Stands for the next user message where it is not known yet."""
_MAY_AWAIT = (Phase.IDLE, Phase.PLANNING, Phase.POSTPONED)
"""The phases in which a build may begin to wait for a plan. If the plan is READY, it need not
wait.
"""

INLINE_MESSAGES = 64
"""Up to this length, making a plan costs less than switching to a thread and back."""


class Compactor:
    """Runs at most one compaction job at a time.

    ``resume`` is called when a build that waited for a compaction may continue.
    """

    def __init__(self, core: Core, resume: Callable[[], None]) -> None:
        self._core = core
        self._resume = resume
        self._summarizer = Summarizer(core)
        self.results = ResultSummaries(core, self._summarizer)
        self.caller_summaries = CallerSummaries(core, resume)
        self._compaction = Compaction()
        self._work: Work | None = None
        """The work of the present phase, if it has one."""
        self._prepared: ContextBuilder | None = None
        """A builder that has built the context after the plan. It is used once the record is
        written.
        """
        self._callers: list[Promise[CompactionOutcome]] = []
        self._exhausted: Callable[[], None] | None = None
        """Called if no plan makes the request fit."""
        self._idle_timer = IdleTimer(core, self._idle)

    # What others see.

    @property
    def jobs(self) -> tuple[str, ...]:
        """The names of the running jobs: the compaction's and that of the summaries of results.

        The compaction counts as running from its plan until its record is written, also while the
        plan waits to be applied.
        """
        has_job = self._compaction.phase not in (Phase.IDLE, Phase.CLOSED)
        return (("compaction",) if has_job else ()) + self.results.jobs

    @property
    def is_applying(self) -> bool:
        """Is ``compaction.applied`` being written, or does the next request wait for a plan?

        No request is built in that time.
        """
        return self._compaction.phase in APPLYING or self.caller_summaries.is_applying

    @property
    def is_pending(self) -> bool:
        """May ``apply_if_ready`` have something to write? Asked after each item of the mailbox."""
        return self._compaction.plan is not None or bool(self.caller_summaries.waiting)

    @property
    def is_idle(self) -> bool:
        """Does no job run, and is no plan about to be written?

        A plan that waits for a better moment does not keep the session in memory.
        """
        return self._compaction.phase in RESTING

    def view_to_send(self) -> View:
        """The view that a request would be built from now, including what the policy would inject.

        Costs a plan if the policy injects something, else nothing.
        """
        core, view = self._core, self._core.state.view
        if core.config.compaction.enabled is False:
            return view
        try:
            policy = with_stale_left_out(core.policy, view)
            if not injects(policy):
                return view
            request = self._plan_request(core.size_now(), "injection", core.budget_tokens)
            planned = policy.plan(view, request.messages, request.budget)
            plan = checked_plan(planned, view, request.messages)
        except BaseException as error:  # a policy is foreign code
            core.log.bug("compaction.failed", contained(error))
            return view
        adds = plan is not None and plan.injected is not None
        return view.applied(plan, len(request.messages)) if plan and adds else view

    # What happens to the session, as events.

    def consider(self, size: Size, timing: Timing = "step") -> None:
        """Start the job if a context of *size* is near its threshold and nothing forbids it.

        A postponed plan is made again once the context has outgrown it. A policy that keeps a limit
        of its own is asked before each request instead: see ``keep_limit``.
        """
        core = self._core
        if not self._is_automatic() or core.asking.keeps_own_limit or not self._may_plan(size):
            return
        if is_stalled(self._compaction, size.tokens, core.config):
            return
        ahead = ahead_tokens(core.budget_tokens, timing) if core.asking.waits_for_cache else 0
        if self._is_due(size.tokens + ahead):
            early: Trigger = "prefix_broken" if core.state.prefix_broken else "idle"
            self._feed(e.PlanDue(size=size, trigger=early if timing == "idle" else "threshold"))

    def keep_limit(self, size: Size) -> None:
        """Let the request of *size* wait for a plan, if the policy needs one before this request.

        That is so if the policy keeps a limit of its own that is reached, or if it injects
        something. Afterwards ``is_applying`` says whether the request has to wait. The build
        continues once the plan is applied or there is none. Called once for each request, so that a
        request never waits for ever.
        """
        core, compaction = self._core, self._compaction
        if not (core.asking.is_before_requests or core.state.view.injected):
            return
        if core.config.compaction.enabled is False or compaction.phase not in _MAY_AWAIT:
            return
        try:
            policy = with_stale_left_out(core.policy, core.state.view)
            # Even if the provider keeps the context small, the policy's texts are injected.
            schedule = core.config.compaction.schedule if self._is_automatic() else "cache"
            trigger = need_of(policy, schedule, self._fill(size.tokens))
        except BaseException as error:  # a policy is foreign code
            core.log.bug("compaction.failed", contained(error))
            return
        is_held_back = is_stalled(compaction, size.tokens, core.config)
        if trigger is not None and not (is_held_back and trigger == "threshold"):
            self._feed(e.RequestDue(size=size, trigger=trigger))

    def request(self, promise: Promise[CompactionOutcome], size: Size) -> None:
        """Compact now, even below the threshold. *promise* gets the outcome."""
        self._callers.append(promise)
        self._feed(e.CompactionRequested(size=size))

    def will_apply(self, size: Size) -> bool:
        """Would a compaction be applied before a request of *size*, if it were built now?

        Asks the same questions as a build, and starts nothing. A plan that only injects is not a
        compaction.
        """
        core, compaction = self._core, self._compaction
        if core.config.compaction.enabled is False:
            return False
        if self.is_applying or size.tokens > core.budget_tokens:
            return True
        if not self._is_automatic():
            return False
        plan, request = compaction.plan, compaction.request
        if plan is not None and request is not None:
            return isinstance(self._event_for_moment(plan, request, size.tokens), e.MomentCame)
        if not core.asking.keeps_own_limit:
            # A plan that is being made waits for the cache, or is applied as soon as it is made.
            return compaction.phase is Phase.PLANNING and not core.asking.waits_for_cache
        if is_stalled(compaction, size.tokens, core.config):
            return False
        messages = core.state.context_messages()
        # The next request ends with a user message, which may not have been sent yet.
        if not messages or messages[-1].is_assistant:
            messages = (*messages, _TO_COME)
        return self._is_due(size.tokens, len(messages)) and self._would_free(size, messages)

    def _would_free(self, size: Size, messages: Sequence[Message]) -> bool:
        """Would the policy, which is due, make a plan for *messages* that a request waits for?"""
        core, view = self._core, self._core.state.view
        budget = self._plan_request(size, "threshold", core.budget_tokens).budget
        try:
            plan = checked_plan(core.policy.plan(view, messages, budget), view, messages)
        except BaseException as error:  # a policy is foreign code; a build will log the error
            contained(error)
            return False
        return trigger_before_request(plan, core.policy, view, "threshold") == "policy_limit"

    def force(
        self, size: Size, ceiling: int, *, overflow: bool, exhausted: Callable[[], None]
    ) -> None:
        """Make a request that is too large fit into *ceiling* tokens.

        The configured policy is used if that is enough, else harder means. The waiting build
        continues once the plan is applied. *exhausted* is called if nothing is left to free.
        """
        if self._core.config.compaction.enabled is False:
            exhausted()
            return
        self._exhausted = exhausted
        trigger: Trigger = "overflow" if overflow else "window"
        self._feed(e.RequestTooLarge(size=size, ceiling=ceiling, trigger=trigger))

    def apply_if_ready(self) -> None:
        """Write the plan if the conversation still matches it and this is a good moment.

        If the conversation does not match, the plan is discarded. The actor calls this only while
        no reply is pending.
        """
        if self._compaction.phase not in APPLYING:
            self.caller_summaries.apply()
        plan, request = self._compaction.plan, self._compaction.request
        if plan is not None and request is not None and not self.is_applying:
            self._feed(self._event_for_moment(plan, request))

    def turn_ended(self) -> None:
        """No turn runs any more, so start waiting for the expiry of the provider's cache.

        If no turn begins until shortly before the cache expires, a large context is compacted then:
        the cache would be lost anyway, so the rewrite costs nothing extra.
        """
        self._idle_timer.stop()
        core, size = self._core, self._core.context_size
        if size is None or not core.asking.waits_for_cache or not self._is_automatic():
            return
        delay_s = core.builder.profile.cache_ttl_s - IDLE_BEFORE_S
        is_closed = self._compaction.phase in (Phase.CLOSING, Phase.CLOSED)
        if delay_s <= 0 or is_closed:
            return
        if self._is_due(size.tokens + ahead_tokens(core.budget_tokens, "idle")):
            self._idle_timer.start(delay_s)

    def turn_started(self) -> None:
        """A turn begins, so the session is no longer idle."""
        self._idle_timer.stop()

    def change_began(self) -> None:
        """A record that drops the newest turn or changes the configuration is being written to the
        log.

        A compaction that is being prepared must not follow it there.
        """
        self._feed(e.ChangeBegan())

    def reconfigured(self) -> None:
        """The configuration has changed, so a plan that was made under the old one is not applied.

        If callers wait, the plan stays until it is compared with the conversation, so that they get
        an outcome.
        """
        if not self._callers:
            self._idle_timer.stop()
            self._feed(e.Reconfigured())

    def cancel(self) -> None:
        """Stop the job. Its plan is not applied."""
        self._idle_timer.stop()
        self.results.cancel()
        self._feed(e.Cancelled())

    def close(self) -> None:
        """Stop the job, and never begin another."""
        self._idle_timer.stop()
        self.results.close()
        self._feed(e.Closed())

    def end(self) -> None:
        """The actor has ended. Nothing is written or reported any more."""
        self._idle_timer.stop()
        self._feed(e.Ended())

    def let_go(self) -> None:
        """The actor is gone: drop the part that refers to this one."""
        del self._idle_timer

    def fail(self, error: BaseException) -> None:
        """The session has failed: waiting callers get *error*."""
        self.end()
        self.results.close()
        self.caller_summaries.is_applying = False
        callers, self._callers = self._callers, []
        for promise in callers:
            promise.fail(error)

    def _idle(self) -> None:
        # If a plan is waiting, this is its moment: the actor applies it after this report.
        if self._compaction.phase is Phase.IDLE:
            self.consider(self._core.size_now(), "idle")

    # Which event happened.

    def _is_automatic(self) -> bool:
        """May a compaction start by itself before it is needed?

        Not if the provider keeps the context small: both would clear the same results.
        """
        compaction = self._core.config.compaction
        side = compaction.provider_side
        return compaction.enabled is not False and not (side and side.replaces_ours)

    def _may_plan(self, size: Size) -> bool:
        """Does no job run, and is there no plan, or only one that the context has outgrown?"""
        request = self._compaction.request
        if self._compaction.phase is Phase.POSTPONED and request is not None:
            return is_outgrown(request.budget.used_tokens, size.tokens)
        return self._compaction.phase is Phase.IDLE

    def _fill(self, tokens: int, count: int | None = None) -> Fill:
        core, state = self._core, self._core.state
        return fill_of(
            state.view,
            len(state.context_messages()) if count is None else count,
            used_tokens=tokens,
            limit_tokens=core.budget_tokens,
            window_tokens=core.window_tokens,
        )

    def _is_due(self, tokens: int, count: int | None = None) -> bool:
        core = self._core
        try:
            if core.asking.is_by_tokens:
                return bool(core.policy.due(tokens, core.budget_tokens))
            return is_due(core.policy, self._fill(tokens, count))
        except BaseException as error:  # a policy is foreign code
            core.log.bug("compaction.failed", contained(error))
            return False

    def _event_for_plan(self, plan: Plan | None, request: PlanRequest, work: int) -> e.Event:
        if self._compaction.phase is Phase.AWAITED:
            return self._event_for_awaited(plan, request, work)
        # A plan that a caller asked for is applied even if it gains little.
        min_gain = 0.0 if self._callers else self._core.config.compaction.min_gain
        if plan is None or not is_worthwhile(plan, min_gain):
            return self._rejection("nothing to gain", request, work)
        return e.PlanMade(work=work, plan=plan, request=request)

    def _event_for_awaited(self, plan: Plan | None, request: PlanRequest, work: int) -> e.Event:
        """The event for *plan*, which a request waits for. It counts even if it gains little."""
        core = self._core
        if not self._is_of_now(request):
            return e.PlanOutdated(work=work)
        policy = with_stale_left_out(core.policy, request.view)
        trigger = trigger_before_request(plan, policy, request.view, request.budget.trigger)
        if plan is None or trigger is None:
            # Another summary costs money, so the context must grow before the next plan. Rules cost
            # nothing and may look again at once.
            compaction = core.config.compaction
            growth = compaction.min_gain if compaction.summariser is not None else 0.0
            return self._rejection("nothing to gain", request, work, growth=growth)
        if request.budget.trigger != "asked":
            plan = msgspec.structs.replace(plan, trigger=trigger)
        return e.PlanMade(work=work, plan=plan, request=request)

    def _rejection(
        self, reason: str, request: PlanRequest, work: int, *, growth: float | None = None
    ) -> e.PlanRejected:
        tokens, config = request.budget.used_tokens, self._core.config
        if growth is None:
            growth = config.compaction.min_gain
        return e.PlanRejected(work=work, reason=reason, tokens=tokens, config=config, growth=growth)

    def _is_of_now(self, request: PlanRequest) -> bool:
        """Does *request* still match the conversation and its configuration?"""
        core = self._core
        is_configured = request.is_configured(core.budget_tokens, core.config.compaction)
        return is_configured and request.is_current(snapshot_of(core.state))

    def _event_for_moment(
        self, plan: Plan, request: PlanRequest, used_tokens: int | None = None
    ) -> e.Event:
        """What to do with *plan* at a moment when no reply is pending.

        *used_tokens* is the size of the context, by default that of the newest request.
        """
        core = self._core
        if not self._is_of_now(request):
            return e.PlanOutdated()
        if self._callers:
            return e.MomentCame(trigger="asked")
        if plan.trigger == "asked" or not core.asking.waits_for_cache:
            return e.MomentCame(trigger=plan.trigger)
        cache = self._cache()
        used_tokens = core.context_tokens if used_tokens is None else used_tokens
        decision = decide(
            used_tokens=used_tokens,
            limit_tokens=core.budget_tokens,
            cleared_tokens=plan.tokens_before - plan.tokens_after,
            kept_before_tokens=plan.figures.get("kept_before_tokens", 0),
            expected_requests=expected_requests(request.messages[request.view.compacted_before :]),
            cache=cache,
            timing="idle" if self._idle_timer.has_expired else "step",
        )
        if should_apply(decision, cache, is_due=self._is_due(used_tokens)):
            return e.MomentCame(trigger=decision.trigger, figures=decision.figures)
        return e.MomentPostponed()

    def _cache(self) -> CacheState:
        state, core = self._core.state, self._core
        reported = state.reported
        ttl_s = core.builder.profile.cache_ttl_s
        if reported is None:
            return CacheState(is_broken=state.prefix_broken, ttl_s=ttl_s)
        return CacheState(
            cached_tokens=reported.cached_tokens,
            idle_s=max(0.0, core.services.clock() - reported.at),
            ttl_s=ttl_s,
            is_broken=state.prefix_broken,
        )

    # Feeding the machine.

    def _feed(self, event: e.Event) -> None:
        """Step the machine with *event* and perform the effects.

        An effect may feed the next event before it returns. The machine puts such an effect last,
        so nothing of this step is left to do then.
        """
        self._compaction, effects = step(self._compaction, event)
        for effect in effects:
            _PERFORM[type(effect)](self, effect)

    def _is_late(self, work: int) -> bool:
        return self._compaction.number != work

    # PLANNING, AWAITED

    def _make_plan(self, effect: e.MakePlan) -> None:
        core, work = self._core, effect.work
        policy, report = with_stale_left_out(core.policy, core.state.view), core.report
        request = self._plan_request(effect.size, effect.trigger, core.budget_tokens)

        async def job() -> None:
            try:
                plan = await self._plan(policy, request)
            except BaseException as raised:  # a policy is foreign code
                error = contained_in_work(raised)
                core.log.bug("compaction.failed", error)
                reason = f"failed: {error_text(error)}"
                report(lambda: self._feed(self._rejection(reason, request, work)))
            else:
                report(lambda: self._feed(self._event_for_plan(plan, request, work)))

        def ended(_: Work) -> None:
            report(lambda: self._feed(e.PlanLost(work=work)))

        self._work = core.works.start(f"compaction of {core.session}", job, ended)

    async def _plan(self, policy: Policy, request: PlanRequest) -> Plan | None:
        """The plan of *policy*, including the summary that it asks for."""
        view, messages, budget = request.view, request.messages, request.budget
        is_short = len(messages) <= INLINE_MESSAGES

        def make() -> Plan | None:
            return checked_plan(policy.plan(view, messages, budget), view, messages)

        plan = make() if is_short else await off_loop(make)
        if plan is None or plan.summary_request is None:
            return plan
        summary = await self._summarizer.prefix_summary(plan.summary_request, messages, view)

        def fill() -> Plan | None:
            return checked_plan(with_summary(plan, summary, view, messages, budget), view, messages)

        return fill() if is_short else await off_loop(fill)

    def _plan_request(self, size: Size, trigger: Trigger, limit_tokens: int) -> PlanRequest:
        core, state = self._core, self._core.state
        profile = core.builder.profile
        budget = Budget(
            used_tokens=size.tokens,
            limit_tokens=limit_tokens,
            window_tokens=core.window_tokens,
            summaries=state.summaries.copy(),
            # Uses the configured window, which may be smaller than the model's.
            profile=msgspec.structs.replace(profile, window_tokens=core.window_tokens),
            committed=state.message_count,
            frame_tokens=core.builder.frame_tokens * size.scale_permille // 1000,
            scale_permille=size.scale_permille,
            trigger=trigger,
        )
        now, config = snapshot_of(state), core.config.compaction
        return PlanRequest(
            now.generation, now.view, now.messages, now.committed, budget=budget, config=config
        )

    # FORCING

    def _find_hardest_plan(self, effect: e.FindHardestPlan) -> None:
        core, work = self._core, effect.work
        request = self._plan_request(effect.size, effect.trigger, effect.ceiling)
        view, messages, budget = request.view, request.messages, request.budget
        find = partial(hardest_plan, escalation_of(self._core.policy), view, messages, budget)
        if len(messages) <= INLINE_MESSAGES:
            self._hardest_plan_found(work, request, *find())
            return

        async def look() -> None:
            plan: Plan | None = None
            faults: tuple[Exception, ...] = ()
            try:
                plan, faults = await off_loop(find)
            except BaseException as error:  # the policy failed, or no thread could be started
                faults = (contained_in_work(error),)
            core.report(partial(self._hardest_plan_found, work, request, plan, faults))

        self._work = core.works.start(f"compaction of {core.session}, forced", look)

    def _hardest_plan_found(
        self, work: int, snapshot: Snapshot, plan: Plan | None, faults: Sequence[Exception]
    ) -> None:
        if self._is_late(work):
            return
        if not snapshot.is_current(snapshot_of(self._core.state)):
            self._feed(e.PlanOutdated(work=work))
            return
        for fault in faults:
            self._core.log.bug("compaction.failed", fault)
        if plan is None:
            self._feed(e.NothingFreed(work=work))
        else:
            self._feed(e.HardestPlanFound(work=work, plan=plan))

    # PREPARING

    def _prepare_context(self, effect: e.PrepareContext) -> None:
        """Build a long context as it will be after the plan, in a thread.

        Otherwise the next request would build it in the event loop and block it.
        """
        core, snapshot = self._core, snapshot_of(self._core.state)
        messages = snapshot.messages
        if len(messages) <= INLINE_MESSAGES:
            self._feed(e.ContextPrepared(work=effect.work))
            return
        after = snapshot.view.applied(effect.plan, len(messages))
        prepared = partial(self._context_prepared, effect.work, snapshot)
        name, trouble = f"compaction of {core.session}, applied", "compaction.failed"
        self._work = core.warm(name, messages, after, prepared, trouble=trouble)

    def _context_prepared(
        self, work: int, snapshot: Snapshot, prepared: ContextBuilder | None
    ) -> None:
        if self._is_late(work):
            return
        if snapshot.is_current(snapshot_of(self._core.state)):
            self._prepared = prepared
            self._feed(e.ContextPrepared(work=work))
        else:
            self._feed(e.PlanOutdated(work=work))

    # WRITING

    def _write_record(self, effect: e.WriteRecord) -> None:
        """Write the plan to the journal. The view changes once the record is durable."""
        prepared, self._prepared = self._prepared, None
        builder = self._core.builder

        def written() -> None:
            self._core.take_warmed(prepared, builder)
            self._feed(e.RecordWritten(work=effect.work))

        self._core.journal.write(record_of(effect.plan), written)

    # The end

    def _stop_work(self, _: e.StopWork) -> None:
        # The work may take a while to end. It is forgotten at once, so that the next one does not
        # wait for it.
        work, self._work = self._work, None
        if work is not None:
            work.cancel()

    def _log_applied(self, effect: e.LogApplied) -> None:
        plan, log = effect.plan, self._core.log
        before, after = plan.tokens_before, plan.tokens_after
        log.event("compaction.applied", before=before, after=after, trigger=plan.trigger)

    def _log_discarded(self, _: e.LogDiscarded) -> None:
        self._core.log.event("compaction.discarded")

    def _answer_callers(self, effect: e.AnswerCallers) -> None:
        callers, self._callers = self._callers, []
        for promise in callers:
            promise.set(effect.outcome)

    def _report_exhausted(self, _: e.ReportExhausted) -> None:
        exhausted, self._exhausted = self._exhausted, None
        assert exhausted is not None  # RequestTooLarge was fed by force
        exhausted()

    def _resume_build(self, _: e.ResumeBuild) -> None:
        self._resume()


_PERFORM: dict[type[e.Effect], Callable[[Compactor, Any], None]] = {
    e.MakePlan: Compactor._make_plan,
    e.FindHardestPlan: Compactor._find_hardest_plan,
    e.PrepareContext: Compactor._prepare_context,
    e.WriteRecord: Compactor._write_record,
    e.StopWork: Compactor._stop_work,
    e.LogApplied: Compactor._log_applied,
    e.LogDiscarded: Compactor._log_discarded,
    e.AnswerCallers: Compactor._answer_callers,
    e.ReportExhausted: Compactor._report_exhausted,
    e.ResumeBuild: Compactor._resume_build,
}
