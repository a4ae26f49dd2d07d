"""The cache around the projection, so that a step costs its new messages and little else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llmsession.turns.messages import Message
from llmsession.turns.request import Frame, Profile, Request, RequestMessage

from .prefix import shared_prefix
from .projection import (
    Form,
    block_facts,
    form_of,
    joined,
    place_of,
    render,
    request_of,
    shown_messages,
)
from .provider_blocks import is_sent_as_block, message_from_block
from .view import View

__all__ = ["Projector"]


class _Inputs(NamedTuple):
    """Everything that a projection depends on, except the frame."""

    shown: tuple[Message, ...]
    """The messages that the view shows, in whatever form."""
    length: int
    """The number of all messages."""
    view: View
    merges_roles: bool
    in_block: bool


class Projector:
    """``project`` with a cache that changes no result.

    It holds the messages of the last projections. Messages that are no longer shown are forgotten
    now and then.
    """

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}
        """How each message was shown last, by message id."""
        self._joins: dict[int, tuple[list[RequestMessage], RequestMessage]] = {}
        """Runs of parts and the messages that they were joined to, by the address of the first
        part. The run keeps the parts alive, so no other part can get that address.
        """
        self._cut: tuple[Message, int, Message | None] | None = None
        """A message, the number of the block from which on it is shown, and that part of it as a
        message.
        """
        self._last: _Inputs | None = None
        self._closed: list[RequestMessage] = []
        """The messages that the last projection sent, except the last one."""
        self._open: list[RequestMessage] = []
        """The parts of the last message of the last projection. A neighbour may still be joined to
        it.
        """
        self._has_late_text = False
        """Was an injected text the last thing, or not shown yet?"""

    def project(
        self, messages: Sequence[Message], view: View, profile: Profile, frame: Frame
    ) -> Request:
        """What the function ``project`` returns for these arguments."""
        summary = view.prefix_summary
        in_block = summary is not None and is_sent_as_block(summary, profile, frame)
        shown = view.shown_messages(messages)
        inputs = _Inputs(shown, len(messages), view, profile.merges_roles, in_block)
        return request_of(frame, view, self._sent(messages, inputs))

    def _sent(self, messages: Sequence[Message], inputs: _Inputs) -> tuple[RequestMessage, ...]:
        start, earlier_joins = self._reusable(inputs), self._joins
        closed, run = self._closed, self._open
        if start == 0:
            closed, run, self._joins = [], [], {}
        if len(self._shown) > 2 * len(inputs.shown) + 64:
            self._shown = {}
        # If the code below raises, half a projection is left; then nothing of it is reused.
        self._last = None
        parts = shown_messages(
            inputs.shown if len(inputs.shown) == inputs.length else messages,
            inputs.view,
            in_block=inputs.in_block,
            start=start,
            show=self._show,
            from_block=self.from_block,
        )
        for part in parts:
            if run and inputs.merges_roles and run[0].role == part.role:
                run = [*run, part]
            else:
                if run:
                    closed.append(self._joined(run, earlier_joins))
                run = [part]
        self._closed, self._open, self._last = closed, run, inputs
        texts = inputs.view.injected  # none, nearly always
        self._has_late_text = bool(texts) and any(
            place_of(text, inputs.view, messages) >= inputs.length for text in texts
        )
        if not run:
            return ()
        # One copy of the list. A tuple display with an unpacked list makes three.
        closed.append(self._joined(run, earlier_joins))
        sent = tuple(closed)
        closed.pop()
        return sent

    def _reusable(self, inputs: _Inputs) -> int:
        """How many of the messages need not be looked at: all of the last projection, or none.

        How a message is shown depends only on the view and on its position. So a longer history
        under the same view begins with what was sent before. There is one exception: a text that
        was injected behind the last message does not stay the last thing, or was not shown yet.
        Messages that the view does not show are not compared: there may be any number of them.
        """
        last, view = self._last, inputs.view
        if last is None or not (view is last.view or view.is_like(last.view)):
            return 0
        if inputs.merges_roles is not last.merges_roles or inputs.in_block is not last.in_block:
            return 0
        length = last.length
        if self._has_late_text:
            return 0
        is_longer = length <= inputs.length
        is_same = is_longer and shared_prefix(last.shown, inputs.shown) == len(last.shown)
        return length if is_same else 0

    def _show(
        self, message: Message, first: int, position: int, view: View
    ) -> RequestMessage | None:
        entry = self._shown.get(message.id)
        if entry is None or entry.message is not message:
            entry = self._shown[message.id] = _Shown(message)
        form = form_of(message, entry.facts, first, position, view)
        if form != entry.form:
            entry.part = render(message, entry.facts, form)
            entry.form = form
        return entry.part

    def from_block(self, message: Message, first: int) -> Message | None:
        """``message_from_block``, but it returns the same object each time, because messages are
        recognised by identity.
        """
        cut = self._cut
        if cut is None or cut[0] is not message or cut[1] != first:
            cut = self._cut = (message, first, message_from_block(message, first))
        return cut[2]

    def _joined(
        self,
        run: list[RequestMessage],
        earlier: dict[int, tuple[list[RequestMessage], RequestMessage]],
    ) -> RequestMessage:
        if len(run) == 1:
            return run[0]
        address = id(run[0])
        entry = self._joins.get(address) or earlier.get(address)
        if entry is None or not _are_same(entry[0], run):
            entry = (run, joined(run))
        self._joins[address] = entry
        return entry[1]


def _are_same(left: list[RequestMessage], right: list[RequestMessage]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


class _Shown:
    """A message, and how it was shown last."""

    __slots__ = ("facts", "form", "message", "part")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.facts = block_facts(message)
        self.form: Form | None = None
        self.part: RequestMessage | None = None
