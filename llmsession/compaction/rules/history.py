"""Validity rules that compare a request with its history: signed thinking.

Source: Anthropic's documentation of preserved thinking. A thinking block is bound to everything
before it. So an edit makes thinking invalid that was made before the edit and stands after its
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from ..view.prefix import shared_prefix
from .block_fields import RuleViolation
from .message_facts import FactsCache, Thought

__all__ = ["HISTORY_RULES", "Astray", "HistoryRule", "find_astray"]


Fate: TypeAlias = Literal["gap", "void", "misplaced", "changed"]


class Astray(NamedTuple):
    """A thinking block of the request that does not match the history.

    - ``gap``: an earlier thinking block was left out.
    - ``void``: an edit has broken its signature.
    - ``misplaced``: it is out of order, or sent twice.
    - ``changed``: the history has no such block.
    """

    where: str
    fate: Fate


class Made(NamedTuple):
    """The thinking blocks of a history, the oldest first.

    ``valid[:edge]`` were made before the edits and stand before them. ``valid[edge:]`` were made
    after the edits. ``void`` are those whose prefix was edited.
    """

    valid: list[Thought]
    edge: int
    void: list[Thought]


def find_astray(
    sent: FactsCache, history: FactsCache, thinking_from: int, edited_from: int | None
) -> list[Astray]:
    """The thinking blocks of the request *sent*, in order, that do not match the history."""
    made, thoughts = _made(history, thinking_from, edited_from), sent.thoughts
    # Nearly always all thinking is sent, or all that was made after the edits.
    if shared_prefix(thoughts, made.valid) == len(thoughts) or shared_prefix(
        thoughts, made.valid[made.edge :]
    ) == len(thoughts):
        return []
    places = (
        f"messages[{index}].content[{thought.block}]"
        for index, thought in zip(sent.thinking_at, thoughts, strict=True)
    )
    return list(_walk(zip(places, thoughts, strict=True), made))


def _made(history: FactsCache, thinking_from: int, edited_from: int | None) -> Made:
    thoughts, later = history.thoughts, history.count_thoughts(thinking_from)
    if edited_from is None or edited_from >= thinking_from:
        return Made(thoughts, later, [])
    first, behind = history.count_thoughts(edited_from), history.count_thoughts(edited_from + 1)
    whole = thoughts[:first]
    void: list[Thought] = []
    # Within the edited message itself, only the input of a call can have changed. So thinking
    # before its calls is still valid.
    for thought in thoughts[first:behind]:
        (void if thought.after_call else whole).append(thought)
    void += thoughts[behind:later]
    return Made(whole + thoughts[later:], len(whole), void)


def _walk(sent: Iterable[tuple[str, Thought]], known: Made) -> Iterator[Astray]:
    index = 0
    for where, thought in sent:
        match = _find(thought, known.valid, index)
        if match is None:
            yield Astray(where, _why_unmatched(thought, known))
            continue
        if _leaves_a_gap(known, index, match):
            yield Astray(where, "gap")
        index = match + 1


def _find(thought: Thought, thoughts: Sequence[Thought], start: int) -> int | None:
    for index in range(start, len(thoughts)):
        if thoughts[index].raw == thought.raw:
            return index
    return None


def _why_unmatched(thought: Thought, known: Made) -> Fate:
    if _find(thought, known.void, 0) is not None:
        return "void"
    return "changed" if _find(thought, known.valid, 0) is None else "misplaced"


def _leaves_a_gap(known: Made, start: int, match: int) -> bool:
    # Thinking that was made after the edits never saw the blocks from before them. And a block
    # without a signature was never sent, so it may be missing anywhere.
    if match >= known.edge:
        start = max(start, known.edge)
    return any(thought.signed for thought in known.valid[start:match])


HistoryRule: TypeAlias = Callable[[Sequence[Astray]], Iterator[RuleViolation]]


def v7_thinking_is_sent_as_it_was_made(astray: Sequence[Astray]) -> Iterator[RuleViolation]:
    """V7: each thinking block is one of the history's, byte for byte, and in its order."""
    for block in astray:
        if block.fate in ("changed", "misplaced"):
            text = (
                f"this block is {block.fate}: `thinking` or `redacted_thinking` blocks in the"
                " latest assistant message cannot be modified"
            )
            yield RuleViolation("V7", block.where, text)


def v9_no_thinking_outlives_an_edit_before_it(astray: Sequence[Astray]) -> Iterator[RuleViolation]:
    """V9: no thinking from before an edit stands behind the first edited message, and the rest has
    no gap.
    """
    for block in astray:
        if block.fate in ("void", "gap"):
            why = "it was edited" if block.fate == "void" else "thinking was left out"
            text = (
                "Invalid signature in thinking block. The block is bound to a different"
                f" conversation: {why} before it"
            )
            yield RuleViolation("V9", block.where, text)


HISTORY_RULES: dict[str, HistoryRule] = {
    "V7": v7_thinking_is_sent_as_it_was_made,
    "V9": v9_no_thinking_outlives_an_edit_before_it,
}
