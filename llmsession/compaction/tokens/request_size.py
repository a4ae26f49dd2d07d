"""How large the next request is: what the provider reported, and an estimate of what came after.

Whole numbers in, whole numbers out; knows no session.
"""

from __future__ import annotations

import msgspec

from llmsession.turns.usage import Usage

from .calibration import Calibration

__all__ = ["Anchor", "Sized", "size_after", "size_whole"]


class Anchor(msgspec.Struct, frozen=True, gc=False):
    """A request whose usage is known: what the next one is measured from.

    ``messages`` of the history and the open turn were in it; the next of them is its reply.
    ``view_version`` is that of the view that it was projected with.
    """

    messages: int
    prompt_tokens: int
    output_tokens: int
    view_version: int = 0

    @staticmethod
    def of(usage: Usage | None, messages: int, view_version: int = 0) -> Anchor | None:
        """The anchor that *usage* gives, None for usage that says nothing of the prompt."""
        if usage is None or usage.prompt_tokens <= 0:
            return None
        return Anchor(messages, usage.prompt_tokens, usage.output_tokens, view_version)

    def holds(self, messages: int, view_version: int = 0) -> bool:
        """May a request of so many *messages* be measured from here? Usage from before a
        compaction or a rewind says nothing about the context after it.

        A rewind that was written over since cannot be seen from here, nor can another model,
        system text or other tools: there the caller forgets the anchor.
        """
        return self.messages < messages and self.view_version == view_version


class Sized(msgspec.Struct, frozen=True, gc=False):
    """The size of a request in tokens.

    ``reported_tokens`` of it were reported. ``estimated_tokens`` is what was estimated since the
    anchor, or of everything without one, as the estimator said it: what a calibration learns
    from, together with the growth that is reported later. ``margin_tokens`` is what 95 % of
    such sizes were off by at most, None before enough of them were seen.
    """

    tokens: int
    reported_tokens: int
    estimated_tokens: int
    anchor_tokens: int
    margin_tokens: int | None

    def taught(self, calibration: Calibration, prompt_tokens: int) -> Calibration:
        """*calibration*, after this request was reported to have *prompt_tokens*. A size without
        an anchor teaches nothing: what the provider adds to tools and system is not text."""
        if self.anchor_tokens == 0:
            return calibration
        return calibration.observed(
            self.estimated_tokens,
            prompt_tokens - self.anchor_tokens,
            predicted_tokens=self.tokens - self.anchor_tokens,
        )


UNTOUCHED = Calibration()


def size_whole(estimated_tokens: int, calibration: Calibration = UNTOUCHED) -> Sized:
    """The size of a request that nothing is known of: *estimated_tokens* are those of the system
    text, the tools and all messages."""
    tokens = calibration.scaled(estimated_tokens)
    return Sized(tokens, 0, estimated_tokens, 0, _margin(tokens, calibration))


def size_after(
    anchor: Anchor,
    *,
    reply_tokens: int,
    after_tokens: int,
    unsent_tokens: int = 0,
    dropped_tokens: int = 0,
    returns_thinking: bool = True,
    calibration: Calibration = UNTOUCHED,
) -> Sized:
    """The size of the request that follows *anchor*.

    All but the anchor are estimates, not calibrated: *reply_tokens* of the reply as it is sent
    back, *unsent_tokens* of its thinking that can be seen and is not, *after_tokens* of all
    messages after it, *dropped_tokens* of what was in the anchor's prompt and is not sent any
    more (thinking of earlier turns). *returns_thinking*: is thinking that cannot be seen, but is
    part of the reported output, sent back?

    The reply counts as its reported output, unless that is less than half of what can be seen of
    it (some servers report nothing, and some recordings the first event's count) or, with hidden
    thinking that is not sent back, over a quarter more.
    """
    visible_tokens = calibration.scaled(reply_tokens)
    said = anchor.output_tokens - calibration.scaled(unsent_tokens)
    is_whole = returns_thinking or 4 * said <= 5 * visible_tokens
    is_reported = said > 0 and 2 * said >= visible_tokens and is_whole
    reply = said if is_reported else visible_tokens
    after = calibration.scaled(after_tokens)
    prompt_tokens = max(0, anchor.prompt_tokens - calibration.scaled(dropped_tokens))
    return Sized(
        tokens=prompt_tokens + reply + after,
        reported_tokens=prompt_tokens + (reply if is_reported else 0),
        estimated_tokens=reply_tokens + after_tokens - dropped_tokens,
        anchor_tokens=anchor.prompt_tokens,
        margin_tokens=_margin(prompt_tokens + reply + after - anchor.prompt_tokens, calibration),
    )


def _margin(tokens: int, calibration: Calibration) -> int | None:
    error = calibration.error_permille
    return None if error is None else -(-max(0, tokens) * error // 1_000)
