"""Splits a source that is longer than a summariser's window, at the ends of messages."""

from __future__ import annotations

from collections.abc import Sequence

from llmsession.turns.request import Profile

from .rendering import Media, Passage, passage_tokens
from .shorten import shorten_text

__all__ = ["chunked", "fitted"]

_TRIES = 12


def chunked(
    passages: Sequence[Passage], max_tokens: int, profile: Profile
) -> tuple[tuple[Passage, ...], ...]:
    """*passages* in runs of at most *max_tokens* tokens: all of them, in order, at least one in
    each run. A passage that is longer by itself is cut to head and tail.
    """
    runs: list[tuple[Passage, ...]] = []
    run: list[Passage] = []
    size = 0
    for passage in passages:
        tokens = passage_tokens(passage, profile)
        if tokens > max_tokens:
            passage = fitted(passage, max_tokens, profile)
            tokens = passage_tokens(passage, profile)
        if run and size + tokens > max_tokens:
            runs.append(tuple(run))
            run, size = [], 0
        run.append(passage)
        size += tokens
    if run:
        runs.append(tuple(run))
    return tuple(runs)


def fitted(passage: Passage, max_tokens: int, profile: Profile) -> Passage:
    """*passage* in at most *max_tokens* tokens, or as few as a cut can leave.

    Its text is cut to head and tail. Its images and documents are left out if they take more than
    half of the room.
    """
    if passage_tokens(passage, profile) <= max_tokens:
        return passage
    media = [part for part in passage.parts if isinstance(part, Media)]
    if len(media) * profile.image_tokens <= max_tokens // 2:
        words = Passage(tuple(part for part in passage.parts if isinstance(part, str)))
        cut = _cut(words, max_tokens - len(media) * profile.image_tokens, profile)
        return Passage((*cut.parts, *media))
    return _cut(Passage((passage.text,)), max_tokens, profile)


def _cut(passage: Passage, max_tokens: int, profile: Profile) -> Passage:
    text = passage.text
    chars = len(text)
    cut = passage
    for _ in range(_TRIES):
        tokens = passage_tokens(cut, profile)
        if tokens <= max_tokens:
            break
        # A little less than in proportion, because the ends may be denser than the middle was.
        chars = min(chars * max_tokens // tokens, chars) * 9 // 10
        cut = Passage((shorten_text(text, chars),))
    return cut
