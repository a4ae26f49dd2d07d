"""The requests that are made for one summary, and what they used."""

from __future__ import annotations

from llmsession.providers.protocol import Provider
from llmsession.turns.records import ModelRequest
from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.request import Request, StepTag

from ..core.reply_reader import read_reply
from ..tasks.owner_lease import OwnerLease

__all__ = ["SummaryRequests"]


class SummaryRequests:
    """Sends the requests of one summary, whose number among those of its session is *step*. Each
    waits until *lease* is valid."""

    def __init__(self, provider: Provider, lease: OwnerLease, *, step: int) -> None:
        self._provider = provider
        self._lease = lease
        self._step = step
        self.count = 0
        """How many requests were begun."""
        self.made: list[ModelRequest] = []
        """The requests that have ended, with their reported usage."""

    async def send(self, request: Request) -> Reply:
        """The reply to *request*. Raises ProviderError; cancellation closes the request."""
        self.count += 1
        builder = ReplyBuilder()
        try:
            # Turn 0 keeps this request apart from those of turns, which are numbered from 1.
            tag = StepTag(0, self._step, self.count)
            return await read_reply(
                self._provider,
                request,
                tag,
                builder=builder,
                show=lambda _: None,
                lease=self._lease,
            )
        finally:
            self.made.append(ModelRequest(builder.model or request.model, builder.usage))
