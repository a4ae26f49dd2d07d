"""What a model's reported usage teaches about our estimates of it: a ratio, and how far off we are.

One value per model; whole numbers only, so that equal samples always give equal decisions.
"""

from __future__ import annotations

import msgspec

__all__ = ["Calibration"]

SAMPLES = 32
HEAVIEST_TOKENS = 4_000
"""Samples weigh as much as they hold, because what is decided is about large contexts; but no
single one may decide alone."""
PRIOR_TOKENS = 1_500
"""The weight of "as estimated", which never leaves: the first samples cannot swing the ratio."""
MIN_TOKENS = 100
"""Smaller growth is mostly separators, and says little about text."""
LOWEST_PERMILLE, HIGHEST_PERMILLE = 500, 2_000
"""A sample outside says that something else happened: a request that was rewritten or is only
partly reported, or content that we did not see. It teaches the error, not the ratio."""
ERRORS = 64
ERRORS_NEEDED = 8
ONE = 1_000


class Calibration(msgspec.Struct, frozen=True):
    """Learns from pairs of estimated and reported tokens of the same content.

    The content is what a request has beside the one before it. ``samples`` are the pairs that
    the ratio is made of, ``errors`` thousandths; oldest first. A compaction resets nothing here,
    because a growth says nothing about the context it grew in; usage from before it is not to be
    compared with anything after it (``sizing.Anchor``). Another model needs another calibration.
    """

    samples: tuple[tuple[int, int], ...] = ()
    errors: tuple[int, ...] = ()

    @property
    def ratio_permille(self) -> int:
        """What to multiply an estimate with, in thousandths: 500 to 2,000. The median of the
        samples' ratios by weight, so that a few odd requests do not move it."""
        ratios = [
            (reported * ONE // estimated, min(estimated, HEAVIEST_TOKENS))
            for estimated, reported in self.samples
        ]
        ratios.append((ONE, PRIOR_TOKENS))
        ratios.sort()
        left = sum(weight for _, weight in ratios)
        index = -1
        while left > 0:
            index += 1
            left -= 2 * ratios[index][1]
        return ratios[index][0]

    @property
    def error_permille(self) -> int | None:
        """The relative error that 95 % of the latest estimates stayed within, in thousandths of
        what was reported; None before enough samples."""
        if len(self.errors) < ERRORS_NEEDED:
            return None
        return sorted(self.errors)[-(len(self.errors) // 20) - 1]

    def scaled(self, tokens: int) -> int:
        """*tokens* of an estimate as this model would report them, rounded up; never under 1
        for an estimate that is not 0."""
        return -(-tokens * self.ratio_permille // ONE)

    def observed(
        self, estimated_tokens: int, reported_tokens: int, *, predicted_tokens: int | None = None
    ) -> Calibration:
        """This calibration, having seen a growth that was estimated and reported.

        *predicted_tokens* is what was said in advance, if that was more than the scaled
        estimate, such as a reply's reported output. Samples without tokens change nothing.
        """
        if estimated_tokens <= 0 or reported_tokens <= 0:
            return self
        said = self.scaled(estimated_tokens) if predicted_tokens is None else predicted_tokens
        error = abs(said - reported_tokens) * ONE // reported_tokens
        errors = (*self.errors, error)[-ERRORS:]
        samples = self.samples
        ratio = reported_tokens * ONE // estimated_tokens
        is_telling = min(estimated_tokens, reported_tokens) >= MIN_TOKENS
        if is_telling and LOWEST_PERMILLE <= ratio <= HIGHEST_PERMILLE:
            samples = (*samples, (estimated_tokens, reported_tokens))[-SAMPLES:]
        return Calibration(samples, errors)
