"""How much a recorded conversation's prompt grew from one request to the next, as reported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from llmsession.transcripts import Conversation
from llmsession.turns.blocks import RedactedThinkingBlock, ThinkingBlock
from llmsession.turns.messages import Message
from llmsession.turns.spending.model_names import canonical_name
from llmsession.turns.usage import Usage

__all__ = ["EXCLUDED", "Growth", "growths"]

EXCLUDED = {
    "context_shrank": "the prompt did not grow: compacted, rewound, or thinking left out",
    "prefix_rewritten": "most of the prompt was not in a warm cache: it is another prompt",
    "interrupted": "the reply, or a turn between, was cut short: what was sent is not known",
    "unanswered_call": "a call without a result: the recorder sent something else in its place",
    "model_changed": "the two requests went to different models",
    "thinking_dropped": "a new turn: the provider leaves out the thinking of the turns before",
    "no_usage": "a reply between has no reported usage",
}
"""Why a pair of requests does not show what its content costs."""

WARM_PERMILLE = 900
"""A warm cache holds the previous prompt, or all of it up to its last breakpoint: at least this
many thousandths.
"""

# Since Opus 4.5 Claude keeps the thinking of earlier turns; older models leave it out.
_KEEPS_THINKING = re.compile(
    r"claude-(?:opus-4-[5-9]|sonnet-4-[6-9]|(?:opus|sonnet|haiku|fable|mythos)-[5-9])"
)


class Growth(msgspec.Struct, frozen=True):
    """What one request contains beside the previous one: the *reply* to that one, and the messages
    *after* the reply. Token counts are as reported; ``grown_tokens`` is positive.
    """

    model: str
    reply: Message
    after: tuple[Message, ...]
    prompt_tokens: int
    output_tokens: int
    grown_tokens: int
    at: int
    """The position of the reply."""


def growths(conversation: Conversation) -> tuple[list[Growth], Counter[str]]:
    """The growths in *conversation*, in order, and how many pairs of requests were left out, by
    reason.

    The turns that a branch shares with the path that it leaves are skipped.
    """
    intervals: list[Growth] = []
    excluded: Counter[str] = Counter()
    for index, following in _pairs(conversation):
        between = conversation.messages[index : following + 1]
        reply, last = between[0], between[-1]
        before, now = reply.usage, last.usage
        if before is None or now is None or not before.prompt_tokens or not now.prompt_tokens:
            excluded["no_usage"] += 1
        elif reason := _unfit(between, before, now, conversation):
            excluded[reason] += 1
        else:
            growth = Growth(
                model=canonical_name(last.model or ""),
                reply=reply,
                after=between[1:-1],
                prompt_tokens=before.prompt_tokens,
                output_tokens=before.output_tokens,
                grown_tokens=now.prompt_tokens - before.prompt_tokens,
                at=index,
            )
            intervals.append(growth)
    return intervals, excluded


def _pairs(conversation: Conversation) -> Iterator[tuple[int, int]]:
    replies = [index for index, message in enumerate(conversation.messages) if message.is_assistant]
    for index, following in pairwise(replies):
        if conversation.messages[following].turn > conversation.shared_turns:
            yield index, following


def _unfit(
    between: Sequence[Message], before: Usage, now: Usage, conversation: Conversation
) -> str | None:
    reply, last = between[0], between[-1]
    if canonical_name(reply.model or "") != canonical_name(last.model or ""):
        return "model_changed"
    if now.prompt_tokens <= before.prompt_tokens:
        return "context_shrank"
    turns = range(reply.turn, last.turn)
    if reply.stop_reason in ("cancelled", "error") or any(
        turn in conversation.interrupted for turn in turns
    ):
        return "interrupted"
    answered = {result.tool_use_id for message in between for result in message.tool_results}
    if any(call.id not in answered for call in reply.tool_calls):
        return "unanswered_call"
    # Other providers keep parts of a prompt in many caches and hit one of them by chance, so this
    # shows a rewritten prompt only for Claude.
    is_claude = canonical_name(last.model or "").startswith("claude")
    cached = now.cache_read_tokens * 1_000
    if is_claude and 0 < cached < before.prompt_tokens * WARM_PERMILLE:
        return "prefix_rewritten"
    if turns and _drops_thinking(reply, conversation):
        return "thinking_dropped"
    return None


def _drops_thinking(reply: Message, conversation: Conversation) -> bool:
    if _KEEPS_THINKING.match(canonical_name(reply.model or "")):
        return False
    return any(
        _thinks(message)
        for message in conversation.messages
        if message.is_assistant and message.turn == reply.turn
    )


def _thinks(message: Message) -> bool:
    # Thinking that cannot be sent to any other provider, such as encrypted reasoning, is kept in
    # ``extra``.
    extra = bytes(message.extra) if message.extra else b""
    return b'"reasoning"' in extra or any(
        isinstance(block, ThinkingBlock | RedactedThinkingBlock) for block in message.content
    )
