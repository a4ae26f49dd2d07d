"""Statistics of live sessions, for an overview of a whole service. They load no session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from .actor.actor import Actor
from .values.outcome import SessionPhase

__all__ = ["SessionStats", "count_live", "live_stats"]


class SessionStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current state of one live session and its totals. Context tokens are estimates."""

    session: str
    phase: SessionPhase
    model: str
    turn: int | None = None
    """The number of the turn that runs or is next to start."""
    turn_phase: str | None = None
    step: int = 0
    """That turn's step, from 1; 0 before its first."""
    queued: int = 0
    """Accepted turns that wait in the queue."""
    turns: int = 0
    """Turns that have ended, whatever their outcome."""
    context_tokens: int
    """The estimated size of the request that would be sent now."""
    budget_tokens: int
    """The largest size that a request may have."""
    output_tokens: int = 0
    """Output tokens so far: those reported, plus an estimate for the reply that is streaming."""
    interrupts: int = 0
    """Turns that an interrupt ended since the session was loaded."""
    compactions: int = 0
    """Compactions that were applied since the session was loaded."""
    cost_nano_usd: int = 0
    """The known cost in nano-dollars (10^-9 USD). If ``unpriced`` is True, the real cost is higher.
    """
    unpriced: bool = False
    """Did a model without a price answer some of its requests?"""

    @property
    def utilisation(self) -> float:
        """The share of the budget that the next request fills; 1.0 is full, and it can be more."""
        return self.context_tokens / max(1, self.budget_tokens)


CHARS_PER_TOKEN = 4
"""Used only for a reply that is streaming: the provider reports its tokens at its end."""


def live_stats(
    actors: Iterable[Actor], limit: int, matches: Callable[[str], bool]
) -> Sequence[SessionStats]:
    """Statistics of at most *limit* sessions whose id *matches*.

    Sessions that run a turn come first; otherwise they are ordered by id. Visits all of *actors*,
    and projects the context of each session returned.
    """
    live = [actor for actor in actors if matches(actor.session)]
    live.sort(key=lambda actor: (actor.turns.current is None, actor.session))
    return [_stats_of(actor) for actor in live[:limit]]


def count_live(actors: Iterable[Actor], matches: Callable[[str], bool]) -> tuple[int, int]:
    """How many sessions of *actors* have an id that *matches*, and how many of these run a turn."""
    running = [actor.turns.current is not None for actor in actors if matches(actor.session)]
    return len(running), sum(running)


def _stats_of(actor: Actor) -> SessionStats:
    core, state, run = actor.core, actor.state, actor.turns.current
    spent = core.account.spent()
    output = state.usage.output_tokens
    if run is not None:
        output += sum(request.usage.output_tokens for request in run.requests)
        if run.builder is not None:
            chars = sum(len(text) for _, _, _, text in run.builder.so_far())
            output += max(run.builder.usage.output_tokens, chars // CHARS_PER_TOKEN)
    return SessionStats(
        session=actor.session,
        phase="running" if run is not None else "idle",
        model=core.config.model,
        turn=run.number if run else None,
        turn_phase=run.turn.phase.value if run else None,
        step=run.turn.step if run else 0,
        queued=actor.turns.waiting,
        turns=len(state.ended),
        context_tokens=core.size_now().tokens,
        budget_tokens=core.budget_tokens,
        output_tokens=output,
        interrupts=core.counters.interrupts,
        compactions=core.counters.compactions,
        cost_nano_usd=spent.cost_nano_usd,
        unpriced=bool(spent.unpriced),
    )
