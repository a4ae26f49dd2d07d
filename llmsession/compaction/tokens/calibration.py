"""Learns from a model's reported usage how far our estimates are off: a ratio, and an error margin.

There is one value for each model. It uses whole numbers only, so that equal samples always give
equal decisions.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

__all__ = ["Calibration"]

SAMPLES = 32
HEAVIEST_TOKENS = 4_000
"""The largest weight of one sample. Samples weigh as much as they hold, because the decisions are
about large contexts; but no single sample may decide alone.
"""
PRIOR_TOKENS = 1_500
"""The weight of the ratio 1, which never disappears, so that the first samples cannot swing the
ratio.
"""
MIN_TOKENS = 100
"""Smaller growth consists mostly of separators and says little about text."""
LOWEST_PERMILLE, HIGHEST_PERMILLE = 500, 2_000
"""A ratio outside these bounds has another cause: a request that was rewritten or reported only in
part, or content that we did not see. Such a sample counts for the error margin, not for the ratio.
"""
ERRORS = 64
ERRORS_NEEDED = 8
ONE = 1_000


class Calibration(msgspec.Struct, frozen=True, dict=True):
    """Learns from pairs of estimated and reported tokens of the same content.

    The content is what a request has beside the one before it. ``samples`` are the pairs that the
    ratio is made of, and ``errors`` are relative errors in thousandths; both are ordered from the
    oldest to the newest.

    A compaction does not reset anything here, because growth says nothing about the context that it
    happened in. But usage from before a compaction must not be compared with anything after it
    (``request_size.Anchor``). Each model needs a calibration of its own.
    """

    samples: tuple[tuple[int, int], ...] = ()
    errors: tuple[int, ...] = ()

    @cached_property
    def ratio_permille(self) -> int:
        """What to multiply an estimate with, in thousandths: 500 to 2,000.

        It is the weighted median of the samples' ratios, so that a few odd requests do not move it.
        """
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

    @cached_property
    def error_permille(self) -> int | None:
        """The relative error that 95 % of the latest estimates stayed within, in thousandths of the
        reported tokens; None before there are enough samples.
        """
        if len(self.errors) < ERRORS_NEEDED:
            return None
        return sorted(self.errors)[-(len(self.errors) // 20) - 1]

    def scaled(self, tokens: int) -> int:
        """An estimate of *tokens* as this model would report it, rounded up; at least 1 unless
        *tokens* is 0.
        """
        return -(-tokens * self.ratio_permille // ONE)

    def observed(
        self, estimated_tokens: int, reported_tokens: int, *, predicted_tokens: int | None = None
    ) -> Calibration:
        """This calibration with one more sample: a growth that was estimated and reported.

        *predicted_tokens* is what was predicted, if that was more than the scaled estimate, for
        example a reply's reported output. Samples without tokens change nothing.
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
