"""Replays a recorded conversation with one policy: request by request, without a model.

The rules are those of a session: when a plan is asked for, when it is applied, and what is done if
a request does not fit (``planning.schedule``, ``planning.cache_economics``, ``escalation``). What a
session does while a reply is streaming happens between two requests here: a plan that is made
during one request is available for the next. If a policy asks for a summary by a model, an
extractive one is used instead, by the same rules for all policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from llmsession.compaction.escalation import escalation_of, hardest_plan, plan_by_rules
from llmsession.compaction.planning.cache_economics import (
    IDLE_BEFORE_S,
    CacheState,
    ahead_tokens,
    decide,
    expected_requests,
    is_outgrown,
    should_apply,
)
from llmsession.compaction.planning.policy import Budget, Policy, is_worthwhile
from llmsession.compaction.planning.prefix_summaries import extracted_summary
from llmsession.compaction.planning.schedule import (
    Fill,
    Schedule,
    fill_of,
    is_due,
    keeps_own_limit,
    need_of,
    trigger_before_request,
    waits_for_cache,
)
from llmsession.compaction.recall import recall_chars
from llmsession.compaction.tokens.messages import text_tokens_for
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import Built, ContextBuilder, Size
from llmsession.turns.messages import Message
from llmsession.turns.records import Trigger
from llmsession.turns.spending.prices import Price

from .cache import PLAIN, PrefixCache, Spent
from .recording import Ask, Recording, Window
from .retained import Need, Needs, Presence

__all__ = ["MIN_GAIN", "Figures", "Replayed", "Step", "replay"]

MIN_GAIN = 0.05
"""A compaction that frees a smaller share is not applied, as in a session by default."""
MAX_FORCED = 50
"""How many rewrites one request may need to fit."""
CALL_TOKENS = 60
"""The tokens of a call of ``recall``: its input, and the separators around it and its result."""

Advanced = Callable[[int], None]


class Step(NamedTuple):
    """One request: the number of messages in its context, its size in tokens, whether the context
    was rewritten for it, and whether it was too large to be sent.
    """

    at: int
    tokens: int
    rewritten: bool
    too_large: bool


class Figures(msgspec.Struct, kw_only=True):
    """The effects of a policy, in sums.

    - Tokens are calibrated estimates, and ``cost`` is in billionths of the price's unit.
    - ``needs`` is how many strings the replies took from earlier results. ``retained`` of them were
      in the context, and ``recallable`` of the others could be recalled.
    - ``too_large`` requests could not be made to fit. They were not sent, and retained nothing.
    - ``rescues`` are rewrites by another policy, as a session makes them if a request does not fit
      and its own policy frees too little.
    """

    requests: int = 0
    spent: Spent = msgspec.field(default_factory=Spent)
    peak_context: int = 0
    rewrites: int = 0
    summaries: int = 0
    needs: int = 0
    retained: int = 0
    recallable: int = 0
    recalls: int = 0
    recall_cost: int = 0
    invalid_requests: int = 0
    too_large: int = 0
    rescues: int = 0

    def add(self, other: Figures) -> None:
        """Add the counts of *other*, one conversation or a sum of several."""
        self.spent.add(other.spent)
        self.peak_context = max(self.peak_context, other.peak_context)
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SUMMED = tuple(name for name in Figures.__struct_fields__ if name not in ("spent", "peak_context"))


class Replayed(Figures, kw_only=True):
    """What a policy did to one conversation, and its requests. ``faults`` describes the first
    violations that made requests invalid, by rule and place, without any content.
    """

    steps: list[Step] = []
    faults: list[str] = []


def replay(
    recording: Recording,
    window: Window,
    policy: Policy,
    needs: Needs,
    *,
    price: Price = PLAIN,
    schedule: Schedule | None = None,
    advanced: Advanced = lambda messages: None,
) -> Replayed:
    """Replay *recording* in *window* with *policy*.

    *schedule* is that of the configuration ``compaction.schedule``; None leaves it to the policy.
    *needs* are those of the recording. *advanced* is called with the number of messages that were
    passed since the last call. Returns the sums and the requests.
    """
    run = _Run(recording, window, policy, needs, price=price, schedule=schedule)
    passed = 0
    for ask, needed in zip(recording.asks, needs.by_ask, strict=True):
        run.request(ask, needed)
        advanced(ask.end - passed)
        passed = ask.end
    return run.replayed


class _Ready(NamedTuple):
    """A plan that is held, and the state of the conversation that it was made for."""

    plan: Plan
    expected_requests: int
    used_tokens: int
    """The size of the context that it was made for."""


class _Run:
    """A replay in progress."""

    def __init__(
        self,
        recording: Recording,
        window: Window,
        policy: Policy,
        needs: Needs,
        *,
        price: Price,
        schedule: Schedule | None,
    ) -> None:
        self._recording = recording
        self._policy = policy
        self._schedule = schedule
        self._waits = waits_for_cache(policy, schedule)
        self._keeps_own_limit = keeps_own_limit(policy, schedule)
        self._limit = window.sizes.budget_tokens
        self._window_tokens = window_tokens = window.sizes.window_tokens
        self._profile = msgspec.structs.replace(recording.profile, window_tokens=window_tokens)
        self._page_chars = recall_chars(self._limit, recording.profile.chars_per_token)
        self._builder = ContextBuilder(recording.profile, window.frame, recording.calibrations)
        self._view = View(capped=window.capped)
        self._presence = Presence(needs)
        self._needs = needs
        self._price = price
        self._cache = PrefixCache(price, recording.profile.cache_ttl_s)
        self._size: Size | None = None
        """The size of the last request, including what was recalled since the last rewrite."""
        self._reported = False
        """Was a request answered since the last rewrite?"""
        self._ready: _Ready | None = None
        self._stalled_at: int | None = None
        self._recalled: dict[tuple[str, int], int] = {}
        """The tokens of each recalled page of a result, until the next rewrite."""
        self._rewritten = False
        self._before: Ask | None = None
        self.replayed = Replayed(steps=[], faults=[])

    # One request.

    def request(self, ask: Ask, needed: Sequence[Need]) -> None:
        """Build the request of *ask*, if it can be made to fit, and charge it."""
        messages = self._recording.messages[: ask.at]
        self._rest(messages, ask)
        self._apply_if_ready(messages, ask.asked_at)
        # Only now the size of the context is known.
        self._size = self._sized(self._builder.build(messages, self._view))
        self._apply_if_ready(messages, ask.asked_at)
        self._keep_limit(messages, ask)
        built, fits = self._fitting(messages, ask)
        size = self._size = self._sized(built)
        rewritten, self._rewritten = self._rewritten, False
        self._before = ask
        replayed = self.replayed
        if ask.counts:
            replayed.requests += 1
            replayed.needs += len(needed)
            replayed.too_large += not fits
            replayed.steps.append(Step(ask.at, size.tokens, rewritten, not fits))
        if not fits:
            return
        shared = self._cache.shared(built.request, ask.asked_at)
        read = 0 if shared is None else self._scaled(self._builder.tokens_before(shared))
        read = min(size.tokens, read + self._recalled_tokens if shared else read)
        charged = self._cache.ask(
            built.request, read_tokens=read, tokens=size.tokens, now_s=ask.asked_at
        )
        self._presence.look(built.request)
        if ask.counts:
            replayed.spent.add(charged)
            replayed.peak_context = max(replayed.peak_context, size.tokens)
            self._note_invalid(built, ask)
        self._meet(needed, counts=ask.counts)
        self._cache.touch(ask.replied_at)
        self._reported = True
        self._consider(messages, self._size, ask)

    def _note_invalid(self, built: Built, ask: Ask) -> None:
        self.replayed.invalid_requests += bool(built.violations)
        for broken in built.violations[: 3 - len(self.replayed.faults)]:
            text = f"{broken.rule} {broken.where}: {broken.text}"
            self.replayed.faults.append(f"before message {ask.at}: {text}")

    def _scaled(self, tokens: int) -> int:
        return self._recording.calibrations.of(self._recording.model).scaled(tokens)

    @property
    def _recalled_tokens(self) -> int:
        return sum(self._recalled.values())

    def _sized(self, built: Built) -> Size:
        size, recalled = built.size, self._recalled_tokens
        return msgspec.structs.replace(size, tokens=size.tokens + recalled) if recalled else size

    # What the reply needs.

    def _meet(self, needed: Sequence[Need], *, counts: bool) -> None:
        """Count which strings of the reply are in the context, and recall those that are not, if
        possible.
        """
        retained = recallable = 0
        for need in needed:
            if self._presence.holds(need.text) or self._is_recalled(need):
                retained += 1
            elif self._presence.names(need.call_id) and self._recall(need, counts=counts):
                recallable += 1
        if counts:
            self.replayed.retained += retained
            self.replayed.recallable += recallable

    def _is_recalled(self, need: Need) -> bool:
        pages = self._needs.pages(need.call_id, need.text, self._page_chars)
        return bool(pages) and (need.call_id, len(pages or ()) - 1) in self._recalled

    def _recall(self, need: Need, *, counts: bool) -> bool:
        """Recall the result of *need*, page by page, with a request for each page. Returns False,
        and recalls nothing, if there is no room for it.
        """
        size = self._size
        pages = self._needs.pages(need.call_id, need.text, self._page_chars)
        if pages is None or size is None:
            return False
        profile = self._recording.profile
        tokens = {
            (need.call_id, number): self._scaled(text_tokens_for(page, profile) + CALL_TOKENS)
            for number, page in enumerate(pages)
            if (need.call_id, number) not in self._recalled
        }
        grown = size.tokens + sum(tokens.values())
        if grown > self._limit:
            return False
        self._size = msgspec.structs.replace(size, tokens=grown)
        self._recalled |= tokens
        for added in tokens.values():
            charged = self._cache.ask_again(added_tokens=added, output_tokens=CALL_TOKENS)
            if counts:
                self.replayed.spent.add(charged)
                self.replayed.recalls += 1
                self.replayed.recall_cost += charged.cost
        if counts:
            self.replayed.peak_context = max(self.replayed.peak_context, grown)
        return True

    # When a plan is made and applied, as in session/compacting/compactor.py.

    def _rest(self, messages: tuple[Message, ...], ask: Ask) -> None:
        """Compact a session that was idle between two turns, before its cache expired."""
        before, size = self._before, self._size
        if not self._waits or before is None or size is None or before.committed == ask.committed:
            return
        if self._cache.idle_s(ask.asked_at) < self._cache.ttl_s - IDLE_BEFORE_S:
            return
        ahead = ahead_tokens(self._limit, "idle")
        if not is_due(self._policy, self._fill(before.end, size.tokens + ahead)):
            return
        # The user has not said anything yet, so the message that opens the next turn is not there.
        index = max(before.end, ask.committed)
        if self._ready is None:
            self._plan(messages[:index], size, "idle", ask.committed)
        if self._ready is not None:
            ready, self._ready = self._ready, None
            self._apply(ready.plan, "idle", index)

    def _consider(self, messages: tuple[Message, ...], size: Size, ask: Ask) -> None:
        if self._keeps_own_limit:
            return
        if self._ready is not None and not is_outgrown(self._ready.used_tokens, size.tokens):
            return
        stalled = self._stalled_at
        if stalled is not None and stalled <= size.tokens < stalled * (1 + MIN_GAIN):
            return
        ahead = ahead_tokens(self._limit, "step") if self._waits else 0
        if is_due(self._policy, self._fill(len(messages), size.tokens + ahead)):
            self._plan(messages, size, "threshold", ask.committed)

    def _plan(
        self, messages: tuple[Message, ...], size: Size, trigger: Trigger, committed: int
    ) -> None:
        self._ready = None
        budget = self._budget(size, trigger, committed)
        # A digest is used in place of a model's summary, even if the policy has a text of its own.
        plan = plan_by_rules(self._policy, self._view, messages, budget, extracted_summary)
        if plan is None or not is_worthwhile(plan, MIN_GAIN):
            self._stalled_at = size.tokens
            return
        expected = expected_requests(messages[self._view.compacted_before :])
        self._ready = _Ready(plan, expected, size.tokens)

    def _keep_limit(self, messages: tuple[Message, ...], ask: Ask) -> None:
        """Let the request wait for the plan of a policy that has a limit of its own."""
        size = self._size
        assert size is not None  # it was computed for this request
        asked = need_of(self._policy, self._schedule, self._fill(len(messages), size.tokens))
        if asked is None:
            return
        self._ready = None
        budget = self._budget(size, asked, ask.committed)
        plan = plan_by_rules(self._policy, self._view, messages, budget, extracted_summary)
        trigger = trigger_before_request(plan, self._policy, self._view, asked)
        if plan is not None and trigger is not None:
            self._apply(plan, trigger, len(messages))

    def _fill(self, count: int, tokens: int) -> Fill:
        return fill_of(
            self._view,
            count,
            used_tokens=tokens,
            limit_tokens=self._limit,
            window_tokens=self._window_tokens,
        )

    def _budget(self, size: Size, trigger: Trigger, committed: int) -> Budget:
        return Budget(
            used_tokens=size.tokens,
            limit_tokens=self._limit,
            summaries=self._recording.summaries,
            profile=self._profile,
            committed=committed,
            frame_tokens=self._builder.frame_tokens * size.scale_permille // 1000,
            scale_permille=size.scale_permille,
            trigger=trigger,
            window_tokens=self._window_tokens,
        )

    def _cache_state(self, now_s: float | None) -> CacheState:
        ttl_s = self._cache.ttl_s
        if not self._reported:
            return CacheState(ttl_s=ttl_s)
        idle_s = self._cache.idle_s(now_s)
        return CacheState(cached_tokens=self._cache.tokens, idle_s=idle_s, ttl_s=ttl_s)

    def _apply_if_ready(self, messages: tuple[Message, ...], now_s: float | None) -> None:
        if self._ready is None or self._size is None:
            return
        plan, used, cache = self._ready.plan, self._size.tokens, self._cache_state(now_s)
        decision = decide(
            used_tokens=used,
            limit_tokens=self._limit,
            cleared_tokens=plan.tokens_before - plan.tokens_after,
            kept_before_tokens=plan.figures.get("kept_before_tokens", 0),
            expected_requests=self._ready.expected_requests,
            cache=cache,
        )
        due = is_due(self._policy, self._fill(len(messages), used))
        if not self._waits:
            self._ready = None
            self._apply(plan, "threshold", len(messages))
        elif should_apply(decision, cache, is_due=due):
            self._ready = None
            self._apply(plan, decision.trigger, len(messages))

    def _apply(self, plan: Plan, trigger: Trigger, position_now: int) -> None:
        self._view = self._view.applied(
            msgspec.structs.replace(plan, trigger=trigger), position_now
        )
        self._reported, self._stalled_at = False, None
        self._recalled.clear()
        self._rewritten = True
        self.replayed.rewrites += 1
        self.replayed.summaries += plan.prefix_summary is not None

    # A request that does not fit.

    def _fitting(self, messages: tuple[Message, ...], ask: Ask) -> tuple[Built, bool]:
        """The request for *messages*, and whether it fits after everything was tried."""
        for _ in range(MAX_FORCED):
            built = self._builder.build(messages, self._view)
            size = self._sized(built)
            if size.tokens <= self._limit:
                return built, True
            self._ready = None
            plan = self._hardest(messages, size, ask)
            if plan is None and not self._recalled:
                break
            if plan is not None:
                self._apply(plan, "window", len(messages))
            # Recalled pages count as old results now and are shown by their headers again.
            self._recalled.clear()
        return built, False

    def _hardest(self, messages: tuple[Message, ...], size: Size, ask: Ask) -> Plan | None:
        budget = self._budget(size, "window", ask.committed)
        plan, faults = hardest_plan(escalation_of(self._policy), self._view, messages, budget)
        if faults:  # a session would go on, but here the policy is under test
            raise faults[0]
        self.replayed.rescues += plan is not None and plan.policy != self._policy.name
        return plan
