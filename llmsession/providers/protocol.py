"""The provider protocol: one method streams a reply, another describes a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, runtime_checkable

from llmsession.errors import contained
from llmsession.turns.blocks import plain_text
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

__all__ = ["NOT_COUNTED", "Counting", "Provider", "name_for"]

NOT_COUNTED = "not_counted"
"""The code of the error that a provider raises if it counts tokens, but not for the given model."""


class Provider(Protocol):
    """Answers requests. One provider serves many sessions at once."""

    @property
    def name(self) -> str:
        """The name that is recorded as the origin of each assistant message."""
        ...

    def profile(self, model: str) -> Profile:
        """The properties of *model*. Never waits. An unknown model gets cautious values."""
        ...

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """Send *request* and yield the events of its reply.

        Cancelling the task that iterates, or closing the generator, ends the request and releases
        what it holds. *tag* names the step, for logs and idempotency keys. Its turn is 0 for a
        request outside all turns, for example for a summary.

        Raises ProviderError, classified by ``kind``. Before the first event the provider may retry
        by itself and then sets ``retried``, so that the session does not retry on top. After the
        first event a provider never retries: the session starts the step again.
        """
        ...


@runtime_checkable
class Counting(Protocol):
    """A provider that counts tokens itself. Not every provider does, so this is a protocol of its
    own.
    """

    async def count_tokens(self, request: Request) -> int:
        """The tokens of the prompt of *request*: its system text, tools and messages.

        Raises ProviderError. Can be cancelled.
        """
        ...


def name_for(provider: Provider, model: str) -> str:
    """The provider's name to record in a message of *model*.

    A provider that stands for several answers with the name of the one that serves *model*. If the
    name is unusable, the provider's class names it, because a provider may be anybody's code.
    Raises nothing.
    """
    try:
        # Looked up by name: isinstance with a protocol inspects the protocol each time, which is
        # slow.
        of_model: Callable[[str], str] | None = getattr(provider, "name_for", None)
        name: str | None = provider.name if of_model is None else of_model(model)
        if name.__class__ is not str or not name.isascii():
            name = plain_text(name)
    except BaseException as error:
        contained(error)
        name = None
    return type(provider).__name__ if name is None else name
