"""The usage that the provider reported for the last request: the best known size of the context."""

from __future__ import annotations

import msgspec

from llmsession.compaction.tokens.calibration import Calibration
from llmsession.compaction.tokens.request_size import Sized
from llmsession.turns.usage import Usage

__all__ = ["Calibrations", "Reported"]

MAX_MODELS = 256
"""A bound that nobody should reach. The oldest entry is dropped."""


class Calibrations:
    """How far our estimates differ from each model's reported usage, for all sessions of a manager.

    Each manager learns it anew, from a few requests.
    """

    def __init__(self) -> None:
        self._known: dict[str, Calibration] = {}

    def of(self, model: str) -> Calibration:
        """The calibration of *model*."""
        return self._known.get(model) or _UNTAUGHT

    def learn(self, model: str, sized: Sized, prompt_tokens: int) -> None:
        """Learn from a request of *model*: our estimate was *sized*, the provider counted
        *prompt_tokens*.
        """
        if prompt_tokens <= 0:
            return
        self._known[model] = sized.taught(self.of(model), prompt_tokens)
        if len(self._known) > MAX_MODELS:
            del self._known[next(iter(self._known))]


_UNTAUGHT = Calibration()


class Reported(msgspec.Struct, frozen=True):
    """The usage of a request and its reply. The reply is the last of the first ``count`` messages.

    It is valid until a message before that position is shown differently.
    """

    count: int
    usage: Usage
    at: float
    """When the reply was complete, in seconds since the epoch."""
    cleared_tokens: int = 0
    """Tokens that were sent, but that the provider cleared before the model read them."""

    @property
    def sent_tokens(self) -> int:
        """The prompt as it was sent, including the tokens that the provider cleared."""
        return self.usage.prompt_tokens + self.cleared_tokens

    @property
    def tokens(self) -> int:
        """Prompt and reply together: the beginning of the next request."""
        return self.usage.prompt_tokens + self.usage.output_tokens

    @property
    def cached_tokens(self) -> int:
        """How many of these tokens are in the provider's cache."""
        return self.usage.cache_read_tokens + self.usage.cache_write_tokens
