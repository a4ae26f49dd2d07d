"""What the policies share: checked settings, thresholds, and no edit while a tool loop needs its
thinking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

import msgspec

from llmsession.compaction.planning.boundaries import must_wait
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message

from .limits import Fraction, reached

__all__ = ["CheckedPolicy", "ThresholdPolicy", "WaitingPolicy"]


@cache
def _checks(kind: type[msgspec.Struct]) -> tuple[tuple[str, Callable[[str, Any], None], bool], ...]:
    """The settings of *kind* whose types hold a check: the name, the check, and whether None is
    valid.
    """
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (name, check, type(None) in get_args(hints[name]))
        for name in kind.__struct_fields__
        for option in (hints[name], *get_args(hints[name]))
        for check in getattr(option, "__metadata__", ())
    )


class CheckedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy whose settings are checked as their types say: see ``limits``.

    Raises InvalidConfig for an invalid setting.
    """

    waits_for_cache: ClassVar[bool] = False
    """May a plan be held until the provider's cache makes a new prompt cheap? If not, a request
    waits for the plan when the policy is due.
    """
    injects: ClassVar[bool] = False
    """Does the policy put texts into requests? Then it is asked for a plan before each request,
    even if it is not due. In that case ``Budget.trigger`` is "injection", and the plan holds what
    to inject.
    """
    due_from: ClassVar[float] = 0.0
    """The share of the limit from which on the policy is due. 0 means always, for policies that
    look at messages and not at tokens.
    """

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is at least the share ``due_from`` of the limit used?"""
        return self.due_from == 0 or reached(used_tokens, limit_tokens, self.due_from)

    def __post_init__(self) -> None:
        for name, check, is_optional in _checks(type(self)):
            value = getattr(self, name)
            if value is not None or not is_optional:
                check(name, value)


class WaitingPolicy(CheckedPolicy, frozen=True, kw_only=True):
    """A policy that plans nothing before the open turn ends, if an edit would make thinking invalid
    that has to stay.
    """

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to change; None if there is nothing to change, or no edit is possible now."""
        if must_wait(view, messages, budget.profile, budget.committed):
            return None
        return self.changes(view, messages, budget)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to change when an edit is possible; None if there is nothing."""
        raise NotImplementedError


class ThresholdPolicy(WaitingPolicy, frozen=True, kw_only=True):
    """A waiting policy with the setting ``threshold``."""

    threshold: Fraction = 0.80

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is at least the threshold of the limit used?"""
        return reached(used_tokens, limit_tokens, self.threshold)
