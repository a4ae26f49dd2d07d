"""What a soak came to: its figures as a table, and whether it held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import percentile

from .errand import Told
from .flatness import Growth, Rules, Sample, growths, lines
from .model import Asked
from .verdict import Checked

__all__ = ["Report", "SoakPlan", "figures", "told_as_table", "write_page"]

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
QUARTERS = 4
MB = 1e6


class SoakPlan(msgspec.Struct, frozen=True, kw_only=True):
    """*clients* processes at once, each with *lives* visitors beside its stress; the last has none
    of that, and may be killed. In each round
    about half of *faults* happen, beside a service that is killed in every second one."""

    minutes: float = 60.0
    seed: int = 1
    clients: int = 3
    lives: int = 4
    round_s: float = 60.0
    rest_s: float = 16.0
    store: str | None = None
    faults: tuple[str, ...] = ("stop", "model away", "vacuum", "client")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``told`` is what each client process told, and when."""

    plan: SoakPlan
    seconds: float
    lives: int
    rests: int
    samples: tuple[Sample, ...]
    faults: dict[str, int]
    told: tuple[tuple[float, Told], ...]
    asked: tuple[Asked, ...]
    checked: Checked
    complaints: tuple[str, ...]
    rules: Rules

    @property
    def growths(self) -> list[Growth]:
        """What was not flat."""
        return growths(self.samples, self.rules)

    @property
    def holds(self) -> bool:
        """Was everything flat, and every promise kept?"""
        return not self.growths and not self.complaints


def figures(report: Report) -> dict[str, Any]:
    """All that ``--json`` says; the samples themselves are in ``report.json``."""
    return {
        "seconds": report.seconds,
        "seed": report.plan.seed,
        "rows": dict(_rows(report)),
        "counts": dict(sorted(_counts(report).items())),
        "lines": [msgspec.to_builtins(each) for each in lines(report.samples, report.rules)],
        "growths": [msgspec.to_builtins(each) for each in report.growths],
        "complaints": list(report.complaints),
        "holds": report.holds,
    }


def told_as_table(report: Report) -> str:
    """The figures in Markdown: what was done, what was seen, and the lines of memory."""
    rows = ["| what | figure |", "| --- | --- |"]
    rows += [f"| {name} | {value} |" for name, value in _rows(report)]
    rows += ["", "| memory | over | median | growth in an hour (lower quartile) |"]
    rows += ["| --- | --- | --- | --- |"]
    rows += [
        f"| {each.name} | {each.window_s / 60:.0f} min, {each.points} points |"
        f" {each.median_bytes / MB:.0f} MB | {each.bytes_per_hour / MB:+.1f} MB"
        f" ({each.least_bytes_per_hour / MB:+.1f} MB) |"
        for each in lines(report.samples, report.rules)
    ]
    return "\n".join(rows)


def _counts(report: Report) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _, told in report.told:
        counts.update(told.counts)
    return counts


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    counts = _counts(report)
    yield "length", f"{report.seconds / 60:.0f} minutes, {report.rests} rounds with a rest each"
    yield "processes of the service", str(report.lives)
    for name, number in sorted(report.faults.items()):
        yield name, f"{number:,}"
    yield "turns of stress, checked record by record", f"{counts['checked turns']:,}"
    asked = sum(counts[name] for name in ("send", "interrupt", "compact", "fork", "rewind"))
    yield "other sends, interrupts, compactions, forks, rewinds", f"{asked:,}"
    erased = sum(counts[name] for name in ("clear", "purge", "forget", "delete"))
    yield "clears, purges, forgets, deletions", f"{erased:,}"
    yield "connections that vanished", f"{counts['vanished']:,}"
    requests = sum(each.requests for each in report.asked)
    spoiled = sum(each.spoiled for each in report.asked)
    yield "requests to the model, of these spoiled", f"{requests:,}, {spoiled:,}"
    yield "requests that broke a rule", str(sum(each.refused for each in report.asked))
    left = report.checked
    yield "left in the store", f"{left.sessions} sessions, {left.records:,} records"
    yield "turns without an end", str(left.open_turns)
    yield from _service_rows(report)
    yield from _latency_rows(report)


def _service_rows(report: Report) -> Iterator[tuple[str, str]]:
    loaded = [each for each in report.samples if not each.rest]
    rests = [each for each in report.samples if each.rest]
    for name, seen in (("under load", loaded), ("at rest", rests)):
        if not seen:
            continue
        for what in ("handles", "threads", "tasks", "sessions"):
            known = [value for each in seen if (value := getattr(each, what)) is not None]
            if known:
                yield f"{what} {name}, least to most", f"{min(known)} to {max(known)}"
    if loaded:
        lags = [each.lag_s * 1000 for each in loaded]
        told = f"{percentile(lags, 0.5):.1f}, {percentile(lags, 0.99):.0f} ms"
        yield "lag of the service's loop, p50, p99", told


def _latency_rows(report: Report) -> Iterator[tuple[str, str]]:
    for what in ("sends", "interrupts"):
        cells = []
        for at in range(QUARTERS):
            taken = _between(report, f"{what}_ms", at)
            if taken:
                cells.append(f"{percentile(taken, 0.5):.0f}, {percentile(taken, 0.99):.0f}")
        yield f"{what} answered, p50, p99 in ms, by quarters of the run", "; ".join(cells)


def _between(report: Report, name: str, quarter: int) -> Sequence[float]:
    size_s = max((at for at, _ in report.told), default=0.0) / QUARTERS
    return [
        value
        for at, told in report.told
        if quarter * size_s < at <= (quarter + 1) * size_s
        for value in getattr(told, name)
    ]


def write_page(report: Report, machine: str, page: Path) -> None:
    """Write the figures into *page*, between its markers; one without them is made anew."""
    written = page.read_text("utf-8") if page.exists() else f"# The soak\n\n{BEGIN}\n{END}\n"
    before, _, rest = written.partition(BEGIN)
    _, _, after = rest.partition(END)
    verdict = "Nothing grew, and no promise was broken."
    if not report.holds:
        what = [f"{each.what}: {each.told}" for each in report.growths]
        verdict = "It did not hold:\n\n" + "\n".join(
            f"* {each}" for each in [*what, *report.complaints]
        )
    told = f"Taken on {machine}; seed {report.plan.seed}. {verdict}\n\n{told_as_table(report)}"
    page.write_text(f"{before}{BEGIN}\n\n{told}\n\n{END}{after}", "utf-8")
