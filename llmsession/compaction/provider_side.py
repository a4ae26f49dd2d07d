"""Compaction that is left to the provider: edits of the context that it makes itself, and its
summaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from llmsession.errors import InvalidConfig
from llmsession.turns.request import Profile

__all__ = [
    "ClearThinking",
    "ClearToolUses",
    "CompactAtThreshold",
    "ProviderSideConfig",
    "ProviderSummaries",
]

EDITS = ("clear_thinking", "clear_tool_uses", "compact")
"""The fields with edits, in the order that the provider requires (rule V14)."""
CLEAR_AT_TOKENS, CLEAR_KEEPS = 100_000, 3
COMPACT_AT_TOKENS, MIN_COMPACT_AT_TOKENS = 150_000, 50_000
MAX_INSTRUCTION_CHARS = 16_384
"""The provider's defaults and limits."""


class ClearToolUses(msgspec.Struct, frozen=True, kw_only=True):
    """The provider clears the oldest tool results (``clear_tool_uses_20250919``)."""

    trigger_tokens: int | None = None
    """Clear once the prompt has more tokens than this. None: 100,000."""
    trigger_tool_uses: int | None = None
    """Clear once the prompt has more tool uses than this, instead of ``trigger_tokens``."""
    keep: int | None = None
    """How many of the newest tool uses to keep. None: 3."""
    clear_at_least_tokens: int | None = None
    """Clear nothing unless at least this many tokens can be cleared."""
    exclude_tools: tuple[str, ...] = ()
    """Names of tools whose results are kept."""
    clear_inputs: bool | tuple[str, ...] = False
    """Whether to clear the inputs of calls, too: of all tools, or of those that are named."""

    def edit(self) -> dict[str, Any]:
        """The edit in the provider's JSON. Settings that are None are left out, so the provider's
        default applies.
        """
        edit: dict[str, Any] = {"type": "clear_tool_uses_20250919"}
        if self.trigger_tool_uses is not None:
            edit["trigger"] = {"type": "tool_uses", "value": self.trigger_tool_uses}
        elif self.trigger_tokens is not None:
            edit["trigger"] = {"type": "input_tokens", "value": self.trigger_tokens}
        if self.keep is not None:
            edit["keep"] = {"type": "tool_uses", "value": self.keep}
        if self.clear_at_least_tokens is not None:
            minimum = {"type": "input_tokens", "value": self.clear_at_least_tokens}
            edit["clear_at_least"] = minimum
        if self.exclude_tools:
            edit["exclude_tools"] = list(self.exclude_tools)
        if self.clear_inputs:
            inputs = self.clear_inputs
            edit["clear_tool_inputs"] = list(inputs) if isinstance(inputs, tuple) else True
        return edit


class ClearThinking(msgspec.Struct, frozen=True, kw_only=True):
    """The provider clears the thinking of old turns (``clear_thinking_20251015``)."""

    keep_turns: int | Literal["all"] | None = None
    """How many of the newest assistant turns keep their thinking; ``"all"`` keeps all. None: the
    model's own default.
    """

    def edit(self) -> dict[str, Any]:
        """The edit in the provider's JSON."""
        edit: dict[str, Any] = {"type": "clear_thinking_20251015"}
        if self.keep_turns == "all":
            edit["keep"] = "all"
        elif self.keep_turns is not None:
            edit["keep"] = {"type": "thinking_turns", "value": self.keep_turns}
        return edit


class CompactAtThreshold(msgspec.Struct, frozen=True, kw_only=True):
    """The provider summarises the conversation within the request (``compact_20260112``).

    Its summary is a block of the reply. From then on the context begins with that block.
    """

    trigger_tokens: int | None = None
    """Summarise when a prompt reaches this many tokens. At least 50,000. None: 150,000."""
    instructions: str | None = None
    """Replaces the provider's prompt for the summary. At most 16,384 characters."""
    pause: bool = False
    """Stop after the summary; the session then asks the model to go on. This costs one more request
    and adds a step boundary.
    """

    @property
    def at_tokens(self) -> int:
        """The size in tokens at which a prompt is summarised."""
        return COMPACT_AT_TOKENS if self.trigger_tokens is None else self.trigger_tokens

    def edit(self) -> dict[str, Any]:
        """The edit in the provider's JSON."""
        edit: dict[str, Any] = {"type": "compact_20260112"}
        if self.trigger_tokens is not None:
            edit["trigger"] = {"type": "input_tokens", "value": self.trigger_tokens}
        if self.instructions:
            edit["instructions"] = self.instructions
        if self.pause:
            edit["pause_after_compaction"] = True
        return edit


class ProviderSummaries(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation's own provider and model write the prefix summaries.

    They are written in the background, as signed blocks (the ``compaction`` parameter).
    """

    instructions: str | None = None
    """Replaces the provider's prompt for the summary. It must say that no tool may be called."""
    max_tokens: int = 8_192
    """The most tokens for the summary, including thinking."""
    deadline_s: float = 180.0
    """How many seconds the whole summary may take. An overloaded provider is asked again within
    this time.
    """

    def parameter(self) -> dict[str, Any]:
        """The request parameter that asks for the summary."""
        fields = {"type": "summarize"}
        if self.instructions:
            fields["instructions"] = self.instructions
        return fields


class ProviderSideConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Compaction that the provider does itself. Each part is off unless it is set.

    With ``clear_tool_uses`` or ``compact``, our own compaction acts only on request, or if a
    request would not fit.
    """

    clear_thinking: ClearThinking | None = None
    """An edit that is sent with every request. The request stays complete; the provider drops the
    old thinking before the model reads it.
    """
    clear_tool_uses: ClearToolUses | None = None
    """An edit that is sent with every request, like ``clear_thinking``."""
    compact: CompactAtThreshold | None = None
    """An edit that is sent with every request, like ``clear_thinking``. It excludes
    ``summaries``.
    """
    summaries: ProviderSummaries | None = None
    """The provider writes the summaries that our own compaction asks for."""

    @property
    def replaces_ours(self) -> bool:
        """Does the provider keep the context small, so that our policy need not?"""
        return self.clear_tool_uses is not None or self.compact is not None

    def edits(self, profile: Profile) -> list[dict[str, Any]]:
        """The edits for a model with *profile*: those that it supports, in the order that the
        provider requires.
        """
        accepted = profile.provider_edits
        settings = (getattr(self, name) for name in EDITS if name in accepted)
        return [item.edit() for item in settings if item is not None]

    def checked(self) -> ProviderSideConfig:
        """These settings, if they are valid. Raises InvalidConfig for the first that is not."""
        if all(getattr(self, name) is None for name in (*EDITS, "summaries")):
            raise InvalidConfig("provider_side is empty: set at least one edit, or summaries")
        if self.compact is not None and self.summaries is not None:
            raise InvalidConfig(
                "provider_side: compact and summaries exclude each other: the provider takes no"
                " signed summary together with a compact edit"
            )
        _check_clearing(self.clear_thinking, self.clear_tool_uses)
        if self.compact is not None:
            _least("compact.trigger_tokens", self.compact.trigger_tokens, MIN_COMPACT_AT_TOKENS)
        if self.summaries is not None:
            _least("summaries.max_tokens", self.summaries.max_tokens, 1)
            said = len(self.summaries.instructions or "")
            if said > MAX_INSTRUCTION_CHARS:
                raise InvalidConfig(
                    f"provider_side: summaries.instructions has {said} characters, at most"
                    f" {MAX_INSTRUCTION_CHARS} are taken"
                )
            if not self.summaries.deadline_s > 0:
                raise InvalidConfig(
                    "provider_side: summaries.deadline_s must be greater than 0, not"
                    f" {self.summaries.deadline_s}"
                )
        return self

    def check_model(self, model: str, profile: Profile, budget_tokens: int) -> None:
        """Raises InvalidConfig if *model*, with *profile*, does not support the settings, or if a
        trigger exceeds *budget_tokens*, the most that a request may hold, and so would never fire.
        """
        for name in EDITS:
            if getattr(self, name) is not None and name not in profile.provider_edits:
                raise InvalidConfig(
                    f"provider_side: model {model!r} is not known to take {name}: remove it,"
                    " or give the model a profile that lists it"
                )
        if self.summaries is not None and not profile.compacts_on_demand:
            raise InvalidConfig(f"provider_side: model {model!r} is not known to write summaries")
        # Clearing happens before the model reads the prompt, so only compact is checked: a summary
        # is made of the whole prompt, and a trigger above the budget would never fire.
        trigger = self.compact.at_tokens if self.compact is not None else 0
        if trigger > budget_tokens:
            raise InvalidConfig(
                f"provider_side: compact begins at {trigger} tokens, but a request may hold"
                f" {budget_tokens}"
            )

    def into(self, options: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
        """*options*, with the edits added that a model with *profile* supports."""
        edits = self.edits(profile)
        return {**options, "context_management": {"edits": edits}} if edits else dict(options)


def _check_clearing(thinking: ClearThinking | None, tools: ClearToolUses | None) -> None:
    if thinking is not None and thinking.keep_turns != "all":
        _least("clear_thinking.keep_turns", thinking.keep_turns, 1)
    if tools is None:
        return
    if tools.trigger_tokens is not None and tools.trigger_tool_uses is not None:
        raise InvalidConfig("provider_side: clear_tool_uses has two triggers; set only one")
    _least("clear_tool_uses.trigger_tokens", tools.trigger_tokens, 1)
    _least("clear_tool_uses.trigger_tool_uses", tools.trigger_tool_uses, 1)
    _least("clear_tool_uses.keep", tools.keep, 0)
    _least("clear_tool_uses.clear_at_least_tokens", tools.clear_at_least_tokens, 0)


def _least(name: str, value: int | None, minimum: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidConfig(
            f"provider_side: {name} must be a whole number of at least {minimum}, not {value!r}"
        )
