"""Writing summaries: by a model where one is configured, else by rules.

Whatever goes wrong with a model changes nothing: a segment is extracted by rules instead, a
result keeps the summary that it has. After some failures in a row the model is not asked again
until something changes: the configuration, or a while has passed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import anyio

from llmsession.compaction.planning.prefix_summaries import extracted_segment
from llmsession.compaction.provider_side import ProviderSummaries
from llmsession.compaction.view.plan import SummaryRequest
from llmsession.compaction.view.provider_blocks import signed_segment
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.errors import error_text
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary

from ..core.core import Core
from ..tasks.promise import Promise
from ..tasks.worker_thread import off_loop
from ..tasks.works import Work
from ..values.config import SessionConfig, SummariserConfig
from .model_summary import ModelSummary, SummaryFailed, count_by
from .provider_summary import SignedSummary, is_asked_for, summary_request

__all__ = ["Asked", "NotWanted", "Summarizer"]

INLINE_MESSAGES = 64
"""Up to here extracting costs less than the hop to a thread and back."""
RETRY_AFTER_S = 600.0
"""So long after the last of too many failures the model is tried once more."""

Requests: TypeAlias = tuple[r.ModelRequest, ...]
Ended: TypeAlias = Callable[[str | None, Requests], None]
"""Gets the summary, None if there is none, and what it cost."""


class NotWanted(Exception):
    """Nobody wants the summary after all: no failure of the model."""


class Asked:
    """One summary on its way: a work of its own, which may ignore cancellation and hold nobody.

    ``ended`` is called once by the actor: with the text, or with None where it failed, was
    cancelled, or did not come in time. What a late one cost is still told to ``late``.
    """

    def __init__(
        self,
        core: Core,
        name: str,
        summary: ModelSummary | SignedSummary,
        body: Callable[[], Awaitable[str]],
        *,
        deadline_s: float,
        ended: Callable[[str | None, str, Requests], None],
        late: Callable[[Requests], None],
    ) -> None:
        self._core = core
        self._summary = summary
        self._body = body
        self._ended = ended
        self._late = late
        self._is_over = False
        self._work: Work = core.works.start(name, self._run, self._forget)
        expired = partial(core.report, partial(self._stop, f"no summary in {deadline_s:g} s"))
        self._deadline = core.timers.after(deadline_s, expired)

    async def _run(self) -> None:
        text, why = None, "cancelled"
        try:
            text = await self._body()
        except NotWanted:
            pass
        except SummaryFailed as error:
            why = str(error)
        except Exception as error:  # a provider may be anybody's code
            why = error_text(error)
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # Nobody cancelled us: the provider cancelled something of its own and let it out.
            why = "the provider was cancelled from within"
        finally:
            requests = tuple(self._summary.requests)
            self._core.report(partial(self._over, text, why, requests))

    def _over(self, text: str | None, why: str, requests: Requests) -> None:
        if self._is_over:
            self._late(requests)
            return
        self._is_over = True
        self._deadline.cancel()
        self._ended(text, why, requests)

    def _stop(self, why: str) -> None:
        self.cancel()
        if not self._is_over:
            self._is_over = True
            self._ended(None, why, ())

    def cancel(self) -> None:
        """Stop it: what it would have said is not wanted any more. It may refuse, and is left
        alone after the grace."""
        self._deadline.cancel()
        if self._work.is_done:
            return
        self._work.cancel()
        core, work = self._core, self._work

        def abandon() -> None:
            if not work.is_done:
                work.abandon()
                core.still_running.add(work.name)

        core.timers.after(core.config.grace_s, partial(core.report, abandon))

    def _forget(self, work: Work) -> None:
        self._core.report(lambda: self._core.still_running.discard(work.name))


class Summarizer:
    """One session's summaries. ``failures`` counts those of its model in a row."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.failures = 0
        self._failed_with: SessionConfig | None = None
        self._failed_at = 0.0
        self._steps = 0

    def extracted(
        self, summary_request: SummaryRequest, messages: Sequence[Message]
    ) -> PrefixSummary | None:
        """The segment by rules alone; never waits."""
        return extracted_segment(summary_request, messages, self._core.builder.profile)

    async def prefix_summary(
        self, summary_request: SummaryRequest, messages: Sequence[Message], view: View
    ) -> PrefixSummary | None:
        """The segment that *wanted* asks for, None if there is nothing to say, or if the provider
        was to write it and did not. *view* shows the messages now. Raises nothing but
        cancellation."""
        side = self._core.config.compaction.provider_side
        by_provider = side.summaries if side is not None else None
        takes = self._core.builder.profile.compacts_on_demand and is_asked_for(
            messages, summary_request.upto
        )
        if by_provider is not None and takes and self.may_ask():
            return await self._by_provider(by_provider, messages[: summary_request.upto], view)
        config = self._core.config.compaction.summariser
        if config is not None and self.may_ask():
            text = await self._by_model(config, summary_request, messages)
            if text is not None:
                return PrefixSummary(summary_request.upto, introduced(text), "model")
        if len(messages) <= INLINE_MESSAGES:
            return self.extracted(summary_request, messages)
        return await off_loop(self.extracted, summary_request, messages)

    async def _by_model(
        self, config: SummariserConfig, summary_request: SummaryRequest, messages: Sequence[Message]
    ) -> str | None:
        told: Promise[str | None] = Promise()

        def ended(text: str | None, requests: Requests) -> None:
            self.charge(requests)
            told.set(text)

        asked = self.ask(
            f"summary of {self._core.session}",
            config,
            lambda summary: summary.of_prefix(summary_request, messages),
            ended,
        )
        if asked is None:
            return None
        try:
            return await told.wait()
        finally:
            asked.cancel()

    async def _by_provider(
        self, config: ProviderSummaries, messages: Sequence[Message], view: View
    ) -> PrefixSummary | None:
        """The signed summary of *messages* by the provider of the conversation."""
        core, told = self._core, Promise[str | None]()
        profile = core.builder.profile
        frame = core.world.frame(core.config, profile)
        self._steps += 1

        def over(block: str | None, why: str, requests: Requests) -> None:
            self.charge(requests)
            if block is not None:
                self.failures = 0
            elif why != "cancelled":
                self._note(why)
            told.set(block)

        summary = SignedSummary(
            core.provider,
            partial(summary_request, messages, view, profile, frame, config),
            is_long=len(messages) > INLINE_MESSAGES,
            step=self._steps,
            refused=partial(core.log.bug, "summary.refused"),
        )
        asked = Asked(
            core,
            f"summary of {core.session} by its provider",
            summary,
            summary.block,
            deadline_s=config.deadline_s,
            ended=over,
            late=self.charge,
        )
        try:
            block = await told.wait()
        finally:
            asked.cancel()
        return None if block is None else signed_segment(block.encode(), len(messages))

    def may_ask(self) -> bool:
        """Is the model to be asked? Not when it has failed too often, unless something changed,
        and not when the budget is used up."""
        core = self._core
        if core.account.exceeded(core.config.budget) is not None:
            return False
        if self.failures < core.config.compaction.max_failures:
            return True
        if self._failed_with is not core.config:
            self.failures = 0
            return True
        return anyio.current_time() - self._failed_at >= RETRY_AFTER_S

    def ask(
        self,
        name: str,
        config: SummariserConfig,
        body: Callable[[ModelSummary], Awaitable[str]],
        ended: Ended,
    ) -> Asked | None:
        """Start a summary as a work called *name*; None if the provider cannot be asked."""
        core = self._core
        self._steps += 1
        profile = core.builder.profile
        try:
            summary = ModelSummary(
                core.world.summariser or core.provider,
                config,
                step=self._steps,
                count=count_by(profile),
            )
        except Exception as error:  # a provider may be anybody's code
            self._note(error_text(error))
            return None

        def over(text: str | None, why: str, requests: Requests) -> None:
            if text is not None:
                self.failures = 0
            elif why != "cancelled":
                self._note(why)
            ended(text, requests)

        return Asked(
            core,
            name,
            summary,
            lambda: body(summary),
            deadline_s=config.deadline_s,
            ended=over,
            late=self.charge,
        )

    def _note(self, why: str) -> None:
        self.failures += 1
        self._failed_with, self._failed_at = self._core.config, anyio.current_time()
        self._core.log.trouble("summary.failed", error=why, failures=self.failures)

    def charge(self, requests: Requests, summaries: dict[str, str] | None = None) -> None:
        """Let the log know *summaries* of results, and what was asked of the model for them or
        for a segment. Only the actor calls this."""
        if requests or summaries:
            self._core.account.add_summaries(requests)
            self._core.world.watch.charged(self._core.session, requests)
            record = r.SummariesStored(summaries=summaries or {}, requests=requests)
            self._core.journal.write(record)
