"""The usage that the provider reported for the last request: the best known context size."""

from __future__ import annotations

import msgspec

from llmsession.compaction.tokens.calibration import Calibration
from llmsession.compaction.tokens.request_size import Sized
from llmsession.turns.usage import Usage

__all__ = ["Calibrations", "Reported"]

MAX_MODELS = 256
"""Nobody uses more models than that. The oldest entry is dropped."""


class Calibrations:
    """How far our estimates are from each model's reported usage, for all sessions of a manager.
    It is learned anew by each manager, from a few requests."""

    def __init__(self) -> None:
        self._known: dict[str, Calibration] = {}

    def of(self, model: str) -> Calibration:
        """The calibration of *model*."""
        return self._known.get(model) or _UNTAUGHT

    def learn(self, model: str, sized: Sized, prompt_tokens: int) -> None:
        """Learn from a request of *model*: we estimated *sized*, the provider counted
        *prompt_tokens*."""
        if prompt_tokens <= 0:
            return
        self._known[model] = sized.taught(self.of(model), prompt_tokens)
        if len(self._known) > MAX_MODELS:
            del self._known[next(iter(self._known))]


_UNTAUGHT = Calibration()


class Reported(msgspec.Struct, frozen=True):
    """The usage of a request and its reply, which is the last of the first ``count`` messages of
    the context. It is valid until a message before that is shown differently."""

    count: int
    usage: Usage
    at: float
    """When the reply was complete, in seconds since the epoch."""
    cleared_tokens: int = 0
    """Tokens that were sent, but that the provider cleared before the model read them."""

    @property
    def sent_tokens(self) -> int:
        """The prompt as it was sent, with what the provider cleared."""
        return self.usage.prompt_tokens + self.cleared_tokens

    @property
    def tokens(self) -> int:
        """Prompt and reply: what the next request begins with."""
        return self.usage.prompt_tokens + self.usage.output_tokens

    @property
    def cached_tokens(self) -> int:
        """The tokens of it that are in the provider's cache."""
        return self.usage.cache_read_tokens + self.usage.cache_write_tokens
