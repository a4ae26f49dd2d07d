"""A request against what a reference expects of it, block by block.

Neighbours of one role are one message to a provider, so blocks are compared, with their roles, and
not messages. What a system says in words of its own is expected by its kind: a summary, a note, a
text that was shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from llmsession.compaction.view.summary_wording import SUMMARY_TITLE

from .conversations import Block, Held, Life, Sent

__all__ = ["SUMMARY", "differences", "note", "shortened"]

SUMMARY = Held("user", ({"type": "summary"},))
"""A summary of what is not shown, in words of our own."""


def note(words: str) -> Held:
    """A text of the user's side that is in no message of the conversation and has *words*."""
    return Held("user", ({"type": "note", "words": words},))


def shortened(block: Block, max_chars: int) -> Block:
    """*block* with less of its text, at most so many characters."""
    return {"type": "shortened", "of": block, "max_chars": max_chars}


def differences(life: Life, expected: Iterable[Sequence[Held]]) -> list[str]:
    """One text for each request that is not as expected, in order."""
    return [
        f"request {number} of {len(life.requests)}, {len(sent.messages)} messages held\n"
        f"  sent     {_shape(sent.request, sent)}\n"
        f"  expected {_shape(messages, sent)}"
        for number, (sent, messages) in enumerate(zip(life.requests, expected, strict=True), 1)
        if not _is_as_expected(sent, messages)
    ]


def _blocks(messages: Iterable[Held]) -> list[tuple[str, Block]]:
    return [(message.role, block) for message in messages for block in message.blocks]


def _is_as_expected(sent: Sent, messages: Sequence[Held]) -> bool:
    ours, theirs = _blocks(sent.request), _blocks(messages)
    return len(ours) == len(theirs) and all(
        role == expected_role and _fits(block, expected)
        for (role, block), (expected_role, expected) in zip(ours, theirs, strict=True)
    )


def _fits(block: Block, expected: Block) -> bool:
    match expected["type"]:
        case "summary":
            return bool(block["type"] == "text" and block["text"].startswith(SUMMARY_TITLE))
        case "note":
            return block["type"] == "text" and expected["words"] in block["text"]
        case "shortened":
            return _is_shortened(block, expected["of"], expected["max_chars"])
        case _:
            return bool(block == expected)


def _is_shortened(block: Block, whole: Block, max_chars: int) -> bool:
    field = "text" if whole["type"] == "text" else "content"
    is_same = bool({**block, field: ""} == {**whole, field: ""})
    return is_same and block[field] != whole[field] and len(block[field]) <= max_chars


def _shape(messages: Sequence[Held], sent: Sent) -> str:
    """*messages* by their positions in the conversation: ``summary 12-17 18*``, where a star marks
    one that is changed."""
    position_of = {
        _key(role, block): position
        for position, message in enumerate(sent.messages)
        for role, block in _blocks([message])
    }
    whole = {
        (role, _text(block)) for message in sent.messages for role, block in _blocks([message])
    }
    words = []
    for role, block in _blocks(messages):
        key = _key(role, block)
        if key not in position_of:
            words.append(_name(block))
        else:
            words.append(f"{position_of[key]}{'' if (role, _text(block)) in whole else '*'}")
    return " ".join(_runs(words))


def _key(role: str, block: Block) -> tuple[str, str]:
    block = block["of"] if block["type"] == "shortened" else block
    text = block.get("id") or block.get("tool_use_id") or block.get("text", "")[:14]
    return role, block["type"] + text


def _text(block: Block) -> str:
    return str(block)


def _name(block: Block) -> str:
    if block["type"] in ("summary", "note"):
        return str(block["type"])
    text = block.get("text", "")
    return "summary" if text.startswith(SUMMARY_TITLE) else f"[{text[:40]!r}]"


def _runs(words: Sequence[str]) -> Iterator[str]:
    """Numbers that follow each other as a range; equal words once."""
    first = last = None
    for word in [*words, ""]:
        if last is not None and word == str(last):
            continue
        if last is not None and word == str(last + 1):
            last += 1
            continue
        if first is not None:
            yield str(first) if first == last else f"{first}-{last}"
        first = last = int(word) if word.isdecimal() else None
        if first is None and word:
            yield word
