"""The compaction job of one session: plans in the background, applies by compare-and-swap.

A plan is made on a snapshot and is only worth something for that snapshot. It is applied where
no reply is on its way: a reply that streams was asked for under the old view, and thinking in
it would be bound to a prefix that is not sent any more. It is made ahead, and waits for a moment
at which rewriting the prompt costs little: see ``planning.cache_economics``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from llmsession.compaction.escalation import escalation_of, hardest_plan
from llmsession.compaction.planning.cache_economics import (
    IDLE_BEFORE_S,
    CacheState,
    Timing,
    ahead_tokens,
    decide,
    expected_requests,
    should_apply,
)
from llmsession.compaction.planning.policy import Budget, Policy, is_worthwhile
from llmsession.compaction.planning.prefix_summaries import with_summary
from llmsession.compaction.view.plan import Plan, record_of
from llmsession.compaction.view.view import View
from llmsession.errors import error_text
from llmsession.turns.messages import Message
from llmsession.turns.records import Trigger

from ..core.core import Core
from ..core.request_builder import ContextBuilder, Size
from ..tasks.promise import Promise
from ..tasks.timers import Timer
from ..tasks.worker_thread import off_loop
from ..tasks.works import Work
from ..values.config import CompactionConfig, SessionConfig
from ..values.outcome import CompactionOutcome
from .caller_summaries import CallerSummaries
from .result_summaries import ResultSummaries
from .summarizer import Summarising

__all__ = ["INLINE_MESSAGES", "Compactor"]

INLINE_MESSAGES = 64
"""Up to here a plan costs less than the hop to a thread and back."""


class _Snapshot(msgspec.Struct, frozen=True):
    generation: int
    view: View
    messages: tuple[Message, ...]


class _Question(_Snapshot, frozen=True):
    """What a plan is made for."""

    budget: Budget
    config: CompactionConfig


class Compactor:
    """At most one job per session. ``resume`` is called when a build that waited may go on."""

    def __init__(self, core: Core, resume: Callable[[], None]) -> None:
        self._core = core
        self._resume = resume
        self._summarising = Summarising(core)
        self.results = ResultSummaries(core, self._summarising)
        self.told = CallerSummaries(core, resume)
        self._job: Work | None = None
        self._planning: _Question | None = None
        """What the job plans for. A plan for another snapshot is of a job that was cancelled."""
        self._ready: tuple[Plan, _Question] | None = None
        self._holds = False
        """Does the ready plan wait for a better moment?"""
        self._applying = False
        self._preparing: Work | None = None
        """Makes ready what is being applied: a builder that knows the context after it."""
        self._stalled: tuple[int, SessionConfig] | None = None
        """How large a context gained too little, and under which configuration."""
        self._waiting: list[Promise[CompactionOutcome]] = []
        self._resting: Timer | None = None
        self._rests = False
        """Is the session idle, and its cache about to expire?"""
        self._closed = False

    @property
    def jobs(self) -> tuple[str, ...]:
        """The name of the job while it runs, or while its plan waits to be applied; and that of
        the summaries of results."""
        return (("compaction",) if self._job or self._ready else ()) + self.results.jobs

    @property
    def is_applying(self) -> bool:
        """Is a ``compaction.applied`` on its way into the store? No request is built then."""
        return self._applying or self.told.is_applying

    @property
    def is_idle(self) -> bool:
        """No job runs, and no plan is to be written or is being written. One that waits for a
        better moment keeps nobody."""
        return self._job is None and not self._applying and (self._ready is None or self._holds)

    def consider(self, size: Size, timing: Timing = "step") -> None:
        """Start the job if a context of *size* is near its mark and nothing forbids it."""
        compaction = self._core.config.compaction
        if not self._may_start() or self._is_stalled(size.tokens):
            return
        cached = compaction.schedule == "cache"
        ahead = ahead_tokens(self._core.budget_tokens, timing) if cached else 0
        if self._is_due(size.tokens + ahead):
            early: Trigger = "prefix_broken" if self._core.state.prefix_broken else "idle"
            self._start(size, early if timing == "idle" else "threshold")

    def _may_start(self) -> bool:
        free = self.is_idle and self._ready is None and not self._closed
        return free and self._acts_itself()

    def _acts_itself(self) -> bool:
        """Does it compact without being asked, though nothing forces it? Not where the provider
        keeps the context small: both would clear the same results."""
        compaction = self._core.config.compaction
        side = compaction.provider_side
        return compaction.enabled is not False and not (side and side.replaces_ours)

    def _is_due(self, tokens: int) -> bool:
        try:
            return self._core.policy.due(tokens, self._core.budget_tokens)
        except Exception as error:  # a policy may be anybody's code
            self._core.log.bug("compaction.failed", error)
            return False

    def _is_stalled(self, tokens: int) -> bool:
        """Did the last one gain too little, and has nothing changed that could give more? A
        context that is clearly larger is a change; so is a smaller one, after a drop or a clear."""
        if self._stalled is None:
            return False
        at, config = self._stalled
        enough = at * (1 + config.compaction.min_gain)
        return config is self._core.config and at <= tokens < enough

    def request(self, promise: Promise[CompactionOutcome], size: Size) -> None:
        """Compact now, whatever the threshold says; *promise* gets the outcome."""
        self._waiting.append(promise)
        if self._holds:
            self._ready, self._holds = None, False  # it was made for another purpose
        if self.is_idle:
            self._start(size, "asked")

    def rest(self) -> None:
        """A turn has ended: shortly before the provider's cache expires, what is large may be
        compacted at no further cost, if nothing else came by then."""
        self.wake()
        compaction, size = self._core.config.compaction, self._core.context_size
        if self._closed or not self._acts_itself() or compaction.schedule != "cache":
            return
        delay_s = self._cache().ttl_s - IDLE_BEFORE_S
        ahead = ahead_tokens(self._core.budget_tokens, "idle")
        if delay_s > 0 and size is not None and self._is_due(size.tokens + ahead):
            rested = partial(self._core.report, self._rested)
            self._resting = self._core.timers.after(delay_s, rested)

    def _rested(self) -> None:
        if self._resting is None:
            return
        self._resting, self._rests = None, True
        # One that waits for its moment has it now: the actor asks for it after each report.
        if self._ready is None:
            self.consider(self._core.size_now(), "idle")

    def wake(self) -> None:
        """A turn begins: this is no time of rest any more."""
        self._rests = False
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def forget_plan(self) -> None:
        """The configuration is another: what was planned under the old one is not applied,
        unless somebody waits for it."""
        if not self._waiting:
            self._drop_job()

    def cancel(self) -> None:
        """Stop the job; what it would have decided is not applied."""
        self._drop_job()
        self.results.cancel()
        self._answer(CompactionOutcome(False, "cancelled"))

    def close(self) -> None:
        """``cancel``, and begin nothing any more."""
        self.end()
        self.results.close()
        self.cancel()

    def end(self) -> None:
        """Begin nothing any more; nobody waits for anything."""
        self._closed = True
        self.wake()

    def _drop_job(self) -> None:
        self.wake()
        if self._job is not None:
            self._job.cancel()
        # Forgotten at once: it may take a while to end, and the next one does not wait for it.
        self._job = self._planning = self._ready = None
        self._holds = False
        if self._stop_preparing() and not self._closed:
            self._resume()

    def _stop_preparing(self) -> bool:
        if self._preparing is None:
            return False
        self._preparing.cancel()
        self._preparing, self._applying = None, False
        return True

    def turn_goes(self) -> None:
        """The turn that the context ends with is being dropped: its end is on its way into the
        log, and what is being made ready is not to follow it there."""
        if self._stop_preparing():
            self._discard()

    def _start(self, size: Size, trigger: Trigger) -> None:
        state = self._core.state
        messages = state.context_messages()
        budget = self._budget(size, trigger)
        compaction = self._core.config.compaction
        snapshot = _Question(state.generation, state.view, messages, budget, compaction)
        self._planning = snapshot
        policy, report = self._core.policy, self._core.report

        async def job() -> None:
            try:
                made = await self._made(policy, snapshot)
            except Exception as error:  # a policy may be anybody's code
                self._core.log.bug("compaction.failed", error)
                told = f"failed: {error_text(error)}"
                report(lambda: self._unplanned(told, snapshot))
            else:
                report(lambda: self._planned(made, snapshot))

        self._job = self._core.works.start(f"compaction of {state.session}", job, self._ended)

    async def _made(self, policy: Policy, snapshot: _Question) -> Plan | None:
        """The plan of *policy*, with the summary that it wants written."""
        view, messages, budget = snapshot.view, snapshot.messages, snapshot.budget
        plan = partial(policy.plan, view, messages, budget)
        if len(messages) <= INLINE_MESSAGES:
            made = plan()
        else:
            made = await off_loop(plan)
        if made is None or made.summary_request is None:
            return made
        prefix_summary = await self._summarising.prefix_summary(
            made.summary_request, messages, view
        )
        filled = partial(with_summary, made, prefix_summary, view, messages, budget)
        return filled() if len(messages) <= INLINE_MESSAGES else await off_loop(filled)

    def _ended(self, work: Work) -> None:
        def ended() -> None:
            if self._job is work:
                self._job = None

        self._core.report(ended)

    def _budget(self, size: Size, trigger: Trigger, limit: int | None = None) -> Budget:
        state = self._core.state
        return Budget(
            used_tokens=size.tokens,
            limit_tokens=self._core.budget_tokens if limit is None else limit,
            summaries=dict(state.summaries),
            profile=self._core.builder.profile,
            committed=len(state.history),
            frame_tokens=self._core.builder.frame_tokens * size.scale_permille // 1000,
            scale_permille=size.scale_permille,
            trigger=trigger,
        )

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

    def _unplanned(self, why: str, snapshot: _Question) -> None:
        if self._planning is snapshot:
            self._planning = None
            self._stalled = (snapshot.budget.used_tokens, self._core.config)
            self._answer(CompactionOutcome(False, why))

    def _planned(self, plan: Plan | None, snapshot: _Question) -> None:
        compaction = self._core.config.compaction
        asked = bool(self._waiting)
        if plan is None or not is_worthwhile(plan, 0.0 if asked else compaction.min_gain):
            self._unplanned("nothing to gain", snapshot)
        elif self._planning is snapshot:
            self._planning, self._ready, self._holds = None, (plan, snapshot), False

    def apply_if_ready(self) -> None:
        """Write the ready plan, if what it was made for still stands and this is the moment for
        it; discard it, if it does not stand.

        The actor calls this where no reply is on its way.
        """
        if not self._applying:
            self.told.apply()
        if self._ready is None or self.is_applying:
            return
        plan, snapshot = self._ready
        if not self._still_stands(snapshot) or not self._is_wanted(snapshot):
            self._ready, self._holds = None, False
            self._discard()
            return
        if self._waiting:
            self._apply("asked")
            return
        if plan.trigger == "asked" or snapshot.config.schedule == "at_once":
            self._apply(plan.trigger)
            return
        used, cache = self._core.context_tokens, self._cache()
        decision = decide(
            used_tokens=used,
            limit_tokens=self._core.budget_tokens,
            cleared_tokens=plan.tokens_before - plan.tokens_after,
            kept_before_tokens=plan.figures.get("kept_before_tokens", 0),
            expected_requests=expected_requests(
                snapshot.messages[snapshot.view.compacted_before :]
            ),
            cache=cache,
            timing="idle" if self._rests else "step",
        )
        if should_apply(decision, cache, is_due=self._is_due(used)):
            self._apply(decision.trigger, decision.figures)
        else:
            self._holds = True

    def _is_wanted(self, question: _Question) -> bool:
        """Is what was asked still what the configuration asks?"""
        core = self._core
        is_limit = question.budget.limit_tokens == core.budget_tokens
        return is_limit and question.config == core.config.compaction

    def _apply(self, trigger: Trigger, figures: dict[str, int] | None = None) -> None:
        assert self._ready is not None  # the callers have looked
        (plan, _), self._ready, self._holds = self._ready, None, False
        all_figures = {**plan.figures, **(figures or {})}
        self.write(msgspec.structs.replace(plan, trigger=trigger, figures=all_figures))

    def _still_stands(self, snapshot: _Snapshot) -> bool:
        state = self._core.state
        if (state.generation, state.view.version) != (snapshot.generation, snapshot.view.version):
            return False
        messages = state.context_messages()
        if len(messages) < len(snapshot.messages):
            return False
        return all(a is b for a, b in zip(snapshot.messages, messages, strict=False))

    def write(self, plan: Plan) -> None:
        """Journal *plan*; the view changes once that is durable. What a long context looks like
        after it is found out first, in a thread: the event loop never builds it anew."""
        self._applying = True
        self._stalled = None
        core, state = self._core, self._core.state
        messages = state.context_messages()
        if len(messages) <= INLINE_MESSAGES:
            self._journal(plan, None)
            return
        snapshot = _Snapshot(state.generation, state.view, messages)
        after = state.view.applied(plan, len(messages))

        def prepared(warmed: ContextBuilder | None) -> None:
            if self._preparing is not work:
                return
            self._preparing = None
            if self._still_stands(snapshot):
                self._journal(plan, warmed)
            else:
                self._outrun()

        name, trouble = f"compaction of {state.session}, applied", "compaction.failed"
        work = core.warm(name, messages, after, prepared, trouble=trouble)
        self._preparing = work

    def _outrun(self) -> None:
        self._applying = False
        self._discard()
        self._resume()

    def _discard(self) -> None:
        self._core.log.event("compaction.discarded")
        self._answer(CompactionOutcome(False, "the conversation changed meanwhile"))

    def _journal(self, plan: Plan, warmed: ContextBuilder | None) -> None:
        builder = self._core.builder

        def applied() -> None:
            self._applying = False
            self._core.take_warmed(warmed, builder)
            self._core.log.event(
                "compaction.applied",
                before=plan.tokens_before,
                after=plan.tokens_after,
                trigger=plan.trigger,
            )
            outcome = CompactionOutcome(True, plan.reason, plan.tokens_before, plan.tokens_after)
            self._answer(outcome)
            self._resume()

        self._core.journal.write(record_of(plan), applied)

    def force(
        self, size: Size, ceiling: int, *, overflow: bool, exhausted: Callable[[], None]
    ) -> None:
        """Make a request fit *ceiling* that does not, now: by the configured policy if that is
        enough, else by the hardest means there are. The build that waits goes on once it is
        applied; *exhausted* is called if nothing is left to free.
        """
        if self._core.config.compaction.enabled is False:
            exhausted()
            return
        self._drop_job()
        state = self._core.state
        messages, view = state.context_messages(), state.view
        budget = self._budget(size, "overflow" if overflow else "window", ceiling)
        snapshot = _Snapshot(state.generation, view, messages)
        find = partial(hardest_plan, escalation_of(self._core.policy), view, messages, budget)

        def found(plan: Plan | None, faults: Sequence[Exception]) -> None:
            self._applying = False
            for fault in faults:
                self._core.log.bug("compaction.failed", fault)
            if plan is not None:
                self.write(plan)
                return
            self._answer(CompactionOutcome(False, "nothing to gain"))
            exhausted()

        if len(messages) <= INLINE_MESSAGES:
            found(*find())
            return
        self._applying = True

        async def look() -> None:
            plan: Plan | None = None
            faults: tuple[Exception, ...] = ()
            try:
                plan, faults = await off_loop(find)
            except Exception as error:  # there is no thread to be had
                faults = (error,)
            self._core.report(partial(looked, plan, faults))

        def looked(plan: Plan | None, faults: Sequence[Exception]) -> None:
            if self._preparing is work:
                self._preparing = None
                if self._still_stands(snapshot):
                    found(plan, faults)
                else:
                    self._outrun()

        work = self._core.works.start(f"compaction of {state.session}, forced", look)
        self._preparing = work

    def _answer(self, outcome: CompactionOutcome) -> None:
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.set(outcome)

    def fail(self, error: BaseException) -> None:
        """The session is gone: whoever waits gets *error*, and what was planned never comes."""
        self._drop_job()
        self.results.close()
        self._applying = self.told.is_applying = False
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.fail(error)
