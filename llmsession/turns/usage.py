"""What a provider reports about a request: its tokens, and the provider's own edits of the
context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from llmsession.errors import ProviderError

from .blocks import plain_number, plain_text

__all__ = [
    "AppliedEdit",
    "Usage",
    "checked_edits",
    "checked_usage",
    "cleared_tokens",
    "edit_kinds",
]

MAX_TOKENS = 10**12
"""More than any request costs. Sums of such numbers fit into a log and its readers."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens of one or more requests.

    ``prompt_tokens`` is the whole prompt.
    """

    input_tokens: int = 0
    """Prompt tokens that are neither read from nor written to the cache (Anthropic's
    convention).
    """
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    """The part of ``cache_write_tokens`` that is kept for an hour, which costs more."""

    @property
    def prompt_tokens(self) -> int:
        """All tokens of the prompt: new ones, those read from the cache, and those written to
        it.
        """
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
        )


class AppliedEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One edit that the provider made before the model read the request.

    ``type`` is its name in the provider's words. Counts are set if the provider reports them for
    that type.
    """

    type: str
    cleared_input_tokens: int = 0
    cleared_tool_uses: int = 0
    cleared_thinking_turns: int = 0


def checked_usage(usage: Usage | None) -> Usage | None:
    """*usage* as a provider reports it, checked, because a provider may be foreign code.

    Its counts must be whole numbers from 0 to 10^12. Raises ProviderError (fatal).
    """
    if usage is None:
        return None
    if not isinstance(usage, Usage):
        raise _wrong(f"usage must be a Usage, not {type(usage).__name__}")
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
    )
    for count in counts:
        if count.__class__ is not int or not 0 <= count <= MAX_TOKENS:
            return Usage(*map(_count, Usage.__struct_fields__, counts))
    return usage


def _count(name: str, value: object) -> int:
    number = plain_number(value)
    if number is None or not 0 <= number <= MAX_TOKENS:
        raise _wrong(f"{name} is {value!r}; it must be a whole number from 0 to {MAX_TOKENS:,}")
    return number


def checked_edits(edits: tuple[AppliedEdit, ...]) -> tuple[AppliedEdit, ...]:
    """*edits* as a provider reports them, checked like ``checked_usage``."""
    if not edits:
        return ()
    if not isinstance(edits, tuple | list):
        raise _wrong(f"edits must be a tuple, not {type(edits).__name__}")
    return tuple(map(_edit, edits))


def _edit(edit: AppliedEdit) -> AppliedEdit:
    kind = plain_text(edit.type) if isinstance(edit, AppliedEdit) else None
    if kind is None:
        raise _wrong(f"an edit must be an AppliedEdit with a type, not {type(edit).__name__}")
    names = AppliedEdit.__struct_fields__[1:]
    return AppliedEdit(kind, *(_count(name, getattr(edit, name)) for name in names))


def _wrong(what: str) -> ProviderError:
    return ProviderError(f"the provider's report cannot be used: {what}", kind="fatal")


def edit_kinds(options: Mapping[str, Any]) -> list[str]:
    """The types of the edits that a request with *options* asks the provider for."""
    management = options.get("context_management")
    edits = management.get("edits") if isinstance(management, Mapping) else None
    if not isinstance(edits, list | tuple):
        return []
    kinds = (edit.get("type") if isinstance(edit, Mapping) else None for edit in edits)
    return [kind for kind in kinds if isinstance(kind, str)]


def cleared_tokens(edits: tuple[AppliedEdit, ...]) -> int:
    """The tokens that *edits* removed from the prompt, all together."""
    return sum(edit.cleared_input_tokens for edit in edits)
