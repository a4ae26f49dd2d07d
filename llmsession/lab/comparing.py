"""Compares several policies over the conversations of one file, in several windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.planning.schedule import Schedule, waits_for_cache
from llmsession.errors import InvalidInput
from llmsession.transcripts import Conversation
from llmsession.turns.spending.prices import Price, PriceTable

from .cache import PLAIN
from .recording import Recording, record, window_of
from .replaying import Figures, Step, replay
from .retained import Needs, find_needs
from .table import Row, row_of

__all__ = [
    "SCHEDULES",
    "Compared",
    "Curve",
    "ScheduleName",
    "Subject",
    "compare",
    "ready",
    "summed",
]

ScheduleName: TypeAlias = Literal["own", "cache"]
"""When a policy acts: "own" as it declares, "cache" always when the provider's cache makes it
cheap.
"""
SCHEDULES: dict[ScheduleName, Schedule | None] = {"own": None, "cache": "cache"}
"""The corresponding values of the configuration ``compaction.schedule``."""


class Subject(NamedTuple):
    """A conversation that is ready to be replayed."""

    recording: Recording
    needs: Needs


class Curve(msgspec.Struct, frozen=True):
    """The requests of one conversation under one policy."""

    conversation: str
    steps: tuple[Step, ...]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one policy for one file in one window: its row, the figures that it was
    computed from, the curve of the largest conversation, and the first violations of validity
    rules, if there were any.
    """

    row: Row
    figures: Figures
    curve: Curve | None = None
    faults: tuple[str, ...] = ()


def ready(conversations: Iterable[Conversation], *, min_tokens: int = 0) -> list[Subject]:
    """Those of *conversations* that contain a request and at least *min_tokens* tokens, ready to be
    replayed. Raises InvalidMessage.
    """
    subjects = []
    for conversation in conversations:
        recording = record(conversation)
        if recording.asks and recording.tokens >= min_tokens:
            needs = find_needs(recording.messages, recording.asks, recording.system)
            subjects.append(Subject(recording, needs))
    return subjects


def compare(
    file: str,
    subjects: Sequence[Subject],
    policies: Sequence[Policy],
    windows: Sequence[int],
    *,
    schedules: Sequence[ScheduleName] = ("own",),
    prices: PriceTable | None = None,
    advanced: Callable[[int], None] = lambda messages: None,
) -> Iterator[Compared]:
    """A row for each window, policy and schedule, in their order.

    A policy that waits for the cache anyway gives the same result under both schedules, and is
    replayed once. Without *prices*, costs are in plain input tokens. *advanced* is called with the
    number of messages that were passed since the last call. Raises InvalidInput for a model without
    a price in *prices*.
    """
    priced = [_price(subject.recording.model, prices) for subject in subjects]
    unit = "input_tokens" if prices is None else "usd"
    longest = max(
        range(len(subjects)), key=lambda index: len(subjects[index].recording.asks), default=0
    )
    for window in windows:
        sized = [window_of(subject.recording, window) for subject in subjects]
        for policy in policies:
            before: Compared | None = None
            for schedule in schedules:
                if before is not None and waits_for_cache(policy, None):
                    row = replace(before.row, schedule=schedule)
                    yield replace(before, row=row)
                    continue
                figures = Figures()
                curve: Curve | None = None
                faults: list[str] = []
                for index, subject in enumerate(subjects):
                    replayed = replay(
                        subject.recording,
                        sized[index],
                        policy,
                        subject.needs,
                        price=priced[index],
                        schedule=SCHEDULES[schedule],
                        advanced=advanced,
                    )
                    figures.add(replayed)
                    faults += replayed.faults
                    if index == longest:
                        curve = Curve(subject.recording.id, tuple(replayed.steps))
                row = row_of(file, policy.name, window, figures, unit, schedule=schedule)
                before = Compared(row=row, figures=figures, curve=curve, faults=tuple(faults[:3]))
                yield before


def _price(model: str, prices: PriceTable | None) -> Price:
    if prices is None:
        return PLAIN
    price = prices.find(model)
    if price is None:
        raise InvalidInput(f"there is no price for model {model!r}: add it to the prices")
    return price


def summed(name: str, compared: Iterable[Compared]) -> list[Compared]:
    """A row for each window, policy and schedule over all of *compared*, with *name* as its file.
    It is computed from their counts, not from their shares.
    """
    sums: dict[tuple[int, str, str, str], Figures] = {}
    for comparison in compared:
        row = comparison.row
        key = (row.window, row.policy, row.schedule, row.unit)
        sums.setdefault(key, Figures()).add(comparison.figures)
    return [
        Compared(
            row=row_of(name, policy, window, figures, unit, schedule=schedule), figures=figures
        )
        for (window, policy, schedule, unit), figures in sums.items()
    ]
