"""A subscription at a service, read like an embedded one.

It survives a lost connection: it goes on after the last event it got, and repeats none. When its
reader is slow it unsubscribes, and goes on from the log once there is room again.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""So much may wait for the reader here; the rest is in the log of the service."""
RESUME_RECORDS = 64

_previews: msgspec.json.Decoder[Preview] = msgspec.json.Decoder(Preview)
_restarts = msgspec.json.Decoder(StepRestarted)
_RESTARTED = StepRestarted.__struct_config__.tag
_uses = msgspec.json.Decoder(ToolUse)


class RemoteSubscription(Subscription):
    """As ``Subscription``. *known* is a seq of the session that its client has heard of: where no
    cursor is given, it begins there or later."""

    def __init__(
        self, link: Requester, session: str, *, after: int | None, turn: int | None, known: int
    ) -> None:
        begin = known if after is None else after
        super().__init__(
            Subscriptions(), session, after=begin, head=begin, turn=turn, open_calls=self._calls
        )
        self._link = link
        self._after = after
        self._known = known
        self._received: int | None = None
        """The last durable event that came; None before the service said where it begins."""
        self._offered: Sequence[ToolUse] = ()
        self._step: tuple[int, int, int] | None = None
        self._shown: dict[tuple[int, Any], int] = {}
        """How much of each block of that step came, in characters."""
        self._unread_bytes = 0
        self._paused = False
        self._link_ended = False
        self._error: SessionError | None = None
        self._id = link.new_id()
        link.subscribe(self._id, self)

    def _calls(self) -> Sequence[ToolUse]:
        return self._offered

    # Called by the link.

    def subscribe_again(self, id: int) -> w.Subscribe:
        """The command that goes on where the events stopped."""
        after = self._after if self._received is None else self._received
        if after is None and self._turn is None and self._link.reconnects:
            after = self._known  # when it began is not known any more, but it was after this
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
                return  # of a newer service: a kind that is not known here
            # The kind is known, and it may be the one that ends a turn: nobody may miss it.
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
            self._step = None  # its text begins anew, with the attempt that it had
            self._offered = [_uses.decode(call) for call in event.calls]
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
        """No more events come; what is buffered is still read."""
        self._link_ended = True
        super().end(moved=moved)

    def fail(self, error: SessionError) -> None:
        """No more events come, because of *error*, which its reader meets after them."""
        self._error = error
        self.end()

    # Called by the reader.

    def __aiter__(self) -> RemoteSubscription:
        return self

    async def __anext__(self) -> Event:
        """As embedded. Raises what ended it: SessionError, TransportError among them."""
        if self._paused and not self._link_ended and self._durable <= RESUME_RECORDS:
            self._paused = False
            self._id = self._link.new_id()  # what is on its way under the old one is dropped
            self._link.subscribe(self._id, self)
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            if self._error is None:
                raise
            error, self._error = self._error, None
            raise error from None

    def close(self) -> None:
        """Stop listening. Nothing is interrupted by it."""
        self._link.unsubscribe(self._id)
        super().close()
