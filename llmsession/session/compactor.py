"""The compaction job of one session: plans in the background, applies by compare-and-swap.

A plan is made on a snapshot and is only worth something for that snapshot. It is applied where
no reply is on its way: a reply that streams was asked for under the old view, and thinking in
it would be bound to a prefix that is not sent any more.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio.to_thread
import msgspec

from llmsession.compaction.plan import Budget, Plan, worth
from llmsession.compaction.policies import SwapToolResults
from llmsession.errors import error_text
from llmsession.turns.messages import Message
from llmsession.turns.records import CompactionApplied

from .config import SessionConfig
from .core import Core
from .promise import Promise
from .works import Work

__all__ = ["CompactionOutcome", "Compactor"]

INLINE_MESSAGES = 64
"""Up to here a plan costs less than the hop to a thread and back."""


class CompactionOutcome(msgspec.Struct, frozen=True):
    """What a compaction did. Tokens are estimates of the messages as they are shown."""

    applied: bool
    reason: str
    tokens_before: int = 0
    tokens_after: int = 0


class _Snapshot(msgspec.Struct, frozen=True):
    generation: int
    version: int
    messages: tuple[Message, ...]


class Compactor:
    """At most one job per session. ``resume`` is called when a build that waited may go on."""

    def __init__(self, core: Core, resume: Callable[[], None]) -> None:
        self._core = core
        self._resume = resume
        self._job: Work | None = None
        self._planning: _Snapshot | None = None
        """What the job plans for. A plan for another snapshot is of a job that was cancelled."""
        self._ready: tuple[Plan, _Snapshot] | None = None
        self._applying = False
        self._stalled: tuple[int, SessionConfig] | None = None
        """How large a context gained too little, and under which configuration."""
        self._waiting: list[Promise[CompactionOutcome]] = []

    @property
    def jobs(self) -> tuple[str, ...]:
        """The name of the job while it runs, or while its plan waits to be applied."""
        return ("compaction",) if self._job or self._ready else ()

    @property
    def is_applying(self) -> bool:
        """Is a ``compaction.applied`` on its way into the store? No request is built then."""
        return self._applying

    @property
    def is_idle(self) -> bool:
        """No job runs, and no plan waits or is being written."""
        return self._job is None and self._ready is None and not self._applying

    def consider(self, tokens: int) -> None:
        """Start the job if a context of *tokens* is past the threshold and nothing forbids it."""
        compaction = self._core.config.compaction
        if not compaction.enabled or not self.is_idle:
            return
        if self._is_stalled(tokens):
            return
        if compaction.policy().due(tokens, self._core.budget_tokens):
            self._start(tokens)

    def _is_stalled(self, tokens: int) -> bool:
        """Did the last one gain too little, and has nothing changed that could give more? A
        context that is clearly larger is a change; so is a smaller one, after a drop or a clear."""
        if self._stalled is None:
            return False
        at, config = self._stalled
        enough = at * (1 + config.compaction.min_gain)
        return config is self._core.config and at <= tokens < enough

    def request(self, promise: Promise[CompactionOutcome], tokens: int) -> None:
        """Compact now, whatever the threshold says; *promise* gets the outcome."""
        self._waiting.append(promise)
        if self.is_idle:
            self._start(tokens)

    def cancel(self) -> None:
        """Stop the job; what it would have decided is not applied."""
        self._drop_job()
        self._answer(CompactionOutcome(False, "cancelled"))

    def _drop_job(self) -> None:
        if self._job is not None:
            self._job.cancel()
        # Forgotten at once: it may take a while to end, and the next one does not wait for it.
        self._job = self._planning = self._ready = None

    def _start(self, tokens: int) -> None:
        state = self._core.state
        snapshot = _Snapshot(state.generation, state.view.version, state.context_messages())
        policy, view = self._core.config.compaction.policy(), state.view
        budget = self._budget(tokens)
        self._planning = snapshot
        report = self._core.report

        def plan() -> Plan | None:
            return policy.plan(view, snapshot.messages, budget)

        async def job() -> None:
            try:
                if len(snapshot.messages) <= INLINE_MESSAGES:
                    made = plan()
                else:
                    made = await anyio.to_thread.run_sync(plan, abandon_on_cancel=True)
            except Exception as error:  # a policy may be anybody's code
                self._core.log.bug("compaction.failed", error)
                told = f"failed: {error_text(error)}"
                report(lambda: self._unplanned(told, snapshot, tokens))
            else:
                report(lambda: self._planned(made, snapshot, tokens))

        self._job = self._core.works.start(f"compaction of {state.session}", job, self._ended)

    def _ended(self, work: Work) -> None:
        def ended() -> None:
            if self._job is work:
                self._job = None

        self._core.report(ended)

    def _budget(self, tokens: int) -> Budget:
        state = self._core.state
        return Budget(
            used_tokens=tokens,
            limit_tokens=self._core.budget_tokens,
            summaries=dict(state.summaries),
            profile=self._core.builder.profile,
            committed=len(state.history),
        )

    def _unplanned(self, why: str, snapshot: _Snapshot, tokens: int) -> None:
        if self._planning is snapshot:
            self._planning = None
            self._stalled = (tokens, self._core.config)
            self._answer(CompactionOutcome(False, why))

    def _planned(self, plan: Plan | None, snapshot: _Snapshot, tokens: int) -> None:
        compaction = self._core.config.compaction
        asked = bool(self._waiting)
        if plan is None or not worth(plan, 0.0 if asked else compaction.min_gain):
            self._unplanned("nothing to gain", snapshot, tokens)
        elif self._planning is snapshot:
            self._planning, self._ready = None, (plan, snapshot)

    def apply_if_ready(self) -> None:
        """Write the ready plan, if what it was made for still stands; else discard it.

        The actor calls this where no reply is on its way.
        """
        if self._ready is None or self._applying:
            return
        (plan, snapshot), self._ready = self._ready, None
        if not self._still_stands(snapshot):
            self._core.log.event("compaction.discarded")
            self._answer(CompactionOutcome(False, "the conversation changed meanwhile"))
            return
        self.write(plan)

    def _still_stands(self, snapshot: _Snapshot) -> bool:
        state = self._core.state
        if (state.generation, state.view.version) != (snapshot.generation, snapshot.version):
            return False
        messages = state.context_messages()
        if len(messages) < len(snapshot.messages):
            return False
        return all(a is b for a, b in zip(snapshot.messages, messages, strict=False))

    def write(self, plan: Plan) -> None:
        """Journal *plan*; the view changes once that is durable."""
        self._applying = True
        self._stalled = None
        record = CompactionApplied(
            policy=plan.policy,
            reason=plan.reason,
            frontier=plan.frontier,
            frozen=plan.frozen,
            tokens_before=plan.tokens_before,
            tokens_after=plan.tokens_after,
            results_summarised=plan.results_summarised,
            results_redacted=plan.results_redacted,
            turns_compacted=plan.turns_compacted,
            voids_thinking=plan.voids_thinking,
        )

        def applied() -> None:
            self._applying = False
            self._core.log.event(
                "compaction.applied", before=plan.tokens_before, after=plan.tokens_after
            )
            outcome = CompactionOutcome(True, plan.reason, plan.tokens_before, plan.tokens_after)
            self._answer(outcome)
            self._resume()

        self._core.journal.write(record, applied)

    def forced(self, tokens: int, over_tokens: int) -> Plan | None:
        """A plan for a request that does not fit, made at once: as the configuration says if
        that frees *over_tokens*, else harder; the hardest if none does. None if nothing is left.
        """
        if not self._core.config.compaction.enabled:
            return None
        state, budget = self._core.state, self._budget(tokens)
        best: Plan | None = None
        for policy in self._ladder():
            plan = policy.plan(state.view, state.context_messages(), budget)
            if plan is not None and worth(plan, 0.0):
                best = plan
                if plan.tokens_before - plan.tokens_after >= over_tokens:
                    break
        return best

    def _ladder(self) -> tuple[SwapToolResults, ...]:
        policy = self._core.config.compaction.policy()
        steps = policy.keep_recent_steps or 20
        return (
            policy,
            msgspec.structs.replace(
                policy, keep_recent_turns=1, keep_recent_steps=max(1, steps // 4)
            ),
            msgspec.structs.replace(policy, keep_recent_turns=1, keep_recent_steps=1),
            msgspec.structs.replace(
                policy, keep_recent_turns=1, keep_recent_steps=1, mode="redact"
            ),
        )

    def _answer(self, outcome: CompactionOutcome) -> None:
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.set(outcome)

    def fail(self, error: BaseException) -> None:
        """The session is gone: whoever waits gets *error*, and what was planned never comes."""
        self._drop_job()
        self._applying = False
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.fail(error)
