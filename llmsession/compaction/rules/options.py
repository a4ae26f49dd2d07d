"""Validity rules for what stands beside the messages: tools, thinking, caching, compaction.

Source: the Anthropic Messages API: its types, its documentation and its error messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .block_fields import RuleViolation
from .dialogue import Dialogue
from .message_facts import time_to_live
from .structure import RequestRule

__all__ = ["OPTION_RULES"]

MIN_THINKING_BUDGET_TOKENS = 1024


def _option(dialogue: Dialogue, name: str) -> dict[str, Any]:
    """An option that is an object; empty if it is absent, null or something else."""
    value = dialogue.request.options.get(name)
    return value if isinstance(value, dict) else {}


def v11_thinking_fits_its_budget_and_tool_choice(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V11: a thinking budget is at least 1,024 tokens and below max_tokens; no tool is forced with
    it.
    """
    thinking = _option(dialogue, "thinking")
    if thinking.get("type") != "enabled":
        return  # adaptive thinking has no budget, and allows a forced tool (recorded traffic)
    yield from _budget(thinking.get("budget_tokens"), dialogue.request.max_tokens)
    if _option(dialogue, "tool_choice").get("type") in ("any", "tool"):
        text = "Thinking may not be enabled when tool_choice forces tool use."
        yield RuleViolation("V11", "tool_choice", text)


def _budget(budget_tokens: Any, max_tokens: int) -> Iterator[RuleViolation]:
    where = "thinking.budget_tokens"
    if not isinstance(budget_tokens, int) or budget_tokens < MIN_THINKING_BUDGET_TOKENS:
        text = "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        yield RuleViolation("V11", where, text)
    elif budget_tokens >= max_tokens:
        text = "`max_tokens` must be greater than `thinking.budget_tokens`"
        yield RuleViolation("V11", where, text)


def v12_few_breakpoints_the_longest_lived_first(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V12: at most four cache breakpoints, on blocks that can be cached. In the order tools,
    system, messages, those of one hour come before those of five minutes.
    """
    yield from dialogue.found("V12")
    breakpoints = list(_all_breakpoints(dialogue))
    if len(breakpoints) > (limit := dialogue.profile.max_cache_breakpoints):
        count = len(breakpoints)
        text = f"A maximum of {limit} blocks with cache_control may be provided. Found {count}."
        yield RuleViolation("V12", breakpoints[limit][0], text)
    short = False
    for where, ttl in breakpoints:
        if short and ttl == "1h":
            text = (
                "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
            )
            yield RuleViolation("V12", where, text)
        short = short or ttl != "1h"


def _all_breakpoints(dialogue: Dialogue) -> Iterator[tuple[str, str]]:
    yield from dialogue.tools.breakpoints
    for index in dialogue.notable:
        for place, ttl in dialogue.messages[index].breakpoints:
            yield f"messages[{index}].{place}", ttl
    # Automatic caching uses one of the four breakpoints, at the end of the messages.
    if (automatic := dialogue.request.options.get("cache_control")) is not None:
        yield "cache_control", time_to_live(automatic)


def v13_tools_are_sent_and_well_named(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V13: a request with tool blocks in its messages defines tools; tool names are short and
    unique.
    """
    if not dialogue.request.tools and (dialogue.calling or dialogue.answering):
        text = "Requests which include `tool_use` or `tool_result` blocks must define tools"
        yield RuleViolation("V13", "tools", text)
    for fault in dialogue.tools.faults:
        yield RuleViolation(*fault)


def v14_context_edits_are_ordered_and_alone(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V14: ``clear_thinking`` is the first edit, and edits are not combined with other
    compaction.
    """
    management = _option(dialogue, "context_management")
    edits = management.get("edits")
    kinds = [_kind(edit) for edit in edits] if isinstance(edits, Sequence) else []
    for index, kind in enumerate(kinds):
        if index and kind.startswith("clear_thinking"):
            where = f"context_management.edits[{index}]"
            yield RuleViolation("V14", where, f"{kind} must be the first edit")
    if management and dialogue.request.options.get("compaction") is not None:
        text = "compaction cannot be combined with context_management"
        yield RuleViolation("V14", "compaction", text)
    if any(kind.startswith("compact_") for kind in kinds) and any(_signed_blocks(dialogue)):
        text = "a compact edit cannot be combined with a signed compaction block"
        yield RuleViolation("V14", "context_management", text)


def _kind(edit: Any) -> str:
    kind = edit.get("type") if isinstance(edit, dict) else None
    return kind if isinstance(kind, str) else ""


def _signed_blocks(dialogue: Dialogue) -> Iterator[tuple[int, int]]:
    """The message index and the block index of each signed compaction block."""
    for index in dialogue.notable:
        for block in dialogue.messages[index].compactions:
            yield index, block


def v15_one_signed_compaction_block_that_comes_first(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V15: a signed compaction block is the first block of all, and the only one. A request for
    compaction has no unanswered call in the last assistant turn.
    """
    for number, (index, block) in enumerate(_signed_blocks(dialogue)):
        where = f"messages[{index}].content[{block}]"
        if number:
            text = "compaction_block_ambiguous: only one signed compaction block is accepted"
            yield RuleViolation("V15", where, text)
        elif (index, block) != (0, 0):
            text = "compaction_block_misplaced: it must be the first block of the first message"
            yield RuleViolation("V15", where, text)
    last = len(dialogue.runs) - 1
    if last in dialogue.calling[-1:] and dialogue.request.options.get("compaction"):
        text = "compaction_incomplete_turn: the last assistant turn has unanswered tool calls"
        yield RuleViolation("V15", dialogue.where(last, dialogue.runs[last].calls[0]), text)


OPTION_RULES: dict[str, RequestRule] = {
    "V11": v11_thinking_fits_its_budget_and_tool_choice,
    "V12": v12_few_breakpoints_the_longest_lived_first,
    "V13": v13_tools_are_sent_and_well_named,
    "V14": v14_context_edits_are_ordered_and_alone,
    "V15": v15_one_signed_compaction_block_that_comes_first,
}
