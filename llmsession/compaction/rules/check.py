"""Checks whether a provider accepts a request. Runs before every request, in production, too.

The rules V1 to V19 are the provider's. ``PLACES`` says what checks each rule: the request by
itself, the request compared with its history, the turn machine, or the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from llmsession.errors import InvalidRequest
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request

from .block_fields import RuleViolation
from .dialogue import Dialogue
from .fast_path import FastPath
from .history import HISTORY_RULES, find_astray
from .message_facts import FactsCache, ToolCache
from .options import OPTION_RULES
from .structure import STRUCTURE_RULES, RequestRule

__all__ = [
    "HISTORY_RULES",
    "PLACES",
    "RULES",
    "Checker",
    "Place",
    "RuleViolation",
    "check_against_history",
    "check_request",
    "require_valid",
]

Place: TypeAlias = Literal["request", "history", "machine", "encoder"]

PLACES: dict[str, Place] = {
    "V1": "request",
    "V2": "request",
    "V3": "request",
    "V4": "request",
    "V5": "request",
    "V6": "request",
    "V7": "history",
    "V8": "request",
    "V9": "history",
    "V10": "machine",
    "V11": "request",
    "V12": "request",
    "V13": "request",
    "V14": "request",
    "V15": "request",
    "V16": "request",
    "V17": "machine",
    "V18": "encoder",
    "V19": "request",
}
"""What checks each rule. A part of V7, the missing signature, shows in the request by itself."""

RULES: dict[str, RequestRule] = {
    name: rule
    for name in PLACES
    if (rule := STRUCTURE_RULES.get(name) or OPTION_RULES.get(name)) is not None
}
"""The rules that can be checked on a request by itself."""

REMEMBERED_MESSAGES = 16
"""With fewer messages, checking a request anew costs little, so nothing is kept for the next
one: most sessions that wait in memory are short.
"""

MAX_NAMED = 10
"""How many violations an error lists. One mistake can break a rule in every message."""


class Checker:
    """Checks the requests of one session, one after the other.

    It remembers what it read of the last request's messages and of the last history's messages, by
    the identity of their bodies, so only new messages are parsed. Not safe for two threads at once.
    """

    __slots__ = ("_dialogue", "_fast_path", "_history", "_sent", "_tools", "profile")

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._sent = FactsCache()
        self._history = FactsCache()
        self._tools = ToolCache()
        self._dialogue: Dialogue | None = None
        self._fast_path = FastPath(profile)

    def check(self, request: Request) -> tuple[RuleViolation, ...]:
        """Every violation of a rule by *request*, in the order of the rules; empty if the request
        is valid.
        """
        messages = self._sent.recall(request.messages)
        tools = self._tools.recall(request.tools)
        if self._fast_path.is_valid(request, messages, tools):
            return ()
        dialogue, self._dialogue = self._dialogue or Dialogue(self.profile), None
        dialogue.read(request, messages, tools)
        if len(messages) >= REMEMBERED_MESSAGES:
            self._dialogue = dialogue
        violations: list[RuleViolation] = []
        for rule in RULES.values():
            violations += rule(dialogue)
        if not violations:
            self._fast_path.found_valid(request, messages, tools)
        return tuple(violations)

    @property
    def found_thinking(self) -> bool:
        """Does the request that was checked last send thinking?"""
        return bool(self._sent.thinking_at)

    def check_against_history(
        self,
        request: Request,
        messages: Sequence[Message],
        thinking_from: int = 0,
        edited_from: int | None = None,
    ) -> tuple[RuleViolation, ...]:
        """What *request* violates as a projection of *messages*, the history and the open turn's
        messages.

        *edited_from* is the position in *messages* of the first message that the request shows
        changed or leaves out; None if there is none. *thinking_from* is the position from which
        thinking was made after that edit. V9 is checked only if the profile binds thinking.
        """
        self._sent.recall(request.messages, self._history)
        self._history.recall(messages, self._sent)
        astray = find_astray(self._sent, self._history, thinking_from, edited_from)
        if not astray:
            return ()
        rules = HISTORY_RULES if self.profile.binds_thinking else {"V7": HISTORY_RULES["V7"]}
        return tuple(violation for rule in rules.values() for violation in rule(astray))

    def require_valid(self, request: Request) -> None:
        """Raises InvalidRequest, which lists the violations, if *request* breaks a rule."""
        raise_if_any(self.check(request))


def check_request(request: Request, profile: Profile) -> tuple[RuleViolation, ...]:
    """As ``Checker.check``."""
    return Checker(profile).check(request)


def check_against_history(
    request: Request,
    messages: Sequence[Message],
    thinking_from: int = 0,
    edited_from: int | None = None,
) -> tuple[RuleViolation, ...]:
    """As ``Checker.check_against_history``, for a profile that binds thinking."""
    checker = Checker(Profile(binds_thinking=True))
    return checker.check_against_history(request, messages, thinking_from, edited_from)


def require_valid(request: Request, profile: Profile) -> None:
    """Raises InvalidRequest, which lists the violations, if *request* breaks a rule."""
    raise_if_any(check_request(request, profile))


def raise_if_any(violations: Sequence[RuleViolation]) -> None:
    """Raises InvalidRequest if there are violations. Its message lists the first ten."""
    if not violations:
        return
    named = [f"{item.rule} at {item.where}: {item.text}" for item in violations[:MAX_NAMED]]
    if len(violations) > MAX_NAMED:
        named.append(f"and {len(violations) - MAX_NAMED} more")
    raise InvalidRequest(
        f"the request breaks {len(violations)} validity rule(s), a bug of ours: " + "; ".join(named)
    )
