"""Policies made of policies: each one continues from the result of the one before, all in one
plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from llmsession.compaction.planning.boundaries import injection_voids
from llmsession.compaction.planning.policy import Budget, Policy, planned
from llmsession.compaction.planning.schedule import (
    Fill,
    fill_of,
    injects,
    is_due,
    waits_for_cache,
)
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig, InvalidRequest
from llmsession.turns.messages import Message

from .base import WaitingPolicy
from .drafts import Draft
from .registry import make_policy, register, settings_of

__all__ = ["Pipeline", "Stage", "absorb_all", "pipeline", "shows_pairs"]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A registered policy as a part of a pipeline.

    If a required stage raises, the error is raised. If another stage fails, the pipeline goes on
    without it, and the plan's reason names it.
    """

    policy: str
    options: dict[str, Any] = {}
    required: bool = False


@register
class Pipeline(WaitingPolicy, frozen=True, kw_only=True, dict=True):
    """``pipeline``: runs policies one after the other, in the given order.

    ``pipeline()`` makes one from names and values. By default older reads of a file are removed
    first, then ``balanced`` runs.

    Which stages run depends on why a plan is asked for:

    - by a threshold, those that are due after what the earlier stages left;
    - on request, or because a request does not fit, all of them;
    - for an injection, only those that inject.

    The result of each stage is checked: calls and results must be shown together, and a user
    message first. A stage that breaks this has failed. A stage that asks for a summary is the last
    one that runs, because later stages would have to see the summary.

    Stages that inject must come first, so that compacting stages count what they add. They inject
    before every request.

    Exempt from G7, because a stage may inject; from G3, because the result of one stage may be more
    work for an earlier one; and from what a stage is exempt from, for example from G5 for
    ``balanced``.

    Raises InvalidConfig for no stages, an unknown policy or option, and a stage that injects after
    one that compacts. ``plan`` raises what a required stage raises, and InvalidRequest if a
    required stage separates calls from results.
    """

    name: ClassVar[str] = "pipeline"
    stages: tuple[Stage, ...] = (
        Stage(policy="file_read_dedupe"),
        Stage(policy="balanced", required=True),
    )

    def __post_init__(self) -> None:
        if not self.stages:
            raise InvalidConfig("a pipeline needs stages: give it at least one")
        compacts = ""
        for stage in self.stages:
            if not injects(make_policy(stage.policy, stage.options)):
                compacts = stage.policy
            elif compacts:
                raise InvalidConfig(
                    f"stage {stage.policy!r} injects texts: move it before {compacts!r}"
                )

    @cached_property
    def policies(self) -> tuple[Policy, ...]:
        """The policies of the stages, in order. Made once, because they are asked before each
        request.
        """
        return tuple(make_policy(stage.policy, stage.options) for stage in self.stages)

    @property
    def exempt(self) -> frozenset[str]:
        """The rules of the policy contract that it does not keep: its own exemptions and those of
        its stages.
        """
        stages = (getattr(policy, "exempt", ()) for policy in self.policies)
        return frozenset({"G3", "G7"}).union(*stages)

    @property
    def injects(self) -> bool:  # type: ignore[override]  # it depends on the stages
        """Does any stage put texts into requests?"""
        return any(map(injects, self.policies))

    @property
    def marks(self) -> tuple[str, ...]:
        """The beginnings of the texts that its stages inject."""
        return tuple(mark for policy in self.policies for mark in getattr(policy, "marks", ()))

    @property
    def waits_for_cache(self) -> bool:  # type: ignore[override]  # it depends on the stages
        """Do all stages wait for the cache? A stage that injects changes the view, which makes a
        held plan outdated.
        """
        return all(waits_for_cache(policy, None) for policy in self.policies)

    def _injected(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What the stages that inject change; None if that is nothing.

        Tokens are only measured if something changes, because this is asked before each request.
        """
        now, ran = view, []
        for stage, policy in zip(self.stages, self.policies, strict=True):
            try:
                plan = policy.plan(now, messages, budget) if injects(policy) else None
            except Exception:  # a policy may be anybody's code
                if stage.required:
                    raise
                continue
            if plan is not None and plan.injected is not None:
                now = msgspec.structs.replace(now, injected=plan.injected)
                ran.append(policy.name)
        if now.injected == view.injected:
            return None
        voids = budget.profile.binds_thinking and injection_voids(view, messages, now.injected)
        did = f"stages: {', '.join(ran)}"
        return planned(
            self.name, view, messages, budget, did, injected=now.injected, voids_thinking=voids
        )

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is any compacting stage due?"""
        full = Fill(used_tokens=used_tokens, limit_tokens=limit_tokens, messages=0)
        return self.due_for(full)

    def due_for(self, fill: Fill) -> bool:
        """Is any compacting stage due, given everything in *fill*?"""
        return any(is_due(policy, fill) for policy in self.policies if not injects(policy))

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What all stages change together; None if that is nothing."""
        if budget.trigger == "injection":
            return self._injected(view, messages, budget)
        draft = Draft(view, messages, budget)
        ran: list[str] = []
        for stage, policy in zip(self.stages, self.policies, strict=True):
            try:
                plan = _stage_plan(policy, draft)
            except Exception as error:  # a policy may be anybody's code
                if stage.required:
                    raise
                ran.append(f"{policy.name} failed ({type(error).__name__})")
                continue
            if plan is not None:
                draft.absorb(plan)
                ran.append(policy.name)
                if plan.summary_request is not None:
                    break
        if ran and draft.shown.omitted != view.omitted:
            # Texts that were attached to messages which are left out now are removed in the same
            # rewrite.
            for policy in filter(injects, self.policies):
                try:
                    absorb_all(draft, [policy])
                except Exception:
                    ran.append(f"{policy.name} failed at the end")
        return draft.plan(self.name, f"stages: {', '.join(ran)}")


def pipeline(*policies: str | Stage | Policy) -> Pipeline:
    """A policy that runs *policies* one after the other.

    Each is a registered name, a policy value, or a ``Stage`` if it is required or has options by
    name. Raises InvalidConfig as ``Pipeline`` does, and for a value whose class is not registered.
    """
    return Pipeline(stages=tuple(map(_stage, policies)))


def _stage(policy: str | Stage | Policy) -> Stage:
    if isinstance(policy, Stage):
        return policy
    if isinstance(policy, str):
        return Stage(policy=policy)
    name, options = settings_of(policy)
    # Encoded and decoded once, so that values are as they come back from a log: tuples become
    # lists.
    return Stage(policy=name, options=msgspec.json.decode(msgspec.json.encode(options)))


def absorb_all(draft: Draft, policies: Sequence[Policy]) -> list[str]:
    """Let *draft* take over what each of *policies* changes, whether due or not.

    Returns the names of those that changed something. Only for our own policies, which raise
    nothing and ask for no summary.
    """
    ran: list[str] = []
    for policy in policies:
        plan = policy.plan(draft.shown, draft.messages, draft.budget_now())
        if plan is not None:
            draft.absorb(plan)
            ran.append(policy.name)
    return ran


def _stage_plan(policy: Policy, draft: Draft) -> Plan | None:
    budget = draft.budget_now()
    if not injects(policy):
        count, limit = len(draft.messages), budget.limit_tokens
        fill = fill_of(
            draft.shown,
            count,
            used_tokens=draft.used,
            limit_tokens=limit,
            window_tokens=budget.window_tokens,
        )
        if budget.trigger == "threshold" and not is_due(policy, fill):
            return None
    plan = policy.plan(draft.shown, draft.messages, budget)
    if plan is not None:
        after = draft.shown.applied(plan, len(draft.messages))
        if not shows_pairs(after, draft.messages):
            raise InvalidRequest(f"stage {policy.name!r} parts calls from their results")
    return plan


def shows_pairs(view: View, messages: Sequence[Message]) -> bool:
    """Does *view* show each call with its results, and a user message or an injected text first?"""
    begins = view.prefix_summary is not None
    for index in range(view.start, len(messages)):
        if not view.shows(index):
            continue
        message = messages[index]
        if not begins:
            begins = message.is_user or any(item.at == index for item in view.injected)
            if not begins:
                return False
        if message.tool_results and index and not view.shows(index - 1):
            return False
        if message.tool_calls and index + 1 < len(messages) and not view.shows(index + 1):
            return False
    return True
