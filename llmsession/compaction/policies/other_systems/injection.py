"""Policies that add to the context: what is remembered, what is to be done, what was attached.

They are stages: each adds tokens, so a session alone has no reason to apply one. A pipeline runs
them before what compacts, so that what is injected is counted. Each knows its own items by how
they begin, keeps those of others, and has at most one of each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.summaries.shorten import shorten_text
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected

from ..base import WaitingPolicy
from ..drafts import Draft
from ..limits import Amount, Count, check_whole
from ..registry import register

__all__ = [
    "ContextItem",
    "ContextProviders",
    "FocusChain",
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
    """What memories are looked up by: the newest seven texts of the user, the last 4,000
    characters of them."""
    said = [message.text for message in messages if message.is_user and message.text.strip()]
    return "\n".join(said[-QUERY_MESSAGES:])[-QUERY_CHARS:]


def _section(title: str, entries: Sequence[str], max_chars: int) -> str:
    """*entries* below *title*, as many whole ones as fit; a first one that is too long is cut."""
    lines: list[str] = []
    room = max_chars - len(title) - 1
    for entry in entries:
        line = f"- {' '.join(entry.split())}"
        if len(line) + 1 > room:
            if lines:
                break
            line = line[: max(0, room - 1)]
        lines.append(line)
        room -= len(line) + 1
    return "\n".join([title, *lines]) if lines else ""


def memory_block(
    memories: Sequence[str], relevant: Sequence[str], section_chars: int = SECTION_CHARS
) -> str:
    """The block for the system text's end, each section at most *section_chars* and at least 250
    characters long; "" without memories."""
    limit = max(MIN_SECTION_CHARS, section_chars)
    sections = [
        _section("[User Memory]", [memory for memory in memories if memory.strip()], limit),
        _section("[Relevant Context]", [memory for memory in relevant if memory.strip()], limit),
    ]
    text = "\n".join(filter(None, sections))
    return f"{_MEMORY}\n{text}\n{_MEMORY_END}" if text else ""


@register
class MemoryInjection(WaitingPolicy, frozen=True, kw_only=True):
    """``memory_injection``: what is known of the user, and what fits the newest questions, in one
    block at the end of the system text, so that its head stays in the cache.

    ``memories`` are always told; of ``relevant`` the eight that share the most words with the
    query. Without any the block goes. Injects one item, marker ``<memory_context>``. Exempt from
    G7: it adds. Not copied: vectors, which need a model, and the review every ten turns, which
    writes memories.

    Raises InvalidConfig, naming what cannot be.
    """

    name: ClassVar[str] = "memory_injection"
    exempt: ClassVar[frozenset[str]] = frozenset({"G7"})
    injects: ClassVar[bool] = True

    memories: tuple[str, ...] = ()
    relevant: tuple[str, ...] = ()
    section_chars: int = SECTION_CHARS
    top: Amount = TOP_MEMORIES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("section_chars", self.section_chars, MIN_SECTION_CHARS)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The block as it has to be now; None if it is."""
        draft = Draft(view, messages, budget)
        block = memory_block(self.memories, self._best(messages), self.section_chars)
        draft.inject([Injected(-1, block)] if block else [], instead_of=_MEMORY)
        return draft.plan(self.name, "memories as they are now")

    def _best(self, messages: Sequence[Message]) -> list[str]:
        words = set(_WORD.findall(memory_query(messages).lower()))
        scores = [len(words & set(_WORD.findall(memory.lower()))) for memory in self.relevant]
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return [self.relevant[index] for index in order[: self.top] if scores[index]]


def checklist_in(messages: Sequence[Message]) -> tuple[str, int]:
    """The newest list that a call's ``task_progress`` gave, and how many replies came since and
    with it; "" and all replies without one."""
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
    """Is it time to show the list again: after so many replies, or when the user changed it?"""
    return edited or replies_since >= every


@register
class FocusChain(WaitingPolicy, frozen=True, kw_only=True):
    """``focus_chain``: the list of what is to be done, shown again at the end of the context
    after every six requests, or at once when the user changed it.

    The list is what the model last gave as ``task_progress`` to a tool, or ``checklist``, the
    user's own. Without a list nothing is injected. History never has it. Injects one item, marker
    ``[Task progress: ...]``; the one before it goes. Exempt from G7: it adds.

    Raises InvalidConfig for an interval under 1.
    """

    name: ClassVar[str] = "focus_chain"
    exempt: ClassVar[frozenset[str]] = frozenset({"G7"})
    injects: ClassVar[bool] = True

    checklist: str = ""
    every: Count = REMIND_EVERY

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The list at the end of the context; None if it is not time, or there is none."""
        said, replies = checklist_in(messages)
        task_list = self.checklist.strip() or said
        text = f"{_FOCUS}{task_list}"
        latest = next((item for item in view.injected if item.text.startswith(_FOCUS)), None)
        if not task_list:
            return None
        since = replies if latest is None else _replies(messages, latest.at)
        edited = task_list != said and (latest is None or latest.text != text)
        if not focus_due(min(since, replies), self.every, edited=edited):
            return None
        draft = Draft(view, messages, budget)
        draft.inject([Injected(len(messages), text)], instead_of=_FOCUS)
        return draft.plan(self.name, "the task list is shown again")


def _replies(messages: Sequence[Message], start: int) -> int:
    return sum(message.is_assistant for message in messages[start:])


class ContextItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something attached to the user's message of a turn: by which provider, and what."""

    turn: int
    provider: str
    id: str
    name: str
    content: str
    description: str = ""


@register
class ContextProviders(WaitingPolicy, frozen=True, kw_only=True):
    """``context_providers``: what is attached to a user's message stands before it.

    The same content of the same provider and id, attached again later, is shown there only; the
    older place says so in a line. In the order given, each item cut at ``item_chars``. Injects an
    item for each turn that has any, marker ``<context_items>``. Exempt from G7: it adds. What a
    provider is, and what it asks for, is the caller's.

    Raises InvalidConfig for a cap under 100 characters, and for an item without an id.
    """

    name: ClassVar[str] = "context_providers"
    exempt: ClassVar[frozenset[str]] = frozenset({"G7"})
    injects: ClassVar[bool] = True

    items: tuple[ContextItem, ...] = ()
    item_chars: int = ITEM_CHARS

    def __post_init__(self) -> None:
        check_whole("item_chars", self.item_chars, 100)
        for number, item in enumerate(self.items):
            if not item.provider or not item.id:
                raise InvalidConfig(f"items[{number}] has no provider or no id")

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The items as they have to stand now; None if they do."""
        places: dict[int, int] = {}
        for index, message in enumerate(messages):
            if message.is_user and message.turn not in places:
                places[message.turn] = index
        texts = rendered_items(
            [item for item in self.items if item.turn in places], self.item_chars
        )
        draft = Draft(view, messages, budget)
        items = [Injected(places[turn], text) for turn, text in texts.items()]
        draft.inject(sorted(items, key=lambda injection: injection.at), instead_of=_ITEMS)
        return draft.plan(self.name, "what is attached, as it is now")


def rendered_items(items: Sequence[ContextItem], item_chars: int = ITEM_CHARS) -> dict[int, str]:
    """Turn -> what stands before its message: its items, those that are attached again later as
    one line."""
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
