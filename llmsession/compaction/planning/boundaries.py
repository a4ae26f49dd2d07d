"""Where a conversation may be cut so that no tool call loses its result, and which part is
recent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import compress, islice

from llmsession.turns.blocks import DocumentBlock, ImageBlock, TextBlock, is_thinking
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected
from llmsession.turns.request import Profile

from ..view.view import View

__all__ = [
    "has_own_words",
    "injection_voids",
    "is_safe_cut",
    "is_turn_start",
    "must_wait",
    "newest_request",
    "newest_that_fit",
    "recent_from",
    "safe_cuts",
    "shows_open_thinking",
    "steps_from",
    "turns_from",
]


def is_safe_cut(messages: Sequence[Message], at: int) -> bool:
    """May the messages before position *at* be left out?

    Not if results after *at* answer calls before it, because a provider refuses a result without
    its call, and a call without its result. A provider reads neighbours of one role as one message,
    so the calls of a run of replies are answered after the whole run. The result of a provider's
    own tool may stand in the reply after the one with its call.
    """
    if not 0 <= at <= len(messages):
        return False
    before, after = at - 1, at
    while before >= 0 and messages[before].is_assistant:
        if messages[before].tool_calls:
            return False
        before -= 1
    while after < len(messages) and messages[after].is_user:
        if messages[after].tool_results:
            return False
        after += 1
    return not _parts_a_server_tool(messages, at, after)


_SERVER_TOOL = re.compile(rb'_tool_(?:use|result)"').search


def _parts_a_server_tool(messages: Sequence[Message], at: int, after: int) -> bool:
    """Is a server tool's call before *at*, and its result in the reply at *after* or still to
    come?
    """
    if after < len(messages):
        return bool(_unpaired(messages[after], results=True))
    before = next((m for m in reversed(messages[max(0, at - 2) : at]) if m.is_assistant), None)
    return before is not None and bool(_unpaired(before, results=False))


def _unpaired(message: Message, *, results: bool) -> set[object]:
    """The ids of the server tools in *message* that have only a result there, or only a call."""
    if _SERVER_TOOL(message.body) is None:
        return set()
    fields = [block.decoded() for block in message.opaque]
    called = {each.get("id") for each in fields if str(each["type"]).endswith("_tool_use")}
    answered = {
        each.get("tool_use_id") for each in fields if str(each["type"]).endswith("_tool_result")
    }
    return answered - called if results else called - answered


def is_turn_start(messages: Sequence[Message], at: int) -> bool:
    """Does a turn begin at position *at*?"""
    return at == 0 or messages[at].turn != messages[at - 1].turn


def safe_cuts(messages: Sequence[Message], start: int, end: int) -> Iterator[int]:
    """The positions from *start* to *end*, both included, where a cut is safe."""
    return (index for index in range(start, end + 1) if is_safe_cut(messages, index))


def shows_open_thinking(view: View, messages: Sequence[Message], committed: int) -> bool:
    """Does *view* show thinking of the open turn, or of a tool loop that continues in it?

    *committed* is the position of the open turn's first message. A turn that was stopped ends with
    tool results, and the next user message joins them, so its tool loop is still open.
    """
    start = max(min(committed, _loop_start(messages)), view.thinking_from)
    return any(is_thinking(block) for message in messages[start:] for block in message.content)


def _loop_start(messages: Sequence[Message]) -> int:
    """The position of the first reply of the tool loop that the next reply would continue.

    Returns the number of messages if there is no such loop.
    """
    index = start = len(messages)
    answers = False
    while index > 0:
        index -= 1
        if messages[index].is_user:
            answers = answers or bool(messages[index].tool_results)
        elif answers:
            start, answers = index, False
        else:
            break
    return start


def must_wait(view: View, messages: Sequence[Message], profile: Profile, committed: int) -> bool:
    """Is no edit possible before the open turn ends?

    That is so if the open tool loop must begin with thinking, and an edit would make that thinking
    invalid.
    """
    return (
        profile.thinking_opens_tool_loop
        and profile.binds_thinking
        and shows_open_thinking(view, messages, committed)
    )


def injection_voids(view: View, messages: Sequence[Message], after: Sequence[Injected]) -> bool:
    """Would injecting *after* instead of what *view* injects make visible thinking invalid?

    Thinking is bound to everything before it, so it becomes invalid if a text before it is added,
    removed or changed. A text at the end of the context invalidates nothing.
    """
    changed = set(view.injected) ^ set(after)
    edge = min((item.at for item in changed), default=len(messages))
    first = max(edge, view.thinking_from, view.start, 0)
    return any(
        message.is_assistant and b"thinking" in bytes(message.body) for message in messages[first:]
    )


def has_own_words(message: Message) -> bool:
    """Does *message* hold something that the user said: text, an image or a document? Tool results,
    and blocks that the session wrote itself, do not count.
    """
    return message.is_user and any(
        (isinstance(block, TextBlock) and block.text.strip() and index not in message.synthetic)
        or isinstance(block, ImageBlock | DocumentBlock)
        for index, block in enumerate(message.content)
    )


def newest_request(messages: Sequence[Message]) -> int | None:
    """The position of the newest message in which the user says something; None if there is none.

    A message that was steered in while tools ran stands behind their results, in one message with
    them.
    """
    places = (index for index in range(len(messages) - 1, -1, -1) if has_own_words(messages[index]))
    return next(places, None)


def newest_that_fit(sizes: Sequence[int], room: int) -> int:
    """Where the longest suffix of *sizes* begins whose sum is at most *room*.

    The search goes from the newest to the oldest and stops at the first size that does not fit.
    """
    index = len(sizes)
    # Before what is shown there may be any number of messages, and their sizes are 0.
    opening = next(compress(range(index), sizes), index)
    while index > opening and sizes[index - 1] <= room:
        index -= 1
        room -= sizes[index]
    return 0 if index == opening and room >= 0 else index


def turns_from(messages: Sequence[Message], count: int, start: int = 0) -> int:
    """Where the newest *count* turns begin, at *start* at the earliest."""
    # From the newest one back, because the older ones may be any number.
    newest_turns: set[int] = set()
    for index in range(len(messages) - 1, start - 1, -1):
        newest_turns.add(messages[index].turn)
        if len(newest_turns) > count > 0:
            return index + 1
    return start


def steps_from(messages: Sequence[Message], count: int | None) -> int:
    """Where the newest *count* steps begin; 0 if there are no older ones, or if *count* is None."""
    if count is None:
        return 0
    return next(islice(_steps_backwards(messages), count - 1, None), 0)


def _steps_backwards(messages: Sequence[Message], start: int = 0) -> Iterator[int]:
    """The positions from *start* on of the messages with calls, the newest first.

    The very last message is left out, because its calls are not answered yet. All others are
    answered by the message after them.
    """
    for index in range(len(messages) - 2, start - 1, -1):
        if messages[index].tool_calls:
            yield index


def recent_from(
    messages: Sequence[Message],
    sizes: Sequence[int],
    *,
    keep_turns: int,
    keep_steps: int | None,
    max_tokens: int,
    start: int = 0,
) -> int:
    """Where the recent part begins, at *start* at the earliest.

    It holds the newest *keep_turns* turns, and of them the newest *keep_steps* steps, but never
    more than *max_tokens* tokens by *sizes*. The newest step of these turns is always recent, and
    so is the last message. Messages before *start* are not looked at: there may be any number.
    """
    by_tokens = start + newest_that_fit(sizes[start:], max_tokens)
    by_turns = turns_from(messages, keep_turns, start)
    # The newest step is always recent, unless it belongs to an older turn.
    steps = list(islice(_steps_backwards(messages, by_turns), keep_steps or 1))
    newest = steps[0] if steps else len(messages)
    by_steps = steps[-1] if keep_steps is not None and len(steps) == keep_steps else start
    return max(0, min(max(by_turns, by_steps, by_tokens), newest, len(messages) - 1))
