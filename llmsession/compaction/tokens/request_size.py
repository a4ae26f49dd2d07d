"""The size of the next request: what the provider reported, and an estimate of everything newer.

Works on whole numbers, and knows no session.
"""

from __future__ import annotations

import msgspec

from llmsession.turns.usage import Usage

from .calibration import Calibration

__all__ = ["Anchor", "Sized", "size_after", "size_whole"]


class Anchor(msgspec.Struct, frozen=True, gc=False):
    """A request whose usage is known, from which the next one is measured.

    It held the first ``messages`` messages of the history and the open turn; the next message is
    its reply. ``view_version`` is the version of the view that it was projected with.
    """

    messages: int
    prompt_tokens: int
    output_tokens: int
    view_version: int = 0

    @staticmethod
    def of(usage: Usage | None, messages: int, view_version: int = 0) -> Anchor | None:
        """The anchor that *usage* gives; None if *usage* does not report the prompt."""
        if usage is None or usage.prompt_tokens <= 0:
            return None
        return Anchor(messages, usage.prompt_tokens, usage.output_tokens, view_version)

    def holds(self, messages: int, view_version: int = 0) -> bool:
        """May a request with so many *messages* be measured from here?

        Usage from before a compaction or a rewind says nothing about the context after it. Some
        changes cannot be detected here: a rewind after which new messages were written, another
        model, another system text, or other tools. In these cases the caller must forget the
        anchor.
        """
        return self.messages < messages and self.view_version == view_version


class Sized(msgspec.Struct, frozen=True, gc=False):
    """The size of a request in tokens.

    - ``tokens`` is the size, and ``reported_tokens`` is the part of it that was reported.
    - ``estimated_tokens`` is the uncalibrated estimate of everything since the anchor, or of
      everything without an anchor. A calibration learns from it and from the growth that is
      reported later.
    - ``anchor_tokens`` is the anchor's prompt; 0 without an anchor.
    - ``margin_tokens`` is the largest error of 95 % of such sizes; None before there are enough
      samples.
    """

    tokens: int
    reported_tokens: int
    estimated_tokens: int
    anchor_tokens: int
    margin_tokens: int | None

    def taught(self, calibration: Calibration, prompt_tokens: int) -> Calibration:
        """*calibration*, after the provider reported *prompt_tokens* for this request.

        A size without an anchor teaches nothing, because what the provider adds to tools and system
        is not text.
        """
        if self.anchor_tokens == 0:
            return calibration
        return calibration.observed(
            self.estimated_tokens,
            prompt_tokens - self.anchor_tokens,
            predicted_tokens=self.tokens - self.anchor_tokens,
        )


UNTOUCHED = Calibration()


def size_whole(estimated_tokens: int, calibration: Calibration = UNTOUCHED) -> Sized:
    """The size of a request without an anchor. *estimated_tokens* are those of the system text, the
    tools and all messages.
    """
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

    All arguments but the anchor are uncalibrated estimates:

    - *reply_tokens*: the reply as it is sent back;
    - *unsent_tokens*: its visible thinking that is not sent back;
    - *after_tokens*: all messages after the reply;
    - *dropped_tokens*: what was in the anchor's prompt and is not sent any more, such as thinking
      of earlier turns.

    *returns_thinking* says whether hidden thinking, which is part of the reported output, is sent
    back.

    The reply counts as its reported output, with two exceptions. The report is ignored if it is
    less than half of the visible reply, because some servers report nothing, and some recordings
    hold the count of the first event. It is also ignored if hidden thinking is not sent back and
    the report is over a quarter more than the visible reply.
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
