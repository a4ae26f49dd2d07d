"""What is left to the provider: edits of the context that it makes itself, and its summaries."""

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
"""The edits by their fields, in the order that the provider wants them in: V14."""
CLEAR_AT_TOKENS, CLEAR_KEEPS = 100_000, 3
COMPACT_AT_TOKENS, MIN_COMPACT_AT_TOKENS = 150_000, 50_000
MAX_INSTRUCTION_CHARS = 16_384
"""What the provider takes where nobody says another, and its limits."""


class ClearToolUses(msgspec.Struct, frozen=True, kw_only=True):
    """The provider clears the oldest tool results (``clear_tool_uses_20250919``)."""

    trigger_tokens: int | None = None
    """It begins once the prompt has more tokens. None: 100,000."""
    trigger_tool_uses: int | None = None
    """It begins once the prompt has more tool uses. It replaces ``trigger_tokens``."""
    keep: int | None = None
    """How many of the newest tool uses it keeps. None: 3."""
    clear_at_least_tokens: int | None = None
    """It clears nothing where it cannot clear so many tokens."""
    exclude_tools: tuple[str, ...] = ()
    """Tools whose results it keeps."""
    clear_inputs: bool | tuple[str, ...] = False
    """Whether it clears the calls' inputs, too: all, or those of the tools that are named."""

    def edit(self) -> dict[str, Any]:
        """The edit as the provider is asked for it: what is not given is left to it."""
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
    """How many of the newest assistant turns keep their thinking; ``"all"`` keeps all. None:
    the model's own default."""

    def edit(self) -> dict[str, Any]:
        """The edit as the provider is asked for it."""
        edit: dict[str, Any] = {"type": "clear_thinking_20251015"}
        if self.keep_turns == "all":
            edit["keep"] = "all"
        elif self.keep_turns is not None:
            edit["keep"] = {"type": "thinking_turns", "value": self.keep_turns}
        return edit


class CompactAtThreshold(msgspec.Struct, frozen=True, kw_only=True):
    """The provider summarises the conversation within the request (``compact_20260112``). Its
    summary is a block of the reply, and the context begins with it from then on."""

    trigger_tokens: int | None = None
    """It summarises when a prompt reaches so many tokens. At least 50,000. None: 150,000."""
    instructions: str | None = None
    """Replaces the provider's prompt for the summary. At most 16,384 characters."""
    pause: bool = False
    """It stops behind the summary, and the session asks it to go on: one request more, and a
    step boundary."""

    @property
    def at_tokens(self) -> int:
        """How large a prompt is when it is summarised."""
        return COMPACT_AT_TOKENS if self.trigger_tokens is None else self.trigger_tokens

    def edit(self) -> dict[str, Any]:
        """The edit as the provider is asked for it."""
        edit: dict[str, Any] = {"type": "compact_20260112"}
        if self.trigger_tokens is not None:
            edit["trigger"] = {"type": "input_tokens", "value": self.trigger_tokens}
        if self.instructions:
            edit["instructions"] = self.instructions
        if self.pause:
            edit["pause_after_compaction"] = True
        return edit


class ProviderSummaries(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation's own provider and model write the summaries for prefixes, in the
    background, as signed blocks (the ``compaction`` parameter)."""

    instructions: str | None = None
    """Replaces the provider's prompt for the summary. It has to say that no tool may be called."""
    max_tokens: int = 8_192
    """Tokens for the summary, thinking included."""
    deadline_s: float = 180.0
    """Seconds for the whole summary. An overloaded provider is asked again within them."""

    def parameter(self) -> dict[str, Any]:
        """What the request says to ask for the summary."""
        fields = {"type": "summarize"}
        if self.instructions:
            fields["instructions"] = self.instructions
        return fields


class ProviderSideConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Compaction that the provider does itself. Each part is off unless it is given.

    With ``clear_tool_uses`` or ``compact`` our own compaction only acts when it is asked to, or
    when a request would not fit.
    """

    clear_thinking: ClearThinking | None = None
    """An edit that goes with every request. What we send stays whole, the provider reads less."""
    clear_tool_uses: ClearToolUses | None = None
    """An edit that goes with every request, likewise."""
    compact: CompactAtThreshold | None = None
    """An edit that goes with every request, likewise. It excludes ``summaries``."""
    summaries: ProviderSummaries | None = None
    """The provider writes the summaries that our own compaction asks for."""

    @property
    def replaces_ours(self) -> bool:
        """Does the provider keep the context small, so that we need not?"""
        return self.clear_tool_uses is not None or self.compact is not None

    def edits(self, profile: Profile) -> list[dict[str, Any]]:
        """The edits of every request to a model with *profile*, those that it takes, in the order
        that the provider wants them in."""
        accepted = profile.provider_edits
        settings = (getattr(self, name) for name in EDITS if name in accepted)
        return [item.edit() for item in settings if item is not None]

    def checked(self) -> ProviderSideConfig:
        """These settings. Raises InvalidConfig, naming the first that cannot be."""
        if all(getattr(self, name) is None for name in (*EDITS, "summaries")):
            raise InvalidConfig("provider_side says nothing: give it an edit or summaries")
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
                raise InvalidConfig("provider_side: summaries.deadline_s must be greater than 0")
        return self

    def check_model(self, model: str, profile: Profile, budget_tokens: int) -> None:
        """Raises InvalidConfig where *model*, with this profile, does not take what is asked for,
        or where a trigger is above what a request may hold, so that nothing ever came of it."""
        for name in EDITS:
            if getattr(self, name) is not None and name not in profile.provider_edits:
                raise InvalidConfig(f"provider_side: model {model!r} is not known to take {name}")
        if self.summaries is not None and not profile.compacts_on_demand:
            raise InvalidConfig(f"provider_side: model {model!r} is not known to write summaries")
        # What is cleared is cleared before the model reads it, but a summary is of all of it.
        trigger = self.compact.at_tokens if self.compact is not None else 0
        if trigger > budget_tokens:
            raise InvalidConfig(
                f"provider_side: compact begins at {trigger} tokens, but a request may hold"
                f" {budget_tokens}"
            )

    def into(self, options: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
        """*options* with the edits in them that a model with *profile* takes."""
        edits = self.edits(profile)
        return {**options, "context_management": {"edits": edits}} if edits else dict(options)


def _check_clearing(thinking: ClearThinking | None, tools: ClearToolUses | None) -> None:
    if thinking is not None and thinking.keep_turns != "all":
        _least("clear_thinking.keep_turns", thinking.keep_turns, 1)
    if tools is None:
        return
    if tools.trigger_tokens is not None and tools.trigger_tool_uses is not None:
        raise InvalidConfig("provider_side: clear_tool_uses has two triggers; say one")
    _least("clear_tool_uses.trigger_tokens", tools.trigger_tokens, 1)
    _least("clear_tool_uses.trigger_tool_uses", tools.trigger_tool_uses, 1)
    _least("clear_tool_uses.keep", tools.keep, 0)
    _least("clear_tool_uses.clear_at_least_tokens", tools.clear_at_least_tokens, 0)


def _least(name: str, value: int | None, minimum: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidConfig(f"provider_side: {name} is {value!r}; it is a number from {minimum}")
