"""Every request that a provider gets, checked once more, apart from the session's own check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from llmsession.compaction.rules.check import Checker
from llmsession.turns.blocks import ToolResultBlock, ToolUseBlock, parse_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, RequestMessage

__all__ = ["RequestWatch", "orphan_calls"]

MAX_NAMED = 10
"""So many faults are told in words; all are counted."""

Pairing: TypeAlias = tuple[str, frozenset[str], frozenset[str]]
"""A message's role, the calls in it, and the calls that its results answer."""


class RequestWatch:
    """Counts requests and what is wrong with them. It keeps nothing of a request but what it
    reads again in the next one."""

    def __init__(self, profile: Profile) -> None:
        self._checker = Checker(profile)
        self._pairings: dict[int, tuple[RequestMessage, Pairing]] = {}
        self.requests = 0
        self.invalid = 0
        self.orphans = 0
        self.faults: list[str] = []

    def saw(self, request: Request) -> None:
        """Count and check *request*."""
        self.requests += 1
        violations = self._checker.check(request)
        orphans = _orphans(self._pairs(request.messages))
        self.invalid += bool(violations)
        self.orphans += len(orphans)
        texts = [f"{v.rule} at {v.where}: {v.text}" for v in violations]
        texts += [f"call {call} has no result" for call in orphans]
        named = [f"request {self.requests}: {text}" for text in texts]
        self.faults += named[: MAX_NAMED - len(self.faults)]

    def _pairs(self, messages: Sequence[RequestMessage]) -> list[Pairing]:
        # A message of the last request is the same object in the next one, unless it changed.
        known, self._pairings = self._pairings, {}
        pairs = []
        for message in messages:
            entry = known.get(id(message))
            if entry is None or entry[0] is not message:
                entry = (message, _pairing(message))
            self._pairings[id(message)] = entry
            pairs.append(entry[1])
        return pairs


def _pairing(message: RequestMessage | Message) -> Pairing:
    blocks = parse_blocks(message.body)
    calls = frozenset(block.id for block in blocks if isinstance(block, ToolUseBlock))
    results = frozenset(block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock))
    return message.role, calls, results


def _orphans(pairs: Iterable[Pairing]) -> list[str]:
    """The calls that are not answered in the very next message."""
    orphans: list[str] = []
    waiting: frozenset[str] = frozenset()
    for role, calls, results in pairs:
        orphans += sorted(waiting - results if role == "user" else waiting)
        waiting = calls
    return orphans + sorted(waiting)


def orphan_calls(history: Iterable[Message]) -> list[str]:
    """The calls in *history* whose result is not in the very next message."""
    return _orphans(_pairing(message) for message in history)
