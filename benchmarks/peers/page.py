"""The results as a page: a table and a plot for each work, and where a peer is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .bars import Bar, bars
from .catalogue import BARE, OURS, PEERS
from .results import Found, Results, Round
from .rounds import Figure, figure, said
from .works import WORKS, Measure, Work

__all__ = ["ahead", "plot", "table", "write_page"]

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
CLEARLY = 0.1
"""By less than this share of ours, a figure on a shared machine is not ahead of another."""
SMALL = {"ms": 0.1, "s": 0.005, "MB": 1.0, "": 0.01}
"""Nor by less than this, in the measure's unit."""
TOLD_CHARS = 100


def write_page(results: Results, root: Path) -> None:
    """Write the figures into ``docs/explanation/comparison.md`` under *root*, between its markers,
    and the plots beside it. A page that is not there is made."""
    page = root / "docs" / "explanation" / "comparison.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    plots = root / "docs" / "pictures" / "peers"
    plots.mkdir(parents=True, exist_ok=True)
    for work in WORKS.values():
        if drawn := plot(work, results):
            (plots / f"{work.name}.svg").write_text(drawn, "utf-8")
    written = page.read_text("utf-8") if page.exists() else f"# The peers\n\n{BEGIN}\n{END}\n"
    before, _, rest = written.partition(BEGIN)
    _, _, after = rest.partition(END)
    told = "\n".join(_figures(results))
    page.write_text(f"{before}{BEGIN}\n{told}\n{END}{after}", "utf-8")


def _figures(results: Results) -> Iterator[str]:
    everything = [found for peers in results.found.values() for found in peers.values()]
    rounds = [each for found in everything for each in found.rounds]
    commits = ", ".join(f"`{name}`" for name in sorted({each.commit for each in rounds} - {""}))
    at = f"; llmsession at {commits}" if commits else ""
    yield f"\nTaken on {results.machine}; seed {results.seed} in the first round{at}.\n"
    yield "| who | versions | taken | rounds | quiet before | cores of others meanwhile |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in PEERS:
        of = [peers[name] for peers in results.found.values() if name in peers]
        if of:
            yield _taken(name, of)
    for work in WORKS.values():
        if work.name in results.found:
            yield from _section(work, results)


def _taken(name: str, of: Sequence[Found]) -> str:
    """The row that says with what, when and beside what the figures of a peer were taken."""
    rounds = [each for found in of for each in found.rounds]
    versions = ", ".join(f"{one} {number}" for one, number in of[-1].versions.items())
    days = sorted({each.day for each in rounds})
    taken = " to ".join(dict.fromkeys((days[0], days[-1])))
    counts = [len(found.rounds) for found in of if not found.unsupported] or [0]
    number = " to ".join(f"{count}" for count in dict.fromkeys((min(counts), max(counts))))
    quiet = f"{sum(each.quiet for each in rounds)} of {len(rounds)}"
    return f"| {name} | {versions} | {taken} | {number} | {quiet} | {_others(rounds)} |"


def _others(rounds: Sequence[Round]) -> str:
    cores = sorted(each.others for each in rounds if each.others is not None)
    if not cores:
        return "not measured"
    return f"{cores[len(cores) // 2]:.2f} ({cores[0]:.2f} to {cores[-1]:.2f})"


def _section(work: Work, results: Results) -> Iterator[str]:
    yield f"\n### {work.title}\n\n{work.asks}\n"
    yield table(work, results)
    yield f"\n![{work.title}](../pictures/peers/{work.name}.svg)"
    found = list(ahead(work, results))
    if found:
        yield "\nAhead of us: " + "; ".join(found) + "."
    else:
        yield "\nNo peer is ahead of us here."
    yield f"\nNot comparable: {work.apart}"


def table(work: Work, results: Results) -> str:
    """A row for each peer, a column for each measure: the median of the rounds and their range. The
    last column is theirs divided by ours."""
    shown = [measure for measure in work.measures if _is_shown(measure, work, results)]
    plotted = next(measure for measure in work.measures if measure.name == work.plotted)
    head = [_headed(measure) for measure in shown]
    lines = [
        f"| | {' | '.join(head)} | {plotted.name}, divided by ours |",
        "| --- " * (len(shown) + 2) + "|",
    ]
    ours = figure(results.found[work.name].get(OURS, Found()).measured, plotted.name)
    for name in PEERS:
        if (found := results.found[work.name].get(name)) is None:
            continue
        failures = found.failures
        if not found.measured:
            reason = found.unsupported or failures[0]
            told = "not offered: " if found.unsupported else "not measured: "
            lines.append(f"| {name} | {_short(told + reason)} {'| ' * (len(shown) - 1)}| |")
            continue
        cells = [shown_value(measure, found.measured) for measure in shown]
        ratio = _ratio(figure(found.measured, plotted.name), ours)
        if failures:
            rounds = f"{len(failures)} of {len(found.rounds)} rounds"
            name += f" (no figures of {rounds}: {_short(failures[0])})"
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
    legend = "; ".join(f"`{measure.name}`: {measure.says}" for measure in shown)
    return "\n".join(lines) + f"\n\n{legend}."


def _is_shown(measure: Measure, work: Work, results: Results) -> bool:
    """A measure that no row has anything to say of is left out."""
    rows = [each for found in results.found[work.name].values() for each in found.measured]
    return any(row.get(measure.name) not in (None, "", {}) for row in rows)


def _headed(measure: Measure) -> str:
    return measure.name + (f", {measure.unit}" if measure.unit else "")


def shown_value(measure: Measure, rounds: Sequence[dict[str, Any]]) -> str:
    """A measure as the table shows it: the median of *rounds*, with their range."""
    values = [measured.get(measure.name) for measured in rounds]
    there = [value for value in values if value not in (None, [])]
    if not there:
        hangs = any(measured.get("hangs") for measured in rounds)
        return "never" if [] in values or (hangs and measure.better == "less") else "-"
    found = figure(rounds, measure.name)
    if isinstance(there[0], bool):
        yes = there.count(True)
        return {0: "no", len(there): "yes"}.get(yes, f"yes in {yes} of {len(there)}")
    if found is None:
        told = said(rounds, measure.name)
        if isinstance(told, dict):
            return ", ".join(f"{name} {count}" for name, count in told.items()) or "-"
        return _short(str(told))
    notes = [f"{_number(found.least)} to {_number(found.most)}"] if _spread(found) else []
    if isinstance(there[0], list):
        notes.append(f"p99 {_number(said(rounds, measure.name))}")
    if len(there) < len(values):
        notes.append(f"never in {len(values) - len(there)} of {len(values)}")
    return _number(found.median) + (f" ({'; '.join(notes)})" if notes else "")


def _spread(found: Figure) -> bool:
    """Do the rounds differ, as far as is shown?"""
    return _number(found.least) != _number(found.most)


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= TOLD_CHARS else text[: TOLD_CHARS - 3] + "..."


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ratio(theirs: Figure | None, ours: Figure | None) -> str:
    return f"{theirs.median / ours.median:.2g}" if theirs and ours and ours.median else "-"


def ahead(work: Work, results: Results) -> Iterator[str]:
    """Each figure in which a peer is clearly better than we are, by the medians, in words."""
    ours = results.found[work.name].get(OURS, Found()).measured
    for name, row in results.found[work.name].items():
        if name in (OURS, BARE):
            continue
        for measure in work.measures:
            mine, other = figure(ours, measure.name), figure(row.measured, measure.name)
            if mine is None or other is None or measure.better == "told":
                continue
            gain = mine.median - other.median
            gain = gain if measure.better == "less" else -gain
            if gain > CLEARLY * abs(mine.median) and gain > SMALL.get(measure.unit, 0.0):
                unit = f" {measure.unit}" if measure.unit else ""
                theirs, own = _number(other.median), _number(mine.median)
                yield f"{name} in `{measure.name}` {theirs}{unit}, ours {own}{unit}"


def plot(work: Work, results: Results) -> str:
    """The plot of a work's chief measure, the line from the least to the most of the rounds; ""
    without a row."""
    measure = next(one for one in work.measures if one.name == work.plotted)
    rows = []
    for name in PEERS:
        if (found := results.found.get(work.name, {}).get(name)) is None:
            continue
        value = figure(found.measured, measure.name)
        if found.measured:
            told = _number(value.median) if value else shown_value(measure, found.measured)
        else:
            told = "not offered" if found.unsupported else "not measured"
        rows.append(Bar(name, value, told, name == OURS))
    title = f"{work.title}: {measure.says}" + (f", {measure.unit}" if measure.unit else "")
    return bars(title, rows) if rows else ""
