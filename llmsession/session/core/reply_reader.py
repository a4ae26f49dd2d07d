"""Reading one reply: events into the builder, deltas to the subscribers as previews."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.lowlevel import checkpoint

from llmsession.providers.protocol import Provider
from llmsession.turns.previews import Preview, TextDelta, ThinkingDelta, ToolInputDelta
from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import BlockDelta

__all__ = ["previews_so_far", "read_reply"]

CLOSE_S = 1.0
"""How long a provider's stream may take to close. It is closed on cancellation too."""
REST_EVENTS = 256
"""How many ready events are read in a row before other tasks run, which may interrupt."""

_PREVIEWS: dict[str, type[TextDelta] | type[ThinkingDelta] | type[ToolInputDelta]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "input": ToolInputDelta,
}


async def read_reply(
    provider: Provider,
    request: Request,
    tag: StepTag,
    *,
    builder: ReplyBuilder,
    show: Callable[[Preview], None],
) -> Reply:
    """Read the whole reply to *request*, and show its deltas as previews.

    Raises ProviderError. On cancellation the stream is closed, and what was read stays in
    *builder*.
    """
    stream = provider.stream(request, tag)
    try:
        events = 0
        async for event in stream:
            events += 1
            if events % REST_EVENTS == 0:
                await checkpoint()
            builder.feed(event)
            if isinstance(event, BlockDelta):
                preview = _PREVIEWS.get(event.kind)
                if preview is not None:
                    show(preview(tag.turn, tag.step, tag.attempt, event.index, event.text))
            elif builder.ended:
                break
    finally:
        # An error in closing changes neither the reply nor the error that was raised.
        with anyio.move_on_after(CLOSE_S, shield=True), suppress(Exception):
            await stream.aclose()
    return builder.reply()


def previews_so_far(builder: ReplyBuilder, tag: StepTag) -> tuple[Preview, ...]:
    """The text of a step so far, for a subscriber that joins in mid-stream."""
    return tuple(
        _PREVIEWS[kind](tag.turn, tag.step, tag.attempt, index, text)
        for index, kind, _, text in builder.so_far()
    )
