"""Building the request of one step: the order of its stages, and what a build waits for.

A build may wait for four things: the delay of a retry, a slice of its tenant's budget, a compaction
that is being written, and a thread. After each wait it starts again with the first check, because
the budget may have been spent or the view may have changed in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial

from llmsession.errors import ContextTooLarge, contained, contained_in_work, error_text
from llmsession.turns import events as e
from llmsession.turns import records as r
from llmsession.turns.event_choice import event_for_budget
from llmsession.turns.machine import Phase
from llmsession.turns.messages import Message
from llmsession.turns.spending.spending import exhausted

from ..compacting.compactor import INLINE_MESSAGES, Compactor
from ..core.core import Core
from ..core.request_builder import Built, ContextBuilder
from ..core.turn_run import Run
from .turn_works import RunWorks

__all__ = ["NEXT_STAGES", "RequestBuild", "RequestBuilds", "Stage"]

WARNING = 0.90
"""The share of the budget from which a context is reported as large, unless configured
otherwise.
"""


class Stage(StrEnum):
    """The stage that a build has reached. ``NEXT_STAGES`` says which stages may follow."""

    DELAYED = "waits for the delay of a retry"
    SPENDING = "checks the budgets"
    RESERVING = "waits for a slice of the tenant's budget, which other managers share"
    COMPACTING = "applies a plan that is ready"
    WAITING = "waits until a compaction is made and written; the view before it is outdated"
    PREPARING = "checks whether a long context is new to the builder"
    WARMING = "lets a thread build such a context for the first time"
    COUNTING = "builds and counts the request"
    CHECKING = "compares the request with its limit and with the validity rules"
    SHRINKING = "makes a compaction whatever the schedule says: the request is too large"
    SENT = "has given the turn its request"
    FAILED = "has given the turn an error instead of a request"


NEXT_STAGES: dict[Stage, tuple[Stage, ...]] = {
    Stage.DELAYED: (Stage.SPENDING,),
    Stage.SPENDING: (Stage.COMPACTING, Stage.RESERVING, Stage.FAILED),
    Stage.RESERVING: (Stage.SPENDING, Stage.FAILED),
    Stage.COMPACTING: (Stage.PREPARING, Stage.WAITING),
    Stage.WAITING: (Stage.SPENDING,),
    Stage.PREPARING: (Stage.COUNTING, Stage.WARMING),
    Stage.WARMING: (Stage.SPENDING,),
    Stage.COUNTING: (Stage.CHECKING, Stage.WAITING),
    Stage.CHECKING: (Stage.SENT, Stage.SHRINKING, Stage.FAILED),
    Stage.SHRINKING: (Stage.SPENDING, Stage.FAILED),
    Stage.SENT: (),
    Stage.FAILED: (),
}
"""The stages that may follow each stage. Besides, a bug leads from every stage to FAILED."""


class RequestBuild:
    """One build.

    It is outdated once its turn has stopped or another build has replaced it. Whatever it waited
    for may still arrive then, and has no effect.
    """

    def __init__(self, builds: RequestBuilds, run: Run, effect: e.BuildContext) -> None:
        self.run = run
        self.stage = Stage.DELAYED
        self._builds = builds
        self._effect = effect
        self._built: Built
        self._was_warmed = False
        """A thread has already built this context. It is not tried again, even if that failed."""
        self._was_kept_small = False
        """The policy's own limit has already been checked. It is checked once, so that a request
        waits once.
        """

    @property
    def is_outdated(self) -> bool:
        """Must this build stop?"""
        return self._builds.current is not self or self.run.turn.phase is not Phase.BUILDING

    def begin(self) -> None:
        """Perform the stages from the first check on, until one of them waits or the build is
        over.
        """
        if self.is_outdated:
            return
        stage: Stage | None = Stage.SPENDING
        try:
            while stage is not None:
                self._enter(stage)
                stage = _PERFORM[stage](self)
        except BaseException as raised:  # a bug of ours or of a policy: it ends only the turn
            error = contained(raised)
            if stage not in _FAILS_THE_TURN:
                raise
            self._builds.core.log.bug("request.unbuildable", error)
            self.stage = Stage.FAILED
            self._builds.forget(self)
            self._builds.feed(self.run, self._gave_up("fatal", error_text(error)))

    def _enter(self, stage: Stage) -> None:
        assert stage in NEXT_STAGES[self.stage], f"{stage.name} after {self.stage.name}"
        self.stage = stage
        if not NEXT_STAGES[stage]:
            self._builds.forget(self)

    def _fail(self, event: e.Event) -> None:
        self._enter(Stage.FAILED)
        self._builds.feed(self.run, event)

    def _gave_up(self, cause: str, error: str) -> e.Event:
        return e.GaveUpDropped(tag=self._effect.tag, cause=cause, error=error)

    # The stages. Each returns the next one, or None where it waits or the build is over.

    def _check_spending(self) -> Stage | None:
        core, run = self._builds.core, self.run
        run.exceeded = core.account.exceeded(core.config.budget)
        if run.exceeded is None:
            return Stage.COMPACTING if core.account.has_room else Stage.RESERVING
        error, on_failure = str(exhausted(run.exceeded)), core.config.on_failure
        tag = self._effect.tag
        self._fail(event_for_budget(run.turn, error, on_failure=on_failure, tag=tag))
        return None

    def _reserve(self) -> None:
        self._builds.reserve(self._reserved)

    def _reserved(self, error: str) -> None:
        if error and not self.is_outdated:
            self._fail(self._gave_up("fatal", error))
        else:
            self.begin()

    def _apply_compaction(self) -> Stage:
        compactor = self._builds.compactor
        compactor.apply_if_ready()
        return Stage.WAITING if compactor.is_applying else Stage.PREPARING

    def _wait(self) -> None:
        # The compaction makes a new view, and a thread may have to build that one, too.
        self._was_warmed = False

    def _prepare(self) -> Stage:
        core = self._builds.core
        is_new = not self._was_warmed and core.builder.is_cold
        is_long = is_new and len(core.state.context_messages()) > INLINE_MESSAGES
        return Stage.WARMING if is_long else Stage.COUNTING

    def _warm(self) -> None:
        self._builds.warm(self._builds.core.state.context_messages(), self._warmed)

    def _warmed(self) -> None:
        self._was_warmed = True
        self.begin()

    def _count(self) -> Stage:
        core, compactor, state = self._builds.core, self._builds.compactor, self._builds.core.state
        self._built = core.builder.build(state.context_messages(), state.view, state.reported)
        core.counted(self._built.size)
        # Only now is the size of the context known, and the plan's moment may depend on it.
        compactor.apply_if_ready()
        if not (compactor.is_applying or self._was_kept_small or self._effect.overflows):
            self._was_kept_small = True
            compactor.keep_limit(self._built.size)
        return Stage.WAITING if compactor.is_applying else Stage.CHECKING

    @property
    def _limit_tokens(self) -> int:
        """The largest size of the request.

        If the provider has refused a request as too large, the next one must be smaller than that
        one, whatever our estimate says.
        """
        budget = self._builds.core.budget_tokens
        return min(budget, self.run.sent_tokens - 1) if self._effect.overflows else budget

    def _check(self) -> Stage | None:
        built = self._built
        if built.tokens > self._limit_tokens:
            return Stage.SHRINKING
        if not built.violations:
            return Stage.SENT
        broken = "; ".join(f"{v.rule} {v.where}: {v.text}" for v in built.violations[:3])
        self._builds.core.log.trouble("request.invalid", self.run.turn, rules=broken)
        self._fail(self._gave_up("invalid_request", broken))
        return None

    def _shrink(self) -> None:
        self._was_warmed = False
        size, limit = self._built.size, self._limit_tokens

        def exhausted() -> None:
            if self.is_outdated:
                self._builds.resume()  # the build of a later turn may wait for this one
                return
            error = str(ContextTooLarge(size.tokens, limit))
            self._fail(e.ContextOverflowed(tag=self._effect.tag, error=error))

        overflow = bool(self._effect.overflows)
        self._builds.compactor.force(size, limit, overflow=overflow, exhausted=exhausted)

    def _send(self) -> None:
        self.run.request, self.run.sent_size = self._built.request, self._built.size
        self._builds.warn(self.run, self._built.tokens)
        self._builds.compactor.consider(self._built.size)
        self._builds.feed(self.run, e.ContextBuilt(tag=self._effect.tag))


_PERFORM: dict[Stage, Callable[[RequestBuild], Stage | None]] = {
    Stage.SPENDING: RequestBuild._check_spending,
    Stage.RESERVING: RequestBuild._reserve,
    Stage.COMPACTING: RequestBuild._apply_compaction,
    Stage.WAITING: RequestBuild._wait,
    Stage.PREPARING: RequestBuild._prepare,
    Stage.WARMING: RequestBuild._warm,
    Stage.COUNTING: RequestBuild._count,
    Stage.CHECKING: RequestBuild._check,
    Stage.SHRINKING: RequestBuild._shrink,
    Stage.SENT: RequestBuild._send,
}

_FAILS_THE_TURN = (Stage.COUNTING, Stage.CHECKING, Stage.SHRINKING, Stage.SENT)
"""A bug in one of these stages ends the turn. A bug in another stage ends the actor."""


class RequestBuilds:
    """The builds of one session. At most one of them is current.

    ``feed`` gives an event to the turn of a run.
    """

    def __init__(
        self,
        core: Core,
        compactor: Compactor,
        works: RunWorks,
        feed: Callable[[Run, e.Event], None],
    ) -> None:
        self.core = core
        self.compactor = compactor
        self.feed = feed
        self.current: RequestBuild | None = None
        """The newest build, until its turn has its request or stops. Every other build is
        outdated.
        """
        self._works = works
        self._has_warned = False

    def start(self, run: Run, effect: e.BuildContext) -> None:
        """Build the request that *effect* asks for, after its delay."""
        self.current = build = RequestBuild(self, run, effect)
        if effect.delay_s > 0:
            self.core.log.event("step.retried", run.turn, delay_s=effect.delay_s)
            self._works.after(run, "retry", effect.delay_s, build.begin)
        else:
            build.begin()

    def stop(self, run: Run) -> None:
        """The turn of *run* stops, so no request is built for it any more."""
        if self.current is not None and self.current.run is run:
            self.current = None

    def forget(self, build: RequestBuild) -> None:
        """*build* is over. Drop the reference to it and through it to its turn."""
        if self.current is build:
            self.current = None

    def resume(self) -> None:
        """No compaction is being written any more, so the build that waited for one continues."""
        build = self.current
        if build is not None and build.stage in (Stage.WAITING, Stage.SHRINKING):
            build.begin()

    def reserve(self, go_on: Callable[[str], None]) -> None:
        """Wait for a slice of the tenant's budget. Then call *go_on*, with the error if the store
        could not be asked and else with "".
        """
        core = self.core

        async def reserve() -> None:
            text = ""
            try:
                await core.account.make_room()
            except BaseException as error:
                text = error_text(contained_in_work(error))
            core.report(partial(go_on, text))

        core.works.start(f"budget of {core.session}", reserve)

    def warm(self, messages: Sequence[Message], go_on: Callable[[], None]) -> None:
        """Let a thread build the request of a long context for the first time. Then call
        *go_on*.
        """
        core, builder = self.core, self.core.builder

        def looked(warmed: ContextBuilder | None) -> None:
            core.take_warmed(warmed, builder)
            go_on()

        name = f"first look at the context of {core.session}"
        core.warm(name, messages, core.state.view, looked, trouble="request.unbuildable")

    def warn(self, run: Run, tokens: int) -> None:
        """Record ``context.warning`` when a context comes close to its budget, or a compaction
        suggests a new session.

        A near-full context is reported once, until it is smaller again.
        """
        core = self.core
        share = core.config.compaction.warning or WARNING
        is_near = tokens >= core.budget_tokens * share
        suggests = core.state.suggests_new_session
        if suggests or (is_near and not self._has_warned):
            record = r.ContextWarned(
                turn=run.number,
                tokens=tokens,
                budget_tokens=core.budget_tokens,
                suggests_new_session=suggests,
            )
            core.journal.write(record)
        self._has_warned = is_near
