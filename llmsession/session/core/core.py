"""What the parts of one live session share. The actor owns it; nobody else changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import anyio
import msgspec

from llmsession.compaction.tokens.messages import text_tokens_for
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig, error_text
from llmsession.providers.counting.counter import default_counter
from llmsession.providers.counting.counts import Count, Counter
from llmsession.providers.protocol import Provider
from llmsession.turns.messages import Message
from llmsession.turns.request import Frame, Profile
from llmsession.turns.spending.prices import PriceTable

from ..log.journal import Journal
from ..log.reported_usage import Calibrations
from ..log.state import SessionState
from ..tasks.timers import Timers
from ..tasks.worker_thread import off_loop
from ..tasks.works import Work, Works
from ..values.config import CAP_CHARS, CompactionConfig, SessionConfig, store_config
from .account import Account, check_priced
from .counters import Counters
from .observers import Observers, SessionObserver
from .request_builder import ContextBuilder, Size
from .session_log import SessionLog
from .subscriptions import Subscriptions
from .tenants import Tenants

MIN_CAP_CHARS = 1_000
TOOL_THREADS = 256
"""Synchronous tools that run at once in one manager; the next ones wait for a thread."""

__all__ = ["Core", "Report", "Services", "profile_of"]

Report: TypeAlias = Callable[[], None]
"""What a work has to say, as a call that the actor makes."""


class Services:
    """What a manager gives each of its sessions."""

    __slots__ = (
        "_frame", "_shared", "calibrations", "clock", "counter", "hub", "logger", "observers",
        "prices", "provider", "summariser", "tenants", "timers", "tool_threads", "works",
    )  # fmt: skip

    def __init__(
        self,
        *,
        provider: Provider,
        works: Works,
        timers: Timers,
        hub: Subscriptions,
        clock: Callable[[], float],
        logger: Any | None,
        prices: PriceTable,
        tenants: Tenants,
        summariser: Provider | None = None,
        observers: Sequence[SessionObserver] = (),
    ) -> None:
        self.provider = provider
        self.summariser = summariser
        self.observers = Observers(observers, prices, logger)
        self.calibrations = Calibrations()
        self.counter: Counter | None = None
        """Made when somebody counts."""
        self.prices = prices
        self.tenants = tenants
        self.works = works
        self.timers = timers
        self.hub = hub
        self.clock = clock
        self.logger = logger
        # Not the backend's own threads: tools that hang must not keep compaction from running.
        self.tool_threads = anyio.CapacityLimiter(TOOL_THREADS)
        self._shared: tuple[SessionConfig, msgspec.Raw] | None = None
        self._frame: tuple[SessionConfig, Profile, Frame] | None = None

    def shared(self, config: SessionConfig) -> tuple[SessionConfig, msgspec.Raw]:
        """*config*, checked before, and its logged form; those of the session before this one
        where they are alike: many sessions of one kind keep their tools once."""
        stored = store_config(config)
        # The bytes as well: 1 and 1.0 are equal, but are not sent alike.
        if self._shared is None or self._shared[1] != stored or self._shared[0] != config:
            self._shared = (config, stored)
        return self._shared

    def check_priced(self, config: SessionConfig, tenant: str | None) -> None:
        """Raises InvalidConfig where a budget is in dollars and the model has no price."""
        summariser = config.compaction.summariser
        models = (config.model,) if summariser is None else (config.model, summariser.model)
        for budget in (config.budget, self.tenants.budget(tenant)):
            for model in models:
                check_priced(model, budget, self.prices)

    def frame(self, config: SessionConfig, profile: Profile) -> Frame:
        """What surrounds the messages of a session with *config*, whose model has *profile*."""
        known = self._frame
        if known is None or known[0] is not config or known[1] != profile:
            known = self._frame = (config, profile, config.frame(profile))
        return known[2]


def profile_of(provider: Provider, config: SessionConfig) -> Profile:
    """What the configured model needs. Raises InvalidConfig if the provider cannot say."""
    try:
        return provider.profile(config.model)
    except Exception as error:  # a provider may be anybody's code
        message = f"the provider has no profile of model {config.model!r}: {error_text(error)}"
        raise InvalidConfig(message) from error


class Core:
    """One session's state and the ways out of it.

    ``report`` puts a report of our own work into the mailbox; the actor calls it there. So
    everything that changes the state runs in the actor, one thing after the other.
    """

    __slots__ = (
        "account",
        "budget_tokens",
        "builder",
        "capping",
        "config",
        "context_size",
        "counted_at",
        "counters",
        "hub",
        "journal",
        "late_reports",
        "log",
        "policy",
        "provider",
        "report",
        "services",
        "session",
        "state",
        "still_running",
        "timers",
        "works",
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
        self.config = config
        self.journal = journal
        self.report = report
        self.services = services
        self.provider = services.provider
        self.works = services.works
        self.timers = services.timers
        self.hub = services.hub
        self.log = SessionLog(services.logger, state.session, content=config.log_content)
        profile = profile_of(services.provider, config)
        self.builder = ContextBuilder(
            profile, services.frame(config, profile), services.calibrations
        )
        self.budget_tokens = config.sizes(profile).budget_tokens
        """What a request may hold."""
        self.account = Account(state, services.prices, services.tenants)
        self.context_size: Size | None = None
        """The size of the last request that was built, None before there was one."""
        self.counted_at: float | None = None
        """When, in seconds since the epoch."""
        self.policy = config.compaction.make_policy()
        self.capping = self._capping()
        """What results are capped and summarised by when they arrive."""
        self.counters = Counters()
        self.late_reports = 0
        """Reports of work that its turn was no longer doing."""
        self.still_running: set[str] = set()
        """Works of ended turns that still run, by name."""

    def _capping(self) -> CompactionConfig:
        # No single result may take more than a quarter of what a request may hold.
        compaction = self.config.compaction
        most = int(self.budget_tokens * self.builder.profile.chars_per_token) // 4
        cap_chars = min(compaction.cap_chars or CAP_CHARS, max(MIN_CAP_CHARS, most))
        return msgspec.structs.replace(compaction, cap_chars=cap_chars)

    @property
    def context_tokens(self) -> int:
        """The tokens of the last request that was built; 0 before there was one."""
        return self.context_size.tokens if self.context_size is not None else 0

    def size_now(self) -> Size:
        """The size of the context as it would be sent now."""
        messages, view = self.state.context_messages(), self.state.view
        request = self.builder.project(messages, view)
        return self.builder.size(request, messages, view, self.state.reported)

    async def count(self) -> Count:
        """The context as it would be sent now, counted: see ``LLMSession.count``."""
        messages, view = self.state.context_messages(), self.state.view
        request = self.builder.project(messages, view)
        if self.services.counter is None:
            self.services.counter = default_counter(self.provider, estimate=text_tokens_for)
        count = await self.services.counter.count(request)
        size = self.builder.size(request, messages, view, self.state.reported)
        if size.method != "usage" or count.method == "api":
            return count
        margin = size.sized.margin_tokens
        accuracy = count.accuracy if margin is None else margin / max(1, size.tokens)
        return msgspec.structs.replace(
            count, input_tokens=size.tokens, method="usage", accuracy=accuracy
        )

    def counted(self, size: Size) -> None:
        """Note *size* as that of the context as it would be sent now."""
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
        """Let a thread build the request for *messages* as *view* shows them, for the first time:
        the work *name*. *warmed* is reported with the builder that has done so, or with None where
        that failed, which is logged as *trouble*: it is built again, where that is told of."""
        builder = self.builder

        async def warm() -> None:
            warmed_builder: ContextBuilder | None = None
            try:
                warmed_builder = await off_loop(builder.warmed, messages, view)
            except Exception as error:
                self.log.bug(trouble, error)
            self.report(partial(warmed, warmed_builder))

        return self.works.start(name, warm)

    def take_warmed(self, warmed: ContextBuilder | None, old: ContextBuilder) -> None:
        """Go on with *warmed*, unless *old*, whose place it takes, is not in use any more."""
        if warmed is not None and self.builder is old:
            self.builder = warmed

    def renew_builder(self) -> None:
        """Forget what the builder remembers of the requests so far."""
        profile = self.builder.profile
        self.builder = ContextBuilder(
            profile, self.services.frame(self.config, profile), self.services.calibrations
        )

    def configure(self, config: SessionConfig) -> None:
        """Run with *config* from now on. What the builder remembers was for the old one.

        Raises InvalidConfig, as ``profile_of`` does or for its sizes, and changes nothing.
        """
        profile = profile_of(self.provider, config)
        config.check_model(profile)
        self.builder = ContextBuilder(
            profile, self.services.frame(config, profile), self.services.calibrations
        )
        self.budget_tokens = config.sizes(profile).budget_tokens
        self.config = config
        self.policy = config.compaction.make_policy()
        self.capping = self._capping()
        self.log = SessionLog(self.services.logger, self.session, content=config.log_content)
