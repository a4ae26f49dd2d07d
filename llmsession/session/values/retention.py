"""Retention rules: how long sessions and their messages are kept, by label; and the report."""

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
    """One rule for the sessions that have all of ``labels``.

    Whole sessions are deleted by ``delete_idle_s`` and ``max_sessions``. Messages within a session
    are forgotten, as by ``LLMSession.forget``, by ``forget_after_s``, ``max_messages`` and
    ``max_tokens``: see ``HistoryLimits``. If several rules apply to a session, or it has a
    ``SessionConfig.retention`` of its own, the strictest limit counts.
    """

    labels: dict[str, str | None] = {}
    """The labels that a session must have for the rule to apply. None matches any value."""
    delete_idle_s: float | None = None
    """Delete a session that has had no new record for this many seconds."""
    forget_after_s: float | None = None
    """Forget the turns that were accepted more than this many seconds ago."""
    max_messages: int | None = None
    """Forget the oldest turns while the history has more messages."""
    max_tokens: int | None = None
    """Forget the oldest turns while the history has more estimated tokens."""
    max_sessions: int | None = None
    """Keep this many sessions of each tenant, those with the newest records, and delete the others.
    All sessions without a tenant count together.
    """

    @refusing
    def checked(self) -> Retention:
        """This rule. Raises InvalidInput if a field is invalid, or if the rule does nothing."""
        checked_filter(SessionFilter(labels=self.labels))
        values = [getattr(self, name) for name in self.__struct_fields__ if name != "labels"]
        if all(value is None for value in values):
            raise InvalidInput(
                "a retention rule needs a limit, such as delete_idle_s or forget_after_s"
            )
        for name in ("delete_idle_s", "forget_after_s"):
            seconds: Any = getattr(self, name)
            if seconds is not None and not checked_seconds(seconds, name, minimum=0) > 0:
                raise InvalidInput(f"retention rule: {name} is {seconds!r}; it must be above 0")
        count: Any = self.max_sessions
        if count is not None and (type(count) is not int or count < 1):
            raise InvalidInput(f"max_sessions is {count!r}; it must be a whole number above 0")
        try:
            self.limits.checked()
        except InvalidConfig as error:
            message = str(error).removeprefix("retention.")
            raise InvalidInput(message.replace("max_age_s", "forget_after_s", 1)) from error
        return self

    @property
    def limits(self) -> HistoryLimits:
        """The part of the rule that is about messages within a session."""
        return HistoryLimits(
            max_messages=self.max_messages,
            max_tokens=self.max_tokens,
            max_age_s=self.forget_after_s,
        )

    def applies_to(self, labels: Mapping[str, str]) -> bool:
        """Does a session with *labels* have all labels of the rule?"""
        return all(
            name in labels and value in (None, labels[name]) for name, value in self.labels.items()
        )


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What retention did or, with ``dry_run``, would do."""

    dry_run: bool
    deleted: tuple[str, ...] = ()
    """The ids of deleted sessions."""
    forgotten: dict[str, int] = {}
    """How many turns each other session has forgotten, by session id."""
    skipped: dict[str, str] = {}
    """Why a session that a rule applies to was left unchanged, by session id: it is in use, or its
    log cannot be read.
    """
    limits: dict[str, int] = {}
    """Counts by limit: ``idle`` and ``sessions`` count deleted sessions; ``age``, ``messages`` and
    ``tokens`` count forgotten turns.
    """


def checked_rules(rules: Any) -> tuple[Retention, ...]:
    """*rules* as a tuple. Raises InvalidInput for the first invalid rule."""
    if not isinstance(rules, list | tuple):
        raise InvalidInput(f"rules must be a list of Retention, not {type(rules).__name__}")
    for rule in rules:
        if not isinstance(rule, Retention):
            raise InvalidInput(f"a retention rule must be a Retention, not {type(rule).__name__}")
        rule.checked()
    return tuple(rules)


def limits_of(
    rules: Sequence[Retention], labels: Mapping[str, str], own: HistoryLimits | None
) -> HistoryLimits:
    """The limits of a session with *labels*: the strictest of *rules* and of its *own* limits.

    For a session that is not live, *own* is None, and its age limit is taken from its labels.
    """
    if not rules and own is not None:
        return own
    of_rules: Iterable[HistoryLimits] = (r.limits for r in rules if r.applies_to(labels))
    age = max_age_of(labels) if own is None else None
    labelled = None if age is None else HistoryLimits(max_age_s=age)
    return strictest((*of_rules, own, labelled))
