"""The results as a page: a table and a plot for each work, and where a peer is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .adapters.common import percentile
from .bars import Bar, bars
from .catalogue import BARE, OURS, PEERS
from .results import Found, Results, figure
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
    yield f"\nTaken on {results.machine}; seed {results.seed}.\n"
    yield "| who | versions | taken | running tasks meanwhile |"
    yield "| --- | --- | --- | --- |"
    for name in PEERS:
        rows = [peers[name] for peers in results.found.values() if name in peers]
        if rows:
            versions = ", ".join(f"{one} {number}" for one, number in rows[0].versions.items())
            loads = [row.load for row in rows]
            span = f"{min(loads):.0f} to {max(loads):.0f}"
            yield f"| {name} | {versions} | {rows[-1].taken} | {span} |"
    for work in WORKS.values():
        if work.name in results.found:
            yield from _section(work, results)


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
    """A row for each peer, a column for each measure; the last is theirs divided by ours."""
    shown = [measure for measure in work.measures if _is_shown(measure, work, results)]
    plotted = next(measure for measure in work.measures if measure.name == work.plotted)
    head = [_headed(measure) for measure in shown]
    lines = [
        f"| | {' | '.join(head)} | {plotted.name}, divided by ours |",
        "| --- " * (len(shown) + 2) + "|",
    ]
    ours = results.found[work.name].get(OURS, Found()).ran.measured
    for name in PEERS:
        if (row := results.found[work.name].get(name)) is None:
            continue
        ran = row.ran
        if reason := ran.unsupported or ran.failed:
            said = "not measured: " if ran.failed else "not offered: "
            lines.append(f"| {name} | {_short(said + reason)} {'| ' * (len(shown) - 1)}| |")
            continue
        cells = [shown_value(measure, ran.measured) for measure in shown]
        ratio = _ratio(figure(ran.measured, plotted.name), figure(ours, plotted.name))
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
    legend = "; ".join(f"`{measure.name}`: {measure.says}" for measure in shown)
    return "\n".join(lines) + f"\n\n{legend}."


def _is_shown(measure: Measure, work: Work, results: Results) -> bool:
    """A measure that no row has anything to say of is left out."""
    rows = [row.ran.measured for row in results.found[work.name].values()]
    return any(row.get(measure.name) not in (None, "", {}) for row in rows)


def _headed(measure: Measure) -> str:
    return measure.name + (f", {measure.unit}" if measure.unit else "")


def shown_value(measure: Measure, measured: Mapping[str, Any]) -> str:
    """A measure as the table shows it."""
    value = measured.get(measure.name)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        if not value:
            return "never"
        return f"{_number(figure(measured, measure.name))} (p99 {_number(percentile(value, 0.99))})"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "-"
    if isinstance(value, str):
        return _short(value)
    if value is None:
        return "never" if measured.get("hangs") and measure.better == "less" else "-"
    return _number(float(value))


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= TOLD_CHARS else text[: TOLD_CHARS - 3] + "..."


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.2g}" if theirs is not None and ours else "-"


def ahead(work: Work, results: Results) -> Iterator[str]:
    """Each figure in which a peer is clearly better than we are, in words."""
    ours = results.found[work.name].get(OURS, Found()).ran.measured
    for name, row in results.found[work.name].items():
        if name in (OURS, BARE):
            continue
        for measure in work.measures:
            mine, other = figure(ours, measure.name), figure(row.ran.measured, measure.name)
            if mine is None or other is None or measure.better == "told":
                continue
            gain = mine - other if measure.better == "less" else other - mine
            if gain > CLEARLY * abs(mine) and gain > SMALL.get(measure.unit, 0.0):
                unit = f" {measure.unit}" if measure.unit else ""
                told = f"`{measure.name}` {_number(other)}{unit}, ours {_number(mine)}{unit}"
                yield f"{name} in {told}"


def plot(work: Work, results: Results) -> str:
    """The plot of a work's chief measure; "" without a row."""
    measure = next(one for one in work.measures if one.name == work.plotted)
    rows = []
    for name in PEERS:
        if (row := results.found.get(work.name, {}).get(name)) is None:
            continue
        ran = row.ran
        value = figure(ran.measured, measure.name)
        listed = ran.measured.get(measure.name)
        most = percentile(listed, 0.99) if isinstance(listed, list) and listed else None
        if ran.unsupported or ran.failed:
            told = "not offered" if ran.unsupported else "not measured"
        else:
            told = shown_value(measure, ran.measured)
        rows.append(Bar(name, value, told, most, name == OURS))
    title = f"{work.title}: {measure.says}" + (f", {measure.unit}" if measure.unit else "")
    return bars(title, rows) if rows else ""
