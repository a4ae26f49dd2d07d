"""Retention rules: how long sessions and their messages are kept, by label; and what was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from llmsession.errors import InvalidConfig, InvalidInput, refusing
from llmsession.store.protocol import SessionFilter

from .history_limits import HistoryLimits, strictest
from .labels import max_age_of
from .validation import checked_filter, checked_seconds

__all__ = ["Retention", "RetentionReport", "checked_rules", "limits_of"]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, for the sessions that have all of ``labels`` (a value of None is any value).

    Whole sessions: ``delete_idle_s`` deletes a session that has had no new record for so many
    seconds. ``max_sessions`` keeps so many sessions of each tenant, those with the newest records,
    and deletes the others; sessions without a tenant count as one tenant's.

    Messages within a session are forgotten, as by ``forget``: ``forget_after_s`` the turns that are
    older than that, ``max_messages`` and ``max_tokens`` the oldest turns beyond so many messages or
    estimated tokens. See ``HistoryLimits``. Of several rules for one session, and of its own
    ``SessionConfig.retention``, the strictest counts.
    """

    labels: dict[str, str | None] = {}
    delete_idle_s: float | None = None
    forget_after_s: float | None = None
    max_messages: int | None = None
    max_tokens: int | None = None
    max_sessions: int | None = None

    @refusing
    def checked(self) -> Retention:
        """This rule. Raises InvalidInput for one that does nothing, or whose time or count is not a
        positive number, or whose labels are none."""
        checked_filter(SessionFilter(labels=self.labels))
        values = [getattr(self, name) for name in self.__struct_fields__ if name != "labels"]
        if all(value is None for value in values):
            raise InvalidInput("a retention rule deletes or forgets something; this does not")
        for name in ("delete_idle_s", "forget_after_s"):
            seconds: Any = getattr(self, name)
            if seconds is not None and not checked_seconds(seconds, name, minimum=0) > 0:
                raise InvalidInput(f"{name} is {seconds!r}; it must be greater than 0")
        count: Any = self.max_sessions
        if count is not None and (type(count) is not int or count < 1):
            raise InvalidInput(f"max_sessions is {count!r}; it is a whole number above 0")
        try:
            self.limits.checked()
        except InvalidConfig as error:
            message = str(error).removeprefix("retention.")
            raise InvalidInput(message.replace("max_age_s", "forget_after_s", 1)) from error
        return self

    @property
    def limits(self) -> HistoryLimits:
        """What the rule says of messages within a session."""
        return HistoryLimits(
            max_messages=self.max_messages,
            max_tokens=self.max_tokens,
            max_age_s=self.forget_after_s,
        )

    def applies_to(self, labels: Mapping[str, str]) -> bool:
        """Does a session with *labels* have all of the rule's?"""
        return all(
            name in labels and value in (None, labels[name]) for name, value in self.labels.items()
        )


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, or with ``dry_run`` would be done. ``deleted`` are sessions, ``forgotten`` how
    many turns each other session has forgotten. ``skipped`` says why a session that a rule applies
    to was left as it is: it is in use, or its log cannot be read.

    ``limits`` says by which limit: ``idle`` and ``sessions`` count sessions that were deleted;
    ``age``, ``messages`` and ``tokens`` count turns that were forgotten.
    """

    dry_run: bool
    deleted: tuple[str, ...] = ()
    forgotten: dict[str, int] = {}
    skipped: dict[str, str] = {}
    limits: dict[str, int] = {}


def checked_rules(rules: Any) -> tuple[Retention, ...]:
    """*rules*, a list of Retention. Raises InvalidInput for the first that cannot be applied."""
    if not isinstance(rules, list | tuple):
        raise InvalidInput(f"rules are a list of Retention, not {type(rules).__name__}")
    for rule in rules:
        if not isinstance(rule, Retention):
            raise InvalidInput(f"a retention rule is a Retention, not {type(rule).__name__}")
        rule.checked()
    return tuple(rules)


def limits_of(
    rules: Sequence[Retention], labels: Mapping[str, str], own: HistoryLimits | None
) -> HistoryLimits:
    """The limits of a session with *labels*: the strictest of *rules* and of its *own*, of which a
    session that is not live has its age in its labels."""
    if not rules and own is not None:
        return own
    of_rules: Iterable[HistoryLimits] = (r.limits for r in rules if r.applies_to(labels))
    age = max_age_of(labels) if own is None else None
    labelled = None if age is None else HistoryLimits(max_age_s=age)
    return strictest((*of_rules, own, labelled))
