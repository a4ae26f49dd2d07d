"""A subscription at a service, with the interface of an embedded one.

It survives a lost connection: it continues after the last event that it received and repeats none.
If its reader is slow, it unsubscribes, and continues from the log once there is room again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmsession.errors import ProtocolError, SessionError
from llmsession.session import Event, Subscription
from llmsession.session.core.subscriptions import Subscriptions
from llmsession.turns import Preview, StepRestarted, ToolUse
from llmsession.turns.records import decode_record, unknown_kind

from ..wire import messages as w
from .link import Requester

__all__ = ["RemoteSubscription"]

PAUSE_RECORDS = 512
PAUSE_BYTES = 8 * 1024 * 1024
"""How much may wait here for the reader. The rest stays in the log of the service."""
RESUME_RECORDS = 64

_previews: msgspec.json.Decoder[Preview] = msgspec.json.Decoder(Preview)
_restarts = msgspec.json.Decoder(StepRestarted)
_RESTARTED = StepRestarted.__struct_config__.tag
_uses = msgspec.json.Decoder(ToolUse)


class RemoteSubscription(Subscription):
    """See ``Subscription``. *known* is a seq of the session that the client has already heard of.
    Without a cursor the subscription begins there or later."""

    def __init__(
        self, link: Requester, session: str, *, after: int | None, turn: int | None, known: int
    ) -> None:
        begin = known if after is None else after
        offered: list[ToolUse] = []
        super().__init__(
            Subscriptions(),
            session,
            after=begin,
            head=begin,
            turn=turn,
            # Not a method: then one that its reader drops is gone at once, and can be unsubscribed.
            open_calls=lambda: offered,
        )
        self._link = link
        self._after = after
        self._known = known
        self._received: int | None = None
        """The seq of the last received durable event; None until the service has confirmed the
        start."""
        self._offered = offered
        self._step: tuple[int, int, int] | None = None
        self._shown: dict[tuple[int, Any], int] = {}
        """How many characters of each block of that step have been received."""
        self._unread_bytes = 0
        self._paused = False
        self._link_ended = False
        self._error: SessionError | None = None
        self._id = link.new_id()
        link.subscribe(self._id, self)

    # Called by the link. See ``EventSink``.

    def subscribe_again(self, id: int) -> w.Subscribe:
        """The command that goes on where the events stopped."""
        after = self._after if self._received is None else self._received
        if after is None and self._turn is None and self._link.reconnects:
            # The confirmed start was lost with the connection, but it was not before this seq.
            after = self._known
        return w.Subscribe(id=id, session=self._session, after=after, turn=self._turn)

    def begun(self, cursor: int) -> None:
        """It was subscribed to what comes after *cursor*."""
        if self._received is None:
            self._received = self._cursor = self._begun_after = cursor

    def event(self, event: w.Event) -> None:
        """The next event."""
        try:
            if event.seq:
                self._record(event)
            elif event.kind == _RESTARTED:
                self._step = None
                self.offer_restart(_restarts.decode(event.body))
            else:
                self._preview(event)
        except msgspec.MsgspecError as error:
            if not event.seq or unknown_kind(bytes(event.body)) is not None:
                return  # an event of a newer service, of a kind that is unknown here
            # The kind is known, so the event may be the one that ends a turn. It must not be
            # skipped, or a reader could wait for ever.
            self._link.unsubscribe(self._id)
            message = (
                f"event {event.seq} of session {self._session!r} is a {event.kind} that this client"
                f" cannot read ({error}). Is the service newer? Then upgrade llmsession here"
            )
            self.fail(ProtocolError(message))

    def _record(self, event: w.Event) -> None:
        self._received = event.seq
        record = decode_record(bytes(event.body))
        if event.kind == "turn.resumed":
            self._step = None  # the step starts its text again, with the same attempt number
            self._offered[:] = [_uses.decode(call) for call in event.calls]
        self.offer_record(record)
        self._unread_bytes = len(event.body) + (self._unread_bytes if self._durable > 1 else 0)
        if self._durable >= PAUSE_RECORDS or self._unread_bytes > PAUSE_BYTES:
            self._paused = True
            self._link.unsubscribe(self._id)

    def _preview(self, event: w.Event) -> None:
        preview = _previews.decode(event.body)
        step = (preview.turn, preview.step, preview.attempt)
        if step != self._step:
            self._step = step
            self._shown.clear()
        block = (preview.index, type(preview))
        shown_end, end = self._shown.get(block, 0), event.offset + len(preview.text)
        if end <= shown_end:
            return
        self._shown[block] = end
        if event.offset < shown_end:
            preview = msgspec.structs.replace(
                preview, text=preview.text[shown_end - event.offset :]
            )
        self.offer_preview(preview)

    def end(self, *, moved: bool = False) -> None:
        """No more events will come. Buffered events can still be read."""
        self._link_ended = True
        super().end(moved=moved)

    def fail(self, error: SessionError) -> None:
        """No more events will come. The reader gets *error* after the buffered events."""
        self._error = error
        self.end()

    # Called by the reader.

    def __aiter__(self) -> RemoteSubscription:
        return self

    async def __anext__(self) -> Event:
        """The next event. Raises the error that ended the subscription: a SessionError, for example
        a TransportError."""
        if self._paused and not self._link_ended and self._durable <= RESUME_RECORDS:
            self._paused = False
            self._id = self._link.new_id()  # events that are still on their way have the old id
            self._link.subscribe(self._id, self)
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            if self._error is None:
                raise
            error, self._error = self._error, None
            raise error from None

    def close(self) -> None:
        """Stop listening. Interrupts nothing."""
        self._link.unsubscribe(self._id)
        super().close()
