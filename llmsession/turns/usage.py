"""Token usage as a provider reports it."""

from __future__ import annotations

import msgspec

__all__ = ["Usage"]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one or more requests. ``input_tokens`` leaves cached tokens out (Anthropic's
    convention); ``prompt_tokens`` is the whole prompt. ``cache_write_1h_tokens`` are those of
    ``cache_write_tokens`` that are kept for an hour, which cost more."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All tokens of the prompt: new, read from the cache, and written to it."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
        )
