"""Writes summaries: by a model if one is configured, else by rules.

A failure of the model changes nothing in the conversation. A prefix summary is then made by rules,
by the policy's own ones if it has some, and a tool result keeps the summary that it has. After
several failures in a row the model gets no more requests until the configuration changes or some
time has passed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import anyio

from llmsession.compaction.planning.prefix_summaries import summary_by_rules
from llmsession.compaction.provider_side import ProviderSummaries
from llmsession.compaction.view.plan import SummaryRequest
from llmsession.compaction.view.provider_blocks import signed_summary
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.errors import contained, contained_in_work, error_text
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary

from ..core.core import Core
from ..tasks.promise import Promise
from ..tasks.worker_thread import off_loop
from ..tasks.works import Work
from ..values.config import SessionConfig, SummariserConfig
from .model_summary import ModelSummary, SummaryFailed, count_by
from .provider_summary import SignedSummary, can_summarise, request_for_summary

__all__ = ["PendingSummary", "Summarizer", "SummaryUnneeded"]

INLINE_MESSAGES = 64
"""Up to this length, extracting costs less than switching to a thread and back."""
RETRY_AFTER_S = 600.0
"""After too many failures, the model is tried once more when this many seconds have passed."""

Requests: TypeAlias = tuple[r.ModelRequest, ...]
Ended: TypeAlias = Callable[[str | None, Requests], None]
"""Called with the summary, or None if there is none, and with the requests that were made for
it.
"""


class SummaryUnneeded(Exception):
    """The summary is not needed any more. This is not a failure of the model."""


class PendingSummary:
    """One summary that is being written, in a work of its own, so that a work that ignores its
    cancellation delays nobody.

    The actor calls ``ended`` once: with the text, or with None if the summary failed, was
    cancelled, or missed its deadline. ``late`` gets the requests of a summary that ends after that.
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
        expired = partial(
            core.report, partial(self._stop, f"there was no summary within {deadline_s:g} s")
        )
        self._deadline = core.timers.after(deadline_s, expired)

    async def _run(self) -> None:
        text, reason = None, "cancelled"
        try:
            text = await self._body()
        except SummaryUnneeded:
            pass
        except SummaryFailed as error:
            reason = str(error)
        except BaseException as error:  # a provider is foreign code
            reason = error_text(contained_in_work(error))
            if isinstance(error, anyio.get_cancelled_exc_class()):
                # This task was not cancelled. The provider cancelled a scope of its own, and the
                # cancellation escaped from that scope.
                reason = "the provider cancelled itself"
        finally:
            requests = tuple(self._summary.requests)
            self._core.report(partial(self._over, text, reason, requests))

    def _over(self, text: str | None, reason: str, requests: Requests) -> None:
        if self._is_over:
            self._late(requests)
            return
        self._is_over = True
        self._deadline.cancel()
        self._ended(text, reason, requests)

    def _stop(self, reason: str) -> None:
        self.cancel()
        if not self._is_over:
            self._is_over = True
            self._ended(None, reason, ())

    def cancel(self) -> None:
        """Stop the work. If it ignores that, it is abandoned after the grace period."""
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
    """Writes one session's summaries. ``failures`` counts its model's failures in a row."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.failures = 0
        self._failed_with: SessionConfig | None = None
        self._failed_at = 0.0
        self._steps = 0

    def by_rules(
        self, summary_request: SummaryRequest, messages: Sequence[Message]
    ) -> PrefixSummary | None:
        """The prefix summary made by rules alone, without waiting."""
        return summary_by_rules(summary_request, messages, self._core.builder.profile)

    async def prefix_summary(
        self, summary_request: SummaryRequest, messages: Sequence[Message], view: View
    ) -> PrefixSummary | None:
        """The prefix summary for *summary_request*. *view* shows how the messages are sent now.

        Returns None if there is nothing to summarise, or if the provider should have written the
        summary and did not. Raises nothing but cancellation.
        """
        side = self._core.config.compaction.provider_side
        by_provider = side.summaries if side is not None else None
        is_possible = self._core.builder.profile.compacts_on_demand and can_summarise(
            messages, summary_request.upto
        )
        if by_provider is not None and is_possible and self.may_request():
            return await self._by_provider(by_provider, messages[: summary_request.upto], view)
        config = self._core.config.compaction.summariser
        if config is not None and self.may_request():
            text = await self._by_model(config, summary_request, messages)
            if text is not None:
                return PrefixSummary(summary_request.upto, introduced(text), "model")
        if len(messages) <= INLINE_MESSAGES:
            return self.by_rules(summary_request, messages)
        return await off_loop(self.by_rules, summary_request, messages)

    async def _by_model(
        self, config: SummariserConfig, summary_request: SummaryRequest, messages: Sequence[Message]
    ) -> str | None:
        answer: Promise[str | None] = Promise()

        def ended(text: str | None, requests: Requests) -> None:
            self.charge(requests)
            answer.set(text)

        pending = self.start(
            f"summary of {self._core.session}",
            config,
            lambda summary: summary.of_prefix(summary_request, messages),
            ended,
        )
        if pending is None:
            return None
        try:
            return await answer.wait()
        finally:
            pending.cancel()

    async def _by_provider(
        self, config: ProviderSummaries, messages: Sequence[Message], view: View
    ) -> PrefixSummary | None:
        """The signed summary of *messages*, written by the conversation's provider."""
        core, answer = self._core, Promise[str | None]()
        profile = core.builder.profile
        frame = core.services.frame(core.config, profile)
        self._steps += 1

        def over(block: str | None, reason: str, requests: Requests) -> None:
            self.charge(requests)
            if block is not None:
                self.failures = 0
            elif reason != "cancelled":
                self._note_failure(reason)
            answer.set(block)

        summary = SignedSummary(
            core.provider,
            partial(request_for_summary, messages, view, profile, frame, config),
            is_long=len(messages) > INLINE_MESSAGES,
            step=self._steps,
            refused=partial(core.log.bug, "summary.refused"),
            lease=core.services.lease,
        )
        pending = PendingSummary(
            core,
            f"summary of {core.session} by its provider",
            summary,
            summary.block,
            deadline_s=config.deadline_s,
            ended=over,
            late=self.charge,
        )
        try:
            block = await answer.wait()
        finally:
            pending.cancel()
        return None if block is None else signed_summary(block.encode(), len(messages))

    def may_request(self) -> bool:
        """May the model get a request?

        Not if the budget is used up, and not after too many failures, unless something has changed
        since.
        """
        core = self._core
        if core.account.exceeded(core.config.budget) is not None:
            return False
        if self.failures < core.config.compaction.max_failures:
            return True
        if self._failed_with is not core.config:
            self.failures = 0
            return True
        return anyio.current_time() - self._failed_at >= RETRY_AFTER_S

    def start(
        self,
        name: str,
        config: SummariserConfig,
        body: Callable[[ModelSummary], Awaitable[str]],
        ended: Ended,
    ) -> PendingSummary | None:
        """Start a summary as a work called *name*. Returns None if the provider does not have the
        model.
        """
        core = self._core
        self._steps += 1
        profile = core.builder.profile
        try:
            summary = ModelSummary(
                core.services.summariser or core.provider,
                config,
                step=self._steps,
                count=count_by(profile),
                lease=core.services.lease,
            )
        except BaseException as error:  # a provider is foreign code
            self._note_failure(error_text(contained(error)))
            return None

        def over(text: str | None, reason: str, requests: Requests) -> None:
            if text is not None:
                self.failures = 0
            elif reason != "cancelled":
                self._note_failure(reason)
            ended(text, requests)

        return PendingSummary(
            core,
            name,
            summary,
            lambda: body(summary),
            deadline_s=config.deadline_s,
            ended=over,
            late=self.charge,
        )

    def _note_failure(self, reason: str) -> None:
        self.failures += 1
        self._failed_with, self._failed_at = self._core.config, anyio.current_time()
        self._core.log.trouble("summary.failed", error=reason, failures=self.failures)

    def charge(self, requests: Requests, summaries: dict[str, str] | None = None) -> None:
        """Write *summaries* of results and the *requests* that were made for a summary to the log.

        Only the actor calls this.
        """
        if requests or summaries:
            self._core.account.add_summaries(requests)
            self._core.services.observers.charged(self._core.session, requests)
            record = r.SummariesStored(summaries=summaries or {}, requests=requests)
            self._core.journal.write(record)
