"""The next request of a session: projected, sized and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from llmsession.compaction.planning.provider_clearing import clearing_of
from llmsession.compaction.rules.check import Checker, RuleViolation
from llmsession.compaction.tokens.calibration import Calibration
from llmsession.compaction.tokens.messages import (
    body_tokens,
    context_tokens,
    frame_tokens,
    shown_tokens,
    text_tokens_for,
)
from llmsession.compaction.tokens.request_size import Anchor, Sized, size_after, size_whole
from llmsession.compaction.view.prefix import shared_prefix
from llmsession.compaction.view.projector import Projector
from llmsession.compaction.view.provider_blocks import is_sent_as_block
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.request import Frame, Profile, Request, RequestMessage

from ..log.reported_usage import Calibrations, Reported
from ..log.state import SessionState

__all__ = ["Built", "ContextBuilder", "Size", "SizeMethod"]


SizeMethod: TypeAlias = Literal["usage", "estimate"]
"""How a size was found: from the last reported usage, or from characters alone."""

MIN_PLAUSIBLE, MAX_PLAUSIBLE = 350, 5000
"""A reported usage outside these thousandths of the estimate does not belong to this request: some
servers report a cached prompt as 0 tokens, others sum up a whole tool loop.
"""
SMALL_TOKENS = 2_000
"""Tokens that a request may have besides what we send, such as a provider's own system text."""


class Size(msgspec.Struct, frozen=True):
    """How large a request is, and how that is known."""

    tokens: int
    method: SizeMethod
    estimate: int
    """The size by characters alone."""
    sized: Sized
    """The parts of the size, for calibration with the usage that will be reported."""

    @property
    def scale_permille(self) -> int:
        """How many tokens a thousand tokens by characters really are."""
        scale = self.tokens * 1000 // max(1, self.estimate)
        return max(MIN_PLAUSIBLE, min(scale, MAX_PLAUSIBLE))


class Built(msgspec.Struct, frozen=True):
    """A request, its size, and the validity rules that it breaks (none, unless there is a bug)."""

    request: Request
    size: Size
    violations: tuple[RuleViolation, ...]

    @property
    def tokens(self) -> int:
        """The size of the request in tokens."""
        return self.size.tokens


class ContextBuilder:
    """Builds the requests of one session, and caches what did not change between them."""

    def __init__(
        self, profile: Profile, frame: Frame, calibrations: Calibrations | None = None
    ) -> None:
        self.profile = profile
        self._calibrations = calibrations or Calibrations()
        self._frame = frame
        self._clearing = clearing_of(frame.options)
        self._frame_tokens = frame_tokens(frame, profile)
        self._projector = Projector()
        self._checker = Checker(profile)
        self._tail_tokens = 0
        self._counted: tuple[RequestMessage, ...] = ()
        self._sums = [0]
        """Entry *n* is the estimated tokens of the first *n* messages that were counted last."""
        self._edits: tuple[View, tuple[Message, ...], int | None] | None = None
        self._size: tuple[tuple[object, ...], Size] | None = None
        """The newest result of ``size_of``, behind all that it depends on."""

    def warmed(self, messages: Sequence[Message], view: View) -> ContextBuilder:
        """Another builder for the same session that has already built the request for *messages*
        and *view*.

        Call it in a thread: it looks at every message.
        """
        builder = ContextBuilder(self.profile, self._frame, self._calibrations)
        builder.build(messages, view)
        return builder

    @property
    def is_cold(self) -> bool:
        """Has it built nothing yet? Then its next request looks at every message."""
        return not self._counted

    def project(self, messages: Sequence[Message], view: View) -> Request:
        """The request that would be sent to the model now. Raises nothing."""
        return self._projector.project(messages, view, self.profile, self._frame)

    def build(
        self, messages: Sequence[Message], view: View, reported: Reported | None = None
    ) -> Built:
        """The request for *messages* as *view* shows them, sized and checked."""
        request = self.project(messages, view)
        violations = self._checker.check(request)
        # A request without thinking has none that could be bound to another history.
        if self.profile.binds_thinking and self._checker.found_thinking:
            violations += self._check_thinking(request, messages, view)
        return Built(request, self.size(request, messages, view, reported), violations)

    def _check_thinking(
        self, request: Request, messages: Sequence[Message], view: View
    ) -> tuple[RuleViolation, ...]:
        """Check *request* against its history.

        A provider's own summary begins a new history: later thinking is bound to the summary and
        not to what stood before it.
        """
        edited_from = self._edited_from(messages, view)
        thinking_from = view.thinking_from
        prefix_summary, start = view.prefix_summary, view.start
        if prefix_summary is not None and prefix_summary.by == "provider":
            if not is_sent_as_block(prefix_summary, self.profile, self._frame):
                edited_from = 0
            else:
                messages = messages[start:]
                if prefix_summary.inside is not None:
                    opening = self._projector.from_block(messages[0], prefix_summary.inside)
                    messages = (opening or messages[0], *messages[1:])
                thinking_from = max(0, thinking_from - start)
                edited_from = None if edited_from is None else max(0, edited_from - start)
        check = self._checker.check_against_history
        if edited_from is not None and edited_from < thinking_from:
            # No thinking between the two may be sent, so a valid request does not depend on it. It
            # may be nearly the whole history, and is looked at only to name what is wrong.
            few = (*messages[: edited_from + 1], *messages[thinking_from:])
            if not check(request, few, edited_from + 1, edited_from):
                return ()
        return check(request, messages, thinking_from, edited_from)

    def size_of(self, state: SessionState) -> Size:
        """The size of the context of *state*, as its view shows it. Found anew if a record or the
        usage of another request has come since: those who look on ask again and again.
        """
        view, reported = state.view, state.reported
        calibration = self._calibrations.of(self._frame.model)
        now = (state.head, view, reported, calibration, self._counted)
        if self._size is not None and self._size[0] == now:
            return self._size[1]
        messages = state.context_messages()
        size = self.size(self.project(messages, view), messages, view, reported)
        self._size = (*now[:-1], self._counted), size
        return size

    def size(
        self, request: Request, messages: Sequence[Message], view: View, reported: Reported | None
    ) -> Size:
        """How large *request* is, the projection of *messages* by *view*.

        It is the reported usage of the last request plus an estimate of what came after it, or else
        an estimate of everything.
        """
        estimate = self.tokens(request)
        calibration = self._calibrations.of(self._frame.model)
        counts = self.profile.counts_requests
        if counts and reported is not None and reported.count <= len(messages):
            sized = self._size_after(reported, messages, view, calibration)
            known = max(1, estimate - sized.estimated_tokens)
            min_tokens = known * MIN_PLAUSIBLE // 1000
            max_tokens = known * MAX_PLAUSIBLE // 1000 + SMALL_TOKENS
            if min_tokens <= reported.sent_tokens <= max_tokens:
                cleared = self._cleared_ahead(sized.tokens, messages, view, reported)
                return Size(sized.tokens - cleared, "usage", estimate, sized)
        sized = size_whole(estimate, calibration)
        cleared = self._cleared_ahead(sized.tokens, messages, view, None)
        return Size(sized.tokens - cleared, "estimate", estimate, sized)

    def _cleared_ahead(
        self, tokens: int, messages: Sequence[Message], view: View, reported: Reported | None
    ) -> int:
        """The tokens that the provider will clear from a request of *tokens* tokens.

        What it had already cleared from the reported request is not included. The result is
        negative if the provider is no longer asked to clear.
        """
        before = reported.cleared_tokens if reported is not None else 0
        if self._clearing is None:
            return -before
        cleared = self._clearing.expected(
            tokens + before,
            messages,
            view,
            self.profile,
            cleared_before=reported.count - 1 if reported is not None and before else None,
        )
        return min(tokens - 1, self._calibrations.of(self._frame.model).scaled(cleared))

    def _size_after(
        self, reported: Reported, messages: Sequence[Message], view: View, calibration: Calibration
    ) -> Sized:
        reply, usage = reported.count - 1, reported.usage
        return size_after(
            Anchor(reply, usage.prompt_tokens, usage.output_tokens),
            reply_tokens=shown_tokens(messages[reply], reply, view, self.profile),
            after_tokens=context_tokens(messages, view, self.profile, start=reported.count),
            returns_thinking=self.profile.returns_thinking,
            calibration=calibration,
        )

    def learn(self, size: Size, prompt_tokens: int) -> None:
        """Calibrate: *prompt_tokens* were reported for the request that had *size*."""
        if self.profile.counts_requests:
            self._calibrations.learn(self._frame.model, size.sized, prompt_tokens)

    @property
    def frame_tokens(self) -> int:
        """The tokens of the system text and the tools, by characters."""
        return self._frame_tokens

    def _edited_from(self, messages: Sequence[Message], view: View) -> int | None:
        """``View.edited_from``, computed again only if the view or the messages that it looks at
        changed.
        """
        places = view.where_edited(len(messages))
        searched = tuple(messages[places.start : places.stop])
        known = self._edits
        if known is None or not view.is_like(known[0]) or known[1] != searched:
            known = self._edits = (view, searched, view.edited_from(messages))
        return known[2]

    def tokens(self, request: Request) -> int:
        """The estimated tokens of *request*. Each message is counted once."""
        messages, counted, sums = request.messages, self._counted, self._sums
        shared = shared_prefix(counted, messages)
        sizes: dict[int, int] = {}
        if shared < len(counted):
            # They stay alive here, so no other message can have the id of one of them.
            for index, message in enumerate(counted[shared:], shared):
                sizes[id(message)] = sums[index + 1] - sums[index]
            del sums[shared + 1 :]
        for message in messages[shared:]:
            size = sizes.get(id(message)) or body_tokens(message.body, self.profile)
            sums.append(sums[-1] + size)
        self._counted = messages
        self._tail_tokens = self._tail_size(request)
        return self._frame_tokens + self._tail_tokens + sums[-1]

    def tokens_before(self, count: int) -> int:
        """The estimated tokens before message number *count* (from 0) of the last sized request.

        System text, tools and messages are included.
        """
        return self._frame_tokens + self._tail_tokens + self._sums[count]

    def _tail_size(self, request: Request) -> int:
        """The tokens of what is injected after the system text."""
        system, own = request.system or "", self._frame.system or ""
        return 0 if system == own else text_tokens_for(system[len(own) :], self.profile)
