"""The text of a turn as a stream: every character once, from previews and durable records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from llmsession.turns import records as r
from llmsession.turns.blocks import joined_text, parse_blocks
from llmsession.turns.previews import StepRestarted, TextDelta

from ..core.subscriptions import Event, Lagged, Subscription

__all__ = ["ReplyText", "TextPiece", "TextStream", "TextTurn", "text_of"]

TextPiece: TypeAlias = str | StepRestarted


class ReplyText:
    """Reads the events of one turn in order, and returns the text that is new in each.

    The text of a step comes from its previews until the record that closes the step arrives. Then
    the rest of the record's text follows. If the record's text does not begin with the previews'
    text, for example because previews were lost, the step's text starts again after a
    ``StepRestarted``.
    """

    def __init__(self) -> None:
        self._seq = 0
        self._place = (0, 0, 0)
        """Turn, step and attempt of the newest preview."""
        self._closed: list[str] = []
        """The texts of the steps that are closed."""
        self._pieces: list[str] = []
        """The text that was returned of the step that is not closed yet."""
        self._heard_again: str | None = None
        """After ``lagged``: the part of the returned text that has arrived a second time. Otherwise
        None.
        """

    @property
    def text(self) -> str:
        """The pieces that were returned, joined, without those that a ``StepRestarted`` voided."""
        return "".join([*self._closed, *self._pieces])

    def lagged(self) -> None:
        """The subscription starts again from the turn's acceptance. Text that was returned is not
        repeated.
        """
        self._heard_again = ""

    def read(self, event: Event) -> Iterator[TextPiece]:
        """The pieces of text that *event* adds. None of them is empty."""
        if isinstance(event, TextDelta):
            return self._read_delta(event)
        if isinstance(event, StepRestarted):
            return self._restart((event.turn, event.step, event.attempt))
        if not isinstance(event, r.RecordBase) or event.seq <= self._seq:
            return iter(())
        self._seq = event.seq
        return self._read_record(event)

    def _restart(self, place: tuple[int, int, int]) -> Iterator[StepRestarted]:
        is_void = bool(self._pieces)
        # Before the yield: whoever reads the StepRestarted may look at the text that is left.
        self._place, self._pieces, self._heard_again = place, [], None
        if is_void:
            yield StepRestarted(*place)

    def _read_delta(self, delta: TextDelta) -> Iterator[TextPiece]:
        place = (delta.turn, delta.step, delta.attempt)
        if place != self._place:
            yield from self._restart(place)
        if self._heard_again is None:
            yield from self._tell(delta.text)
            return
        self._heard_again += delta.text
        told = "".join(self._pieces)
        if not told.startswith(self._heard_again):
            heard, self._heard_again = self._heard_again, None
            yield from self._go_on(told, heard)

    def _read_record(self, record: r.RecordBase) -> Iterator[TextPiece]:
        whole = text_of(record)
        if whole is not None:
            yield from self._go_on("".join(self._pieces), whole)
            self._closed.append(whole)
            self._pieces, self._heard_again = [], None

    def _go_on(self, told: str, whole: str) -> Iterator[TextPiece]:
        if not whole.startswith(told):
            yield from self._restart(self._place)
            told = ""
        yield from self._tell(whole[len(told) :])

    def _tell(self, text: str) -> Iterator[str]:
        if text:
            self._pieces.append(text)
            yield text


def text_of(record: r.RecordBase) -> str | None:
    """The text of the reply that *record* holds; None if it holds no reply."""
    if isinstance(record, r.TurnImported):
        return "".join(message.text for message in record.messages if message.is_assistant)
    reply = getattr(record, "reply", None)
    return None if reply is None else joined_text(parse_blocks(reply.body))


class TextTurn(Protocol):
    """The part of a turn's handle that the text stream needs. Remote turns have it, too."""

    def __aiter__(self) -> Subscription: ...

    async def text(self) -> str: ...


class TextStream:
    """An iterator over the text of a turn as it arrives. Leaving the loop does not interrupt the
    turn.
    """

    def __init__(self, turn: TextTurn) -> None:
        self._turn = turn
        self._reader = ReplyText()
        self._events = aiter(turn)
        self._pieces: Iterator[TextPiece] = iter(())
        self._is_over = False

    @property
    def text(self) -> str:
        """What a screen has to show now: the pieces so far, without those of a restarted step.

        After a ``StepRestarted``, show this in place of what was shown. It stays when the stream
        has ended, with an error, too.
        """
        return self._reader.text

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> TextPiece:
        """The next piece of text. Cancellable; a cancelled wait loses no text."""
        while True:
            for piece in self._pieces:
                return piece
            if self._is_over:
                raise StopAsyncIteration
            try:
                event = await anext(self._events)
            except StopAsyncIteration:
                await self._turn.text()  # raises if the turn was not committed
                self._is_over = True
                raise
            if isinstance(event, Lagged):
                self._reader.lagged()
                self._events = aiter(self._turn)
            else:
                self._pieces = self._reader.read(event)

    def close(self) -> None:
        """Stop receiving pieces."""
        self._events.close()
        self._is_over = True
