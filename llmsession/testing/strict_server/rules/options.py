"""Rules on what goes beside the messages: tools, thinking, cache breakpoints, compaction, size, and
what needs a beta in the header.

Each rule is named by its number in the list of request rules and yields what the real API
answers; where no report of its words is known, they say what the documentation says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..model.context_edits import MIN_COMPACT_AT_TOKENS, edits_of, find_edit
from ..model.request import MessageRequest, Spot
from .messages import MessageRule

__all__ = ["BINDING_BETA", "OPTION_RULES", "beta_faults", "breakpoints", "edit_faults"]

MAX_BREAKPOINTS = 4
BINDING_BETA = "thinking-binding-controls-2026-08-01"
INTERLEAVED_BETA = "interleaved-thinking-2025-05-14"
_THINKING_DOCS = "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"


def v11_thinking_fits_the_model(request: MessageRequest) -> Iterator[str]:
    """Its kind, its budget below ``max_tokens``, no forced tool, no temperature but 1."""
    kind = request.thinking_type
    thinking = request.body.get("thinking") or {}
    if "block_binding" in thinking and BINDING_BETA not in request.betas:
        yield f"thinking.{kind}.block_binding: Extra inputs are not permitted"
    if kind == "adaptive" and not request.rules.adaptive_thinking:
        yield "adaptive thinking is not supported on this model"
    if kind in ("enabled", "adaptive") and request.body.get("temperature", 1) != 1:
        yield (
            "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
            f" Please consult our documentation at {_THINKING_DOCS}"
            "#important-considerations-when-using-extended-thinking"
        )
    if kind == "enabled":
        yield from _manual_thinking_faults(request, thinking["budget_tokens"])


def _manual_thinking_faults(request: MessageRequest, budget_tokens: int) -> Iterator[str]:
    if not request.rules.manual_thinking:
        yield (
            '"thinking.type.enabled" is not supported for this model. Use'
            ' "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'
        )
    limit = request.body.get("max_tokens")
    if limit is not None and budget_tokens >= limit and INTERLEAVED_BETA not in request.betas:
        yield (
            "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our"
            f" documentation at {_THINKING_DOCS}#max-tokens-and-context-window-size"
        )
    if (request.body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        yield "Thinking may not be enabled when tool_choice forces tool use."


def v12_few_breakpoints_the_longest_lived_first(request: MessageRequest) -> Iterator[str]:
    """At most four, one hour before five minutes in the order tools, system, messages."""
    marks = list(breakpoints(request))
    automatic = request.body.get("cache_control")
    count = len(marks) + (automatic is not None and not _marked_already(request, marks))
    if count > MAX_BREAKPOINTS:
        yield (
            f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found"
            f" {count}."
        )
    if automatic is not None:
        yield from _automatic_faults(request, marks, automatic)
    short = False
    for where, ttl in marks:
        if short and ttl == "1h":
            yield (
                f"{where}.cache_control.ttl: a ttl='1h' cache_control block must not come after a"
                " ttl='5m' cache_control block. Note that blocks are processed in the following"
                " order: `tools`, `system`, `messages`."
            )
        short = short or ttl != "1h"


def breakpoints(request: MessageRequest) -> Iterator[tuple[str, str]]:
    """The place and time to live of each marked block, in the order they are read."""
    for index, tool in enumerate(request.tools):
        if (ttl := _ttl(tool)) is not None:
            yield f"tools.{index}", ttl
    for index, block in enumerate(request.system):
        if (ttl := _ttl(block)) is not None:
            yield f"system.{index}", ttl
    for spot in request.spots():
        content = spot.block.get("content")
        for index, inner in enumerate(content if isinstance(content, list) else ()):
            if isinstance(inner, dict) and (ttl := _ttl(inner)) is not None:
                yield f"{spot.where}.content.{index}", ttl
        if (ttl := _ttl(spot.block)) is not None:
            yield spot.where, ttl


def _ttl(fields: dict[str, Any]) -> str | None:
    control = fields.get("cache_control")
    return (control.get("ttl") or "5m") if isinstance(control, dict) else None


def _last_spot(request: MessageRequest) -> Spot | None:
    return next((run.spots[-1] for run in reversed(request.runs) if run.spots), None)


def _marked_already(request: MessageRequest, marks: list[tuple[str, str]]) -> bool:
    last = _last_spot(request)
    return last is not None and any(where == last.where for where, _ in marks)


def _automatic_faults(
    request: MessageRequest, marks: list[tuple[str, str]], automatic: dict[str, Any]
) -> Iterator[str]:
    ttl = automatic.get("ttl") or "5m"
    last = _last_spot(request)
    for where, marked in marks:
        if last is not None and where == last.where and marked != ttl:
            yield (
                f"Top-level cache_control has ttl='{ttl}' but the target block already has"
                f" cache_control with ttl='{marked}'"
            )


def v13_tools_are_sent_and_named_once(request: MessageRequest) -> Iterator[str]:
    """Where there are tool blocks there are tools; a choice needs tools and names one of them."""
    tools = request.tools
    names = [tool.get("name") for tool in tools if tool.get("name") is not None]
    if len(set(names)) != len(names):
        yield "tools: Tool names must be unique."
    if not tools and any(spot.kind in ("tool_use", "tool_result") for spot in request.spots()):
        yield "Requests which include `tool_use` or `tool_result` blocks must define tools."
    choice = request.body.get("tool_choice") or {}
    if choice and choice.get("type") != "none" and not (tools or request.body.get("mcp_servers")):
        yield "tool_choice may only be specified while providing tools."
    elif choice.get("type") == "tool" and choice["name"] not in names:
        yield f"Tool '{choice['name']}' not found in provided tools"


def v14_context_edits_are_ordered_and_alone(request: MessageRequest) -> Iterator[str]:
    """Clearing of thinking is the first edit; edits do not go with on-demand compaction."""
    management = request.body.get("context_management") or {}
    edits = management.get("edits") or []
    kinds = [str(edit.get("type", "")) for edit in edits if isinstance(edit, dict)]
    for index, kind in enumerate(kinds):
        if index and kind.startswith("clear_thinking"):
            yield (
                f"context_management.edits: the `{kind}` strategy must be listed first in the"
                " `edits` array"
            )
    if management and request.asks_for_compaction:
        yield "compaction: `compaction` cannot be combined with `context_management`"
    if any(kind.startswith("compact_") for kind in kinds) and _signed_blocks(request):
        yield (
            "context_management.edits: a compact edit cannot be combined with a signed"
            " `compaction` block"
        )


def _signed_blocks(request: MessageRequest) -> list[Spot]:
    return [
        spot
        for spot in request.spots()
        if spot.kind == "compaction" and spot.block.get("signature") is not None
    ]


def v15_one_signed_compaction_block_that_comes_first(request: MessageRequest) -> Iterator[str]:
    """The first block of the first message, and no other; a summary is asked for only when no
    call is open."""
    signed = _signed_blocks(request)
    if len(signed) > 1:
        yield (
            f"{signed[1].where}: compaction_block_ambiguous: A request can carry only one signed"
            " `compaction` block"
        )
    elif signed and (signed[0].message, signed[0].at) != (0, 0):
        yield (
            f"{signed[0].where}: compaction_block_misplaced: `compaction` block must be sent"
            " first, in place of the messages it summarizes; remove those messages"
        )
    last = request.dialogue()[-1]
    if request.asks_for_compaction and last.role == "assistant" and last.of("tool_use"):
        yield (
            f"messages.{last.start}: compaction_incomplete_turn: the last assistant turn has"
            " unanswered tool calls"
        )


def output_fits_the_model(request: MessageRequest) -> Iterator[str]:
    """``max_tokens`` is at most what the model can say."""
    max_tokens, limit = request.body.get("max_tokens", 0), request.rules.max_output_tokens
    if max_tokens > limit:
        yield (
            f"max_tokens: {max_tokens} > {limit}, which is the maximum allowed number of output"
            f" tokens for {request.body['model']}"
        )


OPTION_RULES: dict[str, MessageRule] = {
    "output": output_fits_the_model,
    "V11": v11_thinking_fits_the_model,
    "V12": v12_few_breakpoints_the_longest_lived_first,
    "V13": v13_tools_are_sent_and_named_once,
    "V14": v14_context_edits_are_ordered_and_alone,
    "V15": v15_one_signed_compaction_block_that_comes_first,
}


EDITS_BETA = "context-management-2025-06-27"
COMPACT_BETA = "compact-2026-01-12"
ON_DEMAND_BETA = "compact-2026-09-04"
_EDITS = {
    "clear_thinking_20251015": EDITS_BETA,
    "clear_tool_uses_20250919": EDITS_BETA,
    "compact_20260112": COMPACT_BETA,
}
_OF_A_REPLY = ("stop_sequences", "output_format")


def beta_faults(request: MessageRequest) -> Iterator[str]:
    """What *request* says without the beta that it needs."""
    betas = request.betas
    if request.body.get("context_management") and not betas & {EDITS_BETA, COMPACT_BETA}:
        yield "context_management: Extra inputs are not permitted"
    for index, edit in enumerate(edits_of(request.body)):
        kind = str(edit.get("type"))
        known = sorted(name for name, beta in _EDITS.items() if beta in betas)
        if kind not in known:
            yield (
                f"context_management.edits.{index}: Input tag '{kind}' found using 'type' does not"
                f" match any of the expected tags: {', '.join(map(repr, known))}"
            )
    if request.asks_for_compaction and ON_DEMAND_BETA not in betas:
        yield f"compaction: `compaction` requires anthropic-beta: {ON_DEMAND_BETA}"
    for spot in request.spots():
        if spot.kind == "compaction":
            needed = ON_DEMAND_BETA if spot.block.get("signature") else COMPACT_BETA
            if needed not in betas:
                yield (
                    f"{spot.where}: Input tag 'compaction' found using 'type' does not match any"
                    " of the expected tags: 'document', 'image', 'text', 'thinking', 'tool_result',"
                    " 'tool_use'"
                )


def edit_faults(request: MessageRequest) -> Iterator[str]:
    """What the model does not do, where an edit acts too early, and what goes with a reply only."""
    compact = find_edit(request.body, "compact_")
    if (compact is not None or request.asks_for_compaction) and not request.rules.compacts:
        yield f"compaction is not supported for model {request.body['model']}"
    value = ((compact or {}).get("trigger") or {}).get("value")
    if value is not None and value < MIN_COMPACT_AT_TOKENS:
        yield (
            "context_management.edits: compact_20260112.trigger.value: Input should be greater"
            f" than or equal to {MIN_COMPACT_AT_TOKENS}"
        )
    if not request.asks_for_compaction:
        return
    for name in _OF_A_REPLY:
        if request.body.get(name) is not None:
            yield f"compaction: `{name}` cannot be combined with `compaction`"
    if (request.body.get("output_config") or {}).get("format") is not None:
        yield "compaction: `output_config.format` cannot be combined with `compaction`"
    if (request.body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        yield "compaction: a `tool_choice` that forces tool use cannot be combined with it"
