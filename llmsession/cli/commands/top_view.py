"""The table that ``llmsession top`` prints."""

from __future__ import annotations

import msgspec
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from llmsession.session.stats import SessionStats
from llmsession.transport.wire.messages import ServiceSnapshot, ServiceStatistics
from llmsession.turns.spending.prices import dollars

from ..common.formatting import bar

__all__ = ["Line", "Look", "Totals", "look_at", "table_of"]

BAR = 10
NARROW = 100
"""With fewer columns than this the terminal is too narrow for the whole table."""
AROUND_LINES = 6
"""Lines of a terminal that the table's head, its totals and the caption take."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One session."""

    figures: SessionStats
    tokens_per_s: float | None
    """None if the session was not among those of the previous look."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the printed sessions. ``live`` and ``running`` count all sessions."""

    live: int
    running: int
    tokens_per_s: float
    interrupts: int
    compactions: int
    cost_nano_usd: int
    unpriced: bool


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One update. ``service`` is None for a tenant, who may not see the service's figures."""

    sessions: tuple[Line, ...]
    totals: Totals
    service: ServiceStatistics | None


def look_at(figures: ServiceSnapshot, before: ServiceSnapshot | None, elapsed_s: float) -> Look:
    """*figures* as a Look. Rates are computed from *before*, which is *elapsed_s* seconds older."""
    known = {stats.session: stats.output_tokens for stats in before.sessions} if before else {}
    lines = tuple(
        Line(figures=stats, tokens_per_s=_rate(stats, known.get(stats.session), elapsed_s))
        for stats in figures.sessions
    )
    totals = Totals(
        live=figures.live,
        running=figures.running,
        tokens_per_s=round(sum(line.tokens_per_s or 0.0 for line in lines), 1),
        interrupts=sum(stats.interrupts for stats in figures.sessions),
        compactions=sum(stats.compactions for stats in figures.sessions),
        cost_nano_usd=sum(stats.cost_nano_usd for stats in figures.sessions),
        unpriced=any(stats.unpriced for stats in figures.sessions),
    )
    return Look(sessions=lines, totals=totals, service=figures.service)


def _rate(now: SessionStats, before: int | None, elapsed_s: float) -> float | None:
    if before is None or elapsed_s <= 0:
        return None
    # While a reply streams, its tokens are estimated. The count that the provider reports at the
    # end may be lower, and the rate must not become negative.
    return round(max(0, now.output_tokens - before) / elapsed_s, 1)


def table_of(look: Look, width: int, height: int | None = None) -> Table:
    """*look* as a table for a terminal of *width* columns and, if given, *height* lines."""
    is_wide = width >= NARROW
    lines = look.sessions
    if height is not None:
        lines = lines[: max(1, height - AROUND_LINES)]
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, caption=_caption(look, len(lines)), caption_justify="left"
    )
    table.add_column("session", no_wrap=True, overflow="ellipsis", ratio=1 if is_wide else None)
    table.add_column("phase", no_wrap=True)
    if is_wide:
        table.add_column("model", no_wrap=True, overflow="ellipsis")
    for title in ("context", "tok/s", "int", "cmp", "cost"):
        justify = "left" if title == "context" else "right"
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # a literal
    for line in lines:
        cells = _cells(line)
        table.add_row(*(cells if is_wide else (*cells[:2], *cells[3:])))
    totals = look.totals
    cells = ("all", f"{totals.running} of {totals.live} run", "", "", f"{totals.tokens_per_s:,.1f}",
             f"{totals.interrupts:,}", f"{totals.compactions:,}",
             _cost(totals.cost_nano_usd, totals.unpriced))  # fmt: skip
    table.add_section()
    table.add_row(*(cells if is_wide else (*cells[:2], *cells[3:])), style="bold")
    return table


def _cells(line: Line) -> tuple[str, ...]:
    stats = line.figures
    colour = "red" if stats.utilisation > 0.9 else "yellow" if stats.utilisation > 0.7 else "green"
    phase = stats.phase if stats.turn_phase is None else f"{stats.turn_phase.lower()} {stats.step}"
    queued = f" +{stats.queued}" if stats.queued else ""
    return (
        escape(stats.session),
        escape(f"{phase}{queued}"),
        escape(stats.model),
        f"[{colour}]{bar(stats.utilisation, BAR)}[/] {stats.utilisation:4.0%}",
        "" if line.tokens_per_s is None else f"{line.tokens_per_s:,.1f}",
        f"{stats.interrupts:,}",
        f"{stats.compactions:,}",
        _cost(stats.cost_nano_usd, stats.unpriced),
    )


def _cost(nano_usd: int, unpriced: bool) -> str:
    if unpriced and not nano_usd:
        return "no price"
    return dollars(nano_usd) + ("+" if unpriced else "")


def _caption(look: Look, line_count: int) -> str:
    lines = []
    if line_count < look.totals.live:
        lines.append(f"{look.totals.live - line_count:,} more sessions are not shown")
    if look.service is not None:
        now = look.service
        lines.append(
            f"{now.connections:,} connections · {now.subscriptions:,} subscriptions ·"
            f" {now.open_turns:,} open turns · the loop is {now.loop_lag_s * 1000:.1f} ms late"
        )
    return "\n".join(lines)
