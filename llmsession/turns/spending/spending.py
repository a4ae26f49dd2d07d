"""Spending and budgets: what model requests used, and whether a budget allows more.

Tokens are charged marginally: a request is charged its output, and the part of its prompt that is
new since the previous request. So a long conversation is not charged its whole history at every
step. After a compaction the prompt is shorter; that gives nothing back and charges nothing again.
Money is charged as it is billed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from llmsession.errors import BudgetExhausted, InvalidConfig

from ..blocks import is_number, plain_number
from ..records import ExceededBudget, ModelRequest, UnrecordedUsage
from ..usage import Usage
from .prices import PriceTable, dollars, nano_usd

__all__ = [
    "Charged",
    "Spending",
    "SpendingBudget",
    "cost_of",
    "exhausted",
    "find_exceeded",
    "marginal_tokens",
    "with_unrecorded",
]


class SpendingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How much a session, or all sessions of a tenant together, may spend. None means no limit.

    The budget is checked before each model request, so the last request may exceed it.
    """

    max_tokens: int | None = None
    """Tokens, charged marginally: the output, and of each prompt only what is new since the
    previous request. Above 0.
    """
    max_cost_usd: float | None = None
    """Dollars, as billed, from a nano-dollar to a billion dollars. Every model must have a
    price.
    """

    def checked(self) -> SpendingBudget:
        """This budget. Raises InvalidConfig, naming the field."""
        tokens: Any = self.max_tokens
        cost: Any = self.max_cost_usd
        if tokens is not None and not (plain_number(tokens) or 0) > 0:
            raise InvalidConfig(f"budget: max_tokens is {tokens!r}; it must be greater than 0")
        # Written so that NaN is refused, too.
        if cost is not None and not (is_number(cost) and 1e-9 <= cost <= 1e9):
            reason = "it must be at least a nano-dollar (1e-9) and at most a billion dollars (1e9)"
            raise InvalidConfig(f"budget: max_cost_usd is {cost!r}; {reason}")
        return self


def marginal_tokens(previous_prompt_tokens: int, usage: Usage) -> int:
    """The tokens charged for a request after one with such a prompt: never less than its output."""
    return usage.output_tokens + max(0, usage.prompt_tokens - previous_prompt_tokens)


class Charged(msgspec.Struct, frozen=True):
    """The tokens charged for requests in their order, and the length of the last prompt."""

    tokens: int = 0
    prompt_tokens: int = 0

    def after(self, requests: Iterable[ModelRequest]) -> Charged:
        """This, plus *requests*. A request that reported no prompt leaves the prompt length
        unchanged.
        """
        tokens, prompt = self.tokens, self.prompt_tokens
        for request in requests:
            tokens += marginal_tokens(prompt, request.usage)
            prompt = request.usage.prompt_tokens or prompt
        return Charged(tokens, prompt)

    def beside(self, requests: Iterable[ModelRequest]) -> Charged:
        """This, plus *requests* outside the conversation, whose prompts share nothing with it."""
        tokens = sum(marginal_tokens(0, request.usage) for request in requests)
        return Charged(self.tokens + tokens, self.prompt_tokens)


def cost_of(requests: Iterable[ModelRequest], prices: PriceTable) -> int | None:
    """What *requests* cost in nano-dollars; None if the price of one is not known."""
    total = 0
    for request in requests:
        cost = prices.cost(request.model, request.usage)
        if cost is None:
            return None
        total += cost
    return total


class Spending(msgspec.Struct, frozen=True):
    """How much was spent."""

    tokens: int = 0
    """Tokens as budgets charge them."""
    cost_nano_usd: int = 0
    """The cost of requests with a known price, in nano-dollars (10^-9 USD)."""
    unpriced: frozenset[str] = frozenset()
    """The models of the other requests; "" for an unknown one."""

    def and_cost(self, requests: Iterable[ModelRequest], prices: PriceTable) -> Spending:
        """This, plus the cost of *requests*. Their tokens are charged elsewhere."""
        total, unpriced = self.cost_nano_usd, set[str]()
        for request in requests:
            cost = prices.cost(request.model, request.usage)
            if cost is None:
                unpriced.add(request.model or "")
            else:
                total += cost
        return Spending(self.tokens, total, self.unpriced | unpriced)

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            self.tokens + other.tokens,
            self.cost_nano_usd + other.cost_nano_usd,
            self.unpriced | other.unpriced,
        )

    def __sub__(self, other: Spending) -> Spending:
        return Spending(
            self.tokens - other.tokens,
            self.cost_nano_usd - other.cost_nano_usd,
            self.unpriced - other.unpriced,
        )


def find_exceeded(
    budget: SpendingBudget, spent: Spending, whose: Literal["session", "tenant"], name: str
) -> ExceededBudget | None:
    """The part of *budget* that is used up; None if none is.

    An unknown cost cannot be compared with a budget, so it uses the budget up.
    """
    if budget.max_tokens is not None and spent.tokens >= budget.max_tokens:
        return ExceededBudget(
            whose=whose, name=name, unit="tokens", limit=budget.max_tokens, spent=spent.tokens
        )
    if budget.max_cost_usd is None:
        return None
    limit = nano_usd(budget.max_cost_usd)
    if spent.cost_nano_usd < limit and not spent.unpriced:
        return None
    return ExceededBudget(
        whose=whose,
        name=name,
        unit="nano_usd",
        limit=limit,
        spent=spent.cost_nano_usd,
        unpriced=tuple(sorted(spent.unpriced)) if spent.cost_nano_usd < limit else (),
    )


def exhausted(exceeded: ExceededBudget) -> BudgetExhausted:
    """The error for *exceeded*."""
    return BudgetExhausted(_told(exceeded), **msgspec.structs.asdict(exceeded))


def _told(exceeded: ExceededBudget) -> str:
    who = f"the budget of {exceeded.whose} {exceeded.name!r}"
    if exceeded.unpriced:
        models = ", ".join(name or "(not known)" for name in exceeded.unpriced)
        return f"{who} is in dollars, but these models have no price: {models}"
    if exceeded.unit == "tokens":
        return f"{who} is used up: {exceeded.spent:,} of {exceeded.limit:,} tokens"
    return f"{who} is used up: {dollars(exceeded.spent)} of {dollars(exceeded.limit)}"


_NOTHING = Usage()


def with_unrecorded(
    recorded: Sequence[ModelRequest], unrecorded: Sequence[UnrecordedUsage], total: Usage
) -> tuple[ModelRequest, ...]:
    """All requests of a turn, in order.

    *recorded* are those whose replies are in the log. *total* is the usage in the turn's last
    record; older logs do not say which requests it includes.
    """
    if not unrecorded and (recorded[0].usage if len(recorded) == 1 else _NOTHING) == total:
        return tuple(recorded)
    requests = list(recorded)
    for request in unrecorded:  # in ascending order of their places
        requests.insert(request.at, ModelRequest(request.model, request.usage))
    known = sum((request.usage for request in requests), Usage())
    rest = [getattr(total, name) - getattr(known, name) for name in Usage.__struct_fields__]
    if any(tokens > 0 for tokens in rest):
        requests.append(ModelRequest(None, Usage(*(max(0, tokens) for tokens in rest))))
    return tuple(requests)
