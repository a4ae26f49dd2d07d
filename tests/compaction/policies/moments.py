"""The moments at which a policy is asked for a plan, and what is sent of a conversation then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.rules.check import Checker, RuleViolation
from llmsession.compaction.view.projector import Projector
from llmsession.compaction.view.view import View
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.records import Trigger
from llmsession.turns.request import Request
from tests.compaction.policies.transcripts import Talked

__all__ = ["Eyes", "Moment", "again_under", "asking", "moment_of", "with_trigger"]


class Eyes:
    """What is sent of a conversation, and whether it is valid; with the memory of a session."""

    def __init__(self, talked: Talked) -> None:
        self._talked = talked
        self._joined, self._apart = Projector(), Projector()
        self._checker = Checker(talked.profile)

    def sent(self, messages: Sequence[Message], view: View) -> Request:
        """The request."""
        return self._joined.project(messages, view, self._talked.profile, self._talked.frame)

    def apart(self, messages: Sequence[Message], view: View) -> Request:
        """The request with neighbours of one role apart."""
        profile = msgspec.structs.replace(self._talked.profile, merges_roles=False)
        return self._apart.project(messages, view, profile, self._talked.frame)

    def violations(
        self, request: Request, messages: Sequence[Message], view: View
    ) -> Sequence[RuleViolation]:
        """What *request* breaks."""
        found = self._checker.check(request)
        if self._talked.profile.binds_thinking:
            edited = view.edited_from(messages)
            found += self._checker.check_against_history(
                request, messages, view.thinking_from, edited
            )
        return found


class Moment(NamedTuple):
    """A policy that is asked for a plan."""

    eyes: Eyes
    talked: Talked
    messages: tuple[Message, ...]
    view: View
    budget: Budget


def moment_of(
    eyes: Eyes, talked: Talked, messages: tuple[Message, ...], view: View, budget: Budget
) -> Moment:
    """The moment with what is used counted."""
    used = budget.frame_tokens + budget.size(messages, view)
    budget = msgspec.structs.replace(budget, used_tokens=used)
    return Moment(eyes, talked, messages, view, budget)


def with_trigger(moment: Moment, trigger: Trigger) -> Moment:
    """The same moment, and why a plan is asked for."""
    return moment._replace(budget=msgspec.structs.replace(moment.budget, trigger=trigger))


def again_under(moment: Moment, view: View) -> Moment:
    """The same moment with what is used counted anew, under another view."""
    return moment_of(moment.eyes, moment.talked, moment.messages, view, moment.budget)


def asking(messages: tuple[Message, ...], *, new_turn: bool = False) -> tuple[Message, ...]:
    """The messages of the next request: after an assistant's word a new turn begins."""
    if messages and messages[-1].is_user and not new_turn:
        return messages
    number = messages[-1].turn + 1 if messages else 1
    body = encode_blocks("and now?")
    ask = Message(id="s/next", session="s", turn=number, role="user", body=body)
    return (*messages, ask)
