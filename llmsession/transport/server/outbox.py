"""The send buffer of one connection: bounded in bytes, even if its client does not read.

Answers are always taken. Their number is bounded by the open commands, and no new commands are read
while much waits. Previews are merged with waiting ones of their block, then lost. A durable event
that does not fit ends its subscription, and the client gets its cursor.
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
"""Subscriptions of one connection that read the log at the same time. So many keep the connection
busy. Each holds a page of the log in memory, also while the client does not read."""


class _Frame:
    """A durable event that waits, and its subscription."""

    __slots__ = ("frame", "seq", "subscription")

    def __init__(self, subscription: int, seq: int, frame: bytes) -> None:
        self.subscription = subscription
        self.seq = seq
        self.frame = frame


class _Pieces:
    """Previews of one block that wait, joined when they are sent."""

    __slots__ = ("chars", "first", "offset", "session", "subscription", "texts")

    def __init__(self, subscription: int, session: str, first: Preview, offset: int) -> None:
        self.subscription = subscription
        self.session = session
        self.first = first
        self.offset = offset
        self.texts = [first.text]
        self.chars = len(first.text)

    def continues_with(self, preview: Preview, offset: int) -> bool:
        first = self.first
        return (
            offset == self.offset + self.chars
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
        return encode_preview(self.subscription, self.session, preview, self.offset)


class Outbox:
    """``wake`` is called when frames wait and nobody was woken for them."""

    def __init__(self, limit_bytes: int, wake: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._wake = wake
        self._items: deque[bytes | _Frame | _Pieces] = deque()
        self._last_pieces: dict[int, _Pieces] = {}
        """By subscription: where its next preview may be added."""
        self._sent: dict[int, int] = {}
        """By subscription: the seq of its last durable event that was sent."""
        self._woken = False
        self._room_event: asyncio.Event | None = None
        self.reading = asyncio.Semaphore(READERS)
        """Held by a subscription while it has a page of the log."""
        self.bytes = 0
        """What waits; previews count their characters."""
        self.previews_lost = 0

    def __len__(self) -> int:
        return len(self._items)

    def begin(self, subscription: int, cursor: int) -> None:
        """*subscription* has everything up to *cursor*."""
        self._sent[subscription] = cursor

    def put(self, frame: bytes) -> None:
        """An answer, or anything else that has to arrive."""
        self.bytes += len(frame)
        self._items.append(frame)
        self._wake_once()

    def offer(self, subscription: int, seq: int, frame: bytes) -> bool:
        """A durable event; False where it does not fit."""
        if self._items and self.bytes + len(frame) > self._limit_bytes:
            return False
        self._last_pieces.pop(subscription, None)
        self.bytes += len(frame)
        self._items.append(_Frame(subscription, seq, frame))
        self._wake_once()
        return True

    def offer_preview(self, subscription: int, session: str, preview: Preview, offset: int) -> None:
        """A preview, which may be lost: half of the room is reserved for durable events."""
        chars = len(preview.text)
        if self.bytes + chars > self._limit_bytes // 2:
            self.previews_lost += 1
            return
        self.bytes += chars
        last = self._last_pieces.get(subscription)
        if last is not None and last.continues_with(preview, offset):
            last.texts.append(preview.text)
            last.chars += chars
            return
        pieces = _Pieces(subscription, session, preview, offset)
        self._last_pieces[subscription] = pieces
        self._items.append(pieces)
        self._wake_once()

    def offer_restart(self, subscription: int, session: str, restart: StepRestarted) -> None:
        """The news that previews are void. It is always taken: a turn has few of them."""
        self._last_pieces.pop(subscription, None)
        event = w.Event(
            subscription=subscription,
            session=session,
            kind="step.restarted",
            body=msgspec.Raw(msgspec.json.encode(restart)),
            turn=restart.turn,
        )
        self.put(encode(event))

    def end(self, subscription: int) -> int:
        """Forget what waits for *subscription*; returns the cursor of what was sent."""
        if self._last_pieces.pop(subscription, None) or any(
            not isinstance(item, bytes) and item.subscription == subscription
            for item in self._items
        ):
            remaining: deque[bytes | _Frame | _Pieces] = deque()
            for item in self._items:
                if isinstance(item, bytes) or item.subscription != subscription:
                    remaining.append(item)
                else:
                    self.bytes -= _size(item)
            self._items = remaining
        return self._sent.pop(subscription, 0)

    def take(self) -> bytes | None:
        """The next frame to send, or None."""
        if not self._items:
            return None
        item = self._items.popleft()
        self._woken = bool(self._items)
        self.bytes -= _size(item)
        if self._room_event is not None and self.has_room:
            self._room_event.set()
            self._room_event = None
        if isinstance(item, bytes):
            return item
        if isinstance(item, _Frame):
            self._sent[item.subscription] = item.seq
            return item.frame
        if self._last_pieces.get(item.subscription) is item:
            del self._last_pieces[item.subscription]
        return item.frame()

    @property
    def has_room(self) -> bool:
        """Is less than a quarter of the limit waiting?"""
        return self.bytes <= self._limit_bytes // 4

    async def wait_for_room(self, size_bytes: int = 0) -> None:
        """Until ``has_room``, and *size_bytes* fit or nothing waits. Cancellable."""
        while not self.has_room or (self._items and self.bytes + size_bytes > self._limit_bytes):
            if self._room_event is None:
                self._room_event = asyncio.Event()
            await self._room_event.wait()

    def clear(self) -> None:
        """Drop everything, and wake whoever waits: nobody will read it."""
        self._items.clear()
        self._last_pieces.clear()
        self.bytes = 0
        if self._room_event is not None:
            self._room_event.set()
            self._room_event = None

    def _wake_once(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()


def _size(item: bytes | _Frame | _Pieces) -> int:
    if isinstance(item, bytes):
        return len(item)
    return len(item.frame) if isinstance(item, _Frame) else item.chars
