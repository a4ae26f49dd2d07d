"""Where a history is cut: by a rewind, by forgetting, and by a fork of a forgotten history."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from llmsession.turns.messages import Message

from .redaction import NOTHING_SAID

__all__ = ["first_kept", "first_since", "forgotten_turns", "messages_before", "messages_through"]


def messages_through(history: Sequence[Message], turn: int) -> int:
    """How many messages *history* has up to the last one of *turn*; 0 for turn 0.

    Raises ValueError if the turn is not in it.
    """
    if turn == 0:
        return 0
    for position in range(len(history), 0, -1):
        if history[position - 1].turn == turn:
            return position
    raise ValueError(f"turn {turn} is not in the history")


def messages_before(history: Sequence[Message], turn: int) -> int:
    """How many messages *history* has before the first one of *turn*; all for turn 0.

    Raises ValueError if the turn is not in it.
    """
    if turn == 0:
        return len(history)
    for position, message in enumerate(history):
        if message.turn == turn:
            return position
    raise ValueError(f"turn {turn} is not in the history")


def forgotten_turns(
    history: Sequence[Message],
    accepted_at: Mapping[int, int],
    open_turns: Collection[int],
    before: int,
    edge: int,
) -> frozenset[int]:
    """The turns to forget so that *history* begins with turn *before*: the turns before it in the
    history, and ended turns outside the history that were accepted before the record *edge*."""
    count = messages_before(history, before)
    gone = {message.turn for message in history[:count]}
    remaining = {message.turn for message in history[count:]}
    old = {turn for turn, seq in accepted_at.items() if seq < edge and turn not in open_turns}
    return frozenset((gone | old) - remaining)


def first_since(
    history: Sequence[Message],
    accepted_at: Mapping[int, int],
    accepted_time: Mapping[int, float],
    moment: float,
    head: int,
) -> tuple[int, int]:
    """The first turn to keep and the ``edge``, to forget everything before *moment*. Nothing from
    *moment* or later is forgotten, even if clocks went backwards."""
    later = [turn for turn, time in accepted_time.items() if time >= moment]
    edge = min((accepted_at[turn] for turn in later), default=head + 1)
    in_order = dict.fromkeys(message.turn for message in history)
    before = next((turn for turn in in_order if accepted_time.get(turn, moment - 1) >= moment), 0)
    return before, edge


def first_kept(history: Sequence[Message]) -> int | None:
    """The turn that *history* has to begin with, because everything before it was erased. 0 if
    nothing is left, None if nothing was erased."""
    # A reply may be empty otherwise, too: its only block was a call that got no result.
    users = (message for message in history if message.is_user)
    silent = [message.turn for message in users if message.body == NOTHING_SAID]
    if not silent:
        return None
    after = history[messages_through(history, silent[-1]) :]
    return after[0].turn if after else 0
