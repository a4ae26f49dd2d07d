"""The lab's report: one self-contained HTML file, without scripts or the network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .charts import Dot, Line, curves, scatter
from .comparing import Compared
from .labels import short
from .table import Row, frontier

__all__ = ["CAVEATS", "html_report"]

MAX_CHARTED = 24
"""Curves are drawn for this many files, those with most requests. The scatter plot and the table
cover all files.
"""

CAVEATS = (
    "The replayed cost is counterfactual: the recorded model did not see the shorter context, and"
    " would have answered otherwise.",
    "Every summary of a prefix is extractive, made by the same rules for every policy, also where"
    " the policy wants a model's; it costs nothing here.",
    "retained: of the distinctive strings (paths, identifiers, numbers, quoted lines) that replies"
    " take from earlier tool results, the share that was in the context then. recallable: of the"
    " others, the share that recall brought; each recall is a request of its own, and in the cost.",
    "Sizes are calibrated estimates; the cache is a prefix cache that forgets by the recorded"
    " times. System texts and tools that are not in the file are not counted.",
    "A request that a policy could not make fit (too_large) is not sent, costs nothing and holds"
    " nothing; such a policy is drawn hollow, and is not on the frontier.",
)
"""What a reader must know about the figures."""

_COLUMNS = (
    "policy", "requests", "tokens_sent", "cache_write", "cache_read", "cost", "peak_context",
    "rewrites", "summaries", "retained", "recallable", "recalls", "recall_cost", "invalid_requests",
    "too_large", "rescues",
)  # fmt: skip

_STYLE = """
:root { color-scheme: light dark; --ink: #1d1f21; --soft: #6b7075; --line: #d9dcdf; --back: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #9aa0a6; --line: #3a3d40; --back: #17181a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1360px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; color: var(--soft); } li { color: var(--soft); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; } svg polyline { fill: none; stroke-width: 1.6; }
svg polyline.back { stroke: var(--line); stroke-width: 1; }
svg polyline.frontier { stroke: var(--soft); stroke-dasharray: 2 3; }
svg line.grid { stroke: var(--line); stroke-width: .6; }
svg line.limit { stroke: var(--soft); stroke-dasharray: 5 4; }
svg circle.mark { stroke: var(--back); stroke-width: .8; }
svg text { fill: var(--soft); font-size: 11px; } svg text.name { font-size: 9.5px; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .15rem .55rem; text-align: right; border-bottom: 1px solid var(--line); }
th:nth-child(2), td:nth-child(2) { text-align: left; } tr.best td { font-weight: 600; }
.legend span { margin-right: 1rem; font-size: 13px; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
"""


def html_report(compared: Sequence[Compared], sums: Sequence[Compared] = ()) -> str:
    """A page for *compared*, with their *sums* first.

    For each file and window it shows the context size over the steps, with a curve for each policy
    and its rewrites marked; the cost against the retained facts; and the rows.
    """
    colours = _colours(list(dict.fromkeys(item.row.policy for item in (*sums, *compared))))
    charted = set(_largest(compared))
    groups: dict[tuple[str, int], list[Compared]] = {}
    for item in (*sums, *compared):
        groups.setdefault((item.row.file, item.row.window), []).append(item)
    sections = []
    for (file, window), group in groups.items():
        draws = group[0] in sums or file in charted
        sections.append(_section(file, window, group, colours, draws=draws))
    caveats = "".join(f"<li>{escape(item)}</li>" for item in CAVEATS)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>llmsession lab</title><style>{_STYLE}</style></head><body>"
        f"<h1>llmsession lab</h1><ul>{caveats}</ul>{''.join(sections)}</body></html>\n"
    )


def _largest(compared: Sequence[Compared]) -> list[str]:
    requests: dict[str, int] = {}
    for comparison in compared:
        requests[comparison.row.file] = max(
            requests.get(comparison.row.file, 0), comparison.row.requests
        )
    return sorted(requests, key=lambda file: -requests[file])[:MAX_CHARTED]


def _colours(policies: Sequence[str]) -> dict[str, str]:
    # Hues are a golden angle apart, so neighbours in the list get very different colours.
    return {
        policy: f"hsl({index * 137.508 % 360:.0f} 62% {42 + 12 * (index % 2)}%)"
        for index, policy in enumerate(policies)
    }


def _section(
    file: str, window: int, group: Sequence[Compared], colours: dict[str, str], *, draws: bool
) -> str:
    rows = sorted((item.row for item in group), key=lambda row: (row.cost, row.policy))
    best = frontier(rows)
    named = {row.policy for row in best} | {"balanced"}
    over_steps = _curves(group, named, colours) if draws else ""
    charts = (
        f'<div class="pair">{over_steps}{_scatter(rows, best, colours)}</div>'
        f"{_legend(named, rows, colours)}"
    )
    return (
        f"<section><h2>{escape(file)}</h2><h3>window {window:,} tokens, costs in"
        f" {'dollars' if rows[0].unit == 'usd' else 'plain input tokens'}</h3>"
        f"{charts}{_table(rows, best)}</section>"
    )


def _curves(group: Sequence[Compared], named: set[str], colours: dict[str, str]) -> str:
    lines = []
    for item in group:
        if item.curve is None:
            continue
        steps = [(index, step) for index, step in enumerate(item.curve.steps) if not step.too_large]
        lines.append(
            Line(
                name=item.row.policy,
                colour=colours[item.row.policy],
                points=tuple((float(index), float(step.tokens)) for index, step in steps),
                marks=tuple(
                    (float(index), float(step.tokens)) for index, step in steps if step.rewritten
                ),
                stands_back=item.row.policy not in named,
            )
        )
    return curves(
        lines, limit=float(group[0].row.window), x_name="request", y_name="context, tokens"
    )


def _scatter(rows: Sequence[Row], best: Sequence[Row], colours: dict[str, str]) -> str:
    dots = [
        Dot(
            name=row.policy,
            colour=colours[row.policy],
            x=row.cost,
            y=row.retained,
            told=f"{row.policy}: retained {_share(row.retained)}, cost {short(row.cost)}",
            hollow=row.too_large > 0,
        )
        for row in rows
    ]
    line = [(row.cost, row.retained) for row in best if row.retained is not None]
    return scatter(dots, line, x_name="cost", y_name="retained")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _legend(named: set[str], rows: Sequence[Row], colours: dict[str, str]) -> str:
    policies = [row.policy for row in rows if row.policy in named]
    text = "".join(
        f'<span><i style="background:{colours[item]}"></i>{escape(item)}</span>'
        for item in policies
    )
    curves_key = "<span>grey: the others; dots: the context rewritten</span>"
    scatter_key = (
        "<span>numbers: rows of the table; hollow: requests too large; at the edge: beyond the"
        " scale; square: nothing to retain</span>"
    )
    return f'<p class="legend">{text}{curves_key}</p><p class="legend">{scatter_key}</p>'


def _table(rows: Sequence[Row], best: Sequence[Row]) -> str:
    """The *rows* as a table, numbered in their order."""
    head = "<th>#</th>" + "".join(f"<th>{name.replace('_', ' ')}</th>" for name in _COLUMNS)
    body = "".join(
        f"<tr{' class=best' if row in best else ''}><td>{number}</td>"
        + "".join(f"<td>{_cell(getattr(row, name))}</td>" for name in _COLUMNS)
        + "</tr>"
        for number, row in enumerate(rows, 1)
    )
    return (
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "<p>Bold: on the Pareto frontier of cost against retained facts.</p></div>"
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
