"""The provider protocol: one method that streams, one that says what the model needs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, runtime_checkable

from llmsession.errors import contained
from llmsession.turns.blocks import plain_text
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

__all__ = ["NOT_COUNTED", "Counting", "Provider", "name_for"]

NOT_COUNTED = "not_counted"
"""The code of the error of a provider that counts, but not for the model that it was asked for."""


class Provider(Protocol):
    """Answers requests. One provider serves many sessions at once."""

    @property
    def name(self) -> str:
        """What an assistant's message says of where it came from."""
        ...

    def profile(self, model: str) -> Profile:
        """What *model* accepts and needs. Never waits; an unknown model gets the careful one."""
        ...

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """Send *request* and yield its reply.

        Cancelling the task that iterates, or closing the generator, ends the request and
        frees what it holds. *tag* names the work, for logs and idempotency keys; its turn is 0
        for a request beside all turns, as for a summary.

        Raises ProviderError, classified. Before the first event the provider may retry by
        itself, and says so in ``retried``: the session does not on top. After it, it never
        does: the session starts the step again.
        """
        ...


@runtime_checkable
class Counting(Protocol):
    """A provider that counts itself. Not every one does, so it is no part of Provider."""

    async def count_tokens(self, request: Request) -> int:
        """The tokens of *request*'s prompt: its system text, tools and messages.

        Raises ProviderError. Can be cancelled.
        """
        ...


def name_for(provider: Provider, model: str) -> str:
    """What a message says of where it came from: of a provider that stands for several, the one
    that answers *model*. A provider, which may be anybody's, that says nothing of use is named by
    its class. Raises nothing."""
    try:
        # Asked for by name: isinstance of a protocol reads the protocol anew each time.
        of_model: Callable[[str], str] | None = getattr(provider, "name_for", None)
        name: str | None = provider.name if of_model is None else of_model(model)
        if name.__class__ is not str or not name.isascii():
            name = plain_text(name)
    except BaseException as error:
        contained(error)
        name = None
    return type(provider).__name__ if name is None else name
