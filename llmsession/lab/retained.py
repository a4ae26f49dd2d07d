"""What was still in the context when it was needed.

For each string that a reply takes from earlier tool results: is it in the context that the reply
answers? Only distinctive strings count: paths, identifiers, numbers, and whole quoted lines. A
string counts if it first appeared in a tool result and a later reply uses it, in its text or in the
input of a call. Thinking is ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from llmsession.compaction.recall import MAX_RECALL_CHARS, recall
from llmsession.compaction.view.prefix import shared_prefix
from llmsession.turns.blocks import Block, TextBlock, ToolResultBlock, ToolUseBlock, parse_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Request, RequestMessage

from .recording import Ask

__all__ = ["MAX_PAGES", "Need", "Needs", "Presence", "distinctive", "find_needs"]

WINDOW_CHARS = 256 * 1024
"""Of a longer text only this many characters at each end are read."""
MAX_NEEDS = 100
"""How many strings of one reply count at most; the first ones do. Otherwise a reply that writes a
whole file would outweigh all others.
"""
MAX_PAGES = 3
"""How many pages of a result a model reads at most when it looks for something."""
REMEMBERED_CHARS = 4_000
MIN_LINE_CHARS, MAX_LINE_CHARS = 24, 400

_WORD = re.compile(r"[A-Za-z0-9_]{4,80}")
_PATH = re.compile(r"[\w.@+~-]{0,80}(?:/[\w.@+-]{1,80}){1,16}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_-]{2,128}")
_NUMBERED = re.compile(r"^[ \t]{0,12}\d{1,7}(?:→|\t|: ?|\| ?)", re.MULTILINE)
_HUMP = re.compile(r"[a-z0-9][A-Z]|[A-Za-z]_[A-Za-z0-9]|[A-Za-z]\d|\d[A-Za-z]")
_MIN_WORD, _MIN_NUMBER, _MIN_PATH = 6, 4, 6


class Need(NamedTuple):
    """A string that a reply uses, and the call whose result contained it most recently."""

    text: str
    call_id: str


def distinctive(text: str) -> dict[str, None]:
    """The distinctive strings of *text*, in order: paths, then identifiers and numbers, then lines.
    A line number in front of a line is not part of it.
    """
    if len(text) > 2 * WINDOW_CHARS:
        text = f"{text[:WINDOW_CHARS]}\n{text[-WINDOW_CHARS:]}"
    items = {path: None for path in _PATH.findall(text) if _is_path(path)}
    items |= {word: None for word in dict.fromkeys(_WORD.findall(text)) if _is_telling(word)}
    items |= dict.fromkeys(_lines(text))
    return items


def _is_path(path: str) -> bool:
    return len(path) >= _MIN_PATH and any(map(str.isalpha, path))


def _is_telling(word: str) -> bool:
    if word.isdigit():
        return len(word) >= _MIN_NUMBER
    return len(word) >= _MIN_WORD and _HUMP.search(word) is not None


def _lines(text: str) -> Iterator[str]:
    if "\n" not in text and not _NUMBERED.match(text):
        line = text.strip()
        if MIN_LINE_CHARS <= len(line) <= MAX_LINE_CHARS:
            yield line
        return
    for line in _NUMBERED.sub("", text).split("\n"):
        line = line.strip()
        if MIN_LINE_CHARS <= len(line) <= MAX_LINE_CHARS:
            yield line


def _said(blocks: Iterable[Block]) -> Iterator[str]:
    """The texts of a message, without results."""
    for block in blocks:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, ToolUseBlock):
            yield from _strings(block.input)


def _strings(value: object) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))
        elif isinstance(item, int) and not isinstance(item, bool):
            yield str(item)


class _Words(NamedTuple):
    """The strings of the vocabulary that a message contains, and the ids of calls in its texts that
    a reader can recall.
    """

    strings: frozenset[str]
    calls: frozenset[str]


class Needs:
    """What the replies of one conversation need, and where it is. It is the same for every
    policy.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        by_ask: Sequence[tuple[Need, ...]],
        vocabulary: frozenset[str],
        words: dict[int, frozenset[str]],
    ) -> None:
        self.by_ask = tuple(by_ask)
        self._vocabulary = vocabulary
        self._recorded = words
        """The strings in each recorded body, by its address. The messages keep the bodies alive."""
        self._messages = messages
        self._results = {
            result.tool_use_id: message for message in messages for result in message.tool_results
        }
        self._pages: dict[tuple[str, int], list[tuple[str, frozenset[str]]]] = {}
        self._texts: dict[str, _Words] = {}
        """The strings in short texts. Many policies show a result by the same text."""

    def words(self, message: RequestMessage) -> _Words:
        """The strings and call ids in *message*, a message of a request."""
        known = self._recorded.get(id(message.body))
        if known is not None:
            # A recorded text names no call to recall, because no session wrote a notice into it.
            return _Words(known, frozenset())
        texts: list[str] = []
        for block in parse_blocks(message.body):
            texts.append(block.text if isinstance(block, ToolResultBlock) else "")
            texts += _said((block,))
        return self.words_of(texts)

    def words_of(self, texts: Iterable[str]) -> _Words:
        """The strings and call ids in *texts*."""
        strings: set[str] = set()
        calls: set[str] = set()
        for text in filter(None, texts):
            known = self._texts.get(text) or self._look(text)
            strings |= known.strings
            calls |= known.calls
        return _Words(frozenset(strings), frozenset(calls))

    def _look(self, text: str) -> _Words:
        calls: frozenset[str] = frozenset()
        if "recall(" in text:
            calls = frozenset(filter(self._results.__contains__, _ID.findall(text)))
        words = _Words(self._vocabulary.intersection(distinctive(text)), calls)
        if len(text) <= REMEMBERED_CHARS:
            self._texts[text] = words
        return words

    def pages(self, call_id: str, text: str, max_chars: int = MAX_RECALL_CHARS) -> list[str] | None:
        """The pages of ``recall`` that a reader gets of the result of *call_id* until one contains
        *text*; None if none of the first MAX_PAGES does. Each has at most *max_chars* characters.
        """
        for number in range(MAX_PAGES):
            page = self._page(call_id, number, max_chars)
            if page is None:
                return None
            if text in page[1]:
                return [item for item, _ in self._pages[call_id, max_chars][: number + 1]]
        return None

    def _page(self, call_id: str, number: int, max_chars: int) -> tuple[str, frozenset[str]] | None:
        read = self._pages.setdefault((call_id, max_chars), [])
        if number < len(read):
            return read[number]
        message = self._results.get(call_id)
        arguments: dict[str, object] | None = {"id": call_id}
        if read:
            arguments = _continues(read[-1][0], call_id)
        if message is None or arguments is None:
            return None
        answer, is_error = recall(lambda _: (message,), arguments, max_chars=max_chars)
        if is_error:
            return None
        read.append((answer, self.words_of([answer]).strings))
        return read[-1]


def _continues(page: str, call_id: str) -> dict[str, object] | None:
    text = re.match(r"\[[^\n]*recall\(id=\"[^\n]*\", (line|char)=(\d+)\) continues\]\n", page)
    return None if text is None else {"id": call_id, text[1]: int(text[2])}


def find_needs(
    messages: Sequence[Message], asks: Sequence[Ask], system: str | None = None
) -> Needs:
    """What the replies to *asks* take from the tool results before them.

    A string that is in the *system* text, too, does not count. The time is linear in the text.
    """
    uses: dict[int, dict[str, None]] = {}
    for ask in asks:
        used: dict[str, None] = {}
        for message in messages[ask.at : ask.end]:
            for text in _said(message.content):
                used |= distinctive(text)
        uses[ask.at] = used
    vocabulary = frozenset(text for used in uses.values() for text in used)
    words: dict[int, frozenset[str]] = {}
    from_results: set[str] = set()
    from_others = set(vocabulary.intersection(distinctive(system or "")))
    newest: dict[str, str] = {}
    by_ask: dict[int, tuple[Need, ...]] = {}
    for index, message in enumerate(messages):
        if index in uses:
            needed = [Need(text, newest[text]) for text in uses[index] if text in from_results]
            by_ask[index] = tuple(needed[:MAX_NEEDS])
        held: set[str] = set()
        for result in message.tool_results:
            mentions = vocabulary.intersection(distinctive(result.text))
            newest |= dict.fromkeys(mentions, result.tool_use_id)
            from_results |= mentions - from_others
            held |= mentions
        said = vocabulary.intersection(
            item for text in _said(message.content) for item in distinctive(text)
        )
        from_others |= said - from_results
        words[id(message.body)] = frozenset(held | said)
    return Needs(messages, [by_ask.get(ask.at, ()) for ask in asks], vocabulary, words)


class Presence:
    """The strings and call ids in the last request of a replay. Updating it costs only the new
    messages of a step, or, after a rewrite, everything behind the first edit.
    """

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self._system: str | None = None
        self._messages: tuple[RequestMessage, ...] = ()
        self._words: list[_Words] = []
        self._strings: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()

    def look(self, request: Request) -> None:
        """Update it to *request*."""
        if request.system != self._system:
            self._strings.subtract(self._needs.words_of([self._system or ""]).strings)
            self._strings.update(self._needs.words_of([request.system or ""]).strings)
            self._system = request.system
        shared = shared_prefix(self._messages, request.messages)
        gone = self._messages[shared:]
        known = {
            id(message): words for message, words in zip(gone, self._words[shared:], strict=True)
        }
        for words in self._words[shared:]:
            self._strings.subtract(words.strings)
            self._calls.subtract(words.calls)
        del self._words[shared:]
        for message in request.messages[shared:]:
            words = known.get(id(message)) or self._needs.words(message)
            self._words.append(words)
            self._strings.update(words.strings)
            self._calls.update(words.calls)
        self._messages = request.messages

    def holds(self, text: str) -> bool:
        """Is *text*, one of the strings that replies need, in the request?"""
        return self._strings[text] > 0

    def names(self, call_id: str) -> bool:
        """Does a text of the request name the result of *call_id* as one to recall?"""
        return self._calls[call_id] > 0
