"""Policies that add to the context: memories, a task list, attached items.

A session asks them before each request, and the text is part of that request. They compact nothing.
A pipeline runs them before its compacting stages, so that what is injected is counted. Each policy
recognises its own texts by their beginnings (``marks``), leaves the texts of others alone, and
injects each of its texts only once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import ClassVar, Protocol

import msgspec
from msgspec.structs import replace

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.summaries.shorten import shorten_text
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected

from ..injecting import InjectingPolicy
from ..limits import Amount, Count, check_whole
from ..registry import register

__all__ = [
    "ContextItem",
    "ContextProviders",
    "FocusChain",
    "Memory",
    "MemoryInjection",
    "checklist_in",
    "focus_due",
    "memory_block",
    "memory_query",
    "rendered_items",
]

_MEMORY, _MEMORY_END = "<memory_context>", "</memory_context>"
QUERY_MESSAGES, QUERY_CHARS = 7, 4_000
SECTION_CHARS, MIN_SECTION_CHARS = 2_000, 250
TOP_MEMORIES = 8
_WORD = re.compile(r"\w{3,40}")

_FOCUS = "[Task progress: the list as it stands. Keep it up to date.]\n"
REMIND_EVERY = 6
_CHECKLIST_FIELD = "task_progress"

_ITEMS, _ITEMS_END = "<context_items>", "</context_items>"
ITEM_CHARS = 20_000


def memory_query(messages: Sequence[Message]) -> str:
    """The text that memories are looked up with: the newest seven texts of the user, at most their
    last 4,000 characters.
    """
    texts = (message.text for message in reversed(messages) if message.is_user)
    newest = list(islice((text for text in texts if text.strip()), QUERY_MESSAGES))
    return "\n".join(reversed(newest))[-QUERY_CHARS:]


def _section(title: str, entries: Sequence[str], max_chars: int, mark: str = "- ") -> str:
    """*entries* below *title*, as many complete ones as fit, each behind *mark*. If the first one
    is too long, it is cut.
    """
    lines: list[str] = []
    room = max_chars - len(title) - 1
    for entry in entries:
        line = f"{mark}{' '.join(entry.split())}"
        if len(line) + 1 > room:
            if lines:
                break
            line = line[: max(0, room - 1)]
        lines.append(line)
        room -= len(line) + 1
    return "\n".join([title, *lines]) if lines else ""


class Memory(msgspec.Struct, frozen=True):
    """A memory. ``at`` is the time when it was made, in seconds since the epoch; None if that is
    unknown.
    """

    text: str
    at: float | None = None


def _text_of(memory: str | Memory) -> str:
    return memory.text if isinstance(memory, Memory) else memory


def _numbered(memories: Sequence[str | Memory]) -> list[str]:
    """*memories*, numbered and dated as Open WebUI does, with days in UTC."""
    lines: list[str] = []
    for number, memory in enumerate(memories, 1):
        at = memory.at if isinstance(memory, Memory) else None
        day = "Unknown Date" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"
        lines.append(f"{number}. [{day}] {' '.join(_text_of(memory).split())}")
    return lines


def memory_block(
    memories: Sequence[str | Memory],
    relevant: Sequence[str | Memory],
    section_chars: int = SECTION_CHARS,
) -> str:
    """The block for the end of the system text; "" without memories.

    Each section has at most *section_chars* characters, and at least 250 are allowed. If any of the
    memories is a ``Memory``, all are numbered and dated in one section, ``User Context:``.
    """
    limit = max(MIN_SECTION_CHARS, section_chars)
    known = [memory for memory in memories if _text_of(memory).strip()]
    fitting = [memory for memory in relevant if _text_of(memory).strip()]
    if any(isinstance(memory, Memory) for memory in (*known, *fitting)):
        sections = [_section("User Context:", _numbered([*known, *fitting]), limit, mark="")]
    else:
        sections = [
            _section("[User Memory]", [_text_of(memory) for memory in known], limit),
            _section("[Relevant Context]", [_text_of(memory) for memory in fitting], limit),
        ]
    text = "\n".join(filter(None, sections))
    return f"{_MEMORY}\n{text}\n{_MEMORY_END}" if text else ""


@register
class MemoryInjection(InjectingPolicy, frozen=True, kw_only=True):
    """``memory_injection``: puts memories of the user into one block at the end of the system text,
    so that the beginning of the system text stays in the cache.

    ``memories`` are always shown. Of ``relevant``, those eight are shown that share the most words
    with the newest questions. Each is a text, or ``Memory(text, at)``; then all are numbered and
    dated under ``User Context:``, as earlier versions of Open WebUI did. Without any memory the
    block is removed. It injects one text with the marker ``<memory_context>``. Exempt from G7,
    because it adds.

    Not copied: vectors, which need a model, and the review every ten turns, which writes memories.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "memory_injection"
    marks: ClassVar[tuple[str, ...]] = (_MEMORY,)

    memories: tuple[str | Memory, ...] = ()
    relevant: tuple[str | Memory, ...] = ()
    section_chars: int = SECTION_CHARS
    top: Amount = TOP_MEMORIES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("section_chars", self.section_chars, MIN_SECTION_CHARS)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The current block; None if it is in place already."""
        block = memory_block(self.memories, self._best(messages), self.section_chars)
        items = [Injected(-1, block)] if block else []
        return self.injected(view, messages, budget, items, "memories as they are now")

    def _best(self, messages: Sequence[Message]) -> list[str | Memory]:
        if not self.relevant:
            return []
        words = set(_WORD.findall(memory_query(messages).lower()))
        texts = [_text_of(memory).lower() for memory in self.relevant]
        scores = [len(words & set(_WORD.findall(text))) for text in texts]
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return [self.relevant[index] for index in order[: self.top] if scores[index]]


def checklist_in(messages: Sequence[Message]) -> tuple[str, int]:
    """The newest list that a call gave as ``task_progress``, and the number of replies since then,
    including that one. Without a list: "" and the number of all replies.
    """
    replies = 0
    for message in reversed(messages):
        if not message.is_assistant:
            continue
        replies += 1
        for call in reversed(message.tool_calls):
            checklist = call.input.get(_CHECKLIST_FIELD) if isinstance(call.input, dict) else None
            if isinstance(checklist, str) and checklist.strip():
                return checklist.strip(), replies
    return "", replies


def focus_due(replies_since: int, every: int = REMIND_EVERY, *, edited: bool = False) -> bool:
    """Is it time to show the list again: after *every* replies, or because the user changed it?"""
    return edited or replies_since >= every


@register
class FocusChain(InjectingPolicy, frozen=True, kw_only=True):
    """``focus_chain``: shows the task list again at the end of the context, after every six
    requests, or at once if the user changed it.

    The list is what the model last gave to a tool as ``task_progress``, or ``checklist``, the
    user's own. Without a list nothing is injected. The history never holds it. It injects one text
    with the marker ``[Task progress: ...]``, and the previous one is removed. Exempt from G7,
    because it adds.

    Raises InvalidConfig for an interval below 1.
    """

    name: ClassVar[str] = "focus_chain"
    marks: ClassVar[tuple[str, ...]] = (_FOCUS,)

    checklist: str = ""
    every: Count = REMIND_EVERY

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The list at the end of the context; None if it is not time. Without a list, the one that
        was shown is removed.
        """
        said, replies = checklist_in(messages)
        task_list = self.checklist.strip() or said
        text = f"{_FOCUS}{task_list}"
        latest = next((item for item in view.injected if item.text.startswith(_FOCUS)), None)
        if not task_list:
            return self.injected(view, messages, budget, [], "there is no task list any more")
        since = replies if latest is None else _replies(messages, latest.at)
        edited = task_list != said and (latest is None or latest.text != text)
        if not focus_due(min(since, replies), self.every, edited=edited):
            return None
        items = [Injected(len(messages), text)]
        return self.injected(view, messages, budget, items, "the task list is shown again")


def _replies(messages: Sequence[Message], start: int) -> int:
    return sum(message.is_assistant for message in messages[start:])


class ContextItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something attached to the user's message of a turn.

    ``provider`` and ``id`` say what it is. With ``turn`` 0 it is not attached to a turn yet: see
    ``ContextProviders.attached``. With ``session`` it only belongs to a turn that was made in that
    session, because a fork may have another turn with the same number.
    """

    turn: int = 0
    session: str = ""
    provider: str
    id: str
    name: str
    content: str
    description: str = ""


class NextTurn(Protocol):
    """The part of a ``SessionStatus`` that names the next turn."""

    @property
    def session(self) -> str:
        """The session's id."""
        ...

    @property
    def next_turn(self) -> TurnId | None:
        """The id of the turn that the next message will open."""
        ...


@register
class ContextProviders(InjectingPolicy, frozen=True, kw_only=True):
    """``context_providers``: shows what is attached to a user's message before that message.

    If the same content of the same provider and id is attached again later, it is shown only there,
    and a line says so at the older place. Items keep their order, and each is cut at
    ``item_chars``. It injects one text for each turn with items, with the marker
    ``<context_items>``. Exempt from G7, because it adds. What a provider is, and what it asks for,
    is up to the caller. Items of a turn that was dropped, rewound or left out are not shown any
    more.

    Raises InvalidConfig for a cap below 100 characters, and for an item without a provider or an
    id.
    """

    name: ClassVar[str] = "context_providers"
    marks: ClassVar[tuple[str, ...]] = (_ITEMS,)

    items: tuple[ContextItem, ...] = ()
    item_chars: int = ITEM_CHARS

    def __post_init__(self) -> None:
        check_whole("item_chars", self.item_chars, 100)
        for number, item in enumerate(self.items):
            if not item.provider or not item.id:
                raise InvalidConfig(f"items[{number}] needs a provider and an id")

    def attached(self, status: NextTurn, *items: ContextItem) -> ContextProviders:
        """This policy with *items* attached to the next message of a session.

        *status* is the session's ``status()``. Configure the session with the result before that
        message is sent. Raises InvalidConfig if the status names no next turn, and for an item
        without an id.
        """
        turn = status.next_turn
        if turn is None:
            raise InvalidConfig(
                f"the status of {status.session!r} names no next turn to attach items to: the"
                " service is too old for that; make the items with their turn instead"
            )
        new = (replace(item, turn=turn.number, session=status.session) for item in items)
        return replace(self, items=(*self.items, *new))

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The current items in their places; None if they are there already."""
        wanted = {item.turn for item in self.items}
        places = {
            messages[index].turn: index
            for index in (view.shown_positions(len(messages)) if wanted else ())
            if messages[index].turn in wanted and _opens_turn(messages, index)
        }
        visible = [
            item
            for item in self.items
            if item.turn in places and item.session in ("", messages[places[item.turn]].session)
        ]
        texts = rendered_items(visible, self.item_chars)
        items = [Injected(places[turn], text) for turn, text in texts.items()]
        return self.injected(view, messages, budget, items, "what is attached, as it is now")


def _opens_turn(messages: Sequence[Message], at: int) -> bool:
    """Is the message at *at* the first one of the user in its turn?"""
    before, turn = at - 1, messages[at].turn
    while before >= 0 and messages[before].turn == turn:
        if messages[before].is_user:
            return False
        before -= 1
    return messages[at].is_user


def rendered_items(items: Sequence[ContextItem], item_chars: int = ITEM_CHARS) -> dict[int, str]:
    """Maps turns to the text before their message: the turn's items, with one line for an item that
    is attached again later.
    """
    latest: dict[tuple[str, str, str], int] = {}
    for index, item in enumerate(items):
        key = (item.provider, item.id, item.content)
        if key not in latest or items[latest[key]].turn <= item.turn:
            latest[key] = index
    rendered: dict[int, list[str]] = {}
    for index, item in enumerate(items):
        if latest[item.provider, item.id, item.content] == index:
            title = " - ".join(filter(None, (item.name, item.description)))
            text = f"{title}\n{shorten_text(item.content, item_chars)}"
        else:
            text = f"[{item.name}: attached again below]"
        rendered.setdefault(item.turn, []).append(text)
    return {turn: "\n".join([_ITEMS, *texts, _ITEMS_END]) for turn, texts in rendered.items()}
