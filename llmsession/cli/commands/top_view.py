"""The table that ``llmsession top`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from llmsession.session.stats import SessionStats
from llmsession.transport.wire.messages import ClusterStatistics, ServiceSnapshot, ServiceStatistics
from llmsession.turns.spending.prices import dollars

from ..common.formatting import bar

if TYPE_CHECKING:
    from llmsession.cluster.overview import HostAnswer

__all__ = ["ClusterLook", "HostLine", "Line", "Look", "Totals", "cluster_look_at", "look_at",
           "table_of", "tables_of"]  # fmt: skip

BAR = 10
NARROW = 100
"""With fewer columns than this the terminal is too narrow for the whole table."""
AROUND_LINES = 6
"""Lines of a terminal that the table's head, its totals and the caption take."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session."""

    figures: SessionStats
    tokens_per_s: float | None
    """None if the session was not among those of the previous look."""
    host: str | None = None
    """The host that it is live at; None if there is only one service."""


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


class HostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a cluster. ``totals`` is None if there was no answer, and ``error`` says why."""

    name: str
    address: str
    state: str
    totals: Totals | None
    error: str | None


class ClusterLook(msgspec.Struct, frozen=True, kw_only=True):
    """One update of a whole cluster. ``totals`` sums those of the hosts that answered."""

    cluster: str
    view: int
    hosts: tuple[HostLine, ...]
    sessions: tuple[Line, ...]
    totals: Totals


def cluster_look_at(
    name: str,
    view: int,
    answers: Sequence[HostAnswer],
    times: tuple[Mapping[str, tuple[float, ServiceSnapshot]], float],
    *,
    limit: int,
) -> ClusterLook:
    """*answers* as a look with at most *limit* sessions, running ones first. *times* are the last
    answer of each host with its time in seconds, and the time of *answers*."""
    before, now = times
    hosts, sessions = list[HostLine](), list[Line]()
    for answer in answers:
        host, totals = answer.host, None
        if answer.snapshot is not None:
            at, earlier = before.get(host.name, (now, None))
            look = look_at(answer.snapshot, earlier, now - at)
            totals = look.totals
            sessions += (msgspec.structs.replace(line, host=host.name) for line in look.sessions)
        hosts.append(
            HostLine(
                name=host.name,
                address=host.address,
                state=host.state,
                totals=totals,
                error=answer.error,
            )
        )
    sessions.sort(key=lambda line: (line.figures.turn_phase is None, line.figures.session))
    answered = [host.totals for host in hosts if host.totals is not None]
    return ClusterLook(
        cluster=name,
        view=view,
        hosts=tuple(hosts),
        sessions=tuple(sessions[:limit]),
        totals=Totals(
            live=sum(totals.live for totals in answered),
            running=sum(totals.running for totals in answered),
            tokens_per_s=round(sum(totals.tokens_per_s for totals in answered), 1),
            interrupts=sum(totals.interrupts for totals in answered),
            compactions=sum(totals.compactions for totals in answered),
            cost_nano_usd=sum(totals.cost_nano_usd for totals in answered),
            unpriced=any(totals.unpriced for totals in answered),
        ),
    )


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


def newest_view(answers: Sequence[HostAnswer]) -> ClusterStatistics | None:
    """The statistics of the host that knows the newest view; None if no host answered."""
    known = [answer.snapshot.cluster for answer in answers if answer.snapshot is not None]
    return max(
        (found for found in known if found is not None), key=lambda found: found.view, default=None
    )


def tables_of(look: ClusterLook, width: int, height: int | None = None) -> RenderableType:
    """*look* as a table of the hosts and a table of the sessions: see ``table_of``."""
    is_wide = width >= NARROW
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("host", "state", "live", "running", "tok/s", "cost"):
        justify = "left" if title in ("host", "state") else "right"
        # What is long, an error or an address, takes more lines, and no room of names and figures.
        wrap = title == "state"
        table.add_column(title, justify=justify, no_wrap=not wrap)  # type: ignore[arg-type]  # a literal
    if is_wide:
        table.add_column("address", overflow="fold")
    for host in look.hosts:
        cells = _host_cells(host.totals) if host.totals is not None else ("", "", "", "")
        state = f"[{_STATES.get(host.state, 'white')}]{escape(host.state)}[/]"
        if host.totals is None:
            state = f"[bold red]{escape(host.error or 'no answer')}[/]"
        address = (escape(host.address),) if is_wide else ()
        table.add_row(escape(host.name), state, *cells, *address)
    table.add_section()
    answered = sum(host.totals is not None for host in look.hosts)
    table.add_row(
        escape(look.cluster),
        f"{answered} of {len(look.hosts)} answer",
        *_host_cells(look.totals),
        *((f"view {look.view}",) if is_wide else ()),
        style="bold",
    )
    rest = (
        None if height is None else max(AROUND_LINES + 1, height - len(look.hosts) - AROUND_LINES)
    )
    whole = Look(sessions=look.sessions, totals=look.totals, service=None)
    return Group(table, table_of(whole, width, rest, has_hosts=True))


_STATES = {"up": "green", "joining": "cyan", "draining": "yellow"}


def _host_cells(totals: Totals) -> tuple[str, ...]:
    return (
        f"{totals.live:,}",
        f"{totals.running:,}",
        f"{totals.tokens_per_s:,.1f}",
        _cost(totals.cost_nano_usd, totals.unpriced),
    )


def table_of(
    look: Look, width: int, height: int | None = None, *, has_hosts: bool = False
) -> Table:
    """*look* as a table for a terminal of *width* columns and, if given, *height* lines. With
    *has_hosts* the last column names the host of each session."""
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
    if has_hosts:
        table.add_column("host", no_wrap=True)
    for line in lines:
        cells = _cells(line)
        host = (escape(line.host or ""),) if has_hosts else ()
        table.add_row(*(cells if is_wide else (*cells[:2], *cells[3:])), *host)
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
