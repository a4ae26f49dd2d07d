"""Values for the caller: the outcome of a turn or an interrupt, a session's status and usage."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from llmsession.turns.blocks import Block, parse_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message
from llmsession.turns.records import CallReceipt, ExceededBudget
from llmsession.turns.spending.prices import NANO
from llmsession.turns.usage import Usage

__all__ = [
    "Closed",
    "CompactionOutcome",
    "InterruptOutcome",
    "InterruptResult",
    "ModelUsage",
    "SessionPhase",
    "SessionStatus",
    "SessionUsage",
    "TurnOutcome",
]


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. Exactly one for each accepted turn.

    ``stop_reason`` is the provider's, or one of ours: cancelled, error, max_steps, max_seconds,
    max_turn_tokens, budget, imported (where the source gives none); for an aborted turn the reason:
    interrupt, replaced, crash, closed; for a failed one its cause. ``messages`` are what was
    committed. For a dropped turn ``user_body`` is what the user said, as JSON blocks, and
    ``calls`` the tools that had started.
    ``unread_steers`` were accepted and never read by the model, as JSON blocks each.
    ``exceeded`` says which budget ended the turn, where one did.
    """

    turn: TurnId
    status: Literal["committed", "aborted", "failed"]
    stop_reason: str
    usage: Usage
    messages: tuple[Message, ...] = ()
    user_body: msgspec.Raw = msgspec.Raw(b"[]")
    unread_steers: tuple[msgspec.Raw, ...] = ()
    calls: tuple[CallReceipt, ...] = ()
    still_running: tuple[str, ...] = ()
    error: str | None = None
    exceeded: ExceededBudget | None = None

    @property
    def user_content(self) -> tuple[Block, ...]:
        """What the user said in a dropped turn, for a client's editor."""
        return parse_blocks(self.user_body)

    @property
    def text(self) -> str:
        """What the assistant said last, without its earlier steps; "" if it said nothing."""
        texts = [message.text for message in self.messages if message.is_assistant]
        return texts[-1] if texts else ""


class InterruptResult(StrEnum):
    """What became of the turn that an interrupt named, or else of the one that was running."""

    ABORTED = "aborted"
    """The turn is gone; the history is the one before it."""
    KEPT = "kept"
    """The turn ended early as a commit: keep_steps or keep_text found something to keep."""
    TOO_LATE = "too_late"
    """The turn's end was decided already. Decided, not yet durable: await its outcome."""
    NOT_RUNNING = "not_running"
    """The named turn had ended before, or none was named and nothing was open."""
    UNKNOWN_TURN = "unknown_turn"
    """The session never accepted a turn of that number."""


class InterruptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What an interrupt did. ``turns`` holds the outcome of each turn that it ended: the running
    one, and every send that was enqueued before the interrupt."""

    result: InterruptResult
    turn: TurnId | None = None
    turns: tuple[TurnOutcome, ...] = ()

    @property
    def dropped(self) -> tuple[TurnOutcome, ...]:
        """The turns that left nothing in the history."""
        return tuple(outcome for outcome in self.turns if outcome.status == "aborted")


SessionPhase: TypeAlias = Literal["idle", "running", "closed", "moved", "cold"]
"""``moved``: another owner took the session. ``cold``: not in memory, back on the next command."""


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session stands, as of its newest durable state. Tokens are estimates."""

    session: str
    phase: SessionPhase
    turn: TurnId | None
    """The turn that runs or is next to start; the queued ones come after it."""
    turn_phase: str | None
    """That turn's phase in the turn table."""
    step: int
    """That turn's step, from 1; 0 before its first."""
    queued: int
    """Accepted turns that wait for their turn."""
    head: TurnId | None
    """The last committed turn, what ``expected_head`` is compared with; None if there is none."""
    seq: int
    """The newest durable record, a cursor for ``subscribe``."""
    epoch: int
    """The number of this owner's hold on the session."""
    generation: int
    messages: int
    """Messages in the history."""
    turns: int
    """Turns in the history."""
    context_tokens: int
    """The size of what the model would be sent now."""
    context_method: str = "estimate"
    """How that is known: from the last reported ``usage`` on, or by an ``estimate`` of it all."""
    counted_tokens: int = 0
    """The size of the last request that was built, ..."""
    counted_at: float | None = None
    """... and when that was, in seconds since the epoch; None before there was one."""
    budget_tokens: int
    """What a request may hold: the window less the room for the reply."""
    compacted_before: int
    """Tool results of messages before this position are shown in compact form."""
    jobs: tuple[str, ...]
    """Background jobs that run, or whose result waits to be applied."""
    late_reports: int
    """Reports of work that was over for the turn; they were dropped."""
    still_running: tuple[str, ...]
    """Works of ended turns that ignored their cancellation and still run, by name."""
    open_calls: tuple[str, ...] = ()
    """The running turn's calls that wait for their results, by id; ``LLMSession.open_calls`` has
    them whole."""

    @property
    def utilisation(self) -> float:
        """The share of the budget that the next request fills, 0.0 to 1.0 and above."""
        return self.context_tokens / self.budget_tokens


class ModelUsage(msgspec.Struct, frozen=True):
    """What was spent on one model. ``cost_nano_usd`` is None if it has no price."""

    requests: int
    usage: Usage
    cost_nano_usd: int | None


class SessionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and money spent, interrupted and failed turns included: in all, and by turn number.

    Costs are in nano-dollars (10^-9 USD), by the prices of the manager that is asked, each
    request by the model that answered it; None where some of it has no price, which is not 0.
    """

    total: Usage
    turns: dict[int, Usage]
    summaries: Usage = Usage()
    """Of the total what was asked of a model for summaries, which belongs to no turn."""
    charged_tokens: int = 0
    """What a budget in tokens counts: each prompt only by what came since the one before it."""
    cost_nano_usd: int | None = None
    turn_costs_nano_usd: dict[int, int | None] = {}
    models: dict[str, ModelUsage] = {}
    """By the names that providers report; "" where an old log does not say."""
    unpriced: tuple[str, ...] = ()
    """The models that have no price."""

    @property
    def cost_usd(self) -> float | None:
        """The cost in dollars, for reading; None as ``cost_nano_usd``."""
        return None if self.cost_nano_usd is None else self.cost_nano_usd / NANO

    @property
    def priced_nano_usd(self) -> int:
        """What is known of the cost: at least this much was spent."""
        return sum(model.cost_nano_usd or 0 for model in self.models.values())


class CompactionOutcome(msgspec.Struct, frozen=True):
    """What a compaction did. Tokens are estimates of the messages as they are shown."""

    applied: bool
    reason: str
    tokens_before: int = 0
    tokens_after: int = 0


class Closed(msgspec.Struct, frozen=True):
    """A session was closed; ``still_running`` names the tools that ignore cancellation."""

    session: str
    still_running: tuple[str, ...] = ()
