"""Where a context may begin, and what has to be left out for that.

It begins with a user message, never with a tool result or a reply. The newest request is never left
out: if a window would begin behind it, in a long turn, the request stays and the steps between are
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from llmsession.compaction.planning.boundaries import has_own_words, is_safe_cut, newest_request
from llmsession.turns.messages import Message

__all__ = ["Span", "begins_turn", "beside_pins", "left_out", "pinned", "spans_between"]

Span: TypeAlias = tuple[int, int]
"""A range of positions: the first one, and the one after the last."""


def begins_turn(message: Message) -> bool:
    """May a context begin with *message*? It must be a user's own message that answers no call."""
    return has_own_words(message) and not message.tool_results


def pinned(messages: Sequence[Message]) -> tuple[int, ...]:
    """The positions that are never left out.

    They are the newest message that a context may begin with, and a later message of the user that
    came together with results, with the calls that these answer.
    """
    opening = next(
        (index for index in range(len(messages) - 1, -1, -1) if begins_turn(messages[index])), None
    )
    if opening is None:
        return ()
    steer = newest_request(messages)
    return (opening,) if steer is None or steer == opening else (opening, steer - 1, steer)


def left_out(
    messages: Sequence[Message], start: int, *, shown_from: int = 0, back: bool = False
) -> tuple[Span, ...]:
    """What is left out from position *shown_from* on, for a window that begins at *start*.

    If the window may not begin there, it begins at the next older place if *back*, else at the next
    newer one.
    """
    pins = pinned(messages)
    if not pins:
        return ()
    opening = pins[0]
    if start <= opening:
        places = range(start, -1, -1) if back else range(start, opening + 1)
        first = next((index for index in places if begins_turn(messages[index])), 0)
        return spans_between(shown_from, first, ())
    steps = range(opening + 1, len(messages))
    safe = [index for index in steps if is_safe_cut(messages, index)]
    if not safe:
        return spans_between(shown_from, opening, ())
    # Going back, a cut moves to the calls that own the results. In any case at least one step
    # stays.
    wider = (
        [index for index in safe if index <= start]
        if back
        else [index for index in safe if index >= start]
    )
    begin = (wider[-1] if back else wider[0]) if wider else (safe[0] if back else safe[-1])
    return spans_between(shown_from, begin, pins)


def spans_between(first: int, end: int, pins: tuple[int, ...]) -> tuple[Span, ...]:
    """The ranges from *first* to *end*, without the positions in *pins*."""
    spans: list[Span] = []
    for pin in (*pins, end):
        if first < min(pin, end):
            spans.append((first, min(pin, end)))
        first = max(first, pin + 1)
    return tuple(spans)


def beside_pins(sizes: list[int], pins: tuple[int, ...], room: int) -> tuple[list[int], int]:
    """*sizes* and *room* after the pinned messages are charged first."""
    charged = list(sizes)
    for index in pins:
        charged[index] = 0
    return charged, room - sum(sizes[index] for index in pins)
