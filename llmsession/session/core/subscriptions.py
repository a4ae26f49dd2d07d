"""Subscribers: durable records in order, and previews as far as the subscriber keeps up.

Publishing never waits, so that a slow subscriber cannot delay a session. Each subscriber has a
bounded buffer. Previews are merged first, then lost. If durable records would overflow the buffer,
the subscriber gets ``Lagged`` with its cursor and is removed. It can read the records from the
store.

A preview is not put into each buffer. It is added to one linked list, in which each subscription
has a position, and the tasks that wait are woken together. What a subscription has not read moves
into its buffer before the next record, or when the list has grown by ``MAX_LIST_CHARS``.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias, TypeGuard

import msgspec

from llmsession.turns.previews import (
    Preview,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    ToolUse,
)
from llmsession.turns.records import (
    Record,
    StepCompleted,
    ToolsRequested,
    TurnImported,
    TurnResumed,
    is_terminal,
    turn_of,
)

from ..log.open_calls import tool_uses
from ..tasks.wait_queue import WaitQueue

__all__ = ["Event", "EventSink", "Lagged", "Subscription", "Subscriptions"]


class Lagged(msgspec.Struct, frozen=True, tag="lagged", tag_field="kind"):
    """The subscriber fell behind. It got everything up to ``cursor``: subscribe again after it."""

    cursor: int


Event: TypeAlias = Record | Preview | StepRestarted | ToolUse | Lagged
"""Everything that a subscription returns: durable records, previews, and ``Lagged``."""
Replay: TypeAlias = Callable[[int, int], Awaitable[Sequence[Record]]]
"""Called with (after, up to). Returns the next durable records in between, oldest first."""

MAX_DURABLE = 1024
"""How many durable records one subscriber may be behind: a few hundred turns."""
MAX_PREVIEW_CHARS = 256 * 1024
"""How many characters of previews one subscriber may be behind: more than a long reply."""
MAX_LIST_CHARS = 16 * 1024
"""How many characters of previews the linked list may have in addition to the buffers."""
NODE_CHARS = 256
"""A preview in the list counts as so many characters more, for its structs."""

_PREVIEWS = (TextDelta, ThinkingDelta, ToolInputDelta)
_NOTHING = TextDelta(0, 0, 0, 0, "")


class EventSink(Protocol):
    """A receiver of published events.

    Its methods are called in the event loop's thread and must not wait. ``Subscriptions`` holds it
    weakly.
    """

    def offer_record(self, record: Record) -> None:
        """Accept the next durable record."""

    def offer_preview(self, preview: Preview) -> None:
        """Accept a piece of a streaming reply. It may be merged with others or dropped."""

    def offer_restart(self, restart: StepRestarted) -> None:
        """The previews of a step are void. This must not be dropped."""

    def lag(self) -> None:
        """Records may be missing from here on. Nothing follows."""

    def end(self, *, moved: bool = False) -> None:
        """The session is closed or moved. Nothing follows. *moved*: another owner has it, or may
        take it, and publishes what follows."""


class _Merged:
    """Two and more consecutive previews of one block. They are joined when they are read."""

    __slots__ = ("chars", "first", "pieces")

    def __init__(self, first: Preview, second: Preview) -> None:
        self.first = first
        self.pieces = [first.text, second.text]
        self.chars = len(first.text) + len(second.text)

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self.chars += len(text)

    def preview(self) -> Preview:
        return msgspec.structs.replace(self.first, text="".join(self.pieces))


def _is_continued(last: object, preview: Preview) -> TypeGuard[Preview]:
    """Is *last*, a preview or another event, of the block that *preview* has more of?"""
    return (
        type(last) is type(preview)
        and last.index == preview.index
        and last.attempt == preview.attempt
        and last.step == preview.step
        and last.turn == preview.turn
    )


class _Node(msgspec.Struct):
    """A preview in the linked list, and the node after it."""

    preview: Preview
    next: _Node | None = None


class Subscription:
    """A subscriber's position in a session's events. Iterate it, and close it when you are done.

    Durable records come in order, each once, from the cursor on. Between them come previews, and
    ``StepRestarted`` if earlier previews are void. ``ToolUse`` events follow the
    ``tools.requested`` record that holds the calls. If a resumed turn still has open calls from
    before the cursor, they follow its ``turn.resumed``.

    The iteration ends when the session is closed or moved, after ``Lagged``, or, for the
    subscription of one turn, after the turn's terminal event.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        session: str,
        *,
        after: int,
        head: int,
        turn: int | None = None,
        replay: Replay | None = None,
        open_calls: Callable[[], Sequence[ToolUse]] = tuple,
    ) -> None:
        self._subscriptions = subscriptions
        self._session = session
        self._turn = turn
        self._cursor = self._begun_after = after
        self._live_from = head
        self._replay = replay if after < head else None
        self._open_calls = open_calls
        # Lists instead of deques, as in the mailbox: they are bounded and mostly empty.
        self._backlog: list[Record] = []
        self._expanded: list[StepRestarted | ToolUse] = []
        self._buffer: list[Record | StepRestarted | Preview | _Merged] = []
        self._durable = 0
        self._preview_chars = 0
        self._previewed: Preview | None = None
        """The newest preview that was read of a step that is not closed."""
        self._waiter: Awaitable[None] | None = None
        """What a task awaits that has to wait."""
        self._waiting = 0
        """How many tasks wait. If there is more than one, each event goes to one of them."""
        self._lagged = False
        self._ended = False
        self._keeps_up = False
        """Can only the linked list have more to read? The buffer is empty, no page of the log is
        missing, and this is not the end.
        """
        self.moved = False
        """Did it end because another owner serves the session, or may take it?"""
        self._previews_lost = 0
        self._node = _Node(_NOTHING)
        """The last node of the linked list that was read or is in the buffer."""
        self._subscribers = subscriptions.add(session, self, head)
        self._node = self._subscribers.last_node

    @property
    def cursor(self) -> int:
        """The seq of the last durable record that was read with all its ``ToolUse`` events.

        A subscriber that subscribes again after it misses nothing.
        """
        return self._cursor - 1 if self._expanded else self._cursor

    @property
    def buffered(self) -> tuple[int, int]:
        """How many durable records and how many preview characters wait to be read."""
        self.take_previews()
        return self._durable, self._preview_chars

    @property
    def previews_lost(self) -> int:
        """How many previews were lost because the buffer was full."""
        self.take_previews()
        return self._previews_lost

    def offer_record(self, record: Record) -> None:
        """Buffer the next durable record. If the buffer is full, ``lag``."""
        if self._turn is not None and turn_of(record) != self._turn:
            return
        self.take_previews()
        if self._durable >= MAX_DURABLE:
            self.lag()
        else:
            self._buffer.append(record)
            self._durable += 1
            self._notify()

    def lag(self) -> None:
        """Drop the buffer. The next event is ``Lagged``; the records can be read from the store."""
        self._buffer.clear()
        self._durable = self._preview_chars = 0
        self._lagged = True
        self._leave()
        self._notify()

    def _leave(self) -> None:
        """Get no more events. The position is given up, too, because it would keep whatever the
        list gets.
        """
        self._subscriptions.remove(self._session, self)
        self._node = _Node(_NOTHING)

    def offer_preview(self, preview: Preview) -> None:
        """Buffer a preview, merged with the one before it. If it does not fit, count it as lost."""
        self.take_previews()
        self._buffer_preview(preview)
        self._notify()

    def take_previews(self) -> None:
        """Buffer what the linked list has for this subscription."""
        while (node := self._node.next) is not None:
            self._node = node
            self._buffer_preview(node.preview)

    def _buffer_preview(self, preview: Preview) -> None:
        if self._turn is not None and preview.turn != self._turn:
            return
        self._keeps_up = False
        size = len(preview.text)
        if self._preview_chars + size > MAX_PREVIEW_CHARS:
            self._previews_lost += 1
            return
        self._preview_chars += size
        if self._buffer:
            last = self._buffer[-1]
            if isinstance(last, _Merged) and _is_continued(last.first, preview):
                last.add(preview.text)
                return
            if _is_continued(last, preview):
                self._buffer[-1] = _Merged(last, preview)
                return
        self._buffer.append(preview)

    def offer_restart(self, restart: StepRestarted) -> None:
        """Buffer *restart* instead of the previews that it makes void."""
        if self._turn is not None and restart.turn != self._turn:
            return
        self.take_previews()
        # Everything buffered since the newest record belongs to this step.
        while self._buffer and isinstance(self._buffer[-1], (_Merged, StepRestarted, *_PREVIEWS)):
            last = self._buffer.pop()
            if isinstance(last, _Merged):
                self._preview_chars -= last.chars
            elif isinstance(last, _PREVIEWS):
                self._preview_chars -= len(last.text)
        self._buffer.append(restart)
        self._notify()

    def end(self, *, moved: bool = False) -> None:
        """No more events will come. The buffer can still be read."""
        self.take_previews()
        self._ended, self.moved = True, moved
        self._notify()

    def close(self) -> None:
        """Stop receiving events. This does not interrupt any turn."""
        self._leave()
        self._buffer.clear()
        self._backlog.clear()
        self._expanded.clear()
        self._replay, self._lagged = None, False
        self.end()

    def _notify(self) -> None:
        self._keeps_up = False
        if self._waiting:
            self._subscribers.wait_queue.wake_all()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        """The next event. Cancellable; a cancelled wait loses no event."""
        while True:
            if not self._keeps_up:
                self.take_previews()
                if self._buffer or self._backlog or self._expanded:
                    event = self._next_nowait()
                    if event is not None:
                        return event
                if self._replay is not None:
                    after = self._cursor
                    page = await self._replay(after, self._live_from)
                    if self._replay is None or self._backlog or self._cursor != after:
                        continue  # it was closed meanwhile, or another task brought the page
                    self._backlog.extend(page)
                    if not page or page[-1].seq >= self._live_from:
                        self._replay = None
                    continue
                if self._lagged:
                    self._lagged, self._ended = False, True
                    return Lagged(self._cursor)
                if self._ended:
                    raise StopAsyncIteration
                self._keeps_up = True
            node = self._node.next
            if node is None:
                waiter = self._waiter
                if waiter is None or self._waiting:  # another task waits, with the usual waiter
                    waiter = self._waiter = self._subscribers.wait_queue.waiter()
                self._waiting += 1
                try:
                    await waiter
                finally:
                    self._waiting -= 1
                continue
            preview = node.preview
            if (
                node.next is None
                and (self._turn is None or self._turn == preview.turn)
                and (self._previewed is None or self._previewed.attempt == preview.attempt)
            ):
                self._node = node
                self._previewed = preview
                return preview
            self.take_previews()

    def _next_nowait(self) -> Event | None:
        while True:
            if self._expanded:
                return self._expanded.pop(0)
            if self._backlog:
                read = self._read(self._backlog.pop(0))
            elif self._buffer and self._replay is None:
                item = self._buffer[0]
                if isinstance(item, _PREVIEWS):
                    return self._read_preview(item, item)
                if isinstance(item, _Merged):
                    return self._read_preview(item.first, item.preview())
                self._buffer.pop(0)
                if isinstance(item, StepRestarted):
                    self._previewed = None
                    return item
                self._durable -= 1
                read = self._read(item)
            else:
                return None
            if read is not None:
                return read

    def _read_preview(self, first: Preview, preview: Preview) -> Preview | StepRestarted:
        """Read *preview*, which begins with *first*."""
        before = self._previewed
        if (
            before is not None
            and before.attempt != first.attempt
            and (before.turn, before.step) == (first.turn, first.step)
        ):  # the restart itself was lost with a connection, so report it here
            self._previewed = None
            return StepRestarted(first.turn, first.step, first.attempt)
        del self._buffer[0]
        self._preview_chars -= len(preview.text)
        self._previewed = first
        return preview

    def _read(self, record: Record) -> Record | None:
        self._cursor = record.seq
        if self._turn is not None:
            if turn_of(record) != self._turn:
                return None
            if is_terminal(record) or isinstance(record, TurnImported):
                self._leave()
                self._buffer.clear()
                self._backlog.clear()
                self._replay, self._ended = None, True
        before = self._previewed
        if isinstance(record, ToolsRequested | StepCompleted | TurnResumed) or is_terminal(record):
            self._previewed = None
        if isinstance(record, ToolsRequested):
            self._expanded.extend(tool_uses(record))
        elif isinstance(record, TurnResumed):
            if before is not None and (before.turn, before.step) == (record.turn, record.step):
                # A new owner counts the attempts from 1 again, so this attempt's previews cannot be
                # told from those of the old owner. They are made void first.
                self._expanded.append(StepRestarted(record.turn, record.step, 1))
            # Only calls from before the cursor, so that every call is reported once.
            calls = [use for use in self._open_calls() if use.turn == record.turn]
            self._expanded.extend(use for use in calls if use.seq <= self._begun_after)
            self._begun_after = 0
        return record


class _Place:
    """A listener and its position: the newest record that it has."""

    __slots__ = ("is_sink", "listener", "newest")

    def __init__(self, listener: EventSink, head: int) -> None:
        self.listener = weakref.ref(listener)
        self.is_sink = not isinstance(listener, Subscription)
        """Does it take each preview at once? If not, it has a position in the linked list."""
        self.newest = head


MIN_SWEEP = 16


class _Subscribers:
    """The places of one session's listeners. Adding and removing one takes constant time."""

    __slots__ = ("_chars", "_listed", "_places", "_sinks", "_sweep_at", "last_node", "wait_queue")

    def __init__(self) -> None:
        # By the listener's id. After a listener was collected, another one may get the same id. Its
        # place then replaces the old one.
        self._places: dict[int, _Place] = {}
        self._listed: tuple[_Place, ...] | None = ()
        """The places for the next publication; None after a change."""
        self._sinks: tuple[_Place, ...] | None = ()
        """Those of them that take each preview at once; None after a change."""
        self._sweep_at = MIN_SWEEP
        self.last_node = _Node(_NOTHING)
        """The end of the linked list of previews."""
        self._chars = 0
        self.wait_queue = WaitQueue()
        """The tasks that wait for an event of a subscription."""

    def __len__(self) -> int:
        return len(self._places)

    @property
    def listed(self) -> tuple[_Place, ...]:
        """All places, in the order in which they were added. The tuple is never changed."""
        if self._listed is None:
            self._listed = tuple(self._places.values())
        return self._listed

    def preview(self, preview: Preview) -> None:
        """Give a preview to all listeners."""
        sinks = self._sinks
        if sinks is None:
            sinks = self._sinks = tuple(place for place in self.listed if place.is_sink)
        if len(sinks) < len(self._places):  # else nobody reads the list
            self._add_to_list(preview)
        for place in sinks:
            sink = place.listener()
            if sink is not None:
                sink.offer_preview(preview)

    def _add_to_list(self, preview: Preview) -> None:
        node = _Node(preview)
        self.last_node.next = node
        self.last_node = node
        self._chars += len(preview.text) + NODE_CHARS
        if self._chars > MAX_LIST_CHARS:
            self._empty_list()
        self.wait_queue.wake_all()

    def _empty_list(self) -> None:
        """Let every subscription take what the linked list has for it."""
        self._chars = 0
        for place in self.listed:
            subscription = place.listener()
            if isinstance(subscription, Subscription):
                subscription.take_previews()

    def add(self, listener: EventSink, head: int) -> None:
        """Add a place for *listener*."""
        if len(self._places) >= self._sweep_at:
            # Without this, a session that publishes nothing would collect places of dropped
            # listeners. The number may double before the next sweep, so a sweep always pays off.
            self.sweep()
            self._sweep_at = max(MIN_SWEEP, 2 * len(self._places))
        self._places[id(listener)] = _Place(listener, head)
        self._listed = self._sinks = None

    def remove(self, listener: EventSink) -> None:
        """Remove the place of *listener*, if it has one."""
        place = self._places.get(id(listener))
        if place is not None and place.listener() is listener:
            del self._places[id(listener)]
            self._listed = self._sinks = None

    def sweep(self) -> None:
        """Remove the places of listeners that were collected."""
        # This is not done in a callback of the weak reference, because that runs in any thread at
        # any moment.
        self._places = {
            key: place for key, place in self._places.items() if place.listener() is not None
        }
        self._listed = self._sinks = None


class Subscriptions:
    """All subscribers of a manager, by session. They outlive a session's eviction.

    Subscriptions are held weakly. If a reader drops one without closing it, for example by leaving
    a loop over a turn's events, it disappears. Adding and removing one takes constant time, however
    many the session has.
    """

    def __init__(self) -> None:
        self._subscribers: dict[str, _Subscribers] = {}
        self._closed = False

    def has(self, session: str) -> bool:
        """Does *session* have a subscriber?"""
        return bool(self._listeners(session))

    def count(self, session: str) -> int:
        """How many subscribers *session* has. Dropped ones count until the next event."""
        return len(self._subscribers.get(session, ()))

    def _listeners(self, session: str) -> list[tuple[_Place, EventSink]]:
        subscribers = self._subscribers.get(session)
        if subscribers is None:
            return []
        places = subscribers.listed
        pairs = ((place, place.listener()) for place in places)
        listeners = [(place, listener) for place, listener in pairs if listener is not None]
        if len(listeners) < len(places):
            subscribers.sweep()
            self._drop_empty(session, subscribers)
        return listeners

    def _drop_empty(self, session: str, subscribers: _Subscribers) -> None:
        if not len(subscribers):
            del self._subscribers[session]

    def add(self, session: str, listener: EventSink, head: int) -> _Subscribers:
        """Give *listener* everything that is published from now on. It has the records up to
        *head*.

        After ``end_all`` it is ended at once.
        """
        if self._closed:
            listener.end()
            return _Subscribers()
        subscribers = self._subscribers.get(session)
        if subscribers is None:
            subscribers = self._subscribers[session] = _Subscribers()
        subscribers.add(listener, head)
        return subscribers

    def remove(self, session: str, listener: EventSink) -> None:
        """Give *listener* nothing more. Has no effect if it is not subscribed."""
        subscribers = self._subscribers.get(session)
        if subscribers is not None:
            subscribers.remove(listener)
            self._drop_empty(session, subscribers)

    def publish(self, session: str, record: Record) -> None:
        """Give a durable record to every subscriber of *session*. Never waits."""
        for place, listener in self._listeners(session):
            if place.newest < record.seq - 1:
                self._lag(session, listener)
            else:
                place.newest = record.seq
                listener.offer_record(record)

    def reached(self, session: str, head: int) -> None:
        """The log of *session* ends at *head*: subscribers that lack records up to there lag.

        If the answer to an append was lost, its records are found only when the session is loaded
        again, and nobody has published them.
        """
        for place, listener in self._listeners(session):
            if place.newest < head:
                self._lag(session, listener)

    def _lag(self, session: str, listener: EventSink) -> None:
        self.remove(session, listener)
        listener.lag()

    def preview(self, session: str, preview: Preview) -> None:
        """Give a preview to every subscriber of *session*. Never waits."""
        subscribers = self._subscribers.get(session)
        if subscribers is not None:
            subscribers.preview(preview)

    def restart(self, session: str, restart: StepRestarted) -> None:
        """Report to every subscriber of *session* that the previews of a step are void."""
        for _, listener in self._listeners(session):
            listener.offer_restart(restart)

    def end(self, session: str, *, moved: bool = False) -> None:
        """The session is closed or *moved*. Its subscribers read their buffers and end."""
        for _, listener in self._listeners(session):
            listener.end(moved=moved)
        self._subscribers.pop(session, None)

    def lag_all(self, session: str) -> None:
        """The session has lost its store, so it is not known which records are durable."""
        for _, listener in self._listeners(session):
            listener.lag()

    def end_all(self) -> None:
        """The manager is closed: ``end`` for every session, and for later subscribers."""
        self._closed = True
        for session in tuple(self._subscribers):
            self.end(session)
