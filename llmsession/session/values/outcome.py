"""Values for the caller: the outcome of a turn or an interrupt, a session's status and usage."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from llmsession.turns.blocks import Block, joined_text, parse_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message
from llmsession.turns.records import CallReceipt, ExceededBudget, ProviderFailure
from llmsession.turns.spending.prices import NANO
from llmsession.turns.usage import Usage

from .history_limits import NOTHING_FORGOTTEN, Forgotten

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
    """How a turn ended. There is exactly one for each accepted turn.

    ``stop_reason`` of a committed turn is the provider's, or one of ours: cancelled, error,
    max_steps, max_seconds, max_turn_tokens, budget, imported (where the source gives none). Of an
    aborted turn it is interrupt, replaced, crash or closed; of a failed turn it is the cause.
    ``messages`` are the committed ones. For a dropped turn ``user_body`` is the user's message, as
    JSON blocks, and ``calls`` are the tools that had started. ``unread_steers`` are accepted
    messages that the model has never read, each as JSON blocks. ``exceeded`` is the budget that
    ended the turn, if one did; ``failure`` the provider's error that it was given up for.

    ``user_text``, ``user_content`` and ``unread_texts`` read the JSON blocks.
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
    failure: ProviderFailure | None = None

    @property
    def user_text(self) -> str:
        """The text of the user's message, of a committed turn or of a dropped one, without what
        the session added to it."""
        return self.messages[0].text if self.messages else _text_of(self.user_body)

    @property
    def unread_texts(self) -> tuple[str, ...]:
        """The texts of ``unread_steers``."""
        return tuple(map(_text_of, self.unread_steers))

    @property
    def user_content(self) -> tuple[Block, ...]:
        """The user's message of a dropped turn, for a client's editor."""
        return parse_blocks(self.user_body)

    @property
    def text(self) -> str:
        """The text of the assistant's last message in the turn; "" if there is none."""
        texts = [message.text for message in self.messages if message.is_assistant]
        return texts[-1] if texts else ""


def _text_of(body: msgspec.Raw) -> str:
    return joined_text(parse_blocks(body))


class InterruptResult(StrEnum):
    """What happened to the turn that an interrupt named, or else to the one that was running."""

    ABORTED = "aborted"
    """The turn is gone; the history is the one before it."""
    KEPT = "kept"
    """The turn ended early as a commit: keep_steps or keep_text found something to keep."""
    TOO_LATE = "too_late"
    """The turn's end was decided before, but is perhaps not durable yet: await its outcome."""
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
"""``moved``: another owner took the session. ``cold``: not in memory; the next command loads it."""


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A session's status, as of its newest durable state. Tokens are estimates."""

    session: str
    phase: SessionPhase
    turn: TurnId | None
    """The turn that runs or is next to start. Queued turns come after it."""
    turn_phase: str | None
    """That turn's phase in the turn table."""
    step: int
    """That turn's step, from 1; 0 before its first."""
    queued: int
    """Accepted turns that wait for their turn."""
    head: TurnId | None
    """The last committed turn, which ``expected_head`` is compared with; None if there is none."""
    next_turn: TurnId | None = None
    """The id that the next message gets that is accepted and begins a turn; another client's may
    come first. None from a service that does not tell it yet."""
    seq: int
    """The newest durable record, a cursor for ``subscribe``."""
    epoch: int
    """The number of this owner's lease of the session."""
    generation: int
    messages: int
    """Messages in the history."""
    turns: int
    """Turns in the history."""
    context_tokens: int
    """The size of the request that the model would be sent now."""
    context_method: str = "estimate"
    """How it was counted: ``usage``, the last reported usage plus an estimate, or ``estimate``."""
    counted_tokens: int = 0
    """The size of the last request that was built."""
    counted_at: float | None = None
    """When that request was built, in seconds since the epoch; None before the first one."""
    budget_tokens: int
    """The largest size of a request: the window minus the tokens reserved for the reply."""
    compacted_before: int
    """Tool results of messages before this position are shown in compact form."""
    jobs: tuple[str, ...]
    """Background jobs that run, or whose result is not applied yet."""
    late_reports: int
    """Reports of works that their turn no longer waited for; they were dropped."""
    still_running: tuple[str, ...]
    """Works of ended turns that ignored their cancellation and still run, by name."""
    open_calls: tuple[str, ...] = ()
    """The ids of the running turn's calls that wait for their results: see
    ``LLMSession.open_calls``."""
    forgotten: Forgotten = NOTHING_FORGOTTEN
    """What was forgotten so far, by retention or because a caller asked."""

    @property
    def utilisation(self) -> float:
        """The share of the budget that the next request fills, 0.0 to 1.0 and above."""
        return self.context_tokens / self.budget_tokens


class ModelUsage(msgspec.Struct, frozen=True):
    """What was spent on one model. ``cost_nano_usd`` is None if the model has no price."""

    requests: int
    usage: Usage
    cost_nano_usd: int | None


class SessionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and money spent, in total and by turn number. Interrupted and failed turns count.

    Costs are in nano-dollars (10^-9 USD), by this manager's prices, each request by the model that
    answered it. A cost is None where a part of it has no price.
    """

    total: Usage
    turns: dict[int, Usage]
    summaries: Usage = Usage()
    """The part of the total that a model spent on summaries. It belongs to no turn."""
    charged_tokens: int = 0
    """What a budget in tokens counts: of each prompt only what is new since the one before it."""
    cost_nano_usd: int | None = None
    turn_costs_nano_usd: dict[int, int | None] = {}
    models: dict[str, ModelUsage] = {}
    """By the model names that providers report; "" where an old log has none."""
    unpriced: tuple[str, ...] = ()
    """The models that have no price."""

    @property
    def cost_usd(self) -> float | None:
        """The cost in dollars, for people to read; None as ``cost_nano_usd``."""
        return None if self.cost_nano_usd is None else self.cost_nano_usd / NANO

    @property
    def priced_nano_usd(self) -> int:
        """The known part of the cost: at least this much was spent."""
        return sum(model.cost_nano_usd or 0 for model in self.models.values())


class CompactionOutcome(msgspec.Struct, frozen=True):
    """What a compaction did. Tokens are estimates of the messages as the model is shown them."""

    applied: bool
    reason: str
    tokens_before: int = 0
    tokens_after: int = 0


class Closed(msgspec.Struct, frozen=True):
    """A session was closed; ``still_running`` names the tools that ignore cancellation."""

    session: str
    still_running: tuple[str, ...] = ()
