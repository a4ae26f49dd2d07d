"""One subscription of a connection. It writes events of a session into the connection's outbox.

The session calls it directly, without a task in between, so a published event is in the outbox at
once. Only a subscription that starts behind the head needs a task: it reads the log, and no faster
than the client reads. Events that are published during that time are not buffered, because they
will be read from the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from llmsession.errors import RecordDamaged, SessionError
from llmsession.session.core.subscriptions import EventSink
from llmsession.session.handles.subscription import SinkSubscription
from llmsession.session.log.open_calls import tool_uses
from llmsession.session.log.reader import read_record
from llmsession.turns import Preview, Record, StepRestarted, ToolUse
from llmsession.turns.records import (
    ToolsRequested,
    TurnImported,
    TurnResumed,
    encode_record,
    is_terminal,
    turn_of,
)

from ..wire import messages as w
from ..wire.errors import to_wire
from ..wire.framing import encode
from .outbox import Outbox

__all__ = ["OpenSubscriptions", "ServerSubscription"]

FIRST_PAGE = 4
PAGE = 32
PAGE_BYTES = 256 * 1024
"""Records per read: few at first, then more, until a page has ``PAGE_BYTES``. A whole page is in
memory in addition to the outbox, so only ``READERS`` subscriptions of a connection hold one."""

_newest: tuple[Record | None, bytes] = (None, b"")


def _bytes_of(record: Record) -> bytes:
    """The encoded record. A session calls all its subscriptions one after the other with the same
    record, so the newest encoding is kept for the next of them."""
    global _newest  # noqa: PLW0603  # one slot, of a pure function's newest answer
    latest = _newest
    if latest[0] is not record:
        latest = _newest = (record, encode_record(record))
    return latest[1]


class ServerSubscription(EventSink):
    """One subscription. ``on_ended`` is called when no more events will come. ``visible_error``
    returns an error as the client may see it."""

    def __init__(
        self,
        id: int,
        session: str,
        outbox: Outbox,
        on_ended: Callable[[ServerSubscription], None],
        *,
        turn: int | None,
        visible_error: Callable[[SessionError], SessionError],
    ) -> None:
        self.id = id
        self.session = session
        self._visible_error = visible_error
        self._outbox = outbox
        self._on_ended = on_ended
        self._turn = turn
        self._listening: SinkSubscription
        self._is_live = False
        self._ending = False
        """The session publishes nothing more; the rest of the log is still sent."""
        self._ended = False
        self._has_moved = False
        self._newest: Preview | None = None
        self._offset = 0
        """How many characters of the newest preview's block came."""
        self._offsets: dict[tuple[int, type[Preview]], int] = {}
        """The same of the other blocks of its step, which may go on: blocks may interleave."""
        self.lagged = False

    def begin(self, listening: SinkSubscription) -> bool:
        """Begin at the position of *listening*. Returns whether the log must be read first, with
        ``catch_up``."""
        self._listening = listening
        self._begun_after = self._cursor = listening.after
        self._head = listening.head
        self._outbox.begin(self.id, listening.after)
        if self._cursor < self._head:
            return True
        self._go_live()
        return False

    async def catch_up(self) -> None:
        """Read the log up to the point where live events begin. Errors are sent to the client."""
        page_size = FIRST_PAGE
        try:
            while not self._ended and self._cursor < self._head:
                async with self._outbox.reading:
                    page_size = await self._read_page(page_size)
        except SessionError as error:
            self._fail(error)
        if not self._ended:
            self._go_live()

    async def _read_page(self, page_size: int) -> int:
        """Send the next *page_size* records. Returns the size of the next page. Raises the errors
        of the store."""
        await self._outbox.wait_for_room()
        if self._ended:
            return page_size
        # Do not read past the head: a record that is stored but not published yet is offered live,
        # and would otherwise be sent twice.
        page = await self._listening.read(self._cursor, min(page_size, self._head - self._cursor))
        if not page and self._cursor < self._head:
            raise RecordDamaged(self._listening.session, self._cursor + 1, "it is missing")
        for stored in page:
            await self._outbox.wait_for_room(2 * len(stored.body))
            if self._ended:
                return page_size
            self._cursor = stored.seq
            self._send_record(read_record(self._listening.session, stored), stored.body)
        is_large = sum(len(stored.body) for stored in page) > PAGE_BYTES
        return max(1, page_size // 2) if is_large else min(2 * page_size, PAGE)

    def _go_live(self) -> None:
        self._is_live = True
        for preview in self._listening.so_far():
            self.offer_preview(preview)
        if self._ending:
            self._end()

    # Called by the session.

    def offer_record(self, record: Record) -> None:
        """Send the next durable record, unless the log is still being read."""
        self._head = record.seq
        if self._is_live and not self._ended:
            self._cursor = record.seq
            if isinstance(record, TurnResumed):
                self._newest = None  # the resumed step starts its text again with the same attempt
            if self._turn is None or turn_of(record) == self._turn:
                self._send_record(record, _bytes_of(record))

    def offer_preview(self, preview: Preview) -> None:
        """Send a piece of a reply. Its offset counts lost pieces, too, so the client sees gaps."""
        if not self._is_live or self._ended:
            return
        if self._turn is not None and preview.turn != self._turn:
            return
        last, self._newest = self._newest, preview
        if (
            last is None
            or last.step != preview.step
            or last.attempt != preview.attempt
            or last.turn != preview.turn
        ):
            self._offsets.clear()
            self._offset = 0
        elif last.index != preview.index or type(last) is not type(preview):
            self._offsets[last.index, type(last)] = self._offset
            self._offset = self._offsets.get((preview.index, type(preview)), 0)
        self._outbox.offer_preview(self.id, self._listening.session, preview, self._offset)
        self._offset += len(preview.text)

    def offer_restart(self, restart: StepRestarted) -> None:
        """Tell the client that the previews of a step are void."""
        if not self._is_live or self._ended:
            return
        if self._turn is None or restart.turn == self._turn:
            self._newest = None
            self._outbox.offer_restart(self.id, self._listening.session, restart)

    def lag(self) -> None:
        """End the subscription because the session or the outbox cannot buffer more. The client
        gets the cursor after which it can subscribe again."""
        if not self._ended:
            self._stop()
            self.lagged = True
            cursor = self._outbox.end(self.id)
            self._outbox.put(encode(w.Lagged(subscription=self.id, cursor=cursor)))
            self._on_ended(self)

    def end(self, *, moved: bool = False) -> None:
        """End after the rest of the log was sent: the session publishes nothing more. *moved*:
        another owner publishes what follows."""
        self._ending, self._has_moved = True, moved
        if self._is_live:
            self._end()

    # Writing to the outbox.

    def _send_record(self, record: Record, body: bytes) -> None:
        if self._turn is not None and turn_of(record) != self._turn:
            return
        event = w.Event(
            subscription=self.id,
            session=self._listening.session,
            kind=record.__struct_config__.tag,  # type: ignore[arg-type]  # every record has one
            body=msgspec.Raw(body),
            seq=record.seq,
            turn=turn_of(record),
            calls=tuple(msgspec.Raw(msgspec.json.encode(use)) for use in self._calls(record)),
        )
        if not self._outbox.offer(self.id, record.seq, encode(event)):
            self.lag()
        elif self._turn is not None and (is_terminal(record) or isinstance(record, TurnImported)):
            self._end()

    def _calls(self, record: Record) -> list[ToolUse]:
        if isinstance(record, ToolsRequested):
            return tool_uses(record)
        if not isinstance(record, TurnResumed):
            return []
        # These calls were offered by records from before the subscription began, so the client has
        # not seen them. They are sent once.
        before, self._begun_after = self._begun_after, 0
        return [
            use
            for use in self._listening.open_calls()
            if use.turn == record.turn and use.seq <= before
        ]

    def _end(self) -> None:
        if not self._ended:
            self._stop()
            # The cursor is the last record that was read, whether or not it is of the turn.
            cursor = self._cursor if self._has_moved else None
            ended = w.Ended(subscription=self.id, moved=self._has_moved, cursor=cursor)
            self._outbox.finish(self.id)
            self._outbox.put(encode(ended))
            self._on_ended(self)

    def _fail(self, error: SessionError) -> None:
        if not self._ended:
            self._stop()
            self._outbox.finish(self.id)
            self._outbox.put(encode(to_wire(self._visible_error(error), id=self.id)))
            self._on_ended(self)

    def close(self) -> None:
        """End without a message: the client unsubscribed or is gone."""
        if not self._ended:
            self._stop()
            self._outbox.end(self.id)

    def _stop(self) -> None:
        self._ended = True
        self._listening.stop(self)


class OpenSubscriptions:
    """The subscriptions of a connection by id, with their number for each session."""

    def __init__(self) -> None:
        self._by_id: dict[int, ServerSubscription] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: int) -> bool:
        return id in self._by_id

    def count(self, session: str) -> int:
        """How many subscriptions to *session* are open."""
        return self._counts[session]

    def add(self, subscription: ServerSubscription) -> None:
        """Add *subscription*. Its id must not be in use."""
        self._by_id[subscription.id] = subscription
        self._counts[subscription.session] += 1

    def pop(self, id: int) -> ServerSubscription | None:
        """Remove the subscription *id* and return it, or None if there is none."""
        subscription = self._by_id.pop(id, None)
        if subscription is not None:
            self._counts[subscription.session] -= 1
            if not self._counts[subscription.session]:
                del self._counts[subscription.session]
        return subscription

    def close_all(self) -> None:
        """Close and remove all subscriptions."""
        for subscription in self._by_id.values():
            subscription.close()
        self._by_id.clear()
        self._counts.clear()
