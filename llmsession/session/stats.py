"""Statistics of live sessions, for a view of a whole service. Cheap: no session is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from .actor.actor import Actor
from .values.outcome import SessionPhase

__all__ = ["SessionStats", "count_live", "live_stats"]


class SessionStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a live session does, and what it has done. Tokens of the context are estimates."""

    session: str
    phase: SessionPhase
    model: str
    turn: int | None = None
    """The turn that runs, or is next to start."""
    turn_phase: str | None = None
    step: int = 0
    queued: int = 0
    turns: int = 0
    """Turns that have ended, in any way."""
    context_tokens: int
    budget_tokens: int
    output_tokens: int = 0
    """The output tokens so far, as reported, and an estimate for the reply that streams."""
    interrupts: int = 0
    """Turns that an interrupt ended since the session was loaded."""
    compactions: int = 0
    """Compactions that were applied since the session was loaded."""
    cost_nano_usd: int = 0
    """The known part of its cost; with ``unpriced`` there is more."""
    unpriced: bool = False

    @property
    def utilisation(self) -> float:
        """The share of the budget that the next request fills, 0.0 to 1.0 and above."""
        return self.context_tokens / max(1, self.budget_tokens)


CHARS_PER_TOKEN = 4
"""For a reply that streams: the provider reports its tokens only at its end."""


def live_stats(
    actors: Iterable[Actor], limit: int, matches: Callable[[str], bool]
) -> Sequence[SessionStats]:
    """Statistics of at most *limit* sessions of *actors* whose id *matches*: those that run a turn
    come first, then by id. Costs a walk over *actors*, and a projection of the context for each one
    returned."""
    live = [actor for actor in actors if matches(actor.session)]
    live.sort(key=lambda actor: (actor.turns.current is None, actor.session))
    return [_stats_of(actor) for actor in live[:limit]]


def count_live(actors: Iterable[Actor], matches: Callable[[str], bool]) -> tuple[int, int]:
    """How many sessions of *actors* have an id that *matches*, and how many of them run a turn."""
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
