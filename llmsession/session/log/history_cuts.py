"""Where a history is cut: by a rewind, by forgetting, by retention, by a fork of a forgotten
history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from llmsession.turns.messages import Message

from ..values.history_limits import HistoryLimits
from ..values.tables import Entries, keys_without, those_of
from .joined import place_of, turns_between, turns_of
from .redaction import NOTHING_SAID

__all__ = [
    "Excess",
    "excess_of",
    "first_kept",
    "first_since",
    "forgotten_turns",
    "messages_before",
    "messages_through",
]


def messages_through(history: Sequence[Message], turn: int) -> int:
    """The number of messages in *history* up to the last one of *turn*; 0 for turn 0.

    Raises ValueError if the turn is not in it.
    """
    return place_of(history, turn)[1] if turn else 0


def messages_before(history: Sequence[Message], turn: int) -> int:
    """The number of messages in *history* before the first one of *turn*; all of them for turn 0.

    Raises ValueError if the turn is not in it.
    """
    return place_of(history, turn)[0] if turn else len(history)


def forgotten_turns(
    history: Sequence[Message],
    known: Iterable[int],
    accepted_at: Mapping[int, int],
    before: int,
    edge: int,
) -> frozenset[int]:
    """The turns to forget so that *history* begins with turn *before*.

    These are the turns before it in the history, and those of *known* outside the history that were
    accepted before the record *edge*. *known* are the ended turns that were not forgotten earlier,
    in the order of *accepted_at*. Looks at little more than the turns that it returns.
    """
    count = messages_before(history, before)
    gone = frozenset(turns_between(history, 0, count))
    others = keys_without(known, gone)  # the first one is nearly always kept
    beside = [*takewhile(lambda turn: accepted_at[turn] < edge, others)]
    if beside:
        gone = gone.union(beside).difference(turns_between(history, count, len(history)))
    return gone


def first_since(
    history: Sequence[Message],
    accepted_at: Mapping[int, int],
    accepted_time: Mapping[int, float],
    moment: float,
    head: int,
) -> tuple[int, int]:
    """The first turn to keep and the ``edge``, in order to forget everything before *moment*.

    Nothing from *moment* or later is forgotten, even if clocks went backwards. *accepted_time* has
    the order of *accepted_at*.
    """
    later = (accepted_at[turn] for turn, time in accepted_time.items() if time >= moment)
    edge = next(later, head + 1)
    in_order = turns_of(history)
    before = next((turn for turn in in_order if accepted_time.get(turn, moment - 1) >= moment), 0)
    return before, edge


class Excess(NamedTuple):
    """The part of a history that exceeds its limits."""

    before: int
    """Everything before this turn exceeds a limit; 0 stands for the whole history."""
    edge: int
    """Ended turns outside the history exceed a limit if they were accepted before this record."""
    messages: int
    """How many messages of the history exceed a limit."""
    limits: dict[str, int]
    """How many turns exceed which limit."""


def excess_of(
    history: Sequence[Message],
    accepted_at: Mapping[int, int],
    accepted_time: Entries[int, float],
    head: int,
    *,
    limits: HistoryLimits,
    now: float,
    tokens_of: Callable[[Message], int],
    all_tokens: Callable[[], int],
) -> Excess | None:
    """The part to forget of a session without an open turn, so that it keeps *limits* at the time
    *now*.

    Returns None if there is nothing to forget. Whole turns are forgotten, the oldest first. A turn
    that exceeds several limits counts for the first of ``age``, ``messages``, ``tokens``.
    *all_tokens* is the sum of *tokens_of* over *history*.
    """
    # Asked at the end of each turn, and nearly always nothing exceeds: that must not cost a walk
    # through the history.
    if (
        (limits.max_age_s is None or _is_younger(history, accepted_time, now - limits.max_age_s))
        and (limits.max_messages is None or len(history) <= limits.max_messages)
        and (limits.max_tokens is None or all_tokens() <= limits.max_tokens)
    ):
        return None
    before, edge, by_age = 0, 0, 0
    if limits.max_age_s is not None:
        moment = now - limits.max_age_s
        before, edge = first_since(history, accepted_at, accepted_time, moment, head)
        by_age = messages_before(history, before)
    by_count = by_age
    if limits.max_messages is not None:
        by_count = max(by_age, _newest(history, limits.max_messages, len(history), lambda _: 1))
    count = by_count
    if limits.max_tokens is not None:
        count = max(by_count, _newest(history, limits.max_tokens, all_tokens(), tokens_of))
    if count > by_age:  # else the age decides the cut, which may be after all messages
        before = history[count].turn
        edge = max(edge, accepted_at[before])
    gone = frozenset[int]()
    if edge:
        gone = forgotten_turns(history, accepted_time, accepted_at, before, edge)
    # The others were erased already, in the parent of this session.
    gone = frozenset(turn for turn, _ in those_of(accepted_time, gone))
    if not gone:
        return None
    turns = {
        "messages": len({message.turn for message in history[by_age:by_count]}),
        "tokens": len({message.turn for message in history[by_count:count]}),
    }
    beside = len(gone) - sum(turns.values())
    # Turns outside the history, such as aborted ones, are forgotten together with turns that were
    # accepted at about the same time. They count for the same limit.
    first = "age" if by_age or count == 0 else "messages" if by_count else "tokens"
    turns = {"age": 0, **turns}
    turns[first] += beside
    return Excess(before, edge, count, {name: number for name, number in turns.items() if number})


def _is_younger(
    history: Sequence[Message], accepted_time: Mapping[int, float], moment: float
) -> bool:
    """Are the oldest turn and the first one of *history* from *moment* or later? Then nothing is
    forgotten for its age.
    """
    oldest = next(iter(accepted_time.values()), moment)
    first = accepted_time.get(history[0].turn) if history else moment
    return oldest >= moment and first is not None and first >= moment


def _newest(
    history: Sequence[Message], limit: int, total: int, weight: Callable[[Message], int]
) -> int:
    """The position at which the newest whole turns begin that weigh at most *limit* together.

    The newest turn is always among them, whatever it weighs. *total* is the weight of all. Looks at
    the messages before that position and at one turn behind it.
    """
    start = 0
    while total > limit:
        turn, end = history[start].turn, start
        while end < len(history) and history[end].turn == turn:
            total -= weight(history[end])
            end += 1
        if end == len(history):
            break
        start = end
    return start


def first_kept(history: Sequence[Message]) -> int | None:
    """The turn that *history* must begin with, because everything before it was erased.

    0 if nothing is left, None if nothing was erased.
    """
    # Only user messages show it. A reply may be empty for another reason: its only block was a call
    # that got no result.
    users = (message for message in history if message.is_user)
    silent = [message.turn for message in users if message.body == NOTHING_SAID]
    if not silent:
        return None
    after = history[messages_through(history, silent[-1]) :]
    return after[0].turn if after else 0
