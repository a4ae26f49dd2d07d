"""The send buffer of one connection. Its size is bounded, even if the client does not read.

What happens when it is full depends on the kind of frame:

- An answer is always accepted. The open commands bound the number of answers, and no further
  commands are read while much waits. Queries, whose answers may be large, wait for room before they
  are carried out, and so do the outcomes of turns before they are encoded.
- A preview is merged with the waiting preview of the same block. If it still does not fit, it is
  lost: the durable record will contain its text.
- A durable event must not be lost. If it does not fit, its subscription ends, and the client gets
  the cursor after which it can subscribe again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from llmsession.turns import Preview, StepRestarted

from ..wire import messages as w
from ..wire.framing import encode, encode_preview

__all__ = ["Outbox"]


READERS = 4
"""How many subscriptions of one connection read the log at the same time. These are enough to keep
the connection busy. Each holds a page of the log in memory, even while the client does not read."""


class _Place:
    """The state of one subscription in the outbox."""

    __slots__ = ("bytes", "ended", "last", "sent", "subscription", "waiting")

    def __init__(self, subscription: int, cursor: int) -> None:
        self.subscription = subscription
        self.sent = cursor
        """The seq of the last durable event that was taken to be sent."""
        self.last: _Pieces | None = None
        """The waiting previews that the next preview may be merged into."""
        self.waiting = self.bytes = 0
        self.ended = False


class _Frame:
    """A durable event that waits to be sent, and its subscription."""

    __slots__ = ("frame", "place", "seq")

    def __init__(self, place: _Place, seq: int, frame: bytes) -> None:
        self.place = place
        self.seq = seq
        self.frame = frame

    @property
    def size(self) -> int:
        return len(self.frame)


class _Pieces:
    """Waiting previews of one block. They are joined when they are sent."""

    __slots__ = ("first", "offset", "place", "session", "size", "texts")

    def __init__(self, place: _Place, session: str, first: Preview, offset: int) -> None:
        self.place = place
        self.session = session
        self.first = first
        self.offset = offset
        self.texts = [first.text]
        self.size = len(first.text)
        """The length of the texts in characters."""

    def continues_with(self, preview: Preview, offset: int) -> bool:
        first = self.first
        return (
            offset == self.offset + self.size
            and type(first) is type(preview)
            and first.index == preview.index
            and first.attempt == preview.attempt
            and first.step == preview.step
            and first.turn == preview.turn
        )

    def frame(self) -> bytes:
        preview = self.first
        if len(self.texts) > 1:
            preview = msgspec.structs.replace(preview, text="".join(self.texts))
        return encode_preview(self.place.subscription, self.session, preview, self.offset)


class Outbox:
    """The frames that wait to be sent. ``wake`` is called when a frame is added and the transport
    was not woken since the outbox was last empty. Every method takes constant time, ``end`` an
    amortised constant time."""

    def __init__(self, limit_bytes: int, wake: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._room_bytes = limit_bytes // 4
        self._wake = wake
        self._items: deque[bytes | _Frame | _Pieces] = deque()
        """Waiting items in their order. Those of ended subscriptions are skipped when taken."""
        self._waiting = 0
        """The number of items that will not be skipped."""
        self._skipped_bytes = 0
        self._places: dict[int, _Place] = {}
        self._woken = False
        self._room_event: asyncio.Event | None = None
        self.reading = asyncio.Semaphore(READERS)
        """Acquired by a subscription while it holds a page of the log."""
        self.bytes = 0
        """The size of what waits. Previews count their characters."""
        self.previews_lost = 0

    def __len__(self) -> int:
        return self._waiting

    def begin(self, subscription: int, cursor: int) -> None:
        """Add *subscription*, whose client has every event up to *cursor*."""
        self._places[subscription] = _Place(subscription, cursor)

    def put(self, frame: bytes) -> None:
        """Add an answer or another frame that must be delivered."""
        self._append(frame, len(frame))

    def offer(self, subscription: int, seq: int, frame: bytes) -> bool:
        """Add a durable event. Returns false, and adds nothing, if it does not fit."""
        if self._waiting and self.bytes + len(frame) > self._limit_bytes:
            return False
        place = self._place(subscription)
        place.last = None
        self._append(_Frame(place, seq, frame), len(frame), place)
        return True

    def offer_preview(self, subscription: int, session: str, preview: Preview, offset: int) -> None:
        """Add a preview if it fits. Half of the buffer is reserved for durable events: previews may
        be lost, events may not."""
        chars = len(preview.text)
        if self.bytes + chars > self._limit_bytes // 2:
            self.previews_lost += 1
            return
        place = self._place(subscription)
        last = place.last
        if last is not None and last.continues_with(preview, offset):
            last.texts.append(preview.text)
            last.size += chars
            place.bytes += chars
            self.bytes += chars
            return
        place.last = _Pieces(place, session, preview, offset)
        self._append(place.last, chars, place)

    def offer_restart(self, subscription: int, session: str, restart: StepRestarted) -> None:
        """Add the notice that earlier previews of a step are void. It is always accepted, because a
        turn has few of them."""
        self._place(subscription).last = None
        event = w.Event(
            subscription=subscription,
            session=session,
            kind="step.restarted",
            body=msgspec.Raw(msgspec.json.encode(restart)),
            turn=restart.turn,
        )
        self.put(encode(event))

    def _place(self, subscription: int) -> _Place:
        place = self._places.get(subscription)
        if place is None:
            place = self._places[subscription] = _Place(subscription, 0)
        return place

    def _append(
        self, item: bytes | _Frame | _Pieces, size: int, place: _Place | None = None
    ) -> None:
        if place is not None:
            place.waiting += 1
            place.bytes += size
        self.bytes += size
        self._waiting += 1
        self._items.append(item)
        if not self._woken:
            self._woken = True
            self._wake()

    def end(self, subscription: int) -> int:
        """Remove *subscription* and what waits for it. Returns the cursor of what was sent."""
        place = self._places.pop(subscription, None)
        if place is None:
            return 0
        place.ended = True
        if place.waiting:
            self._waiting -= place.waiting
            self.bytes -= place.bytes
            self._skipped_bytes += place.bytes
            self._woken = self._woken and bool(self._waiting)
            self._drop_skipped()
            self._tell_room()
        return place.sent

    def finish(self, subscription: int) -> None:
        """Forget *subscription*: nothing more is offered for it. What waits for it is still
        sent."""
        self._places.pop(subscription, None)

    def _drop_skipped(self) -> None:
        """Remove skipped items, but only once they are the larger part. Each item is then moved a
        bounded number of times on average."""
        if len(self._items) > 2 * self._waiting or self._skipped_bytes > self._limit_bytes // 4:
            self._items = deque(item for item in self._items if not _is_skipped(item))
            self._skipped_bytes = 0

    def take(self) -> bytes | None:
        """The next frame to send, or None if nothing waits."""
        frames = self.take_batch(0)
        return frames[0] if frames else None

    def take_batch(self, max_bytes: int) -> list[bytes]:
        """The next frames to send: everything that waits, but no further frame once *max_bytes* is
        exceeded."""
        frames, size = list[bytes](), 0
        while self._waiting and size <= max_bytes:
            frame = self._next()
            frames.append(frame)
            size += len(frame)
        self._woken = bool(self._waiting)
        self._tell_room()
        return frames

    def _next(self) -> bytes:
        """Take the next frame. At least one must be waiting."""
        item = self._items.popleft()
        while not isinstance(item, bytes):
            if not item.place.ended:
                return self._taken(item)
            item = self._items.popleft()
        self._waiting -= 1
        self.bytes -= len(item)
        return item

    def _taken(self, item: _Frame | _Pieces) -> bytes:
        """The frame of *item*, which waits no more."""
        place, size = item.place, item.size
        self._waiting -= 1
        self.bytes -= size
        place.waiting -= 1
        place.bytes -= size
        if isinstance(item, _Frame):
            place.sent = item.seq
            return item.frame
        if place.last is item:
            place.last = None
        return item.frame()

    def _tell_room(self) -> None:
        if self._room_event is not None and self.has_room:
            self._room_event.set()
            self._room_event = None

    @property
    def has_room(self) -> bool:
        """Whether at most a quarter of the limit is waiting. This is far below the limit, so that a
        slow client is not stopped and started for every frame."""
        return self.bytes <= self._room_bytes

    async def wait_for_room(self, size_bytes: int = 0) -> None:
        """Wait until ``has_room``, and until *size_bytes* fit or nothing waits. Can be
        cancelled."""
        while not self.has_room or (self._waiting and self.bytes + size_bytes > self._limit_bytes):
            if self._room_event is None:
                self._room_event = asyncio.Event()
            await self._room_event.wait()

    def clear(self) -> None:
        """Remove everything, and wake those who wait for room: the client is gone. Its transport is
        woken no more, and forgotten, because it refers to this.
        """
        self._wake = _nothing
        self._items.clear()
        self._places.clear()
        self._waiting = self.bytes = self._skipped_bytes = 0
        self._tell_room()


def _is_skipped(item: bytes | _Frame | _Pieces) -> bool:
    return not isinstance(item, bytes) and item.place.ended


def _nothing() -> None:
    """Nobody is woken."""
