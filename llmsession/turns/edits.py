"""What a provider did to a request's context by itself, as it reports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["AppliedEdit", "cleared_tokens", "edit_kinds"]


class AppliedEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One edit that the provider made before the model read the request. ``type`` is its name
    in the provider's words; of the counts those are there that it reports for that type."""

    type: str
    cleared_input_tokens: int = 0
    cleared_tool_uses: int = 0
    cleared_thinking_turns: int = 0


def edit_kinds(options: Mapping[str, Any]) -> list[str]:
    """The types of the edits that a request with *options* asks the provider for."""
    management = options.get("context_management")
    edits = management.get("edits") if isinstance(management, Mapping) else None
    if not isinstance(edits, list | tuple):
        return []
    kinds = (edit.get("type") if isinstance(edit, Mapping) else None for edit in edits)
    return [kind for kind in kinds if isinstance(kind, str)]


def cleared_tokens(edits: tuple[AppliedEdit, ...]) -> int:
    """The tokens that *edits* took out of the prompt, all together."""
    return sum(edit.cleared_input_tokens for edit in edits)
