"""What a provider did to a request's context by itself, as it reports it."""

from __future__ import annotations

import msgspec

__all__ = ["AppliedEdit", "cleared_tokens"]


class AppliedEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One edit that the provider made before the model read the request. ``type`` is its name
    in the provider's words; of the counts those are there that it reports for that type."""

    type: str
    cleared_input_tokens: int = 0
    cleared_tool_uses: int = 0
    cleared_thinking_turns: int = 0


def cleared_tokens(edits: tuple[AppliedEdit, ...]) -> int:
    """The tokens that *edits* took out of the prompt, all together."""
    return sum(edit.cleared_input_tokens for edit in edits)
