"""Reads one reply: events go into the builder, and deltas go to the subscribers as previews."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial

import anyio
from anyio.lowlevel import checkpoint

from llmsession.errors import ProviderError, contained, contained_in_task, error_text
from llmsession.providers.protocol import Provider
from llmsession.providers.reading import ClosedLater, ReplyStream, closed_later
from llmsession.turns.previews import Preview, TextDelta, ThinkingDelta, ToolInputDelta
from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import BlockDelta, StreamEvent, checked_event

from ..tasks.owner_lease import OwnerLease

__all__ = ["checked_failure", "previews_so_far", "read_reply"]

CLOSE_S = 1.0
"""How many seconds a provider's stream may take to close, also after a cancellation."""
REST_EVENTS = 256
"""After this many events without a wait, other tasks run. One of them may interrupt the turn."""

MAX_DELAY_S = 86_400.0
"""The longest delay before a retry that a provider may ask for: a day."""

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
    lease: OwnerLease,
    closing: ClosedLater | None = None,
) -> Reply:
    """Read the whole reply to *request*, and show its deltas as previews. The request waits until
    *lease* is valid.

    Raises ProviderError. On an error or a cancellation what was read stays in *builder*, and the
    stream is closed, after an interrupt by *closing*.
    """
    if not lease.is_valid:
        await lease.wait()
    closed_later.set(closing)
    stream = provider.stream(request, tag)
    failure: BaseException | None = None

    def grow(delta: BlockDelta) -> None:
        builder.feed(delta)
        preview = _PREVIEWS.get(delta.kind)
        if preview is not None:
            show(preview(tag.turn, tag.step, tag.attempt, delta.index, delta.text))

    def accept(event: StreamEvent) -> bool:
        """Read *event* without this task, if it is a delta."""
        nonlocal failure
        if event.__class__ is not BlockDelta:
            return False
        try:
            grow(event)
        except BaseException as error:
            failure = error
        return failure is None

    # Only our own stream does that. What somebody has put around it is to see every event.
    if isinstance(stream, ReplyStream):
        stream.push_to(accept)
    try:
        events = 0
        async for event in stream:
            if failure is not None:
                raise failure
            events += 1
            if events % REST_EVENTS == 0:
                await checkpoint()
            event = checked_event(event)
            if isinstance(event, BlockDelta):
                grow(event)
                continue
            builder.feed(event)
            if builder.ended:
                break
    except BaseException:
        failure = None  # its traceback has this frame: see contained_in_task
        if closing is None or not closing.take(partial(_close, stream)):
            await _close(stream)
        raise
    await _close(stream)  # now, because the next request can use its connection again
    return builder.reply()


async def _close(stream: AsyncGenerator[StreamEvent, None]) -> None:
    """Close *stream*. An error in that changes neither the reply nor the error that was raised."""
    with anyio.move_on_after(CLOSE_S, shield=True):
        try:
            await stream.aclose()
        except BaseException as error:
            contained_in_task(error)


def checked_failure(error: ProviderError) -> ProviderError:
    """*error*, if its fields are valid; else a fatal ProviderError that describes it.

    A provider may be foreign code and can have put anything into the error.
    """
    try:
        text, delay_s = str(error), error.delay_s
        is_right = (
            text.__class__ is str
            and error.kind in ("retryable", "overflow", "fatal")
            and (delay_s.__class__ is float or delay_s.__class__ is int)
            and 0 <= delay_s <= MAX_DELAY_S
            and error.retried.__class__ is bool
        )
    except BaseException as raised:
        contained(raised)
        is_right = False
    if is_right:
        return error
    return ProviderError(f"the provider raised {error_text(error)}", kind="fatal")


def previews_so_far(builder: ReplyBuilder, tag: StepTag) -> tuple[Preview, ...]:
    """The text of a step so far, for a subscriber that joins in the middle of the reply."""
    return tuple(
        _PREVIEWS[kind](tag.turn, tag.step, tag.attempt, index, text)
        for index, kind, _, text in builder.so_far()
    )
