"""Values that callers get: outcomes of turns, interrupts and compactions; a session's status and
usage.
"""

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
    "USAGE_TURNS",
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
    """How a turn ended. Each accepted turn has exactly one outcome.

    ``user_text``, ``user_content`` and ``unread_texts`` decode the fields that are JSON blocks.
    """

    turn: TurnId
    status: Literal["committed", "aborted", "failed"]
    """``committed``: the turn is part of the history. ``aborted`` and ``failed``: it is not."""
    stop_reason: str
    """Why the turn ended. Committed: the provider's stop reason, or one of the session's own
    (``cancelled``, ``error``, ``max_steps``, ``max_seconds``, ``max_turn_tokens``, ``budget``, or
    ``imported`` if the source gives none). Aborted: ``interrupt``, ``replaced``, ``crash`` or
    ``closed``. Failed: the cause.
    """
    usage: Usage
    """The tokens that all requests of the turn used."""
    messages: tuple[Message, ...] = ()
    """The committed messages of the turn, oldest first; empty if it was not committed."""
    user_body: msgspec.Raw = msgspec.Raw(b"[]")
    """The user's message of a dropped turn, as JSON blocks."""
    unread_steers: tuple[msgspec.Raw, ...] = ()
    """Messages that were accepted as steers and that the model has not read, each as JSON
    blocks.
    """
    calls: tuple[CallReceipt, ...] = ()
    """The tools of a dropped turn that had started, with what is known of their outcome."""
    still_running: tuple[str, ...] = ()
    """The names of works that ignored their cancellation and still ran at the turn's end."""
    error: str | None = None
    """A description of the error that ended the turn, if one did."""
    exceeded: ExceededBudget | None = None
    """The budget that ended the turn, if one did."""
    failure: ProviderFailure | None = None
    """The provider's error that the turn was given up for, if it was."""

    @property
    def user_text(self) -> str:
        """The text of the user's message, without what the session added to it.

        Works for committed and for dropped turns.
        """
        return self.messages[0].text if self.messages else _text_of(self.user_body)

    @property
    def unread_texts(self) -> tuple[str, ...]:
        """The texts of ``unread_steers``."""
        return tuple(map(_text_of, self.unread_steers))

    @property
    def user_content(self) -> tuple[Block, ...]:
        """The blocks of the user's message of a dropped turn, for example to put them back into an
        editor.
        """
        return parse_blocks(self.user_body)

    @property
    def text(self) -> str:
        """The text of the assistant's last message in the turn; "" if there is none."""
        texts = [message.text for message in self.messages if message.is_assistant]
        return texts[-1] if texts else ""


def _text_of(body: msgspec.Raw) -> str:
    return joined_text(parse_blocks(body))


class InterruptResult(StrEnum):
    """What happened to the turn that the interrupt named, or else to the turn that was running."""

    ABORTED = "aborted"
    """The turn was dropped; the history is the one from before it."""
    KEPT = "kept"
    """The turn was committed early, because ``keep_steps`` or ``keep_text`` found something to
    keep.
    """
    TOO_LATE = "too_late"
    """The turn's end was decided before the interrupt. It may not be durable yet: await its
    outcome.
    """
    NOT_RUNNING = "not_running"
    """The named turn had already ended; or no turn was named and none was open."""
    UNKNOWN_TURN = "unknown_turn"
    """The session never accepted a turn with that number."""


class InterruptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What an interrupt did."""

    result: InterruptResult
    turn: TurnId | None = None
    """The turn that ``result`` is about; None if no turn was running."""
    turns: tuple[TurnOutcome, ...] = ()
    """The outcome of each turn that the interrupt ended: the running turn, and every send that was
    enqueued before the interrupt.
    """

    @property
    def dropped(self) -> tuple[TurnOutcome, ...]:
        """The outcomes of the turns that left nothing in the history."""
        return tuple(outcome for outcome in self.turns if outcome.status == "aborted")


SessionPhase: TypeAlias = Literal["idle", "running", "closed", "moved", "cold"]
"""``idle`` and ``running`` are live. ``closed``: this process closed the session. ``moved``:
another owner took it. ``cold``: it is not in memory, and the next command loads it.
"""


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A session's status at its newest durable record. Token counts are estimates."""

    session: str
    phase: SessionPhase
    turn: TurnId | None
    """The turn that is running or is next to start. Queued turns come after it."""
    turn_phase: str | None
    """The phase of that turn in the turn machine."""
    step: int
    """The step of that turn, from 1; 0 before its first."""
    queued: int
    """The number of accepted turns in the queue."""
    head: TurnId | None
    """The last committed turn, which ``expected_head`` is compared with; None if there is none."""
    next_turn: TurnId | None = None
    """The id that the next accepted message will get if it begins a turn. Another client's message
    may get it first. None from a service of an older version.
    """
    seq: int
    """The seq of the newest durable record, a cursor for ``subscribe``."""
    epoch: int
    """The number of this owner's lease on the session: a fencing token that grows with every
    owner.
    """
    generation: int
    """The number of the history's generation. ``clear``, ``rewind`` and ``forget`` begin a
    new one.
    """
    messages: int
    """The number of messages in the history."""
    turns: int
    """The number of turns in the history."""
    context_tokens: int
    """The size of the request that would be sent to the model now."""
    context_method: str = "estimate"
    """How ``context_tokens`` was counted: ``usage`` (the last reported usage plus an estimate) or
    ``estimate``.
    """
    counted_tokens: int = 0
    """The size of the last request that was built."""
    counted_at: float | None = None
    """When that request was built, in seconds since the epoch; None before the first one."""
    budget_tokens: int
    """The largest size of a request: the window minus the tokens reserved for the reply."""
    compacted_before: int
    """Tool results in messages before this position are shown in compact form."""
    jobs: tuple[str, ...]
    """The names of background jobs that run or whose result is not applied yet."""
    late_reports: int
    """How many reports arrived from works whose turn had ended or gone on. They were dropped."""
    still_running: tuple[str, ...]
    """The names of works of ended turns that ignore their cancellation and still run."""
    open_calls: tuple[str, ...] = ()
    """The ids of the running turn's calls that wait for results: see ``LLMSession.open_calls``."""
    forgotten: Forgotten = NOTHING_FORGOTTEN
    """What was forgotten so far, by retention or because a caller asked for it."""

    @property
    def utilisation(self) -> float:
        """The share of the budget that the next request fills; 1.0 is full, and it can be more."""
        return self.context_tokens / self.budget_tokens


class ModelUsage(msgspec.Struct, frozen=True):
    """What was spent on one model."""

    requests: int
    usage: Usage
    cost_nano_usd: int | None
    """The cost in nano-dollars (10^-9 USD); None if the model has no price."""


USAGE_TURNS = 100
"""How many turns ``LLMSession.usage`` lists one by one unless it is asked for more or fewer."""


class SessionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and money that a session has spent. Interrupted and failed turns are included.

    Costs are in nano-dollars (10^-9 USD) at this manager's prices. Each request is priced by the
    model that answered it. A cost is None if a part of it has no price.
    """

    total: Usage
    turns: dict[int, Usage]
    """The tokens of each of the newest turns, by turn number: of as many as ``usage`` was asked
    for.
    """
    summaries: Usage = Usage()
    """The part of ``total`` that models spent on summaries. It belongs to no turn."""
    charged_tokens: int = 0
    """The tokens that count against a budget in tokens: of each prompt, only what is new since the
    previous one.
    """
    cost_nano_usd: int | None = None
    turn_costs_nano_usd: dict[int, int | None] = {}
    """The cost of the same turns, by turn number."""
    models: dict[str, ModelUsage] = {}
    """What was spent by model, under the names that providers report; "" if an old log has none."""
    unpriced: tuple[str, ...] = ()
    """The models that have no price."""

    @property
    def cost_usd(self) -> float | None:
        """The cost in dollars, for display. None if ``cost_nano_usd`` is None."""
        return None if self.cost_nano_usd is None else self.cost_nano_usd / NANO

    @property
    def priced_nano_usd(self) -> int:
        """The known part of the cost: at least this much was spent."""
        return sum(model.cost_nano_usd or 0 for model in self.models.values())


class CompactionOutcome(msgspec.Struct, frozen=True):
    """What a compaction did."""

    applied: bool
    reason: str
    """Why it was applied, or why it was not."""
    tokens_before: int = 0
    """The estimated size of the messages as they were shown to the model before."""
    tokens_after: int = 0
    """The estimated size of the messages as they are shown to the model now."""


class Closed(msgspec.Struct, frozen=True):
    """A session was closed or released."""

    session: str
    still_running: tuple[str, ...] = ()
    """The names of tools that ignored their cancellation and still run."""
