"""What the provider said of the last request: the surest size of a context there is."""

from __future__ import annotations

import msgspec

from llmsession.compaction.tokens.calibration import Calibration
from llmsession.compaction.tokens.request_size import Sized
from llmsession.turns.usage import Usage

__all__ = ["Calibrations", "Reported"]

MAX_MODELS = 256
"""More names than that are no models; the oldest is forgotten."""


class Calibrations:
    """What the usage of each model has taught about our estimates, for all sessions of a manager.
    It begins anew with the manager: a few requests teach it."""

    def __init__(self) -> None:
        self._known: dict[str, Calibration] = {}

    def of(self, model: str) -> Calibration:
        """What is known of *model*."""
        return self._known.get(model) or _UNTAUGHT

    def learn(self, model: str, sized: Sized, prompt_tokens: int) -> None:
        """A request of *model* that was taken for *sized* had *prompt_tokens*."""
        if prompt_tokens <= 0:
            return
        self._known[model] = sized.taught(self.of(model), prompt_tokens)
        if len(self._known) > MAX_MODELS:
            del self._known[next(iter(self._known))]


_UNTAUGHT = Calibration()


class Reported(msgspec.Struct, frozen=True):
    """The usage of the request that the first ``count`` messages of the context end with: the
    last of them is its reply. It holds until something before that is shown otherwise."""

    count: int
    usage: Usage
    at: float
    """When the reply was complete, in seconds since the epoch."""
    cleared_tokens: int = 0
    """What the provider cleared before the model read it: so much more was sent."""

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
        """What the provider's cache has of it since."""
        return self.usage.cache_read_tokens + self.usage.cache_write_tokens
