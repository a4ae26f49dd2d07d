"""What the parts of one live session share. The actor owns it; nobody else changes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from llmsession.providers.protocol import Provider

from .config import SessionConfig
from .context import ContextBuilder
from .hub import Hub
from .journal import Journal
from .log import SessionLog
from .state import SessionState
from .timers import Timers
from .works import Works

TOOL_THREADS = 256
"""Synchronous tools that run at once in one manager; the next ones wait for a thread."""

__all__ = ["Core", "Report", "Surroundings"]

Report = Callable[[], None]


class Surroundings:
    """What a manager gives each of its sessions."""

    __slots__ = ("clock", "hub", "logger", "provider", "timers", "tool_threads", "works")

    def __init__(
        self,
        *,
        provider: Provider,
        works: Works,
        timers: Timers,
        hub: Hub,
        clock: Callable[[], float],
        logger: Any | None,
    ) -> None:
        self.provider = provider
        self.works = works
        self.timers = timers
        self.hub = hub
        self.clock = clock
        self.logger = logger
        # Not the backend's own threads: tools that hang must not keep compaction from running.
        self.tool_threads = anyio.CapacityLimiter(TOOL_THREADS)


class Core:
    """One session's state and the ways out of it.

    ``report`` puts a report of our own work into the mailbox; the actor calls it there. So
    everything that changes the state runs in the actor, one thing after the other.
    """

    __slots__ = (
        "builder",
        "clears",
        "config",
        "context_tokens",
        "hub",
        "journal",
        "late_reports",
        "lingering",
        "log",
        "provider",
        "report",
        "session",
        "state",
        "timers",
        "works",
        "world",
    )  # fmt: skip

    def __init__(
        self,
        *,
        state: SessionState,
        config: SessionConfig,
        journal: Journal,
        report: Callable[[Report], None],
        world: Surroundings,
    ) -> None:
        self.session = state.session
        self.state = state
        self.config = config
        self.journal = journal
        self.report = report
        self.world = world
        self.provider = world.provider
        self.works = world.works
        self.timers = world.timers
        self.hub = world.hub
        self.log = SessionLog(world.logger, state.session, content=config.log_content)
        self.builder = ContextBuilder(self.provider.profile(config.model), config.frame())
        self.context_tokens = 0
        """The size of the last request that was built."""
        self.clears = 0
        """Clears on their way into the store: what comes behind one finds an empty history."""
        self.late_reports = 0
        self.lingering: set[str] = set()

    def configure(self, config: SessionConfig) -> None:
        self.config = config
        self.builder.reframe(self.provider.profile(config.model), config.frame())
        self.log = SessionLog(self.world.logger, self.session, content=config.log_content)
