"""The words of messages, records and queries, for the full-text search. Pure.

A word is a run of letters, digits and underscores, without regard to case. Each Chinese, Japanese
or Korean character is a word, because these languages are written without spaces between words.

Searched are texts, the names and inputs of calls, results, and the title of the session. Not
searched are thinking, images, and texts that the session wrote itself (receipts, results that
settle a call).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from llmsession.errors import InvalidInput
from llmsession.store.protocol import UNREADABLE, Word
from llmsession.turns import records as r
from llmsession.turns.blocks import Block, TextBlock, ToolResultBlock, ToolUseBlock, parse_blocks
from llmsession.turns.messages import Message

from ..values.labels import TITLE_LABEL

__all__ = ["Found", "Query", "find_in", "find_in_text", "parse_query", "words_of_record"]

MAX_WORD_CHARS = 100
"""Only the beginning of a longer word counts."""
MAX_QUERY_CHARS = 1_000
MAX_QUERY_WORDS = 32
EXCERPT_CHARS = 60
"""The number of characters on each side of the match."""

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_ALONE}]|(?:(?![{_ALONE}])\w)+")
_PART = re.compile(r'"([^"]*)"|(\S+)')


class _Phrase(NamedTuple):
    """Words that follow each other. Of the last one only the beginning may be given."""

    words: tuple[str, ...]
    is_prefix: bool

    def place_in(self, words: Sequence[str]) -> int | None:
        """The first position in *words* at which the phrase begins; None if there is none."""
        last = len(self.words) - 1
        for start in range(len(words) - last):
            end = words[start + last]
            if (end.startswith(self.words[-1]) if self.is_prefix else end == self.words[-1]) and (
                tuple(words[start : start + last]) == self.words[:-1]
            ):
                return start
        return None


class Query(NamedTuple):
    """A search for messages that contain all of *phrases*."""

    phrases: tuple[_Phrase, ...]

    @property
    def words(self) -> tuple[Word, ...]:
        """The words that a message must contain."""
        words = {
            Word(word, phrase.is_prefix and index == len(phrase.words) - 1)
            for phrase in self.phrases
            for index, word in enumerate(phrase.words)
        }
        return tuple(sorted(words, key=lambda word: (word.text, word.is_prefix)))


class Found(NamedTuple):
    """A match: how many messages have it, the last of them, and an excerpt of that one."""

    messages: int
    message: Message
    excerpt: str


def parse_query(query: Any) -> Query:
    """Read a query: words that a message must all contain.

    ``"two words"`` in quotes must follow each other, and ``begin*`` matches every word with that
    prefix. Raises InvalidInput for a query without a word, or one that is too long.
    """
    if not isinstance(query, str):
        raise InvalidInput(f"the query must be a text, not {type(query).__name__}")
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidInput(
            f"the query has {len(query)} characters; the maximum is {MAX_QUERY_CHARS}"
        )
    phrases = []
    for part in _PART.finditer(query):
        text = part[1] if part[1] is not None else part[2]
        words = tuple(_words(text))
        if words:
            phrases.append(_Phrase(words, part[1] is None and text.endswith("*")))
    if not phrases:
        raise InvalidInput(f"the query {query!r} has no word to search for")
    if sum(len(phrase.words) for phrase in phrases) > MAX_QUERY_WORDS:
        raise InvalidInput(f"the query has too many words; the maximum is {MAX_QUERY_WORDS}")
    return Query(tuple(phrases))


def find_in(query: Query, messages: Sequence[Message]) -> Found | None:
    """The matches of *query* in *messages*; None if there are none."""
    count, last, excerpt = 0, None, ""
    for message in messages:
        found = _excerpt(query, list(_texts_of(message.body, message.synthetic)))
        if found is not None:
            count, last, excerpt = count + 1, message, found
    return None if last is None else Found(count, last, excerpt)


def find_in_text(query: Query, text: str) -> str | None:
    """An excerpt of *text* if it matches *query*; else None."""
    return _excerpt(query, [text])


def _excerpt(query: Query, texts: Sequence[str]) -> str | None:
    words_of_texts = [list(_words(text)) for text in texts]
    first: tuple[int, int] | None = None
    for phrase in query.phrases:
        places = ((n, phrase.place_in(words)) for n, words in enumerate(words_of_texts))
        place = next(((n, start) for n, start in places if start is not None), None)
        if place is None:
            return None
        first = first or place
    assert first is not None  # a query has a phrase
    text = texts[first[0]]
    spans = [span for word, span in _folded(text)]
    start, end = spans[first[1]]
    begin, stop = max(0, start - EXCERPT_CHARS), end + EXCERPT_CHARS
    # An excerpt has no characters that a terminal would obey, or would show at another place.
    characters = (c if c.isprintable() else " " for c in text[begin:stop])
    shown = " ".join("".join(characters).split())
    return f"{'…' if begin else ''}{shown}{'…' if stop < len(text) else ''}"


def words_of_record(body: bytes) -> set[str]:
    """The words in the content of the record *body*; UNREADABLE if it is not a record."""
    try:
        record = r.decode_record(body)
        return {word for text in _said_in(record) for word in _words(text)}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {UNREADABLE}


def _said_in(record: r.Record) -> Iterator[str]:
    match record:
        case r.SessionCreated() | r.SessionForked() | r.SessionLabelled():
            yield record.labels.get(TITLE_LABEL, "")
            if not isinstance(record, r.SessionLabelled) and record.source is not None:
                yield record.source.title
        case r.TurnAccepted() | r.SteerAccepted():
            yield from _texts_of(record.body)
        case r.ToolsAnswered():
            for answer in record.answers:
                yield from _result_texts(msgspec.json.decode(answer.content))
        case r.TurnImported():
            for message in record.messages:
                yield from _texts_of(message.body)
        case r.ToolsRequested() | r.StepCompleted() | r.TurnCommitted():
            if record.reply is not None:
                yield from _texts_of(record.reply.body)


def _texts_of(body: bytes | msgspec.Raw, synthetic: Sequence[int] = ()) -> Iterator[str]:
    for index, block in enumerate(parse_blocks(body)):
        if index not in synthetic:
            yield from _block_texts(block)


def _block_texts(block: Block) -> Iterator[str]:
    match block:
        case TextBlock():
            yield block.text
        case ToolUseBlock():
            yield block.name
            yield from _strings(block.input)
        case ToolResultBlock():
            yield from _result_texts(block.content)


def _result_texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for part in value:
                yield from _strings(part)
        case dict():
            for name, part in value.items():
                yield name
                yield from _strings(part)
        case int() | float() if not isinstance(value, bool):
            yield str(value)


def _words(text: str) -> Iterator[str]:
    return (word for word, _ in _folded(text))


def _folded(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each word of *text* in the form in which it is compared, and its position."""
    for match in _WORD.finditer(text):
        word = match[0]
        if word.isascii():
            word = word.lower()
        else:
            folded = unicodedata.normalize("NFKC", word).casefold()
            word = "".join(character for character in folded if character.isalnum())
        if word:
            yield word[:MAX_WORD_CHARS], match.span()
