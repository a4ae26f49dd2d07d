"""Rules on how messages follow each other: who speaks, which calls are answered, what is empty.

Each rule is named by its number in the list of request rules and yields what the real API
answers. It is asked only of requests whose shape is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ..model.request import THINKING, MessageRequest, Run, Spot, is_server_call, is_server_result

__all__ = ["MESSAGE_RULES", "MessageRule"]

MessageRule: TypeAlias = Callable[[MessageRequest], Iterator[str]]

SIDES = {
    "tool_use": "assistant",
    "server_tool_use": "assistant",
    "mcp_tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
    "tool_addition": "system",
    "tool_removal": "system",
}
_THINKING_DOCS = "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"


def v1_the_user_speaks_first(request: MessageRequest) -> Iterator[str]:
    """Unless the messages begin with a compaction block."""
    first = request.dialogue()[:1]
    if first and first[0].role != "user":
        opening = first[0].spots[:1]
        if not (opening and opening[0].kind == "compaction"):
            yield 'messages: first message must use the "user" role'


def v2_the_user_speaks_last(request: MessageRequest) -> Iterator[str]:
    """Where the model takes no prefill. A turn that was paused goes on where it stopped, and a
    request for compaction wants no reply."""
    last = request.dialogue()[-1:]
    if not last or last[0].role != "assistant" or request.asks_for_compaction:
        return
    if any(is_server_call(spot.kind) for spot in last[0].spots):
        return
    if last[0].spots and last[0].spots[-1].kind == "compaction":
        return
    if not request.rules.prefill:
        yield (
            "This model does not support assistant message prefill. The conversation must end"
            " with a user message."
        )
    elif last[0].spots and _ends_in_space(last[0].spots[-1].block):
        yield "messages: final assistant content cannot end with trailing whitespace"


def _ends_in_space(block: dict[str, Any]) -> bool:
    text = block.get("text")
    return isinstance(text, str) and text != text.rstrip()


def v3_every_call_is_answered_at_once(request: MessageRequest) -> Iterator[str]:
    """By results that stand in the very next user message, before all else in it."""
    dialogue = request.dialogue()
    for index, run in enumerate(dialogue):
        if run.role != "assistant":
            continue
        if index + 1 == len(dialogue) and request.asks_for_compaction:
            continue  # V15 has its own word for it
        answered = _leading_results(dialogue[index + 1]) if index + 1 < len(dialogue) else set()
        open_calls = [spot for spot in run.of("tool_use") if spot.block["id"] not in answered]
        if open_calls:
            ids = ", ".join(spot.block["id"] for spot in open_calls)
            yield (
                f"messages.{open_calls[0].message}: `tool_use` ids were found without"
                f" `tool_result` blocks immediately after: {ids}. Each `tool_use` block must have"
                " a corresponding `tool_result` block in the next message."
            )


def _leading_results(run: Run) -> set[str]:
    call_ids: set[str] = set()
    for spot in run.spots:
        if spot.kind != "tool_result":
            break
        call_ids.add(spot.block["tool_use_id"])
    return call_ids


def v4_blocks_stand_on_their_side(request: MessageRequest) -> Iterator[str]:
    """Calls and thinking are the assistant's, results the user's."""
    for run in request.runs:
        for spot in run.spots:
            side = SIDES.get(spot.kind)
            if side is None and is_server_result(spot.kind):
                side = "assistant"
            if side is not None and run.role != side:
                yield f"{spot.where}: `{spot.kind}` blocks can only be in `{side}` messages"


def v4_every_result_has_its_call(request: MessageRequest) -> Iterator[str]:
    """In the message before; one result a call; no call's id twice."""
    known: set[str] = set()
    for spot in request.spots():
        if spot.kind == "tool_use":
            if spot.block["id"] in known:
                yield f"{spot.where}: `tool_use` ids must be unique"
            known.add(spot.block["id"])
    calls: set[str] = set()
    for run in request.dialogue():
        yield from _unexpected_results(run, calls)
        calls = {spot.block["id"] for spot in run.of("tool_use")}


def _unexpected_results(run: Run, calls: set[str]) -> Iterator[str]:
    count: Counter[str] = Counter()
    for spot in run.of("tool_result"):
        call_id = spot.block["tool_use_id"]
        count[call_id] += 1
        if call_id not in calls:
            yield (
                f"{spot.where}: unexpected `tool_use_id` found in `tool_result` blocks:"
                f" {call_id}. Each `tool_result` block must have a corresponding `tool_use` block"
                " in the previous message."
            )
        elif count[call_id] > 1:
            yield (
                f"{spot.where}: each tool_use must have a single result. Found multiple"
                f" `tool_result` blocks with id: {call_id}"
            )


def v5_nothing_is_empty(request: MessageRequest) -> Iterator[str]:
    """No message without content but a last one of the assistant; no empty or blank text, in
    results neither; an error result says something."""
    last = len(request.messages) - 1
    for number, message in enumerate(request.messages):
        directive = message["role"] == "system" and message.get("output_config")
        optional = number == last and message["role"] == "assistant"
        if not message["content"] and not (optional or directive):
            yield (
                f"messages.{number}: all messages must have non-empty content except for the"
                " optional final assistant message"
            )
    for spot in request.spots():
        if spot.kind == "text":
            yield from _blank(spot.where, spot.block)
        elif spot.kind == "tool_result":
            yield from _blank_results(spot)
    for index, block in enumerate(request.system):
        yield from (fault.replace("messages", "system", 1) for fault in _blank("", block))
        if block.get("cache_control") and not block["text"]:
            yield f"system.{index}: cache_control cannot be set for empty text blocks"


def _blank(where: str, block: dict[str, Any]) -> Iterator[str]:
    if not block["text"] and block.get("cache_control"):
        yield f"{where}.text: cache_control cannot be set for empty text blocks"
    elif not block["text"]:
        yield "messages: text content blocks must be non-empty"
    elif not block["text"].strip():
        yield "messages: text content blocks must contain non-whitespace text"


def _blank_results(spot: Spot) -> Iterator[str]:
    content = spot.block.get("content")
    if spot.block.get("is_error") and not content:
        yield f"{spot.where}.tool_result: content cannot be empty if `is_error` is true"
    for inner in content if isinstance(content, list) else ():
        if inner["type"] == "text":
            yield from _blank(spot.where, inner)


def v6_server_results_follow_their_calls(request: MessageRequest) -> Iterator[str]:
    """The provider's own tools pair inside the assistant's content. While the caller's tools of
    the same reply are open, the result comes with the next reply, so that a loop of calls and
    results alone is one content."""
    called: set[str] = set()
    for run in request.dialogue():
        if run.role == "assistant":
            for spot in run.spots:
                if is_server_call(spot.kind):
                    called.add(spot.block["id"])
                elif is_server_result(spot.kind) and spot.block["tool_use_id"] not in called:
                    yield _stray_result(spot)
        elif _ends_the_loop(run):
            called = set()


def v19_no_server_call_is_left_open(request: MessageRequest) -> Iterator[str]:
    """When that loop is over, each call of a server tool has its result."""
    open_calls: dict[str, Spot] = {}
    for run in request.dialogue():
        if run.role == "assistant":
            for spot in run.spots:
                if is_server_call(spot.kind):
                    open_calls[spot.block["id"]] = spot
                elif is_server_result(spot.kind):
                    open_calls.pop(spot.block["tool_use_id"], None)
        elif _ends_the_loop(run):
            yield from (_unresolved(spot) for spot in open_calls.values())
            open_calls = {}


def _ends_the_loop(run: Run) -> bool:
    return any(spot.kind != "tool_result" for spot in run.spots)


def _stray_result(spot: Spot) -> str:
    call = "mcp_tool_use" if spot.kind == "mcp_tool_result" else "server_tool_use"
    return (
        f"{spot.where}: unexpected `tool_use_id` found in `{spot.kind}` blocks:"
        f" {spot.block['tool_use_id']}. Each `{spot.kind}` block must have a corresponding"
        f" `{call}` block before it."
    )


def _unresolved(spot: Spot) -> str:
    name = "mcp" if spot.kind == "mcp_tool_use" else spot.block["name"]
    return (
        f"messages.{spot.message}: `{spot.block['name']}` tool use with id `{spot.block['id']}`"
        f" was found without a corresponding `{name}_tool_result` block"
    )


def v8_a_tool_loop_starts_with_thinking(request: MessageRequest) -> Iterator[str]:
    """With manual thinking, where the last assistant turn began: at the first of the steps that
    only results divide."""
    if request.thinking_type != "enabled":
        return
    dialogue = request.dialogue()
    step = len(dialogue) - 1 if dialogue[-1].role == "assistant" else len(dialogue)
    opening = dialogue[step] if step < len(dialogue) else None
    while step >= 2 and dialogue[step - 1].of("tool_result") and dialogue[step - 2].of("tool_use"):
        step -= 2
        opening = dialogue[step]
    if opening is not None and opening.spots and opening.spots[0].kind not in THINKING:
        first = opening.spots[0]
        yield (
            f"{first.where}.type: Expected `thinking` or `redacted_thinking`, but found"
            f" `{first.kind}`. When `thinking` is enabled, a final `assistant` message must start"
            " with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result`"
            " blocks). We recommend you include thinking blocks from previous turns. To avoid"
            " this requirement, disable `thinking`. Please consult our documentation at"
            f" {_THINKING_DOCS}"
        )


def v16_system_messages_know_their_place(request: MessageRequest) -> Iterator[str]:
    """On models that take them: after a user message, before the assistant's or at the end."""
    if request.rules.system_messages:
        for index, run in enumerate(request.runs):
            if run.role == "system" and run.spots:
                yield from _misplaced(request, index)
    elif any(run.role == "system" for run in request.runs):
        yield (
            'messages: Unexpected role "system". The Messages API accepts a top-level `system`'
            ' parameter, not "system" as an input message role.'
        )


def _misplaced(request: MessageRequest, index: int) -> Iterator[str]:
    run = request.runs[index]
    anywhere = (
        "; the directive-only form (content: [] with output_config) is accepted at any position"
    )
    before = request.runs[index - 1] if index else None
    follows = before is not None and (
        before.role == "user" or (before.spots and is_server_result(before.spots[-1].kind))
    )
    if not follows or (before is not None and _ends_in_open_calls(before)):
        yield (
            f"messages.{run.start}: role 'system' must follow a 'user' message or an 'assistant'"
            f" message ending in a server tool result{anywhere}"
        )
    elif index + 1 < len(request.runs) and request.runs[index + 1].role != "assistant":
        yield (
            f"messages.{run.start}: role 'system' must precede an 'assistant' message or end the"
            f" array{anywhere}"
        )


def _ends_in_open_calls(run: Run) -> bool:
    return run.role == "assistant" and bool(run.of("tool_use"))


MESSAGE_RULES: dict[str, MessageRule] = {
    "V1": v1_the_user_speaks_first,
    "V5": v5_nothing_is_empty,
    "V16": v16_system_messages_know_their_place,
    "V4, sides": v4_blocks_stand_on_their_side,
    "V3": v3_every_call_is_answered_at_once,
    "V4": v4_every_result_has_its_call,
    "V6": v6_server_results_follow_their_calls,
    "V19": v19_no_server_call_is_left_open,
    "V2": v2_the_user_speaks_last,
    "V8": v8_a_tool_loop_starts_with_thinking,
}
"""The rules in the order in which they are checked. The first broken rule is reported."""
