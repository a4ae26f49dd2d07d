"""The next request of a session: projected, sized and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from llmsession.compaction.prefix import shared_prefix
from llmsession.compaction.projection import Frame, Projector
from llmsession.compaction.tokens import context_tokens, estimate_text_tokens, frame_tokens
from llmsession.compaction.validity import Checker, Violation
from llmsession.compaction.view import View
from llmsession.turns.blocks import block_type, split_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, RequestMessage
from llmsession.turns.stop import Follow, stop_rule

from .reported import Reported

__all__ = ["Built", "ContextBuilder", "Size", "SizeMethod"]


SizeMethod: TypeAlias = Literal["usage", "estimate"]
"""How a size was found: from the last reported usage on, or by characters alone."""

LEAST_PLAUSIBLE, MOST_PLAUSIBLE = 350, 5000
"""A reported usage below or above these thousandths of the estimate is not of this request: some
servers report cached prompts as nothing, others sum up a whole tool loop."""
SMALL_TOKENS = 2_000
"""So much more than that may be there that we do not see, as a provider's own system text."""


class Size(msgspec.Struct, frozen=True):
    """How large a request is, how that is known, and what it is by characters alone."""

    tokens: int
    method: SizeMethod
    estimate: int

    @property
    def scale_permille(self) -> int:
        """What a thousand tokens by characters are in ``tokens``."""
        scale = self.tokens * 1000 // max(1, self.estimate)
        return max(LEAST_PLAUSIBLE, min(scale, MOST_PLAUSIBLE))


class Built(msgspec.Struct, frozen=True):
    """A request, its size, and the rules that it breaks (none, unless by a bug)."""

    request: Request
    size: Size
    violations: tuple[Violation, ...]

    @property
    def tokens(self) -> int:
        """The tokens that the request is taken for."""
        return self.size.tokens


class ContextBuilder:
    """Builds the requests of one session, remembering what did not change between them."""

    def __init__(self, profile: Profile, frame: Frame) -> None:
        self.profile = profile
        self._frame = frame
        self._frame_tokens = frame_tokens(frame, profile)
        self._projector = Projector()
        self._checker = Checker(profile)
        self._counted: tuple[RequestMessage, ...] = ()
        self._sums = [0]
        """The estimated tokens of so many messages of those that were counted last."""
        self._edits: tuple[View, tuple[Message, ...], int | None] | None = None

    def project(self, messages: Sequence[Message], view: View) -> Request:
        """What the model would be sent now. Raises nothing."""
        return self._projector.project(messages, view, self.profile, self._frame)

    def build(
        self, messages: Sequence[Message], view: View, reported: Reported | None = None
    ) -> Built:
        """The request for *messages* as *view* shows them, sized and checked."""
        request = self.project(messages, view)
        last = messages[-1] if messages else None
        paused = last is not None and last.is_assistant and _is_paused(last)
        violations = self._checker.check(request, paused=paused)
        if self.profile.binds_thinking:
            violations += self._checker.check_against_history(
                request, messages, view.thinking_from, self._edited_from(messages, view)
            )
        return Built(request, self.size(request, messages, view, reported), violations)

    def size(
        self,
        request: Request,
        messages: Sequence[Message],
        view: View,
        reported: Reported | None,
    ) -> Size:
        """How large *request* is, the projection of *messages* by *view*: what was reported of
        the last one, and an estimate of what came after it; else an estimate of it all."""
        estimate = self.tokens(request)
        if reported is not None and reported.count <= len(messages):
            later = context_tokens(messages, view, self.profile, start=reported.count)
            known = max(1, estimate - later)
            least = known * LEAST_PLAUSIBLE // 1000
            most = known * MOST_PLAUSIBLE // 1000 + SMALL_TOKENS
            if least <= reported.tokens <= most:
                return Size(reported.tokens + self.scaled(later), "usage", estimate)
        return Size(self.scaled(estimate), "estimate", estimate)

    def scaled(self, tokens: int) -> int:
        """*tokens* by characters as this model was seen to count them."""
        return tokens

    @property
    def frame_tokens(self) -> int:
        """The system text and the tools, by characters."""
        return self._frame_tokens

    def _edited_from(self, messages: Sequence[Message], view: View) -> int | None:
        """As the function, which searches only where the view or what is before its edge is new."""
        edge = max([view.frontier, view.thinking_from, *(end for _, end in view.omitted)])
        shown = tuple(messages if view.inputs or view.texts else messages[:edge])
        known = self._edits
        if known is None or known[0] is not view or known[1] != shown:
            known = self._edits = (view, shown, view.edited_from(shown))
        return known[2]

    def tokens(self, request: Request) -> int:
        """The estimated tokens of *request*; each message is counted once."""
        messages, counted, sums = request.messages, self._counted, self._sums
        shared = shared_prefix(counted, messages)
        # What was counted stays alive here, so an address in it cannot be another message's.
        sizes = {id(counted[at]): sums[at + 1] - sums[at] for at in range(shared, len(counted))}
        del sums[shared + 1 :]
        for message in messages[shared:]:
            size = sizes.get(id(message))
            sums.append(sums[-1] + (self._size(message) if size is None else size))
        self._counted = messages
        return self._frame_tokens + sums[-1]

    def _size(self, message: RequestMessage) -> int:
        """By the length of its JSON, images at their flat cost. JSON's quoting makes it a
        little too large, which is the safe side."""
        size = len(message.body)
        flat = 0
        if b'"image"' in bytes(message.body):
            for raw in split_blocks(message.body):
                images = _image_bytes(raw)
                size -= images
                flat += self.profile.image_tokens if images else 0
        return estimate_text_tokens(size, self.profile) + flat + 4


def _is_paused(message: Message) -> bool:
    """Did the provider pause this reply, to have it sent back as it is?"""
    return stop_rule(message.stop_reason).follow is Follow.CONTINUE


def _image_bytes(raw: msgspec.Raw) -> int:
    kind = block_type(raw)
    if kind == "image":
        return len(raw)
    if kind != "tool_result":
        return 0
    found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("content")
    if found is None or not bytes(found).startswith(b"["):
        return 0
    return sum(_image_bytes(part) for part in split_blocks(found))
