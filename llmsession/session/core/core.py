"""State and services that the parts of one live session share. Only the actor changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.planning.schedule import Asking, asking_of
from llmsession.compaction.tokens.messages import text_tokens_for
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig, contained, contained_in_work, error_text
from llmsession.providers.counting.counter import default_counter
from llmsession.providers.counting.counts import Count, Counter
from llmsession.providers.protocol import Provider
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.request import Frame, Profile, checked_profile
from llmsession.turns.spending.prices import PriceTable

from ..log.journal import Journal
from ..log.reported_usage import Calibrations
from ..log.state import SessionState
from ..tasks.owner_lease import OwnerLease
from ..tasks.silence import SilenceWatch
from ..tasks.task_host import LoopCalls
from ..tasks.timers import Timers
from ..tasks.tool_threads import ToolThreads
from ..tasks.worker_thread import off_loop
from ..tasks.works import Work, Works
from ..values.config import CAP_CHARS, CompactionConfig, SessionConfig, store_config
from ..values.retention import Retention
from .account import Account, check_priced
from .counters import Counters
from .observers import Observers, SessionObserver
from .request_builder import ContextBuilder, Size
from .session_log import SessionLog, log_trouble
from .subscriptions import Subscriptions
from .tenants import Tenants
from .turn_run import Run

MIN_CAP_CHARS = 1_000

__all__ = ["Core", "Report", "Services", "profile_of"]

Report: TypeAlias = Callable[[], None]
"""The report of a work: a function that the actor calls when it reads it from its mailbox."""


class Services:
    """What all sessions of one manager share: provider, clock, works, prices, and so on."""

    __slots__ = (
        "_capping", "_frame", "_shared", "calibrations", "clock", "counter", "lease", "logger",
        "loop_calls", "observers", "open_runs", "prices", "provider", "retention", "silence",
        "subscriptions", "summariser", "tenants", "timers", "tool_threads", "works",
    )  # fmt: skip

    def __init__(
        self,
        *,
        provider: Provider,
        works: Works,
        loop_calls: LoopCalls,
        timers: Timers,
        subscriptions: Subscriptions,
        clock: Callable[[], float],
        lease: OwnerLease,
        logger: Any | None,
        prices: PriceTable,
        tenants: Tenants,
        open_runs: set[Run],
        summariser: Provider | None = None,
        observers: Sequence[SessionObserver] = (),
        retention: Sequence[Retention] = (),
    ) -> None:
        self.provider = provider
        self.retention = tuple(retention)
        """The manager's retention rules."""
        self.summariser = summariser
        self.observers = Observers(observers, prices, logger)
        self.calibrations = Calibrations()
        self.counter: Counter | None = None
        """The token counter. The first ``count`` creates it."""
        self.prices = prices
        self.tenants = tenants
        self.works = works
        self.loop_calls = loop_calls
        self.timers = timers
        self.silence = SilenceWatch(timers)
        self.subscriptions = subscriptions
        self.clock = clock
        self.lease = lease
        self.logger = logger
        self.open_runs = open_runs
        """The accepted turns of all live sessions that have not ended."""
        self.tool_threads = ToolThreads()
        self._shared: tuple[SessionConfig, msgspec.Raw] | None = None
        self._frame: tuple[SessionConfig, Profile, Frame] | None = None
        self._capping: tuple[CompactionConfig, int, CompactionConfig] | None = None

    def shared(self, config: SessionConfig) -> tuple[SessionConfig, msgspec.Raw]:
        """The checked *config* and its logged form.

        If the previous session had an equal one, that one is returned, so that many sessions of one
        kind share the memory of their tools.
        """
        stored = store_config(config)
        # The bytes are compared as well: 1 and 1.0 are equal, but are sent as different text.
        if self._shared is None or self._shared[1] != stored or self._shared[0] != config:
            self._shared = (config, stored)
        return self._shared

    def check_priced(self, config: SessionConfig, tenant: str | None) -> None:
        """Raises InvalidConfig if a budget is in dollars and a model has no price."""
        summariser = config.compaction.summariser
        models = (config.model,) if summariser is None else (config.model, summariser.model)
        for budget in (config.budget, self.tenants.budget(tenant)):
            for model in models:
                check_priced(model, budget, self.prices)

    def frame(self, config: SessionConfig, profile: Profile) -> Frame:
        """The parts of a request of *config* that are not messages, for a model with *profile*."""
        known = self._frame
        if known is None or known[0] is not config or known[1] != profile:
            known = self._frame = (config, profile, config.frame(profile))
        return known[2]

    def capping(self, compaction: CompactionConfig, cap_chars: int) -> CompactionConfig:
        """*compaction* with *cap_chars*: one object for the sessions that follow each other."""
        known = self._capping
        if known is None or known[0] is not compaction or known[1] != cap_chars:
            capping = msgspec.structs.replace(compaction, cap_chars=cap_chars)
            known = self._capping = (compaction, cap_chars, capping)
        return known[2]


def profile_of(provider: Provider, config: SessionConfig) -> Profile:
    """The profile of the configured model. Raises InvalidConfig if the provider cannot give it."""
    try:
        return checked_profile(provider.profile(config.model))
    except BaseException as raised:  # a provider is foreign code
        error = contained(raised)
        message = f"the provider has no profile of model {config.model!r}: {error_text(error)}"
        raise InvalidConfig(message) from error


def _asking(policy: Policy, config: SessionConfig) -> Asking:
    """When *policy* is asked. Raises InvalidConfig if it cannot say."""
    try:
        return asking_of(policy, config.compaction.schedule)
    except BaseException as raised:  # a policy may be anybody's code
        error = contained(raised)
        message = f"policy {config.compaction.policy!r} cannot be used: {error_text(error)}"
        raise InvalidConfig(message) from error


class Core:
    """One session's state, and everything that its parts need to read and write it.

    ``report`` puts a report of the actor's own work into the mailbox, and the actor calls it when
    it reads it. So everything that changes the state runs in the actor, one call after the other.

    The class is not called a context, because the context is what the model is sent.
    """

    __slots__ = (
        "account", "asking", "budget_tokens", "builder", "capping", "config", "context_size",
        "counted_at", "counters", "is_changing", "journal", "labels", "late_reports", "log",
        "policy", "provider", "report", "services", "session", "state", "still_running",
        "subscriptions", "timers", "window_tokens", "works",
    )  # fmt: skip

    def __init__(
        self,
        *,
        state: SessionState,
        config: SessionConfig,
        journal: Journal,
        report: Callable[[Report], None],
        services: Services,
    ) -> None:
        self.session = state.session
        self.state = state
        self.is_changing = False
        """Is a change of the history being written, or what it erases? No turn starts then."""
        self.config = config
        self.journal = journal
        self.report = report
        self.services = services
        self.provider = services.provider
        self.works = services.works
        self.timers = services.timers
        self.subscriptions = services.subscriptions
        self.log = SessionLog(services.logger, state.session, content=config.log_content)
        profile = profile_of(services.provider, config)
        self.builder = ContextBuilder(
            profile, services.frame(config, profile), services.calibrations
        )
        sizes = config.sizes(profile)
        self.budget_tokens = sizes.budget_tokens
        """The largest size of a request, in tokens."""
        self.window_tokens = sizes.window_tokens
        """The largest size of a request and its reply together, in tokens."""
        self.account = Account(state, services.prices, services.tenants)
        self.context_size: Size | None = None
        """The size of the newest request; None before the first one."""
        self.counted_at: float | None = None
        """When ``context_size`` was noted, in seconds since the epoch."""
        self.policy = config.compaction.make_policy(self.budget_tokens)
        self.asking = _asking(self.policy, config)
        self.capping = self._capping()
        """How results are capped and summarised when they arrive."""
        self.counters = Counters()
        self.labels = state.labels
        """The session's labels, including records that are queued for the log."""
        self.late_reports = 0
        """How many reports came after their turn had ended or gone on without that work."""
        self.still_running: set[str] = set()
        """The names of works of ended turns that still run."""

    def relabel(
        self,
        labels: dict[str, str],
        commands: tuple[r.CommandAnswer, ...] = (),
        then: Callable[[], None] | None = None,
    ) -> None:
        """Write *labels*, which replace all labels of the session, to the log.

        *then* is called when they are durable.
        """
        self.labels = labels
        self.journal.write(r.SessionLabelled(labels=labels, commands=commands), then)

    def _capping(self) -> CompactionConfig:
        # A single result may fill at most a quarter of a request.
        compaction = self.config.compaction
        max_chars = int(self.budget_tokens * self.builder.profile.chars_per_token) // 4
        cap_chars = min(compaction.cap_chars or CAP_CHARS, max(MIN_CAP_CHARS, max_chars))
        return self.services.capping(compaction, cap_chars)

    @property
    def context_tokens(self) -> int:
        """The tokens of the newest request; 0 before the first one."""
        return self.context_size.tokens if self.context_size is not None else 0

    def size_now(self, view: View | None = None) -> Size:
        """The size of the context as it would be sent now, or as *view* would show it."""
        if view is None or view is self.state.view:
            return self.builder.size_of(self.state)
        # The reported usage belongs to a request that was built with the state's view.
        messages = self.state.context_messages()
        return self.builder.size(self.builder.project(messages, view), messages, view, None)

    async def count(self, view: View | None = None) -> Count:
        """Count the context as it would be sent now, or as *view* would show it.

        See ``LLMSession.count``.
        """
        messages, view = self.state.context_messages(), view or self.state.view
        request, size = self.builder.project(messages, view), self.size_now(view)
        if self.services.counter is None:
            self.services.counter = default_counter(
                self.provider,
                estimate=text_tokens_for,
                on_failure=lambda error: log_trouble(
                    self.services.logger, "counter.failed", error=error_text(error)
                ),
            )
        count = await self.services.counter.count(request)
        if size.method != "usage" or count.method == "api":
            return count
        margin = size.sized.margin_tokens
        accuracy = count.accuracy if margin is None else margin / max(1, size.tokens)
        return msgspec.structs.replace(
            count, input_tokens=size.tokens, method="usage", accuracy=accuracy
        )

    def counted(self, size: Size) -> None:
        """Note *size* as the size of the context as it would be sent now."""
        self.context_size = size
        self.counted_at = self.services.clock()

    def warm(
        self,
        name: str,
        messages: Sequence[Message],
        view: View,
        warmed: Callable[[ContextBuilder | None], None],
        *,
        trouble: str,
    ) -> Work:
        """Start the work *name*: a thread builds the request for *messages* and *view* with a new
        builder.

        *warmed* is reported with that builder. If the build fails, the error is logged as *trouble*
        and *warmed* gets None; the error will come up again where the request is built.
        """
        builder = self.builder

        async def warm() -> None:
            warmed_builder: ContextBuilder | None = None
            try:
                warmed_builder = await off_loop(builder.warmed, messages, view)
            except BaseException as error:
                self.log.bug(trouble, contained_in_work(error))
            self.report(partial(warmed, warmed_builder))

        return self.works.start(name, warm)

    def take_warmed(self, warmed: ContextBuilder | None, old: ContextBuilder) -> None:
        """Use *warmed* from now on, unless its predecessor *old* has been replaced in the
        meantime.
        """
        if warmed is not None and self.builder is old:
            self.builder = warmed

    def renew_builder(self) -> None:
        """Drop everything that the builder has cached of earlier requests."""
        profile = self.builder.profile
        self.builder = ContextBuilder(
            profile, self.services.frame(self.config, profile), self.services.calibrations
        )

    def configure(self, config: SessionConfig) -> None:
        """Use *config* from now on, with a new builder.

        Raises the errors of ``profile_of``, and InvalidConfig for its sizes or its policy. Then
        nothing is changed.
        """
        profile = profile_of(self.provider, config)
        config.check_model(profile)
        sizes = config.sizes(profile)
        policy = config.compaction.make_policy(sizes.budget_tokens)
        asking = _asking(policy, config)
        self.builder = ContextBuilder(
            profile, self.services.frame(config, profile), self.services.calibrations
        )
        self.budget_tokens, self.window_tokens = sizes.budget_tokens, sizes.window_tokens
        self.config, self.policy, self.asking = config, policy, asking
        self.capping = self._capping()
        self.log = SessionLog(self.services.logger, self.session, content=config.log_content)
