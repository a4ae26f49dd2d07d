"""What a Messages request may only say with a beta in its header, and the limits of the edits."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.context_edits import MIN_COMPACT_AT_TOKENS, edits_of, find_edit
from ..model.request import MessageRequest

__all__ = ["beta_faults", "edit_faults"]

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
