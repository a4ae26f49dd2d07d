"""Validity rules about the order of messages, pairing, and how a conversation begins and ends.

Source: the Anthropic Messages API: its documentation and its error messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..view.provider_blocks import COMPACTION
from .block_fields import RuleViolation
from .dialogue import Dialogue
from .message import THINKING
from .message_facts import Mark

__all__ = ["STRUCTURE_RULES", "RequestRule"]

RequestRule: TypeAlias = Callable[[Dialogue], Iterator[RuleViolation]]


def v1_the_user_speaks_first_and_roles_alternate(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V1: between 1 and 100,000 messages, the first one the user's. If the
    profile merges roles, neighbours of one role have been merged.
    """
    yield from dialogue.found("V1")
    count = len(dialogue.messages)
    if count == 0:
        yield RuleViolation("V1", "messages", "messages: at least one message is required")
    if count > (limit := dialogue.profile.max_messages):
        yield RuleViolation(
            "V1", "messages", f"at most {limit} messages are accepted, found {count}"
        )
    if dialogue.runs and dialogue.runs[0].role != "user":
        first = dialogue.starts[0]
        if dialogue.messages[first].opens_with != COMPACTION:
            text = 'first message must use the "user" role'
            yield RuleViolation("V1", f"messages[{first}]", text)
    for index in dialogue.repeated if dialogue.profile.merges_roles else ():
        role = dialogue.messages[index].role
        yield RuleViolation("V1", f"messages[{index}]", f"two {role} messages in a row; merge them")


def v2_the_last_message_is_the_users(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V2: the last message is the user's, unless the model accepts prefill; prefill has no trailing
    blank.

    There are three exceptions. A turn that the provider paused behind its own tools, or behind its
    own summary, is sent back unchanged, and so ends with the assistant. A compaction request asks
    for no reply.
    """
    if not dialogue.runs or dialogue.runs[-1].role != "assistant":
        return
    last = dialogue.runs[-1]
    where = f"messages[{len(dialogue.messages) - 1}]"
    if last.server_calls or last.ends_in_compaction or dialogue.request.options.get("compaction"):
        return
    if not dialogue.profile.prefill:
        text = (
            "This model does not support assistant message prefill."
            " The conversation must end with a user message."
        )
        yield RuleViolation("V2", where, text)
    elif last.ends_in_space:
        text = "final assistant content cannot end with trailing whitespace"
        yield RuleViolation("V2", where, text)


def v3_every_call_is_answered_in_the_next_user_message(
    dialogue: Dialogue,
) -> Iterator[RuleViolation]:
    """V3: all results of a message's calls stand in the very next user message, before anything
    else.
    """
    for index in dialogue.unpaired:
        run = dialogue.runs[index]
        if run.role == "assistant" and run.calls and run.call_ids != dialogue.answers(index):
            yield from _unanswered(dialogue, index)
    for index in dialogue.late:
        for mark in dialogue.runs[index].late_results:
            text = "`tool_result` blocks must come first in the content of a user message"
            yield RuleViolation("V3", dialogue.where(index, mark), text)


def _unanswered(dialogue: Dialogue, index: int) -> Iterator[RuleViolation]:
    if index + 1 == len(dialogue.runs) and dialogue.request.options.get("compaction"):
        return  # V15 reports it in its own words
    answered = set(dialogue.answers(index))
    for mark in dialogue.runs[index].calls:
        if mark.id not in answered:
            text = (
                "`tool_use` ids were found without `tool_result` blocks immediately after:"
                f" {mark.id}. Each `tool_use` block must have a corresponding `tool_result`"
                " block in the next message."
            )
            yield RuleViolation("V3", dialogue.where(index, mark), text)


def v4_every_result_has_its_call_and_ids_are_unique(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V4: each result's call is in the previous assistant message; one result for a call; ids are
    unique.
    """
    yield from dialogue.found("V4")
    for index in dialogue.unpaired:
        run = dialogue.runs[index]
        if run.role == "user" and run.results and run.result_ids != dialogue.calls_before(index):
            yield from _unexpected(dialogue, index)
    if len(dialogue.call_ids) != dialogue.call_count:
        yield from _repeated_ids(dialogue)


def _unexpected(dialogue: Dialogue, index: int) -> Iterator[RuleViolation]:
    calls = set(dialogue.calls_before(index))
    count: Counter[str] = Counter()
    for mark in dialogue.runs[index].results:
        count[mark.id] += 1
        if mark.id not in calls:
            text = (
                f"unexpected `tool_use_id` found in `tool_result` blocks: {mark.id}. Each"
                " `tool_result` block must have a corresponding `tool_use` block in the"
                " previous message."
            )
            yield RuleViolation("V4", dialogue.where(index, mark), text)
        elif count[mark.id] == 2:
            text = (
                "each tool_use must have a single result. Found multiple `tool_result` blocks"
                f" with id: {mark.id}"
            )
            yield RuleViolation("V4", dialogue.where(index, mark), text)


def _repeated_ids(dialogue: Dialogue) -> Iterator[RuleViolation]:
    known: set[str] = set()
    for index in dialogue.calling:
        for mark in dialogue.runs[index].calls:
            if mark.id in known:
                text = f"`tool_use` ids must be unique: {mark.id}"
                yield RuleViolation("V4", dialogue.where(index, mark), text)
            known.add(mark.id)


def v5_no_content_is_empty(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V5: no empty text, and no empty message except a final one of the assistant."""
    yield from dialogue.found("V5")
    last = len(dialogue.messages) - 1
    for index in dialogue.notable:
        facts = dialogue.messages[index]
        if facts.size == 0 and not (index == last and facts.role == "assistant"):
            text = (
                "all messages must have non-empty content except for the optional final"
                " assistant message"
            )
            yield RuleViolation("V5", f"messages[{index}].content", text)


def v6_every_server_result_has_its_call_before_it(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V6: a result of the provider's own tool follows its call in the assistant's content.

    While client tools of the same reply are pending, the provider puts its result at the beginning
    of the next reply (recorded traffic). So all assistant content of one tool loop counts as one.
    """
    yield from dialogue.found("V6")
    if not any(dialogue.messages[index].stray_server_results for index in dialogue.notable):
        return
    for index, run in enumerate(dialogue.runs):
        for mark in run.stray_server_results:
            if run.role == "assistant" and mark.id not in _server_calls_in_loop(dialogue, index):
                text = (
                    f"unexpected `tool_use_id` found in `{mark.type}` blocks: {mark.id}. Each"
                    f" `{mark.type}` block must have a corresponding `server_tool_use` block"
                    " before it."
                )
                yield RuleViolation("V6", dialogue.where(index, mark), text)


def _server_calls_in_loop(dialogue: Dialogue, index: int) -> set[str]:
    loop = _loop_before(dialogue, index)
    return {call for earlier in loop for call in dialogue.runs[earlier].server_calls}


def _loop_before(dialogue: Dialogue, index: int) -> Iterator[int]:
    """The assistant runs of the same tool loop before the run *index*, the newest first."""
    while index >= 2 and dialogue.runs[index - 1].result_ids:
        index -= 2
        yield index


def v7_thinking_is_signed(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V7: thinking is the assistant's, and carries its signature if the profile binds thinking."""
    return dialogue.found("V7") if dialogue.profile.binds_thinking else iter(())


def v8_a_tool_loop_starts_with_thinking(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V8: with manual thinking, the assistant turn of an open tool loop starts with thinking."""
    thinking = dialogue.request.options.get("thinking")
    manual = isinstance(thinking, dict) and thinking.get("type") == "enabled"
    if not (manual and dialogue.profile.thinking_opens_tool_loop):
        return
    loop = list(_loop_before(dialogue, len(dialogue.runs)))
    if loop and (kind := dialogue.runs[loop[-1]].opens_with) not in THINKING:
        text = f"Expected `thinking` or `redacted_thinking`, but found `{kind}`"
        yield RuleViolation("V8", f"messages[{dialogue.starts[loop[-1]]}].content[0]", text)


def v16_only_user_and_assistant_speak(dialogue: Dialogue) -> Iterator[RuleViolation]:
    """V16: there is no message of another role. Our messages have no role "system", so it is
    refused everywhere.
    """
    if len(dialogue.starts) + len(dialogue.repeated) == len(dialogue.messages):
        return
    for index, facts in enumerate(dialogue.messages):
        if facts.role not in ("user", "assistant"):
            text = f"role: Input should be 'user' or 'assistant', not {facts.role!r}"
            yield RuleViolation("V16", f"messages[{index}]", text)


def v19_every_server_call_is_answered_before_the_user_speaks(
    dialogue: Dialogue,
) -> Iterator[RuleViolation]:
    """V19: each call of the provider's own tool has its result before the user speaks.

    The provider puts the result into the same assistant content, or at the beginning of the next
    one of the tool loop. So such a call may be open at the end of a request, or behind results
    alone. A user message ends the loop.
    """
    if not any(dialogue.messages[index].open_server_calls for index in dialogue.notable):
        return
    for index, run in enumerate(dialogue.runs):
        for mark in run.open_server_calls if run.role == "assistant" else ():
            if _is_given_up(dialogue, index, mark):
                kind = "mcp_tool_result" if mark.type == "mcp_tool_use" else "tool_result"
                text = (
                    f"`{mark.type}` with id `{mark.id}` was found without a corresponding"
                    f" `{kind}` block of the server"
                )
                yield RuleViolation("V19", dialogue.where(index, mark), text)


def _is_given_up(dialogue: Dialogue, index: int, call: Mark) -> bool:
    """Does the user speak behind the run *index*, before *call* has its result?"""
    for run in dialogue.runs[index + 1 :]:
        if run.role == "user" and run.holds_others:
            return True
        if call.id in (result.id for result in run.stray_server_results):
            return False
    return False


STRUCTURE_RULES: dict[str, RequestRule] = {
    "V1": v1_the_user_speaks_first_and_roles_alternate,
    "V2": v2_the_last_message_is_the_users,
    "V3": v3_every_call_is_answered_in_the_next_user_message,
    "V4": v4_every_result_has_its_call_and_ids_are_unique,
    "V5": v5_no_content_is_empty,
    "V6": v6_every_server_result_has_its_call_before_it,
    "V7": v7_thinking_is_signed,
    "V8": v8_a_tool_loop_starts_with_thinking,
    "V16": v16_only_user_and_assistant_speak,
    "V19": v19_every_server_call_is_answered_before_the_user_speaks,
}
