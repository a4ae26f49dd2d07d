"""Estimates what a provider will clear from a request before the model reads it.

Source: Anthropic's documentation of context editing. Once the prompt is over the trigger, the
oldest tool results are cleared, except those of the newest tool uses. A short placeholder replaces
each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llmsession.turns.messages import Message
from llmsession.turns.request import Profile

from ..summaries.cap import result_text
from ..tokens.messages import text_tokens_for
from ..view.view import View

__all__ = ["Clearing", "clearing_of"]

TRIGGER_TOKENS, KEEP = 100_000, 3
PLACEHOLDER_TOKENS = 20


class Clearing(msgspec.Struct, frozen=True, kw_only=True):
    """When the provider clears tool results, and which ones it keeps."""

    trigger_tokens: int | None
    trigger_uses: int
    keep: int
    min_tokens: int
    excluded: frozenset[str]

    def expected(
        self,
        sent_tokens: int,
        messages: Sequence[Message],
        view: View,
        profile: Profile,
        *,
        cleared_before: int | None = None,
    ) -> int:
        """The estimated number of tokens that will be cleared from the request for *messages*.

        *sent_tokens* is the size of the request before clearing. With *cleared_before*, the
        provider has already cleared the request for the first so many messages, and only the
        additional tokens are returned.
        """
        if self.trigger_tokens is not None and sent_tokens <= self.trigger_tokens:
            return 0
        sizes = self._sizes(messages, view, profile)
        if self.trigger_tokens is None and len(sizes) <= self.trigger_uses:
            return 0
        now = self._clearable(sizes)
        if now < self.min_tokens:
            return 0
        if cleared_before is not None:
            then = self._sizes(messages[:cleared_before], view, profile)
            now -= self._clearable(then)
        return max(0, now)

    def _clearable(self, sizes: Sequence[int]) -> int:
        return sum(sizes[: max(0, len(sizes) - self.keep)])

    def _sizes(self, messages: Sequence[Message], view: View, profile: Profile) -> list[int]:
        """What clearing each tool use would free, in tokens, the oldest first."""
        names: dict[str, str] = {}
        sizes = []
        for position in range(view.start, len(messages)):
            message = messages[position]
            for call in message.tool_calls:
                names[call.id] = call.name
            if not view.shows(position):
                continue
            for result in message.tool_results:
                if names.get(result.tool_use_id) in self.excluded:
                    continue
                text = view.text_for(result.tool_use_id, position)
                visible_text = result_text(result.content) if text is None else text
                sizes.append(max(0, text_tokens_for(visible_text, profile) - PLACEHOLDER_TOKENS))
        return sizes


def clearing_of(options: Mapping[str, Any]) -> Clearing | None:
    """How a request with *options* asks the provider to clear tool results; None if it does not."""
    management = options.get("context_management")
    edits = management.get("edits") if isinstance(management, Mapping) else None
    for edit in edits if isinstance(edits, list | tuple) else ():
        if isinstance(edit, Mapping) and str(edit.get("type")).startswith("clear_tool_uses"):
            trigger = edit.get("trigger") or {}
            by_uses = trigger.get("type") == "tool_uses"
            return Clearing(
                trigger_tokens=None if by_uses else _value(trigger, TRIGGER_TOKENS),
                trigger_uses=_value(trigger, 0) if by_uses else 0,
                keep=_value(edit.get("keep"), KEEP),
                min_tokens=_value(edit.get("clear_at_least"), 0),
                excluded=frozenset(edit.get("exclude_tools") or ()),
            )
    return None


def _value(raw_value: Any, otherwise: int) -> int:
    value = raw_value.get("value") if isinstance(raw_value, Mapping) else None
    return value if isinstance(value, int) else otherwise
