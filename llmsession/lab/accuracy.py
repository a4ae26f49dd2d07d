"""How far token counters are off on recorded conversations: one row for each file, model and
counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from llmsession.transcripts import Conversation

from .counters import COUNTERS, TextCounter, predictions
from .growth import Growth, growths

__all__ = ["ALL", "Accuracy", "measure", "summed"]

ALL = "all"

_NO_VOCABULARY = "skipped: no o200k vocabulary in the cache; `llmsession vocabulary` fetches it"


class _Subject(NamedTuple):
    file: str
    model: str
    counter: str


class _Pair(NamedTuple):
    predicted: int
    reported: int

    @property
    def error(self) -> float:
        return abs(self.predicted - self.reported) / self.reported


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of one counter on the prompt growths that one model reported.

    Errors are relative to the reported tokens: ``median_error`` is the median, and 95 % stay within
    ``p95_error``. ``bias`` is the relative error of the sum; it is negative if the counter said too
    little. All three are None if nothing was compared: then ``requests`` is 0, and ``excluded`` and
    ``notes`` say why. ``excluded`` counts the pairs of requests that were left out, by reason
    (``growth.EXCLUDED``).
    """

    file: str
    model: str
    counter: str
    requests: int
    median_error: float | None
    p95_error: float | None
    bias: float | None
    excluded: dict[str, int]
    notes: tuple[str, ...] = ()


class Measured(msgspec.Struct, frozen=True):
    """A row, and the pairs that it was computed from, so that several rows can be summed."""

    row: Accuracy
    pairs: tuple[_Pair, ...]


def measure(
    file: str, conversations: Iterable[Conversation], tiktoken: TextCounter | None
) -> list[Measured]:
    """A row for each model in *conversations* and each counter, in the order of the models. Takes
    as long as tiktoken needs for the texts.
    """
    chains: dict[str, list[list[Growth]]] = {}
    excluded: Counter[str] = Counter()
    for conversation in conversations:
        growth_list, left_out = growths(conversation)
        excluded += left_out
        for model in dict.fromkeys(growth.model for growth in growth_list):
            chain = [growth for growth in growth_list if growth.model == model]
            chains.setdefault(model, []).append(chain)
    return [
        _measured(_Subject(file, model, counter), chains.get(model, []), excluded, tiktoken)
        for model in (*chains, *([] if chains else [""]))
        for counter in COUNTERS
    ]


def _measured(
    subject: _Subject,
    chains: Sequence[Sequence[Growth]],
    excluded: Mapping[str, int],
    tiktoken: TextCounter | None,
) -> Measured:
    needs = "tiktoken" in subject.counter and tiktoken is None
    pairs = tuple(
        _Pair(predicted, growth.grown_tokens)
        for chain in ([] if needs else chains)
        for growth, predicted in zip(
            chain, predictions(subject.counter, chain, tiktoken), strict=True
        )
    )
    notes = (_NO_VOCABULARY,) if needs else ()
    return Measured(_row(subject, pairs, dict(excluded), notes), pairs)


def summed(measured: Iterable[Measured]) -> list[Measured]:
    """A row for each counter over everything in *measured*: computed from the pairs, not from the
    rows.
    """
    rows = list(measured)
    excluded: Counter[str] = Counter()
    files: set[str] = set()
    for item in rows:
        # All rows of a file have the same counts, so each file counts once.
        if item.row.file not in files:
            files.add(item.row.file)
            excluded.update(item.row.excluded)
    totals = []
    for counter in COUNTERS:
        ours = [item for item in rows if item.row.counter == counter]
        pairs = tuple(pair for item in ours for pair in item.pairs)
        notes = tuple(dict.fromkeys(note for item in ours for note in item.row.notes))
        totals.append(
            Measured(_row(_Subject(ALL, ALL, counter), pairs, dict(excluded), notes), pairs)
        )
    return totals


def _row(
    subject: _Subject, pairs: Sequence[_Pair], excluded: dict[str, int], notes: tuple[str, ...]
) -> Accuracy:
    errors = sorted(pair.error for pair in pairs)
    median = p95 = bias = None
    if errors:
        median = round(errors[(len(errors) - 1) // 2], 4)
        p95 = round(errors[(len(errors) * 95 - 1) // 100], 4)
        reported = sum(pair.reported for pair in pairs)
        bias = round(sum(pair.predicted for pair in pairs) / reported - 1, 4)
    return Accuracy(
        **subject._asdict(),
        requests=len(pairs),
        median_error=median,
        p95_error=p95,
        bias=bias,
        excluded=excluded,
        notes=notes,
    )
