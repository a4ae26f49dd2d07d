"""What the provider said of the last request: the surest size of a context there is."""

from __future__ import annotations

import msgspec

from llmsession.turns.usage import Usage

__all__ = ["Reported"]


class Reported(msgspec.Struct, frozen=True):
    """The usage of the request that the first ``count`` messages of the context end with: the
    last of them is its reply. It holds until something before that is shown otherwise."""

    count: int
    usage: Usage
    at: float
    """When the reply was complete, in seconds since the epoch."""

    @property
    def tokens(self) -> int:
        """Prompt and reply: what the next request begins with."""
        return self.usage.prompt_tokens + self.usage.output_tokens

    @property
    def cached_tokens(self) -> int:
        """What the provider's cache has of it since."""
        return self.usage.cache_read_tokens + self.usage.cache_write_tokens
